"""Replicas and outages: what a replica gets is what the run holds, once, whatever failed meanwhile."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adapters import MetricsGroupLogger, TeeLogger, TensorBoardLogger
from adapters.follower import FOLDER, Backoff, Job, JobFiles, work
from loggers import CSVLogger, JSONLogger, PlattliLogger, Thinned, checkpoint_record, logger_info, resume
from loggers.errors import RecordError, UndeliveredError
from loggers.testing import Stored
from plattli import Reader
from plattli.cli import main as plattli
from tests.faults import failing_disk
from tests.test_adapters.metrics_groups import ByHand
from tests.test_adapters.replicas import (
    CuttingLogger,
    FailingLogger,
    FileLogger,
    HangingLogger,
    MemoryLogger,
    SlowLogger,
    calls,
    points,
    wait_for,
)
from tests.test_adapters.tensorboard_files import Files
from tests.test_adapters.test_contract import tensorboard_run
from tests.test_loggers.test_contract import csv_run, json_run, plattli_run


def lines(steps: range, value: float = 0.5) -> list[tuple[str, int, float]]:
    return [("train/loss", step, step * value) for step in steps]


def log(logger: Any, steps: range, value: float = 0.5) -> None:
    for step in steps:
        logger.log_metrics({"loss": step * value}, step=step)


def stored(run: Path) -> list[tuple[str, int, float]]:
    with Reader(run) as reader:
        steps, values = reader.metric("train/loss")
    return [("train/loss", step, value) for step, value in zip(steps.tolist(), values.tolist(), strict=True)]


@pytest.mark.parametrize("kind", [PlattliLogger, JSONLogger])
@pytest.mark.parametrize("fails", ["in the outage", "before it", "at its last line"])
@pytest.mark.filterwarnings("ignore:run '.*'. the disk")
def test_a_replica_that_breaks_while_the_disk_is_out_gets_each_line_once(
    tmp_path: Path, fails: str, kind: type[Any]
) -> None:
    """Lines that wait in the primary's memory had been given to it, or not: its follower knows which."""
    replica = MemoryLogger()
    primary = kind(tmp_path / ("run" if kind is PlattliLogger else "run.jsonl"))
    logger = TeeLogger(primary, replica, poll=0.001, first_wait=0.01)
    log(logger, range(1, 5))
    with pytest.warns(RuntimeWarning, match="MemoryLogger failed"):
        if fails == "before it":
            replica.error = OSError("no tracker")
            log(logger, range(5, 6))
        with failing_disk():
            log(logger, range(5 + (fails == "before it"), 9))
            replica.error = OSError("no tracker")
            if fails != "at its last line":
                log(logger, range(9, 12))
            else:
                log(logger, range(9, 10))
    replica.error = None
    log(logger, range(10 if fails == "at its last line" else 12, 15))
    logger.finish("completed")

    if kind is PlattliLogger:
        assert stored(tmp_path / "run") == lines(range(1, 15))
    assert replica.values == lines(range(1, 15))
    assert replica.verbs[-1] == "finish completed"


@pytest.mark.parametrize("verb", ["other", "confusion"])
def test_a_value_that_failed_half_way_comes_again_alone(tmp_path: Path, verb: str) -> None:
    """Beside the points of its step, those that were logged late and those that were replaced."""
    replica = MemoryLogger()
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.001, first_wait=0.01)
    log(logger, range(1, 9))
    logger.log_other("report", "first")
    replica.error = OSError("no tracker")
    with pytest.warns(RuntimeWarning, match="MemoryLogger failed"):
        if verb == "other":
            logger.log_other("report", "second")
        else:
            logger.log_confusion([[1]], ["a"], context="validate", name="cm")
    replica.error = None
    logger.finish("completed")

    expected = ("report", -1, "second") if verb == "other" else ("cm", -1, [[1]])
    assert replica.values == [*lines(range(1, 9)), ("report", -1, "first"), expected]


def test_a_late_line_at_which_a_replica_breaks_comes_again_alone(tmp_path: Path) -> None:
    """What is behind it has been given."""
    replica = MemoryLogger()
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.001, first_wait=0.01)
    log(logger, range(1, 4))
    log(logger, range(6, 9))
    replica.error = OSError("no tracker")
    with pytest.warns(RuntimeWarning, match="MemoryLogger failed"):
        log(logger, range(4, 5))
    replica.error = None
    log(logger, range(5, 6))
    logger.finish("completed")

    assert sorted(replica.values) == lines(range(1, 9))


