"""``plattli.check``: every kind of damage is found, at its file and offset, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import CompactingWriter, Reader
from plattli.check import Finding, Report, check_run
from plattli.cli import main
from plattli.errors import NotARunError, PlattliError
from plattli.rows import RowWriter
from tests.test_plattli.byhand import append_hot, append_steps, append_values, pack, write_manifest
from tests.test_plattli.test_reader_damage import damage

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))
Brief = tuple[str, str, str, int | None]
Full = tuple[str, str, str, int | None, int | None]


def brief(report: Report) -> list[Brief]:
    """Return what and where: severity, code, file, offset."""
    return sorted(((f.severity, f.code, f.file, f.offset) for f in report.findings), key=str)


def superseded(*files: str) -> list[Brief]:
    return [("warning", "superseded", f"plattli/{file}", None) for file in files]


MANIFEST = "plattli/plattli.json"
#: What each golden run is expected to have; those that are not listed are clean and silent.
EXPECTED: dict[str, list[Brief]] = {
    "bad_manifest_name": [("error", "name", MANIFEST, None)],
    "compaction_crash_2_after_rotate": [("note", "interrupted-batch", "plattli/hot.compacting.jsonl", None)],
    "compaction_crash_4_manifest_tmp_left": [
        ("note", "interrupted-batch", "plattli/hot.compacting.jsonl", None),
        ("warning", "temporary", "plattli/plattli.json.tmp", None),
    ],
    "compaction_crash_5_manifest_ahead_of_values": [
        ("note", "interrupted-batch", "plattli/hot.compacting.jsonl", None)
    ],
    "compaction_crash_7_all_but_last_column": [("note", "interrupted-batch", "plattli/hot.compacting.jsonl", None)],
    "config_only_not_a_run": [("note", "manifest", MANIFEST, None)],
    # its link is made by the reader's test; as stored, the file holds the link's text
    "config_symlink": [("error", "config", "plattli/config.json", 0)],
    "extra_files": [
        ("note", "stray", "plattli/notes.txt", None),
        ("warning", "orphan", "plattli/lone.f32", None),
        ("warning", "orphan", "plattli/orphan.f32", None),
        ("warning", "orphan", "plattli/orphan.indices", None),
        *superseded("a.f64"),
        ("warning", "temporary", "plattli/a.f32.tmp", None),
        ("warning", "temporary", "plattli/plattli.json.tmp", None),
    ],
    "finish_crash_3_tightened_file_tmp": [("warning", "temporary", "plattli/n.u8.tmp", None)],
    "finish_crash_4_both_dtypes_old_manifest": superseded("n.u8"),
    "finish_crash_6_zip_tmp_left": [("warning", "temporary", "metrics.plattli.tmp", None)],
    "finish_crash_7_zip_and_full_dir": [("warning", "twice", "plattli", None)],
    "hot_compacting_leftover_overlap": [("note", "interrupted-batch", "plattli/hot.compacting.jsonl", None)],
    "hot_corrupt_middle": [("error", "bad-line", "plattli/hot.jsonl", 19)],
    "hot_tail_truncated_blank": [("note", "torn-tail", "plattli/hot.jsonl", 28)],
    "hot_tail_truncated_no_newline": [("warning", "unended-line", "plattli/hot.jsonl", 46)],
    "hot_tail_truncated_partial": [("warning", "torn-tail", "plattli/hot.jsonl", 28)],
    "hot_with_run_rows_ignored": [("warning", "ignored-hot", "plattli/hot.jsonl", None)],
    "steps_backwards_direct": [("warning", "step-order", "plattli/a.indices", 12)],
    "truncated_closed_segment_short_values": [
        *[("warning", "missing-values", MANIFEST, None)] * 3,
        ("warning", "run-rows", MANIFEST, None),
        *superseded("a.indices", "j.indices", "n.indices"),
        ("warning", "torn-tail", "plattli/a.f32", 12),
        ("warning", "torn-tail", "plattli/j.jsonl", 18),
        ("warning", "torn-tail", "plattli/n.i64", 24),
    ],
    "truncated_indices_partial_zip": [
        ("warning", "run-rows", "t.plattli/plattli.json", None),
        *[("warning", "torn-tail", f"t.plattli/{name}.indices", 12) for name in "ajn"],
        ("warning", "uncovered-values", "t.plattli/a.f32", 12),
        ("warning", "uncovered-values", "t.plattli/j.jsonl", 27),
        ("warning", "uncovered-values", "t.plattli/n.i64", 24),
    ],
    "names_dir": [("note", "portable", MANIFEST, None)] * 2,
    "names_live": [("note", "portable", MANIFEST, None)] * 2,
    "truncated_jsonl_corrupt_middle": [
        ("error", "bad-line", "plattli/j.jsonl", 8),
        ("warning", "missing-values", "plattli/j.indices", 12),
    ],
    "truncated_open_inside_closed": superseded("a.indices", "j.indices", "n.indices"),
    "truncated_values_empty": [
        *[("warning", "missing-values", f"plattli/{name}.indices", 0) for name in "ajn"],
        ("warning", "run-rows", MANIFEST, None),
    ],
    "truncated_values_empty_zip": [
        *[("warning", "missing-values", f"t.plattli/{name}.indices", 0) for name in "ajn"],
        ("warning", "run-rows", "t.plattli/plattli.json", None),
    ],
    "truncated_values_longer_zip": [
        ("warning", "run-rows", "t.plattli/plattli.json", None),
        ("warning", "uncovered-values", "t.plattli/a.f32", 8),
        ("warning", "uncovered-values", "t.plattli/j.jsonl", 18),
        ("warning", "uncovered-values", "t.plattli/n.i64", 16),
    ],
    "truncated_values_missing": [
        ("error", "missing-file", "plattli/a.f32", None),
        ("error", "missing-file", "plattli/j.jsonl", None),
        ("error", "missing-file", "plattli/n.indices", None),
    ],
    "truncated_values_missing_zip": [
        ("error", "missing-file", "t.plattli/a.f32", None),
        ("error", "missing-file", "t.plattli/j.jsonl", None),
        ("error", "missing-file", "t.plattli/n.indices", None),
    ],
    "truncated_values_partial": [
        ("warning", "missing-values", "plattli/a.indices", 12),
        ("warning", "missing-values", "plattli/j.indices", 8),
        ("warning", "missing-values", "plattli/n.indices", 12),
        ("warning", "run-rows", MANIFEST, None),
        ("warning", "torn-tail", "plattli/a.f32", 12),
        ("warning", "torn-tail", "plattli/j.jsonl", 18),
        ("warning", "torn-tail", "plattli/n.i64", 24),
    ],
}


def golden(name: str) -> Path:
    """Return where the golden run of that name is."""
    path: str = json.loads((GOLDEN / name / "expected.json").read_text())["path"]
    return GOLDEN / name / path


def failures(path: Path) -> list[str]:
    """Read all of a run, and return the errors that the reader raised."""
    found = []
    with Reader(path) as reader:
        names: list[str] = []
        calls: list[Callable[[], Any]] = [lambda: names.extend(reader.metrics()), reader.config]
        for call in calls:
            try:
                call()
            except PlattliError as error:
                found.append(str(error))
        for name in names:
            try:
                reader.metric(name, dtype="storage")
            except PlattliError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("name", CASES)
def test_golden_runs_have_the_findings_one_would_expect(name: str) -> None:
    """And none more; where the reader raises, and only there, one of them is an error."""
    report = check_run(golden(name))

    assert brief(report) == sorted(EXPECTED.get(name, []), key=str)
    if report.state != "empty":
        assert bool(failures(golden(name))) == bool(report.count("error"))


# ---- damage of each kind --------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that a dead writer left: numbers, a step file, JSON, and rows in the hot log."""
    folder = tmp_path / "run" / "plattli"
    folder.mkdir(parents=True)
    append_values(folder, "a", "f32", [1.0, 2.0, 3.0, 4.0])
    append_values(folder, "b/c", "i16", [5, 4, 4])
    append_steps(folder, "b/c", [0, 2, 3])
    append_values(folder, "j", "jsonl", [None, {"k": [1]}, "x"])
    append_hot(folder, 4, {"a": 1.5, "j": "y"})
    append_hot(folder, 5, {"b/c": 7, "h": 1})
    (folder / "config.json").write_text('{"lr": 0.1}')
    write_manifest(folder, specs())
    return folder.parent


