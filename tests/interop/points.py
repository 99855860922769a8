"""What a run holds, as plain Python: metric -> step -> value; and what becomes of it when it is continued."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

Points = dict[str, dict[int, Any]]


def points(description: Any) -> Points:
    """Return a run's points from what :func:`~tests.interop.reference_worker.describe` said of it."""
    assert "error" not in description, description["text"]
    return {name: _column(metric) for name, metric in description["metrics"].items()}


def _column(metric: Any) -> dict[int, Any]:
    assert "error" not in metric, metric["text"]
    steps, values = _values(*metric["steps"]), _values(*metric["storage"])
    assert len(steps) == len(values) == metric["rows"]
    return dict(zip(steps, map(_comparable, values), strict=True))


def _values(dtype: str, data: str) -> list[Any]:
    values: list[Any] = json.loads(data) if dtype == "object" else np.frombuffer(bytes.fromhex(data), dtype).tolist()
    return values


def _comparable(value: Any) -> Any:
    # NaN equals itself, and -0.0 is not 0.0; integers stay numbers, for what they are does not depend on the width
    return value if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)


def before(old: Points, step: int) -> Points:
    """Return the points that a cut at ``step`` leaves. Metrics stay, even without rows."""
    return {name: {s: value for s, value in column.items() if s < step} for name, column in old.items()}


def added(old: Points, rows: list[tuple[int, dict[str, Any]]]) -> Points:
    """Return the points with more of them."""
    new = {name: dict(column) for name, column in old.items()}
    for step, row in rows:
        for name, value in row.items():
            new.setdefault(name, {})[step] = _comparable(value)
    return new


def highest_step(old: Points) -> int:
    """Return the last step of any metric, -1 without rows."""
    return max((step for column in old.values() for step in column), default=-1)
