"""adapters.drivers.koochak: a loop that emits Koochak's events, killed, resumed, interrupted, on several ranks."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from adapters import TeeLogger, TensorBoardLogger
from adapters.drivers.koochak import make_logger_hooks
from loggers import JSONLogger, PlattliLogger
from loggers.errors import LoggerError, MetricValueError, MissingVerbError, RecordError, RunExistsError, UnwrittenError
from loggers.testing import RecordingLogger
from plattli import Reader
from tests.faults import failing_disk
from tests.killing import run_killed
from tests.test_adapters.koochak_loop import NumpyTask, TorchTask, config, emit, training_loop
from tests.test_adapters.tensorboard_files import Files
from tests.test_loggers.plattli_runs import about, stored

ROOT = Path(__file__).parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None
TASKS: list[type] = [NumpyTask, *([TorchTask] if HAS_TORCH else [])]
#: All moments at which a process can be killed are tried with this set; some of them otherwise.
EVERY_KILL = bool(os.environ.get("PLATTLI_KILL_ROUNDS"))
#: Steps from taking a checkpoint until it is on the disk, and until the loop says so.
LAGS = {"in the loop": (0, 0), "in the background": (1, 3), "late": (4, 4)}


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Leave no session behind that goes on to watch for SIGTERM: a traceback may hold hooks."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) != before:
        gc.collect()

    assert signal.getsignal(signal.SIGTERM) == before


def curves(folder: Path, *, announced: bool = True) -> dict[str, dict[int, Any]]:
    """Return what the run holds but for the times; of announced checkpoints their steps."""
    found = {name: dict(points) for name, points in stored(folder / "run").items() if not name.endswith("/walltime")}
    checkpoints = found.pop("other/checkpoint")
    if announced:
        found["checkpoints"] = {step: value["step"] for step, value in checkpoints.items()}
    return found


def in_a_child(program: Callable[[], None]) -> int:
    """Run it in a forked process; return its exit code, negative for a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads that are idle
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            program()
            code = 0
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(folder: Path, lags: tuple[int, int] = (0, 0), kill: tuple[str, int] | None = None, **more: Any) -> None:
    """Train in ``folder``; die by ``kill -9`` at a moment of a step."""

    def at(moment: str, step: int) -> None:
        if (moment, step) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    task = more.pop("task", NumpyTask)
    hooks = make_logger_hooks(PlattliLogger(folder / "run", hotsize=4))
    training_loop(hooks, config(folder, **more), task=task(), at=at, commit_after=lags[0], announce_after=lags[1])


def moments(folder: Path, lags: tuple[int, int]) -> list[tuple[str, int]]:
    """Return every moment of a training at which it may die."""
    found: list[tuple[str, int]] = []
    hooks = make_logger_hooks(None)
    training_loop(
        hooks, config(folder), at=lambda *moment: found.append(moment), commit_after=lags[0], announce_after=lags[1]
    )
    return found


# ---- killed and resumed -------------------------------------------------------------------------------


@pytest.mark.parametrize("lags", LAGS.values(), ids=LAGS)
def test_a_killed_training_has_the_same_curves(tmp_path: Path, lags: tuple[int, int]) -> None:
    """Wherever ``kill -9`` meets it, also between a checkpoint and its announcement."""
    train(tmp_path / "through", lags)
    expected = curves(tmp_path / "through", announced=lags == (0, 0))
    points = moments(tmp_path / "moments", lags)
    if not EVERY_KILL:
        points = points[3::8]

    for number, point in enumerate(points):
        folder = tmp_path / str(number)
        assert in_a_child(lambda f=folder, p=point: train(f, lags, p)) == -signal.SIGKILL  # type: ignore[misc]
        train(folder, lags)
        assert curves(folder, announced=lags == (0, 0)) == expected, point
        assert about(folder / "run")["status"] == "completed"


