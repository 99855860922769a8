"""Delivered steps: a few ``[start, stop, step]`` segments instead of a number per step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from plattli import _indices

#: A metric's delivered steps are kept as this many arithmetic segments at the most.
_MAX_SEGMENTS: Final = 256


def last(delivered: list[list[int]]) -> int:
    """Return the highest step; -1 without any."""
    return _last(_parsed(delivered)) if delivered else -1


def without(steps: np.ndarray[Any, Any], delivered: list[list[int]]) -> np.ndarray[Any, Any]:
    """Return the steps that are not delivered; segments may overlap."""
    unseen = np.ones(len(steps), bool)
    for start, stop, stride in delivered:
        low = np.searchsorted(steps, start)
        high = np.searchsorted(steps, stop - 1, "right")  # int64 may hold no more than that
        if stride == 1:
            unseen[low:high] = False
        else:
            unseen[low:high] &= (steps[low:high] - start) % stride != 0
    return steps[unseen]


def cut_off(delivered: list[list[int]], first: int) -> list[list[int]]:
    """Return the segments without the steps from ``first`` on."""
    return [[low, min(high, first), stride] for low, high, stride in delivered if low < first]


def cut_out(delivered: list[list[int]], steps: Iterable[int]) -> list[list[int]]:
    """Return the segments without some steps."""
    gone = np.unique(np.array([*steps], np.int64))
    kept = []
    for low, high, stride in delivered:
        inside = gone[np.searchsorted(gone, low) : np.searchsorted(gone, high - 1, "right")]
        for step in inside[(inside - low) % stride == 0].tolist():
            if step > low:
                kept.append([low, step, stride])
            low = step + stride
        if low < high:
            kept.append([low, high, stride])
    return kept


def extended(delivered: list[list[int]], steps: np.ndarray[Any, Any]) -> list[list[int]]:
    """Return the segments with ``steps`` (increasing) added, of which the last is the newest delivered so far."""
    newest = int(steps[-1])
    steps = without(steps, delivered)
    end = last(delivered)
    late = [[step, step + 1, 1] for step in steps[steps <= end].tolist()]
    before = _parsed(_joined([*delivered, *late]) if late else delivered)
    rows = sum(len(range(s.start, s.stop or 0, s.step)) for s in before)
    new = steps[steps > end]
    after = _indices.close(_indices.extend(before, rows, new), rows + len(new)) if len(new) else before
    if len(after) > _MAX_SEGMENTS:
        # too irregular to keep: all earlier steps count as delivered; what is logged there later on is in the journal
        half = [segment for segment in after[: len(after) // 2] if (segment.stop or 0) <= newest + 1]
        if len(half) > 1:
            after = [_indices.Segment(half[0].start, half[-1].stop or 0, 1), *after[len(half) :]]
    return [[segment.start, segment.stop or 0, segment.step] for segment in after]


def _joined(segments: list[list[int]]) -> list[list[int]]:
    """Return the same steps in fewer segments, in the order of their last steps."""
    joined: list[range] = []
    for steps in sorted((range(*segment) for segment in segments), key=lambda steps: steps[0]):
        before = joined[-1] if joined else steps
        gap = steps[0] - before[-1]
        if gap > 0 and (len(before) == 1 or before.step == gap) and (len(steps) == 1 or steps.step == gap):
            joined[-1] = range(before[0], steps[-1] + 1, gap)
        else:
            joined.append(steps)
    return [[steps.start, steps.stop, steps.step] for steps in sorted(joined, key=lambda steps: steps[-1])]


def _last(segments: list[_indices.Segment]) -> int:
    return max(range(s.start, s.stop or 0, s.step)[-1] for s in segments)


def _parsed(spec: list[list[int]]) -> list[_indices.Segment]:
    return [_indices.Segment(*segment) for segment in spec]