def specs() -> dict[str, Any]:
    return {
        "a": {"indices": [{"start": 0, "stop": 2, "step": 1}, {"start": 2, "step": 1}], "dtype": "f32"},
        "b/c": {"indices": "indices", "dtype": "i16", "monotonic": "dec"},
        "j": {"indices": [{"start": 0, "stop": 3, "step": 1}], "dtype": "jsonl"},
    }


def edit(run: Path, **entries: dict[str, Any]) -> None:
    """Change entries of the manifest."""
    changed = specs()
    for name, entry in entries.items():
        changed.setdefault(name, {}).update(entry)
    write_manifest(run / "plattli", changed)


def append(file: str, data: bytes) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with (run / "plattli" / file).open("ab") as opened:
            opened.write(data)

    return change


def write(file: str, data: bytes) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return change


def remove(file: str) -> Callable[[Path], None]:
    return lambda run: (run / file).unlink()


def link(file: str, target: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / file).unlink(missing_ok=True)
        (run / file).symlink_to(target)

    return change


def error(code: str, file: str, line: int | None = None, offset: int | None = None) -> Full:
    return "error", code, file, line, offset


def warning(code: str, file: str, line: int | None = None, offset: int | None = None) -> Full:
    return "warning", code, file, line, offset


def note(code: str, file: str, line: int | None = None, offset: int | None = None) -> Full:
    return "note", code, file, line, offset


