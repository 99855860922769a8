"""loggers.ranks: one logger among several processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import loggers
from loggers import InertLogger, JSONLogger, PlattliLogger, TrainingSession, rank, rank_zero
from loggers.errors import RankError
from plattli.runinfo import run_info
from tests.test_loggers.plattli_runs import stored

ROOT = Path(__file__).parents[2]

VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Forget whatever launched the tests."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_a_process_by_itself_is_rank_zero():
    """Nothing launched it."""
    assert rank() == 0


@pytest.mark.parametrize("variable", VARIABLES)
def test_launchers_say_the_rank(monkeypatch, variable):
    """Each in a variable of its own."""
    monkeypatch.setenv(variable, "3")

    assert rank() == 3


def test_torchrun_goes_before_slurm(monkeypatch):
    """One Slurm task may launch several processes; an empty variable says nothing."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("RANK", "5")
    assert rank() == 5

    monkeypatch.setenv("RANK", "")
    assert rank() == 1


@pytest.mark.parametrize("value", ["-1", "one", "0.5", " "])
def test_nonsense_is_refused(monkeypatch, value):
    """Two processes that both take themselves for the first would write the same run."""
    monkeypatch.setenv("RANK", value)
    with pytest.raises(RankError, match=rf"^environment variable RANK is '{value}': set it to a rank, or unset it$"):
        rank()


def test_only_rank_zero_gets_the_logger(monkeypatch):
    """Elsewhere there is one that does nothing."""
    lgr = JSONLogger("never-written.jsonl")
    assert rank_zero(lgr) is lgr

    monkeypatch.setenv("RANK", "1")
    assert isinstance(rank_zero(lgr), InertLogger)


def test_the_inert_logger_takes_every_verb():
    """As a driver calls them, and with a record of another type of logger."""
    lgr = InertLogger()
    loggers.check_logger(lgr)
    with TrainingSession(lgr, params={"lr": 0.1}, tags="a") as session:
        session.resume({"step": 3, "epoch": 2, "logger": RECORD, "version": 1})
        session.train({"loss": 0.5})
        lgr.log_other("a", 1)
        lgr.log_confusion([[1]], ["a"])
        assert session.checkpoint_record() == {"step": 4, "epoch": 2, "logger": None, "version": 1}

    assert (lgr.run_id(), lgr.run_url(), lgr.logger_state()) == (None, None, None)


RECORD = {"logger": "loggers.plattli_logger.PlattliLogger", "state": {"run_id": "a"}, "version": 1}


# ---- real processes -------------------------------------------------------------------------------------

#: What torchrun starts: the same script on every rank, with these variables.
SCRIPT = """
import json, os, sys, warnings
from pathlib import Path
from adapters import TeeLogger
from loggers import JSONLogger, PlattliLogger, TrainingSession, rank, rank_zero
run, record, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
warnings.simplefilter("error")
assert rank() == int(os.environ["RANK"])
mine = run if rank() == 0 else run.with_name(f"rank{rank()}")
logger = rank_zero(TeeLogger(PlattliLogger(mine), JSONLogger(mine / "replica.jsonl")))
with TrainingSession(logger, params={"ranks": int(os.environ["WORLD_SIZE"])}) as session:
    if record.exists():
        session.resume(json.loads(record.read_text()))
    for _ in range(steps):
        session.train({"loss": (session.step + 1) / 2})
    session.stop("early_stop" if session.step < 40 else "completed")
    logger.log_other("rank", rank())
    if rank() == 0:
        record.with_name("new").write_text(json.dumps(session.checkpoint_record()))
print(session.step)
"""


def launch(arguments, ranks, **more):
    """Start a script on several ranks with the environment that torchrun gives them; return the processes."""
    common = {
        "WORLD_SIZE": str(len(ranks)), "LOCAL_WORLD_SIZE": str(len(ranks)), "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", **more,
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in ranks
    ]  # fmt: skip


def ends(processes):
    """Return what each process said, which must have ended well."""
    said = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return [out.strip() for out, _ in said]


