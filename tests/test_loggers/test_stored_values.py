"""What each kind of value is on disk: the table of docs/values.md, row by row, in a live run and in a finished one."""

from __future__ import annotations

import enum
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loggers import PlattliLogger
from loggers.errors import LoggerError, MetricValueError
from plattli import Reader


class Level(enum.Enum):
    """An enum of numbers."""

    HIGH = 2.5


class Number:
    """What frameworks have for numbers."""

    def __init__(self, number: Callable[[], float]) -> None:
        self._number = number

    def __float__(self) -> float:
        return self._number()


def column(run: Path, name: str = "train/m") -> tuple[str, list[Any]]:
    with Reader(run) as reader:
        values = reader.metric_values(name, dtype="storage")
    return str(values.dtype), values.tolist()


F32 = float(np.float32(0.1))


@pytest.mark.parametrize(
    ("logged", "dtype", "kept", "at_the_end"),
    [
        ([0.5, math.nan, -math.inf], "float32", None, "float32"),
        ([0.5, 0.1], "float64", None, "float64"),
        ([67128463.0], "float64", None, "float64"),
        ([np.float64(0.5)], "float32", [0.5], "float32"),
        ([np.float64(0.1), 1e300], "float64", [0.1, 1e300], "float64"),
        ([np.float32(0.1)], "float32", [F32], "float32"),
        ([np.float16(0.1)], "float32", [float(np.float16(0.1))], "float32"),
        ([3, -4], "int64", None, "int8"),
        ([2**53 + 1], "int64", None, "uint64"),
        ([2**63], "uint64", None, "uint64"),
        ([np.uint8(3), np.int64(-(2**63))], "int64", [3, -(2**63)], "int64"),
        ([True, np.bool_(False)], "int64", [1, 0], "uint8"),
        ([0, 0.5], "float32", [0.0, 0.5], "float32"),
        ([0, 0.1], "float64", [0.0, 0.1], "float64"),
        ([2**24 + 1, 0.5], "float64", [2.0**24 + 1, 0.5], "float64"),
        ([0.5, 2**24 + 1], "float64", [0.5, 2.0**24 + 1], "float64"),
        ([Decimal("0.1"), Fraction(1, 3)], "float64", [0.1, 1 / 3], "float64"),
        ([Level.HIGH], "float32", [2.5], "float32"),
        ([np.array(0.1), np.array([[2]])], "float64", [0.1, 2.0], "float64"),
        ([Number(lambda: 0.75)], "float32", [0.75], "float32"),
        ([None, "a", [1, {"b": 0.1}], 7], "object", None, "object"),
    ],
)
def test_a_value_is_stored_as_the_table_says(
    tmp_path: Path, logged: list[Any], dtype: str, kept: list[Any] | None, at_the_end: str
) -> None:
    """Its dtype, and every value as it was, also those from before the metric became wider."""
    expected = logged if kept is None else kept
    logger = PlattliLogger(tmp_path)
    for step, value in enumerate(logged):
        logger.log_metrics({"m": value, "sibling": step}, step=step)
    assert str(column(tmp_path)) == str((dtype, expected))
    logger.finish("completed")

    assert str(column(tmp_path)) == str((at_the_end, expected))
    assert column(tmp_path, "train/sibling")[1] == list(range(len(logged)))


def broken() -> float:
    raise RuntimeError("the device is gone")


@pytest.mark.parametrize(
    ("before", "value", "said"),
    [
        (1, b"a", "got bytes: log text with .decode(), or its length"),
        (1, 2**70, "an int of 71 bits, outside -2**63 .. 2**64 - 1: log it as float(), or as text with str()"),
        (1, np.array([1.0, 2.0]), "numpy.ndarray of shape (2,): log a scalar such as .mean(), or a list with"),
        (1, 1j, "got complex: log .real and .imag, or abs()"),
        (1, Number(broken), "Number, and its float() raised RuntimeError('the device is gone')"),
        (1, {1}, "got set: log a list with sorted()"),
        (1, "a", "cannot mix a str into a i64 column; log it under another name"),
        (0.5, None, "cannot mix a NoneType into a f32 column; log it under another name"),
        (2**53 + 1, 0.5, "the float 0.5 cannot join a i64 column that holds integers beyond 2**53"),
        (0.5, 2**53 + 1, "9007199254740993"),
    ],
)
def test_a_value_that_is_refused_costs_its_siblings_nothing(
    tmp_path: Path, before: Any, value: Any, said: str
) -> None:
    """The error names metric, type and remedy."""
    logger = PlattliLogger(tmp_path)
    logger.log_metrics({"m": before, "a": 1}, step=1)
    with pytest.raises(MetricValueError) as caught:
        logger.log_metrics({"a": 2, "m": value, "z": 0.1}, step=2)
    logger.finish("completed")

    assert "'m': " in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.metrics == {"m"}
    assert column(tmp_path)[1] == [before]
    assert column(tmp_path, "train/a")[1] == [1, 2]
    assert column(tmp_path, "train/z") == ("float64", [0.1])


# ---- float64 on demand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "logged", "expected"),
    [
        ({"floats": "f64"}, [0.5], ("float64", [0.5])),
        ({"f64": "*/m"}, [0.5], ("float64", [0.5])),
        ({"f64": ["other", "train/?"]}, [0.5], ("float64", [0.5])),
        ({"f64": "m"}, [0.5], ("float32", [0.5])),
        ({"f64": "validate/*"}, [0.5], ("float32", [0.5])),
        ({"f64": "*"}, [3, 4], ("float64", [3.0, 4.0])),
        ({"f64": "*"}, [2**53 + 1], ("int64", [2**53 + 1])),
        ({"f64": "*"}, ["text"], ("object", ["text"])),
        ({"f64": "*", "floats": "f32"}, [0.1, 1700000000.25], ("float64", [0.1, 1700000000.25])),
        ({"floats": "f32"}, [0.1, 3], ("float32", [F32, 3.0])),
        ({"floats": "f32"}, [2**53 + 1], ("int64", [2**53 + 1])),
    ],
)
def test_float64_is_to_be_had_by_pattern_or_for_all(
    tmp_path: Path, options: dict[str, Any], logged: list[Any], expected: tuple[str, list[Any]]
) -> None:
    """From the first number on."""
    logger = PlattliLogger(tmp_path, **options)
    for step, value in enumerate(logged):
        logger.log_metrics({"first": 0.5, "m": value}, step=step, epoch=1)

    assert column(tmp_path) == expected


def test_the_patterns_count_after_a_resume_and_for_a_copy(tmp_path: Path) -> None:
    """A metric that the resume has cut begins anew, in a logger with the same options."""
    logger = PlattliLogger(tmp_path, f64=["*/lr"])
    logger.log_metrics({"loss": 0.5}, step=1)
    state = logger.logger_state()
    logger.log_metrics({"lr": 0.5}, step=2)
    logger.reattach(state)
    logger.log_metrics({"lr": 0.25}, step=2)
    assert column(tmp_path, "train/lr") == ("float64", [0.25])

    assert pickle.loads(pickle.dumps(logger)).__getstate__()["f64"] == ("*/lr",)


@pytest.mark.parametrize("f64", [7, [""], [None]])
def test_patterns_are_strings(tmp_path: Path, f64: Any) -> None:
    """Else it is said at once."""
    with pytest.raises((LoggerError, TypeError)):
        PlattliLogger(tmp_path, f64=f64)
