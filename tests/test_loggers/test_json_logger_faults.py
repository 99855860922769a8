"""A JSONLogger on a disk that fails, is full, or is gone for a while: what PlattliLogger promises, in one file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loggers import JSONLogger, logger_info
from loggers.errors import LoggerFinishedError, UnwrittenError
from loggers.replay import Cursor, open_source
from tests.faults import failing_disk
from tests.killing import every_kill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "log.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def log_all(logger: JSONLogger) -> list[dict[str, Any]]:
    logger.log_params({"lr": 0.1, "step": "of a pipeline"})
    logger.log_tags("seen")
    expected: list[dict[str, Any]] = [
        {"type": "params", "lr": 0.1, "step": "of a pipeline"},
        {"type": "tags", "tags": {"seen": True}},
    ]
    for step in range(1, 6):
        logger.log_metrics({"loss": step / 7, "text": "é" * step}, step=step)
        line = {"type": "metrics", "context": "train", "step": step, "loss": step / 7, "text": "é" * step}
        expected.append(line)
    logger.log_other("note", [1])
    logger.log_confusion([[1]], ["a"], step=5)
    return [
        *expected,
        {"type": "other", "key": "note", "value": [1]},
        {"type": "confusion", "step": 5, "name": "confusion", "labels": ["a"], "matrix": [[1]]},
    ]


@pytest.mark.parametrize(("code", "count"), [(errno.EIO, 1), (errno.EACCES, 2), (errno.ENOSPC, 3), (errno.EROFS, 40)])
def test_operations_fail_anywhere(tmp_path: Path, code: int, count: int) -> None:
    """From the n-th file operation on some fail, for each n: every line is there at the end, as logged, once."""
    for first in range(1, 1000):
        path = tmp_path / str(first) / "log.jsonl"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with failing_disk(first, count, code) as disk:
                logger = JSONLogger(path)
                expected = log_all(logger)
                try:
                    logger.finish("completed")
                except UnwrittenError:
                    disk.heal()
                    logger.finish("completed")
        assert rows(path) == [*expected, {"type": "finish", "status": "completed"}], first
        if not disk.failed:
            break
    assert 10 < first < 100


def test_a_disk_that_fails_for_long_is_told_once(path: Path) -> None:
    """One warning when it begins, one when it ends; nothing torn is there in between."""
    logger = JSONLogger(path)
    logger.log_other("first", 1)
    with failing_disk(code=errno.ENOSPC) as disk, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = log_all(logger)
        assert [str(one.message) for one in caught] == [
            f"run '{path}': the disk takes nothing ([Errno 28] No space left on device); lines wait in memory, up to "
            "64 MB of them, and are written when it does"
        ]
        assert logger_info(logger)["waiting"] == len(expected)
        assert [call.args for batch in open_source(path).calls(Cursor()) for call in batch] == [("first", 1)]
        with pytest.raises(UnwrittenError, match=r"9 lines \(steps 1 to 5\) wait in memory; make room"):
            logger.finish("completed")
        disk.heal()
        logger.finish("completed")
        assert [str(one.message) for one in caught][1:] == [
            f"run '{path}': the disk takes lines again; the 9 that waited are written"
        ]

    assert rows(path)[1:] == [*expected, {"type": "finish", "status": "completed"}]


def test_memory_is_bounded(path: Path) -> None:
    """The line for which there is none left raises and is not kept; those before it are written in the end."""
    logger = JSONLogger(path, backlog=2000)
    logged = []
    with failing_disk() as disk, pytest.warns(RuntimeWarning):
        with pytest.raises(UnwrittenError, match=r"the line at step \d+ was not logged"):
            for step in range(100):
                logger.log_metrics({"loss": step / 4}, step=step)
                logged.append(step)
        with pytest.raises(UnwrittenError, match="the line without a step was not logged"):
            logger.log_other("text", "x" * 2000)
        disk.heal()
        logger.log_metrics({"loss": 9.0}, step=100)

    assert 3 < len(logged) < 20
    assert [(row["step"], row["loss"]) for row in rows(path)] == [*((s, s / 4) for s in logged), (100, 9.0)]


def test_no_backlog(path: Path) -> None:
    """``backlog=0`` raises at once, and what was not logged is not there, not even half of it. Nothing is warned of."""
    logger = JSONLogger(path, backlog=0)
    logger.log_other("a", 1)
    with failing_disk() as disk:
        with pytest.raises(UnwrittenError, match=r"takes nothing \(.*\): the line without a step was not logged"):
            logger.log_other("b", 2)
        disk.heal()
        logger.log_other("c", 3)

    assert [row["key"] for row in rows(path)] == ["a", "c"]


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes: the kernel takes a part of a write, then none."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("more", [1, 35, 36])
def test_a_write_that_breaks_off_leaves_nothing(path: Path, more: int) -> None:
    """All but the newline of it may be there, which would be a line of its own."""
    logger = JSONLogger(path)
    logger.log_other("a", 1)
    size = path.stat().st_size
    with pytest.warns(RuntimeWarning):
        with largest_file(size + more):
            logger.log_other("b", 2)
            assert path.stat().st_size == size
        logger.log_other("c", 3)
        logger.close()

    assert [row["key"] for row in rows(path)] == ["a", "b", "c"]


def test_lines_of_others_are_never_cut(path: Path) -> None:
    """Somebody appends to the same file between a write that broke off and the cut."""
    logger = JSONLogger(path)
    logger.log_other("a", 1)
    with failing_disk() as disk, pytest.warns(RuntimeWarning):
        logger.log_other("b", 2)  # half of it stays
        disk.heal()
        with path.open("ab") as file:
            file.write(b'rest\n{"type":"other","key":"theirs","value":0}\n')
        logger.finish("completed")

    lines = path.read_bytes().splitlines()
    assert lines[1].endswith(b"rest")
    assert [json.loads(line).get("key") for line in (lines[0], *lines[2:])] == ["a", "theirs", "b", None]


def test_a_file_that_is_removed_is_made_again(path: Path) -> None:
    """Lines do not go where nobody will ever read them."""
    logger = JSONLogger(path)
    logger.log_other("a", 1)
    shutil.rmtree(path.parent)
    while not path.exists():  # it looks every tenth of a second
        logger.log_other("b", 2)

    assert {row["key"] for row in rows(path)} == {"b"}


def test_a_directory_that_is_gone_for_a_while(tmp_path: Path) -> None:
    """Moved away and put back: all lines are in it."""
    run, away = tmp_path / "run", tmp_path / "away"
    logger = JSONLogger(run / "log.jsonl")
    logger.log_other("a", 1)
    run.rename(away)
    logger.log_other("b", 2)
    away.rename(run)
    logger.log_other("c", 3)

    assert [row["key"] for row in rows(run / "log.jsonl")] == ["a", "b", "c"]


def test_a_directory_that_cannot_be_made_yet(tmp_path: Path) -> None:
    """One warning at the first verb, and all is there once the directory can be made."""
    (tmp_path / "disk").symlink_to(tmp_path / "mount")
    logger = JSONLogger(tmp_path / "disk" / "log.jsonl")
    with pytest.warns(RuntimeWarning) as caught:
        expected = log_all(logger)
        (tmp_path / "mount").mkdir()
        logger.finish("completed")

    assert "File exists" in str(caught[0].message)
    assert len(caught) == 2
    assert {one.filename for one in caught} == {__file__}
    assert rows(tmp_path / "disk" / "log.jsonl")[:-1] == expected


def log_in_threads(logger: Any) -> None:
    """Let four threads log 200 lines each while the disk comes and goes, and finish."""

    def log(number: int) -> None:
        for step in range(200):
            logger.log_metrics({f"m{number}": step}, step=step)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with failing_disk(100, 300):
            threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        logger.finish("completed")


def test_threads_during_an_outage(path: Path) -> None:
    """Four log while the disk comes and goes: each thread's lines are there once and in order."""
    log_in_threads(JSONLogger(path))
    found = rows(path)[:-1]

    assert len(found) == 800
    for number in range(4):
        assert [row["step"] for row in found if row.get(f"m{number}") == row["step"]] == list(range(200))


