"""What a write would do to each metric's column, settled before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from plattli import _dtypes
from plattli._dtypes import Floats, Promote
from plattli._format import JSONL
from plattli._pathnames import PathNames
from plattli.errors import MetricNameError, PlattliError, RunBrokenError

#: metric -> the storage code that its column will have, and the value as plain Python
Plan: TypeAlias = dict[str, tuple[str, Any]]

_F32_MAX: Final = float(np.finfo(np.float32).max)


class Stored(Protocol):
    """A column, on disk or in memory, as far as a plan needs to know it."""

    code: str


_Column = TypeVar("_Column", bound=Stored)


def plan(
    metrics: Iterable[tuple[str, Any]],
    columns: Mapping[str, _Column],
    names: PathNames,
    run: str,
    *,
    integer_range: Callable[[_Column], tuple[int, int]],
    floats: Floats,
    promote: Promote,
) -> tuple[Plan, dict[str, PlattliError]]:
    """Return what is to be stored, and the errors of what cannot be.

    Args:
        metrics: (name, value) pairs, no name twice.
        columns: the run's columns.
        names: their names.
        run: the run's name, for the messages.
        integer_range: (min, max) over 0 and all values of an integer column.
        floats, promote: see :mod:`plattli._dtypes`.
    """
    planned: Plan = {}
    new = names.beside()
    unfit: dict[str, PlattliError] = {}
    for name, value in metrics:
        column = columns.get(name)
        if column is not None and type(value) is float and floats == "f32" and _is_plain(column.code, value):
            planned[name] = column.code, value
            continue
        try:
            if column is None:
                names.check(name, run)
                new.check(name, run)
            code, plain = _dtypes.incoming(value, floats, unsigned=promote is not None)
            if column is not None:
                if column.code == JSONL and code != JSONL:
                    plain = _dtypes.plain_json(plain)
                code = _dtypes.joined(
                    column.code,
                    code,
                    plain,
                    integer_range=lambda column=column: integer_range(column),  # type: ignore[misc]
                    promote=promote,
                )
            if code != JSONL:
                _dtypes.check_range(code, plain)
                plain = float(plain) if _dtypes.is_float(code) else plain
            planned[name] = code, plain
            if column is None:
                new.add(name)
        except RunBrokenError:
            raise  # the disk failed, which says nothing of the value
        except MetricNameError as error:
            unfit[name] = error.with_traceback(None)  # which leads back here
        except PlattliError as error:
            unfit[name] = _dtypes.describe(error, name, run)
    return planned, unfit


def first_error(unfit: dict[str, PlattliError]) -> PlattliError:
    """Take the first error out of a plan's, to be raised.

    Left in there, in a variable of the caller, it would keep the writer alive through its traceback.
    """
    return unfit.pop(next(iter(unfit)))


def _is_plain(code: str, value: float) -> bool:
    # what most values are, let through without a second look; NaN is not below anything
    return code == "f64" or (code == "f32" and -_F32_MAX <= value <= _F32_MAX)