HOT = '{"step":4,"a":1.5,"j":"y"}\n{"step":5,"b/c":7,"h":1}\n'
DAMAGE: dict[str, tuple[Callable[[Path], Any], list[Full]]] = {
    "half a value": (append("a.f32", b"\0\0\0"), [warning("torn-tail", "plattli/a.f32", None, 16)]),
    "half a step": (append("b/c.indices", b"\4"), [warning("torn-tail", "plattli/b/c.indices", None, 12)]),
    "half a JSON line": (append("j.jsonl", b'{"k'), [warning("torn-tail", "plattli/j.jsonl", 4, 20)]),
    "half a hot row": (append("hot.jsonl", b'{"step":6,'), [warning("torn-tail", "plattli/hot.jsonl", 3, 52)]),
    "zeros that a power loss left": (
        append("hot.jsonl", b"\0" * 9), [warning("torn-tail", "plattli/hot.jsonl", 3, 52)]),
    "a whole hot row without its newline": (
        append("hot.jsonl", b'{"step":6,"a":1}'), [warning("unended-line", "plattli/hot.jsonl", 3, 68)]),
    "a whole JSON line without its newline": (
        write("plattli/j.jsonl", b'null\n1\n"x"'), [warning("unended-line", "plattli/j.jsonl", 3, 10)]),
    "a bad hot row": (
        write("plattli/hot.jsonl", f'{{"step":4,"a"\n{HOT}'.encode()),
        [error("bad-line", "plattli/hot.jsonl", 1, 0)]),
    "a hot row without a step": (
        write("plattli/hot.jsonl", f'{HOT}{{"a":1}}\n'.encode()), [error("bad-line", "plattli/hot.jsonl", 3, 52)]),
    "a hot row with a step beyond the range": (
        append("hot.jsonl", b'{"step":99999999999999999999,"a":1}\n'), [error("bad-line", "plattli/hot.jsonl", 3, 52)]),
    "a hot row with a forbidden name": (
        append("hot.jsonl", b'{"step":6,"../a":1}\n'), [error("bad-line", "plattli/hot.jsonl", 3, 52)]),
    "a hot value that its column cannot hold": (
        append("hot.jsonl", b'{"step":6,"b/c":40000}\n'), [error("hot-value", "plattli/hot.jsonl", 3, 52)]),
    "a hot value that is no number": (
        append("hot.jsonl", b'{"step":6,"a":[1]}\n'), [error("hot-value", "plattli/hot.jsonl", 3, 52)]),
    "a bad JSON line": (
        write("plattli/j.jsonl", b'null\n{"k"\n"x"\n'), [error("bad-line", "plattli/j.jsonl", 2, 5)]),
    "a line that is not UTF-8": (
        write("plattli/j.jsonl", b'null\n"\xff"\n"x"\n'), [error("bad-line", "plattli/j.jsonl", 2, 5)]),
    "values without steps": (
        append("b/c.i16", b"\0\0\0\0"), [warning("uncovered-values", "plattli/b/c.i16", None, 6)]),
    "JSON values without steps": (
        append("j.jsonl", b"1\n2\n"), [warning("uncovered-values", "plattli/j.jsonl", None, 20)]),
    "steps without values": (
        append("b/c.indices", b"\7\0\0\0"), [warning("missing-values", "plattli/b/c.indices", None, 12)]),
    "a step without a value that is hot": (
        append("b/c.indices", b"\5\0\0\0"), [note("interrupted-batch", "plattli/b/c.indices")]),
    "segments without values": (
        lambda run: edit(run, j={"indices": [{"start": 0, "stop": 9, "step": 1}]}),
        [warning("missing-values", MANIFEST)]),
    "segments without values that are hot": (
        lambda run: edit(run, j={"indices": [{"start": 0, "stop": 3, "step": 1}, {"start": 4, "stop": 5, "step": 1}]}),
        [note("interrupted-batch", MANIFEST)]),
    "steps that fall and repeat": (
        write("plattli/b/c.indices", struct.pack("<3I", 2, 0, 0)),
        [warning("step-order", "plattli/b/c.indices", None, 4)]),
    "a wrong flag": (
        lambda run: edit(run, **{"b/c": {"monotonic": "inc"}}), [error("monotonic", MANIFEST)]),
    "a flag over a NaN": (
        lambda run: [edit(run, a={"monotonic": "inc"}), append("a.f32", b"\0\0\xc0\x7f")(run)],
        [error("monotonic", MANIFEST)]),
    "a flag of JSON": (lambda run: edit(run, j={"monotonic": "inc"}), [warning("monotonic", MANIFEST)]),
    "a flag that is no word": (lambda run: edit(run, a={"monotonic": [1]}), [warning("monotonic", MANIFEST)]),
    "an unknown dtype": (
        lambda run: edit(run, a={"dtype": "f16"}),
        [error("dtype", MANIFEST), warning("orphan", "plattli/a.f32")]),
    "segments that go back": (
        lambda run: edit(run, a={"indices": [{"start": 5, "stop": 6, "step": 1}, {"start": 2, "step": 1}]}),
        [error("segments", MANIFEST)]),
    "segments that run out of the range": (
        lambda run: edit(run, a={"indices": [{"start": 2**32 - 2, "step": 1}]}),
        [error("segments", MANIFEST)]),
    "an entry without a dtype": (
        lambda run: edit(run, x={"indices": []}), [error("entry", MANIFEST)]),
    "a manifest that is not JSON": (
        write(MANIFEST, '{"ü": {}\n,,'.encode()),
        [error("manifest", MANIFEST, 2, 11), warning("orphan", "plattli/a.f32"),
         warning("orphan", "plattli/b/c.i16"), warning("orphan", "plattli/b/c.indices"),
         warning("orphan", "plattli/j.jsonl")]),
    "one row that was never announced": (
        lambda run: [shutil.rmtree(run / "plattli"), write("plattli/a.f32", b"\0\0\0\0")(run),
                     write("plattli/a.indices", b"")(run)],
        [warning("orphan", "plattli/a.f32"), warning("orphan", "plattli/a.indices"),
         note("manifest", MANIFEST)]),
    "no manifest": (remove(MANIFEST), [error("manifest", MANIFEST)]),
    "run_rows that is no count": (
        lambda run: write_manifest(run / "plattli", specs(), run_rows=-1), [error("manifest", MANIFEST)]),
    "run_rows, and a hot log": (
        lambda run: write_manifest(run / "plattli", specs(), run_rows=9),
        [warning("run-rows", MANIFEST), warning("ignored-hot", "plattli/hot.jsonl")]),
    "a size that a column of JSON does not have": (
        lambda run: edit(run, j={"bytes": 9}), [warning("bytes", MANIFEST)]),
    "a size of a column of JSON that is not whole": (
        lambda run: [edit(run, j={"bytes": 21}), append("j.jsonl", b"{")(run)],
        [warning("bytes", MANIFEST), warning("torn-tail", "plattli/j.jsonl", 4, 20)]),
    "the size of a column that is not JSON": (
        lambda run: edit(run, a={"bytes": 16}), [warning("bytes", MANIFEST)]),
    "a column of another dtype, but not the one that counts": (
        lambda run: os.rename(run / "plattli/b/c.i16", run / "plattli/b/c.i64"),
        [warning("missing-file", "plattli/b/c.i16"), warning("orphan", "plattli/b/c.i64")]),
    "a column that is a folder": (
        lambda run: [(run / "plattli/a.f32").unlink(), (run / "plattli/a.f32").mkdir()],
        [error("unreadable", "plattli/a.f32")]),
    "no config": (remove("plattli/config.json"), [warning("config", "plattli/config.json")]),
    "a config that is not JSON": (
        write("plattli/config.json", b'{\n"lr": 0.1'), [error("config", "plattli/config.json", 2, 11)]),
    "a config that links to nowhere": (
        link("plattli/config.json", "../gone.json"), [warning("config", "plattli/config.json")]),
    "a config that links to a file by its absolute path": (
        lambda run: [write("c.json", b"{}")(run), link("plattli/config.json", str(run / "c.json"))(run)],
        [note("config", "plattli/config.json")]),
    "a config that links into the folder": (
        lambda run: [write("plattli/my.json", b"{}")(run), link("plattli/config.json", "my.json")(run)], []),
    "a temporary file": (write("plattli/b/c.i64.tmp", b""), [warning("temporary", "plattli/b/c.i64.tmp")]),
    "an index file beside segments": (
        write("plattli/a.indices", b""), [warning("superseded", "plattli/a.indices")]),
    "somebody else's file": (write("plattli/notes.txt", b""), [note("stray", "plattli/notes.txt")]),
    "a staging folder": (
        write(".plattli-x1/plattli/plattli.json", b"{}"), [warning("staging", ".plattli-x1")]),
    "an archive that was not published": (
        write("metrics.plattli.tmp", b"PK"), [warning("temporary", "metrics.plattli.tmp")]),
    "an archive that is none": (
        write("metrics.plattli", b"PK"), [warning("archive", "metrics.plattli")]),
    "a dead owner's lock": (write(".plattli.lock", b'{"pid": 1}'), [note("lock", ".plattli.lock")]),
    "copies of a repair": (
        write(".plattli-repair-1/x", b""), [note("copies", ".plattli-repair-1")]),
    "lines that a tracker has not received": (
        lambda run: [write(".followers/1-WandbLogger.job", b"\x80junk")(run),
                     write(".followers/1-WandbLogger.json", b'{"delivered": 7, "error": "offline"}')(run)],
        [note("follower", ".followers/1-WandbLogger.job")]),
    "a follower's temporary file": (
        write(".followers/1-X.json.77.tmp", b""), [warning("follower", ".followers/1-X.json.77.tmp")]),
    "a hot row below stored ones": (
        append("hot.jsonl", b'{"step":1,"a":9}\n'), [warning("buried-row", "plattli/hot.jsonl", 3, 52)]),
    "a late row that a killed writer was inserting": (
        write("plattli/hot.jsonl", b'{"step":1,"b/c":9}\n{"step":2,"b/c":4}\n{"step":3,"b/c":4}\n'),
        [note("interrupted-insertion", "plattli/hot.jsonl", 1, 0)]),
}  # fmt: skip


