"""A W&B that raises, hangs or cannot be reached: the same training gives the same run, and one warning."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from adapters import TeeLogger, WandbLogger
from adapters.follower import jobs
from loggers import PlattliLogger, TrainingSession
from plattli import Reader
from tests.test_adapters.replicas import RaisingWandb, wait_for
from tests.test_adapters.wandb_server import ENTITY, WandbServer


def train(logger: Any) -> list[str]:
    """Run one small training; return the warnings that its user sees."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TrainingSession(logger, params={"lr": 0.1}) as session:
            for step in range(500):
                session.train({"loss": 1.0 / (step + 1)}, schedules={"lr": 0.1})
            session.validate({"loss": 0.25})
    return [str(w.message) for w in caught]


def values(run: Path) -> dict[str, list[tuple[int, Any]]]:
    with Reader(run) as reader:
        return {
            name: list(zip(*(column.tolist() for column in reader.metric(name)), strict=True))
            for name in reader.metrics()
            if not name.endswith("/walltime")
        }


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A socket that accepts and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def api_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


@pytest.mark.usefixtures("api_key")
@pytest.mark.parametrize("outage", ["silent", "refused", "raises"])
def test_training_never_knows(tmp_path: Path, outage: str) -> None:
    """Same values in the run, one warning that says how to send the rest, and no process stays."""
    train(TeeLogger(PlattliLogger(tmp_path / "alone")))
    with contextlib.ExitStack() as stack:
        if outage == "raises":
            tracker: WandbLogger = RaisingWandb("p", mode="offline", dir=tmp_path)
        else:
            address = stack.enter_context(silent_server() if outage == "silent" else closed_port())
            tracker = WandbLogger("p", mode="online", base_url=address, dir=tmp_path)
        seen = train(TeeLogger(PlattliLogger(tmp_path / "teed"), tracker, finish_timeout=4.0))

    assert len(seen) == 1, seen
    assert type(tracker).__name__ in seen[0]
    assert f"plattli send {tmp_path / 'teed'}" in seen[0]
    assert values(tmp_path / "teed") == values(tmp_path / "alone")
    (files,) = jobs(tmp_path / "teed")
    lock = files.try_lock()
    assert lock is not None, "the follower still runs"
    os.close(lock)

# ---- a server that hangs, dies and comes back, under a training that is killed ------------------------

TRAINING = """
import json, sys
from pathlib import Path
from adapters import TeeLogger, WandbLogger
from loggers import PlattliLogger, checkpoint_record, resume

directory, first, record = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
# whole seconds: the client takes parts of one for its default, which is far longer
quick = dict.fromkeys([
    "x_file_stream_transmit_interval", "x_file_stream_retry_wait_min_seconds", "x_file_stream_retry_wait_max_seconds",
    "x_graphql_retry_wait_min_seconds", "x_graphql_retry_wait_max_seconds",
], 1) | {"x_file_stream_timeout_seconds": 2, "x_graphql_timeout_seconds": 2, "init_timeout": 10}
tracker = WandbLogger("outage", run_id="it", mode="online", dir=directory, settings=quick, finish_timeout=200.0)
tee = TeeLogger(
    PlattliLogger(directory / "run"), tracker, poll=0.02, first_wait=0.05, longest_wait=0.2, finish_timeout=240.0
)
resume(tee, record)
if record is None:
    tee.log_params({"lr": 0.1})
for line in sys.stdin:
    for step in range(first, int(line) + 1):
        tee.log_metrics({"loss": step / 7, "attempt": 1 if record is None else 2}, step=step)
        if step % 10 == 0:
            tee.log_metrics({"loss": step / 3}, step=step, context="validate")
        if step == 750 and record is None:
            kept = checkpoint_record(tee)
    first = int(line) + 1
    print(json.dumps(kept if first == 801 else tee.report()[0]), flush=True)
tee.finish("completed")
"""


