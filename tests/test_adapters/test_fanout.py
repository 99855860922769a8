"""The tee: the primary keeps everything, and nothing a replica does reaches training or loses a line."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import TeeLogger
from adapters.follower import jobs
from loggers import CSVLogger, JSONLogger, PlattliLogger, TrainingSession, checkpoint_record, resume
from loggers.errors import (
    LoggerFinishedError,
    MetricValueError,
    MissingVerbError,
    RecordError,
    RunExistsError,
    StatusError,
    UndeliveredError,
)
from plattli import Reader
from plattli.cli import main as plattli
from tests.test_adapters.replicas import (
    DyingLogger,
    FailingLogger,
    FileLogger,
    HangingLogger,
    HelpedLogger,
    calls,
    points,
    wait_for,
)

EXPECTED = [(step, step / 2) for step in range(1, 201)]


def train(logger: Any, steps: int = 200, status: str = "completed") -> None:
    logger.log_params({"lr": 0.1})
    logger.log_tags(["a", "b"])
    for step in range(1, steps + 1):
        logger.log_metrics({"loss": step / 2}, step=step, epoch=1)
    logger.log_metrics({"loss": 0.5}, step=steps, epoch=1, context="validate")
    logger.log_confusion([[1, 2], [3, 4]], ["x", "y"], step=steps, context="validate")
    logger.log_other("report", "fine")
    logger.finish(status)


def local_losses(run: Path) -> list[tuple[int, float]]:
    with Reader(run) as reader:
        steps, values = reader.metric("train/loss")
    return list(zip(steps.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("placement", ["inline", "process"])
def test_a_replica_gets_every_call(tmp_path: Path, placement: str) -> None:
    """Params, tags, lines with epoch and walltime, the confusion matrix, the value, the status; each once."""
    replica = FileLogger(tmp_path / "calls", placement=placement)
    train(TeeLogger(PlattliLogger(tmp_path / "run"), replica))
    got = calls(tmp_path / "calls")

    assert got[0] == ("log_params", [{"lr": 0.1}], {})
    assert points(tmp_path / "calls") == {"train/loss": EXPECTED, "validate/loss": [(200, 0.5)]}
    assert all(c[2]["epoch"] == 1 and c[2]["walltime"] > 1e9 for c in got if c[0] == "log_metrics")
    confusions = [c for c in got if c[0] == "log_confusion"]
    assert len(confusions) == 1
    assert confusions[0][1] == [[[1, 2], [3, 4]], ["x", "y"]]
    assert (confusions[0][2]["step"], confusions[0][2]["context"], confusions[0][2]["name"]) == (
        200, "validate", "confusion",
    )  # fmt: skip
    assert [c[1] for c in got if c[0] == "log_other"] == [["report", "fine"]]
    tags = [c[1][0] for c in got if c[0] == "log_tags"]
    assert len(tags) == 1
    assert sorted(tags[0]) == ["a", "b"]
    assert got[-1] == ("finish", ["completed"], {})
    assert not jobs(tmp_path / "run")


def test_a_json_lines_file_can_be_the_primary(tmp_path: Path) -> None:
    """Its lines are verb calls already; a follower reads them as they come."""
    train(TeeLogger(JSONLogger(tmp_path / "metrics.jsonl"), FileLogger(tmp_path / "calls", placement="process")))

    assert points(tmp_path / "calls")["train/loss"] == EXPECTED
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


@pytest.mark.parametrize("status", ["error", "interrupted", "early_stop"])
def test_replicas_learn_how_the_run_ended(tmp_path: Path, status: str) -> None:
    """The status that the driver gave reaches both placements."""
    here, there = tmp_path / "here", tmp_path / "there"
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(here), FileLogger(there, placement="process"))
    train(logger, steps=3, status=status)

    assert calls(here)[-1] == calls(there)[-1] == ("finish", [status], {})


VERBS = ("log_metrics", "log_params", "log_tags", "log_other", "log_confusion", "finish")


@pytest.mark.parametrize("verb", VERBS)
def test_an_inline_replica_that_always_raises_costs_one_warning(tmp_path: Path, verb: str) -> None:
    """It names the replica and the error; one more at the end says what to do. The run is whole."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FailingLogger(tmp_path / "calls", (verb,)))
    with pytest.warns(RuntimeWarning, match=f"FailingLogger .*no {verb} today") as caught:
        train(logger)

    how_to_send = f"send it with: plattli send {tmp_path / 'run'}"
    assert [how_to_send in str(warning.message) for warning in caught] == [False, True][verb == "finish" :]
    assert local_losses(tmp_path / "run") == EXPECTED
    assert f"no {verb} today" in str(logger.report()[0]["error"])


