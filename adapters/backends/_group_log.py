"""The log of a metrics group: a file that only grows, one write for each call, and is cut only by a resume."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from adapters.backends._group_events import Batch, CorruptGroupError
from loggers.errors import RunLockedError

try:
    import fcntl
except ImportError:  # no POSIX locks on this platform
    fcntl = None  # type: ignore[assignment]

FILE_NAME: Final = "metrics.jsonl"
#: Bytes of lines that are in memory, as columns, at once.
BATCH: Final = 1 << 25
#: Bytes that are read and parsed at once.
_PIECE: Final = 1 << 22


class Log:
    """The log, opened to be written. It is locked until :meth:`close`, or the end of the process.

    A line that a dead process left half-written is cut off. A write that fails leaves nothing behind.

    Attributes:
        path: the file.
        size: bytes of complete lines.
        is_open: it can be written.
        is_forked: it cannot, because this process is a fork of the one that opened it.
    """

    _open: Final[weakref.WeakSet[Log]] = weakref.WeakSet()

    def __init__(self, folder: Path) -> None:
        """Open the log in ``folder``, which exists.

        Raises:
            RunLockedError: another live logger writes it.
            OSError: the disk refused it.
        """
        self.path = folder / FILE_NAME
        self.is_open, self.is_forked = True, False
        self._dirty = False  # there may be something behind the complete lines
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            self._lock()
            self.size = complete_size(self._fd)
            self.cut(self.size)
        except BaseException:
            self._close()
            raise
        self._open.add(self)

    def append(self, lines: bytes) -> None:
        """Write complete lines.

        Raises:
            OSError: the disk refused them; none of them is there.
        """
        if self._dirty:
            self.cut(self.size)
        self._dirty = True
        size = self.size + len(lines)
        try:
            while (written := os.write(self._fd, lines)) < len(lines):  # a full disk takes some; the next write says so
                lines = lines[written:]
        except OSError:
            with contextlib.suppress(OSError):
                self.cut(self.size)
            raise
        self.size, self._dirty = size, False

    def cut(self, size: int) -> None:
        """Take everything behind ``size`` bytes away.

        Raises:
            OSError: the disk refused it.
        """
        self._dirty = True
        if os.fstat(self._fd).st_size > size:
            os.ftruncate(self._fd, size)
        self._dirty = False
        self.size = size

    def ends_line(self, size: int) -> bool:
        """Return whether a line ends at ``size`` bytes."""
        return size == 0 or (size <= self.size and os.pread(self._fd, 1, size - 1) == b"\n")

    def close(self) -> None:
        """Close the file, and let others write it. Calling it again does nothing."""
        self._open.discard(self)
        self.is_open, self._fd = False, -1  # whoever writes all the same must not hit somebody else's file
        self._close()

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunLockedError(
                f"{self.path} is being written by another logger; finish that one, or write to another directory"
            ) from None
        except OSError as error:  # a file system without locks
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    @classmethod
    def _after_fork_in_child(cls) -> None:
        # the lock belongs to the open file that both processes share: with the child's copy closed it stays
        # the parent's, and falls when that one dies
        for log in list(cls._open):
            log.close()
            log.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Log._after_fork_in_child)


def complete_size(fd: int) -> int:
    """Return how many bytes of the open file are complete lines."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(end - (1 << 16), 0)
        at = os.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def read_log(path: Path, offset: int, line: int, limit: int) -> Iterator[Batch]:
    """Yield what is behind ``offset``, up to the last complete line.

    Args:
        path: the file; there may be none, and it may be shorter.
        offset: where a line begins.
        line: the number of that line, from 0; for messages.
        limit: bytes after which a batch ends.

    Raises:
        CorruptGroupError: ``offset`` is inside a line, or a line is no event.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except FileNotFoundError:
            return
        if offset:
            file.seek(offset - 1)
            before = file.read(1)
            if before != b"\n":
                if not before:
                    return  # the file is shorter: what it had is elsewhere
                raise CorruptGroupError(
                    f"{path}: byte {offset}, up to which its arrays are said to reach, is inside a line; "
                    "the log and the arrays are not of one group: put the right log there, or none"
                )
        batch, rest = Batch(), b""
        while piece := file.read(_PIECE):
            head, newline, tail = piece.rpartition(b"\n")
            if not newline:
                rest += piece
                continue
            batch.read(rest + head + newline, str(path), line + batch.lines)
            rest = tail
            if batch.size >= limit:
                yield batch
                line += batch.lines
                batch = Batch()
        if batch.lines:
            yield batch