@pytest.mark.filterwarnings("ignore:run 'run'. the disk", "ignore:run 'run'. rows could not be moved")
def test_a_replica_that_breaks_while_the_run_is_away_waits_for_it(tmp_path: Path) -> None:
    """One warning, however many lines come; then each line that it has not had, once."""
    run, away = tmp_path / "run", tmp_path / "away"
    replica = MemoryLogger()
    logger = TeeLogger(PlattliLogger(run, hotsize=5), replica, poll=0.001, first_wait=0.01)
    log(logger, range(1, 12))
    run.rename(away)
    replica.error = OSError("no tracker")
    with pytest.warns(RuntimeWarning, match="gets the rest once the run can be read") as caught:
        log(logger, range(12, 30))
    assert len([w for w in caught if "MemoryLogger" in str(w.message)]) == 1
    (entry,) = logger.logger_state()["replicas"]
    assert entry["cursor"]["delivered"] == {}  # who goes on from here must not take it for complete
    away.rename(run)
    replica.error = None
    with pytest.warns(RuntimeWarning, match="a thread goes on with it"):
        log(logger, range(30, 40))
    logger.finish("completed")

    assert stored(run) == lines(range(1, 40))
    assert replica.values == lines(range(1, 40))


def test_a_replica_that_cannot_be_moved_until_the_end_is_reported(tmp_path: Path) -> None:
    """It broke in the last line, and what goes on with it does so at finish."""
    replica = MemoryLogger()
    logger = TeeLogger(JSONLogger(tmp_path / "metrics.jsonl"), replica, poll=0.001, first_wait=0.01)
    log(logger, range(1, 4))
    (tmp_path / "metrics.jsonl").rename(tmp_path / "away.jsonl")
    replica.error = OSError("no tracker")
    with pytest.warns(RuntimeWarning, match="MemoryLogger"):
        log(logger, range(4, 5))
        logger.finish("completed")

    assert replica.values == lines(range(1, 4))
    assert "no tracker" in str(logger.report()[0]["error"])


@pytest.mark.parametrize("error", [TypeError("no such argument"), OSError("no tracker")])
def test_what_no_attempt_would_mend_is_not_tried_again(tmp_path: Path, error: Exception) -> None:
    """A replica whose own code is wrong is left behind with one message; an outage is not."""
    replica = MemoryLogger()
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.001, first_wait=0.01)
    log(logger, range(1, 3))
    replica.error = error
    permanent = isinstance(error, TypeError)
    with pytest.warns(RuntimeWarning, match="left behind" if permanent else "goes on with it") as caught:
        log(logger, range(3, 5))
        replica.error = None
        log(logger, range(5, 7))
        report = logger.report()[0]
        logger.finish("completed")

    assert len(caught) == 1
    assert replica.values == lines(range(1, 3 if permanent else 7))
    assert report["pending"] == 4 or not permanent


def test_a_replica_that_was_behind_at_a_checkpoint_gets_what_it_lacked(tmp_path: Path) -> None:
    """Its entry in the state says how far it was; one that had all of it goes on behind that."""
    whole, behind = FileLogger(tmp_path / "whole"), MemoryLogger()
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), whole, behind, poll=0.001, finish_timeout=0.05)
    log(logger, range(1, 5))
    behind.error = OSError("no tracker")
    with pytest.warns(RuntimeWarning, match="MemoryLogger"):
        log(logger, range(5, 9))
        record = json.loads(json.dumps(checkpoint_record(logger)))
        log(logger, range(9, 12))
        logger.finish("interrupted")

    wait_for(lambda: not any(thread.name.startswith("follower-") for thread in threading.enumerate()))
    behind.error = None
    again = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "whole"), behind)
    resume(again, record)
    assert behind.values == lines(range(1, 9))
    log(again, range(9, 14), value=2.0)
    again.finish("completed")

    assert behind.values == [*lines(range(1, 9)), *lines(range(9, 14), value=2.0)]
    assert [s for s, _ in points(tmp_path / "whole")["train/loss"]] == [*range(1, 12), *range(9, 14)]


