"""The log of a metrics group: a file that only grows, one write for each call, and is cut only by a resume."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable, Iterator
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

    A line that a dead process left half-written is cut off. A write that fails leaves nothing behind. Within one
    process a newer log may take an older one's place, such as that of a logger which an exception left behind.

    Attributes:
        path: the file.
        size: bytes of complete lines.
        is_open: it can be written.
        is_forked: it cannot, because this process is a fork of the one that opened it.
        is_taken: it cannot, because a newer one in this process has taken it over.
    """

    _open: Final[weakref.WeakSet[Log]] = weakref.WeakSet()

    def __init__(self, folder: Path, *, take: bool = True) -> None:
        """Open the log in ``folder``, which exists.

        Args:
            folder: the group's.
            take: take it over from another one in this process.

        Raises:
            RunLockedError: another process writes it, or, without ``take``, this one.
            OSError: the disk refused it.
        """
        self.path = folder / FILE_NAME
        self.is_open, self.is_forked, self.is_taken = True, False, False
        self._dirty = False  # there may be something behind the complete lines
        older = next((log for log in self._open if take and log.is_open and _same(log.path, self.path)), None)
        self._fd = self._locked(self.path) if older is None else older._give()
        self._close = weakref.finalize(self, os.close, self._fd)
        self._open.add(self)
        try:
            self.size = complete_size(self._fd)
            self.cut(self.size)
        except BaseException:
            self.close()
            raise

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

    def keep(self, stays: Callable[[bytes], bool]) -> None:
        """Take lines away, wherever they are; whoever reads the file sees the old one or the new one.

        Args:
            stays: tells whether a line is to stay.

        Raises:
            OSError: the disk refused it; all lines are there.
        """
        partial = self.path.with_name(f"{FILE_NAME}.partial")
        fd = self._locked(partial)
        try:
            os.ftruncate(fd, 0)  # somebody may have died here
            left, size = self.size, 0
            with self.path.open("rb") as old, os.fdopen(os.dup(fd), "wb") as new:
                for line in old:
                    if (left := left - len(line)) < 0:
                        break  # half a line
                    if stays(line):
                        size += new.write(line)
            os.replace(partial, self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        self._close()
        self._fd, self.size, self._dirty = fd, size, False
        self._close = weakref.finalize(self, os.close, fd)

    def check(self) -> None:
        """Look whether the file is still where it was opened.

        Raises:
            FileNotFoundError: it is not.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), os.fstat(self._fd)):
                return
        raise FileNotFoundError(
            errno.ENOENT, "the log was moved or deleted, and what is logged goes after it", str(self.path)
        )

    def ends_line(self, size: int) -> bool:
        """Return whether a line ends at ``size`` bytes."""
        return size == 0 or (size <= self.size and os.pread(self._fd, 1, size - 1) == b"\n")

    def close(self) -> None:
        """Close the file, and let others write it. Calling it again does nothing."""
        self._open.discard(self)
        self.is_open, self._fd = False, -1  # whoever writes all the same must not hit somebody else's file
        self._close()

    def _give(self) -> int:
        """Give the open file away, with its lock."""
        fd, self._fd = self._fd, -1
        self.is_open, self.is_taken = False, True
        self._close.detach()
        self._open.discard(self)
        return fd

    def _locked(self, path: Path) -> int:
        """Open the file, or one to take its place, and lock it."""
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise RunLockedError(
                f"{self.path} is being written by another logger; finish that one, or write to another directory"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                os.close(fd)
                raise
            # a file system without locks
        return fd

    @classmethod
    def _after_fork_in_child(cls) -> None:
        # the lock belongs to the open file that both processes share: with the child's copy closed it stays
        # the parent's, and falls when that one dies
        for log in list(cls._open):
            log.close()
            log.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Log._after_fork_in_child)


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):  # the file of one that was deleted is nobody's
        return os.path.samefile(one, other)
    return False


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
