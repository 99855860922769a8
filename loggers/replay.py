"""Make the verb calls of a stored run again, on another logger: once, or for as long as the run goes on.

::

    replay("runs/digits", TensorBoardLogger("tb/digits"))             what is there now
    replay("runs/digits", WandbLogger(project="p"), follow=True)      until the run has ended

A run can be read while it is written, so a slow or broken tracker needs no queue: what it has not got
yet is simply still in the run. A :class:`Cursor` says what has been delivered; it is plain JSON data.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from loggers import names as _names
from loggers import verbs
from loggers.contract import JSON, STATUSES
from loggers.errors import MetricValueError, RecordError
from plattli import _indices
from plattli._format import ARCHIVE, MAX_STEP, METRIC_DIR
from plattli._fs import lock_owner
from plattli.errors import CorruptRunError, NotARunError
from plattli.reader import Reader

#: Steps delivered between two saves of the cursor: bounds memory, and what a killed follower repeats.
_WINDOW: Final = 2000
#: A metric's delivered steps are kept as this many arithmetic segments at the most.
_MAX_SEGMENTS: Final = 256
#: Bytes that a finish line has at the most.
_LONGEST_FINISH: Final = 256
_CONFUSION: Final = {"epoch", "labels", "matrix"}



class Call(NamedTuple):
    """One verb call to make, and what the cursor has to note once it is made."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mark: Any


