"""Which rows a read wants, and how several metrics are brought onto the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import index
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
#: Row numbers, in order: a slice where they are consecutive.
Rows = slice | np.ndarray[Any, np.dtype[np.intp]]


class Selection(NamedTuple):
    """A range of steps, of row numbers or of values; ``by=None`` is everything.

    Bounds are inclusive, except the upper one of row numbers, which are what a slice takes.
    """

    by: Literal["step", "row", "value"] | None
    low: Any
    high: Any

    @classmethod
    def of(cls, start: Any, stop: Any, istart: Any, istop: Any, vstart: Any, vstop: Any) -> Selection:
        """Make a selection of a read's arguments.

        Raises:
            ValueError: bounds of more than one kind.
            TypeError: row numbers that are not integers.
        """
        kinds: list[Selection] = [
            cls("step", start, stop),
            cls("row", *(None if bound is None else index(bound) for bound in (istart, istop))),
            cls("value", vstart, vstop),
        ]
        used = [kind for kind in kinds if kind.low is not None or kind.high is not None]
        if len(used) > 1:
            raise ValueError(
                "steps (start/stop), rows (istart/istop) and values (vstart/vstop) cannot be combined "
                f"in one read: got {' and '.join(f'{kind.by}s {kind.low}..{kind.high}' for kind in used)}"
            )
        return used[0] if used else cls(None, None, None)


def rows_where(mask: Mask) -> Rows:
    """Return the rows at which ``mask`` [n] is true."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def join(columns: Sequence[tuple[Array, Array]]) -> tuple[Array, list[Array]]:
    """Keep the steps that all columns have.

    Args:
        columns: steps [n_i] and values [n_i] of each. Steps are unique within a column, but need not
            be sorted.

    Returns:
        The common steps [n], sorted, and the values [n] of each column at these steps. A single
        column comes back as it is. Steps are uint64 if those of any column are.
    """
    steps, _ = columns[0]
    if all(np.array_equal(steps, others) for others, _ in columns[1:]) and (
        len(columns) == 1 or (steps[1:] > steps[:-1]).all()
    ):
        # they may be equal and yet of two widths
        return steps.astype(np.result_type(*(others for others, _ in columns)), copy=False), [v for _, v in columns]
    common = reduce(np.intersect1d, (steps for steps, _ in columns))
    return common, [_at(common, *column) for column in columns]


def _at(common: Array, steps: Array, values: Array) -> Array:
    if np.array_equal(common, steps):
        return values
    order = np.argsort(steps, kind="stable")
    return values[order[np.searchsorted(steps, common, sorter=order)]]
