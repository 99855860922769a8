"""``DirectWriter``: every value goes straight to its column."""

from __future__ import annotations

import errno
import operator
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from plattli._columns import Column, json_line
from plattli._dtypes import Promote
from plattli._rowform import Layout, Row
from plattli._writing import StreamingWriter
from plattli.errors import ArgumentError
from plattli.rows import IfExists, RowWriter

#: How many columns keep their two files open: together a quarter of what the process may open.
_MOST_OPEN: Final = max(16, min(4096, os.sysconf("SC_OPEN_MAX") // 8)) if hasattr(os, "sysconf") else 16


class DirectWriter(StreamingWriter):
    """Write a run one step after another, from one thread, for disks that are near.

    ::

        w = DirectWriter("runs/a", config={"lr": 3e-4})
        w.write(loss=1.2)
        w.end_step()
        w.finish()

    A value is in its column, in the operating system, when :meth:`write` returns. There is no hot log:
    a reader sees whole columns, at the price of two small writes per value. Where that is much (many
    metrics, a network disk), :class:`~plattli.CompactingWriter` writes one line per step instead.
    """

    def __init__(
        self,
        outdir: str | Path,
        step: int | Literal["auto"] | None = None,
        write_threads: int = 0,
        config: Any = "config.json",
        allow_resume_finalized: bool = False,
        *,
        promote: Promote = None,
    ) -> None:
        """Open or create the run in ``outdir``. Rows that a ``CompactingWriter`` left in its hot log move
        to their columns first.

        Args:
            outdir: the run root; the run goes to ``outdir/plattli`` and ends as
                ``outdir/metrics.plattli``.
            step: where to go on. On a run that has rows an integer keeps those before it and removes
                the rest (0 starts over), ``"auto"`` goes on after the last one, and ``None`` is refused.
            write_threads: accepted for programs that pass it; any number writes in the caller's thread,
                as 0 says. A write to files that are open takes less time than handing it to a thread.
            config: JSON data for ``config.json``; or the path of a file, relative to ``outdir``, to
                link to (if it exists); or ``None`` to keep what is there.
            allow_resume_finalized: go on with a run that has been finished into an archive.
            promote: ``"float"`` lets a float join an integer metric, which then becomes floats;
                ``None`` refuses it.

        Raises:
            StepError: the step is no integer in 0 … 2**63 - 1.
            TypeError, ValueError: ``write_threads`` is no integer, or negative.
            RunExistsError: rows would be lost and ``step`` does not say so, or the run is archived.
            RunLockedError: another live process writes this run.
        """
        try:
            threads = operator.index(write_threads)
        except TypeError:
            raise TypeError(f"write_threads must be an integer, got {write_threads!r}") from None
        if threads < 0:
            raise ArgumentError(f"write_threads must not be negative, got {threads}")
        super().__init__(
            outdir,
            step,
            engine=_ColumnRows,
            hotsize=1,
            config=config,
            allow_resume_finalized=allow_resume_finalized,
            promote=promote,
        )

    def write(self, /, *args: dict[str, Any] | None, **kwargs: Any) -> None:
        """Add metrics to the current step: one dict, keywords, or both; they are stored at once.

        All values are checked before anything changes. A step that is not above a metric's last one is
        found a place, or replaces what was there, which costs time in proportion to the column.

        Args:
            *args: at most one dict, for names that are no identifiers.
            **kwargs: more metrics.

        Raises:
            TypeError, ValueError, OverflowError: from :mod:`plattli.errors`; nothing of the call was
                applied.
            DuplicateError: a metric has been written in this step already.
            OSError: the disk failed. Some of the call's metrics may be stored; it can be repeated.
        """
        self._write(args, kwargs)

    def _put(self, step: int, row: dict[str, Any]) -> None:
        self._rows.commit(step, row)


class _ColumnRows(RowWriter):
    """The engine without a hot log: rows go straight to their columns, whose steps are in files."""

    def __init__(self, outdir: str | Path, **options: Any) -> None:
        self._files = _OpenFiles()
        super().__init__(outdir, **options)
        weakref.finalize(self, self._files.close)

    def _open(self, if_exists: IfExists, cut: Callable[[str], int | None]) -> None:
        super()._open(if_exists, cut)
        self.drain()
        if self._columns:
            for column in self._columns.values():
                column.spell_steps()
            self._store.publish(sync=True)

    def _new_column(self, name: str, code: str) -> Column:
        column = super()._new_column(name, code)
        column.spell_steps()
        return column

    def _place(
        self, step: int, layout: Layout, packed: bytes, others: Sequence[Any], numbers: tuple[Any, ...]
    ) -> None:
        if self._store.stale:  # the disk failed under the manifest: without it the columns can't be read
            self._store.publish(sync=True)
        late: list[str] = []
        at = 0
        for i in layout.numbers:
            column = layout.columns[i]
            end = at + column.itemsize
            if step > column.last:
                self._append(column, step, packed[at:end])
            else:
                late.append(column.name)
            at = end
        for i, value in zip(layout.others, others, strict=True):
            column = layout.columns[i]
            if step > column.last:
                self._append(column, step, json_line(value))
            else:
                late.append(column.name)
        if late:
            self._files.forget([self._columns[name] for name in late])
            values = Row(layout, packed, others).values()
            self._place_in_columns(step, self._pack(tuple(late), tuple(values[name] for name in late)))
        self._newest = max(self._newest, step)

    def _append(self, column: Column, step: int, data: bytes) -> None:
        try:
            column.put_row(step, data, *self._files.of(column))
        except OSError:
            self._files.forget([column])  # cut to the whole rows when they are opened again
            raise
        column.newest = step
        self._store.unsynced.add(column)

    def _adopt(self, plan: dict[str, tuple[str, Any]]) -> None:
        """Register the new metrics of a plan and widen the columns that need it."""
        columns = self._columns
        widened = [columns[name] for name, (code, _) in plan.items() if name in columns and columns[name].code != code]
        self._files.forget(widened)
        super()._adopt(plan)

    def _widen(self, columns: list[Column]) -> None:
        self._files.forget([column for column in columns if not column.wide])
        super()._widen(columns)

    def close(self) -> None:
        """Let go of the run, which stays resumable. Calling it again does nothing."""
        super().close()
        self._files.close()

    def _let_go(self) -> None:
        super()._let_go()
        self._files.close()

    def finish(
        self, optimize: bool = True, zip: bool = True, config_overrides: dict[str, Any] | None = None
    ) -> None:
        """Close the columns and archive the run; see :meth:`RowWriter.finish`."""
        self._files.close()
        super().finish(optimize, zip, config_overrides)


class _OpenFiles:
    """The value and step files of the columns written last: opening them takes longer than writing."""

    def __init__(self) -> None:
        self._open: dict[Column, tuple[int, int]] = {}

    def of(self, column: Column) -> tuple[int, int]:
        """Return the column's files, ready for :meth:`Column.put_row`."""
        files = self._open.pop(column, None)
        if files is None:
            if len(self._open) >= _MOST_OPEN:
                self.forget([next(iter(self._open))])
            try:
                files = column.open_files()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                self.close()  # the program needs them for something else
                files = column.open_files()
        self._open[column] = files  # at the end: the first one is the one unused for longest
        return files

    def forget(self, columns: list[Column]) -> None:
        """Close the files of columns that change in another way."""
        for column in columns:
            for fd in self._open.pop(column, ()):
                os.close(fd)

    def close(self) -> None:
        """Close them all; each is opened again when it is needed."""
        self.forget(list(self._open))
