"""Event files: records with checksums, appended to a file that TensorBoard follows.

::

    file   = record*                                    events.out.tfevents.<seconds>.<host>.<pid>
    record = length (u64) crc(length) event crc(event)  little-endian, CRC-32C, masked

One record is one ``write`` to a file opened for appending, so a reader never sees half of one for
long, threads never mix theirs, and after ``kill -9`` everything that was written is there. A reader
stops for good at a damaged record; so a file whose last write failed is left alone, and the next
record opens a new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from adapters import _require
from adapters.backends import _tfproto

_NAME: Final = re.compile(r"tfevents\.(\d+)")
#: Sorts before every other event file, so that a reader meets it first.
_FIRST: Final = "events.out.tfevents.0000000000."
#: Seconds between two looks whether the file is still there.
_LOOK: Final = 0.1
_length = struct.Struct("<Q")
_crc_pair = struct.Struct("<I")


class _Framer(Protocol):
    def __call__(self, event: bytes, /) -> bytes: ...


def _crc32c(who: str) -> Callable[[bytes], int]:
    value: Callable[[bytes], int] = _require.require("google_crc32c", extra="tensorboard", who=who).value
    return value


def framer(crc: Callable[[bytes], int]) -> _Framer:
    """Return the function that makes a record of an event.

    Args:
        crc: CRC-32C of bytes.
    """
    length, pair = _length.pack, _crc_pair.pack

    def checked(data: bytes) -> bytes:
        check = crc(data)
        # masked, as records have it, so that data may hold checksums of its own
        return data + pair((check >> 15 | check << 17) + 0xA282EAD8 & 0xFFFF_FFFF)

    @lru_cache(maxsize=4096)  # rows of one shape have one length
    def head(size: int) -> bytes:
        return checked(length(size))

    return lambda event: head(len(event)) + checked(event)


def event_files(directory: str) -> list[str]:
    """Return the names of the files in ``directory`` that TensorBoard would read, in its order."""
    try:
        return sorted(name for name in os.listdir(directory) if "tfevents" in name)
    except FileNotFoundError:
        return []


def process_files(directory: str) -> list[str]:
    """Return :func:`event_files` less those that :func:`replace_first_file` wrote."""
    return [name for name in event_files(directory) if not name.startswith(_FIRST)]


def read_span(path: str, start: int, end: int, *, who: str) -> list[bytes] | None:
    """Return the events in the bytes ``start .. end`` of an event file.

    Returns:
        The events, or ``None`` if the file is gone, too short, or damaged there.
    """
    try:
        with open(path, "rb") as file:
            events = [event for _, event in _records(file, start, end, framer(_crc32c(who)))]
    except FileNotFoundError:
        return None
    return events if sum(len(event) + 16 for event in events) == end - start else None


def hide(path: str, start: int, end: int | None, unwanted: Callable[[bytes], bool], *, who: str) -> None:
    """Make readers pass over some events, in place: every record stays where it is, with the size it has.

    A tail that is torn or damaged is left alone, as readers leave it alone. No file, nothing to do.

    Args:
        path: the event file.
        start, end: the bytes to look at; ``None`` is the end of the file.
        unwanted: whether to hide an event; asked one event at a time.
        who: who asks, for the message if a package is missing.

    Raises:
        OSError: the disk refused it.
    """
    frame = framer(_crc32c(who))
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file, contextlib.ExitStack() as stack:
        fd = -1
        for at, event in _records(file, start, end, frame):
            if unwanted(event):
                if fd < 0:  # a file with nothing to hide may well be one that we must not write
                    fd = os.open(path, os.O_WRONLY)
                    stack.callback(os.close, fd)
                os.pwrite(fd, frame(_tfproto.hidden(event)), at)


def _records(file: BinaryIO, start: int, end: int | None, frame: _Framer) -> Iterator[tuple[int, bytes]]:
    """Yield where each record begins and its event, up to ``end`` or the first record that is not whole."""
    size = os.fstat(file.fileno()).st_size
    end = size if end is None else min(end, size)
    file.seek(start)
    while start + 16 <= end:
        head = file.read(12)
        size = int.from_bytes(head[:8], "little")
        if start + size + 16 > end:
            return
        event, check = file.read(size), file.read(4)
        if frame(event) != head + event + check:
            return
        yield start, event
        start += size + 16


def replace_first_file(directory: str, name: str, events: Iterable[bytes], *, who: str) -> None:
    """Write a small event file in one step: a reader sees the old one or the new one, complete.

    Args:
        directory: the run.
        name: what to call it; it sorts before the other event files.
        events: what it holds, after the version.
        who: who asks, for the message if a package is missing.
    """
    frame = framer(_crc32c(who))
    target = os.path.join(directory, _FIRST + name)
    # TensorBoard reads whatever has "tfevents" in its name, so the draft must not
    os.makedirs(directory, exist_ok=True)
    draft = os.path.join(directory, f".{name}.{os.getpid()}")
    data = b"".join(map(frame, (_tfproto.version_event(time.time()), *events)))
    try:
        Path(draft).write_bytes(data)
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


class EventWriter:
    """Appends events to one run directory.

    The first record opens the file. A process opens a file of its own, named so that it sorts behind
    every other one of the directory, because that is the order in which TensorBoard reads. When somebody has
    removed its file, it goes on in another one, with a warning.

    Args:
        directory: the run; made with the first record.
        ahead: events to write ahead of that first record.
        who: who asks, for the message if a package is missing.

    Raises:
        ImportError: ``google-crc32c`` is not installed.
    """

    def __init__(self, directory: str, *, ahead: Iterable[bytes] = (), who: str = "EventWriter") -> None:
        self._frame = framer(_crc32c(who))
        self._who = who
        self._look = 0.0  # when to see whether the file is still there, by time.monotonic
        self._directory = directory
        self._ahead = [*ahead]
        self._close: weakref.finalize[..., EventWriter] | None = None
        self._fd = -1
        #: [name, bytes of whole records] of each file, oldest first.
        self.files: list[tuple[str, int]] = []
        self._name = ""
        self._size = 0

    def write(self, event: bytes) -> tuple[int, int]:
        """Append one encoded event, in one system call.

        Returns:
            The :meth:`position` before it.

        Raises:
            OSError: the disk refused it. The event is not in the file, and the next one goes to a
                new file.
        """
        if (now := time.monotonic()) >= self._look:
            self._look = now + _LOOK
            self._check_file()
        at = len(self.files), self._size
        if self._fd < 0:
            self.open((event,))
            return at
        record = self._frame(event)
        size = len(record)
        try:
            done = os.write(self._fd, record)
            if done < size:
                _put(self._fd, record[done:])
        except BaseException:
            self.close()  # half a record may be there, behind which no reader would look
            raise
        self._size += size
        return at

    def _check_file(self) -> None:
        if self._fd < 0 or (there := os.fstat(self._fd)).st_nlink:
            return
        # some file systems count no links
        path = os.path.join(self._directory, self._name)
        if not os.path.exists(path) or not os.path.samestat(there, os.stat(path)):
            self.close()
            warnings.warn(
                f"{self._who}: {path} has been removed, and what it held is gone; the run goes on in a new file",
                RuntimeWarning,
                stacklevel=5,
            )

    def open(self, events: Iterable[bytes] = ()) -> None:
        """Open the next file, with ``events`` behind those that were to go ahead of the first one.

        Raises:
            OSError: the disk refused it. No file is left behind.
        """
        self.close()
        os.makedirs(self._directory, exist_ok=True)
        name = _next_name(self._directory)
        path = os.path.join(self._directory, name)
        data = b"".join(map(self._frame, (_tfproto.version_event(time.time()), *self._ahead, *events)))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        try:
            _put(fd, data)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        self._ahead = []
        self._name, self._size = name, len(data)
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)

    def position(self) -> tuple[int, int]:
        """Return where the next record will begin: which file of :attr:`spans`, and at which byte."""
        return len(self.files), self._size

    def spans(self, since: tuple[int, int]) -> list[tuple[str, int, int]]:
        """Return file name, first and last byte of all that was written after ``since``."""
        number, start = since
        files = [*self.files, (self._name, self._size)] if self._fd >= 0 else self.files
        spans = [(name, 0, size) for name, size in files[number:]]
        if spans:
            spans[0] = (spans[0][0], start, spans[0][2])
        return spans

    def close(self) -> None:
        """Close the file. A later record opens a new one."""
        if self._close is not None and self._fd >= 0:
            self.files.append((self._name, self._size))
            self._fd, self._size = -1, 0
            self._close()


def _put(fd: int, data: bytes) -> None:
    done = os.write(fd, data)
    while done < len(data):
        # a nearly full disk or a signal: the rest, or the error that explains it
        done += os.write(fd, data[done:])


def _next_name(directory: str) -> str:
    newest = max(map(int, _NAME.findall(" ".join(event_files(directory)))), default=0)
    # the clock may stand still, or be another machine's; the order of the names must not
    seconds = max(int(time.time()), newest + 1)
    return f"events.out.tfevents.{seconds:010d}.{os.uname().nodename}.{os.getpid()}"
