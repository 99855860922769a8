"""One metric's column on disk: its values, its steps, and how rows get into them.

Every change keeps the rule that readers rely on: **steps are never behind values**. A reader counts
the rows that both have, so whatever a kill leaves half done is simply not there yet, and the hot log
still holds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from plattli import _fs, _indices
from plattli._dtypes import monotonic
from plattli._format import DTYPES, INDICES_FILE, JSONL, TMP_SUFFIX, dumps, indices_file, value_file
from plattli._indices import Segment
from plattli.errors import CorruptRunError

_STEP: Final = np.dtype("<u4")
#: Every suffix a metric's files may have.
SUFFIXES: Final = (*DTYPES, JSONL, INDICES_FILE)

Array = np.ndarray[Any, np.dtype[Any]]


class Column:
    """A metric's stored rows. Not thread-safe: one thread at a time may change it."""

    def __init__(self, root: Path, name: str, code: str, *, extra: dict[str, Any] | None = None) -> None:
        """Describe a column without rows; nothing is written.

        Args:
            root: the metric folder.
            name: the metric.
            code: storage dtype code, or ``"jsonl"``.
            extra: what its manifest entry holds beyond the words of this format version.
        """
        self.root = root
        self.name = name
        self.code = code
        self.rows = 0
        #: step of the last stored row, -1 without rows
        self.last = -1
        #: highest step seen by the writer, hot rows included; kept by the writer, in the caller's thread
        self.newest = -1
        #: index segments, ``None`` when the steps are in a file of their own
        self.segments: list[Segment] | None = []
        self._extra = extra or {}
        self._bytes = 0  # of the good part of a jsonl file
        #: what the manifest is to say of the steps: ahead of ``segments`` while a batch is written
        self._announced: list[Segment] | None = self.segments

    @property
    def path(self) -> Path:
        """The value file."""
        return self.root / value_file(self.name, self.code)

    @property
    def indices_path(self) -> Path:
        """The step file, which exists only while ``segments`` is ``None``."""
        return self.root / indices_file(self.name)

    @property
    def itemsize(self) -> int:
        """Bytes per value; columns of JSON have none."""
        return DTYPES[self.code].itemsize

    def spec(self) -> dict[str, Any]:
        """Return the column's entry in the manifest."""
        announced = self._announced
        indices = INDICES_FILE if announced is None else _indices.dump(announced)
        return {"indices": indices, "dtype": self.code, **self._extra}

    # ---- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(cls, root: Path, name: str, spec: dict[str, Any], run: str, *, before: int | None) -> Column:
        """Take over a stored column, cut to the rows that are whole and earlier than ``before``.

        A row is whole if both its step and its value are there; nothing is ever padded.
        """
        extra = {key: value for key, value in spec.items() if key not in ("indices", "dtype", "monotonic")}
        column = cls(root, name, spec["dtype"], extra=extra)
        if column.code not in (*DTYPES, JSONL):
            raise CorruptRunError(f"metric {name!r} of run {run!r} has the unknown dtype {column.code!r}")
        column.segments = _indices.parse(spec["indices"], name, run)
        if column.code == JSONL:
            column._end_last_line()
        available = column._count_values()
        if column.segments is None:
            steps = column._read_steps()[:available]
            # a prefix, so that unsorted steps of an older writer stay with their values
            late = np.flatnonzero(steps >= before) if before is not None else np.empty(0)
            column.rows = int(late[0]) if len(late) else len(steps)
        else:
            column.rows = min(_indices.count(column.segments, available), available)
            if before is not None:
                column.segments, column.rows = _indices.truncate(column.segments, column.rows, before)
            elif column.segments and column.segments[-1].stop is not None:
                # a column shorter than its closed segments: the steps follow the values
                column.segments = _indices.close(column.segments, column.rows)
        column._announced = column.segments
        column._cut_files(column.rows)
        column.last = column._step_at(column.rows - 1) if column.rows else -1
        column.newest = column.last
        return column

    def _count_values(self) -> int:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return 0
        return sum(1 for _ in self._line_ends()) if self.code == JSONL else size // self.itemsize

    def _end_last_line(self) -> None:
        """Give a whole last value the newline that its writer did not get to."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        if data and not data.endswith(b"\n"):
            try:
                json.loads(data[data.rfind(b"\n") + 1 :])
            except ValueError:
                return  # torn: cut off when the files are cut
            _fs.append_at(self.path, len(data), b"\n")

    def _line_ends(self) -> Iterator[int]:
        """Yield the offset just behind every complete line."""
        offset = 0
        with self.path.open("rb") as file:
            for line in file:
                offset += len(line)
                if line.endswith(b"\n"):
                    yield offset

    def _read_steps(self) -> Array:
        try:
            data = self.indices_path.read_bytes()
        except FileNotFoundError:
            data = b""
        return np.frombuffer(data[: len(data) // _STEP.itemsize * _STEP.itemsize], _STEP)

    def _cut_files(self, rows: int) -> None:
        # steps first: a kill in between must not leave values that a later row could be taken for
        if self.segments is None:
            _fs.truncate(self.indices_path, rows * _STEP.itemsize)
        if self.code == JSONL:
            self._bytes = 0
            if rows:
                for count, end in enumerate(self._line_ends(), 1):
                    self._bytes = end
                    if count == rows:
                        break
            _fs.truncate(self.path, self._bytes)
        else:
            _fs.truncate(self.path, rows * self.itemsize)

    # ---- reading ----------------------------------------------------------------------------------

    def steps(self) -> Array:
        """Return the steps of all stored rows, uint32 [rows]."""
        if self.segments is None:
            return self._read_steps()[: self.rows]
        return _indices.to_array(self.segments, self.rows)

    def values(self) -> Array:
        """Return the stored values of a numeric column, [rows]."""
        if not self.rows:
            return np.empty(0, DTYPES[self.code])
        return np.fromfile(self.path, DTYPES[self.code], self.rows)

    def lines(self) -> list[bytes]:
        """Return the stored lines of a JSON column, each with its newline, [rows]."""
        if not self.rows:
            return []
        return self.path.read_bytes()[: self._bytes].splitlines(keepends=True)

    # ---- appending: announce, publish the manifest, then put the values -------------------------------

    def announce(self, steps: Array) -> bool:
        """Put the steps of coming values where they belong; tell if the manifest must be written.

        Calling it again, after a failure, starts again from the stored rows.
        """
        before = self._announced
        if self.segments is not None:
            extended = _indices.extend(self.segments, self.rows, steps)
            if len(extended) <= _indices.limit(self.rows + len(steps)):
                self._announced = extended
                return before != extended
            self._make_room(self.indices_path)
            _fs.replace_file(
                self.indices_path, np.concatenate([self.steps(), steps]).astype(_STEP).tobytes(), sync=False
            )
            self._announced = None
            return True
        if not self.rows:
            self._make_room(self.indices_path)
        _fs.append_at(self.indices_path, self.rows * _STEP.itemsize, steps.astype(_STEP).tobytes())
        return False

    def put(self, steps: Array, values: Array | Sequence[Any]) -> None:
        """Append the values of announced steps.

        Args:
            steps: uint32 [n], increasing, all above :attr:`last`.
            values: [n], numbers for a numeric column, plain JSON data for a JSON one.
        """
        if self.code == JSONL:
            data = b"".join(_line(value) for value in values)
            offset = self._bytes
        else:
            data = np.asarray(values).astype(DTYPES[self.code], copy=False).tobytes()
            offset = self.rows * self.itemsize
        if not offset:
            self._make_room(self.path)
        _fs.append_at(self.path, offset, data)
        self._bytes = offset + len(data)
        self.rows += len(steps)
        self.last = int(steps[-1])
        self.segments = self._announced

    def sync(self) -> None:
        """Make what was put survive a power loss."""
        if self.rows:
            _fs.sync_file(self.path)
            if self.segments is None:
                _fs.sync_file(self.indices_path)

    @staticmethod
    def _make_room(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)

    # ---- changing stored rows ---------------------------------------------------------------------

    def row_of(self, step: int) -> tuple[int, bool]:
        """Return the row of ``step``, or the row before which it belongs, and whether it is there."""
        steps = self.steps()
        row = int(np.searchsorted(steps, step))
        return row, row < len(steps) and int(steps[row]) == step

    def replace(self, row: int, value: Any) -> None:
        """Give a stored row another value; atomic for readers and kills."""
        if self.code == JSONL:
            lines = self.lines()
            lines[row] = _line(value)
            data = b"".join(lines)
            _fs.replace_file(self.path, data)
            self._bytes = len(data)
        else:
            data = np.asarray(value, DTYPES[self.code]).tobytes()
            fd = os.open(self.path, os.O_WRONLY)
            try:
                # one small aligned write: a reader sees the old value or the new one
                os.pwrite(fd, data, row * self.itemsize)
            finally:
                os.close(fd)

    def cut(self, rows: int) -> None:
        """Keep the first ``rows`` rows. The caller publishes the manifest before :meth:`cut_files`."""
        if self.segments is not None:
            step = self._step_at(rows)
            self.segments, _ = _indices.truncate(self.segments, self.rows, step)
        self._announced = self.segments
        self.rows = rows
        self.last = self._step_at(rows - 1) if rows else -1

    def cut_files(self) -> None:
        """Remove what lies behind the kept rows from the files."""
        self._cut_files(self.rows)

    def _step_at(self, row: int) -> int:
        return int(self.steps()[row]) if self.segments is None else _indices.step_at(self.segments, row)

    def rewrite(self, code: str) -> Path | None:
        """Write the values as another dtype; return the old file, to be removed once published."""
        if not self.rows:
            self.code = code
            return None
        old, values = self.path, self.values()
        new = self.root / value_file(self.name, code)
        _fs.replace_file(new, values.astype(DTYPES[code]).tobytes())
        self.code = code
        return old

    # ---- finishing --------------------------------------------------------------------------------

    def finish(self, *, optimize: bool) -> list[Path]:
        """Close the index and, optionally, fit it; return files to remove once published."""
        obsolete = []
        if self.segments is not None:
            self.segments = _indices.close(self.segments, self.rows)
        elif optimize and (fitted := _indices.fit(self.steps())) is not None:
            self.segments = fitted
            obsolete.append(self.indices_path)
        self._announced = self.segments
        if not self.path.exists():
            # readers of an archive want the file of every metric, rows or not
            self._make_room(self.path)
            self.path.touch()
        if self.segments is None and not self.indices_path.exists():
            self.indices_path.touch()
        if self.code != JSONL and (flag := monotonic(self.values())):
            self._extra = {**self._extra, "monotonic": flag}
        return obsolete

    def other_files(self) -> list[Path]:
        """Return files that an interrupted change of this column may have left."""
        active = {self.path, self.indices_path} if self.segments is None else {self.path}
        stem = str(self.root / self.name)
        candidates = (Path(f"{stem}.{suffix}") for suffix in SUFFIXES)
        return [p for p in candidates if p not in active] + [
            Path(f"{stem}.{suffix}{TMP_SUFFIX}") for suffix in SUFFIXES
        ]


def _line(value: Any) -> bytes:
    return dumps(value).encode() + b"\n"