@pytest.mark.parametrize("kind", ["csv", "json", "thinned", "plattli"])
@pytest.mark.filterwarnings("ignore:run '.*'. the disk")
def test_what_a_replicas_disk_does_not_take_is_in_the_run_alone(tmp_path: Path, kind: str) -> None:
    """A checkpoint in its outage, and the end of the process: the next one gets all of it, which no memory held."""

    def build() -> TeeLogger:
        json_logger = JSONLogger(tmp_path / "there" / "log.jsonl")
        replica: Any = {
            "csv": CSVLogger(tmp_path / "there" / "log.csv"),
            "json": json_logger,
            "thinned": Thinned(json_logger, every_n_steps=1),
            "plattli": PlattliLogger(tmp_path / "there"),
        }[kind]
        return TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.001, finish_timeout=0.05, attempts=1)

    logger = build()
    log(logger, range(1, 5))
    with failing_disk(below=tmp_path / "there"), pytest.warns(RuntimeWarning, match="UnwrittenError"):
        log(logger, range(5, 8))
        record = json.loads(json.dumps(checkpoint_record(logger)))
        log(logger, range(8, 10))
        logger.finish("interrupted")
    again = build()
    resume(again, record)
    log(again, range(8, 12), value=2.0)
    again.finish("completed")
    found = {
        "csv": lambda: csv_run(tmp_path / "there" / "log.csv"),
        "plattli": lambda: plattli_run(tmp_path / "there"),
    }.get(kind, lambda: json_run(tmp_path / "there" / "log.jsonl"))()

    expected = [(step, value) for _, step, value in [*lines(range(1, 8)), *lines(range(8, 12), value=2.0)]]
    assert found.metrics["train/loss"] == expected
    assert found.status == "completed"
    assert "UnwrittenError" in str(logger.report()[0]["last_error"])  # it lives: nothing of it was lost with memory


def test_a_replica_can_be_followed_by_a_thread_from_the_start(tmp_path: Path) -> None:
    """For an object that is alive already and may block: it goes on from a checkpoint, too."""
    replica = MemoryLogger(placement="thread")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.001)
    log(logger, range(1, 9))
    wait_for(lambda: len(replica.values) == 8)
    wait_for(lambda: logger.report()[0]["pending"] == 0)
    record = checkpoint_record(logger)
    log(logger, range(9, 12))
    logger.finish("interrupted")
    assert replica.values == lines(range(1, 12))

    again = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.001)
    resume(again, record)
    log(again, range(9, 14), value=2.0)
    again.finish("completed")
    assert replica.values == [*lines(range(1, 9)), *lines(range(9, 14), value=2.0)]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("follower-")]


@pytest.mark.parametrize("placement", ["inline", "thread"])
def test_a_replica_that_refuses_its_state_does_not_end_a_resume(tmp_path: Path, placement: str) -> None:
    """One warning, and the run goes on without it."""

    class Refusing(MemoryLogger):
        def reattach(self, state: Any) -> None:
            raise RecordError("not mine")

    def build() -> TeeLogger:
        return TeeLogger(PlattliLogger(tmp_path / "run"), Refusing(placement=placement), poll=0.001)

    logger = build()
    log(logger, range(1, 5))
    record = checkpoint_record(logger)
    logger.finish("interrupted")
    again = build()
    with pytest.warns(RuntimeWarning, match="Refusing .*not mine") as caught:
        resume(again, record)
        log(again, range(5, 9))
        again.finish("completed")

    assert len(caught) == 1
    assert stored(tmp_path / "run") == lines(range(1, 9))
    assert again.replicas[0].values == []
    assert "not mine" in str(again.report()[0]["last_error"])


class Stateless(FileLogger):
    """Has nothing to reattach."""

    def logger_state(self) -> None:
        """It has none."""

    reattach = None  # type: ignore[assignment]


