"""CSV: a header, then a row for each step; a cell that is empty was not logged."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from adapters.importers import csv_logger
from adapters.importers.items import ImportingError, Item, Options, Report, Source, named
from adapters.importers.rows import STEPS, lines_of, step_column

WHAT: Final = "CSV with a header"
_DELIMITERS: Final = ",\t;"
_INTEGER: Final = re.compile(r"[+-]?\d{1,4000}\Z", re.ASCII)
_NUMBER: Final = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)\Z", re.ASCII | re.IGNORECASE
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LONGEST_HEADER: Final = 1 << 24
#: A cell may be a text, and a text may be long.
_LARGEST_CELL: Final = 1 << 28


def matches(path: Path) -> bool:
    """Tell a text whose first line is column names."""
    return _header(path) is not None


def below(directory: Path) -> list[Path]:
    """Return the tables in a directory, at any depth, that have a column for the step."""
    found = []
    for path in sorted([*directory.rglob("*.csv"), *directory.rglob("*.tsv")]):
        header = _header(path) if path.is_file() else None
        if header is not None and not {*STEPS}.isdisjoint(header[0]):
            found.append(path)
    return found


def sources(files: list[Path], root: Path) -> list[Source]:
    """Return a run for each table."""
    found = []
    for path, name in named(files, root):
        notes = csv_logger.notes_of(path)
        found.append(Source("csv", name, (path, notes) if notes.is_file() else (path,), partial(_read, path)))
    return found


def _header(path: Path) -> tuple[list[str], str] | None:
    """Return the column names and the delimiter of a table; ``None`` if the file does not look like one."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(_LONGEST_HEADER)
    except UnicodeDecodeError:
        return None
    if not line.strip() or _CONTROL.search(line):
        return None
    splits = [(_cells(line, delimiter), delimiter) for delimiter in _DELIMITERS]
    # a name may hold the other delimiters; one that has a step among the names is right
    names, delimiter = max(splits, key=lambda split: (not {*STEPS}.isdisjoint(split[0]), len(split[0])))
    if csv_logger.is_ours(names):
        return names, delimiter
    names = [name.strip() for name in names]
    is_header = len(names) > 1 and all(names) and len({*names}) == len(names) and not any(map(_NUMBER.match, names))
    return (names, delimiter) if is_header else None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except (csv.Error, StopIteration):
        return []


def _read(path: Path, report: Report, options: Options) -> Iterator[Item]:
    found = _header(path)
    if found is None:
        raise ImportingError(f"{path} does not begin with a row of column names, each once")
    names, delimiter = found
    is_ours = csv_logger.is_ours(names)
    column = "step" if is_ours else step_column(names, options, str(path))
    csv.field_size_limit(_LARGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="", errors="surrogateescape") as file:
        rows = _rows(path, file, delimiter, names, report)
        if is_ours:
            yield from csv_logger.read(path, names, (cells for _, cells in rows), report)
            return
        for number, cells in rows:
            row = {name: value(cell) for name, cell in zip(names, cells, strict=False) if cell.strip()}
            if column not in row:
                report.leave_out(f"rows without {column!r}")
                report.note(f"{path.name}:{number} has no {column!r}")
                continue
            yield from lines_of(row, row.pop(column), options.context)


def _rows(
    path: Path, file: TextIO, delimiter: str, names: list[str], report: Report
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each whole row behind the header."""
    lines = _Lines(file, report)
    rows = csv.reader(lines, delimiter=delimiter)
    next(rows)
    for cells in rows:
        if lines.is_torn:
            report.note(
                f"{path.name} ends without a line end: its last row may be cut short and is left out; end it with one "
                f"if it is whole"
            )
            break
        if len(cells) > len(names):
            report.leave_out("rows with more cells than the header has names")
            report.note(f"{path.name}:{rows.line_num} has {len(cells)} cells, and the header {len(names)} names")
        elif cells:
            yield rows.line_num, cells


def value(cell: str) -> Any:
    """Return a cell as the number that it spells, else as the text that it is."""
    text = cell.strip()
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _NUMBER.match(text) else cell


class _Lines:
    """The lines of a file, counted; remembers whether the last one was cut short."""

    def __init__(self, file: TextIO, report: Report) -> None:
        self._file = file
        self._report = report
        self.is_torn = False

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self._report.bytes_read += len(line)
            self.is_torn = not line.endswith(("\n", "\r"))
            yield line