def test_the_run_made_by_hand_is_clean(run: Path) -> None:
    """So what the next tests find is what they did; the facts are right."""
    report = check_run(run)

    assert (report.findings, report.state, report.metrics, report.rows) == ((), "unfinished", 4, 4)
    assert (run / "plattli" / "hot.jsonl").read_text() == HOT


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_where_it_is(run: Path, kind: str) -> None:
    """Each kind, with its file, line and offset; where the reader raises, there is an error."""
    change, expected = DAMAGE[kind]
    change(run)
    report = check_run(run)

    found = [(f.severity, f.code, f.file, f.line, f.offset) for f in report.findings]
    assert sorted(found, key=str) == sorted(expected, key=str)
    try:
        raised = failures(run)
    except NotARunError as refused:
        raised = [] if report.state == "empty" and not report.count("error") else [str(refused)]
    problems = [f for f in report.findings if f.severity == "error" or f.code == "config"]
    assert not raised or problems


@pytest.mark.parametrize("kind", ["half a hot row", "values without steps", "a temporary file", "a staging folder"])
def test_what_passes_is_a_note_while_a_writer_is_at_work(run: Path, kind: str) -> None:
    """The report names the writer, and offers no repair."""
    with RowWriter(run, hotsize=100, if_exists="append"):
        DAMAGE[kind][0](run)
        report = check_run(run)

    assert report.state == "live"
    assert report.owner is not None
    assert report.owner["pid"] == os.getpid()
    assert {f.severity for f in report.findings} == {"note"}
    assert report.fixes == []
    assert report.findings[-1].code == "lock"
    assert f"process {os.getpid()} on host" in report.findings[-1].what


