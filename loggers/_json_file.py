"""The file of a ``JSONLogger``: whole lines, appended, each with one ``write``."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import weakref
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from loggers._backlog import Sink
from loggers.errors import NoPathError

#: What a line costs in memory beside its bytes.
_LINE: Final = 160
#: How every line of this logger begins, by which what a crash has left of one is known.
_BEGINNING: Final = b'{"type":"'
_BLOCK: Final = 1 << 16


class JSONLine(NamedTuple):
    """One line, newline included, and the step that it is of."""

    step: int | None
    data: bytes

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return _LINE + len(self.data)


class _Torn(NamedTuple):
    """A line that may be there in part: where it was to begin, and what it is."""

    at: int
    data: bytes


class JSONFile(Sink[JSONLine]):
    """Appends lines. What a failed write has left of one is cut off before anything else is written.

    Attributes:
        path: the file; ``None`` until somebody says where it is.
        fd: its descriptor, ``None`` while it is closed.
    """

    def __init__(self, owner: object, path: Path | None, limit: int) -> None:
        super().__init__(owner, str(path), limit)
        self._path = path
        self.fd: int | None = None
        self._close: weakref.finalize[[int], JSONFile] | None = None
        self._torn: _Torn | None = None
        #: a pipe or a foreign file ends inside a line, which can only be ended
        self._unended = False

    @property
    def path(self) -> Path | None:
        """The file; setting it says what the run is called, too."""
        return self._path

    @path.setter
    def path(self, path: Path) -> None:
        self._path, self.name = path, str(path)

    def is_outage(self, error: BaseException) -> bool:
        """See :meth:`loggers._backlog.Sink.is_outage`."""
        return super().is_outage(error) and not isinstance(error, IsADirectoryError)

    def begin(self) -> int:
        """Return the file's descriptor, opened if need be; its directories are made."""
        if self.fd is not None:
            return self.fd
        if self._path is None:
            raise NoPathError(
                "JSONLogger() has no file yet: give it a path, or hand it to a driver with a run directory"
            )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        if self._torn is None and stat.S_ISREG(os.fstat(fd).st_mode):  # a pipe cannot be asked
            self._look_at_the_end(fd)
        return fd

    def write(self, line: JSONLine) -> dict[str, Exception]:
        """See :meth:`loggers._backlog.Sink.write`."""
        fd = self.begin()
        about = os.fstat(fd)
        is_file = stat.S_ISREG(about.st_mode)
        if is_file and not about.st_nlink:  # somebody has removed it: what goes there, nobody will read
            self.close()
            fd = self.begin()
            about = os.fstat(fd)
        if self._torn is not None:
            about = self._cut(fd, self._torn)
        data = whole = b"\n" + line.data if self._unended else line.data
        try:
            while data:
                data = data[os.write(fd, data) :]  # one call, except on a full disk
        except BaseException as error:
            if not is_file:
                self._unended = True
            else:
                self._torn = _Torn(about.st_size, whole)
                if isinstance(error, OSError):
                    self._let_go(fd, self._torn)
            raise
        self._unended = False
        return {}

    def _let_go(self, fd: int, torn: _Torn) -> None:
        """Cut off what is there of a line, if the disk does that now, and open the file anew for the next one."""
        with contextlib.suppress(OSError):
            self._cut(fd, torn)
        self.close()  # when the disk comes back, this descriptor may still know nothing of it

    def _cut(self, fd: int, torn: _Torn) -> os.stat_result:
        """Remove what is there of a line that was not written to its end; return what the file is then."""
        size = os.fstat(fd).st_size
        there = size - torn.at
        if there > 0:
            if there <= len(torn.data) and os.pread(fd, there, torn.at) == torn.data[:there]:
                os.ftruncate(fd, torn.at)
            else:  # others write here, too: their lines stay
                self._unended = os.pread(fd, 1, size - 1) != b"\n"
        self._torn = None
        return os.fstat(fd)

    def _look_at_the_end(self, fd: int) -> None:
        """Deal with a last line that a crash has cut short: it goes, for no verb has returned from it."""
        size = at = os.fstat(fd).st_size
        tail = b""
        while at and b"\n" not in tail:
            length = min(_BLOCK, at)
            at -= length
            tail = os.pread(fd, length, at) + tail
        tail = tail.rpartition(b"\n")[2]
        if tail:
            if _is_ours(tail) and not _is_whole(tail):
                os.ftruncate(fd, size - len(tail))
            else:
                self._unended = True

    def close(self) -> None:
        """Close the file; it is opened again when there is something to write."""
        if self._close is not None:
            self._close()
        self.fd = self._close = None


def _is_ours(tail: bytes) -> bool:
    return tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail)


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def encode(row: dict[str, Any]) -> bytes:
    """Return the line of a row: plain data, in the spelling that Python's own ``json`` reads."""
    try:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an int beyond 64 bits, or a name with a lone surrogate
        return _encode_slowly(row)
    # orjson writes null for NaN; where there is any null, the standard library tells them apart
    return _encode_slowly(row) if b"null" in line else line


def _encode_slowly(row: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(row, separators=(",", ":")) + "\n").encode()
