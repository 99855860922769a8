"""adapters.drivers._records: the logger's record for every checkpoint that may still be announced."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from adapters.drivers._records import RecordBook, load_sidecar, prune_sidecars, save_sidecar, sidecar_of
from loggers.errors import RecordError
from tests.faults import failing_disk


def read(path: Path) -> RecordBook:
    book = RecordBook(path)
    book.load()
    return book


def filled(path: Path | None, most: int = 10_000) -> RecordBook:
    book = RecordBook(path, most)
    book.begin(-1, {"n": -1})
    for step in (0, 10, 20):
        book.note(step, {"n": step})
    book.note(20, {"n": 21})
    return book


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_step_has_the_newest_record_before_it(tmp_path: Path, in_memory: bool) -> None:
    """In memory, and in the file for the next process."""
    book = filled(tmp_path / "records.jsonl")
    book = book if in_memory else read(tmp_path / "records.jsonl")

    found = {step: book.at(step) for step in (-2, -1, 0, 5, 10, 19, 20, 99)}
    assert {step: record and record["n"] for step, record in found.items()} == {
        -2: None, -1: -1, 0: 0, 5: 0, 10: 10, 19: 10, 20: 21, 99: 21,
    }  # fmt: skip


def test_what_is_settled_is_forgotten(tmp_path: Path) -> None:
    """But for the record of the checkpoint that settled it, which a later one may need as well."""
    book = filled(tmp_path / "records.jsonl")
    book.settle(15)

    for found in (book, read(tmp_path / "records.jsonl")):
        assert found.at(9) is None
        assert found.at(15) == {"n": 10}
        assert found.at(20) == {"n": 21}


def test_notes_are_bounded(tmp_path: Path) -> None:
    """Where no checkpoint is ever announced, the older half goes, in the file, too."""
    book = RecordBook(tmp_path / "records.jsonl", 2000)
    for step in range(1000):
        book.note(step, {"n": step})
        assert (tmp_path / "records.jsonl").stat().st_size <= 2000

    assert book.at(999) == read(tmp_path / "records.jsonl").at(999) == {"n": 999}
    assert book.at(900) is None


def test_a_torn_line_is_none(tmp_path: Path) -> None:
    """The process died while it wrote it, so its checkpoint was not taken yet."""
    filled(tmp_path / "records.jsonl")
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"step": 30, "record": {"n": 30}}')

    assert read(tmp_path / "records.jsonl").at(99) == {"n": 21}


@pytest.mark.parametrize("operation", range(1, 6))
def test_the_disk_may_fail_and_come_back(tmp_path: Path, operation: int) -> None:
    """Memory has everything meanwhile, and the file afterwards."""
    book = filled(tmp_path / "records.jsonl")
    with failing_disk(operation, 2, errno.ENOSPC) as disk:
        for step in (30, 40, 50):
            book.note(step, {"n": step})
            assert book.at(step) == {"n": step}
        book.settle(35)
    book.note(60, {"n": 60})

    assert disk.failed == 2
    assert book.error is None
    for step in (35, 40, 50, 60):
        assert read(tmp_path / "records.jsonl").at(step) == {"n": step // 10 * 10}
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_sidecar_belongs_to_a_file(tmp_path: Path) -> None:
    """Whatever leads to it; it goes when the file is gone, or its step is none of the run's any more."""
    for step in (1, 2, 3):
        (tmp_path / f"{step}.pt").touch()
        save_sidecar(sidecar_of(tmp_path / f"{step}.pt", "logger"), {"step": step}, step + 1)
    (tmp_path / "latest.pt").symlink_to("3.pt")
    (tmp_path / "4.pt.other.json").touch()
    assert load_sidecar(sidecar_of(tmp_path / "latest.pt", "logger")) == {"step": 3, "next_step": 4}
    (tmp_path / "1.pt").unlink()
    prune_sidecars(tmp_path, "logger", beyond=3)

    assert load_sidecar(sidecar_of(tmp_path / "1.pt", "logger")) is None
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["2.pt.logger.json", "4.pt.other.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_damaged_sidecar_is_named(tmp_path: Path, text: str) -> None:
    """With what to do; pruning leaves it where it is."""
    (tmp_path / "1.pt").touch()
    path = sidecar_of(tmp_path / "1.pt", "logger")
    path.write_text(text)
    prune_sidecars(tmp_path, "logger", beyond=0)
    with pytest.raises(RecordError, match=rf"{path} is no logger record.*remove it"):
        load_sidecar(path)
