"""One JSON value per line: where the lines are, and what is in them.

Lines end with LF, CR or CRLF. JSON escapes control characters, so none of these occurs inside a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from plattli._source import Blob

_CHUNK = 1 << 20
_OVERLAP = 64
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


class LineIndex:
    """Where the lines of a growing file are, found without parsing them.

    A file that was replaced, or is shorter or ends otherwise where it did before, is scanned anew. One that
    was cut and written over to the same bytes at that place is not: make a new index for it.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._offsets = np.zeros(1, np.int64)  # where lines begin: at 0 and behind each terminator
        self._scanned = 0
        self._file: object = None
        self._end = b""  # the last bytes that were scanned

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
                self._forget()
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
