"""A disk that fails, is full, or is gone for a while: training goes on, and nothing that was logged is lost."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loggers import CSVLogger, JSONLogger, PlattliLogger, logger_info
from loggers.errors import MetricValueError, UnwrittenError
from plattli import Reader
from plattli.runinfo import run_info
from tests.faults import failing_disk
from tests.test_loggers.plattli_runs import Points, about, stored

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def lines() -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Lines that go all the ways there are: promotions, JSON, new metrics, late, joined and repeated points."""
    for step in range(1, 13):
        yield step, "train", {"loss": step / 7 if step > 4 else float(step), "n": step}
        if step % 4 == 1:
            yield step, "train", {"note": [step, "x"]}
        if step % 3 == 2:
            yield step, "validate", {"loss": step * 0.5}
    yield 2, "train", {"loss": -1.0}
    yield 3, "late", {"a": 1}
    yield 5, "train", {"n": 0.5}


def log_all(logger: PlattliLogger) -> Points:
    expected: Points = {}
    logger.log_params({"lr": 0.1})
    for step, context, metrics in lines():
        logger.log_metrics(metrics, step=step, context=context)
        for name, value in metrics.items():
            expected.setdefault(f"{context}/{name}", {})[step] = value
    logger.log_tags(["seen"])
    return expected


def new_logger(run: Path, **options: Any) -> PlattliLogger:
    return PlattliLogger(run, walltime=False, hotsize=4, **options)


@pytest.mark.parametrize(("code", "count"), [(errno.EIO, 1), (errno.EACCES, 1), (errno.ENOSPC, 7), (errno.EROFS, 40)])
def test_operations_fail_anywhere(tmp_path: Path, code: int, count: int) -> None:
    """From the n-th file operation on some fail, for each n: every line is there at the end, as logged, once."""
    step = 1 if count == 1 else 3
    for first in range(1, 10_000, step):
        run = tmp_path / str(first)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with failing_disk(first, count, code) as disk:
                logger = new_logger(run)
                expected = log_all(logger)
                with contextlib.suppress(UnwrittenError):
                    logger.finish("completed")
                disk.heal()
                hit = disk.failed
                if logger_info(logger)["status"] != "completed":
                    logger.finish("completed")
        assert stored(run) == expected, first
        info = run_info(run)
        assert (info.status, info.tags, info.params) == ("completed", {"seen": True}, {"lr": 0.1}), first
        shutil.rmtree(run)
        if not hit:
            break
    assert first > 50


def test_a_disk_that_fails_for_long_is_told_once(run: Path) -> None:
    """One warning when it begins, one when it ends; lines and params of the time between are there then."""
    logger = new_logger(run)
    logger.log_metrics({"loss": 0.0}, step=0)
    with failing_disk(code=errno.ENOSPC) as disk, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = log_all(logger)
        said = [str(one.message) for one in caught]
        assert len(said) == 1
        assert "'run': the disk takes nothing ([Errno 28] No space left on device" in said[0]
        waiting = logger_info(logger)["waiting"]
        assert waiting == len(list(lines()))
        disk.heal()
        assert logger.logger_state()["step"] == 12
        assert [str(one.message) for one in caught][1:] == [
            f"run 'run': the disk takes lines again; the {waiting} that waited are written"
        ]

    assert logger_info(logger)["waiting"] == 0
    assert stored(run) == {**expected, "train/loss": {0: 0.0, **expected["train/loss"]}}
    assert run_info(run).params == {"lr": 0.1}
    logger.finish("completed")


def test_finish_says_what_is_missing_and_can_be_called_again(run: Path) -> None:
    """While nothing goes to the disk the run does not end, and readers see what was there before."""
    logger = new_logger(run)
    logger.log_metrics({"loss": 0.5}, step=1)
    with failing_disk() as disk, pytest.warns(RuntimeWarning):
        logger.log_metrics({"loss": 0.25}, step=2)
        logger.log_metrics({"loss": 0.125}, step=3)
        with pytest.raises(UnwrittenError, match=r"2 lines \(steps 2 to 3\) wait in memory; the run did not end"):
            logger.finish("completed")
        assert stored(run) == {"train/loss": {1: 0.5}}
        disk.heal()
        logger.finish("completed")

    assert stored(run) == {"train/loss": {1: 0.5, 2: 0.25, 3: 0.125}}
    assert about(run)["status"] == "completed"


