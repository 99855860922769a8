"""A W&B that raises, hangs or cannot be reached: the same training gives the same run, and one warning."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters import TeeLogger, WandbLogger
from adapters.follower import jobs
from loggers import PlattliLogger, TrainingSession
from plattli import Reader
from tests.test_adapters.replicas import RaisingWandb


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
