"""What the disk did not take: kept in memory, in order, until it does.

A full disk, an I/O error or a directory that is gone for a while must not end a training. While one lasts, a
:class:`Backlog` stands where the run's writer was: same :meth:`append`, but the rows wait.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from loggers.errors import LoggerError, UnwrittenError
from plattli.errors import PlattliError, RunBrokenError
from plattli.rows import Json, RowWriter

#: Seconds between two tries to write: at first, and at most.
_FIRST, _LAST = 0.05, 5.0
#: What a row costs in memory beside its values, and a number in it, in bytes; generous.
_ROW, _NUMBER = 160, 40


class Waiting(NamedTuple):
    """One row, as :meth:`plattli.rows.RowWriter.append` takes it."""

    step: int
    names: tuple[str, ...]
    values: tuple[Any, ...]
    floats: bool


def is_outage(error: BaseException) -> bool:
    """Tell whether an error says that the disk failed, rather than that the call was wrong."""
    if isinstance(error, RunBrokenError):
        return isinstance(error.__cause__, OSError)
    # several errors of ours are OSErrors too: a run that is locked, or exists already
    return isinstance(error, OSError) and not isinstance(error, PlattliError | LoggerError)


class Backlog:
    """Rows and changes that wait for the disk.

    Not thread-safe: its logger's lock is held around every call.
    """

    def __init__(
        self, run: str, limit: int, error: BaseException, begin: Callable[[], RowWriter], end: Callable[[], None]
    ) -> None:
        """Begin to keep.

        Args:
            run: the run's name, for messages.
            limit: bytes of memory that waiting rows may take.
            error: what the disk said.
            begin: returns the run's writer, opened if it is not; raises what the disk says.
            end: called when all is written.
        """
        self.error = error
        #: rows that were written by now
        self.written = 0
        self._run = run
        self._limit = limit
        self._begin, self._end = begin, end
        self._rows: deque[Waiting] = deque()
        self._changes: list[Callable[[], None]] = []
        self._bytes = 0
        self._pause = _FIRST
        self._again = time.monotonic() + _FIRST
        weakref.finalize(self, _tell_what_is_lost, run, self._rows)
        warnings.warn(
            f"run {run!r}: the disk takes nothing ({_said(error)}); lines wait in memory, up to "
            f"{limit / 1e6:g} MB of them, and are written when it does",
            RuntimeWarning,
            stacklevel=5,
        )

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self._rows)

    def append(
        self, step: int, names: tuple[str, ...], values: tuple[Any, ...], *, floats: bool = False
    ) -> dict[str, PlattliError]:
        """Write a row if the disk takes it by now, else keep it; see :meth:`plattli.rows.RowWriter.append`.

        Raises:
            UnwrittenError: memory is used up. The row was not kept.
        """
        row = Waiting(step, names, values, floats)
        self._rows.append(row)
        self._bytes += _size(row)
        is_full = self._bytes > self._limit
        if is_full or time.monotonic() >= self._again:
            try:
                unfit = self._write(row)
            except BaseException:
                self._take_back(row)
                raise
            if unfit is not None:
                return unfit
        if is_full:
            self._take_back(row)
            raise UnwrittenError(
                f"run {self._run!r}: the disk takes nothing ({_said(self.error)}), {len(self):,} lines wait in memory, "
                f"and it takes no more: the line at step {step} was not logged; make room, or end the training"
            )
        return {}

    def _take_back(self, row: Waiting) -> None:
        if self._rows and self._rows[-1] is row:
            self._rows.pop()
            self._bytes -= _size(row)

    def change(self, change: Callable[[], None]) -> None:
        """Keep a change of the run's config."""
        self._changes.append(change)
        if time.monotonic() >= self._again:
            self.retry()

    def retry(self) -> bool:
        """Write what waits, as much of it as the disk takes; tell whether that was all of it."""
        return self._write(None) is not None

    def _write(self, newest: Waiting | None) -> dict[str, PlattliError] | None:
        """Write what waits.

        Returns:
            What could not be stored of the newest row, which its caller tells; ``None`` if not all was written.
        """
        unfit: dict[str, PlattliError] = {}
        try:
            writer = self._begin()
            while self._rows:
                row = self._rows[0]
                unfit = writer.append(row.step, row.names, row.values, floats=row.floats)
                self._rows.popleft()
                self._bytes -= _size(row)
                if row is not newest:
                    self.written += 1
                    self._tell(row, unfit)
            while self._changes:
                self._changes[0]()
                del self._changes[0]
            self._begin()  # saves what was changed
        except Exception as error:
            if not is_outage(error):
                raise
            self.error = error
            self._pause = min(2 * self._pause, _LAST)
            self._again = time.monotonic() + self._pause
            return None
        self._end()
        warnings.warn(
            f"run {self._run!r}: the disk takes lines again; the {self.written} that waited are written",
            RuntimeWarning,
            stacklevel=5,
        )
        return unfit if newest is not None else {}

    def forget(self) -> None:
        """Let go of everything."""
        self._rows.clear()
        self._changes.clear()

    def describe(self) -> str:
        """Return what is missing, and why."""
        steps = [row.step for row in self._rows]
        lines = f"{len(steps)} lines (steps {min(steps)} to {max(steps)})" if steps else "nothing but params or tags"
        return f"run {self._run!r}: the disk takes nothing ({_said(self.error)}); {lines} wait in memory"

    def _tell(self, row: Waiting, unfit: dict[str, PlattliError]) -> None:
        for name, error in unfit.items():
            warnings.warn(
                f"run {self._run!r}: {name} at step {row.step} is not stored: {error}", RuntimeWarning, stacklevel=6
            )


def _size(row: Waiting) -> int:
    size: int = _ROW + _NUMBER * len(row.values)
    for value in row.values:
        if isinstance(value, Json):
            value = value.value
        if isinstance(value, str | list | dict):
            size += 8 * len(repr(value))  # a list of small integers takes about that
    return size


def _said(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, RunBrokenError) else None
    return str(cause or error)


def _tell_what_is_lost(run: str, rows: deque[Waiting]) -> None:
    if rows:
        warnings.warn(
            f"run {run!r}: {len(rows)} lines waited for a disk that took nothing, and are lost now "
            f"(steps {min(row.step for row in rows)} to {max(row.step for row in rows)})",
            RuntimeWarning,
            stacklevel=2,
        )
