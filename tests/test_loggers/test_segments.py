"""Delivered steps: as a set, in a few segments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loggers import _segments

STEPS = st.integers(0, 60)


def held(segments: list[list[int]]) -> set[int]:
    return {step for segment in segments for step in range(*segment)}


ADDED = st.tuples(st.just("add"), st.sets(STEPS, min_size=1, max_size=20))
CUT = st.tuples(st.just("cut"), st.sets(STEPS, max_size=8))


@given(st.lists(st.one_of(ADDED, ADDED, CUT, STEPS), max_size=12))
def test_segments_hold_what_a_set_holds(deeds: list[tuple[str, set[int]] | int]) -> None:
    """Whatever is added, late or not, and whatever is cut out."""
    segments: list[list[int]] = []
    expected: set[int] = set()
    for deed in deeds:
        if isinstance(deed, int):
            segments = _segments.cut_off(segments, deed)
            expected = {step for step in expected if step < deed}
        elif deed[0] == "cut":
            segments = _segments.cut_out(segments, deed[1])
            expected -= deed[1]
        else:
            segments = _segments.extended(segments, np.array(sorted(deed[1]), np.int64))
            expected |= deed[1]
        assert held(segments) == expected
        assert _segments.last(segments) == max(expected, default=-1)
        every = np.arange(61)
        assert set(_segments.without(every, segments).tolist()) == set(range(61)) - expected


def test_irregular_steps_take_bounded_space() -> None:
    """In the end all earlier steps count as delivered, but never one that may still come."""
    steps = np.cumsum(np.random.default_rng(0).integers(1, 10**15, 3000))
    segments: list[list[int]] = []
    for at in range(0, 3000, 50):
        segments = _segments.extended(segments, steps[at : at + 50])
        assert len(segments) <= 400
        assert not len(_segments.without(steps[: at + 50], segments))
        assert len(_segments.without(steps[at + 50 :], segments)) == 3000 - at - 50
    hole = _segments.cut_out(segments, [int(steps[10])])
    assert _segments.without(steps, hole).tolist() == [steps[10]]
    assert not len(_segments.without(steps, _segments.extended(hole, steps[10:11])))
