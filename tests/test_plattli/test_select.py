"""Ranges and joins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plattli._select import Selection, join, rows_where


@given(st.lists(st.booleans()))
def test_rows_where_is_a_slice_if_it_can_be(mask):
    """The rows are those of the mask; consecutive ones are a slice."""
    rows = rows_where(np.array(mask, bool))
    expected = [row for row, wanted in enumerate(mask) if wanted]

    assert np.arange(len(mask))[rows].tolist() == expected
    assert isinstance(rows, slice) == (expected == list(range(*(expected[0], expected[-1] + 1) if expected else (0,))))


def test_selection_of_arguments():
    """One kind of range, or none, is a selection; a bound of zero is a bound."""
    assert Selection.of(None, None, None, None, None, None).by is None
    assert Selection.of(0, None, None, None, None, None) == ("step", 0, None)
    assert Selection.of(None, None, None, np.int8(-3), None, None) == ("row", None, -3)
    assert Selection.of(None, None, None, None, "a", None) == ("value", "a", None)
    with pytest.raises(ValueError, match=r"steps 1\.\.None and values None\.\.0"):
        Selection.of(1, None, None, None, None, 0)
    with pytest.raises(TypeError):
        Selection.of(None, None, "1", None, None, None)


@given(st.lists(st.lists(st.integers(0, 12), unique=True), min_size=2, max_size=4))
def test_join_keeps_common_steps(columns):
    """The steps of all columns, sorted, each with its value, whatever order a column is in."""
    common = sorted(set.intersection(*map(set, columns)))

    steps, values = join([(np.array(column, np.uint32), np.array(column) * n) for n, column in enumerate(columns)])

    assert steps.dtype == np.uint32
    assert steps.tolist() == common
    assert [column.tolist() for column in values] == [[step * n for step in common] for n in range(len(columns))]


def test_join_of_one_column_changes_nothing():
    """A single column keeps its rows, repeated and unsorted ones too."""
    steps, values = np.array([3, 1, 1], np.uint32), np.array([1.0, 2.0, 3.0])

    assert join([(steps, values)]) == (steps, [values])
