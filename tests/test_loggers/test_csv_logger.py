"""loggers.csv_logger: a table that is complete at every moment."""

from __future__ import annotations

import csv
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loggers import CSVLogger
from loggers._cells import cell, name_cell, name_of, short, value_of
from loggers.errors import (
    LoggerError,
    LoggerFinishedError,
    NoPathError,
    RecordError,
    RunExistsError,
    RunLockedError,
)
from tests import interrupting
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


# ---- interrupted -----------------------------------------------------------------------------------


# the lines of the guards hold no instruction at which Python looks for signals while something is in the air
interrupted_at = partial(
    interrupting.interrupted_at, modules=("_csv_file.py", "_backlog.py", "csv_logger.py"), guards=("alone", "close_all")
)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # interrupted between open and with
def test_ctrl_c_anywhere_loses_nothing(tmp_path: Path) -> None:
    """Every row that was acknowledged is there once, and the table is rectangular, whatever was left half done."""
    for n in range(1, 10_000):
        path = tmp_path / str(n) / "log.csv"
        logger = CSVLogger(path)
        logged: list[int] = []

        def log(logger: CSVLogger = logger, logged: list[int] = logged) -> None:
            for step in range(len(logged), 4):
                logger.log_metrics({"loss": step / 8, f"new {step // 2}": step}, step=step)
                logged.append(step)

        hit = interrupted_at(n, log)
        for step in (8, 9):
            logger.log_metrics({"loss": step / 8, f"late {step}": step}, step=step)
        logger.finish("interrupted")

        found = csv_run(path).metrics
        steps = [step for step, _ in found["train/loss"]]
        assert steps in ([*logged, 8, 9], [*logged, len(logged), 8, 9]), n
        assert all(value == step / 8 for step, value in found["train/loss"])
        assert all(points == [(s, s) for s, _ in points] for name, points in found.items() if name != "train/loss")
        assert len({len(row) for row in rows(path)}) == 1
        if not hit:
            break
    assert n > 100


def test_a_signal_handler_that_logs_is_told(tmp_path: Path) -> None:
    """In the middle of a call it would find the table half written."""
    logger = CSVLogger(tmp_path / "log.csv")
    logger.log_metrics({"loss": 0.5}, step=1)
    said: list[str] = []

    def handle() -> None:
        try:
            logger.log_metrics({"more": 1.0}, step=3)
        except LoggerError as error:
            said.append(str(error))

    def trace(frame: Any, event: str, arg: object) -> Any:
        if frame.f_code.co_name == "_replace" and not said:
            handle()

    sys.settrace(trace)
    try:
        logger.log_metrics({"loss": 0.25, "acc": 1.0}, step=2)
    finally:
        sys.settrace(None)
    logger.log_metrics({"loss": 0.125}, step=4)

    assert len(said) == 1
    assert "from a signal handler" in said[0]
    assert csv_run(tmp_path / "log.csv").metrics == {
        "train/loss": [(1, 0.5), (2, 0.25), (4, 0.125)], "train/acc": [(2, 1.0)],
    }  # fmt: skip


# ---- one writer ------------------------------------------------------------------------------------

OTHER = """
import sys
from loggers import CSVLogger
logger = CSVLogger(sys.argv[1])
try:
    logger.log_metrics({"other": 1.0}, step=1)
except BlockingIOError as error:
    print(type(error).__name__, error)
"""


