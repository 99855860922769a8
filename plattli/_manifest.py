"""``plattli.json``: which metrics a run has, and how each is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from plattli import _indices
from plattli._format import MANIFEST, check_name, dumps
from plattli.errors import CorruptRunError

_SPEC_KEYS = ("indices", "dtype", "monotonic")


@dataclass
class Manifest:
    """A parsed manifest.

    Attributes:
        specs: metric name -> its entry, in order of first write: ``indices``, ``dtype``, perhaps
            ``monotonic``, and whatever else a later release may have put there.
        run_rows: the largest row count over metrics, ``None`` unless the run is finished. A finished
            run has no hot rows, whatever files lie around.
        when_exported: when the manifest was written, UTC.
    """

    specs: dict[str, dict[str, Any]]
    run_rows: int | None = None
    when_exported: str | None = None


def load(data: bytes, run: str) -> Manifest:
    """Parse a manifest. Index specs and dtypes are checked where they are used.

    Args:
        data: the bytes of the file.
        run: the run's name, for the message.

    Raises:
        CorruptRunError: not the JSON that a manifest is.
        MetricNameError: a metric's name would not be a path inside the run.
    """
    try:
        parsed = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptRunError(f"{MANIFEST} of run {run!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CorruptRunError(f"{MANIFEST} of run {run!r} must hold an object, got {type(parsed).__name__}")
    run_rows, when = parsed.pop("run_rows", None), parsed.pop("when_exported", None)
    if run_rows is not None and (type(run_rows) is not int or run_rows < 0):
        raise CorruptRunError(f"{MANIFEST} of run {run!r} has run_rows {run_rows!r}, which is no row count")
    for name, spec in parsed.items():
        check_name(name, run)
        if not (isinstance(spec, dict) and "indices" in spec and isinstance(spec.get("dtype"), str)):
            raise CorruptRunError(
                f"{MANIFEST} of run {run!r}: metric {name!r} needs indices and a dtype, got {spec!r:.200}"
            )
    return Manifest(parsed, run_rows, when if isinstance(when, str) else None)


def dump(specs: Mapping[str, Mapping[str, Any]], run_rows: int | None = None) -> bytes:
    """Return the bytes of a manifest that is written now.

    Metrics with wide steps come first: a writer that does not know them stops there, before it has cut any other.

    Args:
        specs: metric name -> entry, in the order to write.
        run_rows: the largest row count over metrics, for finished runs only: readers of a manifest
            that has it ignore hot rows.
    """
    ordered = sorted(specs.items(), key=lambda item: not _indices.is_wide(item[1]["indices"]))
    return assemble(b", ".join(entry(name, spec) for name, spec in ordered), run_rows)


def entry(name: str, spec: Mapping[str, Any]) -> bytes:
    """Return how a manifest spells one metric."""
    ordered = {key: spec[key] for key in _SPEC_KEYS if key in spec} | dict(spec)
    return f"{dumps(name)}: {dumps(ordered)}".encode()


def assemble(entries: bytes | bytearray, run_rows: int | None = None) -> bytes:
    """Return the bytes of a manifest that is written now.

    Args:
        entries: what :func:`entry` gave for each metric, with ``", "`` in between.
        run_rows: see :func:`dump`.
    """
    last: dict[str, Any] = {"when_exported": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    if run_rows is not None:
        last["run_rows"] = run_rows
    return b"".join((b"{", entries, b", " if entries else b"", dumps(last)[1:].encode()))