def test_an_inline_replica_that_recovers_catches_up(tmp_path: Path) -> None:
    """A thread takes over from what is stored; every line arrives, once, in order."""
    repaired = tmp_path / "repaired"
    replica = FailingLogger(tmp_path / "calls", ("log_metrics",), until=repaired)
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica)
    with pytest.warns(RuntimeWarning, match="goes on with it"):
        for step in range(1, 101):
            logger.log_metrics({"loss": step / 2}, step=step)
    repaired.touch()
    for step in range(101, 201):
        logger.log_metrics({"loss": step / 2}, step=step)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": EXPECTED}
    assert calls(tmp_path / "calls")[-1][0] == "finish"


def test_a_value_that_a_replica_cannot_take_does_not_put_it_behind(tmp_path: Path) -> None:
    """One warning; the next lines still go to it directly."""

    class Numbers(FileLogger):
        def log_metrics(self, metrics: Any, **place: Any) -> None:
            super().log_metrics({k: v for k, v in metrics.items() if not isinstance(v, str)}, **place)
            if any(isinstance(v, str) for v in metrics.values()):
                raise MetricValueError("a string is no number")

    logger = TeeLogger(PlattliLogger(tmp_path / "run"), Numbers(tmp_path / "calls"))
    with pytest.warns(RuntimeWarning, match="Numbers: a string is no number") as caught:
        for step in range(1, 4):
            logger.log_metrics({"loss": 1.0, "note": "text"}, step=step)
    report = logger.report()[0]
    logger.finish("completed")

    assert len(caught) == 1
    assert report["placement"] == "inline"
    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0), (2, 1.0), (3, 1.0)]}


def test_a_value_that_the_primary_refuses_is_the_callers_error(tmp_path: Path) -> None:
    """Its siblings reach the primary and the replicas; the error names it."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "calls"))
    with pytest.raises(MetricValueError, match="bad"):
        logger.log_metrics({"loss": 1.0, "bad": object()}, step=1)
    logger.finish("completed")

    assert local_losses(tmp_path / "run") == [(1, 1.0)]
    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0)]}


def test_a_follower_whose_logger_raises_at_first_delivers_all_in_the_end(tmp_path: Path) -> None:
    """It tries again, in a fresh interpreter, from where it stood."""
    repaired = tmp_path / "repaired"
    replica = FailingLogger(tmp_path / "calls", ("log_other",), placement="process", until=repaired)
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.02)
    logger.log_other("first", 1)
    logger.log_metrics({"loss": 0.5}, step=1)
    wait_for(lambda: logger.report()[0]["error"] is not None)
    assert "no log_other today" in str(logger.report()[0]["error"])
    repaired.touch()
    for step in range(2, 201):
        logger.log_metrics({"loss": step / 2}, step=step)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": EXPECTED}
    assert [c[1] for c in calls(tmp_path / "calls") if c[0] == "log_other"] == [["first", 1]]


def test_a_follower_that_dies_is_started_again(tmp_path: Path) -> None:
    """kill -9 of the follower's process: another one goes on, and nothing is missing."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), DyingLogger(tmp_path / "calls", at=20), poll=0.02)
    train(logger)
    got = points(tmp_path / "calls")["train/loss"]

    assert (tmp_path / "calls.died").exists()
    assert sorted(set(got)) == EXPECTED
    assert logger.report()[0]["restarts"] == 1
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


