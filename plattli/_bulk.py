"""Write a whole run at once, as an archive or a folder, from columns that are in memory."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plattli import _config, _fs, _indices, _manifest, _packing
from plattli._dtypes import monotonic, tightest
from plattli._format import (
    ARCHIVE,
    BYTES,
    CONFIG,
    DTYPES,
    HOT,
    HOT_COMPACTING,
    INDICES_FILE,
    JSONL,
    MANIFEST,
    MAX_NARROW_STEP,
    METRIC_DIR,
    TMP_SUFFIX,
    WIDE_INDICES_FILE,
    dumps,
    indices_file,
    step_dtype,
    value_file,
)
from plattli.errors import CorruptRunError, DtypeError, ExtraFileError

_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
_VALUE_SUFFIXES: Final = (*DTYPES, JSONL)
_STEP_SUFFIXES: Final = (INDICES_FILE, WIDE_INDICES_FILE)

#: what a file holds, without a copy if it is there already
Bytes: TypeAlias = bytes | memoryview


class BulkColumn(NamedTuple):
    """A metric: integer steps [n], and as many numbers of a storable dtype, JSON values, or JSON lines."""

    steps: NDArray[np.integer[Any]]
    values: NDArray[Any] | list[Any] | bytes


class Extra(NamedTuple):
    """A file that is none of ours but lies in the run's folder, to be carried along."""

    info: zipfile.ZipInfo
    open: Callable[[], IO[bytes]]


class Run(NamedTuple):
    """A finished run, about to be written.

    Attributes:
        columns: metric -> its rows, in the order in which the manifest lists them. Names are checked by
            the caller. Each is asked for when its turn comes.
        config: the bytes of ``config.json``; or, for a folder, a file to link to.
        extras: other files to put beside the run's own.
        optimize: store integers in the smallest type that holds them, steps as segments where they fit.
    """

    columns: Mapping[str, BulkColumn]
    config: bytes | Path
    extras: Iterable[Extra] = ()
    optimize: bool = True


def write_archive(
    path: Path, columns: Mapping[str, BulkColumn], config: bytes, extras: Iterable[Extra] = ()
) -> None:
    """Publish a finished run at ``path``: all of it or, on any error, nothing.

    Args:
        path: the archive to write or replace.
        columns, config, extras: see :class:`Run`.

    Raises:
        DtypeError: a JSON value that UTF-8 cannot spell.
        ExtraFileError: an extra file has the name of one that is written.
    """
    temporary = path.with_name(path.name + TMP_SUFFIX)
    try:
        _write_archive(temporary, Run(columns, config, extras))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fs.sync_dir(path.parent)


