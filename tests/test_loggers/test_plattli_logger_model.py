"""PlattliLogger against a dictionary: any program of verbs, resumes and reopenings."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loggers import PlattliLogger
from loggers.errors import LoggerFinishedError
from plattli.runinfo import run_info
from tests.test_loggers.plattli_runs import Points, about, stored

CONTEXTS = ["train", "validate", "a/b", "ö..%41"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "loss": st.floats() | st.floats(width=32),
    "count": st.integers(-(2**20), 2**20) | st.integers(0, 9) | st.sampled_from([0.5, -2.25]),
    "big": st.integers(-(2**63), 2**63 - 1),
    "note": st.sampled_from(["text", [1, [None]], {"k": 1.5}]),
    "x//y": st.booleans(),
}
LINE = st.sets(st.sampled_from(sorted(VALUES)), min_size=1).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in sorted(names)})
)
#: a step as a distance from the newest of its context, or anywhere
PLACE = st.integers(1, 3) | st.integers(-6, 1)
CONTEXT = st.sampled_from(CONTEXTS)
PARAMS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.booleans(), min_size=1)
OPERATION = st.one_of(
    st.tuples(st.just("line"), CONTEXT, PLACE, LINE, st.none() | st.integers(0, 9)),
    st.tuples(st.just("line"), CONTEXT, PLACE, LINE, st.none() | st.integers(0, 9)),
    st.tuples(st.just("other"), st.sampled_from(["k1", "k/2"]), st.integers(0, 99) | st.text(max_size=3)),
    st.tuples(st.just("confusion"), st.none() | CONTEXT, st.none() | PLACE),
    st.tuples(st.just("params"), PARAMS),
    st.tuples(st.just("tags"), st.sampled_from("xyz")),
    st.tuples(st.just("state")),
    st.tuples(st.just("reattach"), st.integers(0, 5), st.sampled_from(["same", "error", "completed"])),
    st.tuples(st.just("append"), st.sampled_from(["interrupted", "completed", "early_stop"])),
)


class Model:
    """What a run ought to hold."""

    def __init__(self) -> None:
        self.points: Points = {}
        self.steps: dict[str, int] = {}
        self.params: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.tags: dict[str, Any] = {}

    def put(self, context: str, name: str, step: int, value: Any) -> None:
        self.points.setdefault(name, {})[step] = value
        self.steps[context] = max(step, self.steps.get(context, -1))

    def current(self) -> int:
        return max(self.steps.values(), default=0)

    def set_params(self, params: dict[str, Any]) -> None:
        changed = {k: self.params[k] for k, v in params.items() if k in self.params and repr(self.params[k]) != repr(v)}
        self.history += [changed] if changed else []
        self.params.update(params)

    def cut(self, steps: dict[str, int]) -> None:
        kept = {}
        for name, points in self.points.items():
            last = steps.get(context_of(name), -1)
            kept[name] = {step: value for step, value in points.items() if step <= last}
        self.points = kept
        self.steps = dict(steps)
        if not steps:
            self.look()

    def look(self) -> None:
        """Know of the steps only what the points tell, as a new logger does."""
        self.steps = {}
        for name, points in self.points.items():
            for step in points:
                self.steps[context_of(name)] = max(step, self.steps.get(context_of(name), -1))


def context_of(name: str) -> str:
    return next((context for context in CONTEXTS if name.startswith(f"{context}/")), "")


def spelled(points: Points) -> dict[str, dict[int, str]]:
    # a column that floats joined holds its integers as floats: the same numbers, unless they would not be exact
    return {
        name: {
            step: repr(float(value)) if isinstance(value, int | float) and abs(value) < 2**53 else repr(value)
            for step, value in column.items()
        }
        for name, column in points.items()
        if column
    }


class Program:
    """Runs operations on a logger and on a model."""

    def __init__(self, run: Path, hotsize: int) -> None:
        self.run = run
        self.hotsize = hotsize
        self.model = Model()
        self.states: list[Any] = []
        self.lgr = self.new()

    def new(self, if_exists: Any = "refuse") -> PlattliLogger:
        return PlattliLogger(self.run, walltime=False, hotsize=self.hotsize, if_exists=if_exists)

    def line(self, context: str, place: int, line: dict[str, Any], epoch: int | None) -> None:
        step = max(0, self.model.steps.get(context, -1) + place)
        self.lgr.log_metrics(copy.deepcopy(line), step=step, context=context, epoch=epoch)
        for name, value in line.items():
            self.model.put(context, f"{context}/{name}", step, int(value) if value is True or value is False else value)
        if epoch is not None:
            self.model.put(context, f"{context}/epoch", step, epoch)

    def other(self, key: str, value: Any) -> None:
        self.lgr.log_other(key, value)
        self.model.put("", f"other/{key}", self.model.current(), value)

    def confusion(self, context: str | None, place: int | None) -> None:
        step = None if place is None else max(0, self.model.steps.get(context or "", -1) + place)
        self.lgr.log_confusion([[step or 0]], ["x"], context=context, step=step)
        at = self.model.current() if step is None else step
        value = {"epoch": None, "labels": ["x"], "matrix": [[step or 0]]}
        self.model.put(context or "", f"{context}/confusion" if context else "confusion", at, value)

    def params(self, params: dict[str, Any]) -> None:
        self.lgr.log_params(params)
        self.model.set_params(params)

    def tags(self, tag: str) -> None:
        self.lgr.log_tags(tag)
        self.model.tags[tag] = True

    def state(self) -> None:
        state = json.loads(json.dumps(self.lgr.logger_state()))
        assert state["steps"] == self.model.steps
        self.states.append(state)

    def reattach(self, which: int, end: str) -> None:
        if not self.states or self.lgr.backend() is None:
            return
        state = self.states[which % len(self.states)]
        if end != "same":
            self.lgr.finish(end)
            self.lgr = self.new()
        self.lgr.reattach(state)
        self.model.cut(state["steps"])
        self.check("running")

    def append(self, end: str) -> None:
        if self.lgr.backend() is None:
            return
        self.lgr.finish(end)
        with pytest.raises(LoggerFinishedError):
            self.lgr.log_metrics({"loss": 1.0}, step=1)
        self.check(end)
        self.lgr = self.new("append")
        self.lgr.log_tags("x")
        self.model.tags["x"] = True
        self.model.look()

    def check(self, status: str) -> None:
        if not (self.run / "metrics.plattli").exists() and not (self.run / "plattli" / "plattli.json").exists():
            assert not any(self.model.points.values())
            return
        assert spelled(stored(self.run)) == spelled(self.model.points)
        info = run_info(self.run)
        assert (info.status, info.id) == (status, self.lgr.run_id())
        assert repr(sorted(info.params.items())) == repr(sorted(self.model.params.items()))
        assert info.tags == self.model.tags
        history = [sorted(entry["params"].items()) for entry in about(self.run)["params_history"]]
        assert repr(history) == repr([sorted(changed.items()) for changed in self.model.history])


# a line before the state that was reattached is worth a warning, and stored like any other
@pytest.mark.filterwarnings("ignore:run .* was resumed at:RuntimeWarning")
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATION, max_size=40), st.integers(1, 6), st.sampled_from(["completed", "interrupted"]))
def test_any_program_of_verbs_reads_back_as_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, operations: list[Any], hotsize: int, end: str
) -> None:
    """Late, repeated and joined lines, resumes from any state in any order, reopened and archived runs."""
    program = Program(tmp_path_factory.mktemp("model") / "run", hotsize)
    for verb, *arguments in operations:
        getattr(program, verb)(*arguments)
    if program.lgr.backend() is not None:
        program.check("running")
    program.lgr.finish(end)
    if end == "completed" or any(program.model.points.values()):
        program.check(end)


def test_the_model_can_fail() -> None:
    """A value, a step or a sign that differs is a difference."""
    points: Points = {"a": {1: 0.0, 2: 2**53 + 1}, "b": {1: math.nan}}
    assert spelled(points) == spelled({**points, "c": {}, "b": {1: float("nan")}})
    for other in ({1: -0.0, 2: 2**53 + 1}, {1: 0.0, 2: 2**53}, {1: 0.0, 3: 2**53 + 1}, {1: 0.0}):
        assert spelled(points) != spelled({**points, "a": other})
