"""PlattliLogger when its process dies, forks, or calls it from many threads.

The kill test runs ``PLATTLI_KILL_ROUNDS`` rounds, 40 unless the environment says otherwise.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loggers import PlattliLogger
from loggers.errors import LoggerFinishedError
from plattli._fs import lock_owner
from plattli.runinfo import run_info
from tests.test_loggers.plattli_runs import Points, fork, stored

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("PLATTLI_KILL_ROUNDS", "40"))


# ---- kill -9 -----------------------------------------------------------------------------------------------


def line_of(step: int, attempt: int) -> dict[str, Any]:
    """The train line of a step: it tells in which attempt it was logged. Some columns come late, or promote."""
    line: dict[str, Any] = {"loss": step + attempt / 1024, "n": step if step < 90 else step + 0.5, "attempt": attempt}
    if step % 3 == 0:
        line["third"] = -step
    if step % 50 > 40:
        line[f"new{step // 50}"] = step / 3
    return line


def log_steps(run: Path, state: Any, attempt: int, say: Callable[[str], None]) -> None:
    """Log at full speed for ever; say what has been logged, and now and then a state."""
    lgr = PlattliLogger(run, walltime=False, hotsize=7)
    step = 0
    if state is not None:
        lgr.reattach(state)
        step = max(state["step"], 0)
    say(json.dumps(lgr.logger_state()))
    while True:
        step += 1
        lgr.log_metrics(line_of(step, attempt), step=step)
        if step % 5 == 0:
            lgr.log_metrics({"attempt": attempt}, step=step, context="validate")
            lgr.log_other("note", {"attempt": attempt})
        if step % 11 == 0:  # a late point of a metric of its own
            lgr.log_metrics({"late": attempt}, step=step - 4)
        say(json.dumps(lgr.logger_state()) if step % 4 == 0 else str(step))


def points_of(step: int, attempt: int) -> Points:
    """What the lines of a step leave on disk."""
    points: Points = {f"train/{name}": {step: value} for name, value in line_of(step, attempt).items()}
    if step % 5 == 0:
        points |= {"validate/attempt": {step: attempt}, "other/note": {step: {"attempt": attempt}}}
    if step % 11 == 0:
        points["train/late"] = {step - 4: attempt}
    return points


def cut(model: Points, state: Any) -> Points:
    """What a resume from ``state`` leaves of it."""
    last = {name: state["steps"].get(name.partition("/")[0].replace("other", ""), -1) for name in model}
    return {name: {s: v for s, v in points.items() if s <= last[name]} for name, points in model.items()}


def check(found: Points, sure: Points, perhaps: list[Points]) -> None:
    """All that is sure is there, unless what may have replaced it is; nothing else is."""
    for name in {*found, *sure}:
        points, due = found.get(name, {}), sure.get(name, {})
        for step in {*points, *due}:
            options = [due.get(step), *(p[name][step] for p in perhaps if step in p.get(name, {}))]
            assert points.get(step) in options, (name, step, points.get(step), options)


def killed_after(run: Path, state: Any, attempt: int, lines: int, spin: int) -> list[str]:
    """Return everything that the process said before it was killed."""
    pid, read = fork(lambda say: log_steps(run, state, attempt, say))
    with os.fdopen(read) as pipe:
        said = [pipe.readline() for _ in range(lines)]
        for _ in range(spin):
            pass
        os.kill(pid, signal.SIGKILL)
        said += pipe.readlines()
    os.waitpid(pid, 0)
    return [line.strip() for line in said]


def test_kill_at_any_moment_loses_no_acknowledged_line(tmp_path: Path) -> None:
    """Each is there exactly once, the status is 'died', and a resume from any earlier state goes on."""
    dice = random.Random(7)
    run = tmp_path / "run"
    states: list[Any] = []
    state: Any = None
    model: Points = {}
    perhaps: list[Points] = []  # what may be there, or have replaced something: nobody was told
    total = 0
    for attempt in range(1, ROUNDS + 1):
        lines = dice.randrange(120) if dice.random() < 0.8 else 0  # 0: most likely while it resumes
        said = killed_after(run, state, attempt, lines, dice.randrange(2_000 if lines else 200_000))
        assert not [line for line in said if line.startswith("failed")], said[-1]
        before = [*perhaps, model]
        if state is not None:
            model, perhaps = cut(model, state), [cut(points, state) for points in perhaps]
        last = max(state["step"], 0) if state is not None else 0
        states = [s for s in states if s["step"] <= last] or [json.loads(line) for line in said[:1]]
        total += len(said)
        for line in said[1:]:
            told = json.loads(line)
            states += [told] if isinstance(told, dict) else []
            last = told if isinstance(told, int) else told["step"]
            for name, points in points_of(last, attempt).items():
                model[name] = model.get(name, {}) | points
                for other in perhaps:
                    other[name] = {s: v for s, v in other.get(name, {}).items() if s not in points}
        # a resume that was killed half-way has cut some metrics and not yet the others
        perhaps = [*perhaps, points_of(last + 1, attempt)] if said else before
        perhaps = [points for points in perhaps if any(points.values())]

        if any(model.values()):
            info = run_info(run)
            assert (info.status, info.owner) == ("died", None)
            check(stored(run), model, perhaps)
        if states:  # rounds cost about the same, however many there are: the run grows no longer than this
            state = dice.choice(states[-50:] if states[-1]["step"] < 1000 and dice.random() < 0.95 else states[:5])

    assert total > 20 * ROUNDS
    lgr = PlattliLogger(run, walltime=False)
    lgr.reattach(state)
    model, perhaps = cut(model, state), [cut(points, state) for points in perhaps]
    check(stored(run), model, perhaps)
    lgr.log_metrics({"loss": 0.0}, step=state["step"] + 1)
    lgr.finish("completed")
    assert run_info(run).status == "completed"
    check(stored(run), model, [*perhaps, {"train/loss": {state["step"] + 1: 0.0}}])


# ---- other ends --------------------------------------------------------------------------------------------

ENDS = """
import os, signal, sys
from loggers import PlattliLogger, TrainingSession
how, run = sys.argv[1:]
logger = PlattliLogger(run, hotsize=7)
if how == "shutdown":
    for step in range(1, 1001):
        logger.log_metrics({"loss": step / 2}, step=step)
    sys.exit(0)  # without finish
