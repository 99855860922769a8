"""Steps of a column, spelled as arithmetic segments: pure rules, no files.

A spec is a list of segments ``start, start + step, …`` below ``stop``. The last one may lack its
``stop``: it then has as many rows as the value file has left for it. Throughout, ``rows`` is the
number of rows that a column really has, which may be fewer than its segments promise.

A spec is *wide* if its column has steps that uint32 cannot hold. A manifest then spells it inside an
object, ``{"u64": …}``, which readers that do not know of such steps refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plattli._format import INDICES_FILE, MAX_NARROW_STEP, MAX_STEP, WIDE
from plattli.errors import CorruptRunError


class Segment(NamedTuple):
    """The steps ``range(start, stop, step)``; ``stop=None`` is an open tail."""

    start: int
    stop: int | None
    step: int


def is_wide(spec: object) -> bool:
    """Tell whether the ``indices`` value of a manifest entry is of a column whose steps take uint64."""
    return isinstance(spec, dict) and spec.keys() == {WIDE}


def parse(spec: object, metric: str, run: str) -> list[Segment] | None:
    """Return the segments of a manifest entry, ``None`` if it points to the step file.

    Args:
        spec: the ``indices`` value of the entry: ``"indices"``, a list of segment objects, one bare
            segment object as older releases wrote it, or any of these inside ``{"u64": …}``.
        metric, run: for the message.

    Raises:
        CorruptRunError: the entry is none of these, or its segments break the rules.
    """
    highest = MAX_NARROW_STEP
    if isinstance(spec, dict) and is_wide(spec):
        spec, highest = spec[WIDE], MAX_STEP
    if spec == INDICES_FILE:
        return None
    if isinstance(spec, dict):
        spec = [spec]
    where = f"of metric {metric!r} (run {run!r})"
    if not isinstance(spec, list):
        raise CorruptRunError(f"invalid indices spec {spec!r} {where}")
    segments: list[Segment] = []
    last = -1
    for position, item in enumerate(spec):
        segment = _parse_segment(item, where)
        if segment.start <= last:
            raise CorruptRunError(f"segment {item!r} {where} must start after the step {last} before it")
        segments.append(segment)
        if segment.stop is None:
            if position != len(spec) - 1:
                raise CorruptRunError(f"segment {item!r} {where} lacks a stop, as only the final one may")
            last = segment.start
        else:
            last = segment.start + (_length(segment) - 1) * segment.step
        if last > highest:
            raise CorruptRunError(f"segment {item!r} {where} has steps above {highest}")
    return segments


def _parse_segment(item: Any, where: str) -> Segment:
    try:
        start, step = int(item["start"]), int(item["step"])
        stop = int(item["stop"]) if "stop" in item else None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRunError(f"segment {item!r} {where} needs integers start, step and stop") from error
    if start < 0 or step <= 0 or (stop is not None and stop <= start):
        raise CorruptRunError(f"segment {item!r} {where} needs 0 <= start < stop and step > 0")
    return Segment(start, stop, step)


def dump(segments: Sequence[Segment]) -> list[dict[str, int]]:
    """Return ``segments`` as a manifest spells them."""
    return [
        {"start": start, "step": step} if stop is None else {"start": start, "stop": stop, "step": step}
        for start, stop, step in segments
    ]


def spell(segments: Sequence[Segment] | None, wide: bool) -> object:
    """Return the ``indices`` value of a manifest entry.

    Args:
        segments: ``None`` if the steps are in the step file.
        wide: whether some of them take uint64.
    """
    spec = INDICES_FILE if segments is None else dump(segments)
    return {WIDE: spec} if wide else spec


def count(segments: Sequence[Segment], available: int) -> int:
    """Return how many rows can be read if the value file holds ``available`` complete values."""
    if not segments:
        return 0
    if segments[-1].stop is None:
        return available
    return min(available, sum(map(_length, segments)))


def to_array(
    segments: Sequence[Segment], rows: int, first: int = 0, *, wide: bool = False
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the steps of rows ``first .. rows - 1``.

    Returns:
        uint32 [rows - first]; uint64 if ``wide``.

    Raises:
        CorruptRunError: a step is too high for that, or the segments have fewer rows.
    """
    highest, dtype = (MAX_STEP, np.uint64) if wide else (MAX_NARROW_STEP, np.uint32)
    pieces: list[np.ndarray[Any, np.dtype[Any]]] = []
    at = -first
    for segment, length in _lengths(segments, rows):
        end = segment.start + length * segment.step
        if end - segment.step > highest:
            raise CorruptRunError(f"segment {segment} with {length} rows has steps above {highest}")
        if (skip := max(0, -at)) < length:
            pieces.append(_steps(segment, skip, length, dtype))
        at += length
    if at < rows - first:
        raise CorruptRunError(f"segments hold {at + first} steps, {rows} were wanted")
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, dtype)