@pytest.mark.parametrize("task", TASKS)
def test_a_training_killed_again_and_again_has_the_same_curves(tmp_path: Path, task: type) -> None:
    """Each time right after a checkpoint was committed in the background, before anybody heard of it."""
    lags = (1, 2)
    if task is TorchTask:
        TorchTask()  # imports a lot: once, not in every child
    # PyTorch's threads do not outlive a fork: all of it in children
    assert in_a_child(lambda: train(tmp_path / "through", lags, task=task)) == 0
    for kill in (("committed", 4), ("committed", 12), ("logged", 12), ("committed the last", 23), ("announced", 21)):
        code = in_a_child(lambda kill=kill: train(tmp_path / "killed", lags, kill, task=task))  # type: ignore[misc]
        assert code in (-signal.SIGKILL, 0)
    assert in_a_child(lambda: train(tmp_path / "killed", lags, task=task)) == 0

    assert curves(tmp_path / "killed", announced=False) == curves(tmp_path / "through", announced=False)


def test_a_training_killed_between_two_file_operations_has_the_same_curves(tmp_path: Path) -> None:
    """Also in the middle of a write, of the run's files, the records' and the checkpoints'."""
    more = {"max_steps": 9, "ckpt_every": 3, "eval_every": 2}
    train(tmp_path / "through", (1, 2), **more)
    expected = curves(tmp_path / "through", announced=False)
    at, done = 1, False
    while not done:
        folder = tmp_path / f"killed at {at}"
        _, done = run_killed(lambda _, folder=folder: train(folder, (1, 2), **more), at)  # type: ignore[misc]
        train(folder, (1, 2), **more)
        assert curves(folder, announced=False) == expected, at
        at += 1 if EVERY_KILL else 17

    assert at > 40


@pytest.mark.filterwarnings("ignore:TensorBoardLogger. 1 value of the validate line")
def test_a_replica_goes_with_it(tmp_path: Path) -> None:
    """The sidecar holds the states of all that a tee feeds."""

    def run(kill: tuple[str, int] | None) -> None:
        logger = TeeLogger(PlattliLogger(tmp_path / "run"), TensorBoardLogger(tmp_path / "board"))

        def at(*moment: object) -> None:
            if moment == kill:
                os.kill(os.getpid(), signal.SIGKILL)

        training_loop(make_logger_hooks(logger), config(tmp_path), at=at, commit_after=1, announce_after=2)

    assert in_a_child(lambda: run(("committed", 12))) == -signal.SIGKILL
    run(None)
    train(tmp_path / "through", (1, 2))
    expected = curves(tmp_path / "through", announced=False)
    board = Files(tmp_path / "board")

    for name in ("train/loss", "train/norm", "validate/loss"):
        assert board.scalars(name) == [(step, float(np.float32(value))) for step, value in expected[name].items()]


def test_a_longer_training_goes_on_with_a_finished_run(tmp_path: Path) -> None:
    """From the checkpoint at its end; and one that has nothing left to do is completed as well."""
    train(tmp_path / "run once")
    expected = curves(tmp_path / "run once", announced=False)
    train(tmp_path / "twice", max_steps=14)
    train(tmp_path / "twice")
    train(tmp_path / "twice")

    assert curves(tmp_path / "twice", announced=False) == expected
    assert about(tmp_path / "twice" / "run")["status"] == "completed"


def test_a_record_is_of_the_step_at_which_its_checkpoint_was_taken(tmp_path: Path) -> None:
    """However late it is announced, and whatever others log to the logger meanwhile."""
    logger = RecordingLogger()
    hooks = make_logger_hooks(logger, records=tmp_path)
    ctx: dict[str, Any] = {"rank": 0, "train_cfg": {"max_steps": 9}}
    emit(hooks, "on_train_start", ctx)
    lengths = []
    for step in range(6):
        ctx["step"] = step
        emit(hooks, "on_log", {"step": step, "loss": 1.0 / (1 + step)}, ctx)
        emit(hooks, "on_step_end", {"step": step}, ctx)
        logger.log_confusion([[step]], ["a"], step=step)  # a hook behind ours
        lengths.append(len(logger.calls))
    found = []
    for taken in (1, 4, 5):
        path = tmp_path / f"step{taken}.pt"
        path.touch()
        emit(hooks, "on_checkpoint", str(path), {"step": taken, "next_step": taken + 1}, ctx)
        found.append(json.loads((tmp_path / f"step{taken}.pt.logger.json").read_text()))

    assert [record["logger"]["state"]["calls"] for record in found] == [lengths[1], lengths[4], lengths[5] + 2]
    assert [record["next_step"] for record in found] == [2, 5, 6]


