"""Is there a run at a path, and where are its files?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plattli._format import ARCHIVE, MANIFEST, METRIC_DIR
from plattli._remote import RemoteArchive, is_url
from plattli._source import Archive, Folder
from plattli.errors import NotARunError


def is_run(path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a reader can open ``path``: a metric folder, its parent, an archive or its URL.

    Only names are looked at, and the archive's table of contents.

    Args:
        path: what :class:`~plattli.reader.Reader` takes.
        storage_options: for a URL: what its ``fsspec`` file system takes.

    Raises:
        TypeError: not a path.
        RemoteError: the server of a URL cannot be reached, or refuses.
        ImportError: a package for such URLs is not installed.
    """
    source: Folder | Archive | RemoteArchive | None
    if isinstance(path, str) and is_url(path):
        try:
            source = RemoteArchive(path, storage_options)
        except NotARunError:
            return False
    else:
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
    root = _expanded(path)
    for folder in (root, os.path.join(root, METRIC_DIR)):
        if os.path.isfile(os.path.join(folder, MANIFEST)):
            return Path(os.path.realpath(folder))
    return None


def locate(path: str | os.PathLike[str]) -> Folder | Archive | None:
    """Open what is stored at ``path``; of a run that has both, the archive.

    Returns:
        ``None`` if ``path`` is not a run.

    Raises:
        TypeError: not a path.
    """
    root = _expanded(path)
    if (archive := _archive(root)) is not None:
        return archive
    if (folder := resolve_run_dir(root)) is not None:
        return Folder(folder)
    return _archive(root)  # a writer may have archived the folder between our two looks


def _archive(root: str) -> Archive | None:
    path = os.path.join(root, ARCHIVE) if os.path.isdir(root) else root
    # where the links lead is worth finding out only if there is something
    return Archive.at(Path(os.path.realpath(path))) if os.path.isfile(path) else None


def _expanded(path: str | os.PathLike[str]) -> str:
    # strings, because a reader is often opened for one value, and half of that time would go into path objects
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path must be a str or a path object, got {type(text).__name__}: {text!r}")
    return os.path.expanduser(text)
