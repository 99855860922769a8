"""CSV: the metrics as a table that any program opens.

::

    metrics.csv            context,epoch,step,walltime,loss,acc
                           train,1,4,1796032596.216664,0.31,
                           validate,1,4,1796032596.218231,0.29,0.875
    metrics.notes.jsonl    params, tags, other values, confusion matrices and the status, as JSONLogger writes them

Each row is one ``write``, so a killed process loses nothing that it has logged. A metric that was not seen before is
a new column: the file is written anew beside the old one, with an empty cell in every row so far, and takes its
place. So the table is complete and rectangular at every moment. That takes time in proportion to the file, once for
every set of new names: log metrics under few names, and early.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from loggers._cells import cell, name_cell, name_of
from loggers.contract import JSON
from loggers.errors import LoggerError, LoggerFinishedError, NoPathError, RecordError
from loggers.json_logger import JSONLogger
from loggers.values import check_context, check_epoch, check_status, check_step, plain, raise_for

#: The file that a pathless logger writes in the directory it is given.
FILE_NAME: Final = "metrics.csv"
#: The first columns, which say where a row belongs. A metric of such a name has it in quotes.
CARRIERS: Final = ("context", "epoch", "step", "walltime")
_RESERVED: Final = frozenset(CARRIERS)


class CSVLogger:
    """Writes one row per line of metrics, in the order in which they are logged.

    Numbers are spelled so that they read back equal, NaN and the infinities as ``nan``, ``inf`` and ``-inf``; lists
    and mappings are JSON in a cell. A cell is empty where the line has no such metric. The same (metric, step) again
    is another row. A file that is there is appended to; :meth:`reattach` cuts it back. One that somebody removes begins
    anew with the next row, with a warning.

    After a ``fork`` the child's copy writes nothing, begun or not, and so does a pickled copy of a logger that has
    begun to write. A logger that has not may be pickled and used elsewhere. Threads may share a logger.

    Args:
        path: the file; its directories are made. Without a path a driver has to :meth:`adopt` the logger. Nothing is
            opened before the first verb. What is no metric goes to the file of that name that ends with
            ``.notes.jsonl``.
    """

    #: A few microseconds and a local file: the fan-out calls this logger in turn.
    placement: Final = "inline"

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path: Path | None = None
        self._fd: int | None = None
        self._close_fd: weakref.finalize[[int], CSVLogger] | None = None
        self._owner = os.getpid()  # a fork's copy is none of its own
        self._begun = False
        self._finished = False
        self._warned = False
        self._columns: dict[str, int] = {}  # of metrics, behind the carriers
        self._rows = 0
        self._size = 0  # bytes of complete rows
        self._torn = False  # there may be more than that
        self._last: tuple[int | None, int | None] = (None, None)  # step and epoch of the last row
        self._notes = JSONLogger(backlog=0)
        self._lock = threading.RLock()
        if path is not None:
            self._set_path(Path(path))

    def adopt(self, directory: str | os.PathLike[str]) -> None:
        """Write to ``metrics.csv`` in ``directory``, unless the logger has a path already."""
        if self.path is None:
            self._set_path(Path(directory) / FILE_NAME)

    def _set_path(self, path: Path) -> None:
        self.path = path
        self._notes.path = path.with_name(f"{path.name.removesuffix('.csv')}.notes.jsonl")

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
            OSError: the disk refused it. What is there is whole, and the next row is tried again.
        """
        if not self._may_write():
            return
        step, epoch, context = check_step(step), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        given = axes.get("walltime")
        now = time.time() if given is None else float(given)
        with self._lock:
            if values or not problems:
                self._open()
                if new := [name for name in values if name not in self._columns]:
                    self._widen(new)
                row = [cell(context), "" if epoch is None else str(epoch), str(step), repr(now)]
                row += [""] * len(self._columns)
                for name, value in values.items():
                    row[self._columns[name]] = cell(value)
                self._write(_line(row))
                self._rows += 1
            self._last = step, epoch
        if problems:
            raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Note hyperparameters beside the table. Later values win over earlier ones."""
        if self._may_write():
            with self._lock:
                self._notes.log_params(params)
                self._own()

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Note tags beside the table."""
        if self._may_write():
            with self._lock:
                self._notes.log_tags(tags)
                self._own()

    def log_other(self, key: str, value: Any) -> None:
        """Note a free-form value beside the table."""
        if self._may_write():
            with self._lock:
                self._notes.log_other(key, value)
                self._own()

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
                self._notes.log_confusion(matrix, labels, epoch=epoch, step=step, context=context, name=name)
                self._own()

    def finish(self, status: str) -> None:
        """Note the status beside the table, and close both files.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: here and from every later verb, if the run has finished before.
        """
        check_status(status)
        if self._may_write():
            with self._lock:
                self._open()  # so that a state taken later knows how many rows there are
                self._notes.finish(status)
                self.close()
        self._finished = True

    def run_id(self) -> str | None:
        """Return ``None``: the file is the run."""
        return None

    def run_url(self) -> str | None:
        """Return ``None``: there is no page to look at."""
        return None

    def logger_state(self) -> dict[str, JSON]:
        """Return how far the files have come: ``path``, ``rows``, ``notes`` in bytes, last ``step`` and ``epoch``."""
        with self._guard():
            rows = self._rows
            if not self._begun and self.path is not None:
                rows = _table(self.path)[1]
            step, epoch = self._last
            path = None if self.path is None else os.path.abspath(self.path)
            return {"path": path, "rows": rows, "notes": self._notes_size(), "step": step, "epoch": epoch}

    def reattach(self, state: Any) -> None:
        """Go on behind the rows and notes that were there when ``state`` was taken; remove the rest.

        Columns stay, also those that have no values any more.

        Raises:
            RecordError: no such state, or the file has fewer rows.
            NoPathError: the logger has no path.
        """
        try:
            rows, notes, step, epoch = state["rows"], state["notes"], state["step"], state["epoch"]
            last = None if step is None else check_step(step), check_epoch(epoch)
            fits = type(rows) is int and type(notes) is int
        except (TypeError, KeyError, LoggerError):
            fits = False
        if not fits:
            raise RecordError(f"expected the state of a CSVLogger (path, rows, notes, step, epoch), got {state!r:.200}")
        if self._is_copy():
            return
        if self.path is None:
            raise _no_path()
        with self._lock:
            self._go_back(self.path, state, rows, notes)
            self._last = last

    def _go_back(self, path: Path, state: Any, rows: int, notes: int) -> None:
        there, size = _table(path)[1], self._notes_size()
        if there < rows or size < notes:
            raise RecordError(
                f"{path} has {there} rows and {size} bytes of notes, and the state is of {rows} and {notes}, in "
                f"{state.get('path')}: build the logger with the path where that file is now"
            )
        self._finished = False
        self.close()
        if path.exists():
            self._open()
            self._cut(rows)
        if self._notes.path is not None and size > notes:
            os.truncate(self._notes.path, notes)
        self._notes = JSONLogger(self._notes.path, backlog=0)

    def logger_info(self) -> dict[str, Any]:
        """Return where the file is, and how many rows it has."""
        path = None if self.path is None else str(self.path)
        return {"logger": "CSVLogger", "path": path, "rows": self._rows}

    @property
    def files(self) -> tuple[Path, ...]:
        """The table, and the notes beside it; neither has to be there yet."""
        return tuple(path for path in (self.path, self._notes.path) if path is not None)

    # --- the file -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files without finishing the run; a later verb opens them again."""
        with self._guard():
            if self._close_fd is not None:
                self._close_fd()
            self._fd = self._close_fd = None
            self._notes.close()

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
        """Leave the open file behind. A copy of a logger in use belongs to no process."""
        kept = {key: value for key, value in self.__dict__.items() if key != "_lock"}
        return {**kept, "_fd": None, "_close_fd": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what the pickle holds."""
        owner = -1 if state["_begun"] or state["_owner"] == -1 else os.getpid()
        self.__dict__.update(state, _owner=owner, _lock=threading.RLock())

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

    def _own(self) -> None:
        """Take the table as well: whoever notes something about a run is its process."""
        if not self._begun:
            self._open()

    def _notes_size(self) -> int:
        path = self._notes.path
        return path.stat().st_size if path is not None and path.exists() else 0

    def _open(self) -> int:
        """Return the open file; read first what is in it."""
        if self._fd is not None and (path := self.path) is not None:
            there = os.fstat(self._fd)
            # some file systems count no links
            if there.st_nlink or (path.exists() and os.path.samestat(there, path.stat())):
                return self._fd
            message = f"{self.path} has been removed, and {self._rows} rows with it; it begins anew"
            self.close()
            warnings.warn(message, RuntimeWarning, stacklevel=4)
        if self.path is None:
            raise _no_path()
        self.path = Path(os.path.realpath(self.path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        names, self._rows, self._size = _table(self.path)
        self._columns = {name: number for number, name in enumerate(names, len(CARRIERS))}
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._torn = os.fstat(fd).st_size != self._size  # a crash of the machine may leave half a row
        self._adopt_fd(fd)
        self._begun = True
        if not self._size:
            try:
                self._write(_head(self._columns))
            except BaseException:
                self.close()  # no row without a head
                raise
        return fd

    def _adopt_fd(self, fd: int) -> None:
        if self._close_fd is not None:
            self._close_fd()
        self._fd = fd
        self._close_fd = weakref.finalize(self, os.close, fd)

    def _write(self, line: bytes) -> None:
        fd = self._open() if self._fd is None else self._fd
        if self._torn:
            os.ftruncate(fd, self._size)
        self._torn = True  # until all of it is there
        rest = line
        while rest:
            rest = rest[os.write(fd, rest) :]  # one call, except on a full disk
        self._torn = False
        self._size += len(line)

    def _widen(self, new: list[str]) -> None:
        """Put columns behind those that are there, with an empty cell in every row."""
        columns = {**self._columns, **{name: len(CARRIERS) + len(self._columns) + i for i, name in enumerate(new)}}
        text, padding = _head(columns), b"," * len(new)
        path = Path(self.path or "")  # there is one, or nothing would be open
        temporary = path.with_name(f"{path.name}.tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            size = len(text)
            with path.open("rb") as old, os.fdopen(os.dup(fd), "wb") as file:
                file.write(text)
                left = self._size - len(old.readline())
                for line in old:
                    if (left := left - len(line)) < 0:
                        break  # half a row
                    size += file.write(line[:-1] + padding + b"\n")
            os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        self._adopt_fd(fd)
        self._columns, self._size, self._torn = columns, size, False

    def _cut(self, rows: int) -> None:
        fd = self._open()
        if rows < self._rows or self._torn:
            with open(fd, "rb", closefd=False) as file:
                file.seek(0)
                size = sum(len(file.readline()) for _ in range(rows + 1))
            os.ftruncate(fd, size)
            self._size, self._rows, self._torn = size, rows, False


def _line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _head(columns: Iterable[str]) -> bytes:
    return _line([*CARRIERS, *(name_cell(name, _RESERVED) for name in columns)])


def _table(path: Path) -> tuple[list[str], int, int]:
    """Return a file's metrics, how many rows it has, and how many bytes up to the last that is complete.

    Raises:
        LoggerError: it is none of a CSVLogger.
    """
    if not path.exists():
        return [], 0, 0
    with path.open("rb") as file:
        head = file.readline()
        if not head.endswith(b"\n"):
            # nothing, or half a head, which is as good as nothing
            if head and not _head([]).startswith(head[: len(_head([])) - 1]):
                raise LoggerError(f"{path} is no table of a CSVLogger: it begins with {head[:80]!r}; name another file")
            return [], 0, 0
        try:
            (cells,) = csv.reader([head.decode()])
            names = [name_of(text) for text in cells[len(CARRIERS) :]]
        except (ValueError, csv.Error):
            cells = names = []
        if tuple(cells[: len(CARRIERS)]) != CARRIERS:
            raise LoggerError(f"{path} is no table of a CSVLogger: it begins with {head[:80]!r}; name another file")
        rows, size = 0, len(head)
        for line in file:
            if not line.endswith(b"\n"):
                break
            rows, size = rows + 1, size + len(line)
    return names, rows, size


def _no_path() -> NoPathError:
    return NoPathError("CSVLogger() has no file yet: give it a path, or hand it to a driver with a run directory")
