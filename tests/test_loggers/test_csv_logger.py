"""loggers.csv_logger: a table that is complete at every moment."""

from __future__ import annotations

import csv
import math
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loggers import CSVLogger
from loggers._cells import cell, name_cell, name_of, short, value_of
from loggers.errors import LoggerError, LoggerFinishedError, NoPathError, RecordError
from tests.killing import every_kill
from tests.test_loggers.test_contract import csv_run


def rows(path: Path) -> list[list[str]]:
    """Return the table's complete lines, but for the times."""
    text = "".join(line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))
    return [row[:3] + row[4:] for row in csv.reader(text.splitlines(), strict=True)]


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.lists(st.text() | st.floats())))
def test_every_value_comes_back(value: Any) -> None:
    """As what it was, from one line without tabs; text mostly as it is."""
    text = cell(value)

    assert text
    assert len(text.splitlines()) == 1
    assert "\t" not in text
    text.encode()
    assert repr(value_of(text)) == repr(value)


@given(st.text(min_size=1))
def test_every_name_comes_back(name: str) -> None:
    """Also those that are the table's own."""
    text = name_cell(name, frozenset(["step"]))

    assert len(text.splitlines()) == 1
    assert text != "step"
    assert name_of(text) == name


def test_text_is_in_quotes_only_where_it_has_to_be() -> None:
    """What reads as something else, or would break the line."""
    plain = ("diverged", "größer", 'a "b"', "1.0.0", "-", "[todo", "e5", "Infinity")
    quoted = ("", "0.5", "-7", "nan", "inf", "null", "true", "[1]", '"a"', "a\nb", "a\tb", "1e5")

    assert [cell(text) for text in plain] == list(plain)
    assert [cell(text)[0] for text in quoted] == ['"'] * len(quoted)
    assert [cell(v) for v in (1, 1.0, math.nan, -math.inf, None, [1, "a"])] == [
        "1", "1.0", "nan", "-inf", "null", '[1, "a"]',
    ]  # fmt: skip
    assert [short(v) for v in (0.123456, 1e-9, 123456.0, 3, math.inf, "a")] == [
        "0.1235", "1e-09", "1.235e+05", "3", "inf", "a",
    ]  # fmt: skip