def test_sidecars_go_with_their_checkpoints(tmp_path: Path) -> None:
    """One stands beside each checkpoint that is left, and no temporary file is."""
    train(tmp_path)
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}

    names = ("step000000023.pt", "step000000024.pt")
    assert left == {name + suffix for name in names for suffix in ("", ".ready.json", ".logger.json")}
    assert len((tmp_path / "logger-records.jsonl").read_text().splitlines()) == 1


def test_records_of_a_future_that_was_cut_off_are_gone(tmp_path: Path) -> None:
    """Who goes back to an older checkpoint has no use for what belongs to the newer one."""
    train(tmp_path, keep_last_k=9, max_steps=12)
    for number in (11, 12):
        (tmp_path / "checkpoints" / f"step{number:09d}.pt.ready.json").unlink()
    in_a_child(lambda: train(tmp_path, keep_last_k=9, kill=("stepped", 8)))

    left = sorted((tmp_path / "checkpoints").glob("*.logger.json"))
    assert [path.name[:13] for path in left] == ["step000000003", "step000000007"]


# ---- resumes that cannot be ---------------------------------------------------------------------------


def test_a_checkpoint_without_a_record_begins_a_run(tmp_path: Path) -> None:
    """It is said, and there are lines from its step on."""
    training_loop({}, config(tmp_path, max_steps=8))
    with pytest.warns(RuntimeWarning, match=r"no logger record beside .*step000000008\.pt"):
        train(tmp_path)

    assert min(curves(tmp_path)["train/loss"]) == 8


def test_an_attempt_before_the_first_checkpoint_is_begun_again(tmp_path: Path) -> None:
    """As the same run, also if it failed by itself; a retry of a completed run without checkpoints is refused."""

    class Broken(NumpyTask):
        def step(self, step: int) -> dict[str, Any]:
            if step == 5:
                raise FloatingPointError("diverged")
            return super().step(step)

    ids = set()
    for task in (Broken, Broken, NumpyTask):
        with contextlib.suppress(FloatingPointError):
            train(tmp_path, task=task, ckpt_every=99, max_steps=12)
        ids.add(about(tmp_path / "run")["id"])
    for path in (tmp_path / "checkpoints").glob("*.ready.json"):
        path.unlink()
    found = curves(tmp_path)
    with pytest.raises(RunExistsError):
        train(tmp_path, ckpt_every=99)

    assert len(ids) == 1
    assert curves(tmp_path) == found
    assert list(found["train/loss"]) == [0, 2, 4, 6, 8, 10]


def test_a_run_that_is_there_is_not_touched(tmp_path: Path) -> None:
    """No checkpoint, but a run, or a checkpoint of other hooks: training ends with the ways on."""
    train(tmp_path)
    before = (tmp_path / "run" / "metrics.plattli").read_bytes()
    records = (tmp_path / "logger-records.jsonl").read_bytes()
    for path in (tmp_path / "checkpoints").glob("*.ready.json"):
        path.unlink()
    with pytest.raises(RunExistsError, match="if_exists='append'") as raised:
        train(tmp_path)

    assert not hasattr(raised.value, "__notes__")
    assert (tmp_path / "run" / "metrics.plattli").read_bytes() == before
    assert (tmp_path / "logger-records.jsonl").read_bytes() == records


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_sidecar_is_named(tmp_path: Path, text: str) -> None:
    """Nothing is logged to a run that may be the wrong one."""
    train(tmp_path, max_steps=12)
    before = (tmp_path / "run" / "metrics.plattli").read_bytes()
    (tmp_path / "checkpoints" / "step000000012.pt.logger.json").write_text(text)
    with pytest.raises(RecordError, match=r"step000000012\.pt\.logger\.json is no logger record"):
        train(tmp_path)

    assert (tmp_path / "run" / "metrics.plattli").read_bytes() == before


