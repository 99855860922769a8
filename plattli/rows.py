"""The engine of the streaming writers: whole rows, at any step, into a run that no kill can break.

::

    append(step, names, values)
        │  one write() to hot.jsonl: the row is safe from kill -9 when the call returns
        ▼
    rows in memory, packed as they will lie in the columns
        │  every `hotsize` rows, in a background thread
        ▼
    columns: steps, manifest, values, fsync; then the old hot log goes

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

import contextlib
import errno
import functools
import json
import math
import struct
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeAlias, TypeVar

import numpy as np

from plattli import _config, _dtypes, _fs, _hotlog, _manifest, _packing, _planning, _recovery
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
from plattli._indices import Segment
from plattli._pathnames import PathNames
from plattli._rowform import Layout, Piece, Row, by_column
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

#: A backlog of this many batches makes ``append`` wait for the disk, so that memory stays bounded.
_BACKLOG: Final = 10


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
    return isinstance(error, PlattliError) or not isinstance(error, OSError) or error.errno not in _SURPRISES


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
    ) -> None:
        """Open or create the run under ``outdir``.

        Args:
            outdir: the run root; metrics go to ``outdir/plattli``.
            hotsize: rows in the hot log that start a compaction.
            floats: how Python floats are stored, see :mod:`plattli._dtypes`.
            promote: ``"float"`` lets a float turn an integer column into floats.
            config: JSON data, the path of a file relative to ``outdir``, or ``None`` to keep what
                exists.
            if_exists: what to do if there is a run already: ``"append"`` goes on with it, finished or
                not; ``"replace"`` removes it.
            cut: with ``"append"``: metric name -> first step to remove, ``None`` to keep the metric.

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
        self._finished = False
        #: a call is under way; another one that finds it set comes from a signal's handler
        self._busy = False
        #: a call ended half-way: the files count, not what is in memory
        self._torn = False
        if if_exists == "refuse" and exists(self.run_root):
            raise RunExistsError(f"there is a run already in {self.run_root}")

        self.run_root.mkdir(parents=True, exist_ok=True)
        self._lock = _fs.RunLock(self.run_root)
        self._log = _hotlog.HotLog(self.root)
        try:
            self._open(if_exists, cut or (lambda name: None))
            _config.write(checked, self.root)
        except BaseException:
            self._lock.release()
            raise
        self._lock.before_takeover = weakref.WeakMethod(self._let_go)
        weakref.finalize(self, _release, self._lock, self._log)

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
        self._open("append", lambda name: None)
        self._torn = False

    def _open(self, if_exists: IfExists, cut: Callable[[str], int | None]) -> None:
        _packing.remove_temporaries(self.run_root)
        if if_exists == "replace":
            _remove_run(self.run_root)
        elif (self.run_root / ARCHIVE).exists():
            _packing.unpack(self.run_root, self.run)
        self.root.mkdir(exist_ok=True)
        self._publishing = threading.Lock()
        self._batch: _Batch | None = None
        self._unsynced: set[Column] = set()
        #: a column's steps changed and the manifest does not say so yet
        self._stale = False
        #: the first so many metrics as the manifest spells them
        self._entries = bytearray()
        self._entered = 0
        self._layouts: dict[tuple[str, ...], Layout] = {}
        #: layouts of an older and a newer row of one step -> that of the merged row, its bytes one behind the other
        self._joined: dict[tuple[Layout, Layout], Layout] = {}
        self._rows: dict[int, Row] = {}
        self._in_order = True

        recovered = _recovery.recover(self.root, self.run, cut)
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
        self._rows = taken
        for step, row in taken.items():
            for column in row.layout.columns:
                column.newest = max(column.newest, step)
        self._newest = max(self._newest, *taken, -1)
        if self._newest > MAX_NARROW_STEP:
            self._widen([column for column in self._columns.values() if column.newest > MAX_NARROW_STEP])
        self._list()
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
        self._list()
        packed = self._pack(tuple(row), tuple(row.values()))
        if step > MAX_NARROW_STEP:
            packed.layout.highest = MAX_STEP
        self._place(step, packed, packed.layout.unpack(packed.packed))

    def _widen(self, columns: list[Column]) -> None:
        """Have the manifest say that steps above uint32 may come, before there is one: older readers refuse it then."""
        narrow = [column for column in columns if not column.wide]
        if not narrow and not self._stale:
            return
        self.settle()
        self._stale = True
        obsolete = [old for column in narrow if (old := column.set_wide(True)) is not None]
        self._publish(sync=bool(obsolete))
        _fs.remove(obsolete)

    def _list(self) -> None:
        """Have every metric in the manifest."""
        if self._entered < len(self._columns):
            self._publish(sync=False, grown=True)

    def _pack(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
        layout = self._layout(names)
        packed = layout.pack(*[values[i] for i in layout.numbers])
        return Row(layout, packed, [values[i] for i in layout.others])

    def _place(self, step: int, row: Row, numbers: tuple[Any, ...]) -> None:
        layout = row.layout
        if step > self._newest:
            if len(self._rows) >= self.hotsize:
                self._make_batch()
            self._log.append(layout.line(step, numbers) if layout.numeric else row.line(step))
            self._rows[step] = row
            layout.last = self._newest = step
        elif step > self._watermark:
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
            ordered = dict(sorted({**rows, step: row}.items()))
            self._log.rewrite([r.line(s) for s, r in ordered.items()])
            self._rows, self._in_order = ordered, True
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
        self._fold()
        return all(column.newest < step for column in row.layout.columns)

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
            self._unsynced.add(column)
        self._announce([(column, steps) for column, _ in appended], sync=False)
        for column, value in appended:
            column.put(steps, [value])
            column.newest = max(column.newest, step)
            self._unsynced.add(column)

    def _insert(self, column: Column, position: int, step: int, value: Any) -> None:
        """Put a late point between stored ones: its column's tail goes through the hot log again."""
        steps = [step, *(int(s) for s in column.steps()[position:])]
        values = [value, *column.plain_values(position)]
        tail = dict(zip(steps, ({column.name: v} for v in values), strict=True))
        hot = {s: r.values() for s, r in self._rows.items()}
        both = {s: tail.get(s, {}) | hot.get(s, {}) for s in sorted({*tail, *hot})}
        self._log.rewrite([_hotlog.encode({"step": s, **row}) for s, row in both.items()], sync=True)
        # from here to the end a kill finds every row in the hot log
        column.cut(position)
        self._publish(sync=True)
        column.cut_files()
        indices = np.array(steps, np.int64)
        self._announce([(column, indices)], sync=True)
        column.put(indices, values)
        column.sync()
        self._log.rewrite([r.line(s) for s, r in self._rows.items()], sync=True)

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
                with self._publishing:
                    self._columns[name] = column
                self._names.add(name)
            elif column.code != code:
                self.settle()
                self._fold()
                widened = self._stale = True
                if (old := column.rewrite(code)) is not None:
                    obsolete.append(old)
                self._layouts = {n: x for n, x in self._layouts.items() if column not in x.columns}
                self._joined.clear()
        # a program that brings its metrics one by one does not write a manifest for each: it grows by a sixteenth
        if widened or len(self._columns) - self._entered > self._entered // 16:
            # no fsync in the caller's thread: the next batch syncs the manifest before it drops rows
            self._publish(sync=bool(obsolete), grown=not widened)
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

    def _publish(self, *, sync: bool, grown: bool = False) -> None:
        """Write the manifest; ``grown`` if nothing changed but that columns joined."""
        with self._publishing:
            if self._stale or not grown:
                self._entries.clear()
                self._entered = 0
            # before the specs are read: what a batch announces from now on needs another manifest
            self._stale = False
            columns = list(islice(self._columns.values(), self._entered, None))
            if not self._entered:
                columns.sort(key=lambda column: not column.wide)  # see _manifest.dump
            for column in columns:
                if self._entries:
                    self._entries += b", "
                self._entries += _manifest.entry(column.name, column.spec())
            self._entered = len(self._columns)
            try:
                _fs.replace_file(self.root / MANIFEST, _manifest.assemble(self._entries), sync=sync)
            except OSError:
                self._stale = True
                raise

    def _announce(self, parts: Iterable[tuple[Column, np.ndarray[Any, Any]]], *, sync: bool) -> None:
        """Put the steps of coming values where they belong, and say so in the manifest if need be."""
        known: dict[Any, list[Segment]] = {}
        for column, steps in parts:
            if column.announce(steps, known):
                self._stale = True
        if self._stale:
            self._publish(sync=sync)

    # ---- compaction -------------------------------------------------------------------------------

    def _make_batch(self) -> None:
        """Hand all rows but the newest to a background thread, unless one is still at work."""
        batch = self._batch
        if batch is not None:
            if batch.is_alive():
                if len(self._rows) < _BACKLOG * self.hotsize:
                    return
                batch.wait()
            if batch.error is not None:
                self._retry(batch)
                return
            self._batch = None
        rows = self._rows
        keep = self._newest
        kept = {keep: rows[keep]} if keep in rows else {}
        if len(rows) == len(kept):
            return
        # the newest row stays hot, so that a second line of its step still finds it
        self._log.rotate([row.line(step) for step, row in kept.items()])
        self._rows = kept
        moved = [(step, row) for step, row in rows.items() if step not in kept]
        if not self._in_order:
            moved.sort(key=lambda item: item[0])
        self._in_order = True
        self._watermark = max(self._watermark, moved[-1][0])
        self._batch = _Batch(self, moved)
        self._batch.begin()

    def _retry(self, batch: _Batch) -> None:
        if not batch.told:
            batch.told = True
            warnings.warn(
                f"run {self.run!r}: rows could not be moved from the hot log to their columns "
                f"({batch.error}); they stay in {self._log.compacting} and the move is tried again",
                RuntimeWarning,
                stacklevel=4,
            )
        if len(self._rows) >= _BACKLOG * self.hotsize:
            # memory must stay bounded: from here on the disk has to take rows before the caller goes on
            self.settle()
            return
        self._batch = again = _Batch(self, batch.rows)
        again.told = True
        again.begin()

    def settle(self) -> None:
        """Wait until no row is on its way into the columns.

        Raises:
            RunBrokenError: the disk did not take them, twice; they are still in the hot log.
        """
        batch = self._batch
        if batch is None:
            return
        batch.wait()
        if batch.error is not None:
            batch.error = None
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
        rows = sorted(self._rows.items(), key=lambda item: item[0])
        self._fold()
        self._compact(rows)
        self._log.rewrite([])
        self._rows = {}
        self._in_order = True
        self._watermark = max(self._watermark, rows[-1][0])

    def _compact(self, rows: list[tuple[int, Row]]) -> None:
        """Append rows, ordered by step, to their columns. Runs again from where a failure stopped it."""
        pieces = by_column(rows)
        self._move(pieces, sync=True)
        # the log that holds these rows goes next: they must be as safe without it
        unsynced, self._unsynced = self._unsynced, set()
        _fs.sync_files(path for column in {*pieces, *unsynced} for path in column.files())

    def _move(self, pieces: dict[Column, Piece], *, sync: bool) -> None:
        todo: list[tuple[Column, np.ndarray[Any, Any], Any]] = []
        for column, (steps, values) in pieces.items():
            new = int(np.searchsorted(steps, column.last, "right")) if column.last >= 0 else 0
            if new == 0:
                todo.append((column, steps, values))
            elif new < len(steps):
                todo.append((column, steps[new:], values[new:]))
        self._announce([(column, steps) for column, steps, _ in todo], sync=sync)
        for column, steps, values in todo:
            column.put(steps, values)

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
                    self._list()
            finally:
                self._log.close()
                self._lock.release()

    def _let_go(self) -> None:
        """Leave nothing half done for a newer writer in this process, which takes over now."""
        if self._batch is not None:
            self._batch.wait()
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
        pieces = by_column(sorted(self._rows.items(), key=lambda item: item[0]))
        try:
            self._move({column: piece for column, piece in pieces.items() if column.rows}, sync=False)
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
                with contextlib.suppress(OSError):
                    self._drain()
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
        _fs.sync_files([*new, *directories, *(path for column in self._unsynced for path in column.files())])
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


class _Batch(threading.Thread):
    """Rows on their way into the columns. Lives until they are there; the interpreter waits for it."""

    def __init__(self, writer: RowWriter, rows: list[tuple[int, Row]]) -> None:
        super().__init__(name=f"plattli-compaction-{writer.run}")
        self.rows = rows
        self.error: Exception | None = None
        self.told = False
        self._writer: RowWriter | None = writer

    def begin(self) -> None:
        """Start, or do the work here and now if there is no thread to be had."""
        try:
            self.start()
        except RuntimeError:  # a limit on threads, or the interpreter is going down
            self.run()

    def wait(self) -> None:
        """Return when the work is done, or has failed."""
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            writer._compact(self.rows)
            writer._log.drop_compacting()
        except Exception as error:  # told by whoever waits for the batch: the rows are still in the hot log
            self.error = error
        else:
            self._writer = None  # the writer must not wait for the cycle collector


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


def _release(lock: _fs.RunLock, log: _hotlog.HotLog) -> None:
    log.close()
    lock.release()


def _json(data: bytes) -> Any:
    return json.loads(data)
