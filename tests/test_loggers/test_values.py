"""loggers.values: one rule per type."""

from __future__ import annotations

import datetime
import enum
import importlib.util
import json
import math
import pathlib
import struct
import subprocess
import sys
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loggers.errors import ConfusionError, MetricNameError, MetricValueError, StatusError, StepError
from loggers.values import (
    check_confusion,
    check_context,
    check_epoch,
    check_status,
    check_step,
    plain,
    plain_params,
    plain_tags,
    plain_value,
    raise_for,
)

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_JAX = importlib.util.find_spec("jax") is not None
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None


class Colour(enum.Enum):
    RED = 3
    HALF = np.float32(0.5)


class Level(enum.IntEnum):
    HIGH = 9


class MyInt(int):
    def __int__(self):
        raise AssertionError("must not be asked")


class MyFloat(float):
    def __float__(self):
        raise AssertionError("must not be asked")


class MyStr(str):
    def __str__(self):
        raise AssertionError("must not be asked")


class Reading:
    """Somebody's number."""

    def __float__(self):
        return 2.5


class Broken:
    def __float__(self):
        raise RuntimeError("sensor gone")


class Boxed:
    """Looks like an array of one element."""

    shape = (1, 1)

    def item(self):
        return np.int16(7)


class BoxedPair(Boxed):
    shape = (2,)


class Counter:
    def __index__(self):
        return 5


class Cyclic:
    def item(self):
        return self


def one(value):
    """Convert one metric and return its plain value."""
    values, problems = plain({"m": value})
    assert problems == {}
    return values["m"]


def problem(value):
    """Convert one metric that has no plain value and return why."""
    values, problems = plain({"before": 1.0, "m": value, "after": np.float32(2)})
    assert values == {"before": 1.0, "after": 2.0}
    assert list(problems) == ["m"]
    return problems["m"]


# --- plain: the fast way ---------------------------------------------------------------------------


def test_plain_numbers_are_handed_back_as_they_are():
    """A dict of floats and ints costs no copy."""
    metrics = {"loss": 0.5, "nan": math.nan, "inf": -math.inf, "n": 3, "low": -(2**63), "high": 2**64 - 1}

    values, problems = plain(metrics)

    assert values is metrics
    assert problems == {}


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400])
def test_ints_beyond_64_bits_are_refused(number):
    """No column holds them; the message says how many bits there were."""
    assert problem(number) == (
        f"got an int of {number.bit_length()} bits, outside -2**63 .. 2**64 - 1: "
        "log it as float(), or as text with str()"
    )
    assert list(plain({"big": number, "loss": 1.0, "n": 1})[0]) == ["loss", "n"]


def test_any_mapping_is_taken_and_keeps_its_order():
    """A mapping that is no dict gives a dict in the same order."""
    values, problems = plain(MappingProxyType(OrderedDict([("b", 1.0), ("a", 2)])))

    assert list(values.items()) == [("b", 1.0), ("a", 2)]
    assert problems == {}


@pytest.mark.parametrize("metrics", [None, [("loss", 1.0)], 3.0, "loss"])
def test_metrics_that_are_no_mapping_are_refused(metrics):
    """The message shows what a mapping would look like."""
    with pytest.raises(MetricValueError, match=r"^metrics must be a mapping of names to values, got .*: pass \{"):
        plain(metrics)


@given(st.dictionaries(st.text(min_size=1), st.floats() | st.integers(-(2**63), 2**64 - 1)))
def test_the_fast_and_the_slow_way_agree(metrics):
    """What the shortcut hands back is what the rules would have made."""
    slow, problems = plain(MappingProxyType(metrics))

    assert problems == {}
    assert {k: (type(v), repr(v)) for k, v in plain(metrics)[0].items()} == {
        k: (type(v), repr(v)) for k, v in slow.items()
    }


