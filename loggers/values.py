"""What users log, as plain Python: metrics, params, tags, confusion matrices, steps.

One rule per type, the same for every logger:

======================================  ===========================================================
got                                     becomes
======================================  ===========================================================
``float``, ``np.float64``               ``float``; NaN and the infinities are kept
``int``, subclasses, NumPy integers     ``int``; outside ``-2**63 .. 2**64 - 1`` is a problem
``bool``, ``np.bool_``                  ``int`` 0 or 1 as a metric; stays ``bool`` inside JSON data
float16/32, bfloat16, float8            ``float``, exactly
``np.longdouble``                       ``float`` if float64 holds it exactly, else a problem
size-1 arrays, torch and JAX scalars    the scalar inside, by its own rule; one device-to-host
                                        transfer per call for all of them
bigger or empty arrays, masked values   a problem
``Decimal``, ``Fraction``               the nearest ``float`` (ties to even); a finite value that
                                        would become infinite is a problem
``Enum``                                its ``.value``, by that value's rule
``str``                                 ``str``; lone surrogates are a problem
``None``, list, tuple, mapping          a deep plain copy: tuples become lists, keys must be strings;
                                        cycles are a problem
other objects                           by ``.item()`` (size 1), then ``__index__``, then
                                        ``__float__``; what these raise is the problem
bytes, complex, dates, sets, the rest   a problem that names the type and the remedy
======================================  ===========================================================

Functions that begin with ``plain`` convert and, where one bad value must not cost its siblings
theirs, hand back the problems as text. Functions that begin with ``check`` raise.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from loggers import _devices
from loggers._convert import DEEPEST, LARGEST_INT, SMALLEST_INT, Refused, kind, plain_data
from loggers.contract import STATUSES
from loggers.errors import ConfusionError, MetricNameError, MetricValueError, StatusError, StepError

_NUMBERS: Final = frozenset((float, int))
_STRINGS: Final = frozenset((str,))
# types whose rule is one C call; everything else takes the long way
_CASTS: Final[dict[type, type[int] | type[float]]] = {
    float: float,
    bool: int,
    np.bool_: int,
    np.int32: int,
    np.int64: int,
    np.float16: float,
    np.float32: float,
    np.float64: float,
}


# --- steps, epochs, contexts, statuses ----------------------------------------------------------------


def check_step(step: object) -> int:
    """Return ``step`` as an ``int``.

    Args:
        step: optimizer steps done: an int, an integral float such as ``7.0``, a NumPy integer, or an
            array or tensor that holds one of these.

    Raises:
        StepError: anything else, in particular bools, fractions, text, NaN and negatives.
    """
    if type(step) is int and step >= 0:
        return step
    number = _whole(step)
    if number is None or number < 0:
        raise StepError(
            f"step must be a non-negative integer, got {_short(step)}: "
            "pass the number of optimizer steps done so far"
        )
    return number


def check_epoch(epoch: object) -> int | None:
    """Return ``epoch`` as an ``int``, or ``None`` where there is none.

    Raises:
        StepError: as for :func:`check_step`.
    """
    if epoch is None or (type(epoch) is int and epoch >= 0):
        return epoch
    number = _whole(epoch)
    if number is None or number < 0:
        raise StepError(
            f"epoch must be a non-negative integer or None, got {_short(epoch)}: "
            "pass the number of the running epoch, or leave it out"
        )
    return number


def check_context(context: object) -> str:
    """Return ``context`` as a ``str``.

    Raises:
        MetricNameError: not a string, or empty.
    """
    if isinstance(context, str) and context:
        return str.__str__(context)
    raise MetricNameError(
        f"context must be a non-empty string, got {_short(context)}: "
        "pass 'train', 'validate', 'data' or a name of your own"
    )


def check_status(status: object) -> str:
    """Return ``status`` as a ``str``.

    Raises:
        StatusError: not one of the four that :meth:`~loggers.contract.Logger.finish` takes.
    """
    if isinstance(status, str) and status in STATUSES:
        return str.__str__(status)
    raise StatusError(f"finish status must be one of {', '.join(map(repr, STATUSES))}, got {_short(status)}")


def _whole(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_, str, bytes, np.datetime64, np.timedelta64)):
        return None
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return int(value) if np.isfinite(value) and value == np.floor(value) else None
    item = getattr(value, "item", None)
    try:
        number = item() if callable(item) else value.__index__()
    except Exception:  # several elements, traced, complex …: whatever it is, it is no step
        return None
    return None if type(number) is type(value) else _whole(number)


def _short(value: object) -> str:
    return f"{reprlib.repr(value)} ({kind(value)})"


# --- metrics --------------------------------------------------------------------------------------------


def plain(metrics: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Turn the metrics of one line into plain values.

    Args:
        metrics: name -> anything.

    Returns:
        name -> ``float | int | str | list | dict | None``, in the given order, and name -> what is
        wrong with the value that is missing from the first. If there was nothing to convert, the
        first is ``metrics`` itself, so do not change it.

    Raises:
        MetricValueError: ``metrics`` is not a mapping.
    """
    if type(metrics) is dict:
        kinds = {*map(type, metrics.values())}
        if (
            kinds <= _NUMBERS
            and {*map(type, metrics)} == _STRINGS
            and "" not in metrics
            and (
                int not in kinds
                or all(SMALLEST_INT <= v <= LARGEST_INT for v in metrics.values() if type(v) is int)
            )
        ):
            return metrics, {}
    elif not isinstance(metrics, Mapping):
        raise MetricValueError(
            f"metrics must be a mapping of names to values, got {_short(metrics)}: pass {{'loss': loss}}"
        )
    fetched, unread = _devices.fetch(metrics) if _devices.loaded() else ({}, {})
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            problems[repr(name)] = "a metric name must be a non-empty string: name it"
            continue
        if type(name) is not str:
            name = str.__str__(name)
        if name in unread:
            problems[name] = unread[name]
            continue
        if name in fetched:
            value = fetched[name]
        if type(value) is np.ndarray and value.size == 1:
            value = value.reshape(())[()]
        cast = _CASTS.get(type(value))
        if cast is not None:
            values[name] = cast(value)
            continue
        try:
            number = plain_data(value)
        except Refused as problem:
            problems[name] = str(problem)
        else:
            values[name] = int(number) if number is True or number is False else number
    return values, problems