@dataclass
class Cursor:
    """What a logger has received of a run.

    Attributes:
        run_id: the run, so that a cursor is never used for another one.
        params, tags: those delivered.
        delivered: stored metric name -> ``[start, stop, step]`` segments of delivered steps.
        offset: bytes delivered, of a run that is a JSON Lines file.
        lines: verb calls made so far.
        finished: the logger has been finished.
    """

    run_id: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    delivered: dict[str, list[list[int]]] = field(default_factory=dict)
    offset: int = 0
    lines: int = 0
    finished: bool = False

    def to_json(self) -> dict[str, JSON]:
        """Return plain JSON data for :meth:`from_json`."""
        return json.loads(json.dumps(self.__dict__))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cursor:
        """Return the cursor that :meth:`to_json` described.

        Raises:
            RecordError: it is none.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise RecordError(f"expected a replay cursor, got {data!r:.200}: {error}") from error


class Source(Protocol):
    """A stored run that can be read again and again while it grows."""

    def calls(self, cursor: Cursor) -> Iterator[list[Call]]:
        """Yield what the cursor has not seen, in batches."""

    def took(self, cursor: Cursor, calls: list[Call]) -> None:
        """Move the cursor behind calls that were made."""

    def ended(self) -> str | None:
        """Return the status to finish with if nobody writes the run any more, else ``None``."""


def replay(
    run: str | Path,
    logger: Any,
    *,
    since: Cursor | None = None,
    follow: bool = False,
    finish: bool = True,
    poll: float = 0.25,
    stop: threading.Event | None = None,
    progress: Callable[[Cursor], None] | None = None,
) -> Cursor:
    """Make the verb calls of a stored run again on ``logger``.

    Params, tags, then the lines by step, each with its context, epoch and original ``walltime``; values
    of ``log_other`` and confusion matrices between them; last ``finish``, if the run has ended.

    Args:
        run: a run root, a ``.plattli`` archive, or a ``metrics.jsonl``; live, dead or finished.
        logger: anything with the ten verbs.
        since: what the logger has had already.
        follow: go on until the run's writer has ended or died, and everything is delivered.
        finish: finish the logger when the run has ended; a run whose writer died ends as ``"error"``.
        poll: seconds between two looks at a run that is followed.
        stop: set it to end a follow early (after what is there has been delivered).
        progress: called with the cursor after each batch and each look, e.g. to save it.

    Returns:
        The cursor; pass it as ``since`` to go on later.

    Raises:
        NotARunError: there is no run.
        Exception: whatever a verb raises. The cursor stands before the call that failed.
    """
    cursor = since if since is not None else Cursor()
    source = open_source(run)
    stop = stop or threading.Event()
    while True:
        # asked before reading: when the writer has gone by now, reading now sees all of it
        last_look = stop.is_set() or not follow
        status = source.ended()
        for batch in source.calls(cursor):
            made = 0
            try:
                for call in batch:
                    _make(logger, call)
                    made += 1
            finally:
                source.took(cursor, batch[:made])
                cursor.lines += made
                if progress is not None:
                    progress(cursor)
        if status is not None and finish and not cursor.finished:
            verbs.finish(logger, status)
            cursor.finished = True
        if progress is not None:
            progress(cursor)
        if last_look or status is not None:
            return cursor
        stop.wait(poll)


def _make(logger: Any, call: Call) -> None:
    try:
        getattr(verbs, call.verb)(logger, *call.args, **call.kwargs)
    except MetricValueError:
        # a value that this logger cannot take: its siblings are written, and the run itself holds it
        return


def open_source(run: str | Path) -> Source:
    """Return the source of a run directory, an archive or a JSON Lines file."""
    path = Path(run)
    return JSONLinesSource(path) if path.suffix == ".jsonl" else PlattliSource(path)


def count_lines(run: str | Path) -> int:
    """Return about how many verb calls a replay makes: enough for a progress bar.

    Raises:
        NotARunError: there is no run.
    """
    path = Path(run)
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    with Reader(path) as reader:
        lines: dict[str, int] = {}
        for name in reader.metrics():
            context = _names.decode(name).partition("/")[0]
            lines[context] = max(lines.get(context, 0), reader.rows(name))
    return sum(lines.values())


def source_path(logger: Any) -> Path | None:
    """Return what :func:`replay` can read of the runs that ``logger`` writes, ``None`` if nothing."""
    for attribute in ("run_dir", "path"):
        if isinstance(path := getattr(logger, attribute, None), Path):
            return path
    return None


# ---- Plättli runs ---------------------------------------------------------------------------------


class PlattliSource:
    """A Plättli run as verb calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: Reader | None = None
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

    def calls(self, cursor: Cursor) -> Iterator[list[Call]]:
        """See :class:`Source`."""
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
        new = self._new_steps(reader, cursor, live=live)
        yield from self._rows(reader, new, sorted(run.get("contexts", []), key=len, reverse=True))

    def _rows(
        self, reader: Reader, new: dict[str, np.ndarray[Any, Any]], contexts: list[str]
    ) -> Iterator[list[Call]]:
        if not new:
            return
        for low, high in _windows(new):
            lines: dict[tuple[int, str], dict[str, tuple[str, Any]]] = {}
            for name, steps in new.items():
                wanted = steps[np.searchsorted(steps, low) : np.searchsorted(steps, high, "right")]
                if not len(wanted):
                    continue
                found, values = reader.metric(name, start=low, stop=high, dtype="storage")
                rows = np.isin(found.astype(np.int64), wanted)
                context, metric = _split(name, contexts)
                for step, value in zip(found[rows].tolist(), values[rows].tolist(), strict=True):
                    lines.setdefault((step, context), {})[metric] = name, value
            yield _ordered(lines)

    def took(self, cursor: Cursor, calls: list[Call]) -> None:
        """See :class:`Source`."""
        steps: dict[str, list[int]] = {}
        for call in calls:
            if call.verb == "log_params":
                cursor.params.update(call.args[0])
            elif call.verb == "log_tags":
                cursor.tags.update(call.args[0])
            else:
                step, names = call.mark
                for name in names:
                    steps.setdefault(name, []).append(step)
        for name, taken in steps.items():
            cursor.delivered[name] = _with(cursor.delivered.get(name, []), np.unique(taken))

    def _new_steps(self, reader: Reader, cursor: Cursor, *, live: bool) -> dict[str, np.ndarray[Any, Any]]:
        """Return the steps that the cursor has not seen, by metric."""
        new: dict[str, np.ndarray[Any, Any]] = {}
        # each context's walltime first: whatever is newer than it now is left for the next look, so that
        # a line that arrives while we read is never taken apart
        newest: dict[str, int] = {}
        names = reader.metrics()
        for name in sorted(names, key=lambda n: not n.endswith("/walltime")):
            delivered = cursor.delivered.get(name, [])
            if live and name.endswith("/walltime"):
                last = reader.metric_indices(name, istart=-1)
                newest[name.rpartition("/")[0]] = int(last[0]) if len(last) else -1
            if reader.rows(name) == sum(len(range(*segment)) for segment in delivered):
                continue
            steps = reader.metric_indices(name).astype(np.int64)
            limit = next((newest[p] for p in _prefixes(name) if p in newest), MAX_STEP)
            steps = steps[: np.searchsorted(steps, limit, "right")]
            unseen = _without(steps, delivered)
            if len(unseen):
                new[name] = unseen
        return new

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


