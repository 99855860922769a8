"""Archives behind a URL: ``https``, ``s3``, ``gs``, and whatever else the package ``fsspec`` knows.

Opening one costs its central directory; reading a metric costs the bytes of that metric. A server that
cannot send a part of a file sends all of it: that is kept, and said.
"""

from __future__ import annotations

import importlib
import io
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final, cast

from plattli._directory import HEADER_SIZE, TAIL, Member, data_start, is_another
from plattli._format import HIDDEN_QUERY, JSONL
from plattli._source import Blob, Bundle, Extent, Unpacked
from plattli.errors import NotARunError, RemoteError

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
#: Members up to this size come with their header in one request.
_SMALL: Final = 64 << 10
#: Room for a member's extra field, which may be longer in the header than in the central directory.
_MORE_EXTRA: Final = 64
_GONE: Final = (404, 410)


def is_url(path: object) -> bool:
    """Return whether ``path`` is something for this module rather than for the file system."""
    return isinstance(path, str) and _URL.match(path) is not None


class RemoteArchive(Bundle):
    """An archive behind a URL, an immutable snapshot."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Read the central directory.

        Args:
            url: where the archive is.
            options: for the file system of ``fsspec``: credentials, an endpoint and the like.

        Raises:
            ImportError: the packages for such a URL are not installed; the message names the extra.
            NotARunError: there is nothing, or no archive of a run.
            RemoteError: the server cannot be reached or refuses.
        """
        self._ranges = _RangeFile(url, options or {})
        with self._ranges.keeping():
            super().__init__(self._ranges.shown, self._ranges)
        self._scanned: set[str] = set()

    @contextmanager
    def open(self, file: str) -> Iterator[Blob]:
        """See :meth:`Source.open`."""
        _, member = self._member(file)
        if member.packed is not None:
            yield Unpacked(self.read(file))
            return
        # the lines of JSON are found by looking at all of them, once
        at_once = member.size <= _SMALL or (file.endswith(f".{JSONL}") and file not in self._scanned)
        self._scanned.add(file)
        with self._ranges.held(*_stretch(member, member.size if at_once else 0)):
            yield _Checked(self._ranges, data_start(self._ranges, member, self.root), member)

    def read(self, file: str) -> bytes:
        """See :meth:`Source.read`."""
        _, member = self._member(file)
        with self._ranges.held(*_stretch(member, member.packed.compress_size if member.packed else member.size)):
            return super().read(file)


def _stretch(member: Member, size: int) -> tuple[int, int]:
    """Return where a member's header and the ``size`` bytes behind it are, about."""
    length = HEADER_SIZE + len(member.name) + size
    return member.header, member.header + length + (member.extra + _MORE_EXTRA if size else 0)


class _Checked(Extent):
    """A stored member. Where all of it was read, its checksum costs nothing beside the way it came."""

    def __init__(self, file: _RangeFile, start: int, member: Member) -> None:
        super().__init__(file.pread, start, member.size)
        self._url = file.shown
        self._member = member

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        if len(data) == self.size and zlib.crc32(data) != self._member.crc:
            raise is_another(self._member, self._url)
        return data


