"""loggers.events_logger: a bounded few events, to any publisher, and training that goes on without."""

from __future__ import annotations

import json
import math
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loggers import EventsLogger, TrainingSession
from loggers.errors import LoggerError, LoggerFinishedError, MetricValueError
from loggers.testing import Stored
from loggers.testing._resuming import ResumeTests
from loggers.testing._runs import RunTests


class Coordinator:
    """Keeps what was published."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, payload: dict[str, Any]) -> None:
        self.events.append((name.removeprefix("workload."), json.loads(json.dumps(payload, allow_nan=False))))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [payload for kind, payload in self.events if kind == name]


class TestContract(RunTests, ResumeTests):
    """All of the contract but for its lines: those are not kept, but told of."""

    replaces = False
    holds_params = holds_tags = holds_other = holds_confusions = False
    resumes = False

    @pytest.fixture(autouse=True)
    def _coordinators(self) -> None:
        self.coordinators: dict[Path, Coordinator] = {}

    def build(self, directory: Path) -> EventsLogger:
        return EventsLogger(self.coordinators.setdefault(directory, Coordinator()), every=0)

    def stored(self, directory: Path) -> Stored:
        found = Stored()
        coordinator = self.coordinators.get(directory, Coordinator())
        for payload in coordinator.of("progress") + coordinator.of("milestone"):
            for name, value in payload["metrics"].items():
                points = found.metrics.setdefault(f"{payload.get('context', 'train')}/{name}", [])
                points.append((payload["completed"], value))
        ends = [payload["phase"] for payload in coordinator.of("phase") if payload["phase"] != "training"]
        found.status = ends[-1] if ends else None
        return found


def test_a_training_in_events() -> None:
    """Its phases, progress now and then, every evaluation and every checkpoint."""
    now = [0.0]
    coordinator = Coordinator()
    logger = EventsLogger(coordinator, total=100, zero_based=True, clock=lambda: now[0])
    logger.log_params({"secret": "x"})
    for step in range(100):
        logger.log_metrics({"acc": 0.5, "lr": 0.1, "loss": float(step)}, step=step, epoch=1)
        now[0] += 1.0
        if step % 40 == 39:
            logger.log_metrics({"loss": 0.25}, step=step, context="validate")
            logger.log_other("checkpoint", {"path": Path("/c/a.pt"), "step": step, "more": object()})
            logger.log_other("report", "for others")
            logger.log_other("checkpoint", "no mapping")
    logger.log_tags("for others")
    logger.log_confusion([[1]], ["a"])
    logger.finish("completed")

    assert coordinator.of("phase") == [
        {"phase": "training", "completed": 0, "total": 100},
        {"phase": "completed", "completed": 100, "total": 100},
    ]
    assert coordinator.of("progress") == [
        {"completed": n, "total": 100, "epoch": 1, "metrics": {"loss": n - 1.0, "lr": 0.1, "acc": 0.5}}
        for n in (1, 31, 61, 91)
    ]
    assert coordinator.of("milestone") == [
        {"milestone": "evaluation", "context": "validate", "completed": n, "total": 100, "metrics": {"loss": 0.25}}
        for n in (40, 80)
    ]
    assert coordinator.of("artifact") == [{"artifact": "checkpoint", "path": "/c/a.pt", "step": n} for n in (39, 79)]
    assert logger.logger_info()["published"] == len(coordinator.events) == 10


def test_an_event_is_bounded() -> None:
    """At most 32 finite numbers, keys of at most 96 characters; loss and lr are among them."""
    coordinator = Coordinator()
    line: dict[str, Any] = {f"m{number}": number for number in range(40)}
    line |= {"a" * 97: 1.0, "b" * 96: 1.0, "nan": math.nan, "inf": math.inf, "text": "a", "lr": 0.1, "loss": 2.0}
    logger = EventsLogger(coordinator)
    with pytest.raises(MetricValueError, match="'model'"):
        logger.log_metrics({**line, "model": object()}, step=1)
    logger.log_metrics({"b" * 96: 1.0, "a" * 97: 1.0, "nan": math.nan}, step=2, context="c" * 200)
    (metrics,) = [payload["metrics"] for payload in coordinator.of("progress")]

    assert list(metrics) == ["loss", "lr", *(f"m{number}" for number in range(30))]
    assert coordinator.of("milestone")[0]["metrics"] == {"b" * 96: 1.0}
    assert coordinator.of("milestone")[0]["context"] == "c" * 96


def test_a_publisher_that_fails_stops_nothing() -> None:
    """One warning, and the next event is tried; unless it is told otherwise."""
    coordinator = Coordinator()
    working = [True, False, False, False, True, True]

    def publish(name: str, payload: dict[str, Any]) -> None:
        if not working.pop(0):
            raise ConnectionError("no route")
        coordinator(name, payload)

    logger = EventsLogger(publish, every=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(1, 5):
            logger.log_metrics({"loss": 0.5}, step=step)
        logger.finish("error")

    assert ["no route" in str(warning.message) for warning in said] == [True]
    assert [kind for kind, _ in coordinator.events] == ["phase", "progress", "phase"]
    assert logger.logger_info() == {"logger": "EventsLogger", "published": 3, "failed": 3}
    with pytest.raises(ConnectionError):
        EventsLogger(_refuse, strict=True).log_params({})


def _refuse(name: str, payload: dict[str, Any]) -> None:
    raise ConnectionError("no route")


def test_events_are_plain_json() -> None:
    """Whatever the steps are: NumPy's integers, a tensor, or nothing that one could count with."""
    coordinator = Coordinator()
    total: Any = np.int64(8)
    logger = EventsLogger(coordinator, total=total, every=0)
    for step in (np.int64(3), np.array(4), 5, math.nan, "six", None, object()):
        logger.log_other("checkpoint", {"path": Path("a.pt"), "step": step})
    logger.log_metrics({"n": np.float32(0.5)}, step=np.int64(7), epoch=np.int32(1))
    logger.finish("completed")

    assert json.loads(json.dumps(coordinator.events, allow_nan=False)) == [[n, p] for n, p in coordinator.events]
    assert [payload["step"] for payload in coordinator.of("artifact")] == [3, 4, 5, None, None, None, None]


