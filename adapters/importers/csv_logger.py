"""The table of a :class:`~loggers.CSVLogger`, which says where each row belongs, and the notes beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from adapters.importers import json_lines
from adapters.importers.items import Call, End, Item, Line, Report
from loggers._cells import name_of, value_of
from loggers.csv_logger import CARRIERS

#: What is known of a run before its first row.
_FIRST: Final = ("log_params", "log_tags")


def is_ours(header: Sequence[str]) -> bool:
    """Tell the table of a CSVLogger by its first columns."""
    return tuple(header[: len(CARRIERS)]) == CARRIERS


def notes_of(path: Path) -> Path:
    """Return where the notes of a table are."""
    return path.with_name(f"{path.name.removesuffix('.csv')}.notes.jsonl")


def read(path: Path, names: Sequence[str], rows: Iterator[list[str]], report: Report) -> Iterator[Item]:
    """Yield what the notes say, and the rows between: the notes know their steps."""
    notes = notes_of(path)
    about = list(json_lines.read_calls(notes, report)) if notes.is_file() else []
    yield from (item for item in about if isinstance(item, Call) and item.verb in _FIRST)
    metrics = [name_of(name) for name in names[len(CARRIERS) :]]
    for cells in rows:
        context, epoch, step, walltime = map(_value, cells[: len(CARRIERS)])
        values = zip(metrics, cells[len(CARRIERS) :], strict=False)
        row = {name: value_of(cell) for name, cell in values if cell}
        yield Line(step, context, row, epoch, walltime)
    yield from (item for item in about if isinstance(item, Call) and item.verb not in _FIRST)
    if about and isinstance(about[-1], End):  # else the run went on, and has not ended again
        yield about[-1]


def _value(cell: str) -> Any:
    return value_of(cell) if cell else None