def plain_value(value: Any) -> tuple[Any, str | None]:
    """Turn one free-form value into JSON data of its own.

    Returns:
        The data and ``None``, or ``None`` and what is wrong. A bool stays one here.
    """
    try:
        return plain_data(value), None
    except Refused as problem:
        return None, str(problem)


def raise_for(problems: Mapping[str, str], *, where: str) -> None:
    """Raise for the values that :func:`plain` could not convert; do nothing if there are none.

    Call it after the good values are stored.

    Args:
        problems: name -> what is wrong.
        where: what was being logged, such as ``"the train line of step 5"``.

    Raises:
        MetricValueError: names every bad value, its type and its remedy; the names are in ``metrics``, too.
    """
    if problems:
        each = "; ".join(f"{name!r}: {problem}" for name, problem in problems.items())
        count = "1 value" if len(problems) == 1 else f"{len(problems)} values"
        message = f"{count} of {where} could not be logged, any others were: {each}"
        raise MetricValueError(message, metrics=problems)


# --- params and tags --------------------------------------------------------------------------------------


def plain_params(params: Mapping[Any, Any]) -> dict[str, Any]:
    """Turn hyperparameters into JSON data. No value is refused: what JSON cannot hold becomes text.

    Keys are kept as they are, those that are no strings become text. Mappings, lists and tuples stay
    nested, sets become sorted lists, NumPy and other scalars become numbers (NaN is kept, ints of any
    size too), classes and functions their qualified name, everything else ``str(value)``.

    Raises:
        MetricValueError: ``params`` is not a mapping.
    """
    if not isinstance(params, Mapping):
        raise MetricValueError(
            f"params must be a mapping of names to values, got {_short(params)}: pass vars(params) or a dict"
        )
    return {_text(key): _param(value, (id(params),)) for key, value in params.items()}