# --- plain: rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1),
        (False, 0),
        (np.True_, 1),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float16(0.1), 0.0999755859375),
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (MyInt(4), 4),
        (MyFloat(0.25), 0.25),
        (MyStr("x"), "x"),
        (np.str_("x"), "x"),
        (Level.HIGH, 9),
        (Colour.RED, 3),
        (Colour.HALF, 0.5),
        (np.array(3, dtype=">i2"), 3),
        (np.array([[True]]), 1),
        (np.array("text"), "text"),
        (np.array(Fraction(1, 4), dtype=object), 0.25),
        (np.ma.array([2.0]), 2.0),
        (Decimal("0.1"), 0.1),
        (Decimal("Infinity"), math.inf),
        (Fraction(1, 3), 1 / 3),
        (Reading(), 2.5),
        (Boxed(), 7),
        (Counter(), 5),
        ("text", "text"),
        (None, None),
        ([1, (2, None)], [1, [2, None]]),
        ({"a": np.float32(0.5), MyStr("b"): [np.array([1])]}, {"a": 0.5, "b": [1]}),
    ],
)
def test_each_type_has_one_rule(value, expected):
    """The result is of the exact built-in type, also where a subclass came in."""
    actual = one(value)

    assert actual == expected
    assert type(actual) is type(expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_nan_and_infinities_survive_every_float(dtype):
    """They are values, not problems."""
    assert math.isnan(one(dtype("nan")))
    assert one(dtype("-inf")) == -math.inf


def test_bools_inside_json_data_stay_bools():
    """Only a metric that is itself a bool is a number."""
    assert json.dumps(one({"a": True, "b": [np.False_]})) == '{"a": true, "b": [false]}'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros(3), "got numpy.ndarray of shape (3,): log a scalar such as .mean(), or a list with .tolist()"),
        (np.zeros(0), "got numpy.ndarray of shape (0,): log a scalar such as .mean(), or a list with .tolist()"),
        (BoxedPair(), "of shape (2,): log a scalar such as .mean(), or a list with .tolist()"),
        (np.ma.masked, "got a masked value: log what .filled() gives, or leave it out"),
        (b"x", "got bytes: log text with .decode(), or its length"),
        (1j, "got complex: log .real and .imag, or abs()"),
        (np.complex64(1), "got numpy.complex64: log .real and .imag, or abs()"),
        (np.array(1j), "got numpy.complex128: log .real and .imag, or abs()"),
        (
            datetime.datetime(2026, 1, 1),
            "got datetime.datetime: log text with .isoformat(), or seconds with .timestamp()",
        ),
        (datetime.timedelta(1), "got datetime.timedelta: log seconds with .total_seconds()"),
        (np.timedelta64(1, "s"), "got numpy.timedelta64: log text with str(), or a number with .astype('int64')"),
        (np.array(5, dtype="M8[ns]"), "got numpy.datetime64: log text with str()"),
        ({1, 2}, "got set: log a list with sorted()"),
        (float, "got type: log its name with .__name__"),
        (object(), "got object: log a number, a string, or JSON data (None, bool, list, dict)"),
        (len, "got builtin_function_or_method: log a number, a string, or JSON data"),
        (Cyclic(), "Cyclic: log a number, a string, or JSON data"),
        (Broken(), "Broken, and its float() raised RuntimeError('sensor gone')"),
        (np.void(b"ab"), "got numpy.void, and its float() raised ValueError"),
        (Decimal("1e400"), "got a decimal.Decimal too large for float64"),
        (Decimal("sNaN"), "got decimal.Decimal sNaN, and float() of it raised"),
        (Fraction(10**400), "got a fractions.Fraction too large for float64"),
        (np.longdouble(1) / 3, "which float64 cannot hold exactly: round it with float()"),
        ("\ud800", "got str with a lone surrogate, '\\ud800': clean it"),
        ({1: 2}, "dict with key 1 (int): make its keys strings"),
        ({"a": [0, {"b": b""}]}, "at .a[1].b: got bytes: log text with .decode(), or its length"),
    ],
)
def test_what_no_rule_takes_is_named_with_a_remedy(value, expected):
    """The siblings of a bad value are converted all the same."""
    assert expected in problem(value)