def test_a_new_metric_is_a_new_column(tmp_path: Path) -> None:
    """The table stays rectangular: what was not logged is empty, before as well as after."""
    logger = CSVLogger(tmp_path / "log.csv")
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.log_metrics({"loss": 0.25, "acc": 1}, step=2, epoch=1)
    logger.log_metrics({"step": 7.5, "a,b": 'x"y'}, step=2, context="validate")
    logger.log_metrics({}, step=3)

    assert rows(tmp_path / "log.csv") == [
        ["context", "epoch", "step", "loss", "acc", '"step"', "a,b"],
        ["train", "", "1", "0.5", "", "", ""],
        ["train", "1", "2", "0.25", "1", "", ""],
        ["validate", "", "2", "", "", "7.5", 'x"y'],
        ["train", "", "3", "", "", "", ""],
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


def test_a_given_time_is_kept(tmp_path: Path) -> None:
    """A replayed line has the time at which it was logged first."""
    CSVLogger(tmp_path / "log.csv").log_metrics({"loss": 0.5}, step=1, walltime=1796032596.125)

    assert (tmp_path / "log.csv").read_text() == "context,epoch,step,walltime,loss\ntrain,,1,1796032596.125,0.5\n"


def test_a_kill_costs_no_row_and_no_column(tmp_path: Path) -> None:
    """Between any two file operations, and in the middle of a write; the next process goes on with whole rows."""

    def program(run: Path, acknowledge: Callable[[object], None]) -> None:
        logger = CSVLogger(run / "log.csv")
        for step in range(4):
            logger.log_metrics({"loss": step / 8, f"new {step // 2}": step}, step=step)
            acknowledge(step)

    seen = set()
    for number, run, acknowledged in every_kill(program, tmp_path):
        logger = CSVLogger(run / "log.csv")
        logger.log_metrics({"loss": 9.0, "last": 1.0}, step=9)
        found = csv_run(run / "log.csv").metrics
        steps = [step for step, _ in found["train/loss"]]

        assert steps in ([*range(len(acknowledged)), 9], [*range(len(acknowledged) + 1), 9]), number
        assert all(value == step / 8 for step, value in found["train/loss"][:-1])
        assert all(points == [(s, s) for s, _ in points] for name, points in found.items() if "new" in name)
        assert len({len(row) for row in rows(run / "log.csv")}) == 1
        seen.add(len(acknowledged))
    assert seen == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("torn", ["conte", "context,epoch,step,walltime,lo"])
def test_half_a_head_is_nothing(tmp_path: Path, torn: str) -> None:
    """The file was being begun."""
    (tmp_path / "log.csv").write_text(torn)
    CSVLogger(tmp_path / "log.csv").log_metrics({"loss": 0.5}, step=1)

    assert rows(tmp_path / "log.csv") == [["context", "epoch", "step", "loss"], ["train", "", "1", "0.5"]]


@pytest.mark.parametrize("text", ["step,loss\n1,0.5\n", "notes", 'context,epoch,step,walltime,"""a\n', "\xff\xfe\n"])
def test_another_table_is_not_touched(tmp_path: Path, text: str) -> None:
    """Of another program, or damaged."""
    (tmp_path / "log.csv").write_text(text, encoding="latin-1")
    for begin in (
        lambda logger: logger.log_metrics({"loss": 0.5}, step=1),
        lambda logger: logger.reattach({"path": "x", "rows": 0, "notes": 0, "step": None, "epoch": None}),
    ):
        with pytest.raises(LoggerError, match="is no table of a CSVLogger"):
            begin(CSVLogger(tmp_path / "log.csv"))

    assert (tmp_path / "log.csv").read_text(encoding="latin-1") == text


def test_a_later_logger_appends(tmp_path: Path) -> None:
    """As it does in every file of lines; what was there stays."""
    for step in (1, 2):
        with CSVLogger(tmp_path / "log.csv") as logger:
            logger.log_metrics({f"m{step}": 0.5}, step=step)

    assert csv_run(tmp_path / "log.csv").metrics == {"train/m1": [(1, 0.5)], "train/m2": [(2, 0.5)]}


def test_a_state_needs_its_rows(tmp_path: Path) -> None:
    """A file that is another, or was cut, is refused; one that was moved is not."""
    logger = CSVLogger(tmp_path / "log.csv")
    for step in (1, 2, 3):
        logger.log_metrics({"loss": 0.5}, step=step)
    state = logger.logger_state()
    logger.finish("error")
    with pytest.raises(RecordError, match=r"other\.csv has 0 rows .* and the state is of 3"):
        CSVLogger(tmp_path / "other.csv").reattach(state)
    for name in ("log.csv", "log.notes.jsonl"):
        (tmp_path / name).rename(tmp_path / name.replace("log", "moved"))
    moved = CSVLogger(tmp_path / "moved.csv")
    moved.reattach(state)

    assert moved.logger_state() == {**state, "path": str(tmp_path / "moved.csv")}


def test_copies_write_nothing(tmp_path: Path) -> None:
    """A forked child's, and one that was pickled after the first row; one that was pickled before does."""
    fresh = pickle.loads(pickle.dumps(CSVLogger(tmp_path / "log.csv")))
    fresh.log_metrics({"loss": 0.5}, step=1)
    copy = pickle.loads(pickle.dumps(fresh))
    with pytest.warns(UserWarning, match="a copy of another process's logger"):
        copy.log_metrics({"loss": 0.25}, step=2)
    copy.log_params({"lr": 0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            fresh.log_metrics({"new": 0.25}, step=2)
            fresh.reattach({**fresh.logger_state(), "rows": 0})
            fresh.finish("error")
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

    assert csv_run(tmp_path / "log.csv").metrics == {"train/loss": [(1, 0.5)]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


def test_a_copy_in_a_fork_writes_nothing_before_it_has_begun(tmp_path: Path) -> None:
    """As the notes' own logger has it; half of a run would be worse than none."""
    logger = CSVLogger(tmp_path / "log.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            logger.log_params({"lr": 0.1})
            logger.log_metrics({"loss": 0.25}, step=1)
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

    assert [*tmp_path.iterdir()] == []


def test_a_table_that_is_removed_begins_anew(tmp_path: Path) -> None:
    """With all columns of the rows that come; nothing goes to a file that nobody can see."""
    logger = CSVLogger(tmp_path / "out" / "log.csv")
    logger.log_metrics({"loss": 0.5}, step=1)
    shutil.rmtree(tmp_path / "out")
    with pytest.warns(RuntimeWarning, match="has been removed, and 1 rows with it"):
        logger.log_metrics({"loss": 0.25}, step=2)
    logger.log_metrics({"loss": 0.125, "acc": 1.0}, step=3)
    state = logger.logger_state()
    logger.finish("completed")

    found = csv_run(tmp_path / "out" / "log.csv")
    assert found.metrics == {"train/loss": [(2, 0.25), (3, 0.125)], "train/acc": [(3, 1.0)]}
    assert (state["rows"], found.status) == (2, "completed")


def test_it_needs_a_path_in_time(tmp_path: Path) -> None:
    """From whoever builds it, or from a driver."""
    logger = CSVLogger()
    for call in (lambda: logger.log_metrics({"loss": 0.5}, step=1), lambda: logger.log_tags("a")):
        with pytest.raises(NoPathError):
            call()
    logger.adopt(tmp_path)
    logger.adopt(tmp_path / "elsewhere")
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.finish("completed")
    with pytest.raises(LoggerFinishedError, match="is finished"):
        logger.log_tags("late")

    assert logger.logger_info() == {
        "logger": "CSVLogger", "path": str(tmp_path / "metrics.csv"), "rows": 1, "waiting": 0,
    }  # fmt: skip
    assert csv_run(tmp_path / "metrics.csv").status == "completed"
