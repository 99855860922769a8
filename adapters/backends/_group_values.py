"""What of a line of metrics can be points of series, and what a confusion matrix is as an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from adapters.backends._group_events import LAST_STEP
from adapters.backends._group_names import check_key
from loggers.errors import MetricNameError, StepError
from loggers.values import check_confusion, check_context, check_epoch, check_step, plain

#: What lets a line go without a closer look: the types of its values, and the names known of an unknown context.
FLOATS: Final = {float}
NOTHING: Final[set[str]] = set()
NO_PROBLEMS: Final[Mapping[str, str]] = {}


class PointValues:
    """Takes the values of lines, and remembers which names are good for keys.

    Attributes:
        known: context -> names that are.
    """

    def __init__(self) -> None:
        self.known: dict[str, set[str]] = {}

    def of(self, context: str, metrics: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, str]]:
        """Return the numbers of a line, and what is wrong with the rest, both by name.

        Raises:
            MetricValueError: ``metrics`` is no mapping.
        """
        known = self.known.setdefault(context, set())
        values, problems = plain(metrics)
        if values is not metrics:  # else there was nothing but numbers
            bad = {name: _no_number(value) for name, value in values.items() if not isinstance(value, (float, int))}
            values, problems = {name: values[name] for name in values if name not in bad}, {**problems, **bad}
        if not values.keys() <= known:
            bad = {}
            for name in values.keys() - known:
                try:
                    check_key(f"{context}/{name}")
                    known.add(name)
                except MetricNameError as error:
                    bad[name] = str(error)
            values, problems = {name: values[name] for name in values if name not in bad}, {**problems, **bad}
        return values, problems


def storable(step: int) -> int:
    """Return a step or an epoch that int64 can hold.

    Raises:
        StepError: it cannot.
    """
    if step > LAST_STEP:
        raise StepError(f"steps and epochs must be below 2**63, got {step}: int64 arrays have no room for more")
    return step


def confusion_event(
    matrix: Any, labels: Any, epoch: Any, step: Any, context: Any, name: Any
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the key, the value and the further fields of a confusion matrix's event.

    Raises:
        ConfusionError, StepError, MetricNameError: as for ``log_confusion``.
    """
    rows, classes = check_confusion(matrix, labels)
    more: dict[str, Any] = {} if step is None else {"step": storable(check_step(step))}
    if not isinstance(name, str) or not name:
        raise MetricNameError(f"the name of a confusion matrix must be a non-empty string, got {name!r}")
    key = str.__str__(name)
    if context is not None:
        more["tags"] = {"context": check_context(context)}
        key = f"{more['tags']['context']}/{key}"
    return key, {"epoch": check_epoch(epoch), "labels": classes, "matrix": rows}, more


def _no_number(value: Any) -> str:
    return f"got {type(value).__name__} {value!r:.60}, and series hold numbers only: pass it to log_other()"
