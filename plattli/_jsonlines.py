"""One JSON value per line: where the lines are, and what is in them.

Lines end with LF, CR or CRLF. JSON escapes control characters, so none of these occurs inside a value.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from plattli._source import Blob

_CHUNK = 1 << 20
#: what is counted in one go stays in the processor's cache
_COUNT_CHUNK = 1 << 18
#: how much of the end of a file is looked at for its last lines: at first, and at most
_NEAR, _FAR = 1 << 12, 1 << 20
_OVERLAP = 64
#: so many bytes ahead of a place tell that lines up to there are those that were counted
_TAIL = 1 << 10
#: so many counts are kept
_MOST = 1 << 10
_LF, _CR = b"\n", b"\r"
_decode = json.JSONDecoder().raw_decode


def parse(line: bytes) -> Any:
    """Return the value of one line.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested too deeply.
    """
    text = line.decode()
    try:
        try:
            value, end = _decode(text)
        except json.JSONDecodeError:
            end = -1
        # the decoder stops where a value ends; whatever surrounds it is for the full parser to judge
        return value if end == len(text) else json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def is_valid(line: bytes) -> bool:
    """Return whether the line is one JSON value."""
    try:
        parse(line)
    except ValueError:
        return False
    return True


def parse_all(data: bytes, first: int = 0) -> list[Any]:
    """Return the value of each line.

    Args:
        data: whole lines.
        first: the number of the first one, for the message.

    Raises:
        ValueError: one of them has none; the message says which.
    """
    values: list[Any] = []
    try:
        values.extend(map(parse, data.splitlines()))
    except ValueError as error:
        raise ValueError(f"row {first + len(values)} is not JSON: {error}") from error
    return values


class _Counted(NamedTuple):
    """How many lines a file has up to a place.

    Attributes:
        of: which file, and under which edition of the manifest.
        lines: how many there are, valid or not.
        end: where the last of them ends.
        tail: the bytes ahead of that.
    """

    of: object
    lines: int = 0
    end: int = 0
    tail: bytes = b""


#: file -> what was counted in it last, for those who open the same run again and again
_counts: dict[Hashable, _Counted] = {}


class LineIndex:
    """Where the lines of a growing file are, found without parsing them.

    A file that was replaced, or is shorter or ends otherwise where it did before, is scanned anew. One that
    was cut and written over to the same bytes at that place is not: make a new index for it.
    """

    def __init__(self, *, counts_first: bool = True, path: Hashable = None, edition: object = None) -> None:
        """Start without knowing anything, but what others have counted.

        Args:
            counts_first: whether :meth:`count` may leave it to a second look to note where the lines are; not
                where reading a file again is slow.
            path: tells files apart, of all runs. ``None`` if nobody else looks at this one.
            edition: changes before something that was in the file may be written over: what was counted under
                another one does not count.
        """
        self._counts_first = counts_first
        self._path = path
        self._edition = edition
        self._counted: _Counted | None = None
        self._forget_offsets()

    def forget(self) -> None:
        """Scan everything anew the next time, and let others do so."""
        self._counted = None
        _counts.pop(self._path, None)
        self._forget_offsets()

    def _forget_offsets(self) -> None:
        self._offsets = np.zeros(1, np.int64)  # where lines begin: at 0 and behind each terminator
        self._scanned = 0
        self._file: object = None
        self._end = b""  # the last bytes that were scanned

    def count(self, blob: Blob) -> tuple[int, int]:
        """Count the lines: those that nobody has counted yet.

        Unless :meth:`update` has noted where they are, this does not either: it takes a fraction of the time.

        Returns:
            How many lines there are, as :meth:`update` has it, and where the last of them ends.
        """
        if not self._counts_first or self._scanned:
            offsets = self.update(blob)
            return len(offsets) - 1, int(offsets[-1])
        counted, scanned = _count(blob, self._known(blob))
        if counted is None:
            offsets = _with_carriage_returns(blob)
            return len(offsets) - 1, int(offsets[-1])
        self._counted = counted
        if self._path is not None and blob.file is not None:
            if len(_counts) >= _MOST:
                _counts.clear()
            _counts[self._path] = counted
        return _without_torn_end(blob, counted, scanned)

    def _known(self, blob: Blob) -> _Counted:
        of = blob.file, self._edition
        known = self._counted or (None if blob.file is None else _counts.get(self._path))
        if known is not None and known.of == of:
            length = len(known.tail)
            if blob.file is None or blob.read(known.end - length, length) == known.tail:
                return known
        return _Counted(of)

    def update(self, blob: Blob) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Scan what was appended since the last call.

        Returns:
            int64 [n + 1]: the offsets between which the n lines are, each with its terminator. A last
            line that is not a JSON value, because it is still being written or was torn, is not
            among them.
        """
        if blob.file is not None:
            known = self._end
            if blob.file != self._file or blob.read(self._scanned - len(known), len(known)) != known:
                self._forget_offsets()
            self._file = blob.file
        offsets, scanned, end = [self._offsets], self._scanned, self._end
        while scanned < blob.size:
            chunk = blob.read(scanned, min(_CHUNK, blob.size - scanned))
            if not chunk:
                break
            if _CR in chunk:
                return _with_carriage_returns(blob)
            offsets.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == _LF[0]) + (scanned + 1))
            scanned += len(chunk)
            end = chunk[-_OVERLAP:]
        if len(offsets) > 1:
            self._offsets, self._scanned, self._end = np.concatenate(offsets), scanned, end
        return _without_torn_line(blob, self._offsets, scanned)


