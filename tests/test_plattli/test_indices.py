"""Index specs against naive, row-by-row versions of the same rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plattli import _indices
from plattli._format import MAX_NARROW_STEP, MAX_STEP
from plattli._indices import Segment
from plattli.errors import CorruptRunError


def naive_extend(segments, rows, steps):
    """Append row by row, as a writer that knows only the last segment would."""
    is_open = not segments or segments[-1].stop is None
    runs = []  # [start, step, count]
    for segment in segments:
        n = rows if segment.stop is None else len(range(segment.start, segment.stop, segment.step))
        n = min(n, rows)
        rows -= n
        if n:
            runs.append([segment.start, segment.step if n > 1 else 1, n])
    for value in map(int, steps):
        if not runs:
            runs.append([value, 1, 1])
            continue
        start, step, n = runs[-1]
        last = start + (n - 1) * step
        if value <= last:
            raise CorruptRunError("out of order")
        if n == 1:
            runs[-1] = [start, value - start, 2]
        elif value == last + step:
            runs[-1][2] += 1
        elif value < last + step:
            runs[-1] = [start, step if n > 2 else 1, n - 1]
            runs.append([last, value - last, 2])
        else:
            runs.append([value, 1, 1])
    result = [Segment(start, start + n * step if n > 1 else start + 1, step) for start, step, n in runs]
    if result and is_open:
        result[-1] = result[-1]._replace(stop=None)
    return result


def naive_values(segments, rows):
    """The first rows, one at a time."""
    values = []
    for segment in segments:
        value = segment.start
        while len(values) < rows and (segment.stop is None or value < segment.stop):
            values.append(value)
            value += segment.step
    return values


#: increasing steps that come in arithmetic stretches, as steps of real runs do
gaps = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=12).map(
    lambda runs: [gap for gap, times in runs for _ in range(times)]
)


@st.composite
def increasing(draw):
    """Strictly increasing steps."""
    return np.cumsum([draw(st.integers(0, 5)), *draw(gaps)])


@st.composite
def specs(draw):
    """Segments as a writer may have left them, with how many of their rows exist."""
    segments = naive_extend([], 0, draw(increasing()))
    total = len(naive_values(segments[:-1], math.inf))
    tail = draw(st.integers(0, 6))
    if draw(st.booleans()):
        last = segments[-1]
        # older releases stopped right behind the last step
        stop = last.start + max(tail, 1) * last.step - draw(st.integers(0, last.step - 1))
        segments[-1] = last._replace(stop=stop)
        tail = max(tail, 1)
    return segments, draw(st.one_of(st.just(total + tail), st.integers(0, total + tail)))


@given(specs())
def test_to_array_is_the_rows_in_order(spec):
    """Every step comes out, in order, as uint32."""
    segments, rows = spec

    steps = _indices.to_array(segments, rows)

    assert steps.dtype == np.uint32
    assert steps.tolist() == naive_values(segments, rows)
    assert [_indices.step_at(segments, row) for row in range(rows)] == steps.tolist()
    for first in range(rows + 1):
        assert _indices.to_array(segments, rows, first).tolist() == steps[first:].tolist()


@given(specs(), st.integers(0, 100))
def test_count_is_the_shorter_of_steps_and_values(spec, available):
    """An open tail takes every value there is; closed segments take no more than they have."""
    segments, _ = spec

    assert _indices.count(segments, available) == len(naive_values(segments, available))


@given(specs(), st.lists(st.floats(-20, 200) | st.integers(-20, 200) | st.none(), min_size=2, max_size=2))
def test_positions_are_those_of_a_scan(spec, bounds):
    """A range of steps is found without looking at the steps."""
    segments, rows = spec
    start, stop = bounds
    wanted = [
        row
        for row, step in enumerate(naive_values(segments, rows))
        if (start is None or step >= start) and (stop is None or step <= stop)
    ]

    low, high = _indices.positions(segments, rows, start, stop)

    assert list(range(low, high)) == wanted


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((-math.inf, math.inf), (0, 3)),
        ((math.inf, None), (3, 3)),
        ((None, -math.inf), (0, 0)),
        ((math.nan, None), (0, 0)),
        ((None, math.nan), (0, 0)),
        ((10**400, None), (3, 3)),
        ((None, -(10**400)), (0, 0)),
        ((np.uint32(2), np.float32(2)), (2, 3)),
    ],
)
def test_positions_take_any_number(bounds, expected):
    """Infinities, NaN, huge integers and NumPy scalars are bounds like any other."""
    assert _indices.positions([Segment(0, None, 1)], 3, *bounds) == expected


@given(specs(), gaps)
def test_extend_follows_the_row_by_row_rules(spec, more):
    """Appending a batch at once gives the segments that appending its rows one by one gives."""
    segments, rows = spec
    values = naive_values(segments, rows)
    steps = np.cumsum([values[-1] if values else 0, *more])[1:].astype(np.uint32)

    extended = _indices.extend(segments, rows, steps)

    assert extended == naive_extend(segments, rows, steps)
    assert naive_values(extended, rows + len(steps)) == values + steps.tolist()


@given(increasing())
def test_no_segment_stops_behind_the_start_of_the_next(steps):
    """Another implementation, cutting a column at a step in between, would lose rows."""
    segments = _indices.close(_indices.extend([], 0, steps), len(steps))

    assert all(segment.stop <= following.start for segment, following in itertools.pairwise(segments))


@pytest.mark.parametrize("steps", [[4], [3], [7, 7], [5, 9, 6]])
def test_extend_refuses_steps_out_of_order(steps):
    """A step at or before the last one cannot be appended."""
    with pytest.raises(CorruptRunError, match="out of order"):
        _indices.extend([Segment(0, None, 2)], 3, np.array(steps, np.uint32))


@given(specs(), st.integers(0, 100))
def test_truncate_keeps_the_rows_before_a_step(spec, step):
    """What is kept are the rows below the step; an open tail with a row left stays open."""
    segments, rows = spec
    values = [value for value in naive_values(segments, rows) if value < step]

    kept, count = _indices.truncate(segments, rows, step)

    assert count == len(values)
    assert naive_values(kept, count) == values
    assert _indices.count(kept, 1000) in (count, 1000)
    assert not any(segment.stop is None for segment in kept[:-1])
    if kept and kept[-1].stop is None:
        assert segments[-1].stop is None
        assert values[-1] >= kept[-1].start


@given(specs())
def test_close_is_canonical(spec):
    """Closed segments hold exactly the rows, and stop one stride behind their last step."""
    segments, rows = spec

    closed = _indices.close(segments, rows)

    assert naive_values(closed, math.inf) == naive_values(segments, rows)
    assert all((segment.stop - segment.start) % segment.step == 0 for segment in closed)
    assert _indices.close(closed, rows) == closed


@given(increasing())
def test_fit_is_a_whole_column_at_once(steps):
    """Fitting equals appending row by row, then closing, within the limit on segments."""
    naive = _indices.close(naive_extend([], 0, steps), len(steps))
    worth_it = len(steps) >= 2 and len(naive) <= _indices.limit(len(steps))

    assert _indices.fit(steps.astype(np.uint32)) == (naive if worth_it else None)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0, 1, 2, 10, 12, 14, 15, 30, 45], [(0, 3, 1), (10, 14, 2), (14, 16, 1), (30, 60, 15)]),
        ([5, 9, 10], [(5, 6, 1), (9, 11, 1)]),
        ([7], None),
        ([], None),
        ([1, 1], None),
        ([2, 1], None),
        ([0, MAX_NARROW_STEP], [(0, 2 * MAX_NARROW_STEP, MAX_NARROW_STEP)]),
        ([0, MAX_STEP], [(0, 2 * MAX_STEP, MAX_STEP)]),
    ],
)
def test_fit_examples(steps, expected):
    """Known columns, among them those that have no segments."""
    assert _indices.fit(np.array(steps, np.int64)) == expected


@pytest.mark.parametrize(
    ("segments", "rows", "stays"),
    [(4, 7, 1), (5, 49, 0), (5, 50, 1), (31, 309, 0), (31, 310, 1), (32, 320, 1), (33, 900, 0)],
)
def test_limit_edges(segments, rows, stays):
    """A tenth of the rows, but four are always fine and more than 32 never."""
    assert (segments <= _indices.limit(rows)) == stays


@given(specs())
def test_dump_and_parse_are_inverse(spec):
    """A manifest gives back the segments that were put in."""
    segments, _ = spec

    dumped = _indices.dump(segments)

    assert _indices.parse(dumped, "loss", "run") == segments
    assert all(list(item) in (["start", "stop", "step"], ["start", "step"]) for item in dumped)


def test_parse_other_spellings():
    """The step file is no segments at all; one bare object is a list of one."""
    assert _indices.parse("indices", "loss", "run") is None
    assert _indices.parse({"start": 1, "stop": 4, "step": 2, "note": 1}, "loss", "run") == [Segment(1, 4, 2)]
    assert _indices.parse([], "loss", "run") == []


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "index",
        3,
        [None],
        [{"start": 0, "stop": 5}],
        [{"stop": 5, "step": 1}],
        [{"start": 0, "stop": None, "step": 1}],
        [{"start": "x", "stop": 5, "step": 1}],
        [{"start": math.inf, "stop": 5, "step": 1}],
        [{"start": -1, "stop": 5, "step": 1}],
        [{"start": 0, "stop": 5, "step": 0}],
        [{"start": 0, "stop": -5, "step": 1}],
        [{"start": 5, "stop": 5, "step": 1}],
        [{"start": 0, "step": 1}, {"start": 9, "stop": 10, "step": 1}],
        [{"start": 0, "stop": 5, "step": 1}, {"start": 4, "stop": 10, "step": 1}],
        [{"start": 0, "stop": 2**32 + 1, "step": 1}],
        [{"start": 2**32, "step": 1}],
        {"u64": 3},
        {"u64": {"u64": "indices"}},
        {"u64": "indices", "note": 1},
        {"u64": [{"start": 0, "stop": 2**63 + 1, "step": 1}]},
        {"u64": [{"start": 2**63, "step": 1}]},
    ],
)
def test_parse_refuses_what_breaks_the_rules(spec):
    """The error names the metric and the run."""
    with pytest.raises(CorruptRunError, match=r"'loss' \(run 'r1'\)"):
        _indices.parse(spec, "loss", "r1")


def test_a_legacy_stop_may_pass_the_next_start():
    """Only the last step of a segment counts, not its stop."""
    spec = [{"start": 10, "stop": 16, "step": 2}, {"start": 15, "stop": 60, "step": 15}]

    assert _indices.to_array(_indices.parse(spec, "loss", "run"), 6).tolist() == [10, 12, 14, 15, 30, 45]


def test_steps_end_at_the_largest_uint32():
    """A stop above 32 bits is fine, a step is not."""
    last = MAX_NARROW_STEP
    assert _indices.to_array([Segment(last - 3, 2**32 + 2, 3)], 2).tolist() == [last - 3, last]
    with pytest.raises(CorruptRunError, match="above"):
        _indices.to_array([Segment(last - 3, None, 3)], 3)


def test_wide_steps_end_at_the_largest_int64():
    """Their arithmetic neither wraps nor rounds, though their stops and strides may be beyond int64."""
    segments = [Segment(0, 2 * MAX_STEP - 2, MAX_STEP - 1), Segment(MAX_STEP, 3 * MAX_STEP, 2 * MAX_STEP)]

    for first in range(3):
        steps = _indices.to_array(segments, 3, first, wide=True)
        assert steps.dtype == np.uint64
        assert steps.tolist() == [0, MAX_STEP - 1, MAX_STEP][first:]
    assert _indices.positions(segments, 3, np.uint64(MAX_STEP - 1), MAX_STEP) == (1, 3)
    assert _indices.positions(segments, 3, MAX_STEP, None) == (2, 3)
    with pytest.raises(CorruptRunError, match="above"):
        _indices.to_array([Segment(MAX_STEP - 3, None, 3)], 3, wide=True)


def test_wide_spellings():
    """The same words inside an object, which no release without such steps takes for anything."""
    segments = [Segment(1, 2**40, 2)]
    for spec in (None, [], segments):
        assert not _indices.is_wide(_indices.spell(spec, wide=False))
        assert _indices.is_wide(_indices.spell(spec, wide=True))
        assert _indices.parse(_indices.spell(spec, wide=True), "loss", "run") == spec


def test_rows_that_do_not_exist():
    """Asking for more rows than closed segments have is an error, not a guess."""
    with pytest.raises(CorruptRunError, match="3 were wanted"):
        _indices.to_array([Segment(0, 2, 1)], 3)
    with pytest.raises(IndexError):
        _indices.step_at([Segment(0, 2, 1)], 2)


@pytest.mark.parametrize(("wide", "highest"), [(False, MAX_NARROW_STEP), (True, MAX_STEP)])
def test_long_columns_up_to_the_last_step(wide, highest):
    """However many rows there are and wherever they end, steps are what a range holds."""
    rows = 70_000
    for step in (1, 3):
        start = highest - (rows - 1) * step
        tail = Segment(start, None, step)
        found = _indices.to_array([tail], rows, wide=wide)
        assert found.dtype == (np.uint64 if wide else np.uint32)
        assert found.tolist() == list(range(start, highest + 1, step))
        found = _indices.to_array([Segment(5, 6, 1), Segment(9, 17, 4), tail], rows + 3, 2, wide=wide)
        assert found.tolist() == [13, *range(start, highest + 1, step)]
        with pytest.raises(CorruptRunError, match="has steps above"):
            _indices.to_array([tail], rows + 1, wide=wide)
