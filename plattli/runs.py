"""Is there a run at a path, and where are its files?"""

from __future__ import annotations

import os
from pathlib import Path

from plattli._format import ARCHIVE, MANIFEST, METRIC_DIR
from plattli._source import Archive, Folder


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return whether a reader can open ``path``: a metric folder, its parent, or an archive.

    Only names are looked at, and the archive's table of contents.

    Raises:
        TypeError: not a path.
    """
    source = locate(path)
    if source is None:
        return False
    source.close()
    return True


def is_run_dir(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a metric folder or has one. An archive alone does not count.

    Raises:
        TypeError: not a path.
    """
    return resolve_run_dir(path) is not None


def resolve_run_dir(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder with the ``plattli.json``: ``path`` itself, else ``path/plattli``.

    Returns:
        An absolute path without links, ``None`` if there is no such folder.

    Raises:
        TypeError: not a path.
    """
    root = Path(path).expanduser()
    for folder in (root, root / METRIC_DIR):
        if (folder / MANIFEST).is_file():
            return folder.resolve()
    return None


def locate(path: str | os.PathLike[str]) -> Folder | Archive | None:
    """Open what is stored at ``path``; of a run that has both, the archive.

    Returns:
        ``None`` if ``path`` is not a run.

    Raises:
        TypeError: not a path.
    """
    root = Path(path).expanduser()
    archive = Archive.at((root / ARCHIVE if root.is_dir() else root).resolve())
    if archive is not None:
        return archive
    folder = resolve_run_dir(root)
    return None if folder is None else Folder(folder)
