"""Which column a value goes into, and how a column widens: never a value changed in silence.

Two policies for Python floats:

- ``"f32"``: they are f32 and are rounded, as the format's writers have always done;
- ``"exact"``: f32 when that holds the value exactly (what a float32 loss gives), else f64.

And ``promote="float"`` lets a float join an integer column by turning the column into floats, if
every integer in it stays exact. Without it such a float is refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from plattli._format import DTYPES, JSONL
from plattli.errors import DtypeError, PlattliError, ShapeError, ValueRangeError

Floats: TypeAlias = Literal["f32", "f64", "exact"]
Promote: TypeAlias = Literal["float"] | None

_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
#: struct format characters; "<" goes in front of the row's
PACK: Final = {"f32": "f", "f64": "d", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
               "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}  # fmt: skip
_BOUNDS: Final = {
    code: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for code, dtype in DTYPES.items()
    if dtype.kind in "iu"
}
_I64_MAX: Final = _BOUNDS["i64"][1]
_F32: Final = struct.Struct("<f")


class Json:
    """Wraps a value that belongs into a JSON column, whatever its type."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def is_float(code: str) -> bool:
    """Tell a float column."""
    return code[0] == "f"


def is_int(code: str) -> bool:
    """Tell an integer column (i8 … u64)."""
    return code in _BOUNDS


def exact_in_f32(value: float) -> bool:
    """Tell whether f32 holds the value; every NaN counts as one value."""
    try:
        return bool(_F32.unpack(_F32.pack(value))[0] == value) or value != value
    except (OverflowError, struct.error):
        return False


def exact_in_f64(value: int) -> bool:
    """Tell whether f64 holds the integer."""
    try:
        return float(value) == value
    except OverflowError:
        return False


def incoming(value: Any, floats: Floats, *, unsigned: bool = False) -> tuple[str, Any]:
    """Return the storage code of a new measurement and its value as plain Python.

    JSON values are copied through their JSON text, so that later changes to them change nothing.

    Args:
        value: what the caller logs.
        floats: how a Python float is stored.
        unsigned: let a Python integer beyond i64 be a u64; else it is refused.

    Raises:
        ShapeError: an array that is not 0-d.
        DtypeError: JSON cannot hold the value.
        ValueRangeError: an integer beyond 64 bits.
    """
    if isinstance(value, bool | np.bool_):
        return JSONL, bool(value)
    if isinstance(value, Json):
        return JSONL, plain_json(value.value)
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return _incoming_array(value)
    if isinstance(value, float):
        value = float(value)
        if floats == "exact":
            return ("f32" if exact_in_f32(value) else "f64"), value
        return floats, value
    if isinstance(value, int):
        value = int(value)
        if unsigned and _I64_MAX < value <= _BOUNDS["u64"][1]:
            return "u64", value
        return "i64", value
    return JSONL, plain_json(value)


def _incoming_array(value: Any) -> tuple[str, Any]:
    array = np.asarray(value)
    if array.shape != ():
        raise ShapeError(f"expected a scalar, got an array of shape {array.shape}")
    code = _CODES.get(array.dtype.newbyteorder("<"))
    if code is not None:
        return code, array.item()
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4:  # float16: f32 holds it exactly
        return "f32", float(array)
    if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16, float8 of ml_dtypes
        return "f32", float(array.astype(np.float32))
    return JSONL, plain_json(array.item())


