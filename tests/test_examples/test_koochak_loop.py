"""examples.koochak_loop: killed from outside at any moment and called again, it has the curves of one that was not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.koochak_loop import Digits, main
from plattli import Reader
from tests.test_loggers.plattli_runs import about, stored
from tests.test_loggers.test_contract import csv_run

ROOT = Path(__file__).parents[2]
STEPS = 1500


def curves(out: Path) -> dict[str, Any]:
    """Return what depends on nothing but the training."""
    found = stored(out / "run")
    return {name: found[name] for name in ("train/loss", "train/lr", "train/accuracy", "validate/loss")}


def test_killed_from_outside(tmp_path: Path) -> None:
    """Three times with kill -9, as soon as some lines were printed, wherever the threads were at that moment."""
    main(["--out", str(tmp_path / "through"), "--steps", str(STEPS), "--quiet"])
    command = [sys.executable, "-m", "examples.koochak_loop", "--out", str(tmp_path / "killed"), "--steps", str(STEPS)]
    for lines in (21, 32, 13):
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # so that it cannot run to its end before anybody has looked
        with open(reading, "rb") as printed, subprocess.Popen(command, cwd=ROOT, stdout=writing) as process:
            os.close(writing)
            for _ in range(lines):
                printed.readline()
            process.kill()
            assert process.wait() == -signal.SIGKILL
    assert about(tmp_path / "killed" / "run")["status"] == "running"
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0

    expected = curves(tmp_path / "through")
    assert curves(tmp_path / "killed") == expected
    assert list(expected["train/loss"]) == list(range(0, STEPS, 5))
    assert list(expected["validate/loss"].values())[-1] < 0.5
    assert about(tmp_path / "killed" / "run")["status"] == "completed"
    table = csv_run(tmp_path / "killed" / "log.csv").metrics
    assert table["train/loss"] == [(step, float(value)) for step, value in expected["train/loss"].items()]


def test_an_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own, in the middle of training."""
    monkeypatch.setattr(Digits, "evaluate", lambda model: {"loss": np.linalg.inv(np.zeros((2, 2)))})
    with pytest.raises(np.linalg.LinAlgError):
        main(["--out", str(tmp_path), "--steps", "200", "--quiet"])
    with Reader(tmp_path / "run") as reader:
        assert reader.config()["_run"]["status"] == "error"
        assert reader.config()["train.max_steps"] == 200