def test_a_longdouble_beyond_float64_is_refused():
    """It would become infinite."""
    assert "cannot hold exactly" in problem(np.longdouble("1e4000"))


def test_cycles_and_bottomless_nesting_are_refused():
    """Neither hangs nor ends in a RecursionError."""
    cycle: list[object] = [1]
    cycle.append({"again": cycle})
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]

    assert problem(cycle) == "list[1].again contains itself: log a copy without the cycle"
    assert "nested deeper than 100 levels: flatten it" in problem(deep)


def test_one_list_in_two_places_is_no_cycle():
    """It is copied twice."""
    shared = [1]
    copy = one([shared, shared])

    assert copy == [[1], [1]]
    assert copy[0] is not copy[1]


def test_values_are_taken_at_the_call():
    """What the caller changes afterwards changes nothing."""
    array, nested = np.array(1.0), {"a": [1]}
    values, _ = plain({"array": array, "nested": nested})
    array[...] = 99.0
    nested["a"].append(2)

    assert values == {"array": 1.0, "nested": {"a": [1]}}


@pytest.mark.parametrize("name", ["", 3, None, b"loss", ("a",)])
def test_bad_names_are_problems_under_their_repr(name):
    """A name that is no non-empty string does not stop the others."""
    values, problems = plain({"ok": 1.0, name: 2.0})

    assert values == {"ok": 1.0}
    assert problems == {repr(name): "a metric name must be a non-empty string: name it"}


def test_names_of_string_subclasses_become_strings():
    """An np.str_ from an array of names is a name."""
    values, problems = plain({np.str_("loss"): 1.0})

    assert problems == {}
    assert [type(name) for name in values] == [str]


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_data)
def test_json_data_is_copied_unchanged(data):
    """Whatever JSON can hold comes out as it went in."""
    copy, why = plain_value(data)

    assert why is None
    assert repr(copy) == repr(data)


@given(st.integers(0, 2**16 - 1))
def test_every_float16_is_exact(bits):
    """All 65,536 of them, by their bits."""
    half = np.frombuffer(struct.pack("<H", bits), np.float16)[0]

    assert struct.pack("<e", one(half)) == half.tobytes() or math.isnan(half)


def test_plain_value_answers_for_one_value():
    """Either data or a problem; a bool stays one."""
    assert plain_value(True) == (True, None)
    assert plain_value(True)[0] is True
    assert plain_value(np.float32(0.5)) == (0.5, None)
    assert plain_value(b"") == (None, "got bytes: log text with .decode(), or its length")


def test_raise_for_names_every_bad_value():
    """One message for all of them, and none without problems."""
    raise_for({}, where="the train line of step 3")
    _, problems = plain({"a": b"", "loss": 1.0, "b": 1j})

    with pytest.raises(MetricValueError) as caught:
        raise_for(problems, where="the train line of step 3")

    assert str(caught.value) == (
        "2 values of the train line of step 3 could not be logged, any others were: "
        "'a': got bytes: log text with .decode(), or its length; "
        "'b': got complex: log .real and .imag, or abs()"
    )


# --- steps and friends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        *(7, 7.0, MyInt(7), np.int8(7), np.uint64(7), np.float16(7), np.longdouble(7)),
        *(np.array(7), np.array([[7]]), np.array(7.0), Boxed()),
    ],
)
def test_whole_numbers_are_steps(step):
    """Whatever holds the integer 7 is step 7, as an exact int."""
    assert check_step(step) == check_epoch(step) == 7
    assert type(check_step(step)) is int


@pytest.mark.parametrize(
    "step",
    [
        *(True, np.True_, np.array(True), 7.5, "7", b"7", -1, -1.0, np.int8(-1), math.nan, math.inf, 1j),
        *(np.array([1, 2]), np.zeros(0, int), np.timedelta64(3), np.datetime64(3, "s")),
        *([7], object(), Cyclic()),
    ],
)
def test_everything_else_is_no_step(step):
    """Refused before anything is written, with what was got."""
    with pytest.raises(StepError, match=r"^step must be a non-negative integer, got .*: pass the number of"):
        check_step(step)
    with pytest.raises(StepError, match=r"^epoch must be a non-negative integer or None, got "):
        check_epoch(step)


