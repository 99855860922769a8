"""Reading a metrics group, live or closed: the arrays as far as the catalog counts them, and the log behind that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from adapters.backends._group_catalog import EVENTS, Catalog, NoGroupError
from adapters.backends._group_dense import Arrays
from adapters.backends._group_events import (
    NO_STEP,
    CorruptGroupError,
    Points,
    read_event,
    unix_seconds,
)
from adapters.backends._group_log import BATCH, FILE_NAME, read_log

#: A group that is written may change under a reader; each change costs it another look.
_LOOKS: Final = 100
_T = TypeVar("_T")


@dataclass(frozen=True)
class Series:
    """The points of one series, in the order in which they were first logged.

    Attributes:
        key: what it is called.
        values: float64 [n].
        steps: int64 [n], ``None`` if no point has a step. Where only some have, the others have
            :data:`NO_STEP`.
        wall_time: [n] RFC 3339 strings, empty ones where a group keeps no times.
    """

    key: str
    values: np.ndarray[Any, Any]
    steps: np.ndarray[Any, Any] | None
    wall_time: list[str]

    def __len__(self) -> int:
        """Return how many points there are."""
        return len(self.wall_time)

    def seconds(self) -> np.ndarray[Any, Any]:
        """Return the points' times in Unix seconds: float64 [n], NaN where the text is no time."""
        return np.array([unix_seconds(text) for text in self.wall_time], np.float64)

    def by_step(self) -> Series:
        """Return the points in the order of their steps; those without one come first, as they were logged."""
        if self.steps is None:
            return self
        order = np.argsort(self.steps, kind="stable")
        return Series(self.key, self.values[order], self.steps[order], [self.wall_time[i] for i in order.tolist()])


@dataclass
class RunRecord:
    """What a run says of itself beside its series.

    Attributes:
        params, tags: newest values.
        other: key -> the newest value of ``log_other``.
        confusions: the events of the confusion matrices, as they were logged.
        contexts: those that have a slash themselves.
        status: how the run has ended, ``None`` if it has not.
    """

    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    confusions: list[dict[str, Any]] = field(default_factory=list)
    contexts: set[str] = field(default_factory=set)
    status: str | None = None


class MetricsGroup:
    """A metrics group to read. It follows one that is written: each question looks at what is there now.

    Args:
        path: the group's folder.

    Raises:
        NoGroupError: there is neither a group nor a log.
        CorruptGroupError: here and from every question: the group is damaged; the message says where.
        ImportError: zarr is not installed, and some of the group is in its arrays.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._catalog = Catalog.new(self.path)
        self._document: bytes | None = None
        self._arrays: Arrays | None = None
        self._forget()
        self._look()

    def __repr__(self) -> str:
        return f"MetricsGroup({str(self.path)!r})"

    # --- what is there ----------------------------------------------------------------------------------

    def catalog(self) -> dict[str, Any]:
        """Return the group's attributes: the catalog, and what else is there."""
        self._look()
        return self._catalog.copy().data

    def names(self) -> list[str]:
        """Return the keys of the series that have points: those in the arrays, then those in the log alone."""
        return self._consistent(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __getitem__(self, key: str) -> Series:
        return self.series(key)

    def series(self, key: str) -> Series:
        """Return the points of a series.

        Raises:
            KeyError: there is none of that name.
        """
        points = self._consistent(lambda: self._points(key))
        if not len(points):
            raise KeyError(f"{self.path} has no series {key!r}")
        has_steps = bool(np.any(points.steps != NO_STEP))
        return Series(key, points.values, points.steps if has_steps else None, points.times)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that are no points of a series, as they were logged."""
        return [read_event(line) for line in self._consistent(self._others)]

    def run(self) -> RunRecord:
        """Return params, tags, the status and so on, if a :class:`MetricsGroupLogger` wrote the group."""
        return fold(self.events())

    # --- private ----------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._tail: dict[str, list[Points]] = {}
        self._tail_others: list[str] = []
        self._lines, self._offset = self._catalog.covers or (0, 0)

    def _look(self) -> bool:
        """Look at the catalog. Returns whether it is another one than before."""
        document = Catalog.read(self.path)
        if document is None and not (self.path / FILE_NAME).is_file():
            raise NoGroupError(f"there is no metrics group at {self.path}")
        if document == self._document:
            return False
        self._catalog = Catalog.new(self.path) if document is None else Catalog.parse(document, self.path)
        self._document = document
        self._forget()
        return True

    def _consistent(self, ask: Callable[[], _T]) -> _T:
        """Return an answer for which the catalog has stood still."""
        for _ in range(_LOOKS):
            self._look()
            try:
                answer = ask()
            except (CorruptGroupError, OSError, ValueError):
                if self._look():
                    continue  # what we read was being replaced
                if self._offset != (self._catalog.covers or (0, 0))[1]:
                    self._forget()  # so may have been the log, of which the catalog tells in a moment
                    continue
                raise
            if not self._look():
                return answer
        raise NoGroupError(f"{self.path} is replaced faster than it can be read; try again later")

    def _read_tail(self) -> None:
        """Read what the log has got since the last look. After the arrays, which hold nothing that it lacks."""
        if self._catalog.covers is None:
            return
        for batch in read_log(self.path / FILE_NAME, self._offset, self._lines, BATCH):
            for key, points in batch.series():
                self._tail.setdefault(key, []).append(points)
            self._tail_others += batch.others
            self._lines += batch.lines
            self._offset += batch.size

    def _names(self) -> list[str]:
        self._read_tail()
        dense = [key for key, entry in self._catalog.series.items() if entry["count"]]
        return [*dict.fromkeys([*dense, *self._tail])]

    def _points(self, key: str) -> Points:
        count = self._catalog.series.get(key, {}).get("count", 0)
        dense = [self._dense().points(key, count)] if count else []
        self._read_tail()
        return Points.joined([*dense, *self._tail.get(key, [])]).merged()

    def _others(self) -> list[str]:
        count = self._catalog.events
        dense = [str(line) for line in self._dense().read(EVENTS, count).tolist()] if count else []
        self._read_tail()
        return [*dense, *self._tail_others]

    def _dense(self) -> Arrays:
        if self._arrays is None:
            self._arrays = Arrays(self.path)
        return self._arrays


def fold(events: list[dict[str, Any]]) -> RunRecord:
    """Return what the events of a run say of it. An event of unknown type says nothing."""
    run = RunRecord()
    for event in events:
        value = event.get("value")
        match event.get("type"):
            case "params" if isinstance(value, dict):
                run.params |= value
            case "tags" if isinstance(value, dict):
                run.tags |= value
            case "other" if isinstance(event.get("key"), str):
                run.other[event["key"]] = value
            case "confusion" if isinstance(value, dict):
                run.confusions.append(event)
            case "context" if isinstance(event.get("key"), str):
                run.contexts.add(event["key"])
            case "finish" | "resume":
                run.status = value
    return run


def open_group(path: str | os.PathLike[str]) -> MetricsGroup:
    """Return a metrics group to read; see :class:`MetricsGroup`."""
    return MetricsGroup(path)