def plain_tags(tags: Mapping[str, Any] | Iterable[str] | str) -> dict[str, Any]:
    """Turn tags into a mapping. A tag that is only a string has the value ``True``.

    Args:
        tags: one string, some strings, or a mapping (whose values go as params do).

    Raises:
        MetricValueError: something else, or an empty tag.
    """
    if isinstance(tags, Mapping):
        return plain_params(tags)
    strings = [tags] if isinstance(tags, str) else tags
    if isinstance(strings, Iterable) and not isinstance(strings, (bytes, bytearray)):
        strings = list(strings)
        if all(isinstance(tag, str) and tag for tag in strings):
            return {_text(tag): True for tag in strings}
        tags = strings  # a generator's repr says nothing
    raise MetricValueError(f"tags must be a non-empty string, several, or a mapping, got {_short(tags)}")


def _param(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        if id(value) in above or len(above) > DEEPEST:
            return _text(value)
        above = (*above, id(value))
        if isinstance(value, Mapping):
            return {_text(key): _param(item, above) for key, item in value.items()}
        items = [_param(item, above) for item in value]
        # a set of strings has another order in every process; its text should not
        return sorted(items, key=str) if isinstance(value, (set, frozenset)) else items
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    if isinstance(value, str):
        return _text(value)
    try:
        return plain_data(value)
    except Refused:
        return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    try:
        words = str.__str__(value) if isinstance(value, str) else str(value)
    except Exception as error:  # its own __str__ is broken, or the nesting is too deep for it
        words = f"<{kind(value)}: str() raised {type(error).__name__}>"
    return words.encode(errors="backslashreplace").decode()


# --- confusion matrices -------------------------------------------------------------------------------------


def check_confusion(matrix: Any, labels: Iterable[Any]) -> tuple[list[list[int | float]], list[str]]:
    """Return a confusion matrix as lists of numbers and its labels as strings.

    Args:
        matrix: [K, K] nested sequences, array or tensor; rows true, columns predicted.
        labels: [K] class names; those that are no strings become text.

    Raises:
        ConfusionError: not square, not finite numbers, or not one label per class.
    """
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise ConfusionError(f"labels must be a list of one name per class, got {_short(labels)}")
    names = [_text(label) for label in labels]
    rows = [_listed(row, f"row {i}") for i, row in enumerate(_listed(matrix, "the matrix"))]
    widths = sorted({len(row) for row in rows})
    if not rows or widths != [len(rows)]:
        shape = f"{len(rows)} rows of {' or '.join(map(str, widths)) or 0} columns"
        raise ConfusionError(f"a confusion matrix is square with at least one class, got {shape}")
    if len(names) != len(rows):
        raise ConfusionError(
            f"a confusion matrix of {len(rows)} classes needs {len(rows)} labels, got {len(names)}: {names}"
        )
    return [[_cell(cell, i, j) for j, cell in enumerate(row)] for i, row in enumerate(rows)], names


def _listed(value: Any, what: str) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()  # arrays and tensors, one transfer
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return list(value)
    raise ConfusionError(f"a confusion matrix is a list of rows of numbers, got {_short(value)} as {what}")


def _cell(value: Any, row: int, column: int) -> int | float:
    try:
        number = plain_data(value)
    except Refused as problem:
        raise ConfusionError(f"confusion matrix, row {row}, column {column}: {problem}") from None
    if isinstance(number, (int, float)) and abs(number) < float("inf"):
        return int(number) if isinstance(number, bool) else number
    raise ConfusionError(
        f"confusion matrix, row {row}, column {column}: must be a finite number, got {_short(value)}"
    )