def test_the_message_of_a_bad_step():
    """Users meet this one."""
    with pytest.raises(StepError) as caught:
        check_step(7.5)

    assert str(caught.value) == (
        "step must be a non-negative integer, got 7.5 (float): pass the number of optimizer steps done so far"
    )


def test_none_is_an_epoch_and_no_step():
    """Not every driver has epochs; every line has a step."""
    assert check_epoch(None) is None
    with pytest.raises(StepError, match="got None"):
        check_step(None)


def test_steps_have_no_upper_bound_here():
    """What a logger can store is its own affair."""
    assert check_step(2**80) == 2**80


@given(st.integers(0, 2**53))
def test_integral_floats_are_exact(step):
    """No rounding on the way."""
    assert check_step(float(step)) == step


def test_contexts_are_non_empty_strings():
    """Any name of one's own is a context."""
    assert check_context("validate/ema") == "validate/ema"
    assert type(check_context(MyStr("x"))) is str
    for bad in ("", None, 3, b"train"):
        with pytest.raises(MetricNameError, match=r"^context must be a non-empty string, got "):
            check_context(bad)


def test_there_are_four_statuses():
    """The message lists them."""
    assert [check_status(s) for s in ("completed", "early_stop", "error", "interrupted")]
    for bad in ("done", "", None, 0, ["error"]):
        with pytest.raises(StatusError, match="must be one of 'completed', 'early_stop', 'error', 'interrupted', got"):
            check_status(bad)


# --- params and tags --------------------------------------------------------------------------------------


def test_params_are_json_data_or_text():
    """Numbers become numbers, structure stays, everything else is text, and nothing is refused."""
    params = {
        "opt.lr": np.float32(0.5),
        "flag": np.True_,
        "n": 2**99,
        "nan": math.nan,
        "nested": {"a": (1, b"x"), 3: None},
        "path": pathlib.PurePosixPath("a/b"),
        "dtype": np.dtype("f4"),
        "cls": np.float32,
        "fn": math.prod,
        "set": {"b", "a"},
        "level": Level.HIGH,
        "array": np.zeros(2),
        "when": datetime.date(2026, 1, 2),
        "text": "\ud800",
        5: "five",
    }

    actual = plain_params(params)

    assert math.isnan(actual.pop("nan"))
    assert actual == {
        "opt.lr": 0.5,
        "flag": True,
        "n": 2**99,
        "nested": {"a": [1, "b'x'"], "3": None},
        "path": "a/b",
        "dtype": "float32",
        "cls": "numpy.float32",
        "fn": "math.prod",
        "set": ["a", "b"],
        "level": 9,
        "array": "[0. 0.]",
        "when": "2026-01-02",
        "text": "\\ud800",
        "5": "five",
    }
    json.dumps(actual).encode()


def test_params_that_hold_themselves_or_break_are_text():
    """Neither a cycle nor a __str__ that raises stops a run before its first step."""

    class NoText:
        def __str__(self):
            raise RuntimeError

    params: dict[str, object] = {"a": 1, "bad": NoText()}
    params["self"] = params

    actual = plain_params(params)

    assert actual["a"] == 1
    assert actual["bad"].endswith("NoText: str() raised RuntimeError>")
    assert isinstance(actual["self"], str)


def test_params_must_be_a_mapping():
    """A namespace is one vars() away."""
    with pytest.raises(MetricValueError, match=r"^params must be a mapping .* pass vars\(params\) or a dict$"):
        plain_params([("lr", 0.1)])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("baseline", {"baseline": True}),
        (["a", "b"], {"a": True, "b": True}),
        ((tag for tag in "ab"), {"a": True, "b": True}),
        ({"fold": np.int64(3), "who": None}, {"fold": 3, "who": None}),
        ([], {}),
    ],
)
def test_tags_become_a_mapping(tags, expected):
    """One string is one tag, not its letters."""
    assert plain_tags(tags) == expected


