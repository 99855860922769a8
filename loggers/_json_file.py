"""The file of a ``JSONLogger``: whole lines, appended, each with one ``write``."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
import weakref
from collections.abc import Mapping
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
#: Seconds between two looks whether the file is still there.
_LOOK: Final = 0.1
_ALL: Final[Mapping[str, Exception]] = {}


class JSONLine(NamedTuple):
    """One line, newline included, and the step that it is of."""

    step: int | None
    data: bytes

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return _LINE + len(self.data)


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
        self._is_file = True
        #: a line that may be there in part
        self._torn: bytes | None = None
        #: a pipe, or a line of somebody else, was left in the middle of a line, which can only be ended
        self._unended = False
        #: when to see whether the file is still there, by ``time.monotonic``
        self._look = 0.0

    @property
    def path(self) -> Path | None:
        """The file; setting it says what the run is called, too."""
        return self._path

    @path.setter
    def path(self, path: Path) -> None:
        self._path, self.name = path, str(path)

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
        self.fd, self.begun = fd, True
        self._close = weakref.finalize(self, os.close, fd)
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        if self._is_file:  # a pipe cannot be asked
            self._mend(fd)
        return fd

    def write(self, line: JSONLine) -> Mapping[str, Exception]:
        """See :meth:`loggers._backlog.Sink.write`."""
        fd = self.fd
        if fd is None or time.monotonic() > self._look:
            fd = self._checked()
        data = b"\n" + line.data if self._unended else line.data
        try:
            while data:
                data = data[os.write(fd, data) :]  # one call, except on a full disk
        except BaseException as error:
            if self._is_file:
                self._torn = line.data
                if isinstance(error, OSError):
                    with contextlib.suppress(OSError):  # it may let go of nothing now: before the next line, then
                        self._mend(fd)
                self.close()  # when the disk comes back, this descriptor may still know nothing of it
            else:
                self._unended = True
            raise
        self._unended = False
        return _ALL

    def _checked(self) -> int:
        """Return the descriptor of the file that is there: what goes into a removed one, nobody will read."""
        fd = self.begin()
        if self._is_file and not os.fstat(fd).st_nlink:
            self.close()
            fd = self.begin()
        self._look = time.monotonic() + _LOOK
        return fd

    def _mend(self, fd: int) -> None:
        """Have the file end with a whole line: one that is there in part goes, for no verb has returned from it."""
        size = at = os.fstat(fd).st_size
        tail = b""
        while at and b"\n" not in tail:
            length = min(_BLOCK, at)
            at -= length
            tail = os.pread(fd, length, at) + tail
        tail = tail.rpartition(b"\n")[2]
        if tail:
            is_torn = _is_ours(tail) and not _is_whole(tail) if self._torn is None else self._torn.startswith(tail)
            if is_torn:
                os.ftruncate(fd, size - len(tail))
            else:
                self._unended = True  # others write here, too
        self._torn = None

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