def test_arguments_are_checked() -> None:
    """What cannot be called, and what is no time."""
    publisher: Any = "http://127.0.0.1"
    with pytest.raises(LoggerError, match="publish must be a function"):
        EventsLogger(publisher)
    for every in (-1.0, math.nan, "30"):
        bad: Any = every
        with pytest.raises(LoggerError, match="every must be seconds"):
            EventsLogger(print, every=bad)
    bad = "all"
    with pytest.raises(LoggerError, match="total must be a number of steps"):
        EventsLogger(print, total=bad)


def test_copies_publish_nothing() -> None:
    """A forked child's, and one that was pickled after the first event."""
    coordinator = Coordinator()
    logger = EventsLogger(coordinator, every=0)
    logger.log_metrics({"loss": 0.5}, step=1)
    told = len(coordinator.events)
    copy = pickle.loads(pickle.dumps(EventsLogger(_refuse)))
    copy._pid = -1
    copy.log_metrics({"loss": 0.5}, step=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        logger.log_metrics({"loss": 0.5}, step=2)
        logger.finish("error")
        os._exit(len(coordinator.events) - told)

    assert os.waitpid(pid, 0)[1] == 0


def test_a_session_needs_nothing_more() -> None:
    """It has every verb."""
    coordinator = Coordinator()
    with TrainingSession(EventsLogger(coordinator), params={"lr": 0.1}) as session:
        session.train({"loss": 0.5})

    assert [kind for kind, _ in coordinator.events] == ["phase", "progress", "phase"]
    logger = EventsLogger(coordinator)
    logger.finish("error")
    for verb in ("log_tags", "log_params"):
        with pytest.raises(LoggerFinishedError):
            getattr(logger, verb)({})
