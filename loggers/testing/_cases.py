"""What the contract logs, and what has to become of it: the values, good and bad, and the calls that are wrong."""

from __future__ import annotations

import datetime
import enum
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np

from loggers.errors import (
    ConfusionError,
    MetricNameError,
    MetricValueError,
    StatusError,
    StepError,
)

_INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_EXTENSIONS: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class Case(NamedTuple):
    """A value, and what a logger that rounds nothing keeps of it."""

    given: Any
    kept: Any


class Odd:
    """A number of nobody's numeric types, as frameworks have them."""

    def __init__(self, number: Callable[[], float]) -> None:
        self._number = number

    def __float__(self) -> float:
        return self._number()


class Count:
    """An integer of nobody's numeric types."""

    def __index__(self) -> int:
        return 12


class Name(str):
    """A string that says something else when it is printed, as enums of strings do."""

    def __str__(self) -> str:
        return f"<{super().__str__()}>"

    __format__ = object.__format__


class Level(enum.Enum):
    """Enums count as their values."""

    HIGH = 2.5
    NAME = "high"


def _broken() -> float:
    raise RuntimeError("the device is gone")


def numbers() -> dict[str, Case]:
    """Return every kind of number that a logger takes, by a name for the metric."""
    cases = {
        "float": Case(0.1, 0.1),
        "float smallest": Case(5e-324, 5e-324),
        "float largest": Case(1.7976931348623157e308, 1.7976931348623157e308),
        "float minus zero": Case(-0.0, -0.0),
        "float nan": Case(math.nan, math.nan),
        "float inf": Case(math.inf, math.inf),
        "float minus inf": Case(-math.inf, -math.inf),
        "int": Case(-7, -7),
        "int beyond float64": Case(2**53 + 1, 2**53 + 1),
        "int smallest": Case(-(2**63), -(2**63)),
        "int largest": Case(2**64 - 1, 2**64 - 1),
        "bool": Case(True, 1),
        "numpy bool": Case(np.bool_(False), 0),
        "longdouble": Case(np.longdouble(0.5), 0.5),
        "float32 nan": Case(np.float32("nan"), math.nan),
        "float16 inf": Case(np.float16("inf"), math.inf),
        "0-d": Case(np.array(0.25), 0.25),
        "0-d bool": Case(np.array(True), 1),
        "one int": Case(np.array([7]), 7),
        "one float32": Case(np.array([[0.1]], np.float32), float(np.float32(0.1))),
        "decimal": Case(Decimal("0.1"), 0.1),
        "fraction": Case(Fraction(1, 3), 1 / 3),
        "enum": Case(Level.HIGH, 2.5),
        "by its float": Case(Odd(lambda: 0.75), 0.75),
        "by its index": Case(Count(), 12),
    }
    for name in ("float16", "float32", "float64"):
        value = np.dtype(name).type(0.1)
        cases[name] = Case(value, float(value))
    for name in _INTEGERS:
        limits = np.iinfo(name)
        cases[f"{name} min"] = Case(np.dtype(name).type(limits.min), int(limits.min))
        cases[f"{name} max"] = Case(np.dtype(name).type(limits.max), int(limits.max))
    if importlib.util.find_spec("ml_dtypes") is not None:  # JAX brings it along
        extensions = importlib.import_module("ml_dtypes")
        for name in _EXTENSIONS:
            value = getattr(extensions, name)(0.1)
            cases[name] = Case(value, float(value))
            cases[f"0-d {name}"] = Case(np.array(value), float(value))
    return cases


def texts() -> dict[str, Case]:
    """Return what is no number and a logger may take as a metric all the same."""
    return {
        "text": Case("diverged", "diverged"),
        "empty text": Case("", ""),
        "unicode text": Case("größer\n\t'\"\\", "größer\n\t'\"\\"),
        "none": Case(None, None),
        "list": Case([1, 2.5, "a", None], [1, 2.5, "a", None]),
        "tuple": Case((1, (2,)), [1, [2]]),
        "mapping": Case({"a": {"b": [True]}}, {"a": {"b": [True]}}),
        "enum of text": Case(Level.NAME, "high"),
    }


def refused() -> dict[str, Any]:
    """Return what no logger takes as a metric."""
    return {
        "too large": 2**64,
        "too small": -(2**63) - 1,
        "decimal too large": Decimal("1e400"),
        "fraction too large": Fraction(10**400),
        "complex": 1j,
        "bytes": b"0.5",
        "several": np.array([1.0, 2.0]),
        "empty": np.array([]),
        "masked": np.ma.masked,
        "set": {1, 2},
        "date": datetime.date(2026, 1, 1),
        "object": object(),
        "broken float": Odd(_broken),
        "lone surrogate": "\ud800",
    }


def odd_names() -> tuple[str, ...]:
    """Return names that a backend may have trouble with, as paths, as keys, or beside each other."""
    return (
        "AR@100", "timing(s)/gen", "my.loss", "🎉", "new\nline", "x" * 300, "..", "../up", "/abs", "a//b", "a/", "aux",
        "Loss", "loss", "foo", "foo/bar", "foo.f32", "foo.f32/x", "back\\slash", "100%", "%41", " ", "{}", "$x", "_y",
    )  # fmt: skip


def whole_steps() -> list[Case]:
    """Return steps of every type that is a whole number, by different numbers."""
    return [
        Case(0, 0),
        Case(7.0, 7),
        Case(np.int64(8), 8),
        Case(np.uint8(9), 9),
        Case(np.float32(10.0), 10),
        Case(np.array(11), 11),
        Case(np.array([12]), 12),
        Case(np.array(13.0), 13),
    ]


class BadCall(NamedTuple):
    """A call that is refused before anything is written.

    Attributes:
        verb: what is called.
        error: what it raises.
        args, kwargs: what it is called with.
    """

    verb: str
    error: type[Exception]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def bad_calls() -> Iterator[BadCall]:
    """Yield what a logger refuses, but for single values of a line: those don't cost the line."""
    line = {"loss": 0.5}
    for step in (True, 7.5, "7", -1, None, math.nan, math.inf, np.array([1, 2]), np.True_):
        yield BadCall("log_metrics", StepError, (line,), {"step": step})
    for epoch in (True, 0.5, "1", -1):
        yield BadCall("log_metrics", StepError, (line,), {"step": 1, "epoch": epoch})
    for context in ("", None, 7):
        yield BadCall("log_metrics", MetricNameError, (line,), {"step": 1, "context": context})
    for metrics in (None, 0.5, "loss", [("loss", 0.5)]):
        yield BadCall("log_metrics", MetricValueError, (metrics,), {"step": 1})
    for params in (None, "lr", [("lr", 0.1)]):
        yield BadCall("log_params", MetricValueError, (params,), {})
    for tags in (None, 7, "", [""], ["good", 7]):
        yield BadCall("log_tags", MetricValueError, (tags,), {})
    for value in (object(), 1j, Odd(_broken)):
        yield BadCall("log_other", MetricValueError, ("report", value), {})
    for matrix, labels in (([[1, 2]], ["a"]), ([[1]], ["a", "b"]), ([["x"]], ["a"]), ([], [])):
        yield BadCall("log_confusion", ConfusionError, (matrix, labels), {})
    yield BadCall("log_confusion", StepError, ([[1]], ["a"]), {"step": -1})
    for status in ("done", "", None, True):
        yield BadCall("finish", StatusError, (status,), {})
