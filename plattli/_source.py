"""Where a run's files are read from: a folder, or an archive with the same files in it.

Both hand out :class:`Blob`, random access to the bytes of one file. Files are named by what the
manifest says, which was checked to stay inside the run (:func:`plattli._format.check_name`).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Literal, Protocol

from plattli._format import ARCHIVE, MANIFEST, METRIC_DIR, run_name
from plattli.errors import CorruptRunError, MissingFileError, NotARunError, PlattliError, ReaderClosedError

_HEADER_MAGIC = b"PK\x03\x04"
_HEADER_SIZE = 30  # ends with the lengths of name and extra field, which follow it
_ENCRYPTED = 1  # flag bit
#: What zipfile raises for archives that are damaged, encrypted or packed by other methods.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError, struct.error)
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


class Blob(Protocol):
    """The bytes of one file.

    Attributes:
        size: how many there are.
        file: tells the file from others that had its name before, while they are there; ``None`` if a name
            always means the same bytes.
    """

    size: int
    file: object

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on; fewer if the file has become shorter."""


class Source(Protocol):
    """The files of one run."""

    kind: Literal["dir", "zip"]

    @property
    def root(self) -> Path | str:
        """Where it is: a path, or a URL."""

    def open(self, file: str) -> AbstractContextManager[Blob]:
        """Give random access to one file for the length of a ``with`` block.

        Raises:
            MissingFileError: there is no such file.
            CorruptRunError: it is not something that can be read.
            ReaderClosedError: the source was closed.
        """

    def read(self, file: str) -> bytes:
        """Return a whole file. Raises what :meth:`open` raises."""

    def manifest(self) -> tuple[object, bytes]:
        """Return the manifest, and what :meth:`stamp` returns of it. Raises what :meth:`open` raises."""

    def stamp(self) -> object:
        """Return something that changes whenever the manifest does, ``None`` if there is none."""

    def successor(self) -> Archive | None:
        """Open the archive that this folder was turned into, ``None`` if it was not."""

    def close(self) -> None:
        """Let go of what is held open."""


class Extent:
    """A stretch of an open file, read by ``pread(length, offset)``."""

    def __init__(self, pread: Callable[[int, int], bytes], start: int, size: int, file: object = None) -> None:
        self.size = size
        self.file = file
        self._pread = pread
        self._start = start

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.size - offset))  # behind a stretch, others begin
        data = self._pread(length, self._start + offset)
        if len(data) == length or not data:
            return data
        pieces = [data]  # one call returns at most 2 GiB
        while data and (length := length - len(data)):
            offset += len(data)
            data = self._pread(length, self._start + offset)
            pieces.append(data)
        return b"".join(pieces)


