"""One metric's column on disk: its values, its steps, and how rows get into them.

Every change keeps the rule that readers rely on: **steps are never behind values**. A reader counts
the rows that both have, so whatever a kill leaves half done is simply not there yet, and the hot log
still holds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from plattli import _fs, _indices
from plattli._dtypes import is_int, monotonic, tightest
from plattli._format import (
    BYTES,
    CUTS,
    DTYPES,
    INDICES_FILE,
    JSONL,
    KEPT,
    MAX_NARROW_STEP,
    MAX_STEP,
    WIDE_INDICES_FILE,
    dumps,
    indices_file,
    step_dtype,
    value_file,
)
from plattli._indices import Segment
from plattli.errors import CorruptRunError

#: Bytes of a JSON column that are looked at in one go.
_CHUNK: Final = 1 << 18
#: Every suffix a metric's files may have.
SUFFIXES: Final = (*DTYPES, JSONL, INDICES_FILE, WIDE_INDICES_FILE)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Ending:
    """How a column is when its run is finished.

    Attributes:
        segments, wide, code, extra, rows: see :class:`Column`.
        size: how many bytes its values take as JSON lines, ``None`` if they are none. Readers of the finished run
            need not count them then.
        files: what it has in files that are not there yet, by name.
        obsolete: files that it no longer has.
    """

    segments: list[Segment] | None
    wide: bool
    code: str
    extra: dict[str, Any]
    rows: int
    size: int | None
    files: dict[str, Callable[[], bytes]]
    obsolete: list[str]

    def spec(self) -> dict[str, Any]:
        """Return the column's entry in the manifest."""
        spec = {"indices": _indices.spell(self.segments, self.wide), "dtype": self.code, **self.extra}
        return spec if self.size is None else {**spec, BYTES: self.size}


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
        #: whether it is stored so that steps above MAX_NARROW_STEP find a place: see :meth:`set_wide`
        self.wide = False
        self._extra = extra or {}
        #: how often rows were cut off: their places in the files get other rows
        self._cuts = 0
        #: the files have rows that are cut off, and readers must not look at them
        self._is_cut = False
        self._path, self._path_of = root, ""  # worked out when it is needed: see `path`
        self._bytes = 0  # of the good part of a jsonl file
        #: what the manifest is to say of the steps: ahead of ``segments`` while a batch is written
        self._announced: list[Segment] | None = self.segments

    @property
    def path(self) -> Path:
        """The value file."""
        if self._path_of != self.code:
            self._path, self._path_of = self.root / value_file(self.name, self.code), self.code
        return self._path

    @property
    def indices_path(self) -> Path:
        """The step file, which exists only while ``segments`` is ``None``."""
        return self.root / indices_file(self.name, self.wide)

    @property
    def step_size(self) -> int:
        """Bytes per step in the step file."""
        return 8 if self.wide else 4

    @property
    def itemsize(self) -> int:
        """Bytes per value; columns of JSON have none."""
        return DTYPES[self.code].itemsize

    def spec(self) -> dict[str, Any]:
        """Return the column's entry in the manifest."""
        spec = {"indices": _indices.spell(self._announced, self.wide), "dtype": self.code, **self._extra}
        if self._cuts:
            spec[CUTS] = self._cuts
        if self._is_cut:
            spec[KEPT] = self.rows
        return spec

    # ---- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(cls, root: Path, name: str, spec: dict[str, Any], run: str, *, before: int | None) -> Column:
        """Take over a stored column, cut to the rows that are whole and earlier than ``before``.

        A row is whole if both its step and its value are there; nothing is ever padded. What lies behind the rows
        stays in the files until :meth:`cut_files`.
        """
        known = ("indices", "dtype", "monotonic", BYTES, CUTS, KEPT)
        extra = {key: value for key, value in spec.items() if key not in known}
        column = cls(root, name, spec["dtype"], extra=extra)
        if column.code not in (*DTYPES, JSONL):
            raise CorruptRunError(f"metric {name!r} of run {run!r} has the unknown dtype {column.code!r}")
        column._cuts = spec.get(CUTS, 0) if type(spec.get(CUTS)) is int else 0
        column.wide = _indices.is_wide(spec["indices"])
        column.segments = _indices.parse(spec["indices"], name, run)
        available = column._count_values()
        if column.segments is None:
            steps = column._read_steps()[:available]
            if column.wide and len(steps) and int(steps.max()) > MAX_STEP:
                raise CorruptRunError(f"metric {name!r} of run {run!r} has steps above {MAX_STEP} in its step file")
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
        if column.rows < available:
            column._cuts += 1
        if not column.rows:
            # no segments, no files: those of a column that is to have another dtype would be missed
            column.segments = []
        column._announced = column.segments
        if column.code == JSONL and column.rows != available:
            column._bytes = _end_of_line(column.path, column.rows)
        while column.code == JSONL and column.rows and not column._ends_in_json():
            # a cut has made a broken line the last one, and readers do not count a broken last line
            column.cut(column.rows - 1)
        column.last = column._step_at(column.rows - 1) if column.rows else -1
        column.newest = column.last
        return column

    def _ends_in_json(self) -> bool:
        """Tell whether the last line of a JSON column is a value."""
        with self.path.open("rb") as file:
            size = 1 << 12
            while True:
                start = max(self._bytes - size, 0)
                file.seek(start)
                line = file.read(self._bytes - start)[:-1]
                if not start or b"\n" in line:
                    break
                size *= 16
        try:
            json.loads(line.rpartition(b"\n")[2])
        except ValueError:
            return False
        return True

    def _count_values(self) -> int:
        """Count the whole values; of a JSON column, note where they end."""
        try:
            size = self.path.stat().st_size
            if self.code != JSONL:
                return size // self.itemsize
            rows, self._bytes = _count_lines(self.path)
            if self._bytes < size:
                # a whole last value gets the newline that its writer did not get to; a torn one is cut off
                with self.path.open("rb") as file:
                    file.seek(self._bytes)
                    json.loads(file.read())
                _fs.append_at(self.path, size, b"\n")
                rows, self._bytes = rows + 1, size + 1
        except FileNotFoundError:
            return 0
        except ValueError:
            pass
        return rows

    def _read_steps(self) -> Array:
        try:
            data = self.indices_path.read_bytes()
        except FileNotFoundError:
            data = b""
        return np.frombuffer(data[: len(data) // self.step_size * self.step_size], step_dtype(self.wide))

    # ---- reading ----------------------------------------------------------------------------------

    def steps(self) -> Array:
        """Return the steps of all stored rows, int64 [rows]."""
        if self.segments is None:
            return self._read_steps()[: self.rows].astype(np.int64)
        return _indices.to_array(self.segments, self.rows, wide=self.wide).astype(np.int64)

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

    def plain_values(self, start: int = 0) -> list[Any]:
        """Return the stored values from row ``start`` on, as plain Python."""
        if self.code == JSONL:
            return [json.loads(line) for line in self.lines()[start:]]
        return list(self.values()[start:].tolist())

    # ---- appending: announce, publish the manifest, then put the values -------------------------------

    def announce(
        self, steps: Array, known: dict[Any, list[Segment]] | None = None, *, sync: bool = False
    ) -> bool:
        """Put the steps of coming values where they belong; tell if the manifest must be written.

        Calling it again, after a failure, starts again from the stored rows.

        Args:
            steps: int64 [n], increasing, all above :attr:`last`; uint32 holds them unless the column is wide.
            known: what other columns came to in the same batch: most have the same steps.
            sync: make them survive a power loss; the manifest is the caller's.
        """
        before = self._announced
        if self.segments is not None:
            key = (id(steps), self.rows, *self.segments)
            extended = known.get(key) if known is not None else None
            if extended is None:
                extended = _indices.extend(self.segments, self.rows, steps)
                if known is not None:
                    known[key] = extended
            if len(extended) <= _indices.limit(self.rows + len(steps)):
                self._announced = extended
                return before != extended
            self._make_room(self.indices_path)
            _fs.replace_file(self.indices_path, self._packed(np.concatenate([self.steps(), steps])), sync=sync)
            self._announced = None
            return True
        if not self.rows:
            self._make_room(self.indices_path)
        _fs.append_at(self.indices_path, self.rows * self.step_size, self._packed(steps), sync=sync)
        return False

    def _packed(self, steps: Array) -> bytes:
        return steps.astype(step_dtype(self.wide)).tobytes()

    def put(self, steps: Array, values: Array | Sequence[Any], *, sync: bool = False) -> None:
        """Append the values of announced steps.

        Args:
            steps: int64 [n], increasing, all above :attr:`last`.
            values: [n], numbers for a numeric column, plain JSON data for a JSON one.
            sync: make them survive a power loss.
        """
        if self.code == JSONL:
            data = _as_lines(values)
            offset = self._bytes
        else:
            data = np.asarray(values).astype(DTYPES[self.code], copy=False).tobytes()
            offset = self.rows * self.itemsize
        if not offset:
            self._make_room(self.path)
        _fs.append_at(self.path, offset, data, sync=sync)
        self._bytes = offset + len(data)
        self.rows += len(steps)
        self.last = int(steps[-1])
        self.segments = self._announced

    def spell_steps(self) -> None:
        """Keep the steps in a file of their own from here on; both files exist afterwards.

        The caller publishes the manifest.
        """
        self._make_room(self.path)
        if self.segments is not None:
            steps = self._packed(self.steps())
            _fs.replace_file(self.indices_path, steps, sync=bool(steps))
            self.segments = self._announced = None
        for path in (self.indices_path, self.path):
            if not path.exists():
                path.touch()

    def set_wide(self, wide: bool) -> Path | None:
        """Get ready for steps above ``MAX_NARROW_STEP``, or go back to how every reader knows it if none is left.

        The caller publishes the manifest; only then may a row with such a step come, to the hot log or here.
        No batch may be on its way.

        Returns:
            The old step file, if there is one, to be removed once the manifest is published.
        """
        if wide == self.wide:
            return None
        self._announced = self.segments  # what a failed batch announced comes again
        old = None
        if self.segments is None:
            old = self.indices_path
            # under another name: whichever manifest is there finds the file that it speaks of
            new = self.root / indices_file(self.name, wide)
            self._make_room(new)
            _fs.replace_file(new, self.steps().astype(step_dtype(wide)).tobytes())
        self.wide = wide
        return old

    def put_row(self, step: int, data: bytes, values_fd: int, steps_fd: int) -> None:
        """Append one row through files that are open, of a column whose steps are spelled out.

        The value goes first: a kill then leaves a value without its step, which no reader counts and
        which the next writer, whoever made it, cuts off.

        Args:
            step: above :attr:`last`.
            data: the value as it is stored, a JSON one with its newline.
            values_fd, steps_fd: the two files, which end where the stored rows end.
        """
        offset = self._bytes if self.code == JSONL else self.rows * len(data)
        _fs.write_at(values_fd, offset, data)
        size = self.step_size
        _fs.write_at(steps_fd, self.rows * size, step.to_bytes(size, "little"))
        self._bytes = offset + len(data)
        self.rows += 1
        self.last = step

    def open_files(self) -> tuple[int, int]:
        """Open the value and the step file for :meth:`put_row`, cut to the stored rows."""
        values = _fs.open_at(self.path, self._bytes if self.code == JSONL else self.rows * self.itemsize)
        try:
            return values, _fs.open_at(self.indices_path, self.rows * self.step_size)
        except BaseException:
            os.close(values)
            raise

    def sync(self) -> None:
        """Make what was put survive a power loss."""
        _fs.sync_files(self.files())

    def files(self) -> list[Path]:
        """Return the files that hold the rows."""
        if not self.rows:
            return []
        return [self.path] if self.segments is not None else [self.path, self.indices_path]

    def _make_room(self, path: Path) -> None:
        _fs.make_folders(path.parent, inside=self.root)

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
            lines[row] = json_line(value)
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
        self._cuts += 1
        self._is_cut = True
        self.rows = rows
        self.last = self._step_at(rows - 1) if rows else -1
        if self.code == JSONL:
            self._bytes = _end_of_line(self.path, rows)

    def cut_files(self) -> None:
        """Remove what lies behind the kept rows from the files."""
        # steps first: a kill in between must not leave values that a later row could be taken for
        if self.segments is None:
            _fs.truncate(self.indices_path, self.rows * self.step_size)
        _fs.truncate(self.path, self._bytes if self.code == JSONL else self.rows * self.itemsize)
        self._is_cut = False

    def _step_at(self, row: int) -> int:
        if self.segments is not None:
            return _indices.step_at(self.segments, row)
        with self.indices_path.open("rb") as file:
            file.seek(row * self.step_size)
            return int.from_bytes(file.read(self.step_size), "little")

    def rewrite(self, code: str) -> Path | None:
        """Write the values as another dtype; return the old file, to be removed once published."""
        if not self.rows:
            self.code = code
            return None
        old = self.path
        _fs.replace_file(self.root / value_file(self.name, code), self._bytes_as(code))
        self.code = code
        return old

    def _bytes_as(self, code: str) -> bytes:
        return self.values().astype(DTYPES[code], copy=False).tobytes()

    # ---- finishing --------------------------------------------------------------------------------

    def ending(self, tail: tuple[Array, Any] | None = None, *, optimize: bool) -> Ending:
        """Work out how the column is to end: closed; if optimized, fitted and its integers narrowed.

        Args:
            tail: steps and values of rows that are not here yet; only for a column that has none.
            optimize: see :meth:`RowWriter.finish`.
        """
        segments, code, extra = self.segments, self.code, self._extra
        files: dict[str, Callable[[], bytes]] = {}
        obsolete: list[str] = []
        steps = self.steps if tail is None else lambda: tail[0]
        rows = self.rows if tail is None else len(tail[0])
        last = self.last if tail is None else int(tail[0][-1])
        wide = last > MAX_NARROW_STEP
        if tail is not None and segments is not None:
            segments = _indices.extend([], 0, tail[0])
            if len(segments) > _indices.limit(rows):
                segments = None
        if segments is not None:
            segments = _indices.close(segments, rows)
        elif optimize and (fitted := _indices.fit(steps())) is not None:
            segments = fitted
            obsolete.append(indices_file(self.name, self.wide))
        if segments is None and (tail is not None or not rows or wide != self.wide):
            files[indices_file(self.name, wide)] = lambda: steps().astype(step_dtype(wide)).tobytes()
            if wide != self.wide:
                obsolete.append(indices_file(self.name, self.wide))
        # readers of an archive want the values of every metric, rows or not
        content: Callable[[], bytes] | None = None if self.rows else bytes
        size = None
        if code == JSONL:
            size = self._bytes if self.rows else 0
            if tail is not None:
                data = _as_lines(tail[1])
                size, content = len(data), partial(bytes, data)
        elif rows:
            values = self.values() if tail is None else np.asarray(tail[1]).astype(DTYPES[code], copy=False)
            if flag := monotonic(values):
                extra = {**extra, "monotonic": flag}
            if optimize and is_int(code):
                code = tightest(int(values.min()), int(values.max()))
            if tail is not None:
                content = values.astype(DTYPES[code], copy=False).tobytes
            elif code != self.code:
                content = partial(self._bytes_as, code)
                obsolete.append(value_file(self.name, self.code))
        if content is not None:
            files[value_file(self.name, code)] = content
        return Ending(segments, wide, code, extra, rows, size, files, obsolete)

    def end(self, ending: Ending) -> None:
        """Take note that the files are as ``ending`` has them."""
        self.segments = self._announced = ending.segments
        self.code, self.wide, self._extra = ending.code, ending.wide, ending.extra

    def is_active(self, file: str) -> bool:
        """Tell whether a file of this metric, named relative to the folder, is one that it uses now."""
        return file == value_file(self.name, self.code) or (
            self.segments is None and file == indices_file(self.name, self.wide)
        )


def _count_lines(path: Path) -> tuple[int, int]:
    """Return how many lines of a file are complete, and where the last of these ends."""
    lines = end = offset = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            # three times as fast as bytes.count where lines are short
            if found := int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == ord(b"\n"))):
                lines += found
                end = offset + chunk.rindex(b"\n") + 1
            offset += len(chunk)
    return lines, end


def _end_of_line(path: Path, number: int) -> int:
    """Return where a line ends, counted from 1; the file has that many. Line 0 ends where the file begins."""
    if not number:
        return 0
    offset = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            found = chunk.count(b"\n")
            if found >= number:
                return offset + int(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord(b"\n"))[number - 1]) + 1
            number -= found
            offset += len(chunk)
    return offset


def _as_lines(values: Iterable[Any]) -> bytes:
    return b"".join(json_line(value) for value in values)


def json_line(value: Any) -> bytes:
    """Return a value as a line of a JSON column."""
    return dumps(value).encode() + b"\n"
