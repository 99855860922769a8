"""Outages in the middle of what moves stored rows, and a resume after a kill: found by attacking the logger."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loggers import PlattliLogger
from tests.faults import failing_disk
from tests.test_loggers.plattli_runs import fork, stored


@pytest.mark.parametrize("how", ["resume", "append"])
def test_after_a_kill_every_kind_of_line_goes_on(tmp_path: Path, how: str) -> None:
    """The first line after it meets hot rows of the dead writer, with values that only float64 holds."""
    run = tmp_path / "run"

    def die(say: object) -> None:
        lgr = PlattliLogger(run)
        for step in range(1, 21):
            lgr.log_metrics({"loss": step / 10}, step=step, epoch=1)
        (tmp_path / "state").write_text(json.dumps(lgr.logger_state()))
        os.kill(os.getpid(), signal.SIGKILL)

    pid, read = fork(die)
    os.waitpid(pid, 0)
    os.close(read)
    lgr = PlattliLogger(run, if_exists="append" if how == "append" else "refuse")
    if how == "resume":
        lgr.reattach(json.loads((tmp_path / "state").read_text()))
    for step in range(21, 26):
        lgr.log_metrics({"loss": step / 10}, step=step, epoch=1)
    lgr.finish("completed")

    assert stored(run)["train/loss"] == {step: step / 10 for step in range(1, 26)}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("size", range(1000, 8000, 690))
def test_a_late_point_during_an_outage_costs_no_stored_row(tmp_path: Path, size: int) -> None:
    """Its column is cut and written again, which the disk may refuse at any point."""
    dice = random.Random(0)
    steps = sorted(dice.sample(range(8000), 2000))
    lgr = PlattliLogger(tmp_path, hotsize=7, walltime=False)
    for step in steps:
        lgr.log_metrics({"loss": step / 2}, step=step)
    lgr.backend().drain()
    late = next(step for step in range(steps[-20], 8000) if step not in steps)
    with pytest.warns(RuntimeWarning):
        with largest_file(size):
            lgr.log_metrics({"loss": 0.5}, step=late)
        lgr.logger_state()
    lgr.log_metrics({"loss": 0.25}, step=steps[-1] + 1)
    lgr.finish("completed")

    assert stored(tmp_path)["train/loss"] == {**{s: s / 2 for s in steps}, late: 0.5, steps[-1] + 1: 0.25}


def test_a_float_for_an_integer_column_waits_like_any_value(tmp_path: Path) -> None:
    """That the rows before it cannot be moved now says nothing of the value."""
    lgr = PlattliLogger(tmp_path, hotsize=7, walltime=False)
    with pytest.warns(RuntimeWarning):
        for step in range(7):
            lgr.log_metrics({"n": step}, step=step)
        with failing_disk() as disk:
            for step in range(7, 12):
                lgr.log_metrics({"n": step}, step=step)
            lgr.log_metrics({"n": 0.5}, step=12)
            disk.heal()
            lgr.logger_state()
    lgr.log_metrics({"n": 1.5}, step=13)
    lgr.finish("completed")

    assert stored(tmp_path)["train/n"] == {**{step: step for step in range(12)}, 12: 0.5, 13: 1.5}


def test_columns_that_cannot_grow_while_the_log_can(tmp_path: Path) -> None:
    """A promotion has to wait for a batch that the disk refuses; the line waits, too."""
    lgr = PlattliLogger(tmp_path, hotsize=7, walltime=False)
    for step in range(2000):
        lgr.log_metrics({"n": 1}, step=step)
    lgr.backend().drain()
    with pytest.warns(RuntimeWarning):
        with largest_file(8 * 2000 + 16):
            for step in range(2000, 2030):
                lgr.log_metrics({"n": 1}, step=step)
            lgr.log_metrics({"n": 0.5}, step=2030)
        lgr.logger_state()
    lgr.finish("completed")

    assert stored(tmp_path)["train/n"] == {**dict.fromkeys(range(2030), 1), 2030: 0.5}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("plattli-compaction")]