def test_a_follower_that_hangs_is_left_after_the_finish_timeout(tmp_path: Path, capsys: Any) -> None:
    """One warning says how to send the rest; no process stays; the command then delivers everything."""
    logger = TeeLogger(
        PlattliLogger(tmp_path / "run"), HangingLogger(tmp_path / "calls", ("log_metrics",)), finish_timeout=1.0
    )
    with pytest.warns(RuntimeWarning, match="plattli send") as caught:
        train(logger)

    assert len(caught) == 1
    assert local_losses(tmp_path / "run") == EXPECTED
    (files,) = jobs(tmp_path / "run")
    lock = files.try_lock()
    assert lock is not None, "the follower still runs"
    os.close(lock)

    job = files.load_job()
    job.recipe = pickle.dumps(HangingLogger(tmp_path / "calls", ()))  # the tracker answers again
    files.save_job(job)
    assert plattli(["send", str(tmp_path / "run")]) == 0
    assert "lines sent" in capsys.readouterr().out
    assert points(tmp_path / "calls")["train/loss"] == EXPECTED
    assert plattli(["send", str(tmp_path / "run")]) == 0
    assert "nothing to send" in capsys.readouterr().out


def test_send_tells_a_folder_of_runs_from_a_run_with_nothing_to_send(tmp_path: Path, capsys: Any) -> None:
    """Else the runs in it pass for sent."""
    logger = PlattliLogger(tmp_path / "runs" / "a")
    train(logger)
    log = JSONLogger(tmp_path / "text" / "log.jsonl")
    train(log)

    assert plattli(["send", str(tmp_path / "runs")]) == 1
    assert "not a run itself, but a folder of runs: 'a'" in capsys.readouterr().err
    assert plattli(["send", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"plattli send: {tmp_path / 'none'}: no such file or directory\n"
    (tmp_path / "else").mkdir()
    for number, content in enumerate(("", '{"loss": 0.5}\n', "words\n", "\0\n", "[1]\n", '{"type": "tags"}\n')):
        (tmp_path / "else" / f"{number}.jsonl").write_text(content)
    assert plattli(["send", str(tmp_path / "else")]) == 1
    assert "else: not a run: it has neither" in capsys.readouterr().err
    for run in ("runs/a", "text"):
        assert plattli(["send", str(tmp_path / run)]) == 0
        assert capsys.readouterr().out == f"{tmp_path / run}: nothing to send\n"


def test_strict_turns_what_is_missing_into_an_error(tmp_path: Path) -> None:
    """After the primary is finished."""
    replica = HangingLogger(tmp_path / "calls", ("log_metrics",))
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, finish_timeout=0.2, strict=True)
    with pytest.raises(UndeliveredError, match="HangingLogger"):
        train(logger)

    assert (tmp_path / "run" / "metrics.plattli").exists()


def test_finish_reaches_every_replica_in_reverse_order(tmp_path: Path) -> None:
    """Whatever one of them does."""
    order: list[str] = []

    class Ordered(FileLogger):
        def __init__(self, name: str) -> None:
            super().__init__(tmp_path / name)
            self.name = name

        def finish(self, status: str) -> None:
            order.append(self.name)
            if self.name == "second":
                raise OSError("disk full")

    logger = TeeLogger(PlattliLogger(tmp_path / "run"), Ordered("first"), Ordered("second"), Ordered("third"))
    logger.log_metrics({"loss": 1.0}, step=1)
    with pytest.warns(RuntimeWarning, match="Ordered could not be finished: OSError: disk full"):
        logger.finish("completed")

    assert order == ["third", "second", "first"]


def test_a_refused_run_is_the_callers_error_and_starts_nothing(tmp_path: Path) -> None:
    """The primary's errors are real, and no replica hears of a run that did not begin."""
    run = tmp_path / "run"
    train(PlattliLogger(run), steps=2)
    logger = TeeLogger(PlattliLogger(run), FileLogger(tmp_path / "a"), FileLogger(tmp_path / "b", placement="process"))
    with pytest.raises(RunExistsError):
        logger.log_metrics({"loss": 1.0}, step=1)
    logger.finish("error")

    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
    assert local_losses(run) == EXPECTED[:2]


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_that_is_none_is_the_callers_error(tmp_path: Path, name: Any) -> None:
    """As for the primary alone: its siblings are stored, and the error names it."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "calls"))
    with pytest.raises(MetricValueError, match=repr(name)):
        logger.log_metrics({"loss": 1.0, name: 2.0}, step=1)
    logger.finish("completed")

    assert local_losses(tmp_path / "run") == [(1, 1.0)]
    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0)]}


def stands_back(pid: int) -> bool:
    """Return whether training goes before a process: by its niceness, and by its session's where Linux heeds that."""
    share = Path(f"/proc/{pid}/autogroup")
    session = share.read_text().endswith("nice 10\n") if share.exists() else True
    waits = not hasattr(os, "SCHED_BATCH") or (
        os.sched_getscheduler(pid) == os.SCHED_BATCH and len(os.sched_getaffinity(pid)) == 1
    )
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    return session and waits and os.getpriority(os.PRIO_PROCESS, pid) == niceness


def test_a_follower_lets_training_go_first(tmp_path: Path) -> None:
    """It counts for less than we do, and so does the helper process that its backend begins."""
    helping = HelpedLogger(tmp_path / "calls")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), helping, poll=0.02)
    steps = itertools.count()

    def stand_back() -> bool:
        logger.log_metrics({"loss": 1.0}, step=next(steps))
        pids = helping.pids()
        return pids is not None and all(map(stands_back, pids))

    wait_for(stand_back)
    logger.finish("completed")

    assert len(points(tmp_path / "calls")["train/loss"]) == next(steps)


