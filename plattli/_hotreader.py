"""Rows that a live writer has logged but not yet moved into the columns.

A writer appends to its hot log, renames it when the rows in it are to move, and replaces it by another
file when rows in the middle change. So while nothing was renamed in the folder, the log is the one that
was read before, and only what was appended is read. Otherwise the whole log is read and compared with
what is known of it, and only what differs is parsed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from plattli import _jsonlines
from plattli._format import HOT, HOT_COMPACTING, MAX_STEP, check_name
from plattli._hotlines import HotLines
from plattli.errors import CorruptRunError, UnstableRunError

_ATTEMPTS = 10
_PARSE_ATTEMPTS = 3
#: Names may change again within one tick of a file system's clock without its telling; two seconds is the
#: coarsest tick there is.
_TICK_NS = 2 * 10**9
#: From which size on a log is not parsed for one metric, and for how many metrics it is not.
_BIG = 1 << 18
_FEW = 8
#: How many bytes that are known already are read again, to see that they are still the same.
_OVERLAP = 256


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


class LazyHotRows:
    """The same, parsed when somebody wants more than the rows of a few metrics."""

    exists = True

    def __init__(self, lines: HotLines, parse: Callable[[], HotRows], read: Callable[[], HotRows]) -> None:
        self._lines = lines
        self._parse = parse
        self._read = read
        self._whole: HotRows | None = None
        self._asked: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        """See :class:`HotRows`."""
        try:
            return self._parsed().names
        except CorruptRunError:  # perhaps a write that was only half visible
            self._whole = self._read()
            return self._whole.names

    def column(self, name: str) -> tuple[list[int], list[Any]]:
        """See :class:`HotRows`. Does not read again: the columns may have been read since."""
        self._asked.add(name)
        if self._whole is None and len(self._asked) <= _FEW:
            return self._lines.column(name)
        return self._parsed().column(name)

    def _parsed(self) -> HotRows:
        if self._whole is None:
            self._whole = self._parse()
        return self._whole


NO_HOT_ROWS = HotRows(False, frozenset(), ())


class _Parsed:
    """The complete lines of a log, and their rows."""

    def __init__(self, text: bytearray, rows: list[_Row]) -> None:
        self.text = text
        self.rows = rows


class _Look(NamedTuple):
    """One look at the logs, from which a later look can go on."""

    folder: tuple[int, ...]
    active: tuple[int, int] | None  # device and inode
    log: _Parsed
    size: int  # of the active log, with the last line that is not complete
    rows: dict[int, _Row]
    hot: HotRows


class HotReader:
    """Reads the hot logs of one metric folder, and parses what it has not parsed before."""

    def __init__(self, root: Path | str, run: str) -> None:
        self._root = root
        self._active = os.path.join(root, HOT)
        self._compacting = os.path.join(root, HOT_COMPACTING)
        self._run = run
        self._parsed: list[_Parsed] = []
        self._shapes: dict[tuple[str, ...], dict[str, int]] = {}
        self._checked: set[str] = set()  # names
        self._last: _Look | None = None
        self._has_looked = False

    def look(self) -> HotRows | LazyHotRows:
        """Do what :meth:`read` does; but the first time, parse a big log only when that is needed.

        What is wrong with it may be raised as late as that. Later looks parse what was appended.
        """
        if not self._has_looked:
            self._has_looked = True
            texts, _ = self._texts()
            if sum(map(len, texts)) >= _BIG:
                lines = HotLines.of(texts, self._values)
                if lines is not None:
                    return LazyHotRows(lines, lambda: self._whole(texts), self.read)
        return self.read()

    def _values(self, line: bytes, step: int) -> dict[str, Any]:
        where = f"hot log of run {self._run!r}: the line of step {step}"
        try:
            value = _jsonlines.parse(line)
        except ValueError as error:
            raise CorruptRunError(f"{where} is not JSON: {error}") from error
        row = self._row(value, where)
        return {name: row.values[at] for name, at in row.positions.items()}

    def _whole(self, texts: list[bytes]) -> HotRows:
        parsed = self._parse(texts)
        self._parsed = [log for log, _ in parsed]
        return self._hot_rows(True, {row.step: row for log, tail in parsed for row in (*log.rows, *tail)})

    def read(self) -> HotRows:
        """Return the rows of both logs; of two rows for one step the later one counts.

        Whoever reads columns after this call finds every row in one place or the other.

        Raises:
            CorruptRunError: a line, other than the last of its file, is not a row.
            MetricNameError: a row holds a name that the format does not allow.
            UnstableRunError: the writer rotates its log faster than it can be read.
        """
        folder = _settled(self._root)
        last, self._last = self._last, None
        if last is not None and folder == last.folder:
            self._last = self._grown(last)
            if self._last is not None:
                return self._last.hot
        for attempt in range(_PARSE_ATTEMPTS):
            texts, active = self._texts()
            try:
                parsed = self._parse(texts)
                break
            except CorruptRunError:  # perhaps a write that was only half visible
                if attempt == _PARSE_ATTEMPTS - 1:
                    raise
        self._parsed = [log for log, _ in parsed]
        rows = {row.step: row for log, tail in parsed for row in (*log.rows, *tail)}
        hot = self._hot_rows(bool(texts), rows)
        if folder is not None:
            log, size = (self._parsed[-1], len(texts[-1])) if active else (_Parsed(bytearray(), []), 0)
            self._last = _Look(folder, active, log, size, rows, hot)
        return hot

    def _hot_rows(self, exists: bool, rows: dict[int, _Row]) -> HotRows:
        shapes = {id(row.positions): row.positions for row in rows.values()}.values()
        self._shapes = {tuple(shape): shape for shape in shapes}
        return HotRows(exists, frozenset().union(*shapes), rows.values())

    def _grown(self, last: _Look) -> _Look | None:
        """Read what was appended since the last look, ``None`` if the log is not what it was."""
        with ExitStack() as files:
            file = _open(self._active, files)
            if file is None or last.active is None:
                return last if file is None and last.active is None else None
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != last.active or status.st_size < last.size:
                return None
            if status.st_size == last.size:
                return last
            known = bytes(last.log.text[-_OVERLAP:])
            file.seek(len(last.log.text) - len(known))
            text = file.read()
            if not text.startswith(known):  # somebody wrote over the file
                return None
            text = text[len(known) :]
        try:
            complete, tail, length = self._parse_lines(text, len(last.log.rows))
        except CorruptRunError:  # perhaps a write that was only half visible: it is looked at again
            return None
        last.log.text += text[:length]
        last.log.rows += complete
        rows = last.rows.copy()
        rows.update((row.step, row) for row in (*complete, *tail))
        if len(rows) == len(last.rows) + len(complete) + len(tail):
            names = last.hot.names.union(*{id(row.positions): row.positions for row in (*complete, *tail)}.values())
            hot = HotRows(True, names, rows.values())
        else:  # a row was replaced, and with it perhaps the only value of a metric
            hot = self._hot_rows(True, rows)
        return last._replace(size=len(last.log.text) + len(text) - length, rows=rows, hot=hot)

    def _texts(self) -> tuple[list[bytes], tuple[int, int] | None]:
        # A writer turns the active log into the compacting one by renaming it. If the compacting log is
        # the same before and after the active one was read, no rows slipped from one to the other.
        for _ in range(_ATTEMPTS):
            with ExitStack() as files:
                compacting = _open(self._compacting, files)
                active = _open(self._active, files)
                texts = [file.read() for file in (compacting, active) if file is not None]
                status = None if active is None else os.fstat(active.fileno())
                identity = None if status is None else (status.st_dev, status.st_ino)
                try:
                    after = os.stat(self._compacting)
                except (FileNotFoundError, NotADirectoryError):
                    return texts, identity
                # held open, so that its inode cannot be used again for another file
                if compacting is not None and os.path.samestat(os.fstat(compacting.fileno()), after):
                    return texts, identity
        raise UnstableRunError(f"run {self._run!r} rotates its hot log faster than it can be read: try again")

    def _parse(self, texts: list[bytes]) -> list[tuple[_Parsed, list[_Row]]]:
        # of each log the rows that end with a newline, which are worth keeping, and the one behind them
        known = list(self._parsed)
        parsed = []
        for text in texts:
            start = [log for log in known if text.startswith(log.text)]
            log = max(start, key=lambda log: len(log.text), default=_Parsed(bytearray(), []))
            if start:
                known.remove(log)  # it grows: no other log may begin with it
            at = len(log.text)
            complete, tail, length = self._parse_lines(text[at:], len(log.rows))
            log.text += text[at : at + length]
            log.rows += complete
            parsed.append((log, tail))
        return parsed

    def _parse_lines(self, text: bytes, number: int) -> tuple[list[_Row], list[_Row], int]:
        """Parse what follows the first ``number`` rows.

        Returns:
            The rows that end with a newline, the one behind them, if any, and where that one begins.
        """
        rows: list[_Row] = []
        complete = end = length = 0
        for line in text.splitlines(keepends=True):
            end += len(line)
            try:
                value = _jsonlines.parse(line.rstrip(b"\r\n"))
            except ValueError as error:
                if end == len(text):  # torn, or still being written
                    break
                raise CorruptRunError(f"{self._where(number + len(rows) + 1)} is not JSON: {error}") from error
            rows.append(self._row(value, self._where(number + len(rows) + 1)))
            if line.endswith(b"\n"):
                complete, length = len(rows), end
        return rows[:complete], rows[complete:], length

    def _row(self, value: Any, where: str) -> _Row:
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


def _settled(folder: Path | str) -> tuple[int, ...] | None:
    """Return what changes with every new name in a folder; ``None`` if it may be too new to tell."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    if time.time_ns() - status.st_mtime_ns < _TICK_NS:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
