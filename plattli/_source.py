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
from typing import IO, Literal, Protocol, cast

from plattli._directory import Member, RandomAccess, data_start, is_another, members
from plattli._format import ARCHIVE, MANIFEST, METRIC_DIR, run_name
from plattli.errors import CorruptRunError, MissingFileError, NotARunError, PlattliError, ReaderClosedError

#: What zipfile raises for archives that are damaged, encrypted or packed by other methods.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError, struct.error)
#: How much of a file is in memory at once when it goes somewhere else.
_PIECE = 1 << 20
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
    """A zip with the files of a metric folder at its top level, an immutable snapshot, wherever it is.

    Stored members, which is what writers write, are read in place; others are unpacked on each use.
    """

    kind: Literal["dir", "zip"] = "zip"

    def __init__(self, root: Path | str, file: RandomAccess) -> None:
        """Read the directory.

        Args:
            root: what to call it.
            file: the zip, which is closed with the bundle, or if there is an error.

        Raises:
            NotARunError: not a zip, or one without a manifest.
        """
        self.root = root
        self._file: RandomAccess | None = file
        self._members: dict[str, Member] = {}
        self._zip: zipfile.ZipFile | None = None
        try:
            self._members, self._zip = members(file)
            if MANIFEST not in self._members:
                raise NotARunError(f"not a plattli archive: {root} has no {MANIFEST}")
        except BaseException as error:
            self.close()
            if isinstance(error, _UNREADABLE) and not isinstance(error, PlattliError):
                raise NotARunError(f"not a plattli archive: {root} ({error})") from error
            raise

    def files(self) -> list[str]:
        """Return the names of all files, and of folders that are members of their own: these end in a slash."""
        return list(self._members)

    def read(self, file: str) -> bytes:
        """See :meth:`Source.read`. Checksums are verified."""
        return b"".join(self.pieces(file, max(1, self._member(file)[1].size)))

    def pieces(self, file: str, size: int = _PIECE) -> Iterator[bytes]:
        """Yield a file in pieces of a size. At the end its checksum is verified. Raises what :meth:`open` raises."""
        archive, member = self._member(file)
        if member.packed is None:
            extent = Extent(archive.pread, data_start(archive, member, self.root), member.size)
            crc = 0
            for at in range(0, member.size, size):
                piece = extent.read(at, size)
                crc = zlib.crc32(piece, crc)
                yield piece
            if crc != member.crc:
                raise is_another(member, self.root)
            return
        try:
            with cast(zipfile.ZipFile, self._zip).open(member.packed) as unpacked:
                while piece := unpacked.read(size):
                    yield piece
        except PlattliError:  # from a server
            raise
        except _UNREADABLE as error:
            raise CorruptRunError(f"cannot unpack {file} of {self.root}: {error}") from error

    def _member(self, file: str) -> tuple[RandomAccess, Member]:
        if self._file is None:
            raise ReaderClosedError(f"the reader of run {run_name(self.root)!r} was closed: open a new one")
        try:
            return self._file, self._members[file]
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
        if self._file is not None:
            self._file.close()
            self._file = None


class _LocalFile:
    """A file that is held open."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a file", str(path))

    def pread(self, length: int, offset: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def stream(self) -> IO[bytes]:
        return open(self._descriptor, "rb", closefd=False)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # there was such a file
            self.close()


class Archive(Bundle):
    """An archive in a file.

    Checksums are verified for the manifest, the config and unpacked members only: columns in a
    folder have none either, and verifying would cost a read of the whole column.
    """

    root: Path

    def __init__(self, root: Path) -> None:
        """Open an archive.

        Raises:
            NotARunError: no such file, not a zip, or one without a manifest.
        """
        try:
            file = _LocalFile(root)
        except OSError as error:
            raise NotARunError(f"not a plattli archive: {root} ({error})") from error
        super().__init__(root, file)

    @classmethod
    def at(cls, path: Path) -> Archive | None:
        """Open the archive at ``path``, ``None`` if there is none."""
        try:
            return cls(path)
        except NotARunError:
            return None

    @contextmanager
    def open(self, file: str) -> Iterator[Blob]:
        """See :meth:`Source.open`."""
        archive, member = self._member(file)
        if member.packed is None:
            yield Extent(archive.pread, data_start(archive, member, self.root), member.size)
        else:
            yield Unpacked(self.read(file))