with TrainingSession(logger) as session:
    while True:
        session.train({"loss": (session.step + 1) / 2})
        if session.step == 100:
            print("ready", flush=True)
            if how == "exit":
                sys.exit(3)
            if how == "error":
                raise ValueError("of the loop")
            if how == "_exit":
                os._exit(4)
            if how == "interrupt":
                signal.raise_signal(signal.SIGINT)
            if how == "completed":
                break
"""


def test_every_end_reads_as_what_it_was(tmp_path: Path) -> None:
    """sys.exit, an exception, Ctrl-C, SIGTERM, os._exit and a shutdown without finish; only one is completed."""
    statuses = {
        "exit": "interrupted", "error": "error", "interrupt": "interrupted", "sigterm": "interrupted", "_exit": "died",
        "shutdown": "died", "completed": "completed",
    }  # fmt: skip
    processes = {
        how: subprocess.Popen(
            [sys.executable, "-W", "error", "-c", ENDS, how, tmp_path / how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for how in statuses
    }  # fmt: skip
    terminated = processes["sigterm"]
    assert terminated.stdout is not None
    assert terminated.stdout.readline() == "ready\n"
    terminated.terminate()
    errors = {how: process.communicate(timeout=240)[1] for how, process in processes.items()}

    codes = {how: process.returncode for how, process in processes.items()}
    assert codes == {
        "exit": 3, "error": 1, "interrupt": -signal.SIGINT, "sigterm": codes["sigterm"], "_exit": 4, "shutdown": 0,
        "completed": 0,
    }, errors  # fmt: skip
    assert codes["sigterm"] != 0
    for how, status in statuses.items():
        info = run_info(tmp_path / how)
        assert (info.status, info.owner) == (status, None), how
        losses = stored(tmp_path / how)["train/loss"]
        steps = 1000 if how == "shutdown" else len(losses) if how == "sigterm" else 100
        assert len(losses) >= 100
        assert losses == {step: step / 2 for step in range(1, steps + 1)}, how


# ---- fork --------------------------------------------------------------------------------------------------

FORK = """
import os, sys, time, warnings
from loggers import PlattliLogger
run = sys.argv[1]
warnings.simplefilter("ignore", DeprecationWarning)
logger = PlattliLogger(run, walltime=False, hotsize=20)
names = [f"m{i}" for i in range(60)]
step = 0

def log():
    global step
    step += 1
    logger.log_metrics(dict.fromkeys(names, step / 2), step=step)

def compacting():
    batch = logger.backend()._hot.batch
    return batch is not None and batch.is_alive()

deadline = time.monotonic() + 200
children = 0
in_flight = False
while not in_flight and time.monotonic() < deadline:
    log()
    if not compacting():
        continue
    children += 1
    pid = os.fork()
    if pid == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for extra in range(50):
                logger.log_metrics({"m0": -1.0, "of the child": 1}, step=10**6 + extra)
            logger.log_params({"of the child": 1})
            logger.log_other("of the child", 1)
            logger.finish("completed")
        assert [str(w.message) for w in caught if "forked process" in str(w.message)] == [
            str(w.message) for w in caught
        ] and len(caught) == 1, [str(w.message) for w in caught]
        assert logger.run_id() and logger.logger_state()["step"] == step
        sys.exit(0)  # the ordinary way out: exit handlers, finalizers, threads
    in_flight = compacting()  # before the fork and after it
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert in_flight, "no fork met a compaction"
for _ in range(100):
    log()