def plain_json(value: Any) -> Any:
    """Return a deep copy of ``value`` as plain JSON data."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # lone surrogates have no UTF-8
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DtypeError(f"JSON cannot hold a {type(value).__name__}: {error}") from error


def joined(
    column: str,
    value_code: str,
    value: Any,
    *,
    integer_range: Callable[[], tuple[int, int]],
    promote: Promote = None,
) -> str:
    """Return the storage code of a column of code ``column`` once ``value`` has joined it.

    Args:
        column: the column's code so far.
        value_code: what :func:`incoming` said of the value.
        value: the value, plain.
        integer_range: gives (min, max) of all values of the column; only called where it matters.
        promote: ``"float"`` turns an integer column into floats when a float joins.

    Raises:
        DtypeError: the kinds don't mix.
        ValueRangeError: no width holds both what is there and the value.
    """
    if column == JSONL:
        return JSONL
    if value_code == JSONL:
        if isinstance(value, list):
            raise ShapeError("expected a scalar, got a list; log lists under another name")
        raise DtypeError(f"cannot mix a {type(value).__name__} into a {column} column; log it under another name")
    if is_float(column):
        if is_int(value_code):
            return _int_into_float(column, value)
        return "f64" if "f64" in (column, value_code) else "f32"
    if is_float(value_code):
        return _float_into_int(column, value_code, value, integer_range, promote)
    return _joined_ints(column, value_code, value, integer_range)


def _int_into_float(column: str, value: int) -> str:
    if column == "f32" and exact_in_f32(value):
        return "f32"
    if exact_in_f64(value):
        return "f64"
    raise ValueRangeError(f"the integer {value} is not exact in a {column} column; log it as float({value})")


def _float_into_int(
    column: str, value_code: str, value: float, integer_range: Callable[[], tuple[int, int]], promote: Promote
) -> str:
    if promote != "float":
        raise DtypeError(f"cannot mix a {value_code} into a {column} column; log every value as a float")
    low, high = integer_range()
    # between exact bounds not every integer is exact, so the bounds must lie where all are
    if max(-low, high) <= 2**24 and value_code == "f32":
        return "f32"
    if max(-low, high) <= 2**53:
        return "f64"
    raise ValueRangeError(
        f"the float {value} cannot join a {column} column that holds integers beyond 2**53, "
        f"which floats cannot hold exactly; log it under another name"
    )


def _joined_ints(
    column: str, value_code: str, value: int, integer_range: Callable[[], tuple[int, int]]
) -> str:
    if column[0] == value_code[0]:
        code = max(column, value_code, key=lambda c: int(c[1:]))
    elif "u64" not in (column, value_code):
        signed, unsigned = (column, value_code) if column[0] == "i" else (value_code, column)
        code = f"i{max(int(signed[1:]), 2 * int(unsigned[1:]))}"
    elif column == "i64" and value <= _I64_MAX:
        code = "i64"  # no need to look at the column
    else:
        low, high = integer_range()
        low, high = min(low, value), max(high, value)
        if high <= _I64_MAX:
            code = "i64"
        elif low >= 0:
            code = "u64"
        else:
            raise ValueRangeError(
                f"no 64-bit integer column holds both {low} and {high}; log floats, or use two metrics"
            )
    return code


def check_range(code: str, value: Any) -> None:
    """Refuse a finite value that the column would turn into something else.

    Raises:
        ValueRangeError: an integer outside the column's type, or a float that would overflow.
    """
    if is_int(code):
        low, high = _BOUNDS[code]
        if not low <= value <= high:
            raise ValueRangeError(f"the integer {value} does not fit a {code} column ({low} … {high})")
    elif code == "f32":
        try:
            _F32.pack(value)
        except OverflowError:
            raise ValueRangeError(
                f"the float {value} overflows an f32 column; log it as numpy.float64"
            ) from None


def holds(code: str, value: Any) -> bool:
    """Tell whether a column of this code stores ``value``, JSON data, as it is."""
    if code == JSONL:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if is_int(code):
        low, high = _BOUNDS[code]
        return isinstance(value, int) and low <= value <= high
    if code == "f32":
        return exact_in_f32(value)
    return isinstance(value, float) or exact_in_f64(value)


def tightest(low: int, high: int) -> str:
    """Return the smallest integer code that holds the range."""
    kinds = ("u8", "u16", "u32", "u64") if low >= 0 else ("i8", "i16", "i32", "i64")
    return next(code for code in kinds if _BOUNDS[code][0] <= low and high <= _BOUNDS[code][1])


def monotonic(values: np.ndarray) -> str | None:
    """Return ``"inc"``, ``"dec"`` or ``None`` for a numeric column (constants are ``"inc"``)."""
    if not len(values) or (values.dtype.kind == "f" and bool(np.isnan(values).any())):
        return None
    earlier, later = values[:-1], values[1:]
    if bool((later >= earlier).all()):
        return "inc"
    return "dec" if bool((later <= earlier).all()) else None


def describe(error: PlattliError, name: str, run: str) -> PlattliError:
    """Return the same error with the metric and the run in front."""
    return type(error)(f"metric {name!r} of run {run!r}: {error}")