def test_a_stateless_replica_in_a_process_goes_on_where_it_was(tmp_path: Path) -> None:
    """It cannot be cut, so it gets the new values behind the old ones, and nothing twice."""

    def build() -> TeeLogger:
        return TeeLogger(PlattliLogger(tmp_path / "run"), Stateless(tmp_path / "calls", placement="process"), poll=0.02)

    logger = build()
    log(logger, range(1, 9))
    record = json.loads(json.dumps(checkpoint_record(logger)))
    log(logger, range(9, 12))
    logger.finish("interrupted")
    again = build()
    resume(again, record)
    log(again, range(9, 14), value=2.0)
    again.finish("completed")

    expected = [*lines(range(1, 12)), *lines(range(9, 14), value=2.0)]
    assert points(tmp_path / "calls")["train/loss"] == [(step, value) for _, step, value in expected]


def test_a_run_that_was_moved_is_gone_on_with_by_its_followers(tmp_path: Path) -> None:
    """With what its follower had noted, which moves along, and without: then the checkpoint says where it was."""
    for keep in (True, False):
        run, there = tmp_path / f"run {keep}", tmp_path / f"moved {keep}"
        calls_of = tmp_path / f"calls {keep}"
        logger = TeeLogger(PlattliLogger(run), FileLogger(calls_of, placement="process"), poll=0.02)
        log(logger, range(1, 9))
        wait_for(lambda logger=logger: logger.report()[0]["pending"] == 0)
        record = json.loads(json.dumps(checkpoint_record(logger)))
        logger.finish("interrupted")
        run.rename(there)
        if not keep:
            for path in (there / ".followers").iterdir():
                path.unlink()
        again = TeeLogger(PlattliLogger(there), FileLogger(calls_of, placement="process"), poll=0.02)
        resume(again, record)
        log(again, range(9, 14))
        again.finish("completed")

        assert points(calls_of)["train/loss"] == [(step, step / 2) for step in range(1, 14)]
        assert calls(calls_of)[-1] == ("finish", ["completed"], {})


@pytest.mark.filterwarnings("ignore:metric 'epoch' of context", "ignore:metric 'walltime' of context")
def test_replicas_get_what_the_primary_takes(tmp_path: Path) -> None:
    """A metric whose name is the line's own reaches nobody, and with no epoch it is a metric like others."""
    here = FileLogger(tmp_path / "here")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), here)
    logger.log_metrics({"loss": 1.0, "epoch": 7.0, "walltime": 3.0}, step=1, epoch=2)
    logger.log_metrics({"loss": 1.0, "epoch": 7.5}, step=2, context="other")
    logger.finish("completed")

    assert [call[1] for call in calls(tmp_path / "here")][:2] == [[{"loss": 1.0}], [{"loss": 1.0, "epoch": 7.5}]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"finish_timeout": -1}, {"poll": 0}, {"attempts": 0}, {"attempts": 1.5}, {"first_wait": -0.1},
        {"first_wait": 2.0, "longest_wait": 1.0}, {"finish_timeout": float("nan")},
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match=next(iter(wrong)) if len(wrong) == 1 else "longest_wait"):
        TeeLogger(PlattliLogger(tmp_path / "run"), **wrong)


# ---- backends at their worst ------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_tensorboards_disk_is_full_for_a_while(tmp_path: Path, code: int) -> None:
    """One warning; what did not fit is written as soon as it does, each point once."""
    run, logdir = tmp_path / "run", tmp_path / "tb"
    logger = TeeLogger(PlattliLogger(run), TensorBoardLogger(logdir), poll=0.001, first_wait=0.001, longest_wait=0.01)
    log(logger, range(1, 100))
    with failing_disk(code=code, below=logdir) as disk, pytest.warns(RuntimeWarning, match="TensorBoardLogger failed"):
        log(logger, range(100, 400))
        logger.log_confusion([[1, 2], [3, 4]], ["a", "b"], context="validate")
        wait_for(lambda: disk.failed > 3)
    log(logger, range(400, 500))
    logger.finish("completed")

    assert stored(run) == lines(range(1, 500))
    files = Files(logdir)
    assert files.scalars("train/loss") == [(step, step / 2) for step in range(1, 500)]
    assert len(files.images("validate/confusion")) == 1
    assert files.status() == "STATUS_SUCCESS"


