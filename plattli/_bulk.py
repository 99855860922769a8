"""Write a whole run at once, as an archive, from columns that are in memory."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plattli import _fs, _indices, _manifest
from plattli._dtypes import monotonic, tightest
from plattli._format import (
    ARCHIVE,
    CONFIG,
    DTYPES,
    HOT,
    HOT_COMPACTING,
    INDICES_FILE,
    JSONL,
    MANIFEST,
    METRIC_DIR,
    TMP_SUFFIX,
    dumps,
    indices_file,
    value_file,
)
from plattli.errors import DtypeError, RunExistsError

_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
_VALUE_SUFFIXES: Final = (*DTYPES, JSONL)


class BulkColumn(NamedTuple):
    """A metric: uint32 steps [n], and as many numbers of a storable dtype, or JSON values."""

    steps: NDArray[np.uint32]
    values: NDArray[Any] | list[Any]


class Extra(NamedTuple):
    """A file that is none of ours but lies in the run's folder, to be carried into the archive."""

    info: zipfile.ZipInfo
    open: Callable[[], IO[bytes]]


def write_archive(
    path: Path, columns: Mapping[str, BulkColumn], config: bytes, extras: Iterable[Extra] = ()
) -> None:
    """Publish a finished run at ``path``: all of it or, on any error, nothing.

    Integers are stored in the smallest type that holds them, steps as segments where they fit.

    Args:
        path: the archive to write or replace.
        columns: metric -> its rows, in the order in which the manifest lists them. Names are checked
            by the caller.
        config: the bytes of ``config.json``.
        extras: other files to put into the archive.

    Raises:
        DtypeError: a JSON value that UTF-8 cannot spell.
        RunExistsError: an extra file has the name of one that is written.
    """
    temporary = path.with_name(path.name + TMP_SUFFIX)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as bundle:
            bundle.writestr(CONFIG, config)
            specs = {name: _write_column(bundle, name, column) for name, column in columns.items()}
            rows = max((len(column.steps) for column in columns.values()), default=0)
            bundle.writestr(MANIFEST, _manifest.dump(specs, run_rows=rows))
            written = set(bundle.namelist())
            for extra in extras:
                if extra.info.filename in written:
                    raise RunExistsError(
                        f"{path.parent} has a file {extra.info.filename!r} of unknown origin, which would "
                        f"be replaced: move it away"
                    )
                with extra.open() as source, bundle.open(extra.info, "w", force_zip64=True) as sink:
                    shutil.copyfileobj(source, sink)
        _fs.sync_file(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, path)
    _fs.sync_dir(path.parent)


def _write_column(bundle: zipfile.ZipFile, name: str, column: BulkColumn) -> dict[str, Any]:
    segments = _indices.fit(column.steps)
    if segments is None:
        bundle.writestr(indices_file(name), column.steps.astype("<u4").tobytes())
    spec: dict[str, Any] = {"indices": INDICES_FILE if segments is None else _indices.dump(segments)}
    if isinstance(column.values, list):
        spec["dtype"] = JSONL
        bundle.writestr(value_file(name, JSONL), _json_lines(name, column))
        return spec
    values = column.values
    if values.dtype.kind in "iu":
        values = values.astype(DTYPES[tightest(int(values.min()), int(values.max()))])
    values = values.astype(values.dtype.newbyteorder("<"))
    spec["dtype"] = _CODES[values.dtype]
    if flag := monotonic(values):
        spec["monotonic"] = flag
    bundle.writestr(value_file(name, spec["dtype"]), values.tobytes())
    return spec


def _json_lines(name: str, column: BulkColumn) -> bytes:
    try:
        return "".join(f"{dumps(value)}\n" for value in column.values).encode()
    except UnicodeEncodeError as error:
        raise DtypeError(f"metric {name!r} holds text that UTF-8 cannot spell: {error}") from error


# ---- what an earlier output leaves behind ---------------------------------------------------------


def extras_of(run_root: Path) -> Iterator[Extra]:
    """Yield the files beside an earlier output's own ones, in its folder and in its archive.

    Raises:
        RunExistsError: folder and archive hold different files of one name.
        PlattliError, OSError, zipfile.BadZipFile: the earlier output cannot be read.
    """
    root, archive = run_root / METRIC_DIR, run_root / ARCHIVE
    loose: dict[str, Path] = {}
    if root.is_dir():
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        manifest = files.get(MANIFEST)
        names = _foreign(files, manifest.read_bytes() if manifest else b"{}", run_root.name)
        loose = {name: files[name] for name in names}
        for name, path in loose.items():
            yield Extra(zipfile.ZipInfo.from_file(path, name, strict_timestamps=False), _opener(path))
    if archive.is_file():
        with zipfile.ZipFile(archive) as bundle:
            members = {info.filename: info for info in bundle.infolist() if not info.is_dir()}
            manifest_bytes = bundle.read(MANIFEST) if MANIFEST in members else b"{}"
            for name in _foreign(members, manifest_bytes, run_root.name):
                if name not in loose:
                    yield Extra(_stored(members[name]), _member_opener(bundle, name))
                elif loose[name].read_bytes() != bundle.read(name):
                    raise RunExistsError(f"{root / name} and {archive} hold different files {name!r}: remove one")


def _foreign(files: Collection[str], manifest: bytes, run: str) -> list[str]:
    own = {MANIFEST, CONFIG, HOT, HOT_COMPACTING}
    for metric in _manifest.load(manifest, run).specs:
        own.update(f"{metric}.{suffix}" for suffix in (*_VALUE_SUFFIXES, INDICES_FILE))
    for name in files:
        # steps with values, though no manifest knows them: an orphan of a dead writer
        stem = name.removesuffix(f".{INDICES_FILE}")
        if stem != name:
            values = {value_file(stem, suffix) for suffix in _VALUE_SUFFIXES}.intersection(files)
            own.update(values, [name] if values else [])
    return sorted(name for name in files if name.removesuffix(TMP_SUFFIX) not in own)


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


def _member_opener(bundle: zipfile.ZipFile, name: str) -> Callable[[], IO[bytes]]:
    return lambda: bundle.open(name)


def _stored(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    # a new entry: the old one knows where it was
    fresh = zipfile.ZipInfo(info.filename, info.date_time)
    fresh.external_attr = info.external_attr
    return fresh