def test_memory_is_bounded(run: Path) -> None:
    """The line for which there is none left raises and is not kept; those before it are written in the end."""
    logger = new_logger(run, backlog=2000)
    logged = []
    with failing_disk() as disk, pytest.warns(RuntimeWarning):
        with pytest.raises(UnwrittenError, match=r"the line at step \d+ was not logged"):
            for step in range(100):
                logger.log_metrics({"loss": step / 4}, step=step)
                logged.append(step)
        with pytest.raises(UnwrittenError):
            logger.log_metrics({"text": "x" * 2000}, step=200)
        disk.heal()
        logger.log_metrics({"loss": 9.0}, step=100)
    logger.finish("completed")

    assert 3 < len(logged) < 20
    assert stored(run) == {"train/loss": {**{step: step / 4 for step in logged}, 100: 9.0}}


def test_no_backlog(run: Path) -> None:
    """``backlog=0`` raises at once, and what was not logged is not there. Nothing is warned of."""
    logger = new_logger(run, backlog=0)
    logger.log_metrics({"loss": 0.5}, step=1)
    with failing_disk() as disk:
        with pytest.raises(UnwrittenError, match="step 2 was not logged"):
            logger.log_metrics({"loss": 0.25}, step=2)
        disk.heal()
        logger.log_metrics({"loss": 0.125}, step=3)
    logger.finish("completed")

    assert stored(run) == {"train/loss": {1: 0.5, 3: 0.125}}


def test_a_directory_that_cannot_be_made_yet(tmp_path: Path) -> None:
    """Nothing at construction, one warning at the first verb, and all is there once the directory can be made."""
    (tmp_path / "disk").symlink_to(tmp_path / "mount")
    run = tmp_path / "disk" / "run"
    logger = new_logger(run)
    with pytest.warns(RuntimeWarning) as caught:
        expected = log_all(logger)
        logger.log_metrics({"a": 1}, step=1, context="deep/er")
        expected["deep/er/a"] = {1: 1}
        assert len(caught) == 1
        assert "File exists" in str(caught[0].message)
        assert caught[0].filename == __file__
        (tmp_path / "mount").mkdir()
        logger.finish("completed")

    assert stored(run) == expected
    assert run_info(run).params == {"lr": 0.1}
    assert about(run)["contexts"] == ["deep/er"]


def remove(directory: Path) -> None:
    """Remove it, whatever a compaction makes there anew meanwhile."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def put_back(directory: Path, run: Path) -> None:
    """Give it its name again, whatever a compaction makes there meanwhile."""
    while directory.exists():
        remove(run)
        with contextlib.suppress(OSError):
            directory.rename(run)


def test_a_directory_that_is_gone_for_a_while(tmp_path: Path) -> None:
    """Moved away and put back, with compactions in between."""
    run, away = tmp_path / "run", tmp_path / "away"
    logger = new_logger(run)
    for step in range(6):
        logger.log_metrics({"loss": step / 4}, step=step)
    logger.logger_state()
    run.rename(away)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for step in range(6, 40):
            logger.log_metrics({"loss": step / 4}, step=step)
        away.rename(run)  # nothing was begun anew in its place
        for step in range(40, 60):
            logger.log_metrics({"loss": step / 4}, step=step)
        logger.finish("completed")

    assert stored(run) == {"train/loss": {step: step / 4 for step in range(60)}}


@pytest.mark.parametrize("lines_meanwhile", [1, 3, 30])
@pytest.mark.parametrize("hotsize", [4, 50])
def test_a_directory_that_is_removed_and_put_back(tmp_path: Path, hotsize: int, lines_meanwhile: int) -> None:
    """From a copy, so that what went into the files of the first one is nowhere but in memory."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    logger = PlattliLogger(run, walltime=False, hotsize=hotsize)
    last = 6 + lines_meanwhile

    def log(steps: range) -> None:
        for step in steps:
            logger.log_metrics({"loss": step / 4, "note": [step]}, step=step)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        log(range(6))
        logger.backend().settle()
        shutil.copytree(run, copy)
        remove(run)
        log(range(6, last))
        put_back(copy, run)
        log(range(last, 100))
        logger.finish("completed")

    steps = range(100)
    assert stored(run) == {"train/loss": {s: s / 4 for s in steps}, "train/note": {s: [s] for s in steps}}


