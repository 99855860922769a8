"""The best values of a run: which they are, after cuts too, and which checkpoints have them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from adapters.backends._wandb_best import Best
from loggers.errors import MetricNameError, RecordError


def filled(values: list[tuple[int, Any]], **directions: str) -> Best:
    best = Best(directions or {"validate/loss": "min"})
    for step, value in values:
        best.add(step, {"validate/loss": value})
    return best


@pytest.mark.parametrize(
    ("values", "step", "value"),
    [
        ([(1, 0.5), (2, 0.25), (3, 0.75)], 2, 0.25),
        ([(1, 0.5), (2, math.nan), (3, -math.inf), (4, "0.1"), (5, True)], 1, 0.5),
        ([(1, 0.5), (2, 0.5)], 1, 0.5),  # the first of equals
        ([(2, 0.5), (1, 0.25)], 1, 0.25),  # a late one
        ([(1, 0.5), (2, 0.25), (2, 0.75)], 1, 0.5),  # logged again, with another value
    ],
)
def test_the_best_value_and_its_step(values: list[tuple[int, Any]], step: int, value: float) -> None:
    """Only finite numbers count."""
    assert filled(values).summary() == {"best/validate/loss": value, "best_step/validate/loss": step}


def test_a_direction_per_metric_or_pattern() -> None:
    """A metric by its name first; one that nobody named has no best."""
    best = Best({"validate/*": "max", "validate/loss": "min"})
    changed = best.add(1, {"validate/loss": 0.5, "validate/acc": 0.5, "train/loss": 0.5})
    best.add(2, {"validate/loss": 0.75, "validate/acc": 0.75, "train/loss": 0.25})

    assert changed == {"validate/loss", "validate/acc"}
    assert best.summary(["validate/acc"]) == {"best/validate/acc": 0.75, "best_step/validate/acc": 2}
    assert best.summary()["best/validate/loss"] == 0.5
    assert Best({}).add(1, {"validate/loss": 0.5}) == set()


def test_a_resume_goes_back_behind_what_was_cut() -> None:
    """With the state of the cut, and with a later one: the first line behind it tells where training went on."""
    exact, later = filled([]), filled([])
    exact.restore(json.loads(json.dumps(filled([(1, 0.5), (2, 0.4)]).state())))
    later.restore(json.loads(json.dumps(filled([(1, 0.5), (2, 0.4), (3, 0.1), (4, 0.05)]).state())))
    for best in (exact, later):
        assert best.add(3, {"validate/loss": 0.3}) == {"validate/loss"}
        best.add(4, {"validate/loss": 0.6})

        assert best.summary() == {"best/validate/loss": 0.3, "best_step/validate/loss": 3}


def test_a_cut_that_is_not_improved_on_changes_the_best() -> None:
    """What is gone is not the best any more, even if what comes instead is worse than all."""
    best = filled([])
    best.restore(filled([(1, 0.5), (3, 0.1)]).state())

    assert best.add(3, {"validate/loss": 0.9}) == {"validate/loss"}
    assert best.summary() == {"best/validate/loss": 0.5, "best_step/validate/loss": 1}


def test_checkpoints_are_best_if_something_improved_since_the_one_before() -> None:
    """Also when they are told of late, and once per improvement."""
    best = Best({"validate/loss": "min", "validate/acc": "max"})
    best.add(1, {"validate/loss": 0.5, "validate/acc": 0.5})
    assert best.aliases(2) == ["best", "best-validate-loss", "best-validate-acc"]
    best.note_checkpoint(2)
    assert best.aliases(4) == []
    best.note_checkpoint(4)
    best.add(5, {"validate/loss": 0.75, "validate/acc": 0.75})
    best.add(9, {"validate/loss": 0.25, "validate/acc": 0.25})

    assert best.aliases(6) == ["best-validate-acc"]
    assert best.aliases(9) == ["best", "best-validate-loss", "best-validate-acc"]


@pytest.mark.parametrize("directions", [{"loss": "down"}, {1: "min"}])
def test_bad_directions_are_refused(directions: Any) -> None:
    """Where they are written."""
    with pytest.raises(MetricNameError, match=r"best maps metrics to 'min' or 'max', such as .*, got "):
        Best(directions)


@pytest.mark.parametrize("state", [[], {"found": {}}, {"found": {"m": [1]}, "checkpoint": 1}])
def test_a_foreign_state_is_refused(state: Any) -> None:
    """With what was got."""
    with pytest.raises(RecordError, match="the state of a WandbLogger has bad best: got "):
        Best({}).restore(state)
