"""Open a run that exists: live, dead at any point, or finished.

What a dead writer may leave, and what becomes of it:

- a batch half in the columns: its rows are still in the hot logs, so each column is cut back to
  where its own hot rows begin;
- a column shorter than its steps, or the other way round: both are cut to the common length;
- a torn last row: it was never acknowledged, and is dropped;
- temporary files, and files of a dtype that a column no longer has: removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from plattli import _fs, _hotlog, _manifest
from plattli._columns import Column
from plattli._format import CONFIG, HOT, HOT_COMPACTING, JSONL, MANIFEST, TMP_SUFFIX, check_name

#: metric name -> the first step that must go, ``None`` to keep all its rows
Cut = Callable[[str], int | None]


@dataclass
class Recovered:
    """A run's columns, and its rows that are not in them yet (step -> metric -> plain value)."""

    columns: dict[str, Column] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


def recover(root: Path, run: str, cut: Cut) -> Recovered:
    """Read the metric folder ``root`` and leave on disk exactly what is returned.

    The hot rows are returned, and stay in ``hot.jsonl`` until the caller writes it again.
    """
    rows = _kept_rows(_hotlog.read(root, run), run, cut)
    first_hot: dict[str, int] = {}
    for step, row in rows.items():
        for name in row:
            first_hot[name] = min(step, first_hot.get(name, step))

    manifest_path = root / MANIFEST
    columns: dict[str, Column] = {}
    if manifest_path.exists():
        specs = _manifest.load(manifest_path.read_bytes(), run).specs
        for name, spec in specs.items():
            bounds = [bound for bound in (cut(name), first_hot.get(name)) if bound is not None]
            columns[name] = Column.open(root, name, spec, run, before=min(bounds, default=None))
        # the manifest follows the files: a kill in between leaves steps that have no values
        _fs.replace_file(manifest_path, _manifest.dump({n: c.spec() for n, c in columns.items()}))
    remove_leftovers(root, columns.values())
    return Recovered(columns, rows)


def _kept_rows(rows: dict[int, dict[str, Any]], run: str, cut: Cut) -> dict[int, dict[str, Any]]:
    limits: dict[str, int | None] = {}
    kept: dict[int, dict[str, Any]] = {}
    for step, row in sorted(rows.items()):
        values = {}
        for name, value in row.items():
            if name not in limits:
                limits[check_name(name, run)] = cut(name)
            limit = limits[name]
            if limit is None or step < limit:
                values[name] = value
        if values:
            kept[step] = values
    return kept


_TEMPORARY: Final = tuple(name + TMP_SUFFIX for name in (MANIFEST, CONFIG, HOT, HOT_COMPACTING))


def remove_leftovers(root: Path, columns: Any) -> None:
    """Remove temporary files, and representations of known metrics that are not the current one."""
    protected = (root / CONFIG).resolve()
    leftovers = [root / name for name in _TEMPORARY]
    for column in columns:
        leftovers += column.other_files()
    _fs.remove(path for path in leftovers if path.is_file() and path.resolve() != protected)


def hot_code(values: list[Any]) -> str | None:
    """Return ``"jsonl"`` if the values of a metric that only the hot log knows are no numbers."""
    return JSONL if any(not isinstance(v, int | float) or isinstance(v, bool) for v in values) else None
