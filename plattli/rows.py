"""The engine of the streaming writers: whole rows, at any step, into a run that no kill can break.

::

    append(step, names, values)
        │  one write() to hot.jsonl: the row is safe from kill -9 when the call returns
        ▼
    rows in memory, packed as they will lie in the columns
        │  every `hotsize` rows, or more where rows come fast, in a background thread
        ▼
    columns: steps, manifest, values, each with its fsync; then the old hot log goes

Steps normally rise. Three things are ordinary too, and cost a little more:

- a metric **joins a step** whose row is still hot (a validate line after the train line of the same
  step): the merged row is appended once more;
- a **late row**, between hot rows: appended, or, where that would put one metric's own points out of
  order, written with the log in order again;
- a row at or below the **watermark** (the highest step on its way into the columns): it goes to its
  columns directly. So hot rows always lie above all columns, which is what recovery (ours and that
  of other implementations) relies on.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import struct
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeAlias, TypeVar

import numpy as np

from plattli import _config, _dtypes, _fs, _hotlog, _manifest, _packing, _planning, _recovery
from plattli._batch import Background, Batch
from plattli._columns import Column, Ending
from plattli._dtypes import Floats, Json, Promote
from plattli._format import (
    ARCHIVE,
    CONFIG,
    HOT,
    HOT_COMPACTING,
    MANIFEST,
    MAX_NARROW_STEP,
    MAX_STEP,
    METRIC_DIR,
)
from plattli._pathnames import PathNames
from plattli._rowform import HotRows, Layout, Row
from plattli._store import Store
from plattli.errors import (
    ArgumentError,
    PlattliError,
    RunBrokenError,
    RunExistsError,
    RunFinishedError,
    StepError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: What says that the files are not what the writer thinks they are: moved, removed, or left half done by a call.
_SURPRISES: Final = frozenset((errno.EEXIST, errno.ENOENT, errno.EBADF, errno.ESTALE))

__all__ = ["Json", "RowWriter", "exists"]

IfExists: TypeAlias = Literal["refuse", "append", "replace"]
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()

#: Rows that come faster than a batch is worth its cost wait for a bigger one, until they are so many times `hotsize` …
_PATIENCE: Final = 24
#: … or the hot log has so many bytes.
_LONG: Final = 32 << 20
#: So many times `hotsize` make ``append`` wait for a batch that is still at work, so that memory stays bounded; fewer
#: where the log has so many bytes by then.
_BACKLOG: Final = 60
_LONG_BACKLOG: Final = 15
_LONGEST: Final = 64 << 20


def _guarded(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a method notice when one before it, or it itself, ends half-way; see :meth:`RowWriter._mend`."""

    @functools.wraps(call)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        writer: RowWriter = args[0]  # type: ignore[assignment]
        if writer.lost is not None:
            writer.refuse()
        if writer._torn or writer._busy:
            writer._mend()
        writer._busy = True
        try:
            return call(*args, **kwargs)
        except (PlattliError, OSError) as error:
            writer._torn |= not _leaves_all_in_order(error)
            raise
        except BaseException:
            writer._torn = True
            raise
        finally:
            writer._busy = False

    return guarded


def _leaves_all_in_order(error: BaseException) -> bool:
    """Tell an error of ours, or of a disk that takes no more: those leave rows and files as they were."""
    cause = error.__cause__ if isinstance(error, RunBrokenError) else None if isinstance(error, PlattliError) else error
    return not isinstance(cause, OSError) or cause.errno not in _SURPRISES


