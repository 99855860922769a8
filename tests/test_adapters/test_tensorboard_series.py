"""What is written, late, or there already, against a plain dictionary."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.backends._series import Series
from tests.lazy import Lazy

tb = Lazy("tensorboard.compat.proto.event_pb2")
ROWS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.sampled_from((1.0, 2.0, math.nan)), min_size=1),
        st.integers(0, 6),
    ),
    max_size=12,
)


def same(one: float, other: float) -> bool:
    """Return whether two values are equal, NaN included."""
    return one == other or (math.isnan(one) and math.isnan(other))


@given(ROWS, st.integers(-1, 3))
def test_every_value_is_written_late_or_there(rows: list[tuple[dict[str, float], int]], floor: int) -> None:
    """For any rows: late is what is behind its tag, left out is what stands there with that value."""
    series = Series("train", floor)
    last: dict[str, tuple[int, float]] = {}
    for row, step in rows:
        new, late = series.news(row, step)
        for name, value in row.items():
            before, there = last.get(name, (floor, None))
            if step < before:
                assert name in late
            elif step == before and there is not None and same(there, value):
                assert name not in new
                assert name not in late
            else:
                assert same(new[name], value)
                last[name] = (step, value)
        if step > series.step:
            assert late == []
            assert new.keys() == row.keys()
        if new:
            series.wrote(new, step, series.encoder(new))
    assert series.step == max([floor, *(step for step, _ in last.values())])


def test_an_encoder_serves_all_rows_of_its_shape() -> None:
    """The same names in the same order have one encoder, and its tags have the context in front."""
    series = Series("data")
    encoder = series.encoder({"a": 1.0, "b": 2.0})
    assert series.encoder({"a": 3.0, "b": 4.0}) is encoder
    assert series.encoder({"b": 1.0, "a": 2.0}) is not encoder
    event = tb.Event.FromString(encoder.event((5.0, 6.0), 0, 0.0))
    values = [(value.tag, value.simple_value) for value in event.summary.value]
    assert values == [("data/a", 5.0), ("data/b", 6.0)]


@pytest.mark.parametrize("name", ["", 3, None])
def test_an_encoder_needs_names(name: Any) -> None:
    """What is no text, or empty, is noticed when the encoder is made."""
    with pytest.raises(TypeError, match="non-empty text"):
        Series("train").encoder({"a": 1.0, name: 2.0})


def test_encoders_do_not_pile_up() -> None:
    """Names that are new in every row cost no encoder each, and their last steps stay known."""
    series = Series("train")
    for step in range(1000):
        row = {f"m{step}": 1.0}
        series.wrote(row, step, series.encoder(row))
    assert len(series._encoders) <= 128
    assert series.news({"m4": 1.0, "m5": 2.0, "m6": 1.0}, 5) == ({"m4": 1.0, "m5": 2.0}, ["m6"])
    assert series.news({"m5": 1.0}, 5) == ({}, [])
