"""Runs to import, what is in one, and the command, for the tests of importers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from loggers import PlattliLogger
from plattli import Reader
from plattli.cli import main as plattli

Points = dict[str, list[tuple[int, Any]]]


def points(run: Path, *, without: tuple[str, ...] = ()) -> Points:
    """Return every metric's steps and values; NaN as text, so that it equals itself."""
    found: Points = {}
    with Reader(run) as reader:
        for name in reader.metrics():
            if not name.endswith(without) or not without:
                steps, values = reader.metric(name, dtype="storage")
                plain = ["NaN" if value != value else value for value in values.tolist()]
                found[name] = list(zip(steps.tolist(), plain, strict=True))
    return found


def as_float32(metrics: Points) -> Points:
    """Return what float32 makes of the numbers."""
    with np.errstate(over="ignore"):
        return {
            name: [(step, float(np.float32(v)) if isinstance(v, int | float) else v) for step, v in series]
            for name, series in metrics.items()
        }


def about(run: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return status, params and tags of a run."""
    with Reader(run) as reader:
        config = reader.config()
    own = config.pop("_run")
    return own["status"], config, own["tags"]


def imported(source: Path, run: Path, *options: str, code: int = 0, capsys: Any = None) -> list[dict[str, Any]]:
    """Import by the command, as a program would, and return what it says; the source is as it was."""
    if capsys is not None:
        capsys.readouterr()  # of calls before
    before = snapshot(source)
    assert plattli(["import", str(source), str(run), "--json", *options]) == code
    assert snapshot(source) == before
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()] if capsys is not None else []


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return the times and the bytes of all there is."""
    files = [path] if path.is_file() else [child for child in path.rglob("*") if child.is_file()]
    folders = [path, *(child for child in path.rglob("*") if child.is_dir())] if path.is_dir() else []
    content = {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
    return content | {str(folder): (folder.stat().st_mtime_ns, b"") for folder in folders}


def write_run(run: Path, steps: int = 60, *, end: str = "completed") -> Path:
    """Log a run that has a bit of everything, and return where it is."""
    logger = PlattliLogger(run, hotsize=20)
    logger.log_params({"lr": 0.1, "width": 128, "name": "basic", "deep": True})
    logger.log_tags(["seen", "ünï code"])
    for step in range(steps):
        row = {"loss": 1 / (step + 3), "n": step * 1000, "schedule/lr": 0.1 * 0.5**step}
        row["odd"] = float("nan") if step % 2 else 0.5
        logger.log_metrics(row, step=step, epoch=step // 10, walltime=1.7e9 + step / 3)
        if step % 10 == 9:
            logger.log_metrics({"loss": step / 7, "größe": -step}, step=step, context="validate", walltime=1.7e9 + step)
    logger.log_other("note", {"text": "x", "list": [1, 2]})
    logger.log_confusion([[3, 1], [0, 4]], ["a", "b"], epoch=1, step=steps - 1, context="validate")
    logger.finish(end)
    return run