@pytest.mark.parametrize("placement", ["inline", "thread", "process"])
def test_a_backend_that_raises_in_every_verb_costs_one_warning(tmp_path: Path, placement: str) -> None:
    """The run is whole, whatever place it has."""
    verbs = ("log_metrics", "log_params", "log_tags", "log_other", "log_confusion", "finish")
    tracker = FailingLogger(tmp_path / "calls", verbs, placement=placement)
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), tracker, poll=0.01, finish_timeout=1.0)
    with pytest.warns(RuntimeWarning, match=r"FailingLogger .*no log_\w+ today") as caught:
        logger.log_params({"lr": 0.1})
        logger.log_tags(["a"])
        log(logger, range(1, 200))
        logger.log_other("a", 1)
        logger.log_confusion([[1]], ["a"], name="cm")
        if placement == "process":
            wait_for(lambda: logger.report()[0]["error"] is not None)
        logger.finish("completed")

    # what went wrong; and at the end what to do, if that was not said at once
    assert len(caught) == (2 if placement == "inline" else 1)
    assert f"plattli send {tmp_path / 'run'}" in str(caught[-1].message)
    assert stored(tmp_path / "run") == lines(range(1, 200))
    assert points(tmp_path / "calls") == {}
    assert "no log_" in str(logger.report()[0]["last_error"])
    assert "RuntimeError" in str(logger.report()[0]["error"])


def test_an_inline_replica_that_is_slow_becomes_a_thread(tmp_path: Path) -> None:
    """Training waits for it for a second and a tenth of its time, not longer; each line arrives once."""
    recovered = tmp_path / "recovered"
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), SlowLogger(tmp_path / "calls", until=recovered), poll=0.001)
    with pytest.warns(RuntimeWarning, match="SlowLogger is slow .* a thread goes on with it") as caught:
        log(logger, range(1, 1000))
    report = logger.report()[0]
    recovered.touch()
    logger.finish("completed")

    assert len(caught) == 1
    assert report["placement"] == "thread"
    assert report["error"] is None
    assert report["delivered"] < 30
    assert report["pending"] > 900
    assert points(tmp_path / "calls") == {"train/loss": [(step, step / 2) for step in range(1, 1000)]}
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


def test_a_slow_process_leaves_the_rest_to_be_sent(tmp_path: Path) -> None:
    """The message says what to do, and then each line is there, once, though the follower was stopped in between."""
    recovered = tmp_path / "recovered"
    tracker = SlowLogger(tmp_path / "calls", placement="process", until=recovered)
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), tracker, poll=0.01, finish_timeout=1.0)
    log(logger, range(1, 1000))
    with pytest.warns(RuntimeWarning, match="SlowLogger did not get everything .* plattli send"):
        logger.finish("completed")
    report = logger.report()[0]
    assert report["pending"] == 999 - report["delivered"] > 900
    recovered.touch()
    assert plattli(["send", "--quiet", str(tmp_path / "run")]) == 0

    assert points(tmp_path / "calls") == {"train/loss": [(step, step / 2) for step in range(1, 1000)]}
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


@pytest.mark.parametrize("placement", ["inline", "thread", "process"])
def test_a_finish_that_never_returns_is_left(tmp_path: Path, placement: str) -> None:
    """Others are finished all the same; the message names it."""
    hanging = HangingLogger(tmp_path / "calls", ("finish",), placement=placement)
    other = FileLogger(tmp_path / "other")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), other, hanging, poll=0.01, finish_timeout=1.2)
    log(logger, range(1, 50))
    wait_for(lambda: logger.report()[1]["pending"] == 0)
    with pytest.warns(RuntimeWarning, match="HangingLogger") as caught:
        logger.finish("completed")

    assert len(caught) == 1
    for path in ("calls", "other"):
        assert points(tmp_path / path) == {"train/loss": [(step, step / 2) for step in range(1, 50)]}
    assert calls(tmp_path / "other")[-1] == ("finish", ["completed"], {})
    assert stored(tmp_path / "run") == lines(range(1, 50))