class Unpacked:
    """A compressed member, unpacked as a whole."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.file: object = None
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


class Folder:
    """The metric folder of a run that is live, or finished without an archive."""

    kind: Literal["dir", "zip"] = "dir"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._manifest = os.path.join(root, MANIFEST)

    @contextmanager
    def open(self, file: str) -> Iterator[Blob]:
        """See :meth:`Source.open`."""
        path = os.path.join(self.root, file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            raise MissingFileError(f"run {run_name(self.root)!r} has no file {path}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptRunError(f"{path} of run {run_name(self.root)!r} is not a file")
            yield Extent(partial(os.pread, descriptor), 0, status.st_size, (status.st_dev, status.st_ino))
        finally:
            os.close(descriptor)

    def read(self, file: str) -> bytes:
        """See :meth:`Source.read`."""
        with self.open(file) as blob:
            return blob.read(0, blob.size)

    def manifest(self) -> tuple[object, bytes]:
        """See :meth:`Source.manifest`."""
        try:
            descriptor = os.open(self._manifest, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return self.stamp(), self.read(MANIFEST)  # says what is wrong
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None, self.read(MANIFEST)
            data = Extent(partial(os.pread, descriptor), 0, status.st_size).read(0, status.st_size)
        finally:
            os.close(descriptor)
        return _stamp_of(status), data

    def stamp(self) -> object:
        """See :meth:`Source.stamp`. Writers replace the manifest, they never edit it."""
        try:
            # network file systems make sure that a file is current when it is opened, not for a stat
            descriptor = os.open(self._manifest, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return _stamp_of(status)

    def close(self) -> None:
        """Nothing is held open between calls."""

    def successor(self) -> Archive | None:
        """See :meth:`Source.successor`."""
        return Archive.at(self.root.parent / ARCHIVE) if self.root.name == METRIC_DIR else None


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Bundle:
    """A zip with the files of a metric folder at its top level, an immutable snapshot, wherever it is."""

    kind: Literal["dir", "zip"] = "zip"

    def __init__(self, root: Path | str, file: Path | IO[bytes]) -> None:
        """Read the table of contents.

        Args:
            root: what to call it.
            file: the zip.

        Raises:
            NotARunError: no such file, not a zip, or one without a manifest.
        """
        self.root = root
        try:
            self._zip: zipfile.ZipFile | None = zipfile.ZipFile(file)
        except PlattliError:  # from a server
            raise
        except _UNREADABLE as error:
            raise NotARunError(f"not a plattli archive: {root} ({error})") from error
        if MANIFEST not in self._zip.namelist():
            self.close()
            raise NotARunError(f"not a plattli archive: {root} has no {MANIFEST}")

    def read(self, file: str) -> bytes:
        """See :meth:`Source.read`."""
        archive, member = self._member(file)
        try:
            return archive.read(member)
        except PlattliError:  # from a server
            raise
        except _UNREADABLE as error:
            raise CorruptRunError(f"cannot unpack {file} of {self.root}: {error}") from error

    def _member(self, file: str) -> tuple[zipfile.ZipFile, zipfile.ZipInfo]:
        if self._zip is None:
            raise ReaderClosedError(f"the reader of run {run_name(self.root)!r} was closed: open a new one")
        try:
            return self._zip, self._zip.getinfo(file)
        except KeyError as error:
            raise MissingFileError(f"run {run_name(self.root)!r} has no {file} in {self.root}") from error

    def manifest(self) -> tuple[object, bytes]:
        """See :meth:`Source.manifest`."""
        return self.stamp(), self.read(MANIFEST)

    def stamp(self) -> object:
        """See :meth:`Source.stamp`."""
        return self.root

    def successor(self) -> None:
        """See :meth:`Source.successor`: nothing replaces an archive."""
        return

    def close(self) -> None:
        """Close the file; what was read before stays."""
        if self._zip is not None:
            self._zip.close()
            self._zip = None


class Archive(Bundle):
    """An archive in a file.

    Stored members, which is what writers write, are read in place; others are unpacked on each use.
    Checksums are verified for the manifest, the config and unpacked members only: columns in a
    folder have none either, and verifying would cost a read of the whole column.
    """

    root: Path

    def __init__(self, root: Path) -> None:
        """Open an archive.

        Raises:
            NotARunError: no such file, not a zip, or one without a manifest.
        """
        super().__init__(root, root)

    @classmethod
    def at(cls, path: Path) -> Archive | None:
        """Open the archive at ``path``, ``None`` if there is none."""
        try:
            return cls(path) if path.is_file() else None
        except NotARunError:
            return None

    @contextmanager
    def open(self, file: str) -> Iterator[Blob]:
        """See :meth:`Source.open`."""
        archive, member = self._member(file)
        if is_stored(member):
            descriptor = archive.fp.fileno()  # type: ignore[union-attr]  # open, as _member checked
            pread = partial(os.pread, descriptor)
            start = data_start(pread, os.fstat(descriptor).st_size, member, self.root)
            yield Extent(pread, start, member.file_size)
        else:
            yield Unpacked(self.read(file))


def is_stored(member: zipfile.ZipInfo) -> bool:
    """Return whether a member's bytes stand in the archive as they are."""
    return member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & _ENCRYPTED


def data_start(
    pread: Callable[[int, int], bytes], end_of_file: int, member: zipfile.ZipInfo, where: Path | str
) -> int:
    """Return where the data of an archive's member begin.

    The central directory says where the member's header is, and only that header how long it is.

    Args:
        pread: reads the archive: ``pread(length, offset)``.
        end_of_file: the size of the archive.
        member: as the central directory has it.
        where: the archive, for the message.

    Raises:
        CorruptRunError: there is no such header, or the archive ends before the data do.
    """
    at = member.header_offset
    header = pread(_HEADER_SIZE, at) if 0 <= at < end_of_file else b""
    if len(header) < _HEADER_SIZE or not header.startswith(_HEADER_MAGIC):
        raise CorruptRunError(f"{member.filename} has no header where {where} says it is")
    start: int = at + _HEADER_SIZE + sum(struct.unpack("<HH", header[-4:]))
    if start + member.file_size > end_of_file:
        raise CorruptRunError(f"{where} ends before its member {member.filename} does")
    return start
