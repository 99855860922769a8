"""Open a run that exists: live, dead at any point, or finished.

What a dead writer may leave, and what becomes of it:

- a batch half in the columns: its rows are still in the hot logs, so each column is cut back to
  where its own hot rows begin;
- a column shorter than its steps, or the other way round: both are cut to the common length;
- a torn last row: it was never acknowledged, and is dropped;
- temporary files, and files of a dtype that a column no longer has: removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plattli import _fs, _hotlog, _manifest
from plattli._columns import SUFFIXES, Column
from plattli._format import (
    ARCHIVE,
    CONFIG,
    HOT,
    HOT_COMPACTING,
    MANIFEST,
    MAX_NARROW_STEP,
    METRIC_DIR,
    TMP_SUFFIX,
    check_name,
)

#: metric name -> the first step that must go, ``None`` to keep all its rows
Cut = Callable[[str], int | None]


@dataclass
class Recovered:
    """A run's columns, its rows that are not in them yet (step -> metric -> plain value), and files of no metric."""

    columns: dict[str, Column]
    rows: dict[int, dict[str, Any]]
    strays: dict[str, list[str]]


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
        manifest = _manifest.load(manifest_path.read_bytes(), run)
        specs = manifest.specs
        for name, spec in specs.items():
            columns[name] = Column.open(root, name, spec, run, before=cut(name))
        # a finished run is no longer one
        known = _publish(manifest_path, columns, specs if manifest.run_rows is None else None)
        # the files follow the manifest: where a kill leaves steps without values, 0.19.0 makes values up
        for opened in columns.values():
            opened.cut_files()
        rows = _with_buried(root, rows, columns, first_hot)
        for name, step in first_hot.items():
            column = columns.get(name)
            if column is not None and step <= column.last:
                column.cut(column.row_of(step)[0])
                column.cut_files()
        last_hot = {name: step for step, row in sorted(rows.items()) for name in row}
        for name, column in columns.items():
            # the old step file becomes a leftover
            column.set_wide(max(column.last, last_hot.get(name, -1)) > MAX_NARROW_STEP)
        _publish(manifest_path, columns, known)
    return Recovered(columns, rows, remove_leftovers(root, columns))


def _publish(path: Path, columns: Mapping[str, Column], known: dict[str, Any] | None) -> dict[str, Any]:
    """Write what the columns are now to the manifest, unless it is what the manifest says; return it."""
    now = {name: column.spec() for name, column in columns.items()}
    if now != known:
        _fs.replace_file(path, _manifest.dump(now))
    return now


def _with_buried(
    root: Path, rows: dict[int, dict[str, Any]], columns: dict[str, Column], first_hot: dict[str, int]
) -> dict[int, dict[str, Any]]:
    """Add to the hot rows what their columns hold behind them and no hot log does.

    A writer that went back to an earlier step may leave that: cutting the columns to where their hot rows
    begin would lose it. The log on disk gets it before anything is cut.
    """
    buried: dict[int, dict[str, Any]] = {}
    for name, first in first_hot.items():
        column = columns.get(name)
        if column is None or first > column.last:
            continue
        at = column.row_of(first)[0]
        for step, value in zip(column.steps()[at:].tolist(), column.plain_values(at), strict=True):
            if name not in rows.get(step, {}):
                buried.setdefault(step, {})[name] = value
    if not buried:
        return rows
    both = {step: buried.get(step, {}) | rows.get(step, {}) for step in sorted({*buried, *rows})}
    log = _hotlog.HotLog(root)
    log.rewrite([_hotlog.encode({"step": step, **row}) for step, row in both.items()], sync=True)
    log.drop_compacting()
    return both


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


_TEMPORARY: Final = frozenset(name + TMP_SUFFIX for name in (MANIFEST, CONFIG, HOT, HOT_COMPACTING))


def remove_leftovers(root: Path, columns: Mapping[str, Column]) -> dict[str, list[str]]:
    """Remove temporary files, and representations of known metrics that are not the current one.

    Returns:
        Files that stay and would be such leftovers if there were a metric of that name: name -> files, relative
        to ``root``.
    """
    protected = (root / CONFIG).resolve()
    strays: dict[str, list[str]] = {}
    for folder, _, files in os.walk(root):
        inside = folder[len(str(root)) + 1 :].replace(os.sep, "/")
        for file in files:
            path = f"{inside}/{file}" if inside else file
            stem, _, suffix = path.removesuffix(TMP_SUFFIX).rpartition(".")
            column = columns.get(stem) if suffix in SUFFIXES else None
            if path in _TEMPORARY or (column is not None and not column.is_active(path)):
                full = root / path
                if full.is_file() and full.resolve() != protected:
                    full.unlink()
            elif suffix in SUFFIXES and column is None:
                strays.setdefault(stem, []).append(path)
    return strays


def exists(run_root: Path) -> bool:
    """Tell whether a writer would find rows, or the promise of rows, under ``run_root``."""
    root = run_root / METRIC_DIR
    files = (run_root / ARCHIVE, root / MANIFEST, root / HOT, root / HOT_COMPACTING)
    return any(path.exists() for path in files)


def remove(run_root: Path) -> None:
    """Remove a run, the manifest last: until then a kill leaves something that is still recognised as a run."""
    root = run_root / METRIC_DIR
    if not exists(run_root):
        return
    _fs.remove([run_root / ARCHIVE])
    if root.is_dir():
        for path in sorted(root.rglob("*"), key=lambda p: (p.name == MANIFEST, -len(p.parts))):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
