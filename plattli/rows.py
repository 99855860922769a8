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
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeAlias, TypeVar

import numpy as np

from plattli import _config, _dtypes, _finishing, _fs, _hotlog, _packing, _planning, _recovery
from plattli._columns import Column
from plattli._dtypes import Floats, Json, Promote
from plattli._format import ARCHIVE, CONFIG, MAX_NARROW_STEP, MAX_STEP, METRIC_DIR
from plattli._hot import Hot
from plattli._pathnames import PathNames
from plattli._recovery import exists
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
            hotsize: rows in the hot log that start a compaction; there may be many times as many where they come faster
                than it pays to move them, see :mod:`plattli._hot`.
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
        self._hot = Hot(self.root, self.run, hotsize)
        self._lock = _fs.RunLock(self.run_root)
        try:
            with opening:
                self._open(if_exists, cut or (lambda name: None))
            _config.write(checked, self.root)
            self._lock.before_takeover = weakref.WeakMethod(self._let_go)
            weakref.finalize(self, _release, self._lock, self._hot)
        except BaseException:
            self._lock.release()
            raise

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
        for step, row in self._hot.all_rows():
            self._held[step] = self._held.get(step, {}) | row

    def _restore_rows(self) -> None:
        """Append what was in memory and is nowhere in the files; what they have counts."""
        first = min(self._held, default=0)
        stored: dict[str, set[int]] = {}
        for name in {name for row in self._held.values() for name in row} & self._columns.keys():
            steps = self._columns[name].steps()
            stored[name] = set(steps[steps >= first].tolist())
        for step, row in sorted(self._held.items()):
            hot = self._hot.rows.get(step)
            known = () if hot is None else hot.values()
            missing = {n: v for n, v in row.items() if n not in known and step not in stored.get(n, ())}
            if missing:
                self._append_row(step, tuple(missing), tuple(missing.values()), False)
        self._held.clear()

    def _open(self, if_exists: IfExists, cut: Callable[[str], int | None]) -> None:
        _packing.remove_temporaries(self.run_root)
        if if_exists == "replace":
            _recovery.remove(self.run_root)
        elif (self.run_root / ARCHIVE).exists():
            _packing.unpack(self.run_root, self.run)
        self.root.mkdir(exist_ok=True)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        #: layouts of an older and a newer row of one step, that share no metric -> that of the merged row, in which
        #: the bytes of the two stand side by side
        self._disjoint: dict[tuple[Layout, Layout], Layout] = {}
        self._hot.forget()

        recovered = _recovery.recover(self.root, self.run, cut)
        self._store = Store(self.root, recovered.columns)
        self._columns = recovered.columns
        self._strays = recovered.strays
        # a name that differs from the config's in case finds the config where case does not count
        self._names = PathNames(self._columns, folds=(self.root / CONFIG.upper()).exists)
        self._hot.begin(self._store)
        self._newest = self._hot.watermark
        log = self._hot.log
        if recovered.rows or log.path.exists() or log.compacting.exists():
            self._take_back(recovered.rows)

    def _take_back(self, rows: dict[int, dict[str, Any]]) -> None:
        """Make a dead writer's hot rows ours."""
        taken = {step: self._taken(row) for step, row in rows.items()}
        hot = self._hot
        hot.log.rewrite([row.line(step) for step, row in taken.items()], sync=True)
        hot.log.drop_compacting()
        hot.rows = HotRows(taken.items())
        for step, row in taken.items():
            for column in row.layout.columns:
                column.newest = max(column.newest, step)
        self._newest = max(self._newest, *taken, -1)
        if self._newest > MAX_NARROW_STEP:
            self._widen([column for column in self._columns.values() if column.newest > MAX_NARROW_STEP])
        self._store.list_all()
        if taken and min(taken) <= hot.watermark:
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
                self._place(step, layout, packed, (), stored)
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
        self._place(step, packed.layout, packed.packed, packed.others, packed.layout.unpack(packed.packed))

    def _widen(self, columns: list[Column]) -> None:
        """Have the manifest say that steps above uint32 may come, before there is one: older readers refuse it then."""
        narrow = [column for column in columns if not column.wide]
        if not narrow and not self._store.stale:
            return
        self._hot.settle()
        self._store.stale = True
        obsolete = [old for column in narrow if (old := column.set_wide(True)) is not None]
        self._store.publish(sync=bool(obsolete))
        _fs.remove(obsolete)

    def _pack(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
        layout = self._layout(names)
        packed = layout.pack(*[values[i] for i in layout.numbers])
        return Row(layout, packed, [values[i] for i in layout.others])

    def _place(
        self, step: int, layout: Layout, packed: bytes, others: Sequence[Any], numbers: tuple[Any, ...]
    ) -> None:
        """Put a row where it belongs; ``numbers`` are those that are packed."""
        hot = self._hot
        if step > self._newest:
            if len(hot.rows) >= hot.due:
                hot.make_batch(self._newest)
            numeric = layout.numeric
            hot.log.append(layout.line(step, numbers) if numeric else Row(layout, packed, others).line(step))
            hot.rows.add(step, layout, packed, others)
            layout.last = self._newest = step
            return
        row = Row(layout, packed, others)
        if step == self._newest and (old := hot.rows.get(step)) and (old.layout, row.layout) in self._disjoint:
            # it adds metrics to the newest row, as others did before: nothing gets another value
            self._place_late(step, row)
        else:
            with _NOTHING if self._revising is None else self._revising(step, self._not_newer(row, step)):
                if step > hot.watermark:
                    self._place_late(step, row)
                else:
                    self._place_in_columns(step, row)

    def _place_late(self, step: int, row: Row) -> None:
        """Put a row among the hot ones."""
        hot = self._hot
        old = hot.rows.get(step)
        if old is not None:
            row = self._merged(old, row)
        if hot.in_order:
            # joining a row keeps the order; a new step keeps each metric's order if none is ahead
            simple = old is not None or self._is_newest(row, step)
            in_order = old is not None
        else:
            simple, in_order = old is None and self._is_newest(row, step), False
        if simple:
            hot.log.append(row.line(step))
            hot.rows[step] = row
            hot.in_order = in_order
        else:
            # the log being compacted holds the oldest of our rows too, and readers go by where a step
            # appears first
            hot.settle()
            hot.rewrite(sorted({**dict(hot.rows.items()), step: row}.items()))
        row.layout.last = max(row.layout.last, step)

    def _merged(self, old: Row, new: Row) -> Row:
        """Return a row with the metrics of both, of which the new one's count."""
        both = self._disjoint.get((old.layout, new.layout))
        if both is None:
            merged = old.values() | new.values()
            row = self._pack(tuple(merged), tuple(merged.values()))
            both = row.layout
            current = self._layouts.get(old.layout.names) is old.layout and both.numeric
            if current and both.names == (*old.layout.names, *new.layout.names):
                # from now on until a layout changes: what lies side by side in a row does so in its bytes
                self._disjoint[old.layout, new.layout] = both
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
        self._hot.settle()
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
        rows, log = self._hot.rows, self._hot.log
        hot = {s: r.values() for s, r in rows.items()}
        both = {s: tail.get(s, {}) | hot.get(s, {}) for s in sorted({*tail, *hot})}
        log.rewrite([_hotlog.encode({"step": s, **row}) for s, row in both.items()], sync=True)
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
            log.rewrite([r.line(s) for s, r in rows.items()], sync=True)
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
                self._disjoint.clear()
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
                self._hot.settle()
                self._fold()
                widened = self._store.stale = True
                if (old := column.rewrite(code)) is not None:
                    obsolete.append(old)
                self._layouts = {n: x for n, x in self._layouts.items() if column not in x.columns}
                self._disjoint.clear()
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
        self._hot.settle()
        stored = column.values()
        numbers = [0, *((int(stored.min()), int(stored.max())) if len(stored) else ())]
        numbers += [r.values()[column.name] for r in self._hot.rows.values() if column in r.layout.columns]
        return min(numbers), max(numbers)

    def settle(self) -> None:
        """Wait until no row is on its way into the columns.

        Raises:
            RunBrokenError: the disk did not take them, twice; they are still in the hot log.
        """
        self._hot.settle()

    @_guarded
    def drain(self) -> None:
        """Return when every row accepted so far is in the columns."""
        self._drain()

    def _drain(self) -> None:
        self._hot.settle()
        self._fold()
        try:
            self._hot.drain()
        except BaseException:
            self._torn = True  # some columns have their rows, and late ones would be taken for those
            raise

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
                    self._hot.settle()
                    self._store.list_all()
            finally:
                _release(self._lock, self._hot)

    def _let_go(self) -> None:
        """Leave nothing half done for a newer writer in this process, which takes over now."""
        self._store.abandon()
        self._hot.let_go()

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
        end = _finishing.as_archive if zip else _finishing.as_folder
        self._hot.settle()
        try:
            end(self.run_root, self._store, self._hot, optimize=optimize, config=config)
        except BaseException:
            if zip and (self.run_root / ARCHIVE).exists():
                self._end()
            elif zip:
                # some columns have their last rows now, so all must, before other rows come
                try:
                    self._drain()
                except (OSError, RunBrokenError):
                    self._torn = True
            else:
                self._torn = True
            raise
        self._end()

    def _end(self) -> None:
        self._finished = True
        _release(self._lock, self._hot)

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


def _release(lock: _fs.RunLock, hot: Hot) -> None:
    hot.let_go()
    lock.release()


def _json(data: bytes) -> Any:
    return json.loads(data)
