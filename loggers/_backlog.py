"""What the disk did not take: kept in memory, in order, until it does.

A full disk, an I/O error or a directory that is gone for a while must not end a training. While one lasts, a
:class:`Backlog` stands between a logger and the :class:`Sink` of its lines. There is one mechanism for all loggers;
a sink says how its lines are written.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from loggers.errors import LoggerError, PathError, UnwrittenError

#: Bytes of memory that waiting lines may take, where nobody says otherwise.
BACKLOG: Final = 64_000_000
#: Seconds between two tries to write: at first, and at most.
_FIRST, _LAST = 0.05, 5.0
#: What is wrong with a path itself; a disk that is full, read-only or away says something else.
_PATH: Final = frozenset((errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL))


class Line(Protocol):
    """One line on its way to a file.

    Attributes:
        step: its step, ``None`` if it has none.
        size: bytes that it takes in memory; may be generous.
    """

    @property
    def step(self) -> int | None: ...
    @property
    def size(self) -> int: ...


L = TypeVar("L", bound=Line)


class Sink(ABC, Generic[L]):
    """The files that a logger's lines go to.

    It does not refer to its logger, and so outlives one that is dropped, or the main program: what waits then is
    tried once more.

    Attributes:
        name: the run's name, for messages.
        mutex: held by whoever uses the sink.
        backlog: what waits, while the disk takes nothing; else ``None``.
        begun: whether the files were ever open: :meth:`begin` says so.
    """

    def __init__(self, owner: object, name: str, limit: int) -> None:
        """Write nothing yet.

        Args:
            owner: the logger.
            name: the run's name.
            limit: bytes of memory that waiting lines may take.
        """
        self.owner = weakref.ref(owner)
        self.name = name
        self.limit = limit
        self.mutex = threading.RLock()
        self.backlog: Backlog[L] | None = None
        self.begun = False

    @abstractmethod
    def begin(self) -> object:
        """Open what is not open. Raises what the disk says."""

    def complete(self) -> None:
        """Save what waits beside lines, such as params. Raises what the disk says."""

    def waits_beside(self) -> bool:
        """Tell whether something waits that is no line."""
        return False

    @abstractmethod
    def write(self, line: L) -> Mapping[str, Exception]:
        """Write a line; return what of it could not be stored, by metric. Raises what the disk says."""

    def is_outage(self, error: BaseException) -> bool:
        """Tell whether an error says that the disk failed, rather than that the call, or the path, was wrong."""
        if not isinstance(error, OSError) or isinstance(error, LoggerError):
            return False
        # a path that has worked, or is waited for by now, does not end a training
        return self.begun or self.backlog is not None or _wrong_path(error) is None

    def check(self, error: Exception) -> None:
        """Raise an error that is none of the disk's.

        Raises:
            PathError: the path is wrong, so that no waiting would mend it.
        """
        if self.is_outage(error):
            return
        if isinstance(error, OSError) and (wrong := _wrong_path(error)) is not None:
            raise PathError(
                f"run {self.name!r} can never be written: {wrong}; give the logger another path, or move away what "
                f"is in its place"
            ) from error
        raise error

    def open(self) -> None:
        """Call :meth:`begin`, and let lines wait if the disk takes nothing."""
        if self.backlog is None:
            try:
                self.begin()
            except Exception as error:
                self.wait(error)

    def store(self, line: L) -> Mapping[str, Exception]:
        """Write a line, or have it wait; see :meth:`write`.

        Raises:
            UnwrittenError: memory is used up. The line was not kept.
        """
        backlog = self.backlog
        if backlog is None:
            try:
                return self.write(line)
            except Exception as error:
                backlog = self.wait(error)
        return backlog.append(line)

    def wait(self, error: Exception) -> Backlog[L]:
        """Let lines wait until the disk takes them; raise an error that is none of the disk's."""
        self.check(error)
        if self.backlog is None:
            self.backlog = Backlog(self, error)
        return self.backlog