def other_process(path: Path) -> str:
    """Log a row in another process; return what it was told."""
    return subprocess.run([sys.executable, "-c", OTHER, path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("grown", [False, True])
def test_a_second_process_is_refused(tmp_path: Path, grown: bool) -> None:
    """Also when the table was written anew; and it may write when the first one is done."""
    path = tmp_path / "log.csv"
    logger = CSVLogger(path)
    logger.log_metrics({"loss": 0.5}, step=1)
    if grown:
        logger.log_metrics({"acc": 0.5}, step=2)
    assert other_process(path) == (
        f"RunLockedError {path} is being written by another logger; finish that one, or write to another file\n"
    )
    logger.close()
    assert other_process(path) == ""

    assert csv_run(path).metrics["train/other"] == [(1, 1.0)]


def test_the_lock_of_a_killed_process_falls(tmp_path: Path) -> None:
    """Also when a fork of it lives on."""
    path = tmp_path / "log.csv"
    program = """
import os, sys, time
from loggers import CSVLogger
logger = CSVLogger(sys.argv[1])
logger.log_metrics({"loss": 0.5}, step=1)
if os.fork():
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin:
        assert process.wait() == -signal.SIGKILL
        assert other_process(path) == ""

    assert csv_run(path).metrics == {"train/loss": [(1, 0.5)], "train/other": [(1, 1.0)]}


def test_a_newer_logger_of_the_process_takes_over(tmp_path: Path) -> None:
    """The older one's next verb says so; it may go on by a reattach. The newer one is not taken over by accident."""
    path = tmp_path / "log.csv"
    older, newer = CSVLogger(path), CSVLogger(path)
    older.log_metrics({"loss": 0.5}, step=1)
    newer.log_metrics({"acc": 0.5}, step=2)
    with pytest.raises(RunLockedError, match=r"a newer CSVLogger in this process has taken .* over"):
        older.log_metrics({"loss": 0.25}, step=2)
    state = newer.logger_state()
    older.reattach(state)
    older.log_metrics({"loss": 0.25}, step=3)
    with pytest.raises(RunLockedError, match="has taken"):
        newer.log_metrics({"acc": 1.0}, step=3)

    assert csv_run(path).metrics == {"train/loss": [(1, 0.5), (3, 0.25)], "train/acc": [(2, 0.5)]}


def test_an_older_logger_takes_nothing_over(tmp_path: Path) -> None:
    """One that was closed, or dropped with rows that wait, does not stop the one that is in use."""
    path = tmp_path / "log.csv"
    older, newer = CSVLogger(path), CSVLogger(path)
    older.log_metrics({"loss": 0.5}, step=1)
    older.close()
    newer.log_metrics({"acc": 0.5}, step=2)
    with pytest.raises(RunLockedError, match="is being written by another logger"):
        older.log_metrics({"loss": 0.25}, step=2)
    newer.log_metrics({"acc": 1.0}, step=3)
    newer.finish("completed")
    older.log_metrics({"loss": 0.25}, step=4)

    assert csv_run(path).metrics == {"train/loss": [(1, 0.5), (4, 0.25)], "train/acc": [(2, 0.5), (3, 1.0)]}


# ---- moved away ------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", [False, True])
def test_a_run_that_is_moved_goes_on_where_it_is(tmp_path: Path, noted: bool) -> None:
    """New metrics and notes, too: one warning says where, and nothing is made anew at the old place."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    logger = CSVLogger(run / "log.csv")
    logger.log_metrics({"loss": 0.5}, step=1)
    if noted:
        logger.log_tags("a")
    run.rename(moved)
    logger.log_metrics({"loss": 0.25}, step=2)
    with pytest.warns(RuntimeWarning, match=r"run/log\.csv was moved to .*moved/log\.csv") as caught:
        logger.log_metrics({"acc": 1.0}, step=3)
        logger.log_metrics({"last": 1.0}, step=4)
        logger.finish("completed")
    found = csv_run(moved / "log.csv")

    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert found.metrics == {
        "train/loss": [(1, 0.5), (2, 0.25)], "train/acc": [(3, 1.0)], "train/last": [(4, 1.0)],
    }  # fmt: skip
    assert (found.status, found.tags) == ("completed", {"a": True} if noted else {})
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_a_closed_table_that_is_gone_is_told(tmp_path: Path) -> None:
    """What comes begins anew at the old place: whoever has moved the rest should know."""
    run = tmp_path / "run"
    logger = CSVLogger(run / "log.csv")
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.close()
    run.rename(tmp_path / "moved")
    with pytest.warns(RuntimeWarning, match="1 rows are not there any more; it begins anew") as caught:
        logger.log_metrics({"loss": 0.25}, step=2)
        logger.log_metrics({"acc": 0.25}, step=3)

    assert len(caught) == 1
    assert csv_run(run / "log.csv").metrics == {"train/loss": [(2, 0.25)], "train/acc": [(3, 0.25)]}


# ---- a table that is there -------------------------------------------------------------------------


def first_run(path: Path) -> Any:
    with CSVLogger(path) as logger:
        logger.log_params({"lr": 0.1})
        logger.log_metrics({"loss": 0.5}, step=1)
        return logger.logger_state()


def test_a_table_that_is_there_is_replaced(tmp_path: Path) -> None:
    """With its notes, at the first verb and once; the state of before that knows it."""
    path = tmp_path / "log.csv"
    first_run(path)
    logger = pickle.loads(pickle.dumps(CSVLogger(path, if_exists="replace")))
    assert (logger.logger_state()["rows"], logger.logger_state()["notes"]) == (0, 0)
    assert csv_run(path).params == {"lr": 0.1}
    logger.log_tags("second")
    logger.close()
    logger.log_metrics({"acc": 0.5}, step=1)
    logger.finish("completed")

    found = csv_run(path)
    assert (found.metrics, found.params, found.tags) == ({"train/acc": [(1, 0.5)]}, {}, {"second": True})


@pytest.mark.parametrize("left", ["log.csv", "log.notes.jsonl"])
def test_a_table_that_is_there_is_refused(tmp_path: Path, left: str) -> None:
    """By its rows as by its notes; an empty file is nothing, and finishing leaves it as it is."""
    path = tmp_path / "log.csv"
    (tmp_path / "log.csv").touch()
    with CSVLogger(path, if_exists="refuse") as fresh:
        fresh.log_params({"lr": 0.1})
        fresh.log_metrics({"loss": 0.5}, step=1)
    for name in {"log.csv", "log.notes.jsonl"} - {left}:
        (tmp_path / name).unlink()
    before = (tmp_path / left).read_bytes()
    logger = CSVLogger(path, if_exists="refuse")
    for call in (lambda: logger.log_params({"lr": 1}), lambda: logger.log_metrics({"loss": 1}, step=1)):
        with pytest.raises(RunExistsError, match=r"log\.csv holds a run already: .* if_exists='append'"):
            call()
    logger.finish("error")

    assert [file.name for file in tmp_path.iterdir()] == [left]
    assert (tmp_path / left).read_bytes() == before


@pytest.mark.parametrize("if_exists", ["append", "replace", "refuse"])
def test_a_reattach_goes_on_with_it(tmp_path: Path, if_exists: Any) -> None:
    """Whatever is said."""
    path = tmp_path / "log.csv"
    state = first_run(path)
    logger = CSVLogger(path, if_exists=if_exists)
    logger.reattach(state)
    logger.log_metrics({"loss": 0.25}, step=2)

    assert csv_run(path).metrics == {"train/loss": [(1, 0.5), (2, 0.25)]}
    assert csv_run(path).params == {"lr": 0.1}


def test_it_can_be_told_three_things(tmp_path: Path) -> None:
    """And says which."""
    with pytest.raises(LoggerError, match="if_exists must be 'append', 'replace' or 'refuse', got 'ask'"):
        CSVLogger(tmp_path / "log.csv", if_exists="ask")  # type: ignore[arg-type]
