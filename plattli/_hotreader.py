"""Rows that a live writer has logged but not yet moved into the columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from plattli import _jsonlines
from plattli._format import HOT, HOT_COMPACTING, MAX_STEP, check_name
from plattli.errors import CorruptRunError, UnstableRunError

_ATTEMPTS = 10
_PARSE_ATTEMPTS = 3

Row = tuple[int, dict[str, Any]]


class HotRows(NamedTuple):
    """What the hot logs held at one moment.

    Attributes:
        exists: whether there was any hot log, be it empty.
        rows: step -> the metrics of that step, in the order in which the steps were first logged.
        names: the metrics that occur.
    """

    exists: bool
    rows: dict[int, dict[str, Any]]
    names: frozenset[str]

    def column(self, name: str) -> tuple[list[int], list[Any]]:
        """Return the steps and values of one metric, in the order in which they were logged."""
        if name not in self.names:
            return [], []
        found = [(step, row[name]) for step, row in self.rows.items() if name in row]
        return [step for step, _ in found], [value for _, value in found]


NO_HOT_ROWS = HotRows(False, {}, frozenset())


class _Parsed(NamedTuple):
    text: bytes  # complete lines only
    rows: list[Row]


class HotReader:
    """Reads the hot logs of one metric folder, and parses what it has not parsed before."""

    def __init__(self, root: Path, run: str) -> None:
        self._active = os.path.join(root, HOT)
        self._compacting = os.path.join(root, HOT_COMPACTING)
        self._run = run
        self._parsed: list[_Parsed] = []

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
        rows = dict(row for log, tail in parsed for row in (*log.rows, *tail))
        return HotRows(bool(texts), rows, self._names(rows))

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
                except FileNotFoundError:
                    return texts
                # held open, so that its inode cannot be used again for another file
                if compacting is not None and os.path.samestat(os.fstat(compacting.fileno()), after):
                    return texts
        raise UnstableRunError(f"run {self._run!r} rotates its hot log faster than it can be read: try again")

    def _parse(self, text: bytes) -> tuple[_Parsed, list[Row]]:
        # the rows that end with a newline, which are worth keeping, and the last one if it does not
        known = max(
            (log for log in self._parsed if text.startswith(log.text)),
            key=lambda log: len(log.text),
            default=_Parsed(b"", []),
        )
        complete = text.rfind(b"\n") + 1
        lines = text[len(known.text) :].splitlines(keepends=True)
        rows = list(known.rows)
        for number, line in enumerate(lines, len(rows) + 1):
            try:
                value = _jsonlines.parse(line.rstrip(b"\r\n"))
            except ValueError as error:
                if number == len(known.rows) + len(lines):  # torn, or still being written
                    return _Parsed(text[: -len(line)], rows), []
                raise CorruptRunError(f"hot log of run {self._run!r}: line {number} is not JSON: {error}") from error
            rows.append(self._row(value, number))
        if complete == len(text):
            return _Parsed(text, rows), []
        return _Parsed(text[:complete], rows[:-1]), rows[-1:]

    def _row(self, value: Any, number: int) -> Row:
        where = f"hot log of run {self._run!r}: line {number}"
        if not isinstance(value, dict) or "step" not in value:
            raise CorruptRunError(f"{where} is not a row with a step: {value!r:.200}")
        try:
            step = int(value.pop("step"))
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptRunError(f"{where} has a step that is not an integer") from error
        if not 0 <= step <= MAX_STEP:
            raise CorruptRunError(f"{where} has step {step}, which is not in 0 .. {MAX_STEP}")
        return step, value

    def _names(self, rows: dict[int, dict[str, Any]]) -> frozenset[str]:
        names: set[str] = set()
        for row in rows.values():
            for name in row.keys() - names:
                names.add(check_name(name, self._run))
        return frozenset(names)


def _open(path: str, files: ExitStack) -> BinaryIO | None:
    try:
        return files.enter_context(open(path, "rb"))
    except FileNotFoundError:
        return None
