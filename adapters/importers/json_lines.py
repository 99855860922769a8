"""JSON Lines: the file of a :class:`~loggers.JSONLogger`, which every attempt at its run appends to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from adapters.importers.items import Call, End, Item, Line, Options, Report, Source, named
from loggers.contract import STATUSES

WHAT: Final = "a JSONLogger's JSON Lines"
#: What a line of ours calls itself, and what it has beside that.
_TYPES: Final = {
    "metrics": {"context", "step"},
    "params": set(),
    "tags": {"tags"},
    "other": {"key", "value"},
    "confusion": {"matrix", "labels"},
    "finish": {"status"},
    "rewind": {"step", "rows"},  # by a CSVLogger, of its table: no verb call
}

#: What every event of a metrics group's log has.
_GROUP_EVENT: Final = {"type", "key", "time"}


def matches(path: Path) -> bool:
    """Tell a JSONLogger's file by its first line."""
    row = first_object(path)
    if row is None or row.keys() >= _GROUP_EVENT:
        return False
    fields = _TYPES.get(row["type"]) if isinstance(row.get("type"), str) else None
    return fields is not None and row.keys() >= fields


def below(directory: Path) -> list[Path]:
    """Return the files of JSONLoggers in a directory, at any depth."""
    found = [path for path in sorted(directory.rglob("*.jsonl")) if path.is_file() and matches(path)]
    return [path for path in found if not _belongs_to_a_table(path)]


def _belongs_to_a_table(path: Path) -> bool:
    table = path.name.removesuffix(".notes.jsonl")
    return table != path.name and (path.with_name(f"{table}.csv").is_file() or path.with_name(table).is_file())


def sources(files: list[Path], root: Path) -> list[Source]:
    """Return a run for each file."""
    return [Source("jsonl", name, (path,), partial(_read, path)) for path, name in named(files, root)]


def _read(path: Path, report: Report, options: Options) -> Iterator[Item]:
    return read_calls(path, report)


def read_calls(path: Path, report: Report) -> Iterator[Item]:
    """Yield the verb calls of a JSONLogger's file."""
    for number, row in objects(path, report):
        kind = row.pop("type", None)
        if kind == "rewind":
            continue
        try:
            item = _call(kind, row)
        except (KeyError, TypeError):
            item = None
        if item is None:
            report.leave_out("lines that are no verb call")
            report.note(f"{path.name}:{number} is no verb call of a JSONLogger: type {kind!r}")
        else:
            yield item


def _call(kind: Any, row: dict[str, Any]) -> Item | None:
    if kind == "metrics":
        context, epoch, step = row.pop("context"), row.pop("epoch", None), row.pop("step")
        return Line(step, context, row, epoch)
    if kind == "params":
        return Call("log_params", (row,))
    if kind == "tags":
        return Call("log_tags", (row["tags"],))
    if kind == "other":
        return Call("log_other", (row["key"], row["value"]))
    if kind == "confusion":
        return Call("log_confusion", (row.pop("matrix"), row.pop("labels")), row)
    if kind == "finish" and row["status"] in STATUSES:
        return End(row["status"])
    return None


def first_object(path: Path) -> dict[str, Any] | None:
    """Return the first line that is a JSON object, if it is among the first lines of a file at all."""
    with path.open("rb") as file:
        for _ in range(3):
            row = _parsed(file.readline(1 << 24))
            if row is not None:
                return row
    return None


def objects(path: Path, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of every line that is an object; count the others."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            report.bytes_read += len(line)
            row = _parsed(line)
            if row is not None:
                yield number, row
            elif not line.endswith(b"\n"):
                report.note(f"{path.name} ends inside line {number}, which is left out: {len(line)} bytes")
            elif line.strip():
                report.leave_out("lines that are no JSON object")
                report.note(f"{path.name}:{number} is no JSON object: {line[:60].decode(errors='replace')!r}")


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
