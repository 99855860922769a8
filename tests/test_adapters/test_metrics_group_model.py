"""A metrics group against a simple model of it, while disks fail and processes die at any file operation.

A tenth of ``PLATTLI_KILL_ROUNDS`` histories are tried, and 10 at least.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapters.backends.metrics_group import MetricsGroup, MetricsGroupLogger, NoGroupError, densify, open_group
from tests.faults import failing_disk
from tests.killing import run_killed
from tests.test_adapters.metrics_groups import ByHand, Point

ROUNDS = max(int(os.environ.get("PLATTLI_KILL_ROUNDS", "0")) // 10, 10)
#: Every so many file operations a process is killed at: all of them if the environment asks for rounds.
STRIDE = 1 if "PLATTLI_KILL_ROUNDS" in os.environ else 4
NAMES = ("a", "b", "__c", "d/.")

Model = dict[str, list[Point]]


def add(model: Model, key: str, step: int | None, value: float, time: str) -> None:
    """Add an event by the rule of the format, in the plainest way."""
    points = model.setdefault(key, [])
    for at, (other, _, _) in enumerate(points):
        if step is not None and step == other:
            points[at] = step, value, time
            return
    points.append((step, value, time))


def read(group: MetricsGroup) -> Model:
    """Return what a reader finds."""
    found: Model = {}
    for key in group:
        series = group[key]
        steps = [None] * len(series) if series.steps is None else series.steps.tolist()
        steps = [None if step == -(2**63) else step for step in steps]
        found[key] = list(zip(steps, series.values.tolist(), series.wall_time, strict=True))
    return found


def at_second(number: int) -> tuple[float, str]:
    """Return a time of its own for each event, as a number and as text."""
    seconds = 1.7e9 + number
    return seconds, datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


class Histories(RuleBasedStateMachine):
    """Processes that log, densify, die and resume, one after the other."""

    @initialize(every=st.sampled_from([None, 1, 4]))
    def begin(self, every: int | None) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "metrics"
        self.every = every
        self.model: Model = {}
        self.now = 0
        self.checkpoints: list[tuple[Any, Model]] = []
        self.logger = MetricsGroupLogger(self.folder, densify_every=every)
        self.logger.log_params({"seed": 0})
        self.reader = open_group(self.folder)

    def copy(self) -> Model:
        return {key: list(points) for key, points in self.model.items()}

    def another(self, **options: Any) -> MetricsGroupLogger:
        """Let the process die, and begin another one."""
        if self.logger._run is not None:
            self.logger._run.log.close()
        self.logger = MetricsGroupLogger(self.folder, densify_every=self.every, **options)
        return self.logger

    # ---- what a process does ------------------------------------------------------------------------------

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), step=st.integers(0, 6), times=st.integers(1, 3))
    def log(self, names: set[str], step: int, times: int) -> None:
        """A few lines, at the same steps again and again."""
        for each in range(step, step + times):
            self.now += 1
            seconds, text = at_second(self.now)
            self.logger.log_metrics(dict.fromkeys(names, self.now / 8), step=each, walltime=seconds)
            for name in names:
                add(self.model, f"train/{name}", each, self.now / 8, text)

    @rule()
    def log_something_else(self) -> None:
        self.logger.log_tags("more")

    @rule()
    def densify(self) -> None:
        self.logger.densify()

    @rule(at=st.integers(1, 40), ops=st.sampled_from([1, 3, float("inf")]), dies=st.booleans())
    def densify_on_a_failing_disk(self, at: int, ops: float, dies: bool) -> None:
        """An operation fails; or all of them from one on, which is a kill: nothing that follows has happened."""
        with failing_disk(at, ops) as disk:
            try:
                self.logger.densify()
            except OSError:
                assert disk.failed
        if dies:
            self.look_closely()
            self.another(if_exists="append")

    @rule(torn=st.sampled_from([b'{"type":"scalar","key":"train/a","step":9,"ti', b"{", b""]))
    def die(self, torn: bytes) -> None:
        """With half a line, and go on."""
        with (self.folder / "metrics.jsonl").open("ab") as log:
            log.write(torn)
        self.look_closely()
        self.another(if_exists="append")

    @rule(status=st.sampled_from(["completed", "error"]))
    def finish(self, status: str) -> None:
        self.logger.finish(status)
        assert ByHand(self.folder, log=False).points == self.model
        self.another(if_exists="append")

    @rule(step=st.one_of(st.none(), st.integers(0, 9)), key=st.sampled_from(["train/a", "alone", "."]))
    def somebody_else_appends(self, step: int | None, key: str) -> None:
        """Between two processes of ours; events without a step among it, and fields that we do not know."""
        self.another(if_exists="append")
        self.now += 1
        place = {} if step is None else {"step": step}
        with (self.folder / "metrics.jsonl").open("rb+") as log:
            log.truncate(log.read().rfind(b"\n") + 1)
        event = {"type": "scalar", "key": key, "time": at_second(self.now)[1], "value": self.now, **place, "unit": "m"}
        with (self.folder / "metrics.jsonl").open("ab") as log:
            log.write(json.dumps(event).encode() + b"\n")
        add(self.model, key, step, self.now, event["time"])

    # ---- checkpoints --------------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        state = json.loads(json.dumps(self.logger.logger_state()))
        self.checkpoints.append((state, self.copy()))

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data(), at=st.one_of(st.none(), st.integers(1, 30)))
    def resume(self, data: st.DataObject, at: int | None) -> None:
        """From any checkpoint. It may take more than one try."""
        number = data.draw(st.integers(0, len(self.checkpoints) - 1))
        del self.checkpoints[number + 1 :]
        state, model = self.checkpoints[number]
        if at is not None:
            with failing_disk(at), contextlib.suppress(OSError):
                self.another().reattach(state)
            assert read(open_group(self.folder)) in (self.model, model)
        self.another().reattach(state)
        self.model = {key: list(points) for key, points in model.items()}
        self.look_closely()

    # ---- what holds ---------------------------------------------------------------------------------------

    @invariant()
    def a_reader_finds_what_was_logged(self) -> None:
        """One that has looked before."""
        if hasattr(self, "model"):
            assert read(self.reader) == self.model

    def look_closely(self) -> None:
        """Check what a new reader finds, and one that was written from the specification."""
        assert read(open_group(self.folder)) == self.model
        assert ByHand(self.folder).points == self.model

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.logger.finish("completed")
            assert ByHand(self.folder, log=False).points == self.model
            shutil.rmtree(self.root)


@pytest.mark.filterwarnings("ignore:MetricsGroupLogger.* could not bring its arrays up to date:RuntimeWarning")
class TestHistories(Histories.TestCase):  # type: ignore[name-defined]
    settings = settings(
        max_examples=ROUNDS, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )


# ---- kills ------------------------------------------------------------------------------------------------


STEPS = (1, 2, 1, 3)


def a_run(folder: Path, acknowledge: Callable[[object], None]) -> None:
    """Log, densify, replace a step that is densified, densify at the end; say what is logged."""
    logger = MetricsGroupLogger(folder)
    for number, step in enumerate(STEPS):
        if number == 2:
            logger.densify()
        logger.log_metrics({"loss": number / 4}, step=step, walltime=at_second(number)[0])
        acknowledge(number)
    logger.finish("completed")


def test_a_kill_at_any_file_operation_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged is there, and nothing else but the line that was being logged."""
    done, at, kills = False, 1, 0
    while not done:
        folder = tmp_path / str(at)
        acknowledged, done = run_killed(lambda acknowledge, folder=folder: a_run(folder, acknowledge), at)  # type: ignore[misc]
        models: list[Model] = []
        for count in (len(acknowledged), min(len(acknowledged) + 1, len(STEPS))):
            model: Model = {}
            for number in range(count):
                add(model, "train/loss", STEPS[number], number / 4, at_second(number)[1])
            models.append(model)
        try:
            found = read(open_group(folder))
        except NoGroupError:
            found = {}

        assert found in models, at
        if found:
            densify(folder)
            assert ByHand(folder, log=False).points == found, at
        kills += 1
        at += STRIDE

    assert len(acknowledged) == len(STEPS)
    assert kills > 40 / STRIDE