def test_a_followers_modules_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the working directory that has the name of one of them is not taken for it."""
    (tmp_path / "loggers.py").write_text("raise ImportError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    train(TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "calls", placement="process")), steps=3)

    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


def test_a_status_that_is_none_ends_nothing(tmp_path: Path) -> None:
    """The tee and its replicas can still be finished."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "calls", placement="process"))
    logger.log_metrics({"loss": 1.0}, step=1)
    with pytest.raises(StatusError):
        logger.finish("compleeted")
    logger.log_metrics({"loss": 2.0}, step=2)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0), (2, 2.0)]}
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})


def test_a_replica_of_json_lines_that_fails_is_followed_too(tmp_path: Path) -> None:
    """From the line at which it failed."""
    repaired = tmp_path / "repaired"
    replica = FailingLogger(tmp_path / "calls", ("log_metrics",), until=repaired)
    logger = TeeLogger(JSONLogger(tmp_path / "metrics.jsonl"), replica)
    logger.log_params({"a": 1})
    with pytest.warns(RuntimeWarning, match="goes on with it"):
        for step in range(1, 11):
            logger.log_metrics({"loss": step / 2}, step=step)
    repaired.touch()
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": EXPECTED[:10]}
    assert [c[0] for c in calls(tmp_path / "calls")].count("log_params") == 1


