"""A metrics group: a folder of Zarr arrays with a live log beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from adapters import _require
from adapters.backends.metrics_group import open_group
from adapters.importers import json_lines
from adapters.importers.items import Call, End, Item, Line, Options, Report, Source
from adapters.importers.metrics_group import calls
from loggers.contract import STATUSES

WHAT: Final = "metrics groups"
_LOG: Final = "metrics.jsonl"
_CATALOG: Final = "zarr.json"
#: What every event of the log has.
_EVENT: Final = {"type", "key", "time"}


def matches(path: Path) -> bool:
    """Tell the log or the catalog of a group, which stand for their folder."""
    if path.name == _CATALOG:
        try:
            attributes = json.loads(path.read_bytes())["attributes"]
        except (ValueError, KeyError, TypeError):
            return False
        return isinstance(attributes, dict) and isinstance(attributes.get("series"), dict)
    row = json_lines.first_object(path) if path.name == _LOG else None
    return row is not None and row.keys() >= _EVENT


def below(directory: Path) -> list[Path]:
    """Return the logs and catalogs of groups in a directory, at any depth."""
    found = sorted([*directory.rglob(_LOG), *directory.rglob(_CATALOG)])
    return [path for path in found if path.is_file() and matches(path)]


def sources(files: list[Path], root: Path) -> list[Source]:
    """Return a run for each folder."""
    folders = dict.fromkeys(path.parent for path in files)
    return [
        Source(
            "group",
            "" if len(folders) == 1 else str(folder.relative_to(root)),
            tuple(path for name in (_CATALOG, _LOG) if (path := folder / name).is_file()),
            partial(_read, folder),
        )
        for folder in folders
    ]


def _read(folder: Path, report: Report, options: Options) -> Iterator[Item]:
    _require.require("zarr", extra="zarr", who="importing a metrics group")
    group = open_group(folder)
    for verb, args, kwargs in calls(group, options.context):
        if verb == "log_metrics":
            axes = dict(kwargs)
            yield Line(axes.pop("step"), axes.pop("context"), args[0], axes.pop("epoch", None), axes.get("walltime"))
        else:
            yield Call(verb, args, kwargs)
    status = group.run().status
    if status in STATUSES:
        yield End(str(status))