def publish(run_root: Path, run: Run, *, zip: bool = True) -> None:
    """Put a finished run in the place of whatever run is in ``run_root``; the caller holds its lock.

    An error leaves what was there; a kill, that or the new run, and leftovers that
    :func:`plattli._packing.remove_temporaries` removes.

    Raises:
        DtypeError: a JSON value that UTF-8 cannot spell.
        ExtraFileError: an extra file is in the way of one that is written.
    """
    temporary, staging = run_root / (ARCHIVE + TMP_SUFFIX), run_root / _packing.STAGING
    try:
        if zip:
            _write_archive(temporary, run)
            _packing.replace_by_archive(run_root, temporary)
        else:
            _write_folder(staging, run)
            _packing.replace_by_folder(run_root)
    except BaseException:
        temporary.unlink(missing_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _write_archive(path: Path, run: Run) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as bundle:
        bundle.writestr(CONFIG, run.config.read_bytes() if isinstance(run.config, Path) else run.config)
        written = {CONFIG}
        for name, data in _files(run):
            bundle.writestr(name, data)
            written.add(name)
        for extra in _beside(run.extras, written):
            with extra.open() as source, bundle.open(extra.info, "w", force_zip64=True) as sink:
                shutil.copyfileobj(source, sink)
    _fs.sync_file(path)


def _write_folder(folder: Path, run: Run) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if isinstance(run.config, Path):
        _config.write(run.config, folder)
    else:
        _write_file(folder / CONFIG, run.config)
    written = {CONFIG}
    for name, data in _files(run):
        _write_file(folder / name, data)
        written.add(name)
    for extra in _beside(run.extras, written):
        with extra.open() as source:
            _write_file(folder / extra.info.filename, source)
        if mode := extra.info.external_attr >> 16 & 0o777:
            (folder / extra.info.filename).chmod(mode)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            _fs.sync_dir(path)


def _write_file(path: Path, content: Bytes | IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as sink:
        if isinstance(content, bytes | memoryview):
            sink.write(content)
        else:
            shutil.copyfileobj(content, sink)
        sink.flush()
        os.fsync(sink.fileno())


def _files(run: Run) -> Iterator[tuple[str, Bytes]]:
    """Yield name and content of every file but the config, the manifest last."""
    specs: dict[str, dict[str, Any]] = {}
    rows = 0
    for name, column in run.columns.items():
        segments = _indices.fit(column.steps) if run.optimize else None
        wide = int(column.steps.max(initial=0)) > MAX_NARROW_STEP
        if segments is None:
            yield indices_file(name, wide), _bytes(column.steps.astype(step_dtype(wide), copy=False))
        spec = specs[name] = {"indices": _indices.spell(segments, wide)}
        spec["dtype"], data, flag = _stored(name, column.values, run.optimize)
        if flag:
            spec["monotonic"] = flag
        if spec["dtype"] == JSONL:
            spec[BYTES] = len(data)
        yield value_file(name, spec["dtype"]), data
        rows = max(rows, len(column.steps))
    yield MANIFEST, _manifest.dump(specs, run_rows=rows)


def _stored(name: str, values: NDArray[Any] | list[Any] | bytes, optimize: bool) -> tuple[str, Bytes, str | None]:
    """Return a column's storage code, the content of its file, and its monotonic flag."""
    if isinstance(values, bytes):
        return JSONL, values, None
    if isinstance(values, list):
        try:
            return JSONL, "".join(f"{dumps(value)}\n" for value in values).encode(), None
        except UnicodeEncodeError as error:
            raise DtypeError(f"metric {name!r} holds text that UTF-8 cannot spell: {error}") from error
    if optimize and values.dtype.kind in "iu":
        values = values.astype(DTYPES[tightest(int(values.min()), int(values.max()))])
    return _CODES[values.dtype.newbyteorder("<")], _bytes(values), monotonic(values)


def _bytes(numbers: NDArray[Any]) -> Bytes:
    little = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).data


def _beside(extras: Iterable[Extra], written: set[str]) -> Iterator[Extra]:
    """Pass on the extra files whose paths the run does not need for its own."""
    folders = {str(parent) for name in written for parent in PurePosixPath(name).parents}
    for extra in extras:
        name = extra.info.filename
        path = PurePosixPath(name)
        if name in folders or not written.isdisjoint(map(str, (path, *path.parents))):
            raise ExtraFileError(
                f"the run's folder has a file {name!r} of unknown origin, which is in the way of the run's own: "
                f"move it away"
            )
        yield extra


# ---- what an earlier output leaves behind ---------------------------------------------------------


def extras_of(run_root: Path) -> Iterator[Extra]:
    """Yield the files beside an earlier output's own ones, in its folder and in its archive.

    Raises:
        ExtraFileError: folder and archive hold different files of one name.
        CorruptRunError: the earlier output cannot be read.
    """
    root, archive, run = run_root / METRIC_DIR, run_root / ARCHIVE, run_root.name
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    metrics = _metrics(files[MANIFEST].read_bytes(), run) if MANIFEST in files else set()
    if not archive.exists():
        yield from (_loose(name, files[name]) for name in _foreign(files, metrics))
        return
    try:
        bundle = zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, OSError) as error:
        raise CorruptRunError(f"{archive} of run {run!r} is no readable archive: {error}") from error
    with bundle:
        members = {info.filename: info for info in bundle.infolist() if not info.is_dir()}
        if MANIFEST in members:
            metrics |= _metrics(bundle.read(MANIFEST), run)
        loose = _foreign(files, metrics)
        yield from (_loose(name, files[name]) for name in loose)
        for name in _foreign(members, metrics):
            if name not in loose:
                _packing.check_member(name, archive, run)
                yield Extra(_copied(members[name]), _member_opener(bundle, name))
            elif files[name].read_bytes() != bundle.read(name):
                raise ExtraFileError(f"{root / name} and {archive} hold different files {name!r}: remove one")


def _metrics(manifest: bytes, run: str) -> set[str]:
    return set(_manifest.load(manifest, run).specs)


def _foreign(files: Collection[str], metrics: set[str]) -> list[str]:
    own = {MANIFEST, CONFIG, HOT, HOT_COMPACTING}
    for metric in metrics:
        own.update(f"{metric}.{suffix}" for suffix in (*_VALUE_SUFFIXES, *_STEP_SUFFIXES))
    for name in files:
        # steps with values, though no manifest knows them: an orphan of a dead writer
        stem, _, suffix = name.rpartition(".")
        if suffix in _STEP_SUFFIXES:
            values = {value_file(stem, suffix) for suffix in _VALUE_SUFFIXES}.intersection(files)
            own.update(values, [name] if values else [])
    return sorted(name for name in files if name.removesuffix(TMP_SUFFIX) not in own)


def _loose(name: str, path: Path) -> Extra:
    return Extra(zipfile.ZipInfo.from_file(path, name, strict_timestamps=False), lambda: path.open("rb"))


def _member_opener(bundle: zipfile.ZipFile, name: str) -> Callable[[], IO[bytes]]:
    return lambda: bundle.open(name)


def _copied(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    # a new entry: the old one knows where it was
    fresh = zipfile.ZipInfo(info.filename, info.date_time)
    fresh.external_attr = info.external_attr
    return fresh