def test_a_follower_that_is_killed_again_and_again_delivers_each_call_once(tmp_path: Path) -> None:
    """To a logger that can be cut to where its record was taken: what was noted is what it has."""
    tracker = CuttingLogger(tmp_path / "calls", placement="process")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), tracker, poll=0.005)
    killed = 0
    for step in range(1, 3001):
        logger.log_metrics({"loss": step / 2}, step=step)
        if step % 7 == 0:
            logger.log_other("note", step)
        if step % 1000 == 0:
            # at whatever it is doing behind there
            wait_for(lambda step=step: points(tmp_path / "calls").get("train/loss", [(0, 0)])[-1][0] > step - 450)
            killed = kill_follower(tmp_path / "run", killed)
    logger.finish("completed")
    report = logger.report()[0]

    assert report["restarts"] == 3
    assert report["pending"] == 0
    assert points(tmp_path / "calls") == {"train/loss": [(step, step / 2) for step in range(1, 3001)]}
    notes = [call[1][1] for call in calls(tmp_path / "calls") if call[0] == "log_other"]
    assert notes == list(range(7, 3001, 7))
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


def kill_follower(run: Path, before: int) -> int:
    """Kill the process that works on a run's only job, unless it is the one of before; return which it was."""
    (lock,) = (run / ".followers").glob("*.lock")
    wait_for(lambda: bool(lock.read_text()) and int(lock.read_text().split()[0]) != before)
    pid = int(lock.read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_tee_says_how_far_its_replicas_are(tmp_path: Path) -> None:
    """In its report, and in what a driver shows of its logger."""
    held = HangingLogger(tmp_path / "held", ("log_metrics",), placement="process")
    logger = TeeLogger(
        PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "here"), held, poll=0.01, finish_timeout=0.2
    )
    assert [replica["pending"] for replica in logger.report()] == [0, None]
    for step in range(5):
        logger.log_metrics({"loss": 0.5}, step=step, walltime=time.time() - 100 + step)
    here, there = logger.report()
    assert (here["logger"], here["placement"], here["delivered"], here["pending"]) == ("FileLogger", "inline", 5, 0)
    assert (there["placement"], there["delivered"], there["pending"]) == ("process", 0, 5)
    assert 100 <= there["lag"] < 700
    info = logger_info(logger)
    assert [replica["logger"] for replica in info["replicas"]] == ["FileLogger", "HangingLogger"]
    assert info["step"] == 4
    with pytest.warns(RuntimeWarning, match="HangingLogger"):
        logger.finish("completed")


class FailingAt(FileLogger):
    """Raises once, at the n-th call."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.left = at

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("not today")
        super()._note(verb, *args, **kwargs)


def test_threads_may_share_a_tee_whose_replica_breaks(tmp_path: Path) -> None:
    """No thread gets an error of a replica's, and it has what all of them logged, once, in the primary's order."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for trial in range(5):
            run, found = tmp_path / f"run{trial}", tmp_path / f"calls{trial}"
            replica = FailingAt(found, at=700)
            tee = TeeLogger(PlattliLogger(run), replica, poll=0.01, first_wait=0.01)

            def log(number: int, tee: TeeLogger = tee) -> None:
                for step in range(300):
                    tee.log_metrics({"loss": step / 2}, step=step, context=f"c{number}")
                for step in range(20):
                    tee.log_metrics({"same": number}, step=step, context="shared")

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with ThreadPoolExecutor(4) as threads:
                    assert [*threads.map(log, range(4))] == [None] * 4
                tee.finish("completed")
            received = points(found)
            with Reader(run) as reader:
                for number in range(4):
                    assert received[f"c{number}/loss"] == [(step, step / 2) for step in range(300)]
                assert dict(received["shared/same"]) == dict(enumerate(reader.metric_values("shared/same").tolist()))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_fork_while_a_thread_logs_does_not_hang_in_the_child(tmp_path: Path) -> None:
    """The thread that was in a verb is not in the child, and what it held would never be let go there."""
    entered, leave = threading.Event(), threading.Event()

    class Waits(FileLogger):
        def log_metrics(self, metrics: Any, **place: Any) -> None:
            entered.set()
            leave.wait()
            super().log_metrics(metrics, **place)

    tee = TeeLogger(PlattliLogger(tmp_path / "run"), Waits(tmp_path / "calls"))
    thread = threading.Thread(target=tee.log_metrics, args=({"loss": 1.0},), kwargs={"step": 1})
    thread.start()
    entered.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            signal.alarm(240)
            tee.log_metrics({"loss": 2.0}, step=2)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        leave.set()
        thread.join()
        tee.finish("completed")
    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0)]}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_late_line_in_which_training_was_killed_reaches_the_replicas(tmp_path: Path) -> None:
    """It is of a step before the checkpoint, so no resume cuts it, and nobody logs it again."""

    def build() -> TeeLogger:
        return TeeLogger(PlattliLogger(tmp_path / "run", hotsize=4), JSONLogger(tmp_path / "all.jsonl"))

    pid = os.fork()
    if pid == 0:
        tee = build()
        log(tee, range(1, 31))
        (tmp_path / "state").write_text(json.dumps(checkpoint_record(tee)))
        log(tee, range(31, 36))
        tee.log_metrics({"loss": 50.0}, step=4)
        tee.backend().log_metrics({"loss": 70.0}, step=7)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    tee = build()
    resume(tee, json.loads((tmp_path / "state").read_text()))
    log(tee, range(31, 41))
    tee.finish("completed")

    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    found = [("train/loss", row["step"], row["loss"]) for row in rows if row["type"] == "metrics"]
    assert found.count(("train/loss", 7, 70.0)) == found.count(("train/loss", 4, 50.0)) == 1
    assert len(found) == 35 + 2 + 10
    assert sorted({step: value for _, step, value in found}.items()) == [(s, v) for _, s, v in stored(tmp_path / "run")]


