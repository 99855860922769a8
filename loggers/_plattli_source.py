"""A Plättli run as the verb calls that made it, again and again while it grows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from loggers import _revisions, _segments
from loggers import names as _names
from loggers._cursor import Call, Cursor, Lag
from loggers._runstate import cut_after
from loggers.contract import STATUSES
from loggers.errors import RecordError
from plattli._format import ARCHIVE, DTYPES, MAX_STEP, METRIC_DIR
from plattli._fs import lock_owner
from plattli.errors import NotARunError
from plattli.reader import Reader

#: Steps delivered between two saves of the cursor: bounds memory, and what a killed follower repeats.
_WINDOW: Final = 2000
_CONFUSION: Final = {"epoch", "labels", "matrix"}
_AXES: Final = ("epoch", "walltime")
_STEP_AND_TIME: Final = itemgetter(0, 1)
#: context -> step -> metric -> value.
_Lines: TypeAlias = dict[str, dict[int, dict[str, Any]]]


class _Names:
    """What a run's metrics are called: on disk, and in a verb call."""

    def __init__(self, reader: Reader, contexts: list[str]) -> None:
        specs = reader.manifest()
        #: stored name -> context, metric
        self.places = {name: _split(name, contexts) for name in reader.metrics()}
        #: context -> those of its metrics that may hold anything
        self.odd: dict[str, list[str]] = {}
        for name, (context, metric) in self.places.items():
            if name not in specs or specs[name]["dtype"] not in DTYPES:
                self.odd.setdefault(context, []).append(metric)
        self._stored = {place: name for name, place in self.places.items()}
        self._groups: dict[tuple[str, ...], tuple[str, ...]] = {}

    def stored(self, context: str, metrics: Iterable[str]) -> tuple[str, ...]:
        """Return the stored names of a line: the same object for each line that looks like it."""
        key = (context, *metrics)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = tuple(self._stored[context, metric] for metric in key[1:])
        return group


