"""End a run: its columns as small as they get, in an archive or in the folder they are in.

A kill at any point leaves a run that reads whole and can be opened again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from plattli import _fs, _manifest, _packing, _recovery
from plattli._columns import Ending
from plattli._format import CONFIG, HOT, HOT_COMPACTING, MANIFEST, METRIC_DIR
from plattli._hot import Hot
from plattli._store import Store


def as_archive(run_root: Path, store: Store, hot: Hot, *, optimize: bool, config: bytes | None) -> None:
    """Make an archive, which takes the folder's place when it is complete.

    Until then the folder is a run that can be gone on with, its last rows in the hot log. So nothing in it has
    to be synced, or even to be there: a column that has no file yet goes to the archive only. After a failure the
    columns have to be brought to one length, by :meth:`Hot.drain`, before other rows come.

    Args:
        run_root: the folder above the metric folder.
        store: all columns.
        hot: all other rows, settled.
        optimize: narrow integer columns and write regular steps as segments.
        config: what ``config.json`` is to hold; ``None``: what it holds.
    """
    pieces = hot.rows.by_column()
    store.move({column: piece for column, piece in pieces.items() if column.rows}, sync=False)
    fresh = {column.name: piece for column, piece in pieces.items() if not column.rows}
    columns = store.columns.items()
    endings = {name: column.ending(fresh.get(name), optimize=optimize) for name, column in columns}
    members: dict[str, _packing.Content | None] = {
        MANIFEST: partial(bytes, _ended(endings)),
        HOT: None,
        HOT_COMPACTING: None,
    }
    if config is not None:
        members[CONFIG] = partial(bytes, config)
    for ending in endings.values():
        members.update(ending.files)
        members.update(dict.fromkeys(ending.obsolete))
    hot.log.close()
    _recovery.remove_leftovers(run_root / METRIC_DIR, store.columns)
    _packing.pack(run_root, members)


def as_folder(run_root: Path, store: Store, hot: Hot, *, optimize: bool, config: bytes | None) -> None:
    """Leave a folder without a hot row; the arguments are those of :func:`as_archive`."""
    root = run_root / METRIC_DIR
    hot.drain()
    hot.log.close()
    hot.log.rewrite([])
    endings = {name: column.ending(optimize=optimize) for name, column in store.columns.items()}
    new = {root / file: content for ending in endings.values() for file, content in ending.files.items()}
    for path, content in new.items():
        _fs.make_folders(path.parent, inside=root)
        _fs.replace_file(path, content(), sync=False)
    directories = {path.parent for path in new}
    store.sync(*new, *directories)
    # one manifest for all of it: before, readers find the old files; after, the new ones
    _fs.replace_file(root / MANIFEST, _ended(endings))
    for name, ending in endings.items():
        store.columns[name].end(ending)
    _recovery.remove_leftovers(root, store.columns)
    if config is not None:
        _fs.replace_file(root / CONFIG, config)


def _ended(endings: dict[str, Ending]) -> bytes:
    """Return the manifest of a finished run."""
    specs = {name: ending.spec() for name, ending in endings.items()}
    return _manifest.dump(specs, run_rows=max((ending.rows for ending in endings.values()), default=0))
