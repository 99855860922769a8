"""CSV: the metrics as a table that any program opens.

::

    metrics.csv            context,epoch,step,walltime,loss,acc
                           train,1,4,1796032596.216664,0.31,
                           validate,1,4,1796032596.218231,0.29,0.875
    metrics.notes.jsonl    params, tags, other values, confusion matrices and the status, as JSONLogger writes them;
                           in a copy of a run that was cut: {"type":"rewind","step":60,"rows":100}

Each row is one ``write``, so a killed process loses nothing that it has logged. While the disk takes nothing, rows and
notes wait in memory. A metric that was not seen before is
a new column: the file is written anew beside the old one, with an empty cell in every row so far, and takes its
place. So the table is complete and rectangular at every moment. That takes time in proportion to the file, once for
every set of new names: log metrics under few names, and early.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

from loggers._backlog import BACKLOG, warn
from loggers._cells import cell
from loggers._csv_file import CSVFile, IfExists, Notes
from loggers._csv_table import CARRIERS, Row, read_table
from loggers._json_file import JSONLine
from loggers.contract import JSON
from loggers.errors import LoggerError, LoggerFinishedError, NoPathError, RecordError, UnwrittenError
from loggers.values import check_context, check_epoch, check_status, check_step, plain, raise_for

__all__ = ["CARRIERS", "FILE_NAME", "CSVLogger"]

#: The file that a pathless logger writes in the directory it is given.
FILE_NAME: Final = "metrics.csv"


class CSVLogger:
    """Writes one row per line of metrics, in the order in which they are logged.

    Numbers are spelled so that they read back equal, NaN and the infinities as ``nan``, ``inf`` and ``-inf``; lists
    and mappings are JSON in a cell. A cell is empty where the line has no such metric. The same (metric, step) again
    is another row. A file that somebody removes begins anew with the next row, with a warning; one whose directory is
    renamed is gone on with there, until it is closed.

    The file is locked while it is open: another process that writes to it raises ``RunLockedError``. In one process a
    newer logger takes it over from an older one, whose next verb raises.

    After a ``fork`` the child's copy writes nothing, begun or not, and so does a pickled copy of a logger that has
    begun to write. A logger that has not may be pickled and used elsewhere. Threads may share a logger.

    Args:
        path: the file; its directories are made. Without a path a driver has to :meth:`adopt` the logger. Nothing is
            opened before the first verb. What is no metric goes to the file of that name that ends with
            ``.notes.jsonl``.
        backlog: bytes of memory for what the disk does not take; 0 raises ``UnwrittenError`` at once.
        if_exists: what to do when the file is there and :meth:`reattach` is not called: ``"append"`` goes on behind
            it, ``"replace"`` empties it and removes its notes with the first verb, ``"refuse"`` raises
            ``RunExistsError`` then.

    Raises:
        LoggerError: ``if_exists`` is something else.
    """

    #: A few microseconds and a local file: the fan-out calls this logger in turn.
    placement: Final = "inline"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        backlog: int = BACKLOG,
        if_exists: Literal["append", "replace", "refuse"] = "append",
    ) -> None:
        if if_exists not in ("append", "replace", "refuse"):
            raise LoggerError(f"if_exists must be 'append', 'replace' or 'refuse', got {if_exists!r}")
        self._set_up(None if path is None else Path(path), backlog, if_exists)
        self._owner = os.getpid()  # a fork's copy is none of its own
        self._begun = False
        self._finished = False
        self._warned = False
        self._last: tuple[int | None, int | None] = (None, None)  # step and epoch of the last row

    def _set_up(self, path: Path | None, backlog: int, if_exists: IfExists) -> None:
        self._file = CSVFile(self, path, backlog, if_exists)
        self._lock = self._file.mutex
        self._notes = Notes(self._file)

    @property
    def path(self) -> Path | None:
        """The table; ``None`` for a logger that was given none yet."""
        return self._file.path

    def adopt(self, directory: str | os.PathLike[str]) -> None:
        """Write to ``metrics.csv`` in ``directory``, unless the logger has a path already."""
        if self._file.path is None:
            self._file.path = Path(directory) / FILE_NAME

    # --- the verbs ------------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Write a row. The axis ``walltime`` (Unix seconds) replaces the current time.

        Raises:
            StepError, MetricNameError: the step, epoch or context is none; nothing is written.
            MetricValueError: names the values that could not be written; the others were.
            UnwrittenError: the disk takes nothing, and memory is used up. The row was not kept.
        """
        if not self._may_write():
            return
        step, epoch, context = check_step(step), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        given = axes.get("walltime")
        now = time.time() if given is None else float(given)
        with self._lock:
            if values or not problems:
                self._begun = True
                carriers = cell(context), "" if epoch is None else str(epoch), str(step), repr(now)
                self._file.store(Row(step, carriers, {name: cell(value) for name, value in values.items()}))
            self._last = step, epoch
        if problems:
            raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Note hyperparameters beside the table. Later values win over earlier ones."""
        if self._may_write():
            with self._lock:
                self._noting().log_params(params)

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Note tags beside the table."""
        if self._may_write():
            with self._lock:
                self._noting().log_tags(tags)

    def log_other(self, key: str, value: Any) -> None:
        """Note a free-form value beside the table."""
        if self._may_write():
            with self._lock:
                self._noting().log_other(key, value)

    def log_confusion(
        self,
        matrix: Sequence[Sequence[float]],
        labels: Sequence[str],
        *,
        epoch: int | None = None,
        step: int | None = None,
        context: str | None = None,
        name: str = "confusion",
    ) -> None:
        """Note a matrix beside the table, by default at the step and epoch of the last row."""
        if self._may_write():
            with self._lock:
                if step is None:
                    step, last_epoch = self._last
                    epoch = last_epoch if epoch is None else epoch
                self._noting().log_confusion(matrix, labels, epoch=epoch, step=step, context=context, name=name)

    def finish(self, status: str) -> None:
        """Note the status beside the table, and close both files. A table that is refused stays as it is.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: here and from every later verb, if the run has finished before.
            UnwrittenError: the disk takes nothing. The message says what is missing; ``finish`` can be called again.
        """
        check_status(status)
        if self._may_write() and not self._file.is_refused():
            with self._lock:
                file = self._file
                file.open()  # so that a state taken later knows how many rows there are
                if file.backlog is not None and not file.backlog.retry():
                    raise UnwrittenError(
                        f"{file.backlog.describe()}; the run does not end as {status!r}: make room and call finish "
                        f"again, or they are lost with this process"
                    ) from file.backlog.error
                self._noting().finish(status)
                file.close()
        self._finished = True

    def run_id(self) -> str | None:
        """Return ``None``: the file is the run."""
        return None

    def run_url(self) -> str | None:
        """Return ``None``: there is no page to look at."""
        return None

    def logger_state(self) -> dict[str, JSON]:
        """Return how far the files have come.

        Returns:
            ``path``; ``rows``, and ``notes`` in bytes; how many of these wait for the disk: ``waiting``,
            ``waiting_notes``; last ``step`` and ``epoch``.
        """
        with self._guard():
            file = self._file
            if file.backlog is not None:
                file.backlog.retry()  # a checkpoint goes with what is on disk, if that can be
            notes = [len(line.data) for line in file.backlog or () if isinstance(line, JSONLine)]
            rows = 0 if file.backlog is None else len(file.backlog) - len(notes)
            there, size = file.rows, file.notes_size()
            if not self._begun and file.path is not None:  # it goes on behind what is there, or without it
                there, size = (read_table(file.path)[1], size) if file.if_exists == "append" else (0, 0)
            step, epoch = self._last
            return {
                "path": None if file.path is None else os.path.abspath(file.path),
                "rows": there + rows,
                "notes": size + sum(notes),
                "waiting": rows,
                "waiting_notes": sum(notes),
                "step": step,
                "epoch": epoch,
            }

    def reattach(self, state: Any) -> None:
        """Go on behind the rows and notes that were there when ``state`` was taken; remove the rest.

        Columns stay, also those that have no values any more. What waited for the disk then, and went with its
        process, is missing; a warning counts it. A file with fewer rows because a :meth:`rewind` took them stays as it
        is: whoever was killed behind that, before the next state, asks for it again.

        Raises:
            RecordError: no such state, or the file has fewer rows for another reason.
            RunLockedError: another process writes it.
            NoPathError: the logger has no path.
            UnwrittenError: rows wait in memory, and the disk takes nothing.
        """
        try:
            rows, notes, step, epoch = state["rows"], state["notes"], state["step"], state["epoch"]
            waiting = state.get("waiting", 0), state.get("waiting_notes", 0)
            last = None if step is None else check_step(step), check_epoch(epoch)
            fits = all(type(number) is int for number in (rows, notes, *waiting))
        except (TypeError, KeyError, AttributeError, LoggerError):
            fits = False
        if not fits:
            raise RecordError(f"expected the state of a CSVLogger (path, rows, notes, step, epoch), got {state!r:.200}")
        if self._is_copy():
            return
        if (path := self._file.path) is None:
            raise NoPathError("reattach needs a file: build CSVLogger with its path")
        with self._lock:
            self._settle("reattach")
            there, size = read_table(path)[1], self._file.notes_size()
            if there < rows - waiting[0] or size < notes - waiting[1]:
                if self._file.rewound() < rows - waiting[0]:
                    raise RecordError(
                        f"{path} has {there} rows and {size} bytes of notes, and the state is of {rows} and {notes}, "
                        f"in {state.get('path')}: build the logger with the path where that file is now"
                    )
                rows, notes = there, size
            self._file.take_back()
            self._file.cut(rows, notes)
            self._go_on(last)
        if there < rows or size < notes:
            warn(
                f"run {self._file.name!r}: {max(rows - there, 0)} rows and {max(notes - size, 0)} bytes of notes, "
                f"which waited for the disk when the state was taken, were lost with their process"
            )

    def rewind(self, step: int) -> None:
        """Go on as if nothing had been logged from ``step`` on, nor params and tags: a replay's run was cut.

        Raises:
            UnwrittenError: rows wait in memory, and the disk takes nothing.
            OSError: the disk refused it.
        """
        if not self._is_copy():
            with self._lock:
                self._settle("rewind")
                self._go_on(self._file.rewind(step))

    def _settle(self, verb: str) -> None:
        """Have no row wait while the files are cut."""
        backlog = self._file.backlog
        if backlog is not None and not backlog.retry():
            raise UnwrittenError(f"{backlog.describe()}; call {verb} when it does") from backlog.error

    def _go_on(self, last: tuple[int | None, int | None]) -> None:
        self._finished, self._last = False, last
        self._notes = Notes(self._file)

    def logger_info(self) -> dict[str, Any]:
        """Return where the file is, how many rows it has, and how many calls wait for the disk."""
        path, backlog = self._file.path, self._file.backlog
        return {
            "logger": "CSVLogger",
            "path": None if path is None else str(path),
            "rows": self._file.rows,
            "waiting": 0 if backlog is None else len(backlog),
        }

    def hold_nothing(self) -> None:
        """Raise what the disk does not take, as with ``backlog=0``: a tee has it in the run of its primary."""
        self._file.limit = 0

    @property
    def files(self) -> tuple[Path, ...]:
        """The table, and the notes beside it; neither has to be there yet."""
        return tuple(path for path in (self._file.path, self._file.notes.path) if path is not None)

    # --- around the verbs -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files without finishing the run; a later verb opens them again.

        What waits for the disk is tried once more; if it takes nothing yet, it goes on waiting.
        """
        with self._guard():
            if self._file.backlog is not None and not self._is_copy():
                self._file.backlog.retry()
            self._file.close()

    def __enter__(self) -> Self:
        """Return the logger."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the files. Only :meth:`finish` finishes the run."""
        self.close()

    def __repr__(self) -> str:
        """Return how to build this logger again."""
        return f"CSVLogger({'' if self.path is None else repr(str(self.path))})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open files behind. A copy of a logger in use belongs to no process."""
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_notes")}
        return {**kept, "_file": (self._file.path, self._file.limit, self._file.if_exists)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what the pickle holds."""
        owner = -1 if state["_begun"] or state["_owner"] == -1 else os.getpid()
        self.__dict__.update(state, _owner=owner)
        self._set_up(*state["_file"])

    def _is_copy(self) -> bool:
        """Return whether the file is another process's."""
        return self._owner != os.getpid()

    def _guard(self) -> contextlib.AbstractContextManager[object]:
        # in a forked child a thread that is not there may hold the lock
        return contextlib.nullcontext() if self._is_copy() else self._lock

    def _may_write(self) -> bool:
        """Return whether this copy of the logger writes at all."""
        if self._finished:
            raise LoggerFinishedError(
                f"{self!r} is finished and logs nothing any more: build another one to append to the file"
            )
        if not self._is_copy():
            return True
        if not self._warned:
            self._warned = True
            message = f"{self!r} writes nothing here: it is a copy of another process's logger"
            warnings.warn(message, UserWarning, stacklevel=3)
        return False

    def _noting(self) -> Notes:
        """Return who writes a note, at the current step."""
        self._begun = True
        self._notes.step = self._last[0]
        return self._notes