def test_another_logger_is_refused(tmp_path: Path) -> None:
    """Both types are named; where errors are swallowed, nothing is logged either."""
    train(tmp_path, max_steps=12)
    for fail_closed in (True, False):
        logger = RecordingLogger()
        hooks = make_logger_hooks(logger, fail_closed=fail_closed)
        if fail_closed:
            with pytest.raises(RecordError, match=r"PlattliLogger.*RecordingLogger"):
                training_loop(hooks, config(tmp_path))
        else:
            training_loop(hooks, config(tmp_path))
        assert logger.calls == []


def test_a_failed_restore_touches_no_run(tmp_path: Path) -> None:
    """Koochak has chosen a checkpoint, and cannot read it: the run stays as it was."""

    class Broken(NumpyTask):
        def load(self, data: bytes) -> None:
            raise OSError("the store is away")

    train(tmp_path, max_steps=12)
    hooks = make_logger_hooks(PlattliLogger(tmp_path / "run", if_exists="replace"))
    with pytest.raises(OSError, match="the store is away"):
        training_loop(hooks, config(tmp_path), task=Broken())

    assert about(tmp_path / "run")["status"] == "completed"
    assert len(curves(tmp_path)["train/loss"]) == 6


def test_two_loggers_have_hooks_in_one_training(tmp_path: Path) -> None:
    """One without state needs no records, two with some need two names; each is put back to where it was."""

    def both(second: str) -> dict[str, list[Any]]:
        all_hooks = [
            make_logger_hooks(PlattliLogger(tmp_path / "run")),
            make_logger_hooks(PlattliLogger(tmp_path / "second" / "run"), name=second),
            make_logger_hooks(JSONLogger(tmp_path / "lines.jsonl")),
        ]
        return {event: [hooks[event][0] for hooks in all_hooks] for event in all_hooks[0]}

    with pytest.raises(LoggerError, match=r"two loggers would keep their records in .*name="):
        training_loop(both("logger"), config(tmp_path))
    training_loop(both("other"), config(tmp_path, max_steps=10))
    training_loop(both("other"), config(tmp_path))

    assert curves(tmp_path) == curves(tmp_path / "second")
    assert len(list((tmp_path / "checkpoints").glob("*.logger.json"))) == 2
    assert len(list((tmp_path / "checkpoints").glob("*.other.json"))) == 2


def test_a_checkpoint_that_nobody_announced_gets_its_sidecar_when_it_is_resumed(tmp_path: Path) -> None:
    """So that it can be resumed again, when the records by step have gone on."""
    assert in_a_child(lambda: train(tmp_path, (1, 3), ("committed", 8))) == -signal.SIGKILL
    sidecar = tmp_path / "checkpoints" / "step000000007.pt.logger.json"
    assert not sidecar.exists()
    assert in_a_child(lambda: train(tmp_path, kill=("stepped", 8))) == -signal.SIGKILL
    (tmp_path / "logger-records.jsonl").unlink()
    train(tmp_path)
    train(tmp_path / "through")

    assert curves(tmp_path, announced=False) == curves(tmp_path / "through", announced=False)