class RowWriter:
    """Write whole rows to a run, at any step, from one thread.

    :class:`~plattli.CompactingWriter` and the loggers stand on this class.
    """

    def __init__(
        self,
        outdir: str | Path,
        *,
        hotsize: int,
        floats: Floats = "exact",
        promote: Promote = "float",
        config: Any = None,
        if_exists: IfExists = "refuse",
        cut: Callable[[str], int | None] | None = None,
        opening: AbstractContextManager[None] = _NOTHING,
        revising: Callable[[int, list[str]], AbstractContextManager[None]] | None = None,
    ) -> None:
        """Open or create the run under ``outdir``.

        Args:
            outdir: the run root; metrics go to ``outdir/plattli``.
            hotsize: rows in the hot log that start a compaction; there may be up to 16 times as many, or 40 while
                the disk is busy, where they come faster than it pays to move them.
            floats: how Python floats are stored, see :mod:`plattli._dtypes`.
            promote: ``"float"`` lets a float turn an integer column into floats.
            config: JSON data, the path of a file relative to ``outdir``, or ``None`` to keep what
                exists.
            if_exists: what to do if there is a run already: ``"append"`` goes on with it, finished or
                not; ``"replace"`` removes it.
            cut: with ``"append"``: metric name -> first step to remove, ``None`` to keep the metric.
            opening: entered while what is there is removed or cut; by then the run is ours.
            revising: returns what is entered while metrics get another value at a step, or a late one.

        Raises:
            RunExistsError: there is a run and ``if_exists`` is ``"refuse"``.
            RunLockedError: another live process writes the run.
            ConfigError: JSON cannot hold the config. Nothing was written in any of these cases.
        """
        self.run_root = Path(outdir)
        self.root = self.run_root / METRIC_DIR
        self.run = self.run_root.name
        if self.run == METRIC_DIR:
            raise ArgumentError(
                f"outdir {self.run_root} ends in {METRIC_DIR!r}: pass the run root, the folder above it"
            )
        self.hotsize = hotsize
        self._floats: Floats = floats
        self._rounds = floats == "f32"
        self._promote: Promote = promote
        checked = _config.check(config, self.run_root, self.run)
        self._revising = revising
        self._finished = False
        #: a call is under way; another one that finds it set comes from a signal's handler
        self._busy = False
        #: a call ended half-way: the files count, not what is in memory
        self._torn = False
        #: step -> metric -> value of what was in memory then
        self._held: dict[int, dict[str, Any]] = {}
        if if_exists == "refuse" and exists(self.run_root):
            raise RunExistsError(f"there is a run already in {self.run_root}")

        self.run_root.mkdir(parents=True, exist_ok=True)
        self._lock = _fs.RunLock(self.run_root)
        self._log = _hotlog.HotLog(self.root)
        self._background = Background(f"plattli-compaction-{self.run}")
        try:
            with opening:
                self._open(if_exists, cut or (lambda name: None))
            _config.write(checked, self.root)
        except BaseException:
            self._lock.release()
            raise
        self._lock.before_takeover = weakref.WeakMethod(self._let_go)
        weakref.finalize(self, _release, self._lock, self._log, self._background)

    # ---- opening ----------------------------------------------------------------------------------

    def _mend(self) -> None:
        """Go on after a call that ended half-way: read the run again, as a new writer would."""
        if self._busy:
            self._torn = True  # the call in whose middle we are cannot be left as it is
            raise RunBrokenError(
                f"run {self.run!r} was called from a signal handler in the middle of another call; let the handler "
                f"set a flag or raise, and act on it after the call"
            )
        self._let_go()
        self._remember_rows()
        self._open("append", lambda name: None)
        self._restore_rows()
        self._torn = False

    def _remember_rows(self) -> None:
        """Keep what is in memory until the files have it: they may be gone, or others than those it was written to."""
        batch = self._batch
        for rows in (() if batch is None else (batch.rows,)) + (self._rows,):
            for step, row in rows.whole():
                self._held[step] = self._held.get(step, {}) | row

    def _restore_rows(self) -> None:
        """Append what was in memory and is nowhere in the files; what they have counts."""
        first = min(self._held, default=0)
        stored: dict[str, set[int]] = {}
        for name in {name for row in self._held.values() for name in row} & self._columns.keys():
            steps = self._columns[name].steps()
            stored[name] = set(steps[steps >= first].tolist())
        for step, row in sorted(self._held.items()):
            hot = self._rows.get(step)
            known = () if hot is None else hot.values()
            missing = {n: v for n, v in row.items() if n not in known and step not in stored.get(n, ())}
            if missing:
                self._append_row(step, tuple(missing), tuple(missing.values()), False)
        self._held.clear()

    def _open(self, if_exists: IfExists, cut: Callable[[str], int | None]) -> None:
        _packing.remove_temporaries(self.run_root)
        if if_exists == "replace":
            _remove_run(self.run_root)
        elif (self.run_root / ARCHIVE).exists():
            _packing.unpack(self.run_root, self.run)
        self.root.mkdir(exist_ok=True)
        self._batch: Batch | None = None
        self._layouts: dict[tuple[str, ...], Layout] = {}
        #: layouts of an older and a newer row of one step -> that of the merged row, its bytes one behind the other
        self._joined: dict[tuple[Layout, Layout], Layout] = {}
        self._rows = HotRows()
        self._in_order = True
        #: how many rows make it worth to ask for a batch
        self._due = self.hotsize

        recovered = _recovery.recover(self.root, self.run, cut)
        self._store = Store(self.root, recovered.columns)
        self._columns = recovered.columns
        self._strays = recovered.strays
        # a name that differs from the config's in case finds the config where case does not count
        self._names = PathNames(self._columns, folds=(self.root / CONFIG.upper()).exists)
        #: highest step that is in the columns, or on its way there
        self._watermark = max((column.last for column in self._columns.values()), default=-1)
        self._newest = self._watermark
        if recovered.rows or self._log.path.exists() or self._log.compacting.exists():
            self._take_back(recovered.rows)

    def _take_back(self, rows: dict[int, dict[str, Any]]) -> None:
        """Make a dead writer's hot rows ours."""
        taken = {step: self._taken(row) for step, row in rows.items()}
        self._log.rewrite([row.line(step) for step, row in taken.items()], sync=True)
        self._log.drop_compacting()
        self._rows = HotRows(taken.items())
        for step, row in taken.items():
            for column in row.layout.columns:
                column.newest = max(column.newest, step)
        self._newest = max(self._newest, *taken, -1)
        if self._newest > MAX_NARROW_STEP:
            self._widen([column for column in self._columns.values() if column.newest > MAX_NARROW_STEP])
        self._store.list_all()
        if taken and min(taken) <= self._watermark:
            # an interrupted insertion: hot rows must lie above all columns
            self._drain()

    def _taken(self, row: dict[str, Any]) -> Row:
        for name, value in row.items():
            # other encoders spell what JSON cannot (NaN) as null
            if value is None and name in self._columns and _dtypes.is_float(self._columns[name].code):
                row[name] = math.nan
        # a value says nothing of the width it was logged with: what its column holds does not widen it
        odd = [name for name, value in row.items() if not self._holds(name, value)]
        plan, unfit = self.plan(tuple(odd), tuple(row[name] for name in odd), floats="exact", promote="float")
        if unfit:
            raise next(iter(unfit.values()))
        self._adopt(plan)
        return self._pack(tuple(row), tuple(plan[name][1] if name in plan else value for name, value in row.items()))

    def _holds(self, name: str, value: Any) -> bool:
        column = self._columns.get(name)
        return column is not None and _dtypes.holds(column.code, value)

    # ---- rows -------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """The highest step of any row, -1 without rows."""
        return self._newest

    @property
    def metrics(self) -> Iterable[str]:
        """The names of all metrics, in order of first write."""
        return self._columns.keys()

    def newest_of(self, name: str) -> int:
        """Return the highest step of one metric, hot rows included; -1 without rows."""
        self._fold()
        column = self._columns.get(name)
        return -1 if column is None else column.newest

    def append(
        self, step: int, names: tuple[str, ...], values: tuple[Any, ...], *, floats: bool = False
    ) -> dict[str, PlattliError]:
        """Append one row; when this returns, a kill cannot take it away.

        A (metric, step) that is there already gets the new value. Metrics that are new get a column.

        Args:
            step: 0 … 2**63 - 1, a Python int.
            names: [n] metric names, no one twice.
            values: [n] plain Python numbers, NumPy scalars or JSON data.
            floats: whether all values are known to be Python floats, or integers that float64 holds.

        Returns:
            What could not be stored, by metric; everything else of the row is stored. Empty normally.

        Raises:
            StepError: the step is out of range. Nothing was written.
            RunFinishedError, RunBrokenError: the writer can't write any more.
            OSError: the disk failed. Nothing was written.
        """
        if self._lock.lost is not None or self._finished:
            self.refuse()
        # what _guarded does, without the cost of a wrapper: this is the hot path
        if self._torn or self._busy:
            self._mend()
        self._busy = True
        try:
            return self._append_row(step, names, values, floats)
        except (PlattliError, OSError) as error:
            self._torn |= not _leaves_all_in_order(error)
            raise
        except BaseException:
            # Ctrl-C or a signal's handler, between any two instructions: what is in memory may be half done
            self._torn = True
            raise
        finally:
            self._busy = False

    def _append_row(
        self, step: int, names: tuple[str, ...], values: tuple[Any, ...], floats: bool
    ) -> dict[str, PlattliError]:
        layout = self._layouts.get(names)
        unfit: dict[str, PlattliError] = {}
        if layout is not None and layout.numeric:
            try:
                packed = layout.pack(*values)
                stored = values if floats and layout.exact else layout.unpack(packed)
            except (struct.error, OverflowError, TypeError):
                stored = ()
            exact = stored is values or stored == values or (stored and _holds(stored, values, self._rounds))
            if exact and 0 <= step <= layout.highest:
                self._place(step, Row(layout, packed, ()), stored)
                return unfit
        if not 0 <= step <= MAX_STEP:
            raise StepError(f"step must be in 0 … {MAX_STEP} (2**63 - 1), got {step} (run {self.run!r})")
        plan, unfit = self.plan(names, values, floats=self._floats, promote=self._promote)
        if plan:
            self._adopt(plan)
            self._commit(step, {name: value for name, (_, value) in plan.items()})
        return unfit

    @_guarded
    def commit(self, step: int, row: dict[str, Any]) -> None:
        """Append a row of values that :meth:`plan` gave and :meth:`adopt` made room for."""
        self._commit(step, row)

    def _commit(self, step: int, row: dict[str, Any]) -> None:
        if step > MAX_NARROW_STEP:
            self._widen([self._columns[name] for name in row])
        self._store.list_all()
        packed = self._pack(tuple(row), tuple(row.values()))
        if step > MAX_NARROW_STEP:
            packed.layout.highest = MAX_STEP
        self._place(step, packed, packed.layout.unpack(packed.packed))

    def _widen(self, columns: list[Column]) -> None:
        """Have the manifest say that steps above uint32 may come, before there is one: older readers refuse it then."""
        narrow = [column for column in columns if not column.wide]
        if not narrow and not self._store.stale:
            return
        self.settle()
        self._store.stale = True
        obsolete = [old for column in narrow if (old := column.set_wide(True)) is not None]
        self._store.publish(sync=bool(obsolete))
        _fs.remove(obsolete)

    def _pack(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
        layout = self._layout(names)
        packed = layout.pack(*[values[i] for i in layout.numbers])
        return Row(layout, packed, [values[i] for i in layout.others])

    def _place(self, step: int, row: Row, numbers: tuple[Any, ...]) -> None:
        layout = row.layout
        if step > self._newest:
            if len(self._rows) >= self._due:
                self._make_batch()
            self._log.append(layout.line(step, numbers) if layout.numeric else row.line(step))
            self._rows[step] = row
            layout.last = self._newest = step
        elif step == self._newest and (old := self._rows.get(step)) and (old.layout, row.layout) in self._joined:
            # a second line as there were others: it adds metrics to the newest row, and nothing gets another value
            self._place_late(step, row)
        else:
            with _NOTHING if self._revising is None else self._revising(step, self._not_newer(row, step)):
                if step > self._watermark:
                    self._place_late(step, row)
                else:
                    self._place_in_columns(step, row)

    def _place_late(self, step: int, row: Row) -> None:
        """Put a row among the hot ones."""
        rows = self._rows
        old = rows.get(step)
        if old is not None:
            row = self._merged(old, row)
        if self._in_order:
            # joining a row keeps the order; a new step keeps each metric's order if none is ahead
            simple = old is not None or self._is_newest(row, step)
            in_order = old is not None
        else:
            simple, in_order = old is None and self._is_newest(row, step), False
        if simple:
            self._log.append(row.line(step))
            rows[step] = row
            self._in_order = in_order
        else:
            # the log being compacted holds the oldest of our rows too, and readers go by where a step
            # appears first
            self.settle()
            ordered = sorted({**dict(rows.items()), step: row}.items())
            self._log.rewrite([r.line(s) for s, r in ordered])
            self._rows, self._in_order = HotRows(ordered), True
        row.layout.last = max(row.layout.last, step)

    def _merged(self, old: Row, new: Row) -> Row:
        """Return a row with the metrics of both, of which the new one's count."""
        both = self._joined.get((old.layout, new.layout))
        if both is None:
            merged = old.values() | new.values()
            row = self._pack(tuple(merged), tuple(merged.values()))
            both = row.layout
            current = self._layouts.get(old.layout.names) is old.layout and both.numeric
            if current and both.names == (*old.layout.names, *new.layout.names):
                # from now on until a layout changes: what lies side by side in a row does so in its bytes
                self._joined[old.layout, new.layout] = both
            return row
        return Row(both, old.packed + new.packed, ())

    def _is_newest(self, row: Row, step: int) -> bool:
        return not self._not_newer(row, step)

    def _not_newer(self, row: Row, step: int) -> list[str]:
        """Return the metrics of a row that have its step, or a later one."""
        self._fold()
        return [column.name for column in row.layout.columns if column.newest >= step]

    def _fold(self) -> None:
        """Let the columns know the highest steps of their hot rows."""
        for layout in self._layouts.values():
            if layout.last > layout.folded:
                layout.folded = layout.last
                for column in layout.columns:
                    column.newest = max(column.newest, layout.last)

    def _place_in_columns(self, step: int, row: Row) -> None:
        """Put a row below the watermark where it belongs."""
        self.settle()
        steps = np.array([step], np.int64)
        appended: list[tuple[Column, Any]] = []
        for name, value in row.values().items():
            column = self._columns[name]
            if step > column.last:
                appended.append((column, value))
                continue
            position, there = column.row_of(step)
            if there:
                column.replace(position, value)
            else:
                self._insert(column, position, step, value)
            self._store.unsynced.add(column)
        self._store.announce([(column, steps) for column, _ in appended], sync=False)
        for column, value in appended:
            column.put(steps, [value])
            column.newest = max(column.newest, step)
            self._store.unsynced.add(column)

    def _insert(self, column: Column, position: int, step: int, value: Any) -> None:
        """Put a late point between stored ones: its column's tail goes through the hot log again."""
        steps = [step, *(int(s) for s in column.steps()[position:])]
        values = [value, *column.plain_values(position)]
        tail = dict(zip(steps, ({column.name: v} for v in values), strict=True))
        hot = {s: r.values() for s, r in self._rows.items()}
        both = {s: tail.get(s, {}) | hot.get(s, {}) for s in sorted({*tail, *hot})}
        self._log.rewrite([_hotlog.encode({"step": s, **row}) for s, row in both.items()], sync=True)
        # from here to the end a kill, or a disk that fails, finds every row in the hot log, which is what counts then
        try:
            column.cut(position)
            self._store.publish(sync=True)
            column.cut_files()
            self._store.stale = True  # the manifest says that the column is being cut
            indices = np.array(steps, np.int64)
            self._store.announce([(column, indices)], sync=True)
            column.put(indices, values)
            column.sync()
            self._log.rewrite([r.line(s) for s, r in self._rows.items()], sync=True)
        except BaseException:
            self._torn = True
            raise

    # ---- columns ----------------------------------------------------------------------------------

    def _layout(self, names: tuple[str, ...]) -> Layout:
        layout = self._layouts.get(names)
        if layout is None:
            if len(self._layouts) >= 256:  # callers whose rows never look alike
                self._fold()
                self._layouts.clear()
                self._joined.clear()
            layout = self._layouts[names] = Layout(names, [self._columns[name] for name in names])
        return layout

    def plan(
        self, names: tuple[str, ...], values: tuple[Any, ...], *, floats: Floats, promote: Promote
    ) -> tuple[dict[str, tuple[str, Any]], dict[str, PlattliError]]:
        """Return metric -> (storage code, plain value), and the errors of those that don't fit.

        Nothing changes before :meth:`adopt`.
        """
        return _planning.plan(
            zip(names, values, strict=True),
            self._columns,
            self._names,
            self.run,
            integer_range=self._range,
            floats=floats,
            promote=promote,
        )

    @_guarded
    def adopt(self, plan: dict[str, tuple[str, Any]]) -> None:
        """Register the new metrics of a plan and widen the columns that need it.

        The manifest may have to wait for the new ones until a row with them is committed.
        """
        self._adopt(plan)

    def _adopt(self, plan: dict[str, tuple[str, Any]]) -> None:
        widened = False
        obsolete: list[Path] = []
        for name, (code, _) in plan.items():
            column = self._columns.get(name)
            if column is None:
                column = self._new_column(name, code)
                self._store.add(column)
                self._names.add(name)
            elif column.code != code:
                self.settle()
                self._fold()
                widened = self._store.stale = True
                if (old := column.rewrite(code)) is not None:
                    obsolete.append(old)
                self._layouts = {n: x for n, x in self._layouts.items() if column not in x.columns}
                self._joined.clear()
        if widened or self._store.has_many_unlisted():
            # no fsync in the caller's thread: the next batch syncs the manifest before it drops rows
            self._store.publish(sync=bool(obsolete), grown=not widened)
        _fs.remove(obsolete)

    def _new_column(self, name: str, code: str) -> Column:
        column = Column(self.root, name, code)
        # of a writer that died before its first manifest
        _fs.remove(self.root / file for file in self._strays.pop(name, ()))
        return column

    def _range(self, column: Column) -> tuple[int, int]:
        """Return (min, max) over 0 and all values of an integer column, hot ones included."""
        self.settle()
        stored = column.values()
        numbers = [0, *((int(stored.min()), int(stored.max())) if len(stored) else ())]
        numbers += [r.values()[column.name] for r in self._rows.values() if column in r.layout.columns]
        return min(numbers), max(numbers)

    # ---- compaction -------------------------------------------------------------------------------

    def _make_batch(self) -> None:
        """Hand all rows but the newest to the background, unless it is at work or has hardly rested."""
        batch = self._batch
        if batch is not None:
            if batch.is_alive():
                if not self._is_overdue():
                    self._due = len(self._rows) + self.hotsize // 16 + 1
                    return
                batch.join()
            if batch.error is not None:
                self._retry(batch)
                return
            few = len(self._rows) < _PATIENCE * self.hotsize and self._log.size < _LONG
            if few and time.monotonic() < batch.rested:
                self._due = len(self._rows) + self.hotsize // 16 + 1
                return
        rows = self._rows
        # the newest row stays hot, so that a second line of its step still finds it
        newest = rows.get(self._newest)
        kept = [] if newest is None else [(self._newest, newest)]
        if len(rows) == len(kept):
            return
        self._log.rotate([row.line(step) for step, row in kept])
        for step, _ in kept:
            del rows[step]
        self._rows = HotRows(kept)
        self._in_order = True
        self._due = self.hotsize
        self._watermark = max(self._watermark, rows.highest())
        batch = Batch(rows, self._move_out)
        self._background.begin(batch)
        self._batch = batch

    def _is_overdue(self) -> bool:
        backlog = _BACKLOG if self._log.size < _LONGEST else _LONG_BACKLOG
        return len(self._rows) >= backlog * self.hotsize

    def _retry(self, batch: Batch) -> None:
        if not batch.told:
            batch.told = True
            warnings.warn(
                f"run {self.run!r}: rows could not be moved from the hot log to their columns "
                f"({batch.error}); they stay in {self._log.compacting} and the move is tried again",
                RuntimeWarning,
                stacklevel=4,
            )
        if self._is_overdue():
            # memory must stay bounded: from here on the disk has to take rows before the caller goes on
            self.settle()
            return
        again = Batch(batch.rows, self._move_out, told=True)
        self._background.begin(again)
        self._batch = again

    def settle(self) -> None:
        """Wait until no row is on its way into the columns.

        Raises:
            RunBrokenError: the disk did not take them, twice; they are still in the hot log.
        """
        batch = self._batch
        if batch is None:
            return
        batch.join()
        if batch.error is not None:
            batch.run()
        if batch.error is not None:
            raise RunBrokenError(
                f"rows of run {self.run!r} cannot be moved to their columns: {batch.error}; they are safe in "
                f"{self._log.compacting} and are moved when the disk takes them again"
            ) from batch.error
        self._batch = None

    @_guarded
    def drain(self) -> None:
        """Return when every row accepted so far is in the columns."""
        self._drain()

    def _drain(self) -> None:
        self.settle()
        if not self._rows:
            return
        rows = self._rows
        self._fold()
        self._store.compact(rows)
        self._log.rewrite([])
        self._rows = HotRows()
        self._in_order = True
        self._due = self.hotsize
        self._watermark = max(self._watermark, rows.highest())

    def _move_out(self, rows: HotRows) -> None:
        """Move the rows of the log that is being compacted; runs in the background."""
        self._store.compact(rows)
        self._log.drop_compacting()

    # ---- config, the end --------------------------------------------------------------------------

    def set_config(self, config: Any) -> None:
        """Replace ``config.json``, atomically; the rules are those of the constructor's ``config``."""
        if self._lock.lost is not None or self._finished:
            self.refuse()
        _config.write(_config.check(config, self.run_root, self.run), self.root)

    def read_config(self) -> Any:
        """Return what ``config.json`` holds."""
        return _json((self.root / CONFIG).read_bytes())

    def close(self) -> None:
        """Let go of the run, which stays resumable. Calling it again does nothing."""
        if self._lock.lost is None and not self._finished:
            try:
                if self._torn or self._busy:
                    self._let_go()  # all rows are in the logs, and the next writer reads them from there
                else:
                    self.settle()
                    self._store.list_all()
            finally:
                self._background.end()
                self._log.close()
                self._lock.release()

    def _let_go(self) -> None:
        """Leave nothing half done for a newer writer in this process, which takes over now."""
        self._store.abandon()
        self._background.end()
        self._log.close()

    @_guarded
    def finish(
        self, optimize: bool = True, zip: bool = True, config_overrides: dict[str, Any] | None = None
    ) -> None:
        """Move every row to the columns, close them, and archive the run.

        A kill at any point leaves a run that reads whole and can be opened again.

        Args:
            optimize: narrow integer columns and write regular steps as segments.
            zip: end as ``<outdir>/metrics.plattli`` instead of the folder ``plattli``.
            config_overrides: shallowly merged into the final config.

        Raises:
            ConfigError: bad overrides. Nothing has changed.
        """
        if self._lock.lost is not None or self._finished:
            self.refuse()
        config = None
        if config_overrides is not None:
            config = _config.merged((self.root / CONFIG).read_bytes(), config_overrides, self.run)
        if zip:
            self._finish_as_archive(optimize, config)
        else:
            self._finish_as_folder(optimize, config)

    def _finish_as_archive(self, optimize: bool, config: bytes | None) -> None:
        """Make an archive, which takes the folder's place when it is complete.

        Until then the folder is a run that can be gone on with, its last rows in the hot log. So nothing in it has
        to be synced, or even to be there: a column that has no file yet goes to the archive only.
        """
        self.settle()
        pieces = self._rows.by_column()
        try:
            self._store.move({column: piece for column, piece in pieces.items() if column.rows}, sync=False)
            fresh = {column.name: piece for column, piece in pieces.items() if not column.rows}
            columns = self._columns.items()
            endings = {name: column.ending(fresh.get(name), optimize=optimize) for name, column in columns}
            members: dict[str, _packing.Content | None] = {
                MANIFEST: partial(bytes, _ended(endings)),
                HOT: None,
                HOT_COMPACTING: None,
            }
            if config is not None:
                members[CONFIG] = partial(bytes, config)
            for ending in endings.values():
                members.update(ending.files)
                members.update(dict.fromkeys(ending.obsolete))
            self._log.close()
            _recovery.remove_leftovers(self.root, self._columns)
            _packing.pack(self.run_root, members)
        except BaseException:
            if (self.run_root / ARCHIVE).exists():
                self._end()
            else:
                # some columns have their last rows now, so all must, before other rows come
                try:
                    self._drain()
                except (OSError, RunBrokenError):
                    self._torn = True
            raise
        self._end()

    def _finish_as_folder(self, optimize: bool, config: bytes | None) -> None:
        self._drain()
        self._log.close()
        self._log.rewrite([])
        endings = {name: column.ending(optimize=optimize) for name, column in self._columns.items()}
        new = {self.root / file: content for ending in endings.values() for file, content in ending.files.items()}
        for path, content in new.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _fs.replace_file(path, content(), sync=False)
        directories = {path.parent for path in new}
        self._store.sync(*new, *directories)
        # one manifest for all of it: before, readers find the old files; after, the new ones
        _fs.replace_file(self.root / MANIFEST, _ended(endings))
        for name, ending in endings.items():
            self._columns[name].end(ending)
        _recovery.remove_leftovers(self.root, self._columns)
        if config is not None:
            _fs.replace_file(self.root / CONFIG, config)
        self._end()

    def _end(self) -> None:
        self._finished = True
        self._background.end()
        self._lock.release()

    def refuse(self) -> None:
        """Raise what explains :attr:`lost`."""
        if self._finished:
            raise RunFinishedError(f"the writer of run {self.run!r} is finished; open a new one to go on")
        raise RunFinishedError(f"the writer of run {self.run!r} cannot go on: {self._lock.lost}")

    @property
    def lost(self) -> str | None:
        """Why this writer may no longer write (finished, taken over, forked), or ``None``."""
        return "it is finished" if self._finished else self._lock.lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _holds(stored: tuple[Any, ...], values: tuple[Any, ...], rounds: bool) -> bool:
    """Tell whether columns hold numbers as they should: exactly, where NaN is NaN, or rounded if that was asked."""
    return all(s == v or v != v or (rounds and type(v) is float) for s, v in zip(stored, values, strict=True))


def _ended(endings: dict[str, Ending]) -> bytes:
    """Return the manifest of a finished run."""
    specs = {name: ending.spec() for name, ending in endings.items()}
    return _manifest.dump(specs, run_rows=max((ending.rows for ending in endings.values()), default=0))


def exists(run_root: Path) -> bool:
    """Tell whether a writer would find rows, or the promise of rows, under ``run_root``."""
    root = run_root / METRIC_DIR
    files = (run_root / ARCHIVE, root / MANIFEST, root / HOT, root / HOT_COMPACTING)
    return any(path.exists() for path in files)


def _remove_run(run_root: Path) -> None:
    root = run_root / METRIC_DIR
    if not exists(run_root):
        return
    # the manifest last: until then a kill leaves something that is still recognised as a run
    _fs.remove([run_root / ARCHIVE])
    if root.is_dir():
        for path in sorted(root.rglob("*"), key=lambda p: (p.name == MANIFEST, -len(p.parts))):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


def _release(lock: _fs.RunLock, log: _hotlog.HotLog, background: Background) -> None:
    background.end()
    log.close()
    lock.release()


def _json(data: bytes) -> Any:
    return json.loads(data)