@pytest.mark.parametrize("tags", ["", None, 3, b"x", ["a", ""], ["a", 3]])
def test_other_tags_are_refused(tags):
    """The message says what tags are."""
    with pytest.raises(MetricValueError, match=r"^tags must be a non-empty string, several, or a mapping, got "):
        plain_tags(tags)


# --- confusion matrices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "matrix",
    [[[1, 0], [2, 3]], ((1, 0), (2, 3)), np.array([[1, 0], [2, 3]]), [np.array([1, 0]), [np.int8(2), 3]]],
)
def test_a_confusion_matrix_becomes_lists(matrix):
    """Counts stay ints and labels become strings."""
    rows, labels = check_confusion(matrix, ("cat", 1))

    assert rows == [[1, 0], [2, 3]]
    assert {type(cell) for row in rows for cell in row} == {int}
    assert labels == ["cat", "1"]


def test_rates_stay_floats():
    """A normalised matrix is one too."""
    assert check_confusion([[0.5, np.float32(0.5)], [True, 0]], ["a", "b"])[0] == [[0.5, 0.5], [1, 0]]


@pytest.mark.parametrize(
    ("matrix", "labels", "expected"),
    [
        ([[1, 2, 3], [4, 5, 6]], ["a", "b"], "square with at least one class, got 2 rows of 3 columns"),
        ([[1], [2, 3]], ["a", "b"], "got 2 rows of 1 or 2 columns"),
        ([], [], "got 0 rows of 0 columns"),
        ([[1, 0], [0, 1]], ["a"], "of 2 classes needs 2 labels, got 1: ['a']"),
        ([[1, 0], [0, 1]], "ab", "labels must be a list of one name per class, got 'ab' (str)"),
        ([[1, 0], [0, math.nan]], ["a", "b"], "row 1, column 1: must be a finite number, got nan (float)"),
        ([[1, 0], ["0", 1]], ["a", "b"], "row 1, column 0: must be a finite number, got '0' (str)"),
        ([[1, 0], [1j, 1]], ["a", "b"], "row 1, column 0: got complex"),
        ([1, 2], ["a", "b"], "got 1 (int) as row 0"),
        (5, ["a"], "got 5 (int) as the matrix"),
        (np.ma.array([[1]], mask=[[True]]), ["a"], "row 0, column 0: must be a finite number, got None"),
    ],
)
def test_other_matrices_are_refused(matrix, labels, expected):
    """The message says where and what."""
    with pytest.raises(ConfusionError) as caught:
        check_confusion(matrix, labels)

    assert expected in str(caught.value)


# --- packages that may not be there -------------------------------------------------------------------------

if HAS_ML_DTYPES:

    def test_extension_dtypes_are_exact():
        """bfloat16 and float8 become the same number, narrow integers become ints."""
        import ml_dtypes

        assert one(ml_dtypes.bfloat16(1.1)) == 1.1015625
        assert one(np.array([0.1], ml_dtypes.bfloat16)) == 0.10009765625
        assert one(ml_dtypes.float8_e4m3fn(0.3)) == 0.3125
        assert type(one(ml_dtypes.int4(3))) is int
        assert "complex32: log .real and .imag" in problem(ml_dtypes.complex32(1))
        assert check_step(ml_dtypes.bfloat16(7)) == 7


