"""The loggers that need nobody else's package keep the contract, each read back without itself."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loggers import CSVLogger, JSONLogger, PlattliLogger, StdoutLogger
from loggers.testing import Call, LoggerContract, RecordingLogger, Stored, stored_by
from plattli import Reader
from plattli.rows import exists
from tests.test_loggers.plattli_runs import stored


class TestPlattliLogger(LoggerContract):
    """Read with the format's own reader."""

    def build(self, directory: Path) -> PlattliLogger:
        return PlattliLogger(directory)

    def stored(self, directory: Path) -> Stored:
        return plattli_run(directory)


def test_an_archive_cut_to_nothing_twice_can_be_read(tmp_path: Path) -> None:
    """A finished run, from which a checkpoint of its very beginning is resumed two times."""
    logger = PlattliLogger(tmp_path)
    start = logger.logger_state()
    for step in (1, 3, 4, 7, 9, 10, 18):
        logger.log_metrics({"count": -561}, step=step)
    logger.finish("completed")
    again = PlattliLogger(tmp_path)
    again.reattach(start)
    again.log_metrics({"count": 459}, step=7)
    PlattliLogger(tmp_path).reattach(start)

    assert plattli_run(tmp_path).metrics == {}


class TestPlattliLoggerCompacting(TestPlattliLogger):
    """With every few lines becoming columns on the way."""

    def build(self, directory: Path) -> PlattliLogger:
        return PlattliLogger(directory, hotsize=2)


class TestJSONLogger(LoggerContract):
    """Read line by line. There is nothing to reattach: a later logger appends."""

    replaces = False
    resumes = False

    def build(self, directory: Path) -> JSONLogger:
        return JSONLogger(directory / "metrics.jsonl")

    def stored(self, directory: Path) -> Stored:
        return json_run(directory / "metrics.jsonl")


class TestCSVLogger(LoggerContract):
    """Read with the standard library's reader, and JSON for what is no number or plain text."""

    replaces = False

    def build(self, directory: Path) -> CSVLogger:
        return CSVLogger(directory / "metrics.csv")

    def stored(self, directory: Path) -> Stored:
        return csv_run(directory / "metrics.csv")


class TestStdoutLogger(LoggerContract):
    """Read from what it prints, in which floats have four significant digits."""

    precision = "float64"
    replaces = False
    holds_confusions = False
    resumes = False

    @pytest.fixture(autouse=True)
    def _streams(self) -> Iterator[None]:
        with contextlib.ExitStack() as self.streams:
            yield

    def build(self, directory: Path) -> StdoutLogger:
        directory.mkdir(exist_ok=True)
        return StdoutLogger(file=self.streams.enter_context((directory / "out.txt").open("a", encoding="utf-8")))

    def stored(self, directory: Path) -> Stored:
        return printed_run(directory / "out.txt")

    def rounded(self, value: Any) -> Any:
        return float(f"{value:.4g}") if isinstance(value, float) else value


class TestRecordingLogger(LoggerContract):
    """Its run is the list of its calls."""

    replaces = False

    @pytest.fixture(autouse=True)
    def _runs(self) -> None:
        self.runs: dict[Path, list[Call]] = {}

    def build(self, directory: Path) -> RecordingLogger:
        return RecordingLogger(self.runs.setdefault(directory, []))

    def stored(self, directory: Path) -> Stored:
        return stored_by(self.runs.get(directory, []))


def plattli_run(directory: Path) -> Stored:
    """Read a Plättli run."""
    found = Stored()
    if exists(directory):
        with Reader(directory) as reader:
            config = reader.config()
            metrics = stored(directory, reader)
    elif (config_file := directory / "plattli" / "config.json").exists():  # no run to readers before its first metric
        config, metrics = json.loads(config_file.read_text()), {}
    else:
        return found
    about = config.pop("_run")
    found.params, found.tags, found.status = config, about["tags"], about["status"]
    for name, points in metrics.items():
        if name.startswith("other/"):
            found.other[name.removeprefix("other/")] = list(points.values())[-1]
        elif all(isinstance(value, dict) and "matrix" in value for value in points.values()):
            found.confusions[name] = [(step, m["labels"], m["matrix"]) for step, m in points.items()]
        else:
            found.metrics[name] = list(points.items())
    return found


def json_run(path: Path) -> Stored:
    """Read a JSON Lines file, as calls."""
    calls: list[Call] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        row: dict[str, Any] = json.loads(line)
        kind = row.pop("type")
        if kind == "metrics":
            place = {"context": row.pop("context"), "step": row.pop("step"), "epoch": row.pop("epoch", None)}
            calls.append(Call("log_metrics", (row,), place))
        elif kind == "params":
            calls.append(Call("log_params", (row,), {}))
        elif kind == "tags":
            calls.append(Call("log_tags", (row["tags"],), {}))
        elif kind == "other":
            calls.append(Call("log_other", (row["key"], row["value"]), {}))
        elif kind == "confusion":
            place = {"context": row.get("context"), "step": row.get("step"), "name": row["name"]}
            calls.append(Call("log_confusion", (row["matrix"], row["labels"]), place))
        elif kind != "rewind":  # which a table's notes say of themselves
            calls.append(Call(kind, (row["status"],), {}))
    return stored_by(calls)


def csv_run(path: Path) -> Stored:
    """Read a table, and the notes beside it."""
    found = json_run(path.with_suffix(".notes.jsonl"))
    if not path.exists():
        return found
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, strict=True):
            assert None not in row
            assert None not in row.values()
            for name, text in row.items():
                if text and name not in ("context", "step", "walltime"):
                    metric = json.loads(name) if name.startswith('"') else name
                    points = found.metrics.setdefault(f"{row['context']}/{metric}", [])
                    points.append((int(row["step"]), _cell(text)))
    return found


def printed_run(path: Path) -> Stored:
    """Read printed lines."""
    calls: list[Call] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        kind, _, rest = line.partition(" ")
        if kind == "params":
            calls.append(Call("log_params", (json.loads(rest),), {}))
        elif kind == "tags":
            calls.append(Call("log_tags", (json.loads(rest),), {}))
        elif kind == "other":
            calls += [Call("log_other", pair, {}) for pair in json.loads(rest).items()]
        elif kind == "finish":
            calls.append(Call("finish", (rest,), {}))
        else:
            pairs = [_pair(pair) for pair in line.split("\t")]
            step = _cell(pairs[0][1])
            epoch = next((_cell(text) for name, text in pairs if name == "epoch"), None)
            for name, text in pairs[1:]:
                if name != "epoch":
                    context, _, metric = name.partition("/") if "/" in name else ("train", "", name)
                    line_of = {"context": context, "step": step, "epoch": epoch}
                    calls.append(Call("log_metrics", ({metric: _cell(text)},), line_of))
    return stored_by(calls)


def _pair(text: str) -> tuple[str, str]:
    if text.startswith('"'):
        name, end = json.JSONDecoder().raw_decode(text)
        return name, text[end + 1 :]
    name, _, value = text.partition(" ")
    return name, value


def _cell(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return float(text) if text in ("nan", "inf", "-inf") else text
