"""What TensorBoard can show of the values that drivers log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from adapters.backends import _tfproto
from loggers.errors import MetricValueError, StepError


def showable(step: int) -> int:
    """Return ``step`` if an event can carry it.

    Raises:
        StepError: it cannot.
    """
    if step > _tfproto.LAST_STEP:
        raise StepError(f"step must be below 2**63, got {step}: TensorBoard has no room for more")
    return step


def not_numbers(row: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> what is wrong, for what is no real number among plain values."""
    return {
        name: f"got {type(value).__name__} {value!r:.60}, and TensorBoard draws numbers only: pass it to "
        "log_other(), or write it with backend(logger).add_text()"
        for name, value in row.items()
        if not isinstance(value, (float, int))
    }


def wall_time(seconds: Any) -> float:
    """Return Unix seconds; ``None`` is now.

    Raises:
        MetricValueError: no number.
    """
    try:
        return time.time() if seconds is None else float(seconds)
    except (TypeError, ValueError, OverflowError):
        problem = f"walltime must be Unix seconds, got {seconds!r:.60}: pass time.time()"
        raise MetricValueError(problem) from None


def hparam(value: Any) -> _tfproto.HParam:
    """Return a param as the HParams table can show it: what is no exact double becomes text."""
    if isinstance(value, str) or (isinstance(value, int) and abs(value) <= 2**53):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
