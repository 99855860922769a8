"""The dtypes that reads can ask for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plattli import _casting
from plattli._format import DTYPES
from plattli.errors import ConversionError, DtypeError, ValueRangeError

INTEGERS = [dtype for dtype in DTYPES.values() if dtype.kind in "iu"]


def convert(values, dtype):
    """Convert as a read of metric m of run r does."""
    return _casting.convert(np.asarray(values), _casting.check(dtype), "m", "r")


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_integers_are_exact_or_an_error(stored, wanted, data):
    """An integer comes out as it is, or not at all."""
    info = np.iinfo(stored)
    values = data.draw(st.lists(st.integers(int(info.min), int(info.max)), max_size=4))
    fits = all(np.iinfo(wanted).min <= value <= np.iinfo(wanted).max for value in values)

    if fits:
        converted = convert(np.array(values, stored), wanted)
        assert converted.dtype == wanted
        assert converted.tolist() == values
    else:
        with pytest.raises(ValueRangeError, match=r"metric 'm' \(run 'r'\)"):
            convert(np.array(values, stored), wanted)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8])
@pytest.mark.parametrize("value", [2.0**63, -(2.0**63) * 1.5, 2.0**64, 1e300])
def test_floats_at_the_edges_of_integers(value, dtype):
    """The bound of 64-bit integers is not rounded in the comparison."""
    if value == 2.0**63 and dtype is np.uint64:
        assert convert([value], dtype).tolist() == [2**63]
        return
    with pytest.raises(OverflowError):
        convert([value], dtype)


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, -math.inf])
def test_fractions_are_not_cut(value):
    """A float that is no integer cannot be read as one."""
    with pytest.raises(ConversionError, match=str(value)):
        convert([1.0, value], np.int64)


def test_standard_and_storage():
    """Standard widens integers and leaves the rest; storage leaves everything."""
    assert convert(np.array([1], np.uint8), "standard").dtype == np.int64
    assert convert(np.array([1], np.float32), "standard").dtype == np.float32
    assert convert(np.array([None], object), "standard").dtype == object
    assert convert(np.array([1], np.uint8), "storage").dtype == np.uint8


def test_other_dtypes_are_numpys():
    """Floats round, objects and text are what NumPy makes of them; its errors name the metric."""
    assert convert([0.1], np.float32).tolist() == [float(np.float32(0.1))]
    assert type(convert([1], object)[0]) is int
    assert convert([1.5], "U4").tolist() == ["1.5"]
    assert convert(np.array([1, "2", None], object), float).tolist()[:2] == [1.0, 2.0]
    assert convert([1], "u8").dtype == np.uint64
    with pytest.raises(DtypeError, match="object"):
        convert(np.array([1], object), np.int64)
    with pytest.raises(ValueError, match="could not convert") as caught:
        convert(np.array(["x"], object), float)
    assert caught.value.__notes__ == ["while converting metric 'm' (run 'r') from object to float64"]


@pytest.mark.parametrize("dtype", [np.int8, np.float16, object, "standard", "U3", bool])
def test_nothing_converts_to_anything(dtype):
    """Without values there is nothing that might not fit."""
    empty = convert(np.empty(0, np.uint64), dtype)

    assert len(empty) == 0
    assert empty.dtype == (np.int64 if dtype == "standard" else np.dtype(dtype))


@pytest.mark.parametrize("dtype", [None, "no such dtype", 5])
def test_what_is_no_dtype(dtype):
    """None is not taken for float64."""
    with pytest.raises(TypeError):
        _casting.check(dtype)