class Backlog(Generic[L]):
    """Lines that wait for the disk. Not thread-safe: the sink's mutex is held around every call."""

    def __init__(self, sink: Sink[L], error: Exception) -> None:
        """Begin to keep; ``error`` is what the disk said."""
        #: what the disk said the last time
        self.error = _without_frames(error)
        #: lines that were written by now
        self.written = 0
        self._sink = sink
        self._lines: deque[L] = deque()
        self._bytes = 0
        self._pause = _FIRST
        self._again = time.monotonic() + _FIRST
        self._process = os.getpid()
        self._end: weakref.finalize[..., object] | None = None
        self._told = self._over = False
        self._watch()

    def __len__(self) -> int:
        """Return how many lines wait."""
        return len(self._lines)

    def __iter__(self) -> Iterator[L]:
        """Go through the lines that wait, the oldest first."""
        return iter(self._lines)

    def announce(self) -> None:
        """Say once that things wait. To be called when they do: where warnings are errors, they wait all the same."""
        if not self._told:
            self._told = True
            warn(
                f"run {self._sink.name!r}: the disk takes nothing ({_said(self.error)}); lines wait in memory, up to "
                f"{self._sink.limit / 1e6:g} MB of them, and are written when it does"
            )

    def append(self, line: L) -> Mapping[str, Exception]:
        """Write a line if the disk takes it by now, else keep it; see :meth:`Sink.store`."""
        self._lines.append(line)
        self._bytes += line.size
        is_full = self._bytes > self._sink.limit
        if is_full or time.monotonic() >= self._again:
            try:
                unfit = self._write(line)
            except BaseException:
                self._take_back(line)
                raise
            if unfit is not None:
                return unfit
        if is_full:
            self._take_back(line)
            at = "without a step" if line.step is None else f"at step {line.step}"
            waiting = f", {len(self):,} lines wait in memory, and it takes no more" if self._lines else ""
            raise UnwrittenError(
                f"run {self._sink.name!r}: the disk takes nothing ({_said(self.error)}){waiting}: "
                f"the line {at} was not logged; make room, or end the training"
            )
        self.announce()
        return {}

    def _take_back(self, line: L) -> None:
        if self._lines and self._lines[-1] is line:
            self._lines.pop()
            self._bytes -= line.size

    def retry(self, *, only_if_due: bool = False) -> bool:
        """Write what waits, as much of it as the disk takes; tell whether that was all of it."""
        if only_if_due and time.monotonic() < self._again:
            return False
        return self._write(None) is not None

    def _write(self, newest: L | None) -> Mapping[str, Exception] | None:
        """Write what waits.

        Returns:
            What could not be stored of the newest line, which its caller tells; ``None`` if not all was written.
        """
        unfit: Mapping[str, Exception] = {}
        try:
            self._sink.begin()
            while self._lines:
                line = self._lines[0]
                unfit = self._sink.write(line)
                self._lines.popleft()
                self._bytes -= line.size
                if line is not newest:
                    self.written += 1
                    self._tell(line, unfit)
            self._sink.complete()
        except Exception as error:
            if not self._sink.is_outage(error):
                raise
            self.error = _without_frames(error)
            self._pause = min(2 * self._pause, _LAST)
            self._again = time.monotonic() + self._pause
            self._watch()
            return None
        self._sink.backlog = None
        if self._end is not None:
            self._end.detach()
        if self._told:
            warn(f"run {self._sink.name!r}: the disk takes lines again; the {self.written} that waited are written")
        return unfit if newest is not None else {}

    def describe(self) -> str:
        """Return what is missing, and why."""
        waiting = f"{self._count()} wait in memory" if self._lines else "nothing but params or tags waits in memory"
        return f"run {self._sink.name!r}: the disk takes nothing ({_said(self.error)}); {waiting}"

    def _count(self) -> str:
        steps = [line.step for line in self._lines if line.step is not None]
        span = f" (steps {min(steps)} to {max(steps)})" if steps else ""
        return f"{len(self._lines)} line{'s' if len(self._lines) > 1 else ''}{span}"

    # ---- when nobody will log any more ----------------------------------------------------------------

    def _watch(self) -> None:
        """Have :meth:`_try_for_the_last_time` called when the logger goes, or the interpreter."""
        if self._end is not None:
            self._end.detach()
        # finalizers are called newest first: each try may have opened files, and this is to come before their end
        owner = self._sink.owner()
        self._end = None if self._over or owner is None else weakref.finalize(owner, self._try_for_the_last_time)

    def _try_for_the_last_time(self) -> None:
        if self._process != os.getpid():
            return  # a fork's copy: the lines are the parent's
        self._over = True
        with self._sink.mutex:
            if not self._anything():
                return  # whoever logged it has got the error
            try:
                if self.retry():
                    return
                reason = f"the disk takes nothing ({_said(self.error)})"
            except Exception as error:  # whatever it is: nobody is left to get it, but to be told
                reason = repr(error)
            if self._anything():
                what = self._count() if self._lines else "params or tags"
                warn(f"run {self._sink.name!r}: {what} lost: {reason}")

    def _anything(self) -> bool:
        return bool(self._lines) or self._sink.waits_beside()

    def _tell(self, line: L, unfit: Mapping[str, Exception]) -> None:
        for name, error in unfit.items():
            warn(f"run {self._sink.name!r}: {name} at step {line.step} is not stored: {error}")


def warn(message: str) -> None:
    """Warn whoever has called a logger, from however deep inside of it."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("loggers."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def _wrong_path(error: OSError) -> str | None:
    """Return what is wrong with a path, whatever becomes of its disk; ``None`` if that is not what was said."""
    if error.filename is None:
        return None
    if error.errno == errno.EEXIST:
        try:
            is_folder = stat.S_ISDIR(os.stat(error.filename).st_mode)
        except OSError as why:  # a link: to itself, or to a disk that is away
            return _wrong_path(why)
        return None if is_folder else f"{error.filename} is a file, and a folder has to be there"
    return str(error) if error.errno in _PATH else None


def _without_frames(error: Exception) -> Exception:
    """Forget where an error came from: frames hold the logger, which would never go."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _said(error: BaseException) -> str:
    cause: Any = error.__cause__
    return str(cause if isinstance(cause, OSError) else error)