def test_a_directory_that_is_removed_for_good_is_made_again(tmp_path: Path) -> None:
    """With all lines that are still in memory: that is the best that can be done."""
    run = tmp_path / "run"
    logger = PlattliLogger(run, walltime=False, hotsize=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for step in range(20):
            logger.log_metrics({"loss": step / 4}, step=step)
        remove(run / "plattli")
        step = 20
        while not (run / "plattli").exists():  # it looks ten times a second
            logger.log_metrics({"loss": step / 4}, step=step)
            step += 1
        logger.finish("completed")

    assert stored(run) == {"train/loss": {s: s / 4 for s in range(step)}}


def test_a_value_that_no_column_holds_is_told_when_it_is_written(run: Path) -> None:
    """It cannot be refused while nobody knows the columns; its siblings are stored."""
    logger = new_logger(run)
    logger.log_metrics({"n": 1, "loss": 0.5}, step=1)
    with failing_disk() as disk, pytest.warns(RuntimeWarning) as caught:
        logger.log_metrics({"n": "text", "loss": 0.25}, step=2)
        disk.heal()
        logger.logger_state()
    logger.finish("completed")

    assert any("train/n at step 2 is not stored" in str(one.message) for one in caught)
    assert stored(run) == {"train/n": {1: 1}, "train/loss": {1: 0.5, 2: 0.25}}
    logger = new_logger(run.with_name("other"))
    logger.log_metrics({"n": 1}, step=1)
    with pytest.raises(MetricValueError, match="n"):  # the same without an outage
        logger.log_metrics({"n": "text"}, step=2)
    logger.finish("completed")


def test_lines_that_nobody_can_write_any_more_are_counted(run: Path) -> None:
    """A logger that is dropped in the middle of an outage says what goes with it."""
    logger = new_logger(run)
    logger.log_metrics({"loss": 0.5}, step=1)
    with failing_disk():
        with pytest.warns(RuntimeWarning, match="takes nothing"):
            logger.log_metrics({"loss": 0.25}, step=2)
        with pytest.warns(RuntimeWarning, match=r"^run 'run': 1 line \(steps 2 to 2\) lost: the disk .*\[Errno 5\]"):
            del logger
            gc.collect()
    assert stored(run) == {"train/loss": {1: 0.5}}
    assert run_info(run).status == "died"


@pytest.mark.parametrize("begun", [True, False])
def test_lines_that_wait_are_written_when_the_logger_goes(run: Path, begun: bool) -> None:
    """A logger that is dropped without ``finish`` tries once more: the disk may be back."""
    logger = new_logger(run)
    expected: Points = {"train/loss": {2: 0.25, 3: 0.125}}
    if begun:
        logger.log_metrics({"loss": 0.5}, step=1)
        expected["train/loss"][1] = 0.5
    with failing_disk() as disk, pytest.warns(RuntimeWarning) as caught:
        logger.log_metrics({"loss": 0.25}, step=2)
        logger.log_metrics({"loss": 0.125}, step=3)
        logger.log_params({"lr": 0.1})
        disk.heal()
        del logger
        gc.collect()

    assert str(caught[-1].message) == "run 'run': the disk takes lines again; the 2 that waited are written"
    assert stored(run) == expected
    info = run_info(run)
    assert (info.status, info.params) == ("died", {"lr": 0.1})


EXIT = """
import os, sys, warnings
from tests.faults import failing_disk
from loggers import JSONLogger, PlattliLogger
how, kind, run = sys.argv[1:]
warnings.simplefilter("always")
loggers = [{"plattli": PlattliLogger, "json": JSONLogger}[kind](run)]
with failing_disk(first=3 if how == "half" else 1) as disk:
    for step in range(1, 4):
        loggers[0].log_metrics({"loss": step / 2}, step=step, context="deep/er")
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            disk.heal()
            sys.exit(0)  # with all its finalizers: the lines are the parent's
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not os.path.exists(run)
    if how == "lost":
        import atexit
        atexit.register(failing_disk().__enter__)
    disk.heal()
"""


@pytest.mark.parametrize("kind", ["plattli", "json"])
@pytest.mark.parametrize("how", ["back", "half", "fork", "lost"])
def test_lines_that_wait_are_written_at_the_exit(tmp_path: Path, how: str, kind: str) -> None:
    """The interpreter shuts down without ``finish``: what waits is tried once more, and else counted."""
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXIT, how, kind, run],
        capture_output=True, text=True, check=False, timeout=240, cwd=ROOT,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    if how == "lost":
        said = r"run '\S*run': 3 lines \(steps 1 to 3\) lost: the disk takes nothing \(\[Errno 5\]"
        assert re.search(said, done.stderr)
        assert not run.exists()
        return
    assert "the 3 that waited are written" in done.stderr
    assert "lost" not in done.stderr
    assert dict(losses(run, kind)) == {step: step / 2 for step in range(1, 4)}


def losses(run: Path, kind: str) -> list[tuple[int, float]]:
    if kind == "json":
        return [(row["step"], row["loss"]) for row in map(json.loads, run.read_text().splitlines())]
    return list(stored(run)["deep/er/loss"].items())