if HAS_TORCH:

    def scalars():
        import torch

        return {
            "grad": torch.tensor([[1.5]], requires_grad=True),
            "parameter": torch.nn.Parameter(torch.tensor(2.0)),
            "f64": torch.tensor(0.1, dtype=torch.float64),
            "bf16": torch.tensor(1.1, dtype=torch.bfloat16),
            "f8": torch.tensor(0.3).to(torch.float8_e4m3fn),
            "i8": torch.tensor(-5, dtype=torch.int8),
            "i64": torch.tensor(2**62 + 1),
            "u64": torch.tensor(2**63 + 5, dtype=torch.uint64),
            "bool": torch.tensor(True),
            "inf": torch.tensor(-math.inf),
        }

    SCALARS = {
        "grad": 1.5,
        "parameter": 2.0,
        "f64": 0.1,
        "bf16": 1.1015625,
        "f8": 0.3125,
        "i8": -5,
        "i64": 2**62 + 1,
        "u64": 2**63 + 5,
        "bool": 1,
        "inf": -math.inf,
    }

    def test_torch_scalars_become_numbers():
        """Of every dtype, exactly, with or without gradients."""
        values, problems = plain({**scalars(), "x": 1.0})

        assert problems == {}
        assert values == {**SCALARS, "x": 1.0}
        assert list(values) == [*SCALARS, "x"]

    def test_torch_scalars_travel_as_one_tensor():
        """What is packed on a device for one transfer unpacks to the same numbers."""
        import torch

        from loggers._devices import pack, unpack

        tensors = [*scalars().values(), torch.tensor(math.nan), torch.tensor(-0.0)]
        packed = pack(tensors)
        numbers = unpack(packed, tensors)

        assert packed.shape == (len(tensors),)
        assert numbers[:-2] == list(SCALARS.values())
        assert math.isnan(numbers[-2])
        assert math.copysign(1, numbers[-1]) == -1

    def test_scalars_of_a_device_cross_to_the_host_once():
        """Twenty of three dtypes, in one call: one copy. A device that is not there is played by a tensor type."""
        import torch
        from torch.utils._pytree import tree_map

        crossings: list[str] = []

        class OnDevice(torch.Tensor):
            @staticmethod
            def __new__(cls, data):
                return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device="cuda")

            def __init__(self, data):
                self.data_there = data

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                def there(x):
                    return x.data_there if isinstance(x, cls) else x

                found = func(*tree_map(there, args), **tree_map(there, kwargs or {}))
                if not isinstance(found, torch.Tensor) or (kwargs or {}).get("device") == torch.device("cpu"):
                    crossings.append(str(func))
                    return found
                return cls(found)

        dtypes = [torch.float32] * 10 + [torch.float64] * 5 + [torch.bfloat16] * 5
        data = {f"m{i}": torch.tensor(i / 3, dtype=dtype) for i, dtype in enumerate(dtypes)}
        values, problems = plain({"x": 1.0, **{name: OnDevice(scalar) for name, scalar in data.items()}})

        assert problems == {}
        assert values == {"x": 1.0, **{name: scalar.item() for name, scalar in data.items()}}
        assert crossings == ["aten._to_copy.default"]

    def test_bad_tensors_cost_their_siblings_nothing():
        """A big one, a complex one and one without data are problems of their own."""
        import torch

        values, problems = plain(
            {
                "big": torch.zeros(3),
                "complex": torch.tensor(1j),
                "meta": torch.ones((), device="meta"),
                "ok": torch.tensor(1.5),
            }
        )

        assert values == {"ok": 1.5}
        assert problems["big"] == (
            "got torch.Tensor of shape (3,): log a scalar such as .mean(), or a list with .tolist()"
        )
        assert problems["complex"] == "got complex: log .real and .imag, or abs()"
        assert problems["meta"].startswith("got torch.Tensor that cannot be read: ")

    def test_tensors_are_steps_and_matrices():
        """An integer tensor is a step, a bool one is not."""
        import torch

        assert check_step(torch.tensor([7])) == 7
        assert check_confusion(torch.eye(2, dtype=torch.int64), ["a", "b"])[0] == [[1, 0], [0, 1]]
        assert plain_params({"dtype": torch.float32})["dtype"] == "torch.float32"
        with pytest.raises(StepError):
            check_step(torch.tensor(True))


if HAS_JAX:

    def test_jax_values():
        """In a process of their own: one that has loaded JAX must not fork, and other tests do."""
        tests = pathlib.Path(__file__).with_name("jax_values.py")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
            capture_output=True, text=True, check=False, timeout=240, cwd=pathlib.Path(__file__).parents[2],
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "6 passed" in done.stdout