class PlattliSource:
    """A Plättli run as verb calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.complete = True
        self._reader: Reader | None = None
        #: metric -> rows that it had when all of them had been delivered
        self._rows: dict[str, int] = {}
        owner = lock_owner(path) if path.is_dir() else None
        self._token = owner.get("token") if owner else None

    def ended(self) -> str | None:
        """See :class:`Source`: the lock of a writer falls when it ends, however it ends."""
        owner = lock_owner(self._path) if self._path.is_dir() else None
        if owner is not None and owner.get("token") in (None, self._token):
            return None
        if owner is not None and self._token is None:
            self._token = owner.get("token")  # it has only just begun
            return None
        self._refreshed()
        status = (self._config().get("_run") or {}).get("status")
        if owner is None and status in STATUSES:
            return str(status)
        # a finished run of a writer that keeps no status, or a writer that died or was replaced
        return "completed" if self._reader is not None and self._reader.kind == "zip" else "error"

    def was_finished(self) -> bool:
        """Tell whether the writer before has told how the run ended, or there was none."""
        return self._refreshed() is None or (self._config().get("_run") or {}).get("status") in STATUSES

    def calls(self, cursor: Cursor) -> Iterator[list[Call]]:
        """See :class:`Source`."""
        self.complete = True
        live = is_written(self._path)  # asked before reading: what is read then is all there is
        reader = self._refreshed()
        if reader is None:
            return
        config = dict(self._config())
        run = config.pop("_run", None) or {}
        cursor.run_id = run.get("id", cursor.run_id)
        if changed := {k: v for k, v in config.items() if k not in cursor.params or cursor.params[k] != v}:
            yield [Call("log_params", (changed,), {}, None)]
        tags = run.get("tags") or {}
        if changed := {k: v for k, v in tags.items() if k not in cursor.tags or cursor.tags[k] != v}:
            yield [Call("log_tags", (changed,), {}, None)]
        held: dict[str, int] = {}
        for _ in range(2):
            names = _Names(reader, self._contexts())
            new, held, rows = self._new_steps(reader, cursor, held, live=live)
            left_out = False
            for lines in self._lines(reader, new, names):
                # asked after reading: what may have been read before it was changed is left for the next look
                revisions = _revisions.read(self._path, cursor.revision, begun=True)[0]
                if any(revision.after is not None for revision in revisions):
                    self.complete = False
                    return
                for revision in revisions:
                    left_out |= _leave_out(lines, revision, names)
                yield _ordered(lines, names)
            self.complete &= not left_out
            if not held:
                if not left_out:
                    self._rows = rows
                break
            reader.refresh()  # a line that was arriving is complete by now

    def taken_back(self, cursor: Cursor) -> int | None:
        """See :class:`Source`."""
        self._check(cursor)
        # of a writer that is gone, what it had begun has been done or not: there is no more to wait for
        revisions, end = _revisions.read(self._path, cursor.revision, begun=not is_written(self._path))
        first: int | None = None
        if revisions:
            self._rows.clear()
        # cuts first, whatever came before them: what the logger has of it, it has
        for after in [revision.after for revision in revisions if revision.after is not None]:
            cut = cut_after(after)
            cursor.finished = False  # the run goes on
            for name, segments in cursor.delivered.items():
                if (step := cut(name)) <= _segments.last(segments):
                    cursor.delivered[name] = _segments.cut_off(segments, step)
                    first = step if first is None else min(first, step)
        for revision in revisions:
            for name in cursor.delivered.keys() & {*revision.names}:
                cursor.delivered[name] = _segments.cut_out(cursor.delivered[name], revision.steps)
        cursor.revision = end
        return first

    def _lines(self, reader: Reader, new: dict[str, np.ndarray[Any, Any]], names: _Names) -> Iterator[_Lines]:
        """Yield the new points of some steps after the other, by line."""
        if not new:
            return
        axes = {name: place for name, place in names.places.items() if place[0] and place[1] in _AXES}
        for low, high in _windows(new):
            lines: _Lines = {}
            for name, steps in new.items():
                wanted = steps[np.searchsorted(steps, low) : np.searchsorted(steps, high, "right")]
                if not len(wanted):
                    continue
                found, values = reader.metric(name, start=low, stop=high, dtype="storage")
                context, metric = names.places[name]
                rows = lines.setdefault(context, {})
                if len(found) != len(wanted):
                    chosen = np.isin(found.astype(np.int64), wanted)
                    found, values = found[chosen], values[chosen]
                for step, value in zip(found.tolist(), values.tolist(), strict=True):
                    row = rows.get(step)
                    if row is None:
                        rows[step] = {metric: value}
                    else:
                        row[metric] = value
            self._complete(reader, lines, axes, low, high)
            yield lines

    def _complete(
        self, reader: Reader, lines: _Lines, axes: Mapping[str, tuple[str, str]], low: int, high: int
    ) -> None:
        """Put epoch and time to lines of which a part was delivered with them before."""
        for name, (context, axis) in axes.items():
            rows = lines.get(context, {})
            if lacking := {step for step, row in rows.items() if axis not in row and _holds_metrics(row)}:
                found, values = reader.metric(name, start=low, stop=high, dtype="storage")
                for step, value in zip(found.tolist(), values.tolist(), strict=True):
                    if step in lacking:
                        rows[step][axis] = value

    def took(self, cursor: Cursor, calls: list[Call]) -> None:
        """See :class:`Source`."""
        lines: dict[tuple[str, ...], list[int]] = {}
        for call in calls:
            if call.verb == "log_params":
                cursor.params.update(call.args[0])
            elif call.verb == "log_tags":
                cursor.tags.update(call.args[0])
            else:
                step, names = call.mark
                lines.setdefault(names, []).append(step)
        steps: dict[str, list[int]] = {}
        for names, taken in lines.items():
            for name in names:
                steps.setdefault(name, []).extend(taken)
        for name, taken in steps.items():
            cursor.delivered[name] = _segments.extended(cursor.delivered.get(name, []), np.array(sorted({*taken})))

    def _new_steps(
        self,
        reader: Reader,
        cursor: Cursor,
        released: Mapping[str, int],
        *,
        live: bool,
    ) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, int], dict[str, int]]:
        """Return the steps that the cursor has not seen, the last one of those that are held back, and all rows.

        Each by metric. The rows are counted here, with the steps: while they are delivered, the reader finds more.
        """
        rows: dict[str, int] = {}
        new: dict[str, np.ndarray[Any, Any]] = {}
        # each context's walltime first: whatever is newer than it now is held back, so that a line that
        # arrives while we read is never taken apart; what was there before (released) is no such line
        newest: dict[str, int] = {}
        held: dict[str, int] = {}
        names = reader.metrics()
        for name in sorted(names, key=lambda n: not n.endswith("/walltime")):
            delivered = cursor.delivered.get(name, [])
            if live and name.endswith("/walltime"):
                last = reader.metric_indices(name, istart=-1)
                newest[name.rpartition("/")[0]] = int(last[0]) if len(last) else -1
            if (known := self._rows.get(name)) is not None and reader.rows(name) == known:
                rows[name] = known
                continue
            steps = reader.metric_indices(name).astype(np.int64)
            rows[name] = len(steps)
            limit = next((newest[p] for p in _prefixes(name) if p in newest), MAX_STEP)
            limit = max(limit, released.get(name, -1))
            if len(steps) and steps[-1] > limit:
                held[name] = int(steps[-1])
                steps = steps[: np.searchsorted(steps, limit, "right")]
            unseen = _segments.without(steps, delivered)
            if len(unseen):
                # metrics of a line have the same steps: keep them once
                new[name] = next((same for same in new.values() if np.array_equal(same, unseen)), unseen)
        return new, held, rows

    def lag(self, cursor: Cursor) -> Lag:
        """See :class:`Source`. A context that has no walltime counts by its longest metric, and its age is unknown."""
        reader = self._refreshed()
        lines: dict[str, int] = {}
        oldest = now = time.time()
        if reader is None:
            return Lag(0, 0.0)
        for name in reader.metrics():
            steps = reader.metric_indices(name).astype(np.int64)
            unseen = _segments.without(steps, cursor.delivered.get(name, []))
            context, metric = _split(name, self._contexts())
            lines[context] = max(lines.get(context, 0), len(unseen))
            if metric == "walltime" and len(unseen):
                _, times = reader.metric(name, start=int(unseen[0]), stop=int(unseen[0]))
                oldest = min(oldest, float(times[0]))
        return Lag(sum(lines.values()), now - oldest)

    def _check(self, cursor: Cursor) -> None:
        self._refreshed()
        now = (self._config().get("_run") or {}).get("id")
        if None not in (now, cursor.run_id) and now != cursor.run_id:
            raise RecordError(f"{self._path} holds run {now!r}, and what was delivered is of run {cursor.run_id!r}")

    def everything(self) -> Cursor:
        """See :class:`Source`."""
        cursor = Cursor(revision=_revisions.read(self._path, 0, begun=not is_written(self._path))[1])
        reader = self._refreshed()
        if reader is None:
            return cursor
        config = dict(self._config())
        run = config.pop("_run", None) or {}
        cursor.run_id, cursor.params, cursor.tags = run.get("id"), config, dict(run.get("tags") or {})
        for name in reader.metrics():
            if len(steps := reader.metric_indices(name)):
                cursor.delivered[name] = _segments.extended([], steps.astype(np.int64))
        return cursor

    def _contexts(self) -> list[str]:
        """Return the contexts that have a slash."""
        run = self._config().get("_run") or {}
        return sorted(run.get("contexts", []), key=len, reverse=True)

    def _config(self) -> dict[str, Any]:
        reader = self._reader
        if reader is None:
            return {}
        try:
            config = reader.config()
        except (FileNotFoundError, KeyError, ValueError):
            return {}
        return config if isinstance(config, dict) else {}

    def _refreshed(self) -> Reader | None:
        """Return a reader of what is there now; ``None`` if that is not a run yet."""
        archived = self._path.is_file() or (self._path / ARCHIVE).is_file()
        if self._reader is not None and (self._reader.kind == "zip") != archived:
            self._reader.close()  # the folder has become an archive
            self._reader = None
        if self._reader is not None:
            self._reader.refresh()
            return self._reader
        try:
            self._reader = Reader(self._path)
        except NotARunError:
            if not self._path.is_dir() or not (self._path / METRIC_DIR).is_dir():
                raise
            return None  # a run that has not logged a metric yet
        return self._reader


def is_written(run: Path) -> bool:
    """Tell whether a live writer holds the run, in this process or another."""
    return run.is_dir() and lock_owner(run) is not None


def _split(name: str, contexts: list[str]) -> tuple[str, str]:
    """Return the context and the metric of a stored name; values of the whole run have context ``""``."""
    full = _names.decode(name)
    for context in contexts:
        if full.startswith(context + "/"):
            return context, full[len(context) + 1 :]
    context, slash, metric = full.partition("/")
    return (context, metric) if slash else ("", full)


def _prefixes(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _is_axis(metric: str, value: Any) -> bool:
    """Tell what a line was logged with from a metric of that name, such as the epochs 0.5 and 0.75."""
    if metric == "epoch":
        return type(value) is int and value >= 0
    return metric == "walltime" and type(value) in (int, float)


def _holds_metrics(row: Mapping[str, Any]) -> bool:
    return any(not _is_axis(metric, value) and not _is_confusion(value) for metric, value in row.items())


def _leave_out(lines: _Lines, revision: _revisions.Revision, names: _Names) -> bool:
    """Take the points of a revision out of some lines; tell whether there were any."""
    found = False
    for name in revision.names:
        context, metric = names.places.get(name, ("", ""))
        rows = lines.get(context, {})
        for step in rows.keys() & {*revision.steps}:
            if metric in rows[step]:
                found = True
                del rows[step][metric]
                if not rows[step].keys() - _AXES:
                    del rows[step]
    return found


def _ordered(lines: _Lines, names: _Names) -> list[Call]:
    """Return the calls of some lines: by step, and within a step in the order in which they were logged."""
    calls: list[tuple[int, float, Call]] = []
    for context, rows in lines.items():
        odd = names.odd.get(context, ())
        for step, row in rows.items():
            if context == "other":
                for key, value in row.items():
                    mark = step, names.stored(context, [key])
                    calls.append((step, np.inf, Call("log_other", (key, value), {}, mark)))
                continue
            for metric in odd:
                if metric in row and _is_confusion(row[metric]):
                    value = row.pop(metric)
                    place = {"step": step, "epoch": value["epoch"], "context": context or None, "name": metric}
                    mark = step, names.stored(context, [metric])
                    args = value["matrix"], value["labels"]
                    calls.append((step, np.inf, Call("log_confusion", args, place, mark)))
            if not row:
                continue
            mark = step, names.stored(context, row)
            axes: dict[str, Any] = {"step": step, "context": context or "train"}
            # an epoch that comes alone is a metric that got another value: of a whole line there is more, or its time
            for axis in [axis for axis in row if axis in _AXES and (axis == "walltime" or len(row) > 1)]:
                if _is_axis(axis, row[axis]):
                    axes[axis] = row.pop(axis)
            time_of = axes.get("walltime") or np.inf
            calls.append((step, time_of if np.isfinite(time_of) else np.inf, Call("log_metrics", (row,), axes, mark)))
    return [call for *_, call in sorted(calls, key=_STEP_AND_TIME)]


def _is_confusion(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == _CONFUSION


def _windows(new: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[int, int]]:
    different = {id(steps): steps for steps in new.values()}.values()
    steps = np.unique(np.concatenate(list(different))) if len(different) > 1 else next(iter(different))
    for at in range(0, len(steps), _WINDOW):
        part = steps[at : at + _WINDOW]
        yield int(part[0]), int(part[-1])