def test_a_resume_on_a_disk_that_fails_is_refused(run: Path) -> None:
    """Which step a run goes on at is no matter for later."""
    logger = new_logger(run)
    for step in range(6):
        logger.log_metrics({"loss": step / 4}, step=step)
        if step == 3:
            state = logger.logger_state()
    logger.finish("interrupted")
    logger = new_logger(run)
    with failing_disk(), pytest.raises(OSError, match="Input/output"):
        logger.reattach(state)
    logger.reattach(state)
    logger.log_metrics({"loss": 9.0}, step=4)
    logger.finish("completed")

    assert stored(run) == {"train/loss": {0: 0.0, 1: 0.25, 2: 0.5, 3: 0.75, 4: 9.0}}


# ---- a disk that is really full ------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this platform does not let tests mount a file system")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


@pytest.mark.parametrize("kind", [new_logger, JSONLogger, CSVLogger])
def test_a_file_system_that_is_read_only_at_construction(small_disk: Path, kind: Callable[[Path], Any]) -> None:
    """A real EROFS: one warning at the first verb, and all is there when it can be written."""
    run = small_disk / "deep" / "run"
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    logger = kind(run)
    waiting = len(list(lines())) + (0 if kind is new_logger else 2)  # where params and tags are lines, too
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = log_all(logger)
        with pytest.raises(UnwrittenError, match=rf"{waiting} lines \(steps 1 to 12\) wait in memory"):
            logger.finish("completed")
        assert list(small_disk.iterdir()) == []
        assert logger_info(logger)["waiting"] == waiting
        assert len(caught) == 1
        assert "Read-only file system" in str(caught[0].message)
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        logger.finish("completed")

    if kind is CSVLogger:
        text = run.read_text().splitlines()
        assert [line.split(",")[:3:2] for line in text[1:]] == [[c, str(step)] for step, c, _ in lines()]
        assert [row["type"] for row in json_lines(run.with_name("run.notes.jsonl"))] == ["params", "tags", "finish"]
    elif kind is new_logger:
        assert stored(run) == expected
        info = run_info(run)
        assert (info.status, info.params, info.tags) == ("completed", {"lr": 0.1}, {"seen": True})
    else:
        rows = json_lines(run)
        lines_of = [(r["step"], r["context"], {n: v for n, v in r.items() if n not in CARRIERS}) for r in rows[1:-2]]
        assert lines_of == list(lines())
        assert [row["type"] for row in (rows[0], *rows[-2:])] == ["params", "tags", "finish"]


CARRIERS = {"type", "context", "step", "epoch"}


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("when", ["logging", "first verb", "finish"])
def test_no_room(small_disk: Path, when: str) -> None:
    """Whatever comes when there is none: it is written when there is."""
    run = small_disk / "run"
    logger = new_logger(run)
    expected: Points = {"train/loss": {}}

    def log(steps: range) -> None:
        for step in steps:
            logger.log_metrics({"loss": step / 4}, step=step)
            expected["train/loss"][step] = step / 4

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if when != "first verb":
            log(range(50))
        filler = fill(small_disk)
        if when == "finish":
            with pytest.raises(UnwrittenError, match="No space left"):
                logger.finish("completed")
        else:
            step = 50
            while not logger_info(logger)["waiting"]:  # what is begun of a block is free
                log(range(step, step := step + 100))
            with Reader(run) if when != "first verb" else contextlib.nullcontext() as reader:
                found = stored(run, reader) if reader else {}
            assert found.get("train/loss", {}).items() <= expected["train/loss"].items()
        filler.unlink()
        log(range(100_000, 100_020))
        logger.finish("completed")

    assert stored(run) == expected
    assert about(run)["status"] == "completed"


def test_no_room_for_an_archive_beside_the_folder(small_disk: Path) -> None:
    """A run that fills more than half of a disk ends as a folder, and says so."""
    run = small_disk / "run"
    logger = PlattliLogger(run, walltime=False, hotsize=200)
    count = 30_000
    for step in range(count):
        logger.log_metrics({"loss": step / 4}, step=step)
        if step % 5000 == 0:  # or the hot log could take the room that the columns need
            logger.backend().drain()
    logger.backend().drain()
    filler = small_disk / "filler"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    filler.write_bytes(b"x" * (free - (40 << 10)))
    with pytest.warns(RuntimeWarning, match="stays a folder"):
        logger.finish("completed")

    assert not (run / "metrics.plattli").exists()
    assert run_info(run).status == "completed"
    assert stored(run) == {"train/loss": {step: step / 4 for step in range(count)}}
