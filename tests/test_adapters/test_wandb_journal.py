"""The journal of what W&B was given: what a later attempt reads out of it."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from adapters.backends import _wandb_journal
from adapters.backends._wandb_journal import Arrived, Attempt, Journal


def row(number: int) -> dict[str, Any]:
    return {"n": number, "row": {"train/loss": number / 7, "train/step": number}, "pages": {}, "time": 0.0}


def attempt(keep: int = 0, first: int = 0) -> dict[str, Any]:
    return {"attempt": asdict(Attempt(row=first, step=0, file="run.wandb", online=True, keep=keep))}


def filled(path: Path, rows: int) -> Journal:
    journal = Journal(str(path))
    journal.read(0)
    journal.add(attempt())
    for number in range(rows):
        journal.add(row(number))
    return journal


def test_a_record_parts_the_rows(tmp_path: Path) -> None:
    """Those it knows of are kept apart from those that came after it, across processes."""
    filled(tmp_path / "dir" / "journal", rows=5).close()
    later = Journal(str(tmp_path / "dir" / "journal"))
    found = later.read(4)

    assert ([*found.rows], [*found.later]) == ([0, 1, 2], [3, 4])
    assert found.rows[2]["row"] == {"train/loss": 2 / 7, "train/step": 2}
    assert found.last == Attempt(row=0, step=0, file="run.wandb", online=True, keep=0)
    assert later.entries == 6


def test_what_an_attempt_went_back_behind_is_void(tmp_path: Path) -> None:
    """Also when it ended before it had said anything; but what is known to have arrived stays known."""
    journal = filled(tmp_path / "journal", rows=5)
    journal.add({"known": row(3)})
    journal.add(attempt(keep=4, first=3))
    journal.add(attempt(keep=4, first=3))
    found = Journal(str(tmp_path / "journal")).read(9)

    assert ([*found.rows], [*found.later]) == ([0, 1, 2], [])
    assert found.known == [row(3)]
    assert found.last is not None
    assert found.last.row == 3


def test_config_and_summary_are_those_of_the_record(tmp_path: Path) -> None:
    """Later values win over earlier ones, and those after the record do not count."""
    journal = filled(tmp_path / "journal", rows=0)
    journal.add({"config": {"lr": 1, "width": 2}})
    journal.add({"config": {"lr": 3}})
    journal.add({"summary": {"note": "a"}})
    journal.add({"checkpoint": {"path": "x"}})
    journal.add({"summary": {"note": "b"}})
    found = Journal(str(tmp_path / "journal")).read(5)

    assert (found.config, found.summary, found.checkpoints) == ({"lr": 3, "width": 2}, {"note": "a"}, [{"path": "x"}])


def test_a_line_that_was_cut_short_is_none(tmp_path: Path) -> None:
    """Its verb never returned; what comes next takes its place."""
    filled(tmp_path / "journal", rows=2).close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'{"at":3,"n":2,"row":{"train/lo')
    later = Journal(str(tmp_path / "journal"))
    assert [*later.read(3).rows] == [0, 1]
    later.add(row(2))
    later.close()

    assert [*Journal(str(tmp_path / "journal")).read(4).rows] == [0, 1, 2]


def test_what_has_arrived_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest keeps its places, and an own file per run stays small for as long as rows arrive."""
    monkeypatch.setattr(_wandb_journal, "LARGEST", 500)
    journal = filled(tmp_path / "journal", rows=10)
    journal.add({"config": {"lr": 3}})
    assert journal.is_large
    journal.put_off()
    assert not journal.is_large
    journal.trim(8)
    trimmed = (tmp_path / "journal").stat().st_size
    journal.add(row(10))
    found = Journal(str(tmp_path / "journal")).read(12)

    assert trimmed < 1000
    assert ([*found.rows], [*found.later]) == ([8, 9], [10])
    assert found.config == {"lr": 3}
    assert not journal.is_large
    journal.add({"known": row(3)})
    journal.add({"known": row(9)})
    journal.trim(9, only_rows=True)
    ended = Journal(str(tmp_path / "journal")).read(13)
    assert ([*ended.rows], ended.config, ended.known) == ([9, 10], {}, [row(9)])
    assert ended.last is not None


def test_a_deleted_journal_begins_again(tmp_path: Path) -> None:
    """All has arrived: there is nothing to read."""
    journal = filled(tmp_path / "journal", rows=2)
    journal.delete()
    journal.delete()

    assert not (tmp_path / "journal").exists()
    assert Journal(str(tmp_path / "journal")).read(3).rows == {}


def test_arrived_values_are_left_out() -> None:
    """At the same step and time, the same value; a new one, or a new metric of the line, is sent with its axes."""
    line = {"train/loss": math.nan, "train/acc": 0.5, "train/step": 3, "train/walltime": 1.5}
    arrived = Arrived([{"row": line, "pages": {"page": "<p>"}}])

    assert arrived.without(line, {}) == ({}, {})
    assert arrived.without(line, {"page": "<p>"}) == ({}, {})
    assert arrived.without({**line, "train/walltime": 2.5}, {}) == ({**line, "train/walltime": 2.5}, {})
    assert arrived.without({**line, "train/acc": 0.75, "train/new": 1}, {"page": "<b>"}) == (
        {"train/acc": 0.75, "train/new": 1, "train/step": 3, "train/walltime": 1.5},
        {"page": "<b>"},
    )
    assert Arrived([]).without(line, {}) == (line, {})