def begun(logger: Any, folder: Path, steps: int) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return hooks that have been through some steps, and their ctx."""
    hooks = make_logger_hooks(logger, records=folder)
    ctx: dict[str, Any] = {"rank": 0, "train_cfg": {}}
    emit(hooks, "on_train_start", ctx)
    for step in range(steps):
        ctx["step"] = step
        emit(hooks, "on_log", {"step": step, "loss": 1.0 * step}, ctx)
    return hooks, ctx


def test_a_checkpoint_need_not_be_a_file_of_ours(tmp_path: Path) -> None:
    """In an object store there is no place for a sidecar; the records by step are kept."""
    first = RecordingLogger()
    hooks, ctx = begun(first, tmp_path, 5)
    with pytest.warns(RuntimeWarning, match=r"store://a\.pt is no local file"):
        emit(hooks, "on_checkpoint", "store://a.pt", {"step": 2, "next_step": 3}, ctx)
    again = RecordingLogger(first.calls)
    hooks = make_logger_hooks(again, records=tmp_path)
    emit(hooks, "on_train_start", {"rank": 0, "train_cfg": {}})
    emit(hooks, "on_resume_checkpoint", "store://a.pt", {"step": 2, "next_step": 3}, {**ctx, "step": 3})

    assert again.stored().metrics["train/loss"] == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert again.stored().other == {"checkpoint": {"path": "store://a.pt", "step": 2}}


def test_a_sidecar_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    """It is said, and the records by step have what it lacks."""
    first = RecordingLogger()
    hooks, ctx = begun(first, tmp_path, 5)
    (tmp_path / "a.pt").touch()
    with (
        failing_disk(),
        pytest.warns(RuntimeWarning, match=r"a\.pt has no logger record beside it.*records\.jsonl has"),
    ):
        emit(hooks, "on_checkpoint", str(tmp_path / "a.pt"), {"step": 2, "next_step": 3}, ctx)
    again = RecordingLogger(first.calls)
    hooks = make_logger_hooks(again, records=tmp_path)
    emit(hooks, "on_resume_checkpoint", str(tmp_path / "a.pt"), {"step": 2, "next_step": 3}, {**ctx, "step": 3})

    assert again.stored().metrics["train/loss"] == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert (tmp_path / "a.pt.logger.json").exists()


def test_records_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    """Sidecars have to do, which are written at checkpoints only."""
    hooks, ctx = begun(RecordingLogger(), tmp_path, 2)
    with failing_disk(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in (2, 3):
            emit(hooks, "on_log", {"loss": 1.0}, {**ctx, "step": step})

    assert ["records.jsonl cannot be written" in str(warning.message) for warning in said] == [True]


def test_a_record_that_is_not_kept_any_more_is_said(tmp_path: Path) -> None:
    """A checkpoint that was announced later than a bounded memory goes back."""
    hooks, ctx = begun(RecordingLogger(), tmp_path, 3)
    book = hooks["on_log"][0]._method.__self__._book
    book.settle(2)
    (tmp_path / "a.pt").touch()
    with pytest.warns(RuntimeWarning, match=r"record at step 0 is not kept any more; .*a\.pt goes without"):
        emit(hooks, "on_checkpoint", str(tmp_path / "a.pt"), {"step": 0, "next_step": 1}, ctx)

    assert not (tmp_path / "a.pt.logger.json").exists()


def test_an_error_in_training_outlives_one_of_the_logger(tmp_path: Path) -> None:
    """It goes on, with a note about the other: of a run that could not begin, or that could not end."""
    train(tmp_path)
    error = RuntimeError("no memory")
    emit(make_logger_hooks(PlattliLogger(tmp_path / "run")), "on_exception", error, {"rank": 0, "train_cfg": {}})
    assert "the logger could not begin its run: there is a run already" in error.__notes__[0]

    class Stuck(RecordingLogger):
        def finish(self, status: str) -> None:
            raise UnwrittenError("the disk takes nothing")

    error = RuntimeError("no memory")
    hooks, ctx = begun(Stuck(), tmp_path, 2)
    emit(hooks, "on_exception", error, ctx)
    assert "the disk takes nothing" in error.__notes__[0]
    hooks, ctx = begun(Stuck(), tmp_path, 2)
    with pytest.warns(RuntimeWarning, match="the disk takes nothing"):
        emit(hooks, "on_train_end", {**ctx, "evacuation_requested": True})


# ---- how a training ends ------------------------------------------------------------------------------


def test_an_error_is_the_status(tmp_path: Path) -> None:
    """Of a later step, or of the very first: the params are there."""

    class Broken(NumpyTask):
        def step(self, step: int) -> dict[str, Any]:
            if step == self.at:
                raise FloatingPointError("diverged")
            return super().step(step)

    for Broken.at in (0, 5):
        folder = tmp_path / str(Broken.at)
        hooks = make_logger_hooks(logger := RecordingLogger(), records=folder)
        with pytest.raises(FloatingPointError):
            training_loop(hooks, config(folder), task=Broken())
        assert logger.verbs[0] == "log_params"
        assert logger.stored().status == "error"


def test_an_error_in_a_first_step_without_auto_resume_is_noted() -> None:
    """There is no checkpoint to wait for."""
    logger = RecordingLogger()
    hooks = make_logger_hooks(logger)
    ctx = {"rank": 0, "train_cfg": {"max_steps": 3}, "resume_mode": "none"}
    emit(hooks, "on_train_start", ctx)
    emit(hooks, "on_exception", RuntimeError("no memory"), ctx)

    assert logger.stored().params == {"max_steps": 3}
    assert logger.stored().status == "error"


def test_a_training_ends_once() -> None:
    """Also if its end is what failed, and Koochak tells of that."""

    class Stuck(RecordingLogger):
        def finish(self, status: str) -> None:
            super().finish(status)
            raise UnwrittenError("the disk takes nothing")

    logger = Stuck()
    hooks = make_logger_hooks(logger)
    ctx = {"rank": 0, "step": 0, "train_cfg": {}}
    emit(hooks, "on_log", {"loss": 1.0}, ctx)
    with pytest.raises(UnwrittenError) as raised:
        emit(hooks, "on_train_end", ctx)
    emit(hooks, "on_exception", raised.value, ctx)
    emit(hooks, "on_train_end", ctx)

    assert logger.verbs == ["log_params", "log_metrics", "finish"]
    assert logger.stored().status == "completed"


def test_an_evacuated_run_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    """Its terminal checkpoint is announced once."""
    with pytest.raises(SystemExit) as left:
        training_loop(
            make_logger_hooks(PlattliLogger(tmp_path / "run")),
            config(tmp_path),
            at=lambda moment, step: (moment, step) == ("done", 9),
        )
    assert left.value.code == 75
    assert about(tmp_path / "run")["status"] == "interrupted"
    assert curves(tmp_path)["checkpoints"] == {2: 3, 6: 7, 9: 10}
    train(tmp_path)
    train(tmp_path / "through")

    assert curves(tmp_path, announced=False) == curves(tmp_path / "through", announced=False)


@pytest.mark.parametrize(("how", "code"), [("ctrl-c", -signal.SIGINT), ("exit", 3), ("sigterm", 143)])
def test_what_koochak_does_not_tell_of_is_an_interruption(tmp_path: Path, how: str, code: int) -> None:
    """KeyboardInterrupt, sys.exit() and SIGTERM: the process's end says so, and the run can go on."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_adapters.koochak_loop", str(tmp_path), how],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert about(tmp_path / "run")["status"] == "interrupted"
    assert max(curves(tmp_path)["train/loss"]) == 8
    train(tmp_path)
    train(tmp_path / "through")

    assert curves(tmp_path) == curves(tmp_path / "through")


