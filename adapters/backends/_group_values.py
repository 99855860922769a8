"""What of a line of metrics can be points of series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.backends._group_events import LAST_STEP
from adapters.backends._group_names import check_key
from loggers.errors import MetricNameError, StepError
from loggers.values import plain


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


def _no_number(value: Any) -> str:
    return f"got {type(value).__name__} {value!r:.60}, and series hold numbers only: pass it to log_other()"
