"""Rows that a live writer has logged but not yet moved into the columns."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from plattli import _jsonlines
from plattli._format import HOT, HOT_COMPACTING, MAX_STEP, check_name
from plattli.errors import CorruptRunError, UnstableRunError

_ATTEMPTS = 10
_PARSE_ATTEMPTS = 3


class _Row(NamedTuple):
    step: int
    positions: dict[str, int]  # metric -> where in values; one object for all rows with the same metrics
    values: tuple[Any, ...]


class HotRows(NamedTuple):
    """What the hot logs held at one moment.

    Attributes:
        exists: whether there was any hot log, be it empty.
        names: the metrics that occur.
    """

    exists: bool
    names: frozenset[str]
    rows: Collection[_Row]

    def column(self, name: str) -> tuple[list[int], list[Any]]:
        """Return the steps and values of one metric, in the order in which steps were first logged."""
        if name not in self.names:
            return [], []
        found = [
            (step, values[at])
            for step, positions, values in self.rows
            if (at := positions.get(name)) is not None
        ]
        return [step for step, _ in found], [value for _, value in found]


NO_HOT_ROWS = HotRows(False, frozenset(), ())


class _Parsed(NamedTuple):
    text: bytes  # complete lines only
    rows: list[_Row]


class HotReader:
    """Reads the hot logs of one metric folder, and parses what it has not parsed before."""

    def __init__(self, root: Path, run: str) -> None:
        self._active = os.path.join(root, HOT)
        self._compacting = os.path.join(root, HOT_COMPACTING)
        self._run = run
        self._parsed: list[_Parsed] = []
        self._shapes: dict[tuple[str, ...], dict[str, int]] = {}
        self._checked: set[str] = set()  # names

    def read(self) -> HotRows:
        """Return the rows of both logs; of two rows for one step the later one counts.

        Whoever reads columns after this call finds every row in one place or the other.

        Raises:
            CorruptRunError: a line, other than the last of its file, is not a row.
            MetricNameError: a row holds a name that the format does not allow.
            UnstableRunError: the writer rotates its log faster than it can be read.
        """
        for attempt in range(_PARSE_ATTEMPTS):
            texts = self._texts()
            try:
                parsed = [self._parse(text) for text in texts]
                break
            except CorruptRunError:  # perhaps a write that was only half visible
                if attempt == _PARSE_ATTEMPTS - 1:
                    raise
        self._parsed = [log for log, _ in parsed]
        rows = {row.step: row for log, tail in parsed for row in (*log.rows, *tail)}.values()
        shapes = {id(row.positions): row.positions for row in rows}.values()
        self._shapes = {tuple(shape): shape for shape in shapes}
        return HotRows(bool(texts), frozenset().union(*shapes), rows)

    def _texts(self) -> list[bytes]:
        # A writer turns the active log into the compacting one by renaming it. If the compacting log is
        # the same before and after the active one was read, no rows slipped from one to the other.
        for _ in range(_ATTEMPTS):
            with ExitStack() as files:
                compacting = _open(self._compacting, files)
                active = _open(self._active, files)
                texts = [file.read() for file in (compacting, active) if file is not None]
                try:
                    after = os.stat(self._compacting)
                except (FileNotFoundError, NotADirectoryError):
                    return texts
                # held open, so that its inode cannot be used again for another file
                if compacting is not None and os.path.samestat(os.fstat(compacting.fileno()), after):
                    return texts
        raise UnstableRunError(f"run {self._run!r} rotates its hot log faster than it can be read: try again")

    def _parse(self, text: bytes) -> tuple[_Parsed, list[_Row]]:
        # the rows that end with a newline, which are worth keeping, and the one behind them
        known = max(
            (log for log in self._parsed if text.startswith(log.text)),
            key=lambda log: len(log.text),
            default=_Parsed(b"", []),
        )
        rows = list(known.rows)
        kept, kept_end = len(rows), len(known.text)
        end = kept_end
        for line in text[kept_end:].splitlines(keepends=True):
            end += len(line)
            try:
                value = _jsonlines.parse(line.rstrip(b"\r\n"))
            except ValueError as error:
                if end == len(text):  # torn, or still being written
                    break
                raise CorruptRunError(f"{self._where(len(rows) + 1)} is not JSON: {error}") from error
            rows.append(self._row(value, len(rows) + 1))
            if line.endswith(b"\n"):
                kept, kept_end = len(rows), end
        return _Parsed(text[:kept_end], rows[:kept]), rows[kept:]

    def _row(self, value: Any, number: int) -> _Row:
        where = self._where(number)
        if not isinstance(value, dict) or "step" not in value:
            raise CorruptRunError(f"{where} is not a row with a step: {value!r:.200}")
        try:
            step = int(value.pop("step"))
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptRunError(f"{where} has a step that is not an integer") from error
        if not 0 <= step <= MAX_STEP:
            raise CorruptRunError(f"{where} has step {step}, which is not in 0 .. {MAX_STEP}")
        names = tuple(value)
        if names not in self._shapes:
            for name in value.keys() - self._checked:
                self._checked.add(check_name(name, self._run))
            self._shapes[names] = {name: at for at, name in enumerate(names)}
        return _Row(step, self._shapes[names], tuple(value.values()))

    def _where(self, line: int) -> str:
        return f"hot log of run {self._run!r}: line {line}"


def _open(path: str, files: ExitStack) -> BinaryIO | None:
    try:
        return files.enter_context(open(path, "rb"))
    except (FileNotFoundError, NotADirectoryError):
        return None