def test_a_refused_resume_leaves_the_live_runs_follower_alone(tmp_path: Path) -> None:
    """Another process that tries to go on with a live run gets an error, and nothing else happens."""
    replica = FileLogger(tmp_path / "calls", placement="process")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica, poll=0.02)
    logger.log_metrics({"loss": 0.5}, step=1)
    record = json.dumps(checkpoint_record(logger))
    wait_for(lambda: len(points(tmp_path / "calls")) == 1)
    script = (
        "import json, sys; from pathlib import Path; from adapters import TeeLogger; from loggers import *\n"
        "from tests.test_adapters.replicas import FileLogger\n"
        "d = Path(sys.argv[1]); r = FileLogger(d / 'calls', placement='process')\n"
        "resume(TeeLogger(PlattliLogger(d / 'run'), r), json.loads(sys.argv[2]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), record], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert "RunLockedError" in other.stderr
    for step in range(2, 201):
        logger.log_metrics({"loss": step / 2}, step=step)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": EXPECTED}
    assert logger.report()[0]["restarts"] == 0


def test_a_tee_can_only_begin_with_a_run_that_can_be_read_back(tmp_path: Path) -> None:
    """And all of its loggers must have the verbs."""
    for unreadable in (FileLogger(tmp_path / "a"), CSVLogger(tmp_path / "a.csv"), JSONLogger(tmp_path / "a.txt")):
        with pytest.raises(TypeError, match="first logger of a tee"):
            TeeLogger(unreadable)
    with pytest.raises(MissingVerbError, match="log_metrics"):
        TeeLogger(PlattliLogger(tmp_path / "run"), object())
    unpicklable = FileLogger(tmp_path / "calls", placement="process")
    unpicklable.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="cannot be pickled"):
        TeeLogger(PlattliLogger(tmp_path / "run"), unpicklable)


def test_finishing_twice_is_an_error(tmp_path: Path) -> None:
    """As for any logger."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"))
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finish("completed")
    with pytest.raises(LoggerFinishedError):
        logger.finish("completed")


def test_a_copy_writes_nothing(tmp_path: Path) -> None:
    """A pickled or copied tee is inert, like its primary's copy."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "calls"))
    logger.log_metrics({"loss": 1.0}, step=1)
    for twin in (pickle.loads(pickle.dumps(logger)), copy.deepcopy(logger)):
        with pytest.warns(RuntimeWarning, match="writes nothing"):
            twin.log_metrics({"loss": 2.0}, step=2)
        twin.finish("completed")
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0)]}
    assert local_losses(tmp_path / "run") == [(1, 1.0)]


# ---- resume -----------------------------------------------------------------------------------------

TRAINING = """
import json, os, signal, sys
from pathlib import Path
from adapters import TeeLogger
from loggers import PlattliLogger, TrainingSession
from tests.test_adapters.replicas import FileLogger

directory, kill_at, record = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
others = [FileLogger(directory / "here"), FileLogger(directory / "there", placement="process")]
logger = PlattliLogger(directory / "run")
if sys.argv[4] == "tee":
    logger = TeeLogger(logger, *others, poll=0.02)
session = TrainingSession(logger, params={"lr": 0.1})
session.resume(record)
with session:
    while session.step < 60:
        session.train({"loss": session.step / 2, "sum": float(sum(range(session.step)))})
        if session.step == 30:
            print(json.dumps(session.checkpoint_record()), flush=True)
        if session.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def run_training(directory: Path, kill_at: int, record: str, kind: str = "tee") -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", TRAINING, str(directory), str(kill_at), record, kind],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip


def test_a_killed_run_goes_on_in_every_backend(tmp_path: Path) -> None:
    """kill -9 at 45, resumed at 30: the follower delivers the first attempt, then the second one follows it."""
    first = run_training(tmp_path, 45, "null")
    assert first.returncode == -signal.SIGKILL, first.stderr
    wait_for(lambda: calls(tmp_path / "there")[-1:] == [("finish", ["error"], {})])
    assert [step for step, _ in points(tmp_path / "there")["train/loss"]] == list(range(1, 46))

    second = run_training(tmp_path, -1, first.stdout)
    assert second.returncode == 0, second.stderr
    assert second.stderr == ""
    losses = [(step, (step - 1) / 2) for step in range(1, 61)]
    assert local_losses(tmp_path / "run") == losses
    for name in ("here", "there"):
        steps = [step for step, _ in points(tmp_path / name)["train/loss"]]
        assert steps == [*range(1, 46), *range(31, 61)], name
        got = calls(tmp_path / name)
        assert [c for c in got if c[0] == "reattach"], name
        assert got[-1] == ("finish", ["completed"], {})


def test_a_replica_that_is_new_at_a_resume_gets_the_whole_run(tmp_path: Path) -> None:
    """Inline and in a process: the history first, then the new lines."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"))
    for step in range(1, 11):
        logger.log_metrics({"loss": step / 2}, step=step)
    record = checkpoint_record(logger)
    logger.log_metrics({"loss": -1.0}, step=11)
    logger.finish("interrupted")
    here, there = tmp_path / "here", tmp_path / "there"
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(here), FileLogger(there, placement="process"))
    resume(logger, json.loads(json.dumps(record)))
    for step in range(11, 201):
        logger.log_metrics({"loss": step / 2}, step=step)
    logger.finish("completed")

    assert points(here) == points(there) == {"train/loss": EXPECTED}


