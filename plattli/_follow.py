"""The points of a run as it grows, each of them once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plattli._indices import bounds
from plattli._select import Array
from plattli.errors import MissingFileError, PlattliError, UnknownMetricError, UnstableRunError

#: What a run that is being made, cut or archived may answer for a moment.
_NOT_YET = (MissingFileError, UnknownMetricError, UnstableRunError)


class Moment(NamedTuple):
    """How a run stands.

    Attributes:
        is_written: a live process writes it.
        is_final: it was finished: nothing will come unless somebody goes on with it.
        state: as long as this is equal, nobody cut the run.
    """

    is_written: bool
    is_final: bool
    state: object


class Points:
    """The points of one metric that were delivered.

    They are kept, steps and values: only they can tell what a resume cut off and wrote anew.
    """

    def __init__(self, name: str, read: Callable[[str, int], tuple[Array, Array]]) -> None:
        """Begin with nothing.

        Args:
            name: the metric.
            read: returns its steps and values from a row on, as they are stored.
        """
        self.name = name
        self._read = read
        self._state: object = None
        self._steps: list[Array] = []
        self._values: list[Array] = []
        self._rows = 0

    @property
    def last(self) -> int:
        """The step of the newest row that was delivered, -1 if none was."""
        return int(self._steps[-1][-1]) if self._rows else -1

    def new(self, state: object) -> tuple[Array, Array]:
        """Return the points that were not delivered yet: steps [n] and values [n].

        Normally these are rows behind the delivered ones, and only those are read.

        Args:
            state: see :class:`Moment`.
        """
        if self._rows and state == self._state:
            steps, values = self._read(self.name, self._rows - 1)
            if len(steps) and int(steps[0]) == self.last:
                self._add(steps[1:], values[1:])
                return steps[1:], values[1:]
        # a first look, or a late point came between earlier ones, or a resume cut some off
        steps, values = self._read(self.name, 0)
        is_new = self._unknown(steps, values)
        self._steps, self._values, self._rows = [], [], 0
        self._add(steps, values)
        self._state = state
        return steps[is_new], values[is_new]

    def _add(self, steps: Array, values: Array) -> None:
        if len(steps):
            self._steps.append(steps)
            self._values.append(values)
            self._rows += len(steps)

    def _unknown(self, steps: Array, values: Array) -> Any:
        """Return which points were not delivered, as a slice or a mask."""
        if not self._rows:
            return slice(None)
        old_steps, old_values = np.concatenate(self._steps), np.concatenate(self._values)
        rows = min(len(old_steps), len(steps))
        same = (old_steps[:rows] == steps[:rows]) & _equal(old_values[:rows], values[:rows])
        prefix = rows if same.all() else int(same.argmin())
        is_new = np.zeros(len(steps), bool)
        if prefix == len(old_steps):
            is_new[prefix:] = True
            return is_new
        # the others by their steps: of those that have one twice, the later counts
        old_steps, old_values = old_steps[prefix:], old_values[prefix:]
        order = np.argsort(old_steps, kind="stable")
        at = np.searchsorted(old_steps[order], steps[prefix:], "right") - 1
        found = order[np.maximum(at, 0)]
        known = (at >= 0) & (old_steps[found] == steps[prefix:])
        known &= _equal(old_values[found], values[prefix:])
        is_new[prefix:] = ~known
        return is_new


def _equal(old: Array, new: Array) -> Any:
    """Return which values [n] are the same, whatever their columns' dtypes were."""
    if new.dtype == object:
        pairs = zip(old.tolist(), new.tolist(), strict=True)
        return np.fromiter((repr(a) == repr(b) for a, b in pairs), bool, len(new))
    with np.errstate(all="ignore"):
        try:
            old = old.astype(new.dtype)
        except (TypeError, ValueError, OverflowError):  # JSON values that are no numbers
            return np.zeros(len(new), bool)
        return (old == new) | ((old != old) & (new != new))


def follow(
    metrics: Sequence[Points],
    moment: Callable[[], Moment | None],
    poll: float,
    start: float | None,
    stop: float | None,
    timeout: float | None,
) -> Iterator[tuple[str, Array, Array]]:
    """Yield name, steps and values of new points until there will be no more.

    Args:
        metrics: whose points.
        moment: makes what is new readable and says how the run stands; ``None`` to end here.
        poll: seconds between two looks.
        start, stop: the steps that are wanted, both inclusive.
        timeout: how long to wait for a new point, in seconds; ``None`` to wait only while somebody writes.
    """
    news = time.monotonic()
    while (now := moment()) is not None:
        problem: PlattliError | None = None
        came = False
        for points in metrics:
            try:
                steps, values = points.new(now.state)
            except _NOT_YET as error:
                problem = error
                continue
            if start is not None or stop is not None:
                low, end = bounds(start, stop)
                wanted = (steps >= low) & (steps < end)
                steps, values = steps[wanted], values[wanted]
            if len(steps):
                came = True
                yield points.name, steps, values
        if came:
            news = time.monotonic()
        if stop is not None and all(points.last >= stop for points in metrics):
            return
        # whoever wrote when we began to look may have written since; if nobody did, this was all
        if not now.is_written and (timeout is None or now.is_final):
            if problem is not None:
                raise problem
            return
        if timeout is not None and time.monotonic() - news >= timeout:
            return
        time.sleep(poll)