def test_eight_threads_and_one_that_finishes(path: Path) -> None:
    """What was acknowledged is there, once; the rest is told; behind the last line comes nothing."""
    logger = JSONLogger(path)
    acknowledged = [0] * 8
    stopped: list[BaseException] = []

    def log(number: int) -> None:
        try:
            for step in range(1, 100_000):
                logger.log_metrics({f"m{number}": step / 2}, step=step)
                acknowledged[number] = step
        except BaseException as error:
            stopped.append(error)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while min(acknowledged) < 50 and not stopped:
        logger_info(logger)
    logger.finish("completed")
    for thread in threads:
        thread.join()
    *found, last = rows(path)

    assert [type(error) for error in stopped] == [LoggerFinishedError] * 8, stopped
    assert last == {"type": "finish", "status": "completed"}
    for number in range(8):
        points = [(row["step"], row[f"m{number}"]) for row in found if f"m{number}" in row]
        assert points == [(step, step / 2) for step in range(1, acknowledged[number] + 1)]


def test_a_kill_at_every_file_operation(tmp_path: Path) -> None:
    """Also in the middle of a write: what was acknowledged is there once, and the next logger's lines follow it."""

    def program(run: Path, acknowledge: Callable[[object], None]) -> None:
        logger = JSONLogger(run / "log.jsonl")
        for step in range(1, 6):
            logger.log_metrics({"loss": step / 2, "text": "é" * 20}, step=step)
            acknowledge(step)

    kills = 0
    for n, run, acknowledged in every_kill(program, tmp_path):
        kills += 1
        JSONLogger(run / "log.jsonl").log_metrics({"loss": 0.0}, step=9)
        steps = [row["step"] for row in rows(run / "log.jsonl")]
        assert steps[-1] == 9
        assert steps[:-1] == list(range(1, len(steps))), n
        assert len(steps) - 1 in (len(acknowledged), len(acknowledged) + 1)
    assert kills > 5


def test_a_handler_that_logs_in_the_middle_of_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line and the one that it interrupts are both there, even if it comes when that is written already."""
    logger = JSONLogger(path)
    write = os.write
    inner = []

    def interrupted(fd: int, data: bytes) -> int:
        written = write(fd, data)
        if not inner:
            inner.append(True)
            logger.log_other("of the handler", 1)
        return written

    monkeypatch.setattr(os, "write", interrupted)
    logger.log_other("a", 1)
    logger.log_other("b", 1)

    assert [row["key"] for row in rows(path)] == ["a", "of the handler", "b"]
