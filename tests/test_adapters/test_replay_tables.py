"""``plattli replay --to csv:FILE`` and ``--to stdout:``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from loggers import PlattliLogger
from plattli.cli import main as plattli
from tests.test_loggers.test_contract import csv_run, plattli_run


def write_run(run: Path) -> None:
    logger = PlattliLogger(run)
    logger.log_params({"lr": 0.1})
    for step in range(1, 4):
        logger.log_metrics({"loss": 1 / step}, step=step, epoch=1, walltime=1.5e9 + step)
    logger.log_metrics({"loss": 0.25, "acc": 7}, step=3, epoch=1, context="validate", walltime=1.5e9 + 3)
    logger.log_other("note", {"text": "x"})
    logger.finish("completed")


def test_a_run_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its times; a second call adds nothing, another file is refused, --force replaces it with its notes."""
    run, file = tmp_path / "run", tmp_path / "run.csv"
    write_run(run)
    assert plattli(["replay", str(run), "--to", f"csv:{file}"]) == 0
    text, notes = file.read_text(), (tmp_path / "run.notes.jsonl").read_text()
    assert plattli(["replay", str(run), "--to", f"csv:{file}"]) == 0
    assert (file.read_text(), (tmp_path / "run.notes.jsonl").read_text()) == (text, notes)
    assert plattli(["replay", str(run), "--to", f"csv:{file}", "--force"]) == 0
    assert (file.read_text(), (tmp_path / "run.notes.jsonl").read_text()) == (text, notes)
    write_run(tmp_path / "other")
    assert plattli(["replay", str(tmp_path / "other"), "--to", f"csv:{file}"]) == 1

    found, expected = csv_run(file), plattli_run(run)
    expected.metrics = {name: points for name, points in expected.metrics.items() if "walltime" not in name}
    expected.confusions = found.confusions
    assert text.splitlines()[1] == "train,1,1,1500000001.0,1.0,"
    assert found == expected
    assert "is there already" in capsys.readouterr().err


def test_a_run_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As often as one likes; what is said about it goes elsewhere."""
    write_run(tmp_path / "run")
    for target in ("stdout:", "stdout:", "stdout", "stdout"):
        assert plattli(["replay", str(tmp_path / "run"), "--to", target]) == 0
        said = capsys.readouterr()
        assert [line for line in said.out.splitlines() if line.startswith("step")] == [
            "step 1\tloss 1\tepoch 1",
            "step 2\tloss 0.5\tepoch 1",
            "step 3\tloss 0.3333\tepoch 1",
            "step 3\tvalidate/loss 0.25\tvalidate/acc 7\tepoch 1",
        ]
        assert said.out.splitlines()[-1] == "finish completed"
        assert f"lines sent to {target}" in said.err


@pytest.mark.parametrize("target", ["csv:", "stdout:x", "stdou"])
def test_a_target_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    """With all that there are."""
    write_run(tmp_path / "run")

    assert plattli(["replay", str(tmp_path / "run"), "--to", target]) == 2
    assert "csv:FILE, stdout:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("csv", "a file is there"), ("jsonl", "a file is there"), ("jsonl", "nothing is mounted there")],
)
def test_a_place_that_takes_nothing_is_said_once(tmp_path: Path, kind: str, reason: str) -> None:
    """The error is all there is: nothing waits, so nothing is lost when the program ends."""
    write_run(tmp_path / "run")
    if reason == "a file is there":
        (tmp_path / "place").write_text("no folder")
        said = "PathError: .*/place is a file"
    else:
        (tmp_path / "place").symlink_to(tmp_path / "disk")
        said = "UnwrittenError: run .* the disk takes nothing"
    target = f"{kind}:{tmp_path}/place/x.{kind}"
    command = [sys.executable, "-m", "plattli", "replay", str(tmp_path / "run"), "--to", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert re.match(f"plattli replay: {re.escape(target)} failed with {said}", done.stderr.strip().splitlines()[-1])
    assert len(done.stderr.strip().splitlines()) == 1
    assert "arning" not in done.stderr