def last_lines(blob: Blob, end: int, count: int) -> bytes | None:
    """Return the last ``count`` lines of the first ``end`` bytes of a file, by reading it from there backwards.

    Returns:
        The lines; ``None`` if they begin too far ahead, or are not separated by LF alone.
    """
    length = _NEAR
    while True:
        length = min(length, end)
        data = blob.read(end - length, length)
        if len(data) < length or _CR in data:
            return None
        inner = np.frombuffer(data, np.uint8)[: length - data.endswith(_LF)]
        breaks = np.flatnonzero(inner == _LF[0])
        if len(breaks) >= count:
            return data[int(breaks[-count]) + 1 :]
        if length == end:
            return data if len(breaks) == count - 1 else None
        if length >= _FAR:
            return None
        length *= 16


def _count(blob: Blob, known: _Counted) -> tuple[_Counted | None, int]:
    """Go on with counting; ``None`` if not all lines end with LF alone. Also return how far the file was read."""
    of, lines, end, tail = known
    at, before = end, tail
    while at < blob.size:
        chunk = blob.read(at, min(_COUNT_CHUNK, blob.size - at))
        if not chunk:
            break
        if _CR in chunk:
            return None, at
        if found := int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == _LF[0])):
            lines += found
            behind = chunk.rindex(_LF) + 1
            end = at + behind
            tail = (before + chunk[max(0, behind - _TAIL) : behind])[-_TAIL:]
        at += len(chunk)
        before = (before + chunk[-_TAIL:])[-_TAIL:]
    return _Counted(of, lines, end, tail), at


def _without_torn_end(blob: Blob, counted: _Counted, size: int) -> tuple[int, int]:
    _, lines, end, _ = counted
    if end < size:
        return (lines + 1, size) if is_valid(blob.read(end, size - end)) else (lines, end)
    if lines:
        last = last_lines(blob, end, 1)
        if last is None:  # very long, or the file changes
            offsets = LineIndex().update(blob)
            return len(offsets) - 1, int(offsets[-1])
        if not is_valid(last):
            return lines - 1, end - len(last)
    return lines, end


def _with_carriage_returns(blob: Blob) -> np.ndarray[Any, np.dtype[np.int64]]:
    # rare enough to look at everything each time: a CR that ends a chunk may be half a terminator
    data = blob.read(0, blob.size)
    lines = data.splitlines(keepends=True)
    offsets = np.zeros(len(lines) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)), out=offsets[1:])
    if lines and not data.endswith((_LF, _CR)):
        offsets = offsets[:-1]
    return _without_torn_line(blob, offsets, len(data))


def _without_torn_line(
    blob: Blob, offsets: np.ndarray[Any, np.dtype[np.int64]], size: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    if offsets[-1] < size:
        offsets = np.append(offsets, size)
    if len(offsets) > 1:
        start, end = map(int, offsets[-2:])
        if not is_valid(blob.read(start, end - start)):
            offsets = offsets[:-1]
    return offsets


def objects(values: Iterable[Any], count: int) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return Python objects as a 1-D array; lists among them stay lists.

    Returns:
        object [count].
    """
    return np.fromiter(values, np.dtype(object), count)
