"""From the metric folder to ``metrics.plattli`` and back, so that a kill at any point loses nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from plattli import _fs, _manifest
from plattli._format import ARCHIVE, CONFIG, HOT, HOT_COMPACTING, MANIFEST, METRIC_DIR, TMP_SUFFIX
from plattli.errors import CorruptRunError, RunExistsError

#: Where an archive is unpacked before the folder appears under its own name.
_EXTRACTING: Final = ".plattli-extracting"


def pack(run_root: Path, config: bytes | None = None) -> None:
    """Publish the finished metric folder as an archive, then remove the folder.

    Args:
        config: what ``config.json`` holds in the archive, if not what the folder has.
    """
    root = run_root / METRIC_DIR
    archive = run_root / ARCHIVE
    temporary = archive.with_name(ARCHIVE + TMP_SUFFIX)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, strict_timestamps=False) as bundle:
            for path in sorted(p for p in root.rglob("*") if p.is_file()):
                member = path.relative_to(root).as_posix()
                if member == CONFIG and config is not None:
                    bundle.writestr(CONFIG, config)
                else:
                    bundle.write(path, member)
        _fs.sync_file(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)  # the folder is finished and whole without it
        raise
    os.replace(temporary, archive)
    _fs.sync_dir(run_root)
    shutil.rmtree(root)


def unpack(run_root: Path, run: str) -> None:
    """Turn a finished archive back into a metric folder; until it is complete the archive stays.

    Raises:
        CorruptRunError: no archive of a run, or one with a member that would leave the folder.
    """
    archive = run_root / ARCHIVE
    staging = run_root / _EXTRACTING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        bundle = zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, OSError) as error:
        raise CorruptRunError(f"{archive} of run {run!r} is no readable archive: {error}") from error
    with bundle:
        members = [m for m in bundle.namelist() if not m.endswith("/")]
        if MANIFEST not in members:
            raise CorruptRunError(f"{archive} of run {run!r} has no {MANIFEST}")
        for member in members:
            path = PurePosixPath(member)
            if path.is_absolute() or "\\" in member or ":" in member[:2] or {"", ".", ".."} & set(
                member.split("/")
            ):
                raise CorruptRunError(f"{archive} of run {run!r} has the unsafe member {member!r}")
        for member in members:
            target = staging / member
            target.parent.mkdir(parents=True, exist_ok=True)
            with bundle.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
                sink.flush()
                os.fsync(sink.fileno())
    discard_leftover(run_root, run)
    os.rename(staging, run_root / METRIC_DIR)
    _fs.sync_dir(run_root)
    archive.unlink()


def discard_leftover(run_root: Path, run: str) -> None:
    """Remove what a kill between "archive published" and "folder removed" left of the folder.

    Raises:
        RunExistsError: the folder is a live run, which no such leftover is: two runs lie here.
    """
    root = run_root / METRIC_DIR
    manifest = root / MANIFEST
    live = manifest.exists() and _manifest.load(manifest.read_bytes(), run).run_rows is None
    if live or any((root / log).exists() for log in (HOT, HOT_COMPACTING)):
        raise RunExistsError(
            f"run {run!r} is there twice: {run_root / ARCHIVE} and {root}, which has rows of its own; "
            f"move one of them away"
        )
    if root.is_dir():
        shutil.rmtree(root)


def remove_temporaries(run_root: Path) -> None:
    """Remove what an interrupted :func:`pack` or :func:`unpack` left."""
    with contextlib.suppress(FileNotFoundError):
        (run_root / (ARCHIVE + TMP_SUFFIX)).unlink()
    shutil.rmtree(run_root / _EXTRACTING, ignore_errors=True)
