"""The backends of other people's trackers keep the contract, each read back with its tracker's own files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from adapters import MetricsGroupLogger, TeeLogger, TensorBoardLogger, WandbLogger
from loggers import JSONLogger, PlattliLogger
from loggers.testing import LoggerContract, Stored
from tests.lazy import Lazy
from tests.test_adapters.metrics_groups import ByHand
from tests.test_adapters.replicas import wait_for
from tests.test_adapters.tensorboard_files import Files
from tests.test_adapters.wandb_files import find_runs
from tests.test_loggers.test_contract import TestRecordingLogger as RecordingContract
from tests.test_loggers.test_contract import json_run, plattli_run

hparams = Lazy("tensorboard.plugins.hparams.metadata")


class TestTensorBoardLogger(LoggerContract):
    """Read with TensorBoard's accumulator, which shows every event there is."""

    precision = "float32"
    holds_text = False
    holds_late = False
    replaces = False
    holds_nested_params = False
    statuses: ClassVar[dict[str, str]] = {
        "completed": "STATUS_SUCCESS",
        "early_stop": "STATUS_SUCCESS",
        "error": "STATUS_FAILURE",
        "interrupted": "STATUS_FAILURE",
    }

    def build(self, directory: Path) -> TensorBoardLogger:
        return TensorBoardLogger(directory)

    def stored(self, directory: Path) -> Stored:
        return tensorboard_run(directory)


class TestMetricsGroupLogger(LoggerContract):
    """Read with zarr and json, whether or not anything is densified. Points are in log order; here they are sorted."""

    precision = "float64"
    holds_text = False

    def build(self, directory: Path) -> MetricsGroupLogger:
        return MetricsGroupLogger(directory)

    def stored(self, directory: Path) -> Stored:
        return ByHand(directory).stored()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the account of whoever runs the tests, and leave no settings behind."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "NETRC", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.fixture(scope="module")
def service() -> Iterator[None]:
    """End the client's service, and its threads, with the last test that uses them."""
    yield
    import wandb

    wandb.teardown()


@pytest.mark.usefixtures("home", "service")
class TestWandbLogger(LoggerContract):
    """Read from the offline files. W&B's core keeps numbers as float64, and takes no row back."""

    precision = "float64"
    live = False
    replaces = False
    cuts = False

    def build(self, directory: Path) -> WandbLogger:
        return WandbLogger("contract", mode="offline", dir=directory)

    def stored(self, directory: Path) -> Stored:
        return wandb_run(directory)


class TestTeeLogger(LoggerContract):
    """What its primary holds."""

    def build(self, directory: Path) -> TeeLogger:
        return TeeLogger(PlattliLogger(directory), JSONLogger(directory / "replica.jsonl"))

    def stored(self, directory: Path) -> Stored:
        return plattli_run(directory)


class TestReplica(RecordingContract):
    """What a replica of the tee holds, while its primary decides what is accepted."""

    def build(self, directory: Path) -> TeeLogger:
        return TeeLogger(PlattliLogger(directory), super().build(directory))


def test_a_replica_that_only_appends_gets_each_line_once(tmp_path: Path) -> None:
    """Also across a resume: there is nothing to cut it with, and nothing that it lacks."""

    def build() -> TeeLogger:
        return TeeLogger(PlattliLogger(tmp_path / "run"), JSONLogger(tmp_path / "replica.jsonl"))

    first = build()
    first.log_metrics({"loss": 0.5}, step=1)
    state = first.logger_state()
    first.finish("interrupted")
    second = build()
    second.reattach(state)
    second.log_metrics({"loss": 0.25}, step=2)
    second.finish("completed")

    assert json_run(tmp_path / "replica.jsonl").metrics["train/loss"] == [(1, 0.5), (2, 0.25)]


class BoardFiles(Files):
    """A run directory, with the list of its texts."""

    def text_tags(self) -> list[str]:
        return sorted(self._read.Tags()["tensors"])


def tensorboard_run(directory: Path) -> Stored:
    """Read a run directory of event files."""
    found = Stored()
    if not directory.exists():
        return found
    files = BoardFiles(directory)
    found.metrics = {tag: files.scalars(tag) for tag in files.tags()}
    if hparams.SESSION_START_INFO_TAG in files.text_tags():
        found.params, found.status = files.params(), files.status()
    for tag in files.text_tags():
        if tag == "tags":
            found.tags = _tags(files.texts(tag)[-1][1])
        elif tag.startswith("other/"):
            found.other[tag.removeprefix("other/")] = _free_form(files.texts(tag)[-1][1])
        elif tag.endswith("/table"):
            found.confusions[tag.removesuffix("/table")] = [(step, *_matrix(text)) for step, text in files.texts(tag)]
    return found


def _tags(markdown: str) -> dict[str, str | bool]:
    items = (re.fullmatch(r"- `(.*?)`(?:: `(.*)`)?", line) for line in markdown.splitlines())
    return {item[1]: item[2] or True for item in items if item}


def _free_form(markdown: str) -> object:
    block = re.fullmatch(r"```json\n(.*)\n```", markdown, re.DOTALL)
    try:
        return json.loads(block[1] if block else markdown)
    except ValueError:
        return markdown


def _matrix(markdown: str) -> tuple[list[str], list[list[float]]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return rows[0][1:], [[float(cell) for cell in row[1:]] for row in rows[2:]]


def wandb_run(directory: Path) -> Stored:
    """Read the offline files of every attempt, as ``wandb sync`` would send them."""
    found = Stored()
    # the service closes the file after it has told the client that the run is over
    wait_for(lambda: all(run.exit_code is not None for run in find_runs(directory)))
    for run in find_runs(directory):
        pages = set()
        for row in run.rows:
            axis = next(key for key in row if key == "step" or key.endswith("/step"))
            labels = {key.removesuffix("/labels"): value for key, value in row.items() if key.endswith("/labels")}
            for name, classes in labels.items():
                matrix = (row[axis], classes, row[f"{name}/counts"])
                found.confusions.setdefault(name, []).append(matrix)
                pages |= {name, f"{name}/labels", f"{name}/counts"}
            for key, value in row.items():
                if key not in pages and not key.startswith("_"):
                    found.metrics.setdefault(key, []).append((row[axis], value))
        found.params |= run.config
        found.tags |= {tag: value or True for tag, _, value in (tag.partition(":") for tag in run.tags)}
        found.other |= {
            key: value
            for key, value in run.summary.items()
            if key not in found.metrics and key not in pages and key != "status" and not key.startswith("_")
        }
        found.status = run.summary.get("status")
    return found