class _RangeFile:
    """A file behind a URL, as far as ``zipfile`` needs one; only what is asked for travels."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        #: the URL as it may be shown: without a password, or a signature in its query
        self.shown = _without_secrets(url)
        self._url = url
        self._position = 0
        self._whole: bytes | None = None
        self._held: list[tuple[int, bytes]] = []
        self._keeps = False
        core = _fsspec(self.shown).core
        with self._problems():
            self._fs, self._path = core.url_to_fs(url, **_patient(url, options))
            self._fs.invalidate_cache(self._path)  # somebody else may have listed it long ago
            size = self._fs.info(self._path).get("size")
        if size is None:  # told by nobody but the end of the file
            self._keep_all(self._cat())
        else:
            self.size = int(size)
            at = max(0, self.size - TAIL)
            self._held = [(at, self._fetch(at, self.size) if self.size else b"")]

    # ---- what is asked for

    def pread(self, length: int, offset: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on; fewer at the end of the file."""
        stop = min(offset + length, self.size)
        if not 0 <= offset < stop:  # where a damaged directory led
            return b""
        for start, data in self._held:
            if start <= offset and stop <= start + len(data):
                return data[offset - start : stop - start]
        data = self._fetch(offset, stop)
        if self._keeps:
            self._held.append((offset, data))
        return data

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep whatever comes, for the length of a ``with`` block."""
        before, self._keeps = self._held, True
        self._held = self._held.copy()
        try:
            yield
        finally:
            self._held, self._keeps = before, False

    @contextmanager
    def held(self, start: int, stop: int) -> Iterator[None]:
        """Keep a stretch, which comes in one request, for the length of a ``with`` block."""
        stretch = start, self.pread(stop - start, start)
        self._held.append(stretch)
        try:
            yield
        finally:
            self._held.remove(stretch)

    def _fetch(self, start: int, stop: int) -> bytes:
        if self._whole is not None:
            return self._whole[start:stop]
        data = self._cat(start, stop)
        if len(data) == stop - start:
            return data
        if len(data) == self.size:
            self._keep_all(data)
            return data[start:stop]
        raise RemoteError(
            f"asked {self.shown} for its bytes {start} to {stop - 1} of {self.size}, got {len(data)} bytes: it may "
            f"be changing, or its server not know ranges; try again, or download it"
        )

    def _cat(self, start: int | None = None, stop: int | None = None) -> bytes:
        with self._problems():
            return bytes(self._fs.cat_file(self._path, start=start, end=stop))

    def _keep_all(self, data: bytes) -> None:
        self._whole, self.size = data, len(data)
        warnings.warn(
            f"the server of {self.shown} cannot send a part of a file: all {self.size} bytes were read, and are kept "
            f"until the reader is closed",
            RuntimeWarning,
            stacklevel=2,
        )

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Turn what can go wrong on the way into our errors: each protocol has its own."""
        try:
            yield
        except ImportError as error:  # what this protocol needs, in the words of fsspec
            raise ImportError(
                f"reading {self.shown} needs another package ({error}): pip install 'plattli-loggers[remote]'"
            ) from error
        except Exception as error:
            cause = error.__cause__
            status = getattr(cause, "status", None)
            # the file systems say "not found" of servers that were not found, too
            is_missing = isinstance(error, FileNotFoundError | IsADirectoryError) and (
                status in _GONE if status is not None else not isinstance(cause, OSError)
            )
            if is_missing:
                raise NotARunError(f"there is no file at {self.shown}") from error
            texts = dict.fromkeys(f"{type(e).__name__}: {e}" for e in (error, cause) if e is not None)
            text = "; ".join(texts).replace(self._url, self.shown)
            raise RemoteError(f"cannot read {self.shown}: {text}") from error

    # ---- what zipfile asks for

    def stream(self) -> IO[bytes]:
        """Return itself, as far as ``zipfile`` can tell."""
        return cast(IO[bytes], self)

    def read(self, size: int = -1) -> bytes:
        """See :meth:`io.RawIOBase.read`."""
        data = self.pread(self.size - self._position if size < 0 else size, self._position)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See :meth:`io.IOBase.seek`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to byte {base + offset} of {self.shown}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """See :meth:`io.IOBase.tell`."""
        return self._position

    def seekable(self) -> bool:
        """See :meth:`io.IOBase.seekable`."""
        return True

    def close(self) -> None:
        """Forget what was read; nothing is held open between requests."""
        self._held, self._whole = [], None


def _without_secrets(url: str) -> str:
    if "::" in url:
        return "::".join(map(_without_secrets, url.split("::")))
    if "://" not in url:
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    path, query, _ = path.partition("?")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}{HIDDEN_QUERY if query else ''}"


def _patient(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with what every request for bytes needs."""
    if not url.startswith(("http://", "https://")):
        return dict(options)
    # a server that packs what it sends counts other bytes than we do
    return {**options, "headers": {"Accept-Encoding": "identity", **options.get("headers", {})}}


def _fsspec(url: str) -> Any:
    try:
        return importlib.import_module("fsspec")
    except ModuleNotFoundError as missing:
        # a broken import inside an installed package is its own story
        if missing.name != "fsspec":
            raise
        raise ImportError(
            f"reading {url} needs the package 'fsspec', which is not installed: pip install 'plattli-loggers[remote]'"
        ) from None
