"""The files of a ``CSVLogger``: a table that is complete and rectangular at every moment, and notes beside it."""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar

from loggers._backlog import Sink, warn
from loggers._csv_table import CARRIERS, Row, head_of, line_of, read_table
from loggers._descriptors import close_all, lock, path_of
from loggers._json_file import JSONFile, JSONLine, encode
from loggers.errors import LoggerError, NoPathError, RunExistsError, RunLockedError
from loggers.json_logger import JSONLogger

IfExists: TypeAlias = Literal["append", "replace", "refuse"]
_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Types of notes that belong to a step.
_WITH_STEP: Final = frozenset(("other", "confusion"))
#: What a rewind has left among the notes: how far the table had come before it.
_REWOUND: Final = b'{"type":"rewind",'
_ALL: Final[Mapping[str, Exception]] = {}


def _alone(call: Callable[Concatenate[CSVFile, _P], _T]) -> Callable[Concatenate[CSVFile, _P], _T]:
    """Make a method notice when one that is under way is left half-way, or called into by a signal's handler.

    Python looks for signals when a call begins or is over: never between two of these lines that hold none.
    """

    @functools.wraps(call)
    def alone(file: CSVFile, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if file._busy:
            raise LoggerError(
                f"{file.path} was written to from a signal handler in the middle of another call; let the handler set "
                f"a flag or raise, and act on it after the call"
            )
        file._busy = True
        try:
            return call(file, *args, **kwargs)
        except BaseException:
            file._stale = True
            raise
        finally:
            file._busy = False

    return alone


class CSVFile(Sink[Row | JSONLine]):
    """Writes rows to the table, and lines to the notes; they wait together while the disk takes nothing.

    The table is locked while it is open. Within one process a newer logger takes it over from an older one, such as
    that which an exception left behind.

    Attributes:
        path: the table; ``None`` until somebody says where it is.
        notes: the file beside it.
        rows: how many there are.
        if_exists: what to do with a table that is there when the first row comes; ``"append"`` from then on.
    """

    _all: Final[weakref.WeakSet[CSVFile]] = weakref.WeakSet()
    _numbers: Final = itertools.count()

    def __init__(self, owner: object, path: Path | None, limit: int, if_exists: IfExists = "append") -> None:
        super().__init__(owner, str(path), limit)
        self._path: Path | None = None
        self.notes = JSONFile(self, None, 0)
        self.rows = 0
        self.if_exists = if_exists
        self._fds: list[int] = []  # the table's, and of one that is to take its place
        self._columns: dict[str, int] = {}  # of metrics, behind the carriers
        self._size = 0  # bytes of complete rows
        self._torn = False  # there may be more than that
        self._latest: tuple[Row | None, int] = None, 0  # the row that was written last, and where it ends
        self._busy = False  # a call is under way
        self._stale = False  # one ended half-way: the file counts, not what is in memory
        self._number = next(self._numbers)
        self._is_taken = False  # by a newer one in this process
        self._told = False  # that the table was moved
        weakref.finalize(self, close_all, self._fds)
        self._all.add(self)
        if path is not None:
            self.path = path

    @property
    def path(self) -> Path | None:
        """The table; setting it says what the run is called and where the notes are, too."""
        return self._path

    @path.setter
    def path(self, path: Path) -> None:
        self._path, self.name = path, str(path)
        self.notes.path = _notes_of(path)

    @_alone
    def begin(self) -> int:
        """Return the table's descriptor, opened if need be; what is in it is read first.

        Raises:
            NoPathError: there is no path yet.
            RunExistsError: a table is there, and ``if_exists`` refuses it.
            RunLockedError: another logger writes it.
            LoggerError: the file is no table of a CSVLogger.
            OSError: what the disk says.
        """
        return self._begin()

    def _begin(self) -> int:
        if self._fds and not self._stale and (path := self._path) is not None:
            fd = self._fds[0]
            try:
                there = os.fstat(fd)
            except OSError:
                self.close()  # of a disk that is gone, and comes back as another one
                raise
            # some file systems count no links
            if there.st_nlink or (path.exists() and os.path.samestat(there, path.stat())):
                return fd
            message = f"{path} has been removed, and {self.rows} rows with it; it begins anew"
            self.rows = 0
            self.close()
            warn(message)
        if self._path is None:
            raise NoPathError(
                "CSVLogger() has no file yet: give it a path, or hand it to a driver with a run directory"
            )
        if self._is_taken:
            raise RunLockedError(f"a newer CSVLogger in this process has taken {self._path} over: use that one")
        if self.is_refused():
            raise RunExistsError(
                f"{self._path} holds a run already: go on with it by reattaching a state, or build "
                f"CSVLogger(path, if_exists='append') or (path, if_exists='replace')"
            )
        self._path = Path(os.path.realpath(self._path))
        path = self._where()
        self._stale = True  # until all of it is known
        self.close()
        if self.rows and not path.exists():
            before, self.rows = self.rows, 0
            warn(f"{path}: its {before} rows are not there any more; it begins anew")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = self._open(path)
            names, self.rows, self._size = read_table(path)
            if self.if_exists == "replace":
                _notes_of(path).unlink(missing_ok=True)
                os.ftruncate(fd, 0)
                names, self.rows, self._size = [], 0, 0
            self._columns = {name: number for number, name in enumerate(names, len(CARRIERS))}
            self._torn = os.fstat(fd).st_size != self._size  # a crash of the machine may leave half a row
            if not self._size:
                self._append(fd, head_of(self._columns))
        except BaseException:
            self.close()
            raise
        self.if_exists, self._stale = "append", False
        return fd

    def is_refused(self) -> bool:
        """Tell whether there is a run already, and it is to be left alone."""
        files = (self._path, self.notes.path)
        return self.if_exists == "refuse" and any(
            file is not None and file.exists() and file.stat().st_size for file in files
        )

    def _open(self, path: Path) -> int:
        """Open the table that is there, and lock it."""
        while True:
            self._fds.append(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666))
            fd, self.begun = self._fds[0], True
            if not lock(fd):
                self._take_over(fd)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
            close_all(self._fds)  # whoever had it put another one in its place, between our open and our lock

    def _take_over(self, fd: int) -> None:
        """Lock what somebody else has locked, if it is an older logger of this process."""
        for other in list(self._all):
            if other is not self and other._number < self._number and other._holds(os.fstat(fd)):
                with other.mutex:
                    other._is_taken = True
                    other.close()
        if not lock(fd):
            raise RunLockedError(
                f"{self._path} is being written by another logger; finish that one, or write to another file"
            )

    def _holds(self, file: os.stat_result) -> bool:
        with contextlib.suppress(OSError, IndexError):
            return os.path.samestat(os.fstat(self._fds[0]), file)
        return False

    def take_back(self) -> None:
        """Go on with what is there, as the newest logger of this process."""
        self._number, self._is_taken, self.if_exists = next(self._numbers), False, "append"

    def _where(self) -> Path:
        """Return where the open table is by now: its directory may have been renamed."""
        path = self._path or Path()
        if self._fds and not self._is_at(path):
            there = path_of(self._fds[0])
            if there is not None and self._is_at(there):
                if not self._told:
                    self._told = True
                    warn(f"{path} was moved to {there}: what is logged from now on goes there, until it is closed")
                path = there
        if self.notes.fd is None:
            self.notes.path = _notes_of(path)
        return path

    def _is_at(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return self._holds(path.stat())
        return False

    @_alone
    def write(self, line: Row | JSONLine) -> Mapping[str, Exception]:
        """See :meth:`loggers._backlog.Sink.write`."""
        fd = self._begin()  # also for a note: whoever notes something about a run has its table, too
        if isinstance(line, JSONLine):
            if self.notes.fd is None:
                self._where()
            try:
                return self.notes.write(line)
            except OSError as error:
                if self.backlog is None:
                    self.notes.check(error)  # the table has a path that works; the notes beside it may not
                raise
        latest, end = self._latest
        if line is latest and self._size == end:
            return _ALL  # it waited, and was there already when an interrupt came
        if [*line.cells] == [*self._columns]:
            row = [*line.carriers, *line.cells.values()]
        else:
            if new := [name for name in line.cells if name not in self._columns]:
                fd = self._widen(new)
            row = [*line.carriers, *[""] * len(self._columns)]
            for name, text in line.cells.items():
                row[self._columns[name]] = text
        data = line_of(row)
        self._latest = line, self._size + len(data)
        self._append(fd, data)
        self.rows += 1
        return _ALL

    def _append(self, fd: int, line: bytes) -> None:
        try:
            if self._torn:
                os.ftruncate(fd, self._size)
            self._torn = True  # until all of it is there
            rest = line
            while rest:
                rest = rest[os.write(fd, rest) :]  # one call, except on a full disk
        except OSError:
            with contextlib.suppress(OSError):  # it may let go of nothing now: before the next line, then
                os.ftruncate(fd, self._size)
            self.close()  # when the disk comes back, this descriptor may still know nothing of it
            raise
        self._torn = False
        self._size += len(line)

    def _widen(self, new: list[str]) -> int:
        """Put columns behind those that are there, with an empty cell in every row; return the new descriptor."""
        columns = {**self._columns, **{name: len(CARRIERS) + len(self._columns) + i for i, name in enumerate(new)}}
        padding = b"," * len(new) + b"\n"
        return self._replace(columns, (line[:-1] + padding for line in self._lines()))

    def _lines(self) -> Iterator[bytes]:
        """Yield the complete rows."""
        with self._where().open("rb") as file:
            left = self._size - len(file.readline())
            for line in file:
                if (left := left - len(line)) < 0:
                    break  # half a row
                yield line

    def _replace(self, columns: dict[str, int], lines: Iterable[bytes]) -> int:
        """Write the table anew, beside the old one, and let it take its place; return its descriptor."""
        path = self._where()
        temporary = path.with_name(f"{path.name}.tmp")
        self._fds.append(os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        fd = self._fds[-1]
        rows = 0
        try:
            lock(fd)  # before it is the table
            with os.fdopen(os.dup(fd), "wb") as file:
                size = file.write(head_of(columns))
                for line in lines:
                    size += file.write(line)
                    rows += 1
            os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            self.close()
            with contextlib.suppress(OSError):  # on a disk that fails it may have to stay; the next one empties it
                temporary.unlink(missing_ok=True)
            raise
        close_all(self._fds, leave=1)
        self._columns, self._size, self.rows, self._torn = columns, size, rows, False
        return fd

    def close(self) -> None:
        """Close the files, and let others write them; they are opened again when there is something to write."""
        close_all(self._fds)
        self.notes.close()

    @classmethod
    def _after_fork_in_child(cls) -> None:
        # the lock belongs to the open file that both processes share: with the child's copy closed it stays
        # the parent's, and falls when that one dies
        for file in list(cls._all):
            close_all(file._fds)

    # --- taking back ------------------------------------------------------------------------------------

    def notes_size(self) -> int:
        """Return how many bytes of notes there are, without half a line that a failing disk may have left."""
        path = self.notes.path
        if path is None or not path.exists():
            return 0
        return path.stat().st_size if self.backlog is None else path.read_bytes().rfind(b"\n") + 1

    @_alone
    def cut(self, rows: int, notes: int) -> None:
        """Take away what is behind some rows, and behind some bytes of notes."""
        self.close()
        if self._path is not None and self._path.exists():
            fd = self._begin()
            if rows < self.rows:
                with open(fd, "rb", closefd=False) as file:
                    file.seek(0)
                    size = sum(len(file.readline()) for _ in range(rows + 1))
                os.ftruncate(fd, size)
                self._size, self.rows, self._torn = size, rows, False
            elif self._torn:
                os.ftruncate(fd, self._size)
                self._torn = False
        if self.notes.path is not None and self.notes_size() > notes:
            os.truncate(self.notes.path, notes)

    def rewound(self) -> int:
        """Return how many rows there were when something was taken away last by :meth:`rewind`; 0 if nothing was."""
        path = self.notes.path
        if path is None or not path.exists():
            return 0
        with path.open("rb") as file:
            lines = (line for line in file if line.startswith(_REWOUND) and line.endswith(b"\n"))
            return max((json.loads(line)["rows"] for line in lines), default=0)

    @_alone
    def rewind(self, step: int) -> tuple[int | None, int | None]:
        """Take away rows and notes from a step on, and params and tags; return step and epoch of the last row left.

        Among the notes is said how many rows there were, before any goes: who is killed here is told by that from
        somebody who has lost rows.
        """
        self.close()
        last: tuple[int | None, int | None] = None, None

        def before() -> Iterator[bytes]:
            nonlocal last
            for line in self._lines():
                _, epoch, at = next(csv.reader([line.decode()]))[:3]
                if int(at) < step:
                    last = int(at), int(epoch) if epoch else None
                    yield line

        mark = b""
        if self._path is not None and self._path.exists():
            self._begin()
            mark = encode({"type": "rewind", "step": step, "rows": max(self.rows, self.rewound())})
            self.notes.write(JSONLine(None, mark))
            self.notes.close()
            self._replace(self._columns, before())
        notes = self.notes.path
        if notes is not None and notes.exists():
            lines = [line for line in notes.read_bytes().splitlines(keepends=True) if _is_before(line, step)]
            temporary = notes.with_name(f"{notes.name}.tmp")
            temporary.write_bytes(b"".join([*lines, mark]))
            os.replace(temporary, notes)
        return last


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CSVFile._after_fork_in_child)


class Notes(JSONLogger):
    """What is no metric: lines as a :class:`~loggers.JSONLogger` has them, which wait for the disk as the rows do.

    A value of ``log_other`` has the step of the last row, so that it can be taken back with it.
    """

    def __init__(self, table: CSVFile) -> None:
        super().__init__()
        self._file = table.notes
        self._table = table
        self.step: int | None = None

    def _write(self, row: dict[str, Any]) -> None:
        if row["type"] == "other" and self.step is not None:
            row["step"] = self.step
        self._table.store(JSONLine(row.get("step") if row["type"] in _WITH_STEP else None, encode(row)))


def _notes_of(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.csv')}.notes.jsonl")


def _is_before(line: bytes, step: int) -> bool:
    row = json.loads(line) if line.endswith(b"\n") else {}
    return row.get("type") in _WITH_STEP and row.get("step", -1) < step
