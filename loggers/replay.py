"""Make the verb calls of a stored run again, on another logger: once, or for as long as the run goes on.

::

    replay("runs/digits", TensorBoardLogger("tb/digits"))             what is there now
    replay("runs/digits", WandbLogger(project="p"), follow=True)      until the run has ended

A run can be read while it is written, so a slow or broken tracker needs no queue: what it has not got
yet is simply still in the run. A :class:`Cursor` says what has been delivered; it is plain JSON data.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from loggers import _revisions, _segments, verbs
from loggers import names as _names
from loggers._cursor import Call, Cursor, Lag, Source
from loggers._json_source import JSONLinesSource
from loggers._plattli_source import PlattliSource, is_written
from loggers.errors import ConfusionError, MetricNameError, MetricValueError, StepError
from plattli._format import ARCHIVE, METRIC_DIR
from plattli.reader import Reader

__all__ = [
    "Cursor",
    "Lag",
    "Missed",
    "Source",
    "count_lines",
    "everything",
    "is_written",
    "lag",
    "last_late_call",
    "open_source",
    "replay",
    "source_path",
]

#: Seconds after which a slow logger's cursor moves in the middle of a batch.
_NOTED_S: Final = 0.5


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
        if (cut := source.taken_back(cursor)) is not None:
            take_back(logger, cursor, cut)
            if progress is not None:
                progress(cursor)  # what the logger has now is less than what was noted of it before
        for batch in source.calls(cursor):
            _deliver(batch, logger, source, cursor, progress)
        over = last_look and status is None
        if status is not None and source.complete:  # else a resume without this logger is changing the run
            over = True
            if finish and not cursor.finished:
                verbs.finish(logger, status)
                cursor.finished = True
        if progress is not None:
            progress(cursor)
        if over:
            return cursor
        stop.wait(poll)


def _deliver(
    batch: list[Call], logger: Any, source: Source, cursor: Cursor, progress: Callable[[Cursor], None] | None
) -> None:
    """Make some calls. The cursor moves behind those that are made, at the latest :data:`_NOTED_S` after the first."""
    noted = made = 0
    begun = time.monotonic()
    cursor.finished = False
    try:
        for call in batch:
            _make(logger, call)
            made += 1
            if time.monotonic() - begun > _NOTED_S:
                source.took(cursor, batch[noted:made])
                cursor.lines += made - noted
                noted = made
                if progress is not None:
                    progress(cursor)
                begun = time.monotonic()
    finally:
        source.took(cursor, batch[noted:made])
        cursor.lines += made - noted
        if progress is not None:
            progress(cursor)


def take_back(logger: Any, cursor: Cursor, step: int) -> None:
    """Let a logger forget what it has from a step on, where it can, so that it gets all of that again."""
    rewind = getattr(logger, "rewind", None)
    if rewind is None:
        warnings.warn(
            f"a resume has taken back steps from {step} on, and {type(logger).__name__} cannot: it keeps what it has "
            f"of them, and gets the new values behind it",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    rewind(step)
    for name, segments in cursor.delivered.items():
        cursor.delivered[name] = _segments.cut_off(segments, step)
    # the new part of the run should tell what it is without the old one
    cursor.params.clear()
    cursor.tags.clear()


def _make(logger: Any, call: Call) -> None:
    try:
        getattr(verbs, call.verb)(logger, *call.args, **call.kwargs)
    except (MetricValueError, MetricNameError, StepError, ConfusionError):
        # a value that this logger cannot take: its siblings are written, and the run itself holds it
        return


def open_source(run: str | Path) -> Source:
    """Return the source of a run directory, an archive or a JSON Lines file."""
    path = Path(run)
    if path.suffix == ".jsonl":
        return JSONLinesSource(path)
    return PlattliSource(path.parent if path.name in (METRIC_DIR, ARCHIVE) else path)


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
    run, file = getattr(logger, "run_dir", None), getattr(logger, "path", None)
    if isinstance(run, Path):
        return run
    return file if isinstance(file, Path) and file.suffix == ".jsonl" else None


class Missed(NamedTuple):
    """A verb call of the run that a logger has not had, or not all of.

    Attributes:
        verb: which one.
        names: of a call that logs values: the full names of what it logs.
        step: where it logs them.
    """

    verb: str
    names: Sequence[str]
    step: int


def everything(run: Path, waiting: Iterable[tuple[int, Sequence[str]]] = (), missed: Sequence[Missed] = ()) -> Cursor:
    """Return the cursor of a logger that was given every verb call of a run when it was made.

    Args:
        run: the run.
        waiting: step and stored names of what was logged and is not in the run yet, because its disk takes nothing.
        missed: the newest calls, those that the logger has not had, in their order.
    """
    source = open_source(run)
    cursor = source.everything()
    if isinstance(source, JSONLinesSource):  # there they are the last lines, those that wait included
        cursor.skip = len([*waiting]) - len(missed)
        if cursor.skip < 0:
            with run.open("rb") as file:
                lines = file.read(cursor.offset).splitlines(keepends=True)
            cursor.offset -= sum(map(len, lines[cursor.skip :]))
            cursor.skip = 0
        return cursor
    for step, names in waiting:
        for name in names:
            cursor.delivered[name] = _segments.extended(cursor.delivered.get(name, []), np.array([step]))
    for call in missed:
        if call.verb == "log_params":
            cursor.params.clear()
        elif call.verb == "log_tags":
            cursor.tags.clear()
        for full_name in call.names:
            with contextlib.suppress(MetricNameError):  # then it is not in the run either
                name = _names.encode(full_name)
                cursor.delivered[name] = _segments.cut_out(cursor.delivered.get(name, []), [call.step])
    return cursor


def last_late_call(run: Path) -> list[Missed]:
    """Return the last call of a writer that was killed, if it came late or for the second time: nobody may have it.

    A resume cuts the other calls behind its state, but not one that is of a step before that.
    """
    if run.suffix == ".jsonl" or not run.is_dir() or PlattliSource(run).was_finished():
        return []
    late = _revisions.newest(run)
    return [] if late is None else [Missed("log_metrics", [*map(_names.decode, late.names)], s) for s in late.steps]


def lag(run: Path, cursor: Cursor) -> Lag:
    """Return how far a cursor is behind a run now.

    Raises:
        NotARunError: there is no run.
    """
    return open_source(run).lag(cursor)
