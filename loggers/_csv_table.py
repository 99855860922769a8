"""The text of a ``CSVLogger``'s table: a head, and a line for each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from loggers._cells import name_cell, name_of
from loggers.errors import LoggerError

#: The first columns, which say where a row belongs. A metric of such a name has it in quotes.
CARRIERS: Final = ("context", "epoch", "step", "walltime")
_RESERVED: Final = frozenset(CARRIERS)
#: What a row, and a cell of it, costs in memory beside its text.
_ROW, _CELL = 400, 80


class Row(NamedTuple):
    """One row.

    Attributes:
        step: as a number; it is among the carriers, too.
        carriers: the first cells.
        cells: metric -> cell.
    """

    step: int
    carriers: tuple[str, ...]
    cells: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return _ROW + sum(_CELL + len(text) for text in self.cells.values())


def line_of(cells: Iterable[str]) -> bytes:
    """Return a line."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def head_of(columns: Iterable[str]) -> bytes:
    """Return the first line of a table with some metrics."""
    return line_of([*CARRIERS, *(name_cell(name, _RESERVED) for name in columns)])


def read_table(path: Path) -> tuple[list[str], int, int]:
    """Return a file's metrics, how many rows it has, and how many bytes up to the last that is complete.

    Raises:
        LoggerError: it is none of a CSVLogger.
    """
    if not path.exists():
        return [], 0, 0
    with path.open("rb") as file:
        head = file.readline()
        if not head.endswith(b"\n"):
            # nothing, or half a head, which is as good as nothing
            if head and not head_of([]).startswith(head[: len(head_of([])) - 1]):
                raise LoggerError(f"{path} is no table of a CSVLogger: it begins with {head[:80]!r}; name another file")
            return [], 0, 0
        try:
            (cells,) = csv.reader([head.decode()])
            names = [name_of(text) for text in cells[len(CARRIERS) :]]
        except (ValueError, csv.Error):
            cells = names = []
        if tuple(cells[: len(CARRIERS)]) != CARRIERS:
            raise LoggerError(f"{path} is no table of a CSVLogger: it begins with {head[:80]!r}; name another file")
        rows, size = 0, len(head)
        for line in file:
            if not line.endswith(b"\n"):
                break
            rows, size = rows + 1, size + len(line)
    return names, rows, size
