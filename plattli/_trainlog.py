"""Read a training log, one JSON object per line, as columns.

A column whose values are all numbers becomes numbers, any other one stays JSON. Integers and floats
may be mixed: such a column holds floats, f32 until an integer or float comes that f32 cannot hold, as
if each value had been logged in its turn.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from plattli._bulk import BulkColumn
from plattli._format import MAX_STEP
from plattli._jsonlines import parse
from plattli._pathnames import PathNames
from plattli.errors import LogLineError

_BOM: Final = b"\xef\xbb\xbf"
#: How much is read between two reports of progress.
_CHUNK: Final = 1 << 20


@dataclass
class TrainLog:
    """What a log holds.

    Attributes:
        columns: metric -> its rows, by first appearance; none is empty.
        rows: how many lines held a row, rewound ones included.
        cols: how many metrics the widest row has.
        notes: what was unusual, each with its place.
    """

    columns: dict[str, BulkColumn]
    rows: int = 0
    cols: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass
class _Column:
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: list[Any] = field(default_factory=list)


def read_log(
    path: Path,
    *,
    skip: Sequence[re.Pattern[str]] = (),
    allow_rewinds: bool = False,
    report: Callable[[int], None] = lambda count: None,
) -> TrainLog:
    """Read the log at ``path``.

    Rows may have an integer ``step``, which must increase; without any, they are counted from 0.
    Blank lines and a last line that was cut short are left out, with a note.

    Args:
        path: the file.
        skip: names to leave out; a pattern must match the whole name.
        allow_rewinds: a smaller step drops the earlier rows from there on, instead of being an error.
        report: is told now and then how many bytes more have been read.

    Raises:
        LogLineError: a line that is no row, or its step; the message has file and line.
        MetricNameError: the format cannot store a name.
    """
    reader = _LogReader(path, skip, allow_rewinds)
    with path.open("rb") as file:
        for number, line in _lines(file, report):
            reader.take(number, line)
    return reader.finish()


def _lines(file: BinaryIO, report: Callable[[int], None]) -> Iterator[tuple[int, bytes]]:
    number = unreported = 0
    for chunk in file:
        unreported += len(chunk)
        if unreported >= _CHUNK:
            report(unreported)
            unreported = 0
        for line in chunk.splitlines():  # a lone CR ends a line, too
            number += 1
            yield number, line.removeprefix(_BOM) if number == 1 else line
    report(unreported)


class _LogReader:
    def __init__(self, path: Path, skip: Sequence[re.Pattern[str]], allow_rewinds: bool) -> None:
        self._path = path
        self._skip = skip
        self._allow_rewinds = allow_rewinds
        self._columns: dict[str, _Column] = {}
        self._wanted: dict[str, bool] = {"step": False}
        self._names = PathNames()
        self._last = -1
        self._has_steps: bool | None = None
        self._blank: list[int] = []
        self._torn: LogLineError | None = None
        self._log = TrainLog({})

    def take(self, number: int, line: bytes) -> None:
        """Add one line."""
        if not line.strip():
            self._blank.append(number)
            return
        if self._torn is not None:  # it was not the last one after all
            raise self._torn
        try:
            row = parse(line)
        except ValueError as error:
            self._torn = self._error(number, f"is not JSON: {error}")
            return
        if not isinstance(row, dict):
            raise self._error(number, f"must hold an object, got {type(row).__name__}")
        step = self._step(number, row.get("step"))
        names = [name for name in row if self._is_wanted(name)]
        for name in names:
            column = self._columns.setdefault(name, _Column())
            column.steps.append(step)
            column.values.append(row[name])
        self._log.rows += 1
        self._log.cols = max(self._log.cols, len(names))

    def _step(self, number: int, step: Any) -> int:
        if self._has_steps is None:
            self._has_steps = step is not None
        if self._has_steps != (step is not None):
            before = "had one" if self._has_steps else "had none"
            raise self._error(number, f"{'has no' if step is None else 'has a'} step, and those before it {before}")
        if step is None:
            step = self._last + 1
        if type(step) is not int:
            raise self._error(number, f"needs an integer step, got {step!r:.60}")
        if not 0 <= step <= MAX_STEP:
            raise self._error(number, f"needs a step in 0 .. {MAX_STEP} (2**63 - 1), got {step}")
        if step <= self._last:
            if step == self._last or not self._allow_rewinds:
                hint = "" if step == self._last else "; if the run was resumed, --allow-rewinds drops what it redid"
                raise self._error(number, f"has step {step} after {self._last}, and steps must increase{hint}")
            self._rewind(step)
        self._last = step
        return step

    def _rewind(self, step: int) -> None:
        for name, column in list(self._columns.items()):
            kept = bisect_left(column.steps, step)
            del column.steps[kept:], column.values[kept:]
            if not kept:
                del self._columns[name]

    def _is_wanted(self, name: str) -> bool:
        wanted = self._wanted.get(name)
        if wanted is None:
            wanted = not any(pattern.fullmatch(name) for pattern in self._skip)
            if wanted:
                self._names.check(name, self._path.parent.name)
                self._names.add(name)
            self._wanted[name] = wanted
        return wanted

    def _error(self, number: int, what: str) -> LogLineError:
        return LogLineError(f"{self._path}:{number}: the line {what}")

    def finish(self) -> TrainLog:
        """Return the log once every line was taken."""
        log = self._log
        if self._torn is not None:
            log.notes.append(f"{self._torn}; it is the last one, probably cut short, and was left out")
        if self._blank:
            count = f"{len(self._blank)} blank lines were" if len(self._blank) > 1 else "a blank line was"
            log.notes.append(f"{self._path}:{self._blank[0]}: {count} left out")
        for name, column in self._columns.items():
            values = settle(column.values)
            if isinstance(values, list) and (note := _mixture(values)):
                log.notes.append(f"{self._path}: metric {name!r} {note}; it is stored as JSON")
            log.columns[name] = BulkColumn(np.array(column.steps), values)
        return log


def settle(values: list[Any]) -> NDArray[Any] | list[Any]:
    """Return JSON values as int64, uint64, float32 or float64 [n], or as they are if no type fits."""
    kinds = set(map(type, values))
    if kinds == {int}:
        low, high = min(values), max(values)
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return np.array(values, dtype)
        return values
    return _floats(values) if kinds <= {int, float} else values


def _floats(values: list[Any]) -> NDArray[Any] | list[Any]:
    integers = [at for at, value in enumerate(values) if type(value) is int]
    try:
        wide = np.array(values, np.float64)
    except OverflowError:
        return values
    if any(wide[at].item() != values[at] for at in integers):
        return values
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    beyond = np.isinf(narrow) & np.isfinite(wide)
    beyond[integers] |= narrow[integers] != wide[integers]
    if not beyond.any():
        return narrow
    first = int(beyond.argmax())
    # what came before was an f32 when the column widened
    wide[:first] = narrow[:first]
    return wide


def _mixture(values: list[Any]) -> str | None:
    """Return what to say of a column that nearly was numbers."""
    others = [value for value in values if type(value) not in (int, float)]
    if not others:
        return "holds numbers that no number type can hold together"
    if len(others) == len(values):
        return None
    shown = json.dumps(others[0], ensure_ascii=False)
    return f"holds {len(values) - len(others)} numbers and {len(others)} other values, such as {shown:.40}"
