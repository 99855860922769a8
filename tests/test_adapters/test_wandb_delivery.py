"""What WandbLogger was given arrives once, whatever ends the process, the client's service or the server.

The kill test runs ``WANDB_KILL_ROUNDS`` rounds, one unless the environment says otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters import TeeLogger, WandbLogger
from loggers import PlattliLogger
from tests.test_adapters.replicas import wait_for
from tests.test_adapters.wandb_files import find_runs
from tests.test_adapters.wandb_scripts import environment, run, series, start
from tests.test_adapters.wandb_server import ENTITY, WandbServer

ROUNDS = int(os.environ.get("WANDB_KILL_ROUNDS", "1"))


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    """One stand-in server for the tests that use its good side."""
    with WandbServer() as listening:
        yield listening


KILLED = """
    from adapters.backends import _wandb_journal
    _wandb_journal.LARGEST = 10000
    lgr = WandbLogger("once", run_id={run_id!r}, mode={mode!r}, settings={{"x_file_stream_transmit_interval": 1.0}})
    lgr.log_params({{"lr": 0.1}})
    lgr.log_other("note", "kept")
    for step in range(300):
        if step == {recorded}:
            print(json.dumps(lgr.logger_state()), flush=True)
        lgr.log_metrics({{"loss": step / 7, "nan": float("nan")}}, step=step, walltime=1.7e9 + step)
    print("logged", flush=True)
    sys.stdin.readline()
    """
GOES_ON = """
    lgr = WandbLogger("once", run_id={run_id!r}, mode={mode!r})
    {reattach}
    for step in range({recorded}, 400):
        lgr.log_metrics({{"loss": step / 7, "nan": float("nan")}}, step=step, walltime=1.7e9 + step)
    lgr.finish("completed")
    """



@pytest.mark.parametrize(
    ("mode", "recorded", "wait_for_rows"), [("online", 250, 0), ("offline", 50, 100), ("online", None, 100)]
)
def test_no_row_is_lost_or_doubled_by_a_kill(
    tmp_path: Path, server: WandbServer, mode: str, recorded: int | None, wait_for_rows: int
) -> None:
    """Its record knows of rows that never arrived, or does not know of some that did: each is there once."""
    run_id = f"{mode}-{recorded}"
    script = KILLED.format(run_id=run_id, mode=mode, recorded=recorded)
    with start(tmp_path, script, **server.env(), WANDB_ERROR_REPORTING="false") as process:
        assert process.stdout is not None
        state = None if recorded is None else json.loads(process.stdout.readline())
        assert process.stdout.readline() == "logged\n"
        wait_for(lambda: len(rows_of(mode, tmp_path, server, run_id)) >= wait_for_rows)
        process.kill()
    reattach = "" if state is None else f"lgr.reattach({state!r})"
    script = GOES_ON.format(run_id=run_id, mode=mode, recorded=recorded or 0, reattach=reattach)
    # twice: the first one's end may not have been saved by whoever saved the record
    for _ in range(1 if state is None else 2):
        run(tmp_path, script, **server.env(), WANDB_ERROR_REPORTING="false")
    rows = rows_of(mode, tmp_path, server, run_id)

    assert series(rows, "train/loss") == [(step, step / 7) for step in range(400)]
    assert [row["train/walltime"] for row in rows] == [1.7e9 + step for step in range(400)]
    assert [row["_timestamp"] for row in rows] == [1.7e9 + step for step in range(400)]
    if mode == "online":
        assert server.run("once", run_id).params == {"lr": 0.1}
        assert server.run("once", run_id).summary["note"] == "kept"


def rows_of(mode: str, home: Path, server: WandbServer, run_id: str) -> list[dict[str, Any]]:
    """Return the rows of all attempts, as the server has them, or would."""
    if mode == "offline":
        return [row for found in find_runs(home) for row in found.rows]
    stored = server.runs.get(f"{ENTITY}/once/{run_id}")
    return [] if stored is None else stored.history


AGAIN_AND_AGAIN = """
    from adapters.backends import _wandb_journal
    _wandb_journal.LARGEST = 20000
    lgr = WandbLogger("again", run_id=sys.argv[1], mode=sys.argv[2], settings={"x_file_stream_transmit_interval": 1.0})
    step = 0
    if os.path.exists("record"):
        record = json.load(open("record"))
        lgr.reattach(record["state"])
        step = record["step"]
    while step < 500:
        lgr.log_metrics({"loss": step / 3}, step=step, walltime=1.0 + step)
        if step % 7 == 0:
            lgr.log_metrics({"loss": step / 7}, step=step, context="validate", walltime=2.0 + step)
        step += 1
        if step % 53 == 0:
            open("record.tmp", "w").write(json.dumps({"state": lgr.logger_state(), "step": step}))
            os.replace("record.tmp", "record")
        time.sleep(0.003)
    lgr.finish("completed")
    """


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_again_and_again(tmp_path: Path, server: WandbServer, seed: int) -> None:
    """At any moment, with or without its service first: each attempt goes on from the last record that was saved."""
    chance = random.Random(seed)
    mode = ("online", "offline")[seed % 2]
    ended, longest, record = False, 4.0, tmp_path / "record"
    while not ended:
        before = record.read_bytes() if record.exists() else b""
        arguments = (f"again-{seed}", mode)
        with start(tmp_path, AGAIN_AND_AGAIN, *arguments, **server.env(), WANDB_ERROR_REPORTING="false") as process:
            try:
                _, err = process.communicate(timeout=chance.uniform(1.0, longest))
            except subprocess.TimeoutExpired:
                if chance.random() < 0.3:
                    for core in services_of(process.pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(core, signal.SIGKILL)
                if before == (record.read_bytes() if record.exists() else b""):
                    longest += 1.0  # on a slow machine, it would get nowhere
                continue  # the block's end kills it
        assert process.returncode == 0, err
        ended = True
    if mode == "online":
        rows = server.run("again", f"again-{seed}").history
    else:
        rows = [row for found in find_runs(tmp_path) for row in found.rows]

    assert series(rows, "train/loss") == [(step, step / 3) for step in range(500)]
    assert series(rows, "validate/loss") == [(step, step / 7) for step in range(0, 500, 7)]


def test_the_next_attempt_sends_what_finish_could_not(tmp_path: Path) -> None:
    """It has nothing to log itself: ending the run is enough, and the server then has each row once."""
    with WandbServer() as weak:
        script = """
            fast = {"x_file_stream_transmit_interval": 1.0}
            lgr = WandbLogger("p", run_id="late", finish_timeout=1.0, settings=fast)
            lgr.log_metrics({"loss": 0.5}, step=1)
            while not lgr._run.rows_arrived():
                time.sleep(0.05)
            print("arrived", flush=True)
            sys.stdin.readline()
            lgr.log_metrics({"loss": 0.25}, step=2)
            try:
                lgr.finish("early_stop")
            except Exception as error:
                told["error"] = [type(error).__name__, str(error)]
            told["state"] = lgr.logger_state()
            """
        with start(tmp_path, script, **weak.env(), WANDB_ERROR_REPORTING="false") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "arrived\n"
            weak.behave(file_stream="error")
            out, err = process.communicate("\n", timeout=240)
        assert process.returncode == 0, err
        told = json.loads(out.rpartition("TOLD ")[2].splitlines()[0])
        weak.behave(file_stream="ok")
        again = f"""
            lgr = WandbLogger()
            lgr.reattach({told["state"]!r})
            lgr.finish("early_stop")
            told["unended"] = lgr.logger_state()["unended"]
            """
        unended = run(tmp_path, again, **weak.env(), WANDB_ERROR_REPORTING="false")["unended"]
        stored = weak.run("p", "late")

    assert told["error"][0] == "UndeliveredError"
    assert "pending: 1 of 2 rows" in told["error"][1]
    assert told["state"]["unended"]
    assert not unended
    assert series(stored.history, "train/loss") == [(1, 0.5), (2, 0.25)]
    assert (stored.exit_code, stored.summary["status"]) == (0, "early_stop")


def test_rows_that_nobody_has_any_more_are_counted(tmp_path: Path, server: WandbServer) -> None:
    """The record knows of ten rows, the server of two, and the journal is on another machine."""
    told = run(
        tmp_path,
        """
        import warnings
        lgr = WandbLogger("p", run_id="moved")
        for step in range(2):
            lgr.log_metrics({"loss": 0.5}, step=step)
        lgr.finish("interrupted")
        state = {**lgr.logger_state(), "journal": [50, 10]}
        lgr = WandbLogger()
        lgr.reattach(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lgr.log_metrics({"loss": 0.5}, step=10)
        told["warned"] = [str(one.message) for one in caught]
        lgr.finish("completed")
        """,
        **server.env(),
        WANDB_ERROR_REPORTING="false",
    )

    assert told["warned"] == [
        f"8 rows of W&B run moved never arrived, and {tmp_path}/wandb/journal-moved.jsonl does not have them: "
        "send the directory of the attempt before with `wandb sync`"
    ]
    assert series(server.run("p", "moved").history, "train/loss") == [(0, 0.5), (1, 0.5), (10, 0.5)]


def test_a_program_that_replaces_another_in_its_process_goes_on_with_the_run(
    tmp_path: Path, server: WandbServer
) -> None:
    """The service that the first one left is ended: it has the run open, and would send rows of it as well."""
    later = """
        import json, os, sys
        from adapters.backends.wandb import WandbLogger
        lgr = WandbLogger("p")
        lgr.reattach(json.loads(sys.argv[1]))
        lgr.log_metrics({"loss": 0.25}, step=2)
        lgr.finish("completed")
        """
    (tmp_path / "later.py").write_text(textwrap.dedent(later))
    script = """
        lgr = WandbLogger("p", run_id="replaced", settings={"x_file_stream_transmit_interval": 30.0})
        lgr.log_metrics({"loss": 0.5}, step=1)
        os.execv(sys.executable, [sys.executable, "later.py", json.dumps(lgr.logger_state())])
        """
    with start(tmp_path, script, **server.env(), WANDB_ERROR_REPORTING="false") as process:
        _, err = process.communicate(timeout=240)

    assert process.returncode == 0, err
    assert series(server.run("p", "replaced").history, "train/loss") == [(1, 0.5), (2, 0.25)]


def test_a_follower_whose_service_is_killed_starts_another(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb-core dies in the middle of a run, with rows in its memory: the server gets all of them, once."""
    for name, value in environment(tmp_path, **server.env(), WANDB_ERROR_REPORTING="false").items():
        monkeypatch.setenv(name, value)
    tracker = WandbLogger("killed", run_id="core", dir=tmp_path, mode="online")
    tee = TeeLogger(PlattliLogger(tmp_path / "run"), tracker, finish_timeout=240.0, poll=0.05)
    for step in range(200):
        tee.log_metrics({"loss": step / 3}, step=step)
    wait_for(lambda: tee.report()[0]["delivered"] == 200)
    core = service_of(tmp_path / "run")
    os.kill(core, signal.SIGKILL)
    for step in range(200, 400):
        tee.log_metrics({"loss": step / 3}, step=step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tee.finish("completed")
    stored = server.run("killed", "core")

    assert series(stored.history, "train/loss") == [(step, step / 3) for step in range(400)]
    assert len(tee.report()[0]["info"]["sync_dirs"]) == 2
    assert (stored.exit_code, stored.summary["status"]) == (0, "completed")


def service_of(run_dir: Path) -> int:
    """Return the process id of the wandb-core of a run's only follower."""
    (lock,) = (run_dir / ".followers").glob("*.lock")
    (core,) = services_of(int(lock.read_text().split()[0]))
    return core


def services_of(pid: int) -> list[int]:
    """Return the process ids of the wandb-cores that a process has started."""
    cores: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # it has just ended
        children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
        names = {child: Path(f"/proc/{child}/comm").read_text() for child in children}
        cores += [int(child) for child, name in names.items() if name.startswith("wandb-core")]
    return cores