def test_a_run_at_work_is_clean(tmp_path: Path) -> None:
    """Whatever moment a look falls into: rotation, compaction, promotion, new metrics."""
    writer = RowWriter(tmp_path / "run", hotsize=3)
    writer.append(0, ("a",), (0,))
    stop = threading.Event()

    def work() -> None:
        step = 1
        while not stop.is_set():
            names = ("a", "b", f"m{step % 40}/x") if step % 7 else ("a", "late")
            writer.append(step, names, tuple(step + (0.5 if step > 50 else 0) for _ in names))
            step += 1 + step % 3 % 2

    thread = threading.Thread(target=work)
    thread.start()
    try:
        reports = [check_run(tmp_path / "run") for _ in range(40)]
    finally:
        stop.set()
        thread.join()
        writer.close()

    assert [f for report in reports for f in report.findings if f.severity != "note"] == []
    assert {report.state for report in reports} == {"live"}


def test_a_locked_file_of_any_bytes_is_a_lock(run: Path) -> None:
    """Whatever its owner wrote into it."""
    for data in (b"[" * 4000, b'{"started": "x"}', b'{"started": 1e999}', b"\xff", b""):
        with RowWriter(run, hotsize=100, if_exists="append"):
            (run / ".plattli.lock").write_bytes(data)
            report = check_run(run)

        assert report.state == "live", data
        assert report.findings[-1].code == "lock"


