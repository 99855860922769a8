"""Big runs, laid out by hand from arrays: logging them row by row would take longer than reading them."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

Steps = Literal["segment", "open", "file"]


def long_run(
    root: Path,
    rows: int,
    steps: Steps,
    *,
    jsonl: bool = True,
    integers: bool = True,
    floats: int = 8,
    zip: bool = False,
) -> Path:
    """Make a run with ``rows`` rows of floats, a rising integer, and JSON.

    Args:
        root: the run root.
        rows: in each metric; step = row.
        steps: spelled as a closed segment, as one with an open end, or in a step file.
        jsonl, integers: with the metrics ``json`` and ``count``.
        floats: how many metrics ``float-0``, ``float-1``, …
        zip: as an archive.

    Returns:
        ``root``.
    """
    folder = root / "plattli"
    folder.mkdir(parents=True)
    segment = {"start": 0, "step": 1, **({"stop": rows} if steps == "segment" else {})}
    indices: Any = "indices" if steps == "file" else [segment]
    manifest: dict[str, Any] = {}
    source = np.random.default_rng(rows)

    def add(name: str, code: str, data: bytes) -> None:
        manifest[name] = {"indices": indices, "dtype": code, **({"monotonic": "inc"} if code == "i64" else {})}
        if code == "jsonl" and steps == "segment":
            manifest[name]["bytes"] = len(data)  # as writers do when they finish
        (folder / f"{name}.{code}").write_bytes(data)
        if steps == "file":
            (folder / f"{name}.indices").write_bytes(np.arange(rows, dtype="<u4").tobytes())

    for number in range(floats):
        add(f"float-{number}", "f32", source.random(rows, np.float32).astype("<f4").tobytes())
    if integers:
        add("count", "i64", np.arange(0, 3 * rows, 3, dtype="<i8").tobytes())
    if jsonl:
        add("json", "jsonl", b"".join(b'{"n": %d, "text": "abc"}\n' % (row % 100_000) for row in range(rows)))
    manifest["when_exported"] = "2026-01-03T12:34:56Z"
    if zip or steps == "segment":
        manifest["run_rows"] = rows
    return _publish(root, manifest, zip=zip)


def live_run(root: Path, metrics: int, hot_rows: int) -> Path:
    """Make a run whose rows are all in the hot log."""
    folder = root / "plattli"
    folder.mkdir(parents=True)
    values = np.random.default_rng(1).random((hot_rows, metrics), np.float32).astype(float).tolist()
    with (folder / "hot.jsonl").open("w") as log:
        for step, row in enumerate(values):
            named = {f"detail/metric-{i}": value for i, value in enumerate(row)}
            log.write(json.dumps({"step": step, **named}, separators=(",", ":")) + "\n")
    manifest: dict[str, Any] = {
        f"detail/metric-{i}": {"indices": [], "dtype": "f32"} for i in range(metrics)
    }
    return _publish(root, {**manifest, "when_exported": "2026-01-03T12:34:56Z"}, zip=False)


def wide_run(root: Path, metrics: int, rows: int) -> Path:
    """Make an archive with many short metrics."""
    folder = root / "plattli" / "detail"
    folder.mkdir(parents=True)
    spec = {"indices": [{"start": 0, "stop": rows, "step": 1}], "dtype": "f32"}
    for number in range(metrics):
        (folder / f"metric-{number}.f32").write_bytes(np.full(rows, number, "<f4").tobytes())
    manifest: dict[str, Any] = {f"detail/metric-{number}": spec for number in range(metrics)}
    return _publish(root, {**manifest, "when_exported": "2026-01-03T12:34:56Z", "run_rows": rows}, zip=True)


def _publish(root: Path, manifest: dict[str, Any], *, zip: bool) -> Path:
    folder = root / "plattli"
    (folder / "config.json").write_text("{}")
    (folder / "plattli.json").write_text(json.dumps(manifest))
    if zip:
        with zipfile.ZipFile(root / "metrics.plattli", "w") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(folder).as_posix())
        shutil.rmtree(folder)
    return root
