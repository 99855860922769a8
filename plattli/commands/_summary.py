"""One metric in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from plattli._format import JSONL
from plattli.commands._runs import UNREADABLE
from plattli.reader import Reader

#: What stands for the dtype of a metric that no column holds yet.
HOT_ONLY: Final = "hot"


@dataclass(frozen=True)
class MetricSummary:
    """Where a metric stands.

    Attributes:
        name: the metric.
        dtype: its storage dtype, ``"jsonl"``, or ``"hot"`` if the manifest does not know it yet.
        count: rows.
        first_step, last_step: of the first and the last row; ``None`` without rows.
        last: the last value as plain Python; ``None`` without rows.
        min, max: over all values but NaN; ``None`` for JSON, and where nothing is left.
        nan: how many values are NaN.
        problem: why the metric could not be read; everything else is empty then.
    """

    name: str
    dtype: str
    count: int = 0
    first_step: int | None = None
    last_step: int | None = None
    last: Any = None
    min: float | None = None
    max: float | None = None
    nan: int = 0
    problem: str | None = None


def summarize(reader: Reader, name: str) -> MetricSummary:
    """Read a metric, only its ends if its values are JSON. What cannot be read becomes the problem."""
    spec = reader.manifest().get(name)
    dtype = spec["dtype"] if spec else HOT_ONLY
    try:
        if dtype == JSONL:
            return _ends(reader, name)
        steps, values = reader.metric(name, dtype="storage")
    except UNREADABLE as error:
        return MetricSummary(name, dtype, problem=str(error))
    if not len(steps):
        return MetricSummary(name, dtype)
    ends = int(steps[0]), int(steps[-1]), _plain(values[-1])
    if values.dtype == object and not all(type(value) in (int, float) for value in values):
        return MetricSummary(name, dtype, len(steps), *ends)
    kept = values[values == values]  # NaN is the one value that does not equal itself
    low, high = (_plain(kept.min()), _plain(kept.max())) if len(kept) else (None, None)
    return MetricSummary(name, dtype, len(steps), *ends, low, high, len(values) - len(kept))


def _ends(reader: Reader, name: str) -> MetricSummary:
    count = reader.rows(name)
    if not count:
        return MetricSummary(name, JSONL)
    first = int(reader.metric_indices(name, istart=0, istop=1)[0])
    step, value = reader.metric(name, idx=-1)
    return MetricSummary(name, JSONL, count, first, int(step), value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
