"""The files of a ``CSVLogger``: a table that is complete and rectangular at every moment, and notes beside it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from loggers._backlog import Sink, warn
from loggers._cells import name_cell, name_of
from loggers._json_file import JSONFile, JSONLine, encode
from loggers.errors import LoggerError, NoPathError
from loggers.json_logger import JSONLogger

#: The first columns, which say where a row belongs. A metric of such a name has it in quotes.
CARRIERS: Final = ("context", "epoch", "step", "walltime")
_RESERVED: Final = frozenset(CARRIERS)
#: What a row, and a cell of it, costs in memory beside its text.
_ROW, _CELL = 400, 80
#: Types of notes that belong to a step.
_WITH_STEP: Final = frozenset(("other", "confusion"))
_ALL: Final[Mapping[str, Exception]] = {}


class Row(NamedTuple):
    """One row.

    Attributes:
        step: as a number; it is among the carriers, too.
        carriers: the first cells.
        cells: metric -> cell.
    """

    step: int
    carriers: tuple[str, ...]
    cells: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return _ROW + sum(_CELL + len(text) for text in self.cells.values())


class CSVFile(Sink[Row | JSONLine]):
    """Writes rows to the table, and lines to the notes; they wait together while the disk takes nothing.

    Attributes:
        path: the table; ``None`` until somebody says where it is.
        notes: the file beside it.
        rows: how many there are.
    """

    def __init__(self, owner: object, path: Path | None, limit: int) -> None:
        super().__init__(owner, str(path), limit)
        self._path: Path | None = None
        self.notes = JSONFile(self, None, 0)
        self.rows = 0
        self._fd: int | None = None
        self._close_fd: weakref.finalize[[int], CSVFile] | None = None
        self._columns: dict[str, int] = {}  # of metrics, behind the carriers
        self._size = 0  # bytes of complete rows
        self._torn = False  # there may be more than that
        if path is not None:
            self.path = path

    @property
    def path(self) -> Path | None:
        """The table; setting it says what the run is called and where the notes are, too."""
        return self._path

    @path.setter
    def path(self, path: Path) -> None:
        self._path, self.name = path, str(path)
        self.notes.path = path.with_name(f"{path.name.removesuffix('.csv')}.notes.jsonl")

    def begin(self) -> int:
        """Return the table's descriptor, opened if need be; what is in it is read first."""
        if self._fd is not None and (path := self._path) is not None:
            try:
                there = os.fstat(self._fd)
            except OSError:
                self.close()  # of a disk that is gone, and comes back as another one
                raise
            # some file systems count no links
            if there.st_nlink or (path.exists() and os.path.samestat(there, path.stat())):
                return self._fd
            message = f"{path} has been removed, and {self.rows} rows with it; it begins anew"
            self.close()
            warn(message)
        if self._path is None:
            raise NoPathError(
                "CSVLogger() has no file yet: give it a path, or hand it to a driver with a run directory"
            )
        path = self._path = Path(os.path.realpath(self._path))
        path.parent.mkdir(parents=True, exist_ok=True)
        names, self.rows, self._size = read_table(path)
        self._columns = {name: number for number, name in enumerate(names, len(CARRIERS))}
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.begun = True
        self._torn = os.fstat(fd).st_size != self._size  # a crash of the machine may leave half a row
        self._adopt(fd)
        if not self._size:
            self._append(fd, _head(self._columns))
        return fd

    def write(self, line: Row | JSONLine) -> Mapping[str, Exception]:
        """See :meth:`loggers._backlog.Sink.write`."""
        fd = self.begin()  # also for a note: whoever notes something about a run has its table, too
        if isinstance(line, JSONLine):
            try:
                return self.notes.write(line)
            except OSError as error:
                if self.backlog is None:
                    self.notes.check(error)  # the table has a path that works; the notes beside it may not
                raise
        if [*line.cells] == [*self._columns]:
            row = [*line.carriers, *line.cells.values()]
        else:
            if new := [name for name in line.cells if name not in self._columns]:
                fd = self._widen(new)
            row = [*line.carriers, *[""] * len(self._columns)]
            for name, text in line.cells.items():
                row[self._columns[name]] = text
        self._append(fd, _line(row))
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
        except BaseException as error:
            if isinstance(error, OSError):
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
        with Path(self._path or "").open("rb") as file:  # there is a path, or nothing would be open
            left = self._size - len(file.readline())
            for line in file:
                if (left := left - len(line)) < 0:
                    break  # half a row
                yield line

    def _replace(self, columns: dict[str, int], lines: Iterable[bytes]) -> int:
        """Write the table anew, beside the old one, and let it take its place; return its descriptor."""
        path = Path(self._path or "")
        temporary = path.with_name(f"{path.name}.tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        rows = 0
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                size = file.write(_head(columns))
                for line in lines:
                    size += file.write(line)
                    rows += 1
            os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):  # on a disk that fails it may have to stay; the next one empties it
                temporary.unlink(missing_ok=True)
            raise
        self._adopt(fd)
        self._columns, self._size, self.rows, self._torn = columns, size, rows, False
        return fd

    def _adopt(self, fd: int) -> None:
        if self._close_fd is not None:
            self._close_fd()
        self._fd = fd
        self._close_fd = weakref.finalize(self, os.close, fd)

    def close(self) -> None:
        """Close the files; they are opened again when there is something to write."""
        if self._close_fd is not None:
            self._close_fd()
        self._fd = self._close_fd = None
        self.notes.close()

    # --- taking back ------------------------------------------------------------------------------------

    def notes_size(self) -> int:
        """Return how many bytes of notes there are, without half a line that a failing disk may have left."""
        path = self.notes.path
        if path is None or not path.exists():
            return 0
        return path.stat().st_size if self.backlog is None else path.read_bytes().rfind(b"\n") + 1

    def cut(self, rows: int, notes: int) -> None:
        """Take away what is behind some rows, and behind some bytes of notes."""
        self.close()
        if self._path is not None and self._path.exists():
            fd = self.begin()
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

    def rewind(self, step: int) -> tuple[int | None, int | None]:
        """Take away rows and notes from a step on, and params and tags; return step and epoch of the last row left."""
        self.close()
        last: tuple[int | None, int | None] = None, None

        def before() -> Iterator[bytes]:
            nonlocal last
            for line in self._lines():
                _, epoch, at = next(csv.reader([line.decode()]))[:3]
                if int(at) < step:
                    last = int(at), int(epoch) if epoch else None
                    yield line

        if self._path is not None and self._path.exists():
            self.begin()
            self._replace(self._columns, before())
        notes = self.notes.path
        if notes is not None and notes.exists():
            lines = notes.read_bytes().splitlines(keepends=True)
            temporary = notes.with_name(f"{notes.name}.tmp")
            temporary.write_bytes(b"".join(line for line in lines if _is_before(line, step)))
            os.replace(temporary, notes)
        return last


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


def _is_before(line: bytes, step: int) -> bool:
    row = json.loads(line) if line.endswith(b"\n") else {}
    return row.get("type") in _WITH_STEP and row.get("step", -1) < step


def _line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _head(columns: Iterable[str]) -> bytes:
    return _line([*CARRIERS, *(name_cell(name, _RESERVED) for name in columns)])


def read_table(path: Path) -> tuple[list[str], int, int]:
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