def test_a_process_that_lives_on_ends_an_interrupted_run(tmp_path: Path) -> None:
    """With the next training of the same hooks, or when they are gone."""

    def at(moment: str, step: int) -> None:
        if (moment, step) == ("done", 9):
            raise KeyboardInterrupt

    first = RecordingLogger()
    hooks = make_logger_hooks(first, records=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        training_loop(hooks, config(tmp_path / "first"), at=at)
    emit(hooks, "on_train_start", {"rank": 0, "train_cfg": {}})
    assert first.stored().status == "interrupted"

    second = RecordingLogger()
    hooks = make_logger_hooks(second, records=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        training_loop(hooks, config(tmp_path / "second"), at=at)
    assert second.stored().status is None
    del hooks
    gc.collect()

    assert second.stored().status == "interrupted"


def test_what_the_primary_loses_ends_training() -> None:
    """Koochak swallows errors of hooks; not of these. Those of a tracker it may."""

    class Full(RecordingLogger):
        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            raise UnwrittenError("the disk takes nothing")

    ctx = {"rank": 0, "step": 0, "train_cfg": {}}
    with pytest.raises(UnwrittenError):
        emit(make_logger_hooks(Full()), "on_log", {"loss": 1.0}, ctx)
    emit(make_logger_hooks(Full(), fail_closed=False), "on_log", {"loss": 1.0}, ctx)

    assert all(callback._koochak_fail_closed for (callback,) in make_logger_hooks(Full()).values())


def test_a_logger_that_lacks_a_verb_is_found_before_the_first_step() -> None:
    """At the one event whose errors always escape."""
    with pytest.raises(MissingVerbError, match="log_confusion"):
        emit(make_logger_hooks(Namespace(), fail_closed=False), "on_train_start", {"rank": 0, "train_cfg": {}})


# ---- lines and params -----------------------------------------------------------------------------------


def test_lines_hold_whatever_a_step_function_returns() -> None:
    """But for Koochak's own step; what cannot be logged is left out, and said once."""
    logger = RecordingLogger()
    hooks = make_logger_hooks(logger)
    extras = {
        "acc": np.float32(0.5), "seen": np.int64(7), "done": np.array([True]), "why": "warm-up", "sizes": [1, 2],
        "logits": np.zeros(3), "model": object(), "bad": float("nan"),
    }  # fmt: skip
    ctx: dict[str, Any] = {"rank": 0, "train_cfg": {}}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in (0, 1):
            ctx["step"] = step
            emit(hooks, "on_log", {"step": step, "loss": 1.0, "lr": 0.1, "step_time_s": 0.25, **extras}, ctx)
            emit(hooks, "on_eval_end", {"step": step, "loss": 2.0}, ctx)
    kept = {"loss": 1.0, "lr": 0.1, "step_time_s": 0.25, "acc": 0.5, "seen": 7, "done": 1, "why": "warm-up"}

    lines = [call for call in logger.calls if call.verb == "log_metrics"]
    assert [call.args[0] for call in lines] == [{**kept, "sizes": [1, 2]}, {"loss": 2.0}] * 2
    assert [(call.kwargs["step"], call.kwargs["epoch"]) for call in lines] == [(0, None)] * 2 + [(1, None)] * 2
    assert [call.kwargs["context"] for call in lines] == ["train", "validate"] * 2
    words = [str(warning.message).split()[0] for warning in said]
    assert sorted(words) == ["logits", "model", "train/bad"]


def test_an_error_about_no_value_is_one() -> None:
    """Only values that cannot be logged are left out."""

    class Odd(RecordingLogger):
        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            raise MetricValueError("not like this")

    with pytest.raises(MetricValueError):
        emit(make_logger_hooks(Odd()), "on_log", {"loss": 1.0}, {"rank": 0, "step": 0, "train_cfg": {}})


def test_the_epoch_may_be_in_the_logs(tmp_path: Path) -> None:
    """An integer under the key that was named is the epoch of this line and the next; and of a resumed run."""
    logger = RecordingLogger()
    hooks = make_logger_hooks(logger, epoch_key="epoch", records=tmp_path)
    ctx: dict[str, Any] = {"rank": 0, "train_cfg": {}}
    for step, logs in enumerate(({"loss": 1.0}, {"loss": 2.0, "epoch": 3}, {"loss": 3.0})):
        ctx["step"] = step
        emit(hooks, "on_log", {"step": step, **logs}, ctx)
    (tmp_path / "a.pt").touch()
    ckpt = {"step": 2, "next_step": 3}
    emit(hooks, "on_checkpoint", str(tmp_path / "a.pt"), ckpt, ctx)
    again = RecordingLogger(logger.calls)
    hooks = make_logger_hooks(again, epoch_key="epoch", records=tmp_path)
    emit(hooks, "on_train_start", ctx)
    emit(hooks, "on_resume_checkpoint", str(tmp_path / "a.pt"), ckpt, {**ctx, "step": 3})
    emit(hooks, "on_log", {"loss": 4.0}, {**ctx, "step": 3})
    with pytest.warns(RuntimeWarning, match="stays a metric"):
        emit(hooks, "on_log", {"loss": 5.0, "epoch": 0.5}, {**ctx, "step": 4})

    lines = [call for call in again.calls if call.verb == "log_metrics"]
    assert [call.kwargs["epoch"] for call in lines] == [None, 3, 3, 3, 3]
    assert lines[-1].args[0] == {"loss": 5.0, "epoch": 0.5}


@dataclass
class Optim:
    """A section of a config."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    more: dict[str, Any] = field(default_factory=lambda: {"eps": 1e-8})


class TrainConfig:
    """An object with attributes, as ``train_cfg`` may be one."""

    max_steps = 7
    log_every = 1

    @property
    def broken(self) -> int:
        raise KeyError("interpolation")

    def method(self) -> None:
        """Nothing that a config holds."""


@pytest.mark.parametrize(
    ("ctx", "params"),
    [
        ({"train_cfg": {"max_steps": 7, "ema": {"decay": 0.9}}}, {"max_steps": 7, "ema.decay": 0.9}),
        (
            {"train_cfg": TrainConfig()},
            {"max_steps": 7, "log_every": 1, "broken": "<KeyError: 'interpolation'>"},
        ),
        (
            {"config_json": {"optim": Optim()}, "config": {"not": "this"}, "train_cfg": {"max_steps": 7}},
            {"optim.lr": 0.1, "optim.betas": [0.9, 0.99], "optim.more.eps": 1e-8, "train.max_steps": 7},
        ),
        ({"config": MappingProxyType({"train": Namespace(a=1)}), "train_cfg": {"a": 1}}, {"train.a": 1}),
        ({"config_json": {"a": {}, "b": [{"c": 1}]}, "train_cfg": None}, {"a": {}, "b": [{"c": 1}]}),
    ],
)
def test_params_are_the_config(ctx: dict[str, Any], params: dict[str, Any]) -> None:
    """Whatever it is made of, under flat keys; more of them win; tags come with them."""
    logger = RecordingLogger()
    hooks = make_logger_hooks(logger, params={"seed": 1}, tags=["baseline"])
    emit(hooks, "on_train_start", {"rank": 0, **ctx})
    assert logger.calls == []  # a resume may follow
    emit(hooks, "on_step_end", {}, {"rank": 0, "step": 0, **ctx})

    assert logger.stored().params == {**params, "seed": 1}
    assert logger.stored().tags == {"baseline": True}


def test_a_logger_without_a_path_gets_koochaks(tmp_path: Path) -> None:
    """JSON Lines go to the output directory; there is nothing to reattach."""
    training_loop(make_logger_hooks(JSONLogger()), config(tmp_path, max_steps=8))
    training_loop(make_logger_hooks(JSONLogger()), config(tmp_path, max_steps=12))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    steps = [row["step"] for row in rows if row["type"] == "metrics" and row["context"] == "train"]
    assert steps == list(range(0, 12, 2))


# ---- several ranks --------------------------------------------------------------------------------------


def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    """Each process has hooks, and that of rank 0 logs."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.test_adapters.koochak_loop", str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in (1, 0)
    ]
    assert [process.wait() for process in ranks] == [0, 0]

    _is_one_run(tmp_path)


if HAS_TORCH:

    def test_torchrun_is_one_run(tmp_path: Path) -> None:
        """Two processes that wait for each other after every step."""
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
             "-m", "tests.test_adapters.koochak_loop", str(tmp_path), "gloo"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

        _is_one_run(tmp_path)


def _is_one_run(folder: Path) -> None:
    train(folder / "alone")
    with Reader(folder / "run") as reader:
        assert reader.rows("train/loss") == 12
    assert curves(folder) == curves(folder / "alone")
    assert [path.name for path in folder.glob("*.jsonl")] == ["logger-records.jsonl"]
