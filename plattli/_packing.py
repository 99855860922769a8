"""From the metric folder to ``metrics.plattli`` and back, so that a kill at any point loses nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from plattli import _fs, _manifest
from plattli._format import ARCHIVE, HOT, HOT_COMPACTING, MANIFEST, METRIC_DIR, TMP_SUFFIX
from plattli._source import Archive
from plattli.errors import CorruptRunError, NotARunError, RunExistsError

#: Gives the bytes of a file, when they are needed.
Content: TypeAlias = Callable[[], bytes]

#: Where an archive is unpacked before the folder appears under its own name.
_EXTRACTING: Final = ".plattli-extracting"
#: Where a folder goes that an archive has taken the place of.
_RETIRED: Final = ".plattli-retired"
#: Says that the archive, once it is there, takes the place of the folder, whatever that holds.
_REPLACING: Final = ".plattli-replacing"
#: How much of a file is on its way into an archive at once: it stays in the processor's cache.
_CHUNK: Final = 1 << 18
#: Where a whole new folder is made.
STAGING: Final = ".plattli-staging"


def pack(run_root: Path, members: Mapping[str, Content | None]) -> None:
    """Publish the metric folder as an archive, then remove the folder.

    Args:
        members: see :func:`bundle`.
    """
    temporary = bundle(run_root / METRIC_DIR, run_root, members)
    try:
        replace_by_archive(run_root, temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def bundle(folder: Path, run_root: Path, members: Mapping[str, Content | None] | None = None) -> Path:
    """Make an archive of a folder under a temporary name, which is returned.

    Args:
        members: what the archive has in place of the folder's files, by name; ``None`` leaves a file out.
    """
    temporary = run_root / (ARCHIVE + TMP_SUFFIX)
    sources: dict[str, Path | Content | None] = {}
    for directory, _, files in os.walk(folder):
        inside = directory[len(str(folder)) + 1 :].replace(os.sep, "/")
        for file in files:
            sources[f"{inside}/{file}" if inside else file] = Path(directory, file)
    sources.update(members or {})
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
            for member, source in sorted(sources.items(), key=lambda item: item[0].split("/")):
                if isinstance(source, Path):
                    if source.is_file():  # not a link to nowhere, or to a folder
                        _copy(source, member, archive)
                elif source is not None:
                    archive.writestr(member, source())
        _fs.sync_file(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)  # the folder is whole without it
        raise
    return temporary


def _copy(path: Path, member: str, archive: zipfile.ZipFile) -> None:
    # not ZipFile.write: it takes pieces so small that calls take longer than bytes
    info = zipfile.ZipInfo.from_file(path, member, strict_timestamps=False)
    with path.open("rb", buffering=0) as source, archive.open(info, "w") as sink:
        shutil.copyfileobj(source, sink, _CHUNK)


def retire(run_root: Path) -> None:
    """Remove the metric folder: at once for everybody who looks, then file by file."""
    root, retired = run_root / METRIC_DIR, run_root / _RETIRED
    if root.is_symlink():
        root.unlink()
    elif root.exists():
        shutil.rmtree(retired, ignore_errors=True)
        os.rename(root, retired)
        shutil.rmtree(retired)


# ---- a new output in the place of an old one ------------------------------------------------------


def replace_by_archive(run_root: Path, temporary: Path) -> None:
    """Publish a complete archive, ``temporary``, in the place of whatever run there is.

    Readers see the old run until the rename, the new one from then on.
    """
    marker = run_root / _REPLACING
    if os.path.lexists(run_root / METRIC_DIR):
        marker.touch()
        _fs.sync_dir(run_root)
    try:
        os.replace(temporary, run_root / ARCHIVE)
    except BaseException:
        marker.unlink(missing_ok=True)
        raise
    _fs.sync_dir(run_root)
    retire(run_root)
    marker.unlink(missing_ok=True)


def replace_by_folder(run_root: Path) -> None:
    """Publish the complete folder ``STAGING`` in the place of whatever run there is."""
    root, staging = run_root / METRIC_DIR, run_root / STAGING
    if os.path.lexists(root):
        # no rename replaces a folder that holds files: while the name changes hands, an archive stands in
        temporary = bundle(staging, run_root)
        try:
            replace_by_archive(run_root, temporary)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    os.rename(staging, root)
    _fs.sync_dir(run_root)
    (run_root / ARCHIVE).unlink(missing_ok=True)
    _fs.sync_dir(run_root)


# ---- and back ---------------------------------------------------------------------------------------


def unpack(run_root: Path, run: str) -> None:
    """Turn a finished archive back into a metric folder; until it is complete the archive stays.

    Raises:
        CorruptRunError: no archive of a run, or one with a member that would leave the folder.
    """
    archive = run_root / ARCHIVE
    staging = run_root / _EXTRACTING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        bundle = Archive(archive)
    except NotARunError as error:
        raise CorruptRunError(f"{archive} of run {run!r} is no readable archive: {error}") from error
    with contextlib.closing(bundle):
        members = [member for member in bundle.files() if not member.endswith("/")]
        for member in members:
            check_member(member, archive, run)
        staging.mkdir()
        with _fs.synced_together(staging) as written:
            for folder in {folder for member in members if (folder := os.path.dirname(member))}:
                os.makedirs(os.path.join(staging, folder), exist_ok=True)
            for member in members:
                path = os.path.join(staging, member)
                with open(path, "wb", buffering=0) as sink:
                    for piece in bundle.pieces(member):
                        _fs.write_all(sink.fileno(), piece)
                written.append(path)
    discard_leftover(run_root, run)
    os.rename(staging, run_root / METRIC_DIR)
    _fs.sync_dir(run_root)
    archive.unlink()


def check_member(member: str, archive: Path, run: str) -> None:
    """Refuse a member that would leave the folder."""
    path = PurePosixPath(member)
    if path.is_absolute() or "\\" in member or ":" in member[:2] or {"", ".", ".."} & set(member.split("/")):
        raise CorruptRunError(f"{archive} of run {run!r} has the unsafe member {member!r}")


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
    retire(run_root)


def remove_temporaries(run_root: Path) -> None:
    """Remove what a writer left that was killed while it packed, unpacked or replaced the run."""
    temporary, marker = run_root / (ARCHIVE + TMP_SUFFIX), run_root / _REPLACING
    if marker.exists():
        # the archive waits under its temporary name until it takes the folder's place
        if (run_root / ARCHIVE).exists() and not temporary.exists():
            retire(run_root)
        marker.unlink()
    temporary.unlink(missing_ok=True)
    for folder in (_EXTRACTING, _RETIRED, STAGING):
        shutil.rmtree(run_root / folder, ignore_errors=True)
