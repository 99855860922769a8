"""A metric as points to draw, and thinned for a picture of so many pixels without losing a spike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plattli.commands._text import plain_value, shorten

Floats: TypeAlias = NDArray[np.float64]
#: Values are clipped to these: the size of a range, its parts and the decades around it stay floats.
_HUGE: Final = 4e307
_TINY: Final = 1e-300
#: A range below this is flat, relative to the values in it.
_FLAT: Final = 1e-12


@dataclass(frozen=True)
class Series:
    """One line of a picture.

    Attributes:
        label: what the legend calls it.
        steps: float64 [n], ascending.
        values: float64 [n]. What is not finite is a gap in the line.
        note: what the legend adds in brackets, perhaps empty.
    """

    label: str
    steps: Floats
    values: Floats
    note: str = ""


class Box(NamedTuple):
    """The part of the plane that a picture shows."""

    left: float
    right: float
    low: float
    high: float


def as_floats(values: NDArray[Any]) -> Floats:
    """Return a column as float64 [n]; among JSON values, null is NaN and booleans are 0 and 1.

    Raises:
        TypeError: a JSON value is no number; the message shows it.
    """
    if values.dtype != object:
        return values.astype(np.float64)
    floats = np.empty(len(values))
    for at, value in enumerate(values):
        if value is not None and not isinstance(value, int | float):
            shown = shorten(plain_value(value), 40)
            raise TypeError(f"only numbers can be drawn, and it holds JSON such as {shown}")
        floats[at] = np.nan if value is None else value
    return floats


def make_series(label: str, steps: NDArray[Any], values: NDArray[Any], *, log_y: bool) -> Series:
    """Return a metric as a line, sorted by step, without what the axis cannot show; the note says so.

    Raises:
        TypeError: the values are not numbers.
    """
    floats = as_floats(values)
    notes = []
    if gaps := int((~np.isfinite(floats)).sum()):
        notes.append(f"{gaps} not finite")
    if log_y:
        with np.errstate(invalid="ignore"):
            below = floats <= 0
        if below.any():
            notes.append(f"{int((below & np.isfinite(floats)).sum())} not above 0")
            floats = np.where(below, np.nan, floats)
    lowest = _TINY if log_y else -_HUGE
    floats = np.where(np.isfinite(floats), floats.clip(lowest, _HUGE), floats)
    order = np.argsort(steps, kind="stable")
    return Series(label, steps[order].astype(np.float64), floats[order], ", ".join(notes))


def box_of(series: Sequence[Series], *, log_y: bool) -> Box | None:
    """Return the smallest box with some area around all finite points, ``None`` if there are none.

    On a logarithmic axis low and high are still values, not exponents.
    """
    finite = [(line, np.isfinite(line.values)) for line in series]
    lines = [(line.steps[kept], line.values[kept]) for line, kept in finite if kept.any()]
    if not lines:
        return None
    left, right = min(s[0] for s, _ in lines), max(s[-1] for s, _ in lines)
    low, high = min(v.min() for _, v in lines), max(v.max() for _, v in lines)
    if left == right:
        left, right = left - 0.5, right + 0.5
    size = max(abs(low), abs(high))
    if high - low <= max(size * _FLAT, _TINY):  # flat, as far as a picture can tell
        margin = size / 2 if size > _TINY else 0.5
        low, high = (low / 2, high * 2) if log_y else (low - margin, high + margin)
    return Box(float(left), float(right), float(low), float(high))


def thin(line: Series, box: Box, columns: int) -> tuple[Floats, Floats]:
    """Return at most some points per pixel column: its first, lowest, highest and last one.

    A line through them covers the same pixels as the line through all points. A gap between two
    columns stays a gap: a NaN stands in it. Gaps inside one pixel column are too small to see.

    Returns:
        steps and values, float64 [m], with m below 5 * ``columns`` unless everything is returned.
    """
    if len(line.steps) <= 4 * columns:
        return line.steps, line.values
    finite = np.flatnonzero(np.isfinite(line.values))
    if not len(finite):
        return line.steps[:0], line.values[:0]
    steps, values = line.steps[finite], line.values[finite]
    column = ((steps - box.left) / (box.right - box.left) * columns).astype(np.int64).clip(0, columns - 1)
    begins = np.flatnonzero(np.diff(column, prepend=-1))
    ends = np.append(begins[1:], len(column)) - 1
    group = np.repeat(np.arange(len(begins)), ends - begins + 1)
    kept = [begins, ends]
    for extreme in (np.minimum, np.maximum):
        at = np.flatnonzero(values == extreme.reduceat(values, begins)[group])
        kept.append(at[np.unique(group[at], return_index=True)[1]])
    points = np.unique(np.concatenate(kept))
    # a value was missing between two columns if their neighbours were no neighbours before
    torn = begins[1:][finite[begins[1:]] - finite[ends[:-1]] > 1]
    at = np.searchsorted(points, torn)
    return np.insert(steps[points], at, steps[torn]), np.insert(values[points], at, np.nan)
