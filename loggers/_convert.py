"""One value to plain Python, by one rule per type. The table is in :mod:`loggers.values`."""

from __future__ import annotations

import datetime
import enum
import math
import operator
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

#: The integers that some 64-bit column holds.
SMALLEST_INT: Final = -(2**63)
LARGEST_INT: Final = 2**64 - 1
#: Lists and dicts nested deeper than this are refused: JSON readers give up not far beyond.
DEEPEST: Final = 100

_ARRAY_REMEDY: Final = "log a scalar such as .mean(), or a list with .tolist()"
_NO_RULE: Final = "log a number, a string, or JSON data (None, bool, list, dict)"
_COMPLEX_REMEDY: Final = "log .real and .imag, or abs()"
_REMEDIES: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((bytes, bytearray, memoryview, np.bytes_), "log text with .decode(), or its length"),
    ((complex, np.complexfloating), _COMPLEX_REMEDY),
    ((datetime.timedelta,), "log seconds with .total_seconds()"),
    ((datetime.date, datetime.time), "log text with .isoformat(), or seconds with .timestamp()"),
    ((np.datetime64, np.timedelta64), "log text with str(), or a number with .astype('int64')"),
    ((set, frozenset), "log a list with sorted()"),
    ((type,), "log its name with .__name__"),
)
_REFUSED_TYPES: Final = tuple(kind for kinds, _ in _REMEDIES for kind in kinds)


class Refused(Exception):
    """No rule takes the value. The text says what was got and what to do."""


def kind(value: object) -> str:
    """Return the qualified name of ``value``'s type, without ``builtins``."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def not_a_scalar(value: object, shape: object) -> str:
    """Return the problem of an array that holds more, or less, than one value."""
    return f"got {kind(value)} of shape {shape}: {_ARRAY_REMEDY}"


def plain_data(value: Any, path: str = "", above: tuple[int, ...] = ()) -> Any:
    """Return ``value`` as plain JSON data of its own: no NumPy, no subclass, nothing shared.

    Args:
        value: anything.
        path: where ``value`` sits in what was logged, such as ``[2].name``; for messages.
        above: ids of the containers that hold ``value``, to notice cycles.

    Raises:
        Refused: there is no rule for the value, or for one inside it.
    """
    if not isinstance(value, (list, tuple, Mapping)):
        try:
            return _scalar(value)
        except Refused as problem:
            raise (Refused(f"at {path}: {problem}") if path else problem) from None
    if id(value) in above:
        raise Refused(f"{kind(value)}{path} contains itself: log a copy without the cycle")
    if len(above) >= DEEPEST:
        raise Refused(f"{kind(value)} nested deeper than {DEEPEST} levels: flatten it")
    above = (*above, id(value))
    if not isinstance(value, Mapping):
        return [plain_data(item, f"{path}[{i}]", above) for i, item in enumerate(value)]
    copy = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise Refused(f"{kind(value)}{path} with key {key!r} ({kind(key)}): make its keys strings")
        name = text(key)
        copy[name] = plain_data(item, f"{path}.{name}", above)
    return copy


def text(value: str) -> str:
    """Return ``value`` as an exact ``str``; refuse one that UTF-8 cannot spell."""
    value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused(
                f"got str with a lone surrogate, {value[:60]!r}: "
                "clean it with .encode(errors='replace').decode()"
            ) from None
    return value


def _scalar(value: Any) -> Any:
    # the unbound int.__int__ and its like give the exact base type and run nobody's override
    if value is None or isinstance(value, (bool, np.bool_)):
        return value if value is None else bool(value)
    if isinstance(value, enum.Enum):
        return plain_data(value.value)
    if isinstance(value, int):
        return _in_range(int.__int__(value))
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, _REFUSED_TYPES):  # before np.integer, which np.timedelta64 claims to be
        remedy = next(words for kinds, words in _REMEDIES if isinstance(value, kinds))
        raise Refused(f"got {kind(value)}: {remedy}")
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return _exact_float(value)
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise Refused(not_a_scalar(value, value.shape))
        if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
            raise Refused("got a masked value: log what .filled() gives, or leave it out")
        return plain_data(value.flat[0])
    if isinstance(value, (Decimal, Fraction)):
        return _rounded(value)
    return _foreign(value)


def _in_range(value: int) -> int:
    if SMALLEST_INT <= value <= LARGEST_INT:
        return value
    raise Refused(
        f"got an int of {value.bit_length()} bits, outside -2**63 .. 2**64 - 1: "
        "log it as float(), or as text with str()"
    )


def _exact_float(value: np.floating[Any]) -> float:
    number = float(value)
    if number == value or math.isnan(number):
        return number
    raise Refused(f"got {kind(value)} {value!s}, which float64 cannot hold exactly: round it with float()")


def _rounded(value: Decimal | Fraction) -> float:
    try:
        number = float(value)  # to the nearest float64, ties to even
        overflow = math.isinf(number) and not (isinstance(value, Decimal) and value.is_infinite())
    except OverflowError:
        overflow = True
    except ValueError as error:  # a signalling NaN
        raise Refused(f"got {kind(value)} {value}, and float() of it raised {error!r}") from None
    if overflow:
        raise Refused(f"got a {kind(value)} too large for float64: log its logarithm, or text with str()")
    return number


def _foreign(value: Any) -> Any:
    """Convert a value of a type that is neither Python's nor NumPy's, by what it can do."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) and math.prod(shape) != 1:
        raise Refused(not_a_scalar(value, tuple(shape)))
    item = getattr(value, "item", None)
    if isinstance(value, np.generic):  # of an extension dtype, such as bfloat16
        if "complex" in value.dtype.name:
            raise Refused(f"got {kind(value)}: {_COMPLEX_REMEDY}")
        if value.dtype.name.startswith(("int", "uint")):
            return int(value)
        item = None  # may give the scalar itself again
    if callable(item):
        number = _ask(value, item, ".item()")
        if type(number) is not type(value):
            return plain_data(number)
    # looked up on the type: a class has an unbound __float__, its instances have a value
    if hasattr(type(value), "__index__"):
        try:
            return _in_range(operator.index(value))
        except TypeError:
            pass  # has the slot, is no integer: NumPy-like objects do that
        except Exception as error:
            raise Refused(f"got {kind(value)}, and its __index__ raised {error!r}") from None
    if hasattr(type(value), "__float__"):
        return float.__float__(_ask(value, lambda: float(value), "float()"))
    raise Refused(f"got {kind(value)}: {_NO_RULE}")


def _ask(value: Any, question: Any, name: str) -> Any:
    try:
        return question()
    except Exception as error:  # somebody else's code: whatever it raises is this value's problem
        raise Refused(f"got {kind(value)}, and its {name} raised {error!r}") from None
