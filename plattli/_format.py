"""The words of the format: every name, suffix and limit that a run is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from plattli.errors import MetricNameError

#: The folder of a live run, and of a finished one that was not archived.
METRIC_DIR: Final = "plattli"
#: The archive of a finished run, beside where the folder was.
ARCHIVE: Final = "metrics.plattli"
MANIFEST: Final = "plattli.json"
CONFIG: Final = "config.json"
#: Rows that are not in the columns yet, and those that a compaction is moving there.
HOT: Final = "hot.jsonl"
HOT_COMPACTING: Final = "hot.compacting.jsonl"
#: Both the suffix of a step file and the word that a manifest uses for "look in the step file".
INDICES_FILE: Final = "indices"
#: The key under which a manifest spells the steps of a metric that has some above :data:`MAX_NARROW_STEP`, and the
#: suffix of its step file, which is no longer than the other one: a name that fits once fits for good.
WIDE: Final = "u64"
WIDE_INDICES_FILE: Final = "steps64"
#: Both the suffix and the dtype of a column of JSON values.
JSONL: Final = "jsonl"
#: Key of a JSON column's manifest entry in a finished run: the size of its file. Other releases ignore it.
BYTES: Final = "bytes"
#: Key of a manifest entry in a live run: how often the column was cut, so that a reader in the middle of its files
#: notices. Other releases ignore it.
CUTS: Final = "cuts"
#: Key of a manifest entry while its files are being cut: how many rows stay.
KEPT: Final = "kept"
TMP_SUFFIX: Final = ".tmp"
#: How a URL ends whose query, which may hold a signature, is not to be shown.
HIDDEN_QUERY: Final = "?…"
#: Keys of the manifest that are not metrics.
RESERVED_KEYS: Final = ("run_rows", "when_exported")
#: Names whose files or keys would be taken for something else.
RESERVED_NAMES: Final = frozenset({"step", *RESERVED_KEYS, "hot", "hot.compacting"})
#: The highest step there is. Steps are counted in int64 here, in uint64 on disk.
MAX_STEP: Final = 2**63 - 1
#: The highest step of a metric that is stored as every release of the format can read it, in uint32.
MAX_NARROW_STEP: Final = 2**32 - 1
#: Storage dtype code -> what NumPy calls it. Files are little-endian on every machine.
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    **{f"f{bits}": np.dtype(f"<f{bits // 8}") for bits in (32, 64)},
    **{f"{kind}{bits}": np.dtype(f"<{kind}{bits // 8}") for kind in "iu" for bits in (8, 16, 32, 64)},
}


def check_name(name: object, run: str) -> str:
    """Return ``name`` as a plain string if the format can store it.

    Names become relative file paths, so whatever could leave the run's folder is refused.

    Args:
        name: what the caller wants to call a metric.
        run: the run's name, for the message.

    Raises:
        MetricNameError: not a string, empty, reserved, not encodable, or not a clean relative path.
    """
    if not isinstance(name, str):
        raise MetricNameError(f"metric name must be a str, got {type(name).__name__}: {name!r} (run {run!r})")
    why = _name_problem(name)
    if why:
        raise MetricNameError(f"metric name {name!r} {why} (run {run!r})")
    return str(name)


def _name_problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if name in RESERVED_NAMES:
        return "is reserved by the format: choose another one"
    if "\0" in name or "\\" in name:
        return "holds a NUL or a backslash: use '/' to make groups"
    if name.startswith("/") or (name[1:2] == ":" and name[0].isascii() and name[0].isalpha()):
        return "is absolute: metric names are relative paths"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty, '.' or '..' part: metric names are clean relative paths"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which UTF-8 cannot spell"
    return None


def value_file(name: str, dtype: str) -> str:
    """Return where metric ``name`` keeps its values, relative to the metric folder."""
    return f"{name}.{dtype}"


def indices_file(name: str, wide: bool = False) -> str:
    """Return where metric ``name`` keeps its steps unless its manifest entry spells them out.

    Args:
        name: the metric.
        wide: whether it has steps that take uint64.
    """
    return f"{name}.{WIDE_INDICES_FILE if wide else INDICES_FILE}"


def step_dtype(wide: bool) -> np.dtype[Any]:
    """Return how a step file holds steps; files are little-endian on every machine."""
    return np.dtype("<u8" if wide else "<u4")


def dumps(obj: object) -> str:
    """Return ``obj`` as the one-line JSON of manifests, configs and JSON columns.

    NaN and the infinities are bare tokens; characters outside ASCII stay as they are.

    Raises:
        TypeError, ValueError: JSON has no spelling for a part of it.
    """
    return json.dumps(obj, ensure_ascii=False)


def run_name(path: Path | str) -> str:
    """Return what the run stored at ``path`` (a metric folder, an archive, or its URL) is called in messages."""
    if isinstance(path, str):
        host, _, below = path.removesuffix(HIDDEN_QUERY).partition("://")[2].partition("/")
        return run_name(Path(host, below))
    if path.name in (METRIC_DIR, ARCHIVE):
        return path.parent.name
    return path.stem if path.suffix == ".plattli" else path.name
