"""The main job as a user sees it: train, log, die, resume, tee, look; checked in every place that got the lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from plattli import Reader
from tests.test_adapters import tensorboard_files, wandb_files
from tests.test_adapters.replicas import wait_for

ROOT = Path(__file__).parents[2]
KILLED_AT, RESUMED_AT, LAST = 777, 700, 1320


def program(out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-m", "examples.train_digits", "--out", str(out), "--seed", "3", *flags],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A: uninterrupted. B: killed at step 777, and resumed."""
    directory = tmp_path_factory.mktemp("digits")
    a, b = directory / "A", directory / "B"
    whole = program(a)
    killed = program(b, "--kill-at", str(KILLED_AT))
    resumed = program(b, "--resume")

    assert (whole.returncode, killed.returncode, resumed.returncode) == (0, -signal.SIGKILL, 0), resumed.stderr
    return a, b


def test_both_runs_hold_the_same_values(runs: tuple[Path, Path]) -> None:
    """Every metric equal, step for step and bit for bit, walltime aside; one value per metric and step."""
    with Reader(runs[0]) as a, Reader(runs[1]) as b:
        assert a.metrics() == b.metrics()
        assert {"train/loss", "train/schedule/lr", "validate/accuracy", "data/data_wait_frac"} <= set(a.metrics())
        for name in a.metrics():
            (steps, values), (other_steps, other_values) = a.metric(name), b.metric(name)
            assert steps.tolist() == other_steps.tolist() == sorted(set(steps.tolist())), name
            if not name.endswith("/walltime"):
                assert values.dtype == other_values.dtype, name
                if values.dtype == object:
                    assert values.tolist() == other_values.tolist(), name
                else:
                    assert values.tobytes() == other_values.tobytes(), name
        assert a.rows("train/loss") == LAST
        assert max(a.metric_values("validate/accuracy")) > 0.95


def test_tensorboards_own_reader_has_every_step_once(runs: tuple[Path, Path]) -> None:
    """And the values that the run has, as float32."""
    files = tensorboard_files.Files(runs[1] / "tensorboard")
    with Reader(runs[1]) as reader:
        for tag in files.tags():
            steps, values = reader.metric(tag)
            assert [step for step, _ in files.scalars(tag)] == steps.tolist(), tag
            if not tag.endswith("/walltime"):
                assert np.float32([v for _, v in files.scalars(tag)]).tolist() == np.float32(values).tolist(), tag
    pictures = Counter(image.step for image in files.images("validate/confusion"))
    assert set(pictures.values()) == {1}


@pytest.mark.parametrize("fast", [True, False])
def test_a_tensorboard_server_has_every_step_once(runs: tuple[Path, Path], tmp_path: Path, fast: bool) -> None:
    """With both of its loaders, for both runs; one run per directory."""
    with tensorboard_files.serve(runs[0].parent, tmp_path / "log", fast=fast) as server:
        assert server.runs() == ["A/tensorboard", "B/tensorboard"]
        for run in server.runs():
            # it reads file after file: B's second attempt comes last
            tensorboard_files.poll(lambda run=run: (server.scalars(run, "train/loss") or [(0, 0)])[-1][0] == LAST)
            # the server shows 1000 points of a series at the most, the last one always
            steps = [step for step, _ in server.scalars(run, "train/loss")]
            assert len(steps) == len(set(steps)), run
            assert steps == sorted(steps)
            validated = [step for step, _ in server.scalars(run, "validate/loss")]
            assert validated == list(range(44, LAST + 1, 44)), run
        a, b = (dict(server.scalars(run, "validate/loss")) for run in server.runs())
        assert a == b


def test_wandb_has_the_rows_of_both_attempts_under_one_id(runs: tuple[Path, Path]) -> None:
    """The first attempt up to the kill and closed as failed, the second from the checkpoint on."""
    wait_for(lambda: len(wandb_files.find_runs(runs[1])) == 2)
    first, second = wandb_files.find_runs(runs[1])
    steps = [[row["train/step"] for row in attempt.rows if "train/loss" in row] for attempt in (first, second)]
    assert first.run_id == second.run_id
    assert steps == [list(range(1, KILLED_AT + 1)), list(range(RESUMED_AT + 1, LAST + 1))]
    assert (first.exit_code, second.exit_code) == (1, 0)
    with Reader(runs[1]) as reader:
        losses = dict(zip(*(column.tolist() for column in reader.metric("train/loss", dtype=np.float64)), strict=True))
    assert {row["train/step"]: row["train/loss"] for row in second.rows if "train/loss" in row} == {
        step: loss for step, loss in losses.items() if step > RESUMED_AT
    }


def test_no_process_is_left(runs: tuple[Path, Path]) -> None:
    """Followers end with their work."""
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    left = [line for line in listing.splitlines() if "adapters.follower" in line and str(runs[0].parent) in line]
    assert left == []