def finished_run(run: Path, lines: int) -> None:
    logger = PlattliLogger(run)
    log(logger, range(lines))
    logger.finish("completed")


def job_of(run: Path, logger: Any, **backoff: Any) -> JobFiles:
    files = JobFiles(run / FOLDER, "1-FileLogger")
    files.save_job(Job(run, pickle.dumps(logger), None, 0.02, os.getpid(), sys.path, Backoff(**backoff)))
    return files


def test_a_follower_that_cannot_note_how_far_it_is_goes_on(tmp_path: Path) -> None:
    """The disk beside the run is full for a while: what was delivered meanwhile is not delivered again."""
    run = tmp_path / "run"
    finished_run(run, 7000)
    files = job_of(run, FileLogger(tmp_path / "calls"))
    with failing_disk(6, 3, errno.ENOSPC, below=files.folder) as disk:
        work(files, files.load_job(), follow=False)
    assert disk.failed == 3
    state = files.load_state()
    assert state is not None
    assert (state.delivered, state.finished) == (7000, True)
    assert points(tmp_path / "calls") == {"train/loss": [(step, step * 0.5) for step in range(7000)]}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on macOS and Windows")
def test_a_follower_whose_output_cannot_be_written_tries_again_all_the_same(tmp_path: Path) -> None:
    """Its output is a file beside the run."""
    run = tmp_path / "run"
    finished_run(run, 3)
    files = job_of(run, FailingLogger(tmp_path / "calls", ("log_metrics",)), attempts=3, first=0.01)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-m", "adapters.follower", str(files.job)]
        ended = subprocess.run(
            command, stderr=full, stdout=full, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=240,
        )
    state = files.load_state()
    assert state is not None
    assert (ended.returncode, state.attempts) == (3, 3)


