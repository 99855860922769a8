"""The rows of one metric: those in its files, and behind them those of the hot log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from plattli import _indices, _jsonlines
from plattli._format import BYTES, DTYPES, JSONL, KEPT, MAX_NARROW_STEP, MAX_STEP, indices_file, step_dtype, value_file
from plattli._hotreader import HotRows, LazyHotRows
from plattli._jsonlines import LineIndex
from plattli._select import Array, Mask, Rows, Selection, rows_where
from plattli._source import Blob, Source
from plattli.errors import (
    CorruptRunError,
    DtypeError,
    MissingFileError,
    UnstableRunError,
    ValueRangeError,
)

OBJECT = np.dtype(object)
#: JSON lines so near to the end are looked for from there
_LAST = 4096
#: from so many rows on, getting memory takes longer than filling it
_MANY = 1 << 16
#: so many values are read at once rather than searched one by one
_AT_ONCE = 512


def storage_dtype(spec: Mapping[str, Any], where: str) -> np.dtype[Any]:
    """Return how a metric's values are stored, ``object`` for JSON lines.

    Raises:
        CorruptRunError: the manifest names a dtype that does not exist.
    """
    code = spec["dtype"]
    if code == JSONL:
        return OBJECT
    if code not in DTYPES:
        raise CorruptRunError(f"unknown dtype {code!r} of {where}")
    return DTYPES[code]


class Stored:
    """The rows in the files of a metric, as far as both their steps and their values are there."""

    def __init__(
        self,
        where: str,
        dtype: np.dtype[Any],
        segments: list[_indices.Segment] | None = None,
        values: Blob | None = None,
        indices: Blob | None = None,
        lines: LineIndex | None = None,
        monotonic: object = None,
        *,
        wide: bool = False,
        size: object = None,
        kept: object = None,
    ) -> None:
        """Describe a metric.

        Args:
            where: metric and run, for messages.
            dtype: how the values are stored.
            segments: the steps, ``None`` if they are in ``indices``.
            values, indices: the files. Without ``values`` there are no rows.
            lines: where the lines of a JSON column are.
            monotonic: ``"inc"`` or ``"dec"`` if the values are known to be sorted.
            wide: whether the steps are stored for uint64.
            size: how many bytes of JSON lines the rows of a finished run take: a file that has so many needs no
                counting.
            kept: how many rows stay of a column that is being cut: the files may still have others behind them.
        """
        self.dtype = dtype.newbyteorder("=")
        #: of the steps, as they are returned
        self.step_dtype = np.dtype(np.uint64 if wide else np.uint32)
        self._where = where
        self._file_dtype = dtype
        self._wide = wide
        self._segments = segments
        self._values = values
        self._indices = indices
        self._monotonic = monotonic
        self._lines = lines
        self._size = size
        self._end = 0  # of the JSON lines
        self._available = 0  # how many there are
        self._offsets: np.ndarray[Any, np.dtype[np.int64]] | None = None  # where they are, once that is needed
        self._all: Array | None = None
        self.rows = self._count()
        if type(kept) is int:
            self.rows = max(0, min(self.rows, kept))

    def _count(self) -> int:
        if self._values is None:
            return 0
        available = self._values.size // self._file_dtype.itemsize
        if self._lines is not None:
            closed = self._segments and self._segments[-1].stop is not None
            if closed and type(self._size) is int and self._size == self._values.size:
                available, self._end = _indices.count(self._segments or [], MAX_STEP), self._size
            else:
                available, self._end = self._lines.count(self._values)
            self._available = available
        if self._indices is not None:
            return min(available, self._indices.size // self.step_dtype.itemsize)
        return _indices.count(self._segments or [], available)

    def steps(self, low: int, high: int) -> Array:
        """Return the steps of rows ``low .. high - 1``, uint32 or uint64."""
        if high - low >= _MANY:
            # Nothing is stored here. But a C library that got back so large a piece keeps memory for the next arrays,
            # where it would return it after each read, to fetch it page by page: that takes longer than the rest.
            np.empty(high - low, np.int64)
        if self._indices is not None:
            size = self.step_dtype.itemsize
            data = self._read(self._indices, low * size, high * size)
            return np.frombuffer(data, step_dtype(self._wide)).astype(self.step_dtype, copy=False)
        return _indices.to_array(self._segments or [], high, low, wide=self._wide)

    def values(self, low: int, high: int) -> Array:
        """Return the values of rows ``low .. high - 1`` as they are stored."""
        if self._all is not None:
            return self._all[low:high]
        if self._values is None or low >= high:
            return np.empty(0, self.dtype)
        if self._lines is None:
            size = self._file_dtype.itemsize
            data = self._read(self._values, low * size, high * size)
            return np.frombuffer(data, self._file_dtype).astype(self.dtype, copy=False)
        data = self._json_lines(self._values, self._lines, low, high)
        try:
            return _jsonlines.objects(_jsonlines.parse_all(data, low), high - low)
        except ValueError as error:
            raise CorruptRunError(f"values of {self._where}: {error}") from error

    def _json_lines(self, values: Blob, lines: LineIndex, low: int, high: int) -> bytes:
        if self._offsets is None and self._available - low <= _LAST:
            last = _jsonlines.last_lines(values, self._end, self._available - low)
            if last is not None:
                return last if high == self._available else b"".join(last.splitlines(keepends=True)[: high - low])
        if self._offsets is None:
            self._offsets = lines.update(values)
            if len(self._offsets) <= self._available:
                raise CorruptRunError(
                    f"{self._where} has {len(self._offsets) - 1} values for {self._available} steps: plattli check "
                    f"tells more"
                )
        return self._read(values, int(self._offsets[low]), int(self._offsets[high]))

    def _read(self, blob: Blob, start: int, end: int) -> bytes:
        data = blob.read(start, end - start)
        if len(data) < end - start:
            raise UnstableRunError(f"a file of {self._where} became shorter while it was read: try again")
        return data

    def rows_of_steps(self, start: float | None, stop: float | None) -> Rows:
        """Return the rows with steps in ``start .. stop``, both inclusive."""
        if self._indices is None:
            return slice(*_indices.positions(self._segments or [], self.rows, start, stop))
        # not a binary search: nothing forces a writer to keep its step file sorted
        return rows_where(_steps_between(self.steps(0, self.rows), start, stop))

    def rows_of_values(self, low: Any, high: Any) -> Rows:
        """Return the rows with values in ``low .. high``, both inclusive."""
        if self._monotonic in ("inc", "dec") and self._lines is None:
            return self._bisect(low, high)
        self._all = self.values(0, self.rows)
        return rows_where(values_between(self._all, low, high, self._where))

    def _bisect(self, low: Any, high: Any) -> Rows:
        def first(holds: Callable[[Array], Any]) -> int:
            # arrays of one, because a bound is rounded to the width of an array, as in a scan
            below, end = 0, self.rows
            while end - below > _AT_ONCE:
                middle = (below + end) // 2
                if holds(self.values(middle, middle + 1))[0]:
                    end = middle
                else:
                    below = middle + 1
            return end - int(np.count_nonzero(holds(self.values(below, end))))

        if low != low or high != high:  # NaN
            return slice(0, 0)
        with np.errstate(over="ignore"):  # a bound beyond float32 compares as an infinity, as it should
            if self._monotonic == "dec":
                begin = 0 if high is None else first(lambda value: value <= high)
                end = self.rows if low is None else first(lambda value: value < low)
            else:
                begin = 0 if low is None else first(lambda value: value >= low)
                end = self.rows if high is None else first(lambda value: value > high)
        return slice(begin, max(begin, end))


def open_stored(
    files: ExitStack,
    source: Source,
    name: str,
    spec: Mapping[str, Any],
    segments: list[_indices.Segment] | None,
    lines: LineIndex,
    run: str,
    *,
    is_final: bool = False,
) -> Stored:
    """Open the files of a metric.

    Args:
        files: closes them.
        source: where they are.
        name, spec, segments: the metric, its manifest entry, and what that says of the steps.
        lines: what is known of a column of JSON.
        run: for messages.
        is_final: whether the run is finished, so that the entry may be trusted to speak of the files as they are.

    Raises:
        MissingFileError: one of them is not there.
        CorruptRunError: the manifest's entry makes no sense.
    """
    where = f"metric {name!r} (run {run!r})"
    dtype = storage_dtype(spec, where)
    wide = _indices.is_wide(spec["indices"])
    values = indices = None
    if segments != []:  # no segments, no rows: the files need not exist yet
        values = _open(source, value_file(name, spec["dtype"]), "values", where, files)
    if segments is None:
        indices = _open(source, indices_file(name, wide), "indices", where, files)
    index = lines if dtype == OBJECT else None
    size = spec.get(BYTES) if is_final else None
    monotonic, kept = spec.get("monotonic"), spec.get(KEPT)
    return Stored(where, dtype, segments, values, indices, index, monotonic, wide=wide, size=size, kept=kept)


def _open(source: Source, file: str, what: str, where: str, files: ExitStack) -> Blob:
    try:
        return files.enter_context(source.open(file))
    except MissingFileError as error:
        raise MissingFileError(f"missing {what} file of {where}: {source.root}/{file}") from error


class MetricRows:
    """All rows of a metric as one sequence: the stored ones, then the hot ones that are newer."""

    def __init__(self, name: str, run: str, stored: Stored, hot: HotRows | LazyHotRows) -> None:
        """Join the two.

        Raises:
            CorruptRunError, ValueRangeError: a hot value does not fit the column.
        """
        self._where = f"metric {name!r} (run {run!r})"
        self._stored = stored
        self.dtype = stored.dtype
        steps, values = hot.column(name)
        if stored.rows and steps:
            last = int(stored.steps(stored.rows - 1, stored.rows)[0])
            newer = [(step, value) for step, value in zip(steps, values, strict=True) if step > last]
            steps, values = [step for step, _ in newer], [value for _, value in newer]
        is_wide = max(steps, default=0) > MAX_NARROW_STEP
        self._step_dtype = np.dtype(np.uint64) if is_wide else stored.step_dtype
        self._hot_steps = np.array(steps, self._step_dtype)
        self._hot_values = _as_stored(values, self.dtype, self._where)
        self.rows = stored.rows + len(steps)

    def select(self, selection: Selection) -> tuple[Rows, Rows]:
        """Return which of the stored and which of the hot rows are wanted."""
        stored, by, low, high = self._stored, *selection
        if by == "step":
            hot = _steps_between(self._hot_steps, low, high)
            return stored.rows_of_steps(low, high), rows_where(hot)
        if by == "value":
            hot = values_between(self._hot_values, low, high, self._where)
            return stored.rows_of_values(low, high), rows_where(hot)
        first, last, _ = slice(low, high).indices(self.rows)
        split = stored.rows
        return slice(min(first, split), min(last, split)), slice(max(first - split, 0), max(last - split, 0))

    def steps(self, chosen: tuple[Rows, Rows]) -> Array:
        """Return the steps of chosen rows, [n], uint32 unless a row of the metric needs uint64."""
        stored = _take(chosen[0], self._stored.steps, self._step_dtype).astype(self._step_dtype, copy=False)
        return _joined(stored, self._hot_steps[chosen[1]])

    def values(self, chosen: tuple[Rows, Rows]) -> Array:
        """Return the values of chosen rows, [n], as they are stored."""
        return _joined(_take(chosen[0], self._stored.values, self.dtype), self._hot_values[chosen[1]])


def _take(rows: Rows, read: Callable[[int, int], Array], dtype: Any) -> Array:
    if isinstance(rows, slice):
        return read(rows.start, rows.stop) if rows.start < rows.stop else np.empty(0, dtype)
    first = int(rows[0])
    return read(first, int(rows[-1]) + 1)[rows - first]


def _joined(stored: Array, hot: Array) -> Array:
    if not len(hot):
        return stored
    return np.concatenate([stored, hot]) if len(stored) else hot


def _steps_between(steps: Array, start: float | None, stop: float | None) -> Mask:
    low, end = _indices.bounds(start, stop)
    return (steps >= low) & (steps < end)


def values_between(values: Array, low: Any, high: Any, where: str) -> Mask:
    """Return which values lie in ``low .. high``, both inclusive; NaN never does.

    Raises:
        DtypeError: JSON values that cannot be compared with the bounds.
    """
    if values.dtype == OBJECT:
        try:
            chosen = [(low is None or v >= low) and (high is None or v <= high) for v in values.tolist()]
        except TypeError as error:
            raise DtypeError(f"values of {where} cannot be compared with {low!r}..{high!r}: {error}") from error
        return np.array(chosen, bool)
    mask = np.ones(len(values), bool)
    with np.errstate(over="ignore"):  # see Stored._bisect
        if low is not None:
            mask &= values >= low
        if high is not None:
            mask &= values <= high
    return mask


def _as_stored(values: list[Any], dtype: np.dtype[Any], where: str) -> Array:
    # hot values are JSON; the column says what they are
    if dtype == OBJECT:
        return _jsonlines.objects(values, len(values))
    if dtype.kind in "iu":
        values = [value if type(value) is int else _integer(value, where) for value in values]
        for value in values and (min(values), max(values)):
            if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                raise ValueRangeError(f"hot value {value} of {where} does not fit its {dtype} column")
    try:
        return np.fromiter(values, dtype, len(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptRunError(f"a hot value of {where} is not a number: {error}") from error


def _integer(value: Any, where: str) -> int:
    # NumPy would cut fractions off
    try:
        integer = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptRunError(f"a hot value of {where} is not an integer: {value!r:.200}") from error
    if isinstance(value, float) and value != integer:
        raise CorruptRunError(f"a hot value of {where} is not an integer: {value!r}")
    return integer
