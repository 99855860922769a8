"""Runs laid out by hand, with the format's rules and none of the package's writers."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import numpy as np

from plattli._format import DTYPES


def write_manifest(folder, specs, **extra):
    """Publish a manifest as writers do: all at once."""
    temporary = folder / "plattli.json.tmp"
    temporary.write_text(json.dumps({**specs, "when_exported": "2026-01-03T12:34:56Z", **extra}))
    temporary.replace(folder / "plattli.json")


def append_values(folder, name, dtype, values):
    """Append values to a column."""
    path = folder / f"{name}.{dtype}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if dtype == "jsonl":
            file.writelines(json.dumps(value).encode() + b"\n" for value in values)
        else:
            file.write(np.array(values, DTYPES[dtype]).tobytes())


def append_steps(folder, name, steps):
    """Append steps to a step file."""
    with (folder / f"{name}.indices").open("ab") as file:
        file.write(np.array(steps, "<u4").tobytes())


def append_hot(folder, step, values, file="hot.jsonl"):
    """Append a row to a hot log."""
    with (folder / file).open("a") as log:
        log.write(json.dumps({"step": step, **values}, separators=(",", ":")) + "\n")


def pack(folder, archive):
    """Archive a metric folder, and remove it."""
    with zipfile.ZipFile(f"{archive}.tmp", "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(folder).as_posix())
    os.replace(f"{archive}.tmp", archive)
    shutil.rmtree(folder)