# ---- archives -------------------------------------------------------------------------------------


@pytest.fixture
def archive(run: Path) -> Path:
    """The same as an archive."""
    (run / "plattli" / "hot.jsonl").unlink()
    write_manifest(run / "plattli", specs(), run_rows=4)
    pack(run / "plattli", run / "metrics.plattli")
    return run / "metrics.plattli"


def test_an_archive_is_checked_like_a_folder(archive: Path, tmp_path: Path) -> None:
    """By its own path, by the run's, and under another name."""
    other = tmp_path / "other.plattli"
    shutil.copy(archive, other)

    for path in (archive, archive.parent, other):
        report = check_run(path)
        assert (report.findings, report.state, report.metrics, report.rows) == ((), "finished", 3, 4)


def test_a_flipped_bit_in_an_archive_is_found(archive: Path) -> None:
    """Though the reader does not see it: the member, and where its header is."""
    data = bytearray(archive.read_bytes())
    data[data.index(b"\x05\0\x04\0\x04\0")] ^= 2
    archive.write_bytes(data)
    header = data.index(b"b/c.i16") - 30
    (finding,) = check_run(archive).findings

    assert (finding.severity, finding.code, finding.file) == ("error", "checksum", "metrics.plattli/b/c.i16")
    assert f"header is at byte {header} of metrics.plattli" in finding.what