def check_run(run, steps):
    assert stored(run)["train/loss"] == {step: step / 2 for step in range(1, steps + 1)}
    assert set(stored(run)["other/rank"].values()) == {0}
    assert run_info(run).params == {"ranks": 2}
    assert [path.name for path in run.parent.iterdir() if path.name.startswith("rank")] == []


def test_ranks_of_one_launch(tmp_path):
    """Only rank 0 writes, the others touch no disk; a checkpoint of rank 0 resumes on all of them."""
    run, record = tmp_path / "run", tmp_path / "record"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {"PYTHONPATH": str(ROOT)}
    assert ends(launch([script, run, record, 20], [0, 1], **environment)) == ["20", "20"]
    check_run(run, 20)
    (tmp_path / "new").rename(record)
    assert ends(launch([script, run, record, 20], [0, 1], **environment)) == ["40", "40"]

    check_run(run, 40)
    assert run_info(run).status == "completed"


if importlib.util.find_spec("torch") is not None:

    def test_torchrun(tmp_path):
        """The same by the real launcher."""
        run, record = tmp_path / "run", tmp_path / "record"
        script = tmp_path / "train.py"
        script.write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
             script, run, record, "40"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["40", "40"]
        check_run(run, 40)


CONTENDER = """
import sys
from loggers import JSONLogger, PlattliLogger
from adapters import TeeLogger
logger = PlattliLogger(sys.argv[1], if_exists="append")
if sys.argv[2] == "tee":
    logger = TeeLogger(logger)
try:
    for step in range(1, 101):
        logger.log_metrics({"loss": step / 2}, step=step)
        if step == 1:
            print("logs", flush=True)
    sys.stdin.readline()
    logger.finish("completed")
except OSError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(("second", "tee"), [(0, "tee"), (3, "alone")])
def test_two_that_take_themselves_for_the_writer(tmp_path, second, tee):
    """The second is refused by the lock, told who writes and what to do, and leaves the first one's run alone."""
    run = tmp_path / "run"
    program = ["-c", CONTENDER, run, tee]
    (first,) = launch(program, [0])
    assert first.stdout.readline() == "logs\n"
    (said,) = ends(launch(program, [second]))
    assert said.startswith("RunLockedError: ")
    assert f"is being written by process {first.pid}" in said
    hint = f"RANK={second}: of several ranks one writes a run, so wrap the logger as rank_zero(logger), or give each"
    assert (hint in said) == (second != 0)
    first.communicate("\n", timeout=240)

    assert first.returncode == 0
    assert stored(run)["train/loss"] == {step: step / 2 for step in range(1, 101)}
    assert run_info(run).status == "completed"


def log_in_a_child(lgr, child_is_inert):
    """Run in a process that was spawned with the logger among its arguments."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(100, 110):
            lgr.log_metrics({"loss": -1.0}, step=step)
        lgr.log_params({"child": 1})
        lgr.finish("completed")
    child_is_inert.put((len(caught), [str(one.message) for one in caught]))


@pytest.mark.parametrize("begun", [True, False])
def test_a_spawned_process_gets_an_inert_logger(tmp_path, monkeypatch, begun):
    """Whether the run has begun or not: the process that built the logger goes on with it."""
    run = tmp_path / "run"
    monkeypatch.setenv("RANK", "0")
    lgr = PlattliLogger(run)
    if begun:
        lgr.log_metrics({"loss": 0.5}, step=1)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=log_in_a_child, args=(lgr, answers))
    child.start()
    count, said = answers.get(timeout=240)
    child.join(240)
    answers.close()
    answers.join_thread()

    assert child.exitcode == 0
    assert count == 1
    assert "writes nothing: it is a copy of the logger that does" in said[0]
    assert run.exists() == begun
    lgr.log_metrics({"loss": 0.25}, step=2)
    lgr.finish("completed")
    assert stored(run)["train/loss"] == ({1: 0.5, 2: 0.25} if begun else {2: 0.25})
    assert run_info(run).params == {}
