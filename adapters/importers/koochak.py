"""JSON Lines of a step and values in every line, as Koochak and many others append them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from adapters.importers import json_lines
from adapters.importers.items import Item, Options, Report, Source, named
from adapters.importers.rows import STEPS, lines_of, step_column

WHAT: Final = "JSON Lines of steps and values"


def matches(path: Path) -> bool:
    """Tell a file whose first line is an object of values, and none of a JSONLogger's."""
    row = json_lines.first_object(path)
    return row is not None and not json_lines.matches(path) and not row.keys() >= {"type", "key", "time"}


def below(directory: Path) -> list[Path]:
    """Return the files in a directory, at any depth, whose first line has a step."""
    return [path for path in sorted(directory.rglob("*.jsonl")) if path.is_file() and _has_steps(path)]


def _has_steps(path: Path) -> bool:
    # what is in a run's own folder is its hot log, or a column
    if path.parent.name == "plattli" or not matches(path):
        return False
    return not {*STEPS}.isdisjoint(json_lines.first_object(path) or ())


def sources(files: list[Path], root: Path) -> list[Source]:
    """Return a run for each file."""
    return [Source("koochak", name, (path,), partial(_read, path)) for path, name in named(files, root)]


def _read(path: Path, report: Report, options: Options) -> Iterator[Item]:
    column: str | None = None
    for number, row in json_lines.objects(path, report):
        if column is None:
            column = step_column(row, options, f"{path}:{number}")
        if column not in row:
            report.leave_out(f"rows without {column!r}")
            report.note(f"{path.name}:{number} has no {column!r}")
            continue
        step = row.pop(column)
        if absent := [name for name, value in row.items() if value is None]:
            report.leave_out("null values", len(absent))  # how many programs write what was not logged
        yield from lines_of({k: v for k, v in row.items() if v is not None}, step, options.context)