@pytest.mark.parametrize("verb", ["resume", "reattach"])
def test_trackers_are_added_at_a_resume(tmp_path: Path, verb: str) -> None:
    """The checkpoint is of the primary alone: the tee's replicas get its history, then the new lines."""
    logger = PlattliLogger(tmp_path / "run")
    for step in range(1, 11):
        logger.log_metrics({"loss": step / 2}, step=step)
    record = json.loads(json.dumps(checkpoint_record(logger)))
    logger.log_metrics({"loss": -1.0}, step=11)
    logger.finish("interrupted")
    here, there = tmp_path / "here", tmp_path / "there"
    tee = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(here), FileLogger(there, placement="process"))
    if verb == "resume":
        resume(tee, record)
    else:
        tee.reattach(record["state"])
    for step in range(11, 201):
        tee.log_metrics({"loss": step / 2}, step=step)
    tee.finish("completed")

    assert local_losses(tmp_path / "run") == EXPECTED
    assert points(here) == points(there) == {"train/loss": EXPECTED}


@pytest.mark.parametrize("verb", ["resume", "reattach"])
def test_trackers_are_left_out_at_a_resume(tmp_path: Path, verb: str) -> None:
    """The checkpoint is of a tee: its primary goes on alone, cut at the same step."""
    tee = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "here"))
    for step in range(1, 11):
        tee.log_metrics({"loss": step / 2}, step=step)
    record = json.loads(json.dumps(checkpoint_record(tee)))
    tee.log_metrics({"loss": -1.0}, step=11)
    tee.log_metrics({"loss": -1.0}, step=12)
    tee.finish("interrupted")
    logger = PlattliLogger(tmp_path / "run")
    if verb == "resume":
        resume(logger, record)
    else:
        logger.reattach(record["state"])
    logger.log_metrics({"loss": 5.5}, step=11)
    logger.finish("completed")

    assert local_losses(tmp_path / "run") == EXPECTED[:11]
    assert points(tmp_path / "here")["train/loss"][-1] == (12, -1.0)


@pytest.mark.parametrize(("before", "after"), [("alone", "tee"), ("tee", "alone")])
def test_a_killed_run_goes_on_with_other_trackers(tmp_path: Path, before: str, after: str) -> None:
    """kill -9 at 45, resumed at 30, with a tee that was not there or without the one that was."""
    first = run_training(tmp_path, 45, "null", before)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = run_training(tmp_path, -1, first.stdout, after)
    assert second.returncode == 0, second.stderr
    assert second.stderr == ""

    losses = [(step, (step - 1) / 2) for step in range(1, 61)]
    assert local_losses(tmp_path / "run") == losses
    if after == "tee":
        assert points(tmp_path / "here")["train/loss"] == points(tmp_path / "there")["train/loss"] == losses
    else:
        # the follower of the killed process ends with what it finds: perhaps the second one has ended by then
        wait_for(lambda: calls(tmp_path / "there")[-1][0] == "finish")
        (status,) = calls(tmp_path / "there")[-1][1]
        assert status == "error" or points(tmp_path / "there")["train/loss"][-1] == losses[-1]


