"""The hot log: rows that are not in the columns yet, one JSON object per line.

A row is appended with one ``write``, so it is in the operating system when the call returns, and a
kill tears at most the line being written. A later row of the same step replaces an earlier one as a
whole but keeps its place, for every reader of the format; so whoever adds metrics to a step appends
the whole row again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from plattli import _fs
from plattli._format import HOT, HOT_COMPACTING, TMP_SUFFIX
from plattli.errors import CorruptRunError

#: Seconds between two looks whether the log is still there.
_LOOK: Final = 0.1

#: :func:`encode` for rows that are known to hold no null, NaN or infinity.
encode_finite: Final[Callable[[dict[str, Any]], bytes]] = partial(orjson.dumps, option=orjson.OPT_APPEND_NEWLINE)


def encode(row: dict[str, Any]) -> bytes:
    """Return the line of a row; ``row`` starts with its step."""
    try:
        line = encode_finite(row)
    except TypeError:  # integers beyond 64 bits inside JSON values
        return _encode_slowly(row)
    # orjson spells what JSON cannot (NaN, the infinities) as null; most rows have no null at all
    if b"null" in line and (b":null" in line or b",null" in line or b"[null" in line):
        return _encode_slowly(row)
    return line


def _encode_slowly(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class HotLog:
    """Appends rows to ``hot.jsonl`` and hands full logs over to a compaction."""

    def __init__(self, root: Path) -> None:
        """Describe the log of the metric folder ``root``; it is opened when the first row comes."""
        self.path = root / HOT
        self.compacting = root / HOT_COMPACTING
        self._fd = -1
        #: bytes of the log, as of the last append
        self.size = 0
        #: the file may go on behind them with half a line
        self._torn = False
        #: when to see whether the file is still there, by ``time.monotonic``
        self._look = 0.0

    def append(self, line: bytes) -> None:
        """Append one whole line, or raise ``OSError`` and leave the log as it was."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            size = os.fstat(self._fd).st_size
            self.size = min(size, self.size) if self._torn else size
            self._look = time.monotonic() + _LOOK
        elif time.monotonic() > self._look:
            self._look = time.monotonic() + _LOOK
            if _fs.is_removed(self._fd, self.path):  # nobody will ever read what goes there
                raise OSError(errno.ESTALE, "the hot log was removed", str(self.path))
        if self._torn:
            self._cut()
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                _fs.write_all(self._fd, memoryview(line)[written:])
        except OSError:
            # half a line would be glued to the next row; a disk that fails may not let go of it now
            self._torn = True
            with contextlib.suppress(OSError):
                self._cut()
            raise
        self.size += len(line)

    def _cut(self) -> None:
        os.ftruncate(self._fd, self.size)
        self._torn = False

    def rotate(self, lines: list[bytes]) -> None:
        """Make the log the one being compacted, and start a new one with ``lines``.

        The new log is complete before the old one moves: whatever fails, every row is in a log.
        """
        if self.compacting.exists():
            # the second rename of an earlier rotation failed: two logs' rows would end in one file
            raise OSError(errno.EEXIST, "the hot log being compacted is still there", str(self.compacting))
        fresh = self.path.with_name(self.path.name + TMP_SUFFIX)
        fresh.write_bytes(b"".join(lines))
        self.close()
        os.rename(self.path, self.compacting)
        self._torn = False  # half a line at the end of a log is no row
        try:
            os.rename(fresh, self.path)
        except OSError as error:
            # no error that leaves all as it was: the writer has to look at the files again
            raise OSError(errno.ESTALE, f"the hot log was moved only half ({error})", str(self.path)) from error

    def drop_compacting(self) -> None:
        """Forget the log whose rows are in the columns now."""
        self.compacting.unlink(missing_ok=True)

    def rewrite(self, lines: list[bytes], *, sync: bool = False) -> None:
        """Replace the whole log, atomically; an empty log has no file."""
        self.close()
        if lines:
            _fs.replace_file(self.path, b"".join(lines), sync=sync)
        else:
            self.path.unlink(missing_ok=True)
        self._torn = False

    def close(self) -> None:
        """Close the file; the next row opens it again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def read(root: Path, run: str) -> dict[int, dict[str, Any]]:
    """Return the rows of both logs of a dead writer: step -> metrics, in the order of the log.

    The last line of either log may be torn and is then dropped.

    Raises:
        CorruptRunError: any other line is no row.
    """
    rows: dict[int, dict[str, Any]] = {}
    for path in (root / HOT_COMPACTING, root / HOT):
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue
        while lines and not lines[-1].strip():
            lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line.decode())
                rows[int(row.pop("step"))] = row
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if number == len(lines):
                    continue
                raise CorruptRunError(
                    f"{path}:{number} of run {run!r} is no row ({error}); remove that line to go on"
                ) from error
    return rows