def test_odd_members_are_found(archive: Path) -> None:
    """Two of one name, and one that a writer would not unpack; nothing of an archive is repaired."""
    with zipfile.ZipFile(archive, "a") as bundle, pytest.warns(UserWarning, match="Duplicate"):
        bundle.writestr("../x", b"")
        bundle.writestr("j.jsonl", b"1\n2\n3")
    report = check_run(archive)

    assert brief(report) == [
        ("note", "stray", "metrics.plattli/../x", None),
        ("warning", "member", "metrics.plattli/../x", None),
        ("warning", "member", "metrics.plattli/j.jsonl", None),
        ("warning", "unended-line", "metrics.plattli/j.jsonl", 5),
    ]
    assert report.fixes == []


def test_a_cut_archive_cannot_be_read(archive: Path) -> None:
    """If nothing else is there that is an error."""
    archive.write_bytes(archive.read_bytes()[:-30])

    assert brief(check_run(archive)) == [("error", "archive", "metrics.plattli", None)]


def test_a_folder_with_rows_beside_an_archive_is_not_taken_for_a_leftover(run: Path) -> None:
    """Both stay, whatever a repair does."""
    copy = run.parent / "copy"
    shutil.copytree(run / "plattli", copy)
    pack(copy, run / "metrics.plattli")
    report = check_run(run)

    assert ("warning", "twice", "plattli", None) in brief(report)
    assert report.fixes == []


# ---- where to look --------------------------------------------------------------------------------


def test_paths(run: Path, tmp_path: Path) -> None:
    """The run root and its folder are the same; a folder elsewhere is a run without a root; others are none."""
    shutil.copytree(run / "plattli", tmp_path / "elsewhere")
    (tmp_path / "text").write_text("text")

    assert check_run(run / "plattli").path == check_run(str(run)).path == run
    assert check_run(tmp_path / "elsewhere").path == tmp_path / "elsewhere"
    for nothing in (tmp_path, tmp_path / "text", tmp_path / "missing", "a\0b"):
        with pytest.raises(NotARunError):
            check_run(nothing)


def test_progress_is_told(run: Path, archive: Path) -> None:
    """How much is done of how much, never beyond."""
    told: list[tuple[int, int]] = []
    check_run(archive, progress=lambda done, total, name: told.append((done, total)))

    assert told
    assert all(0 < done <= total for done, total in told)