class Training:
    """A training process that goes to the step it is told."""

    def __init__(self, directory: Path, server: WandbServer, first: int = 1, record: Any = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        environment |= {**server.env(), "PYTHONPATH": str(Path(__file__).parents[2]), "WANDB_ERROR_REPORTING": "false"}
        self.run = directory / "run"
        self._killed = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(directory), str(first), json.dumps(record)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment, "HOME": str(directory)},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()  # of a test that failed

    def go_to(self, step: int) -> Any:
        """Let it log up to a step; return what it says then: its state at step 800, else the replica's report."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill_follower(self) -> None:
        """Kill whoever carries the lines now, at whatever it is doing."""

        def pid() -> int:
            locks = [path.read_text().split() for path in (self.run / ".followers").glob("*.lock")]
            return int(locks[0][0]) if locks and locks[0] else self._killed

        wait_for(lambda: pid() != self._killed)
        self._killed = pid()
        os.kill(self._killed, signal.SIGKILL)

    def kill(self) -> None:
        """End it as the kernel does that has no memory left."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        """Let it finish."""
        self.process.communicate(timeout=240)
        assert self.process.returncode == 0


def last_values(server: WandbServer) -> dict[str, dict[int, Any]]:
    """Return metric -> step -> value of the row that came last."""
    found: dict[str, dict[int, Any]] = {}
    for row in server.run("outage", "it").history:
        for key, value in row.items():
            context, _, name = key.partition("/")
            if name not in ("", "step", "epoch", "walltime"):
                found.setdefault(key, {})[row[f"{context}/step"]] = value
    return found


def clients_of(server: WandbServer) -> list[str]:
    """Return the processes that were started for a server: by their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if server.url.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


#: Steps at which the follower is killed. To begin while the server is away takes the client ten seconds each time.
KILLS: tuple[tuple[int, ...], ...] = ((), (150, 760))
if int(os.environ.get("PLATTLI_KILL_ROUNDS", "0")):
    KILLS = (*KILLS, (300, 500, 760))


@pytest.mark.parametrize("kills", KILLS, ids=str)
def test_a_server_that_hangs_dies_and_comes_back_misses_nothing(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """The training is killed and goes on from its checkpoint; in the end the server has the last value of each step."""
    with WandbServer() as server, Training(tmp_path, server) as training:
        for step in (50, 100, 150, 200, 300, 400, 500, 700, 760):
            training.go_to(step)
            if step in kills:
                training.kill_follower()
            if step in (50, 100):  # first it is only busy, or broken
                behaviour = {50: "busy", 100: "error"}[step]
                wait_for(lambda: f"{ENTITY}/outage/it" in server.runs)
                server.behave(file_stream=behaviour)
                training.go_to(step + 10)
                wait_for(lambda behaviour=behaviour: behaviour in server.misbehaved)
                server.behave(file_stream="ok")
            elif step == 200:
                wait_for(lambda: len(server.run("outage", "it").history) >= 100)
                server.behave(graphql="hang", file_stream="hang")
            elif step == 400:
                server.die()
            elif step == 700:
                server.behave(graphql="ok", file_stream="ok")
                server.come_back()
        record = training.go_to(800)
        training.kill()
        stored = server.run("outage", "it")
        if not kills:  # else there is nobody left who could have started another
            wait_for(lambda: not jobs(training.run))
            assert stored.exit_code == 1
            assert last_values(server)["train/loss"] == {step: step / 7 for step in range(1, 801)}
        wait_for(lambda: not clients_of(server))

        with Training(tmp_path, server, 751, record) as again:
            again.go_to(900)
            again.end()
        assert not clients_of(server)
        assert stored.exit_code == 0
        assert stored.params == {"lr": 0.1}
        with Reader(training.run) as reader:
            for name in ("train/loss", "train/attempt", "validate/loss"):
                steps, expected = reader.metric(name)
                assert last_values(server)[name] == dict(zip(steps.tolist(), expected.tolist(), strict=True)), name
        assert not server.unknown
