"""What a run says about itself beside its metrics: id, status, params, tags, who writes it.

All of it stands in ``config.json``: flat parameters, plus one reserved key ``_run`` that the logger
keeps. A run of any other writer lacks that key and is described by its files alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from plattli import _manifest
from plattli._format import ARCHIVE, MANIFEST, METRIC_DIR, run_name
from plattli._fs import lock_owner
from plattli.errors import MissingFileError
from plattli.reader import Reader

#: The key of ``config.json`` that is no parameter.
RUN_KEY: Final = "_run"
_RUNNING: Final = "running"
#: What runs are that nobody writes though they have no end.
_ORPHANED: Final = ("died", "unfinished")


@dataclass(frozen=True)
class RunInfo:
    """A run at one moment.

    Attributes:
        path: the metric folder or the archive, absolute, links resolved; or the archive's URL.
        kind: ``"dir"`` or ``"zip"``.
        id: what its logger calls the run; ``None`` if no logger of ours wrote it.
        status: ``"completed"``, ``"early_stop"``, ``"error"`` or ``"interrupted"`` as the logger said
            at the end; ``"running"`` while a live process writes it, ``"died"`` if that process is
            gone without a word. Runs without a logger: ``"live"``, ``"unfinished"`` or ``"finished"``.
        params: hyperparameters. A config that is no JSON object stands under the key ``"config"``.
        tags: name -> value.
        started, finished: RFC 3339 times, where known.
        owner: the live writer's ``{"host", "pid", "started", …}``, or ``None``.
    """

    path: Path | str
    kind: str
    id: str | None
    status: str
    params: dict[str, Any]
    tags: dict[str, Any]
    started: str | None
    finished: str | None
    owner: dict[str, Any] | None

    @property
    def name(self) -> str:
        """What to call the run in a sentence: its folder, or the archive's stem."""
        return run_name(self.path)


def run_info(path: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> RunInfo:
    """Read what the run at ``path`` says about itself.

    Args:
        path: whatever :class:`~plattli.reader.Reader` takes: a run root, a metric folder, an archive or
            its URL.
        storage_options: for a URL: what its ``fsspec`` file system takes.

    Raises:
        NotARunError: no run is there.
        CorruptRunError: its config, or its manifest, is not what the format allows.
        RemoteError: the server of a URL cannot be reached, or refuses.
    """
    try:
        info = _read(path, storage_options)
    except MissingFileError:  # archived in this moment
        return _read(path, storage_options)
    if info.status in _ORPHANED:
        # its writer may have finished between our look at the files and our look at the lock
        info = _read(path, storage_options)
    return info


def _read(path: str | PathLike[str], storage_options: Mapping[str, Any] | None) -> RunInfo:
    with Reader(path, storage_options=storage_options) as reader:
        config = _config(reader)
        root, kind = reader.root, reader.kind
    is_final = kind == "zip" or _has_run_rows(root)
    params = dict(config) if isinstance(config, dict) else {"config": config}
    about = params.get(RUN_KEY)
    if isinstance(about, dict) and isinstance(about.get("status"), str):
        del params[RUN_KEY]
    else:  # not our logger's: an ordinary parameter, if anything
        about = {}
    owner = _owner(root)
    tags = about.get("tags")
    return RunInfo(
        path=root,
        kind=kind,
        id=_text(about.get("id")),
        status=_status(about.get("status"), is_final, owner is not None),
        params=params,
        tags=dict(tags) if isinstance(tags, dict) else {},
        started=_text(about.get("started")),
        finished=_text(about.get("finished")),
        owner=owner,
    )


def _status(stored: str | None, is_final: bool, is_owned: bool) -> str:
    if stored is None:
        return "finished" if is_final else "live" if is_owned else "unfinished"
    if stored != _RUNNING or is_owned:
        return stored
    # a writer finalized it without its logger: nobody died
    return "finished" if is_final else "died"


def _owner(root: Path | str) -> dict[str, Any] | None:
    # only where a writer puts its lock: beside plattli/, or beside the archive of a resumed run
    return lock_owner(root.parent) if isinstance(root, Path) and root.name in (METRIC_DIR, ARCHIVE) else None


def _config(reader: Reader) -> Any:
    try:
        return reader.config()
    except MissingFileError:  # as of a run that was archived while its link dangled
        return {}


def _has_run_rows(root: Path | str) -> bool:
    try:
        manifest = Path(root, MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"the run at {root} vanished while it was read") from error
    return _manifest.load(manifest, run_name(root)).run_rows is not None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