# ---- any bytes ------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.data())
@pytest.mark.filterwarnings("ignore:overflow encountered in cast", "ignore:invalid value encountered in cast")
def test_any_bytes_give_findings(data: st.DataObject) -> None:
    """Never an exception; and what the reader stumbles over is an error, in a folder as in an archive."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "run"
        folder = root / "plattli"
        folder.mkdir(parents=True)
        append_values(folder, "a", "f32", [1.0, 2.0, 3.0, 4.0])
        append_values(folder, "b/c", "i16", [5, 4, 4])
        append_steps(folder, "b/c", [0, 2, 3])
        append_values(folder, "j", "jsonl", [None, {"k": [1]}, "x"])
        append_hot(folder, 4, {"a": 1.5, "j": "y"}, "hot.compacting.jsonl")
        append_hot(folder, 5, {"b/c": 7, "h": 1})
        (folder / "config.json").write_text('{"lr": 0.1}')
        write_manifest(folder, specs())
        write(".plattli.lock", b'{"pid": 1}')(root)
        write(".followers/1-X.json", b'{"delivered": 7}')(root)
        write(".followers/1-X.job", b"")(root)
        if data.draw(st.booleans(), label="archive"):
            pack(folder, root / "metrics.plattli")
        for _ in range(data.draw(st.integers(1, 2), label="damages")):
            files = sorted(file for file in root.rglob("*") if file.is_file())
            file = data.draw(st.sampled_from(files), label="file")
            file.write_bytes(data.draw(damage(file.read_bytes()), label="bytes"))
        report = check_run(root)
        raised = []
        with contextlib.suppress(NotARunError):
            raised = failures(root)
        if raised:
            assert [f for f in report.findings if f.severity == "error" or f.code == "config"], raised


# ---- the command ----------------------------------------------------------------------------------


def test_the_command_prints_a_verdict_and_findings_by_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the character; the exit code says that there is something."""
    append("a.f32", b"\0\0\0")(run)
    append("hot.jsonl", b'{"step":6,')(run)
    append("notes.txt", b"")(run)
    code = main(["check", str(run)])

    assert (code, capsys.readouterr().out.splitlines()) == (
        1,
        [
            f"{run}: readable, not in order (unfinished run, 4 metrics, 4 stored rows): 2 warnings, 1 note; "
            "--repair would change 2 things",
            "  plattli/hot.jsonl",
            "    warning  line 3, byte 52: the last line is torn: b'{\"step\":6,'",
            "             --repair would cut the last 10 bytes, keeping a copy",
            "  plattli/a.f32",
            "    warning  byte 16: metric 'a': the last value is torn: 3 stray bytes at the end",
            "             --repair would cut the last 3 bytes, keeping a copy",
            "  plattli/notes.txt",
            "    note     is no file of the format: readers ignore it, an archive takes it along",
        ],
    )


def test_the_command_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object per run, runs that are fine among them."""
    fine = run.parent / "fine"
    shutil.copytree(run, fine)
    append("a.f32", b"\0\0\0")(run)
    none = str(run.parent / "none")
    code = main(["check", "--json", str(fine), none, str(run)])
    out, err = capsys.readouterr()
    pages = [json.loads(line) for line in out.splitlines()]

    assert (code, err) == (1, "")
    assert pages.pop(1) == {"path": none, "error": f"{none}: no such file or directory"}
    assert [page["verdict"] for page in pages] == ["clean", "untidy"]
    assert pages[0]["findings"] == []
    assert pages[1] == {
        "path": str(run), "state": "unfinished", "owner": None, "verdict": "untidy", "metrics": 4, "rows": 4,
        "errors": 0, "warnings": 1, "notes": 0,
        "findings": [
            {"severity": "warning", "code": "torn-tail", "file": "plattli/a.f32", "line": None, "offset": 16,
             "metric": "a", "what": "the last value is torn: 3 stray bytes at the end",
             "repair": "cut the last 3 bytes, keeping a copy"}
        ],
    }  # fmt: skip


def test_exit_codes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Notes are clean; findings and paths without a run are not; usage is 2."""
    append("notes.txt", b"")(run)
    assert main(["check", "-q", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: clean (unfinished run, 4 metrics, 4 stored rows): 1 note\n"
    assert main(["check", str(tmp_path), str(run)]) == 1
    assert "a folder of runs: 'run'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["check"])
    assert stopped.value.code == 2


def test_a_finding_says_where_it_is() -> None:
    """As people and editors expect it."""
    finding = Finding("error", "bad-line", "plattli/hot.jsonl", "…", line=3, offset=52)

    assert finding.place == "plattli/hot.jsonl:3, byte 52"
    assert finding.repair is None


def test_our_own_finished_runs_are_clean(tmp_path: Path) -> None:
    """As folder and as archive, optimized or not."""
    for optimize in (False, True):
        for archived in (False, True):
            root = tmp_path / f"{optimize}{archived}"
            writer = CompactingWriter(root, hotsize=4)
            for step in range(20):
                writer.write({"a": step, "b/c": step / 3, "note": {"s": step}} if step % 3 else {"a": -step})
                writer.end_step()
            writer.finish(optimize=optimize, zip=archived)

            assert check_run(root).findings == ()