logger.finish("completed")
print(step)
"""


def test_a_fork_during_compaction(tmp_path: Path) -> None:
    """The child is inert, warns once and exits with 0; the parent goes on and loses nothing."""
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", FORK, run], capture_output=True, text=True, check=False, timeout=240, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = int(done.stdout)

    found = stored(run)
    assert found == {f"train/m{i}": {step: step / 2 for step in range(1, last + 1)} for i in range(60)}
    assert run_info(run).params == {}


def test_a_forked_child_outlives_its_parent_without_holding_the_lock(tmp_path: Path) -> None:
    """A data loader's worker that is left over keeps nobody from resuming."""
    run = tmp_path / "run"
    gate_read, gate_write = os.pipe()

    def parent(say: Callable[[str], None]) -> None:
        lgr = PlattliLogger(run)
        lgr.log_metrics({"a": 1}, step=1)
        if os.fork() == 0:  # a worker, which waits for the end of the test
            os.close(gate_write)
            say("worker is up")
            os.read(gate_read, 1)
            os._exit(0)
        say(json.dumps(lgr.logger_state()))
        os._exit(0)

    pid, read = fork(parent)
    with os.fdopen(read) as pipe:
        said = sorted([pipe.readline(), pipe.readline()])  # "worker …" before "{…"
        assert said[0] == "worker is up\n", said
        state = json.loads(said[1])
        os.waitpid(pid, 0)
        assert lock_owner(run) is None
        assert run_info(run).status == "died"
        lgr = PlattliLogger(run)
        lgr.reattach(state)
        lgr.finish("completed")
        os.close(gate_write)
        pipe.read()  # until the worker has gone
    os.close(gate_read)


# ---- threads -----------------------------------------------------------------------------------------------


def test_many_threads_one_run(tmp_path: Path) -> None:
    """Eight log, one asks for the state and finishes: what was acknowledged is there, the rest is told."""
    run = tmp_path / "run"
    lgr = PlattliLogger(run, walltime=False, hotsize=50)
    acknowledged = [0] * 8
    stopped: list[BaseException] = []
    started = threading.Barrier(9)

    def log(number: int) -> None:
        started.wait()
        try:
            for step in range(1, 100_000):
                lgr.log_metrics({f"m{number}": step * 8 + number}, step=step, context=f"c{number % 3}")
                acknowledged[number] = step
        except BaseException as error:
            stopped.append(error)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    states: list[Any] = []
    while min(acknowledged) < 60 and not stopped:
        states.append(lgr.logger_state())
    lgr.finish("completed")
    for thread in threads:
        thread.join()

    assert [type(error) for error in stopped] == [LoggerFinishedError] * 8, stopped
    assert [s["step"] for s in states] == sorted(s["step"] for s in states)
    found = stored(run)
    for number in range(8):
        points = found[f"c{number % 3}/m{number}"]
        assert points == {step: step * 8 + number for step in range(1, len(points) + 1)}
        assert len(points) == acknowledged[number] >= 60


def test_no_thread_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit on threads, or while the interpreter shuts down, rows move in the caller's thread."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lgr = PlattliLogger(tmp_path / "run", walltime=False, hotsize=3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for step in range(20):
        lgr.log_metrics({"a": step}, step=step)
    lgr.log_metrics({"a": 50}, step=5)
    lgr.finish("completed")

    assert stored(tmp_path / "run") == {"train/a": {step: 50 if step == 5 else step for step in range(20)}}


def test_a_dead_run_is_readable_wherever_it_lies(tmp_path: Path) -> None:
    """A run directory that was copied from a dead machine, lock file and all, resumes."""
    run = tmp_path / "run"
    said = killed_after(run, None, 1, 60, 0)
    states = [json.loads(line) for line in said[1:] if line.startswith("{")]
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    assert (copy / ".plattli.lock").exists()
    lgr = PlattliLogger(copy, walltime=False)
    lgr.reattach(states[-1])
    lgr.finish("completed")

    last = states[-1]["step"]
    assert stored(copy)["train/loss"] == {step: step + 1 / 1024 for step in range(1, last + 1)}


# ---- data loaders ------------------------------------------------------------------------------------------

if importlib.util.find_spec("torch") is not None:

    LOADER = """
import sys, warnings
import torch
from loggers import JSONLogger, PlattliLogger
kind, run = sys.argv[1:]
warnings.simplefilter("ignore", DeprecationWarning)
logger = PlattliLogger(run, walltime=False, hotsize=5) if kind == "plattli" else JSONLogger(run)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        if at % 8 == 0:  # a worker that logs, against all advice
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                logger.log_metrics({"loss": -1.0}, step=10**6 + at)
        return at

step = 0
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
        step += 1
        logger.log_metrics({"loss": step / 2}, step=step)
logger.finish("completed")
print(step)
"""

    @pytest.mark.parametrize("kind", ["plattli", "json"])
    def test_the_workers_of_a_data_loader(tmp_path: Path, kind: str) -> None:
        """They are forks with the logger in memory: they write nothing, and end as they should."""
        run = tmp_path / "run"
        done = subprocess.run(
            [sys.executable, "-c", LOADER, kind, run],
            capture_output=True, text=True, check=False, timeout=240, cwd=ROOT,
        )  # fmt: skip
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "32", "")

        if kind == "plattli":
            losses = stored(run)["train/loss"]
        else:
            rows = map(json.loads, run.read_text().splitlines())
            losses = {row["step"]: row["loss"] for row in rows if row["type"] == "metrics"}
        assert losses == {step: step / 2 for step in range(1, 33)}
