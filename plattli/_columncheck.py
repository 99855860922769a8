"""Check one metric: its manifest entry, its files against each other, and its hot rows behind them.

Row counts, steps and hot values are taken from the reader's own classes, so that a check and a reader cannot
disagree on what can be read. Nothing here writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Final

import numpy as np

from plattli import _indices, _jsonlines
from plattli._finding import Findings, Fix, MakeEmpty
from plattli._format import (
    BYTES,
    HOT,
    MANIFEST,
    MAX_NARROW_STEP,
    MAX_STEP,
    indices_file,
    run_name,
    step_dtype,
    value_file,
)
from plattli._hotreader import HotRows
from plattli._source import Archive, Blob, Folder
from plattli._stored import OBJECT, MetricRows, Stored, storage_dtype
from plattli.errors import MissingFileError, PlattliError

#: How many bad lines of one file are listed.
MANY: Final = 20
#: What inspecting a damaged file may raise.
UNREADABLE: Final = (PlattliError, OSError)
#: Rows that are looked at at a time.
_CHUNK: Final = 1 << 18

Offsets = np.ndarray[Any, np.dtype[np.int64]]


class ColumnCheck:
    """Checks the metrics of one source, one after another.

    Attributes:
        owned: the files that the manifest entries speak of.
        unsure: metrics whose other files may be all there is of them.
    """

    def __init__(
        self, source: Folder | Archive, findings: Findings, hot: HotRows, hot_lines: dict[int, tuple[str, int, int]]
    ) -> None:
        """Describe the surroundings of the metrics.

        Args:
            source: the files.
            findings: where to say what is wrong.
            hot: the hot rows that readers see.
            hot_lines: where they stand: step -> file, line, byte offset.
        """
        self.owned: set[str] = set()
        self.unsure: set[str] = set()
        self._source = source
        self._findings = findings
        self._hot = hot
        self._hot_lines = hot_lines
        self._run = run_name(source.root)

    def check(self, name: str, spec: dict[str, Any]) -> int:
        """Check one metric and return how many stored rows a reader gets."""
        before = len(self._findings.all)
        self.unsure.add(name)
        rows = 0
        try:
            rows = self._check(name, spec)
        except UNREADABLE as error:
            if not self._findings.has_error_since(before):
                file = value_file(name, spec["dtype"])
                self._findings.add("error", "unreadable", file, f"cannot be read: {error}", metric=name)
        if self._findings.drop_fixes_beside_errors(before):
            self.unsure.add(name)
        return rows

    def _check(self, name: str, spec: dict[str, Any]) -> int:
        where = f"metric {name!r} (run {self._run!r})"
        wide = _indices.is_wide(spec["indices"])
        values_file, steps_file = value_file(name, spec["dtype"]), indices_file(name, wide)
        step_size = step_dtype(wide).itemsize
        try:
            dtype = storage_dtype(spec, where)
        except PlattliError as error:
            self._findings.add("error", "dtype", MANIFEST, str(error), metric=name)
            return 0
        self.owned.add(values_file)
        try:
            segments = _indices.parse(spec["indices"], name, self._run)
        except PlattliError as error:
            self.owned.add(steps_file)
            self._findings.add("error", "segments", MANIFEST, str(error), metric=name)
            return 0
        if segments is None:
            self.owned.add(steps_file)
        with ExitStack() as files:
            values = self._open(values_file, files)
            steps = self._open(steps_file, files) if segments is None else None
            lines = _jsonlines.LineIndex() if dtype == OBJECT and values is not None else None
            offsets = lines.update(values) if lines is not None and values is not None else None
            have = _complete(values, offsets, dtype)
            promised = _promised(segments, steps, have, step_size)
            if values is not None or segments == []:
                self.unsure.discard(name)
            if segments is None and steps is None:
                self._missing(name, steps_file, "steps", have)
            if values is None and segments != []:
                self._missing(name, values_file, "values", promised)
            if values is not None:
                self._check_tail(name, values_file, values, offsets, dtype, have)
            if steps is not None and steps.size % step_size:
                self._torn(steps_file, promised * step_size, steps.size, "step", name)
            if values is not None and have > promised and (segments is not None or steps is not None):
                at = int(offsets[promised]) if offsets is not None else promised * dtype.itemsize
                self._findings.add(
                    "warning", "uncovered-values", values_file,
                    f"{_count(have - promised, 'value has', 'values have')} no step, so no reader returns them",
                    metric=name, offset=at, fix=self._findings.cut(values_file, at, values.size),
                )  # fmt: skip
            if values is not None and promised > have:
                self._check_missing_values(name, segments, steps_file, steps, promised, have, wide)
            # like a reader: without segments there are no rows, whatever the file holds
            stored = Stored(where, dtype, segments, None if segments == [] else values, steps, lines, wide=wide)
            self._check_steps(name, stored, segments, steps_file)
            if offsets is not None and values is not None:
                self._check_json(name, values_file, values, offsets, stored.rows)
            if BYTES in spec:
                is_whole = offsets is not None and have == promised and _is_whole(values, offsets)
                self._check_bytes(name, spec[BYTES], values.size if is_whole and values is not None else None)
            self._check_flag(name, spec.get("monotonic"), stored)
            self._check_hot(name, stored)
            return stored.rows

    def _open(self, file: str, files: ExitStack) -> Blob | None:
        try:
            return files.enter_context(self._source.open(file))
        except MissingFileError:
            return None

    # ---- files

    def _missing(self, name: str, file: str, what: str, rows: int) -> None:
        words = f"the file is missing, with the {what}{f' of {_rows(rows)}' if rows else ''}"
        if self._hot.exists:
            # readers of a live run take it for a metric whose files are still to come
            if rows > len(self._hot.column(name)[0]):
                self._findings.add("warning", "missing-file", file, words, metric=name)
            return
        fix = None if rows else MakeEmpty(self._findings.root / file)
        self._findings.add("error", "missing-file", file, words, metric=name, fix=fix)

    def _torn(self, file: str, at: int, size: int, what: str, name: str) -> None:
        self._findings.add(
            "warning", "torn-tail", file,
            f"the last {what} is torn: {_count(size - at, 'stray byte', 'stray bytes')} at the end",
            metric=name, offset=at, fix=self._findings.cut(file, at, size),
        )  # fmt: skip

    def _check_tail(
        self, name: str, file: str, values: Blob, offsets: Offsets | None, dtype: np.dtype[Any], have: int
    ) -> None:
        if offsets is None:
            if values.size % dtype.itemsize:
                self._torn(file, have * dtype.itemsize, values.size, "value", name)
            return
        end = int(offsets[-1])
        if end < values.size:
            tail = values.read(end, values.size - end)
            self._findings.torn_line(file, tail, have + 1, end, values.size, metric=name)
        elif have and values.read(end - 1, 1) not in (b"\n", b"\r"):
            self._findings.unended_line(file, end, have, metric=name)

    def _check_missing_values(
        self,
        name: str,
        segments: list[_indices.Segment] | None,
        file: str,
        steps: Blob | None,
        promised: int,
        have: int,
        wide: bool,
    ) -> None:
        count, step_size = promised - have, step_dtype(wide).itemsize
        hot, _ = self._hot.column(name)
        if count <= len(hot):
            if segments is not None:
                missing = _indices.to_array(segments, promised, have, wide=wide)
            else:
                data = b"" if steps is None else steps.read(have * step_size, count * step_size)
                missing = np.frombuffer(data, step_dtype(wide))
            if set(missing.tolist()) <= set(hot):
                self._findings.add(
                    "note", "interrupted-batch", MANIFEST if segments is not None else file,
                    f"{_rows(count)} on the way into the columns, still read from the hot log", metric=name,
                )  # fmt: skip
                return
        what = f"{_count(promised, 'step', 'steps')}, but only {_count(have, 'value', 'values')}: " \
               f"{_count(count, 'value is', 'values are')} missing"  # fmt: skip
        if segments is None:
            at = have * step_size
            fix: Fix = self._findings.cut(file, at, 0 if steps is None else steps.size)
            self._findings.add("warning", "missing-values", file, what, metric=name, offset=at, fix=fix)
        else:
            fix = self._findings.amend(name, "indices", _indices.spell(_indices.close(segments, have), wide))
            self._findings.add("warning", "missing-values", MANIFEST, what, metric=name, fix=fix)

    # ---- rows

    def _check_steps(self, name: str, stored: Stored, segments: object, file: str) -> None:
        if segments is not None:
            if stored.rows:
                try:
                    stored.steps(stored.rows - 1, stored.rows)  # an open tail may run out of the range of steps
                except PlattliError as error:
                    self._findings.add("error", "segments", MANIFEST, str(error), metric=name)
                    raise
            return
        repeated = backwards = 0
        first: tuple[int, int, int] | None = None
        for low in range(0, stored.rows, _CHUNK):
            begin = max(low - 1, 0)
            steps = stored.steps(begin, min(low + _CHUNK, stored.rows)).astype(np.int64)
            if (steps < 0).any():
                at = begin + int((steps < 0).argmax())
                what = f"step {int(stored.steps(at, at + 1)[0])} of row {at} is above {MAX_STEP}"
                self._findings.add(
                    "error", "step-range", file, what, metric=name, offset=at * stored.step_dtype.itemsize
                )
                return
            gaps = np.diff(steps)
            repeated += int((gaps == 0).sum())
            backwards += int((gaps < 0).sum())
            wrong = np.flatnonzero(gaps <= 0)
            if first is None and len(wrong):
                at = int(wrong[0]) + 1
                first = begin + at, int(steps[at]), int(steps[at - 1])
        if first is not None:
            row, step, earlier = first
            self._findings.add(
                "warning", "step-order", file,
                f"steps do not rise: {backwards} go back and {repeated} repeat, first step {step} of row {row} "
                f"after step {earlier}",
                metric=name, offset=row * stored.step_dtype.itemsize,
            )  # fmt: skip

    def _check_json(self, name: str, file: str, values: Blob, offsets: Offsets, rows: int) -> None:
        bad = 0
        for low in range(0, rows, _CHUNK):
            high = min(low + _CHUNK, rows)
            start = int(offsets[low])
            data = values.read(start, int(offsets[high]) - start)
            try:
                _jsonlines.parse_all(data)
                continue
            except ValueError:
                ends = (offsets[low : high + 1] - start).tolist()
            for row, (begin, end) in enumerate(pairwise(ends), low):
                problem = _json_problem(data[begin:end])
                bad += problem is not None
                if problem is not None and bad <= MANY:
                    self._findings.add(
                        "error", "bad-line", file, f"the line is not JSON: {problem}",
                        metric=name, line=row + 1, offset=start + begin,
                    )  # fmt: skip
        if bad > MANY:
            self._findings.add("error", "bad-line", file, f"{bad - MANY} more lines are bad", metric=name)

    def _check_bytes(self, name: str, got: object, size: int | None) -> None:
        if type(got) is int and got == size:
            return
        should = "not be there" if size is None else f"be {size}, as many as the file has"
        self._findings.add(
            "warning", "bytes", MANIFEST,
            f"bytes, with which readers of a finished run save counting lines, should {should}, got {got!r:.80}",
            metric=name, fix=self._findings.amend(name, BYTES, size),
        )  # fmt: skip

    def _check_flag(self, name: str, flag: object, stored: Stored) -> None:
        # of a metric without stored rows, writers may say what its hot rows are like
        if flag is None or (stored.dtype != OBJECT and not stored.rows):
            return
        right = None
        if stored.dtype != OBJECT:
            rises, falls = _order(stored)
            right = "inc" if rises else "dec" if falls else None
            if flag == right:
                return
            if (flag == "inc" and not rises) or (flag == "dec" and not falls):
                what = f"monotonic is {flag!r}, but the values are not sorted so: reads by value return wrong rows"
                fix = self._findings.amend(name, "monotonic", right)
                self._findings.add("error", "monotonic", MANIFEST, what, metric=name, fix=fix)
                return
        should = f"be {right!r}" if right else "not be there"
        self._findings.add(
            "warning", "monotonic", MANIFEST, f"monotonic should {should}, got {flag!r:.80}",
            metric=name, fix=self._findings.amend(name, "monotonic", right),
        )  # fmt: skip

    # ---- hot rows

    def _check_hot(self, name: str, stored: Stored) -> None:
        try:
            MetricRows(name, self._run, stored, self._hot)
        except PlattliError as error:
            self._find_hot_value(name, stored, error)
            raise
        hot, _ = self._hot.column(name)
        if stored.step_dtype == np.uint32 and (high := max(hot, default=0)) > MAX_NARROW_STEP:
            file, line, offset = self._hot_lines.get(high, (HOT, None, None))
            self._findings.add(
                "warning", "unannounced-step", file,
                f"the manifest does not say that the metric has steps such as {high}, so older readers may misread "
                f"them; a writer that opens the run puts that right",
                metric=name, line=line, offset=offset,
            )  # fmt: skip
        last = int(stored.steps(stored.rows - 1, stored.rows)[0]) if stored.rows else -1
        if not hot or min(hot) > last:
            return
        first = min(hot)
        steps = stored.steps(0, stored.rows)
        later = set(steps[steps >= first].tolist())
        file, line, offset = self._hot_lines.get(first, (HOT, None, None))
        if later - set(hot):
            self._findings.add(
                "warning", "buried-row", file,
                f"the row at step {first} lies below stored rows, which go up to step {last}, and is not shown; "
                f"opening the run with a writer of this package puts it in its place, others may drop what follows",
                metric=name, line=line, offset=offset,
            )  # fmt: skip
        elif hidden := {step for step in hot if step <= last} - later:
            self._findings.add(
                "note", "interrupted-insertion", file,
                f"{_rows(len(hidden))} below step {last} will be shown when a writer has opened the run again",
                metric=name, line=line, offset=offset,
            )  # fmt: skip

    def _find_hot_value(self, name: str, stored: Stored, error: PlattliError) -> None:
        """Say in which line the hot value is that does not fit the column."""
        nothing = Stored("", stored.dtype)
        for row in self._hot.rows:
            try:
                MetricRows(name, self._run, nothing, self._hot._replace(rows=[row]))
            except PlattliError:
                file, line, offset = self._hot_lines.get(row.step, (HOT, None, None))
                self._findings.add("error", "hot-value", file, str(error), metric=name, line=line, offset=offset)
                return


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _rows(number: int) -> str:
    return _count(number, "row", "rows")


def _complete(values: Blob | None, offsets: Offsets | None, dtype: np.dtype[Any]) -> int:
    """Return how many whole values there are."""
    if values is None:
        return 0
    return values.size // dtype.itemsize if offsets is None else len(offsets) - 1


def _is_whole(values: Blob | None, offsets: Offsets) -> bool:
    """Tell whether a file of JSON lines ends with a line and its newline, or is empty."""
    if values is None or not values.size:
        return True
    return int(offsets[-1]) == values.size and values.read(values.size - 1, 1) == b"\n"


def _promised(segments: list[_indices.Segment] | None, steps: Blob | None, have: int, step_size: int) -> int:
    """Return how many steps there are; an open tail has as many as there are values."""
    if segments is None:
        return 0 if steps is None else steps.size // step_size
    if segments and segments[-1].stop is None:
        return have
    return _indices.count(segments, MAX_STEP + 1)


def _json_problem(line: bytes) -> str | None:
    try:
        _jsonlines.parse(line.rstrip(b"\r\n"))
    except ValueError as error:
        return str(error)
    return None


def _order(stored: Stored) -> tuple[bool, bool]:
    """Tell whether the values never fall, and whether they never rise; with a NaN neither holds."""
    rises = falls = True
    for low in range(0, stored.rows, _CHUNK):
        values = stored.values(max(low - 1, 0), min(low + _CHUNK, stored.rows))
        earlier, later = values[:-1], values[1:]
        # a NaN compares as false, but one that is alone has nobody to be compared with
        sane = len(values) > 1 or bool(values[0] == values[0])
        rises = rises and sane and bool((later >= earlier).all())
        falls = falls and sane and bool((later <= earlier).all())
    return rises, falls