def _steps(segment: Segment, first: int, behind: int, dtype: Any) -> np.ndarray[Any, np.dtype[Any]]:
    # rows first .. behind - 1 of a segment, whose last step the dtype holds
    begin, end = (segment.start + row * segment.step for row in (first, behind))
    if behind - first == 1:
        return np.array([begin], dtype)
    if end > MAX_STEP:  # the last step is not, but no arange takes such an end
        steps = np.arange(behind - first, dtype=dtype)
        steps *= dtype(segment.step)
        steps += dtype(begin)
        return steps
    return np.arange(begin, end, segment.step, dtype=dtype)


def step_at(segments: Sequence[Segment], row: int) -> int:
    """Return the step of one row, counted from 0.

    Raises:
        IndexError: the segments have no such row.
    """
    for segment, length in _lengths(segments, row + 1):
        if row < length:
            return segment.start + row * segment.step
        row -= length
    raise IndexError(f"segments have no row {row} more")


def positions(
    segments: Sequence[Segment], rows: int, start: float | None, stop: float | None
) -> tuple[int, int]:
    """Return the rows ``[low, high)`` whose steps lie in ``start .. stop``, both inclusive.

    Args:
        segments: the spec.
        rows: how many rows there are.
        start, stop: any numbers, ``None`` for no bound. NaN contains nothing.
    """
    low, end = bounds(start, stop)
    first = _below(segments, rows, low)
    return first, max(first, _below(segments, rows, end))


def bounds(start: float | None, stop: float | None) -> tuple[int, int]:
    """Return the half-open range of integer steps that lie in ``start .. stop``, both inclusive.

    Args:
        start, stop: any numbers, ``None`` for no bound. NaN contains nothing.

    Returns:
        The first step inside and the first one behind, both in ``0 .. 2**63``.
    """
    if start != start or stop != stop:
        return 0, 0
    low = 0 if start is None else _clamp(start, math.ceil)
    end = MAX_STEP + 1 if stop is None else _clamp(stop, lambda bound: math.floor(bound) + 1)
    return low, max(low, end)


def _clamp(bound: float, rounding: Callable[[float], int]) -> int:
    if isinstance(bound, np.integer):
        bound = int(bound)  # math would round it as a float, which cannot hold every step
    # compared before rounding: an infinity cannot be rounded
    return 0 if bound < 0 else rounding(bound) if bound <= MAX_STEP else MAX_STEP + 1