def test_a_follower_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    """Training gets no error for it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / FOLDER).write_text("in the way")
    tee = TeeLogger(
        PlattliLogger(run), FileLogger(tmp_path / "calls", placement="process"), poll=0.02, first_wait=0.05, strict=True
    )
    log(tee, range(5))
    assert "Error" in str(tee.report()[0]["error"])
    (run / FOLDER).unlink()
    log(tee, range(5, 10))
    tee.finish("completed")
    assert points(tmp_path / "calls") == {"train/loss": [(step, step * 0.5) for step in range(10)]}


def test_a_follower_that_could_never_be_started_is_missing(tmp_path: Path) -> None:
    """The end says so."""
    run = tmp_path / "run"
    run.mkdir()
    (run / FOLDER).write_text("in the way")
    tee = TeeLogger(
        PlattliLogger(run), FileLogger(tmp_path / "calls", placement="process"), finish_timeout=0.1, strict=True
    )
    log(tee, range(5))
    with pytest.raises(UndeliveredError, match="did not get everything"):
        tee.finish("completed")


@pytest.mark.parametrize("at", [0, 4])
def test_a_line_in_which_training_was_interrupted_reaches_the_replicas(tmp_path: Path, at: int) -> None:
    """Ctrl-C may come in the middle of a replica's call; then the loop ends the run, and all have all of it."""

    class Interrupted(FileLogger):
        def log_metrics(self, metrics: Any, **place: Any) -> None:
            if place["step"] == at and not pressed:
                pressed.append(True)
                raise KeyboardInterrupt
            super().log_metrics(metrics, **place)

    pressed: list[bool] = []
    first, second, third = FileLogger(tmp_path / "1"), Interrupted(tmp_path / "2"), FileLogger(tmp_path / "3")
    tee = TeeLogger(PlattliLogger(tmp_path / "run"), first, second, third, poll=0.02)
    with pytest.raises(KeyboardInterrupt):
        log(tee, range(10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tee.finish("interrupted")
    for name in "123":
        assert points(tmp_path / name) == {"train/loss": [(step, step * 0.5) for step in range(at + 1)]}
        assert calls(tmp_path / name)[-1][:2] == ("finish", ["interrupted"])


def test_a_first_line_in_which_training_was_interrupted_reaches_the_replicas(tmp_path: Path) -> None:
    """The loop may go on, with a tee that has not begun yet."""

    class Interrupted(PlattliLogger):
        def log_metrics(self, metrics: Any, **place: Any) -> None:
            super().log_metrics(metrics, **place)
            if place["step"] == 0:
                raise KeyboardInterrupt

    tee = TeeLogger(Interrupted(tmp_path / "run"), FileLogger(tmp_path / "calls"), poll=0.02)
    with pytest.raises(KeyboardInterrupt):
        log(tee, range(10))
    tee.logger_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log(tee, range(1, 5))
        tee.finish("completed")
    assert points(tmp_path / "calls") == {"train/loss": [(step, step * 0.5) for step in range(5)]}


#: how to build a logger of local files, and how to read what it has written
LOCAL: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Stored]]] = {
    "csv": (lambda path: CSVLogger(path / "log.csv"), lambda path: csv_run(path / "log.csv")),
    "json": (lambda path: JSONLogger(path / "log.jsonl"), lambda path: json_run(path / "log.jsonl")),
    "tensorboard": (TensorBoardLogger, tensorboard_run),
    "group": (MetricsGroupLogger, lambda path: ByHand(path).stored()),
}


@pytest.mark.parametrize("fails", ["in the middle", "at the end"])
@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.filterwarnings("ignore:.*a thread goes on with it")
def test_what_a_replica_in_this_process_could_not_get_is_left_to_send(tmp_path: Path, kind: str, fails: str) -> None:
    """Its disk takes nothing; a warning at the end says how to send the rest, and that sends it, once."""
    build, read = LOCAL[kind]
    run, target = tmp_path / "run", tmp_path / "target"
    logger = TeeLogger(PlattliLogger(run), build(target), poll=0.001, first_wait=0.001, finish_timeout=1.0)
    log(logger, range(1, 50))
    with pytest.warns(RuntimeWarning, match=f"send it with: plattli send {run}"), failing_disk(below=target):
        if fails == "in the middle":
            log(logger, range(50, 100))
        logger.finish("completed")
    del logger  # as its process ends: some loggers keep their files to themselves
    gc.collect()
    sent = subprocess.run([sys.executable, "-m", "plattli", "send", run], capture_output=True, text=True, check=False)

    assert (sent.returncode, sent.stderr) == (0, ""), sent.stderr
    expected = [(step, step * 0.5) for step in range(1, 100 if fails == "in the middle" else 50)]
    found = read(target)
    assert found.metrics["train/loss"] == expected
    assert found.status in ("completed", "STATUS_SUCCESS")
    assert plattli(["send", str(run)]) == 0
    assert read(target).metrics["train/loss"] == expected


def test_a_run_that_is_there_already_is_told_once_and_not_tried_again(tmp_path: Path) -> None:
    """No attempt mends that, so the warning does not promise one."""
    other = TensorBoardLogger(tmp_path / "tb")
    other.log_metrics({"loss": 1.0}, step=1)
    other.finish("completed")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), TensorBoardLogger(tmp_path / "tb"))
    with pytest.warns(RuntimeWarning, match=r"RunExistsError.* is left behind: .*for plattli replay to send") as caught:
        log(logger, range(1, 5))
        logger.finish("completed")

    assert len(caught) == 1
    assert stored(tmp_path / "run") == lines(range(1, 5))