def clip(cursor: Cursor, run: Path) -> None:
    """Take out of the cursor what the run no longer has: a resume cut it, and its steps come again."""
    try:
        with Reader(run) as reader:
            names = set(reader.metrics())
            for name in list(cursor.delivered):
                steps = reader.metric_indices(name).astype(np.int64) if name in names else np.empty(0, np.int64)
                kept = steps[~np.isin(steps, _without(steps, cursor.delivered[name]))]
                cursor.delivered[name] = _with([], kept) if len(kept) else []
    except NotARunError:
        cursor.delivered.clear()
    # a tracker may begin a new segment, which should tell what the run is without the others
    cursor.params.clear()
    cursor.tags.clear()
    cursor.finished = False


def is_written(run: Path) -> bool:
    """Tell whether a live writer holds the run, in this process or another."""
    return run.is_dir() and lock_owner(run) is not None


def everything(run: Path) -> Cursor:
    """Return the cursor of a logger that has received all that the run holds now."""
    cursor = Cursor()
    source = open_source(run)
    for batch in source.calls(cursor):
        source.took(cursor, batch)
    return cursor


def forget(cursor: Cursor, run: Path, verb: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Take the newest verb call, which failed half-way, out of the cursor, so that it is made again."""
    if cursor.offset:  # JSON Lines: it is the last line
        with run.open("rb") as file:
            cursor.offset = file.read(cursor.offset - 1).rfind(b"\n") + 1
    elif verb == "log_params":
        cursor.params.clear()
    elif verb == "log_tags":
        cursor.tags.clear()
    elif verb == "log_metrics":
        context, step = kwargs["context"], int(kwargs["step"])
        names = [_names.encode(f"{context}/{name}") for name in (*args[0], "epoch", "walltime")]
        for name in names:
            segments = cursor.delivered.get(name, [])
            cursor.delivered[name] = [[a, min(b, step), s] for a, b, s in segments if a < step]
    else:
        label = f"other/{args[0]}" if verb == "log_other" else kwargs["name"]
        if kwargs.get("context") is not None:
            label = f"{kwargs['context']}/{label}"
        stored = _names.encode(label)
        if known := cursor.delivered.get(stored):
            start, stop, stride = known[-1]
            last = [[start, stop - stride, stride]] if stop - stride > start else []
            cursor.delivered[stored] = known[:-1] + last


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


def _ordered(lines: dict[tuple[int, str], dict[str, tuple[str, Any]]]) -> list[Call]:
    """Return the calls of some lines: by step, and within a step in the order in which they were logged.

    Args:
        lines: (step, context) -> metric -> (stored name, value).
    """
    calls: list[tuple[int, float, Call]] = []
    for (step, context), row in lines.items():
        if context == "other":
            for key, (name, value) in row.items():
                calls.append((step, np.inf, Call("log_other", (key, value), {}, (step, [name]))))
            continue
        for metric in [metric for metric, (_, value) in row.items() if _is_confusion(value)]:
            name, value = row.pop(metric)
            place = {"step": step, "epoch": value["epoch"], "context": context or None, "name": metric}
            args = value["matrix"], value["labels"]
            calls.append((step, np.inf, Call("log_confusion", args, place, (step, [name]))))
        if not row:
            continue
        mark = step, [name for name, _ in row.values()]
        axes: dict[str, Any] = {"step": step, "context": context or "train"}
        if "epoch" in row:
            axes["epoch"] = int(row.pop("epoch")[1])
        walltime = axes["walltime"] = row.pop("walltime")[1] if "walltime" in row else None
        if walltime is None:
            del axes["walltime"]
        metrics = {metric: value for metric, (_, value) in row.items()}
        calls.append((step, walltime or np.inf, Call("log_metrics", (metrics,), axes, mark)))
    return [call for *_, call in sorted(calls, key=lambda item: item[:2])]


def _is_confusion(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == _CONFUSION


def _windows(new: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[int, int]]:
    steps = np.unique(np.concatenate(list(new.values())))
    for at in range(0, len(steps), _WINDOW):
        part = steps[at : at + _WINDOW]
        yield int(part[0]), int(part[-1])


def _segments(spec: list[list[int]]) -> list[_indices.Segment]:
    return [_indices.Segment(*segment) for segment in spec]


def _without(steps: np.ndarray[Any, Any], delivered: list[list[int]]) -> np.ndarray[Any, Any]:
    """Return the steps that are not delivered; segments may overlap."""
    unseen = np.ones(len(steps), bool)
    for start, stop, stride in delivered:
        low = np.searchsorted(steps, start)
        high = np.searchsorted(steps, stop - 1, "right")  # int64 may hold no more than that
        if stride == 1:
            unseen[low:high] = False
        else:
            unseen[low:high] &= (steps[low:high] - start) % stride != 0
    return steps[unseen]


def _with(delivered: list[list[int]], steps: np.ndarray[Any, Any]) -> list[list[int]]:
    """Return the segments with ``steps`` (increasing) added."""
    before = _segments(delivered)
    if before and _last(before) >= int(steps[0]):
        steps = np.union1d(_union(before), steps)
        before = []
    rows = sum(len(range(s.start, s.stop or 0, s.step)) for s in before)
    after = _indices.close(_indices.extend(before, rows, steps), rows + len(steps))
    if len(after) > _MAX_SEGMENTS:
        # too irregular to keep: from here on all earlier steps count as delivered
        half = after[: _MAX_SEGMENTS // 2]
        after = [_indices.Segment(half[0].start, half[-1].stop or 0, 1), *after[len(half) :]]
    return [[segment.start, segment.stop or 0, segment.step] for segment in after]


def _last(segments: list[_indices.Segment]) -> int:
    return max(range(s.start, s.stop or 0, s.step)[-1] for s in segments)


def _union(segments: list[_indices.Segment]) -> np.ndarray[Any, Any]:
    parts = [_indices.to_array([s], len(range(s.start, s.stop or 0, s.step)), wide=True) for s in segments]
    return np.unique(np.concatenate(parts)).astype(np.int64)


# ---- JSON Lines -----------------------------------------------------------------------------------


class JSONLinesSource:
    """The file of a :class:`~loggers.JSONLogger` as verb calls."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotARunError(f"there is no JSON Lines file at {path}")
        self._path = path

    def ended(self) -> str | None:
        """See :class:`Source`: such a file tells its end only by a ``finish`` line behind which nothing comes."""
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - _LONGEST_FINISH, 0))
            *_, last, torn = (b"\n" + file.read()).split(b"\n")
        if torn or not last.startswith(b'{"type":"finish"'):
            return None
        status: str = json.loads(last)["status"]
        return status

    def calls(self, cursor: Cursor) -> Iterator[list[Call]]:
        """See :class:`Source`. A torn last line waits for its rest."""
        with self._path.open("rb") as file:
            file.seek(cursor.offset)
            calls: list[Call] = []
            offset = cursor.offset
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                if line.strip() and (call := self._call(line)) is not None:
                    calls.append(Call(*call, offset))
                if len(calls) >= _WINDOW:
                    yield calls
                    calls = []
            if calls:
                yield calls
            cursor.offset = offset

    def took(self, cursor: Cursor, calls: list[Call]) -> None:
        """See :class:`Source`."""
        if calls:
            cursor.offset = calls[-1].mark

    def _call(self, line: bytes) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
        try:
            row = json.loads(line)
            kind = row.pop("type")
        except (ValueError, KeyError, AttributeError) as error:
            raise CorruptRunError(f"{self._path} holds a line that is no verb call: {line[:80]!r}") from error
        if kind == "metrics":
            axes = {key: row.pop(key) for key in ("context", "epoch", "step") if key in row}
            return ("log_metrics", (row,), axes) if row else None
        if kind == "params":
            return "log_params", (row,), {}
        if kind == "tags":
            return "log_tags", (row["tags"],), {}
        if kind == "other":
            return "log_other", (row["key"], row["value"]), {}
        if kind == "confusion":
            return "log_confusion", (row.pop("matrix"), row.pop("labels")), row
        if kind == "finish":
            return None  # it ends an attempt; ended() tells whether it is the last one
        raise CorruptRunError(f"{self._path} holds a line of unknown type {kind!r}")