def limit(rows: int) -> int:
    """Return how many segments a column of ``rows`` rows may have before its steps go to a file."""
    return min(32, max(4, rows // 10))


def extend(
    segments: Sequence[Segment], rows: int, steps: np.ndarray[Any, np.dtype[Any]]
) -> list[Segment]:
    """Append ``steps`` after the first ``rows`` rows.

    A segment takes the stride of its first two rows and goes on while it holds. Before a shorter stride it
    leaves its last row to the next segment, so that its ``stop`` is not above that one's ``start``: plattli
    0.19.0, when it cuts a column in between, drops all segments behind. If the final segment was open, or
    there was none, the new final one is open too; a closed one leads to a closed one.

    Args:
        segments: the spec so far.
        rows: how many of its rows exist.
        steps: integer [n], strictly increasing and above the last existing step.

    Raises:
        CorruptRunError: the steps are out of order.
    """
    is_open = not segments or segments[-1].stop is None
    kept = _cut(segments, rows)
    values = np.asarray(steps).astype(np.int64, copy=False)
    first = 0  # where in values the next new segment begins
    if kept:
        start, stride, length = kept[-1].start, kept[-1].step, rows - _rows_before_last(kept)
        values = np.concatenate([[start + (length - 1) * stride], values])
    gaps = np.diff(values)
    if (gaps <= 0).any():
        at = int(np.flatnonzero(gaps <= 0)[0])
        raise CorruptRunError(f"step {values[at + 1]} is out of order: it comes after step {values[at]}")
    if kept:
        kept.pop()
        if length > 1:
            # the old tail takes what continues its stride; with one row its stride is still to be chosen
            others = np.flatnonzero(gaps != stride)
            first = int(others[0]) + 1 if len(others) else len(values)
            if len(others) and gaps[first - 1] < stride:
                first -= 1
            kept.append(_closed(start, stride, length + first - 1))
    kept += _greedy(values, gaps, first)
    if kept and is_open:
        kept[-1] = kept[-1]._replace(stop=None)
    return kept


def truncate(segments: Sequence[Segment], rows: int, step: int) -> tuple[list[Segment], int]:
    """Keep the rows before ``step``.

    Returns:
        The new segments, in which an open tail stays open if any of its rows is kept, and how many
        of the first ``rows`` rows are kept.
    """
    kept = _below(segments, rows, step)
    return _cut(segments, kept), kept


def fit(steps: np.ndarray[Any, np.dtype[Any]]) -> list[Segment] | None:
    """Return closed segments for a whole column of steps, ``None`` if they are not worth it.

    Not converted are fewer than two rows, steps that do not increase, and whatever would need more
    segments than :func:`limit` allows.
    """
    if len(steps) < 2:
        return None
    values = np.asarray(steps).astype(np.int64, copy=False)
    gaps = np.diff(values)
    if (gaps <= 0).any():
        return None
    most = limit(len(values))
    segments = _greedy(values, gaps, 0, most)
    return segments if len(segments) <= most else None


def close(segments: Sequence[Segment], rows: int) -> list[Segment]:
    """Return the first ``rows`` rows as closed segments with ``stop = start + count * step``."""
    return [_closed(segment.start, segment.step, length) for segment, length in _lengths(segments, rows)]


def _greedy(
    values: np.ndarray[Any, np.dtype[np.int64]],
    gaps: np.ndarray[Any, np.dtype[np.int64]],
    first: int,
    most: int | None = None,
) -> list[Segment]:
    # values[first:] as closed segments; stops early once there are more than `most`
    segments: list[Segment] = []
    changes = np.flatnonzero(gaps[1:] != gaps[:-1]) + 1  # gap indices at which the stride changes
    while first < len(values) and (most is None or len(segments) <= most):
        start = int(values[first])
        if first == len(values) - 1:
            segments.append(_closed(start, 1, 1))
            break
        at = int(changes.searchsorted(first, side="right"))
        last = int(changes[at]) if at < len(changes) else len(values) - 1
        behind = last + 1 if last == len(gaps) or gaps[last] > gaps[first] else last
        segments.append(_closed(start, int(gaps[first]), behind - first))
        first = behind
    return segments


def _closed(start: int, step: int, length: int) -> Segment:
    # one row has no stride
    return Segment(start, start + 1, 1) if length == 1 else Segment(start, start + length * step, step)


def _length(segment: Segment) -> int:
    if segment.stop is None:
        raise ValueError(f"an open segment has no length of its own: {segment}")
    return -((segment.start - segment.stop) // segment.step)


def _lengths(segments: Sequence[Segment], rows: int) -> Iterator[tuple[Segment, int]]:
    # each segment with how many of the first `rows` rows are its own, those without any left out
    for segment in segments:
        if rows <= 0:
            return
        length = rows if segment.stop is None else min(rows, _length(segment))
        yield segment, length
        rows -= length


def _rows_before_last(segments: Sequence[Segment]) -> int:
    return sum(map(_length, segments[:-1]))


def _below(segments: Sequence[Segment], rows: int, step: int) -> int:
    # how many of the first `rows` rows are before `step`
    below = 0
    for segment, length in _lengths(segments, rows):
        if step <= segment.start:
            break
        inside = min(length, -((segment.start - step) // segment.step))
        below += inside
        if inside < length:
            break
    return below


def _cut(segments: Sequence[Segment], rows: int) -> list[Segment]:
    # like close, but an open tail that has a row stays open
    return [
        segment if segment.stop is None else _closed(segment.start, segment.step, length)
        for segment, length in _lengths(segments, rows)
    ]