def test_a_json_lines_file_goes_on_without_its_tee(tmp_path: Path) -> None:
    """It has no state, so there is nothing to put back; but it does not go on as another kind of logger."""
    tee = TeeLogger(JSONLogger(tmp_path / "metrics.jsonl"), FileLogger(tmp_path / "here"))
    tee.log_metrics({"loss": 1.0}, step=1)
    record = checkpoint_record(tee)
    tee.finish("interrupted")
    resume(JSONLogger(tmp_path / "metrics.jsonl"), record)
    with pytest.raises(RecordError, match=r"is of adapters.fanout.TeeLogger, and .* is loggers.*PlattliLogger"):
        resume(PlattliLogger(tmp_path / "run"), record)
    alone = checkpoint_record(PlattliLogger(tmp_path / "run"))
    with pytest.raises(RecordError, match=r"is of loggers.*PlattliLogger, and .* is adapters.fanout.TeeLogger"):
        resume(TeeLogger(JSONLogger(tmp_path / "metrics.jsonl")), alone)
    with pytest.raises(RecordError, match=r"is of loggers.*PlattliLogger, and .* is loggers.*JSONLogger"):
        resume(JSONLogger(tmp_path / "metrics.jsonl"), checkpoint_record(TeeLogger(PlattliLogger(tmp_path / "run"))))


def test_a_tee_reattaches_before_it_logs_and_only_to_a_state_of_its_primary(tmp_path: Path) -> None:
    """Both are errors that say so."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"))
    with pytest.raises(RecordError, match="state of a PlattliLogger"):
        logger.reattach({"run_id": "x"})
    logger.log_metrics({"loss": 1.0}, step=1)
    with pytest.raises(RecordError, match="reattach before logging"):
        logger.reattach(logger.logger_state())
    logger.finish("completed")


def test_another_run_in_the_same_directory_starts_its_replicas_anew(tmp_path: Path) -> None:
    """What a follower noted of the run that was replaced does not count for the new one."""
    for value in (1.0, 2.0):
        logger = TeeLogger(
            PlattliLogger(tmp_path / "run", if_exists="replace"),
            FileLogger(tmp_path / f"calls-{value}", placement="process"),
        )
        for step in range(1, 21):
            logger.log_metrics({"loss": value}, step=step)
        logger.finish("completed")

    assert points(tmp_path / "calls-2.0") == {"train/loss": [(step, 2.0) for step in range(1, 21)]}


def test_a_forked_childs_tee_is_inert(tmp_path: Path) -> None:
    """A data loader's worker cannot add to the run, nor end it or its replicas."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), FileLogger(tmp_path / "there", placement="process"))
    logger.log_metrics({"loss": 1.0}, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tee's watcher is a thread, and it is idle
        pid = os.fork()
    if pid == 0:
        warnings.simplefilter("ignore")
        logger.log_metrics({"loss": 9.0}, step=2)
        logger.finish("completed")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    logger.log_metrics({"loss": 2.0}, step=2)
    logger.finish("completed")

    assert local_losses(tmp_path / "run") == [(1, 1.0), (2, 2.0)]
    assert points(tmp_path / "there") == {"train/loss": [(1, 1.0), (2, 2.0)]}


def test_values_are_taken_at_the_call(tmp_path: Path) -> None:
    """An array that changes afterwards changes nothing, in any placement."""
    here, there = FileLogger(tmp_path / "here"), FileLogger(tmp_path / "there", placement="process")
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), here, there)
    value = np.array(1.0)
    with TrainingSession(logger) as session:
        session.train({"loss": value})
        value[...] = 99.0

    assert points(tmp_path / "here")["train/loss"] == points(tmp_path / "there")["train/loss"] == [(1, 1.0)]
    assert local_losses(tmp_path / "run") == [(1, 1.0)]
