"""``plattli replay``: any stored run into any logger, as often as one likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loggers import PlattliLogger
from plattli import Reader
from plattli.cli import main as plattli
from tests.faults import failing_disk
from tests.killing import run_killed
from tests.test_adapters.tensorboard_files import Files

ROOT = Path(__file__).parents[2]


def write_run(run: Path, steps: int = 50, *, end: str | None = "completed") -> PlattliLogger:
    logger = PlattliLogger(run, hotsize=20)
    logger.log_params({"lr": 0.1})
    logger.log_tags(["seen"])
    log(logger, range(steps))
    logger.log_confusion([[3, 1], [0, 4]], ["a", "b"], epoch=1, context="validate")
    logger.log_other("note", {"text": "x"})
    if end is not None:
        logger.finish(end)
    return logger


def log(logger: PlattliLogger, steps: range) -> None:
    for step in steps:
        logger.log_metrics({"loss": step / 4, "n": step}, step=step, epoch=step // 10, walltime=1.5e9 + step)
        if step % 10 == 0:
            logger.log_metrics({"loss": step / 2}, step=step, context="validate", walltime=1.5e9 + step)


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def points(file: Path) -> list[tuple[str, int, float]]:
    return [(row["context"], row["step"], row["loss"]) for row in rows(file) if row["type"] == "metrics"]


def expected(steps: int) -> list[tuple[str, int, float]]:
    lines = []
    for step in range(steps):
        lines.append(("train", step, step / 4))
        if step % 10 == 0:
            lines.append(("validate", step, step / 2))
    return lines


def test_all_of_a_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb call, in order; a second call sends nothing, --force replaces it, and what is gone is sent again."""
    run, file = tmp_path / "run", tmp_path / "out" / "run.jsonl"
    write_run(run)
    assert plattli(["replay", str(run), "--to", f"jsonl:{file}"]) == 0
    assert capsys.readouterr().out == f"{run}: 59 lines sent to jsonl:{file}\n"

    assert points(file) == expected(50)
    kinds = [row["type"] for row in rows(file)]
    assert kinds[:2] == ["params", "tags"]
    assert kinds[-1] == "finish"
    # a confusion ahead of its context's lines is none the less sent
    assert {kind: kinds.count(kind) for kind in ("confusion", "other", "finish")} == dict.fromkeys(
        ("confusion", "other", "finish"), 1
    )
    before = file.read_bytes()
    assert plattli(["replay", str(run / "metrics.plattli"), "--to", f"jsonl:{os.path.relpath(file)}"]) == 0
    assert "has all of it already" in capsys.readouterr().out
    assert file.read_bytes() == before
    assert plattli(["replay", str(run), "--to", f"jsonl:{file}", "--force", "--quiet"]) == 0
    assert file.read_bytes() == before
    assert capsys.readouterr().out == ""
    file.unlink()
    assert plattli(["replay", str(run), "--to", f"jsonl:{file}"]) == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard", "plattli"])
def test_a_place_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """Refused in the words of the command line, replaced on demand, and no job is left by what did not begin."""
    write_run(tmp_path / "other", 3)
    write_run(tmp_path / "run")
    to = f"{kind}:{tmp_path / 'out'}"
    assert plattli(["replay", str(tmp_path / "other"), "--to", to]) == 0
    capsys.readouterr()
    assert plattli(["replay", str(tmp_path / "run"), "--to", to]) == 1
    assert capsys.readouterr().err == (
        f"plattli replay: {to} is there already: name another place, or replace it with --force\n"
    )
    assert plattli(["send", str(tmp_path / "run")]) == 0
    assert plattli(["replay", str(tmp_path / "run"), "--to", to, "--force"]) == 0
    if kind == "jsonl":
        assert points(tmp_path / "out") == expected(50)
    elif kind == "tensorboard":
        assert Files(tmp_path / "out").scalars("train/n") == [(step, float(step)) for step in range(50)]
    else:
        with Reader(tmp_path / "out") as reader:
            assert reader.metric("train/n")[1].tolist() == list(range(50))


@pytest.mark.parametrize("at", [1000, 2500, 2510])
def test_a_killed_replay_goes_on_where_it_was(tmp_path: Path, at: int) -> None:
    """In a file that cannot tell, too: what was written and not noted is not there twice."""
    run, file = tmp_path / "run", tmp_path / "run.jsonl"
    write_run(run, 3000)
    command = ["replay", str(run), "--to", f"jsonl:{file}", "--quiet"]
    _, done = run_killed(lambda acknowledge: acknowledge(plattli(command)), at)
    noted = json.loads(next((run / ".followers").glob("*.json")).read_bytes())

    assert not done
    assert len(rows_or_less(file)) > noted["delivered"]
    assert plattli(command) == 0
    assert points(file) == expected(3000)
    assert [row["type"] for row in rows(file)].count("params") == 1


def rows_or_less(file: Path) -> list[str]:
    """Return a file's lines, of which the last may be half."""
    return file.read_text().split("\n")


def test_a_run_that_goes_on_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A live run is sent as far as it is; later calls send what has come."""
    run, file = tmp_path / "run", tmp_path / "run.jsonl"
    logger = write_run(run, 20, end=None)
    command = ["replay", str(run), "--to", f"jsonl:{file}"]
    assert plattli(command) == 0
    assert "is still being written" in capsys.readouterr().err
    assert points(file) == expected(20)
    log(logger, range(20, 40))
    assert plattli(command) == 0
    assert points(file) == expected(40)
    log(logger, range(40, 60))
    logger.finish("completed")
    assert plattli(["send", str(run)]) == 0  # the same job
    assert points(file) == expected(60)
    assert [row["type"] for row in rows(file)].count("finish") == 1


def test_an_archive_by_itself_and_a_json_lines_file(tmp_path: Path) -> None:
    """Whatever a Reader reads; what was sent is noted beside the file."""
    write_run(tmp_path / "run")
    archive = tmp_path / "digits.plattli"
    (tmp_path / "run" / "metrics.plattli").rename(archive)
    lines = tmp_path / "metrics.jsonl"
    assert plattli(["replay", str(archive), "--to", f"jsonl:{lines}", "--quiet"]) == 0
    again = tmp_path / "again"
    assert plattli(["replay", str(lines), "--to", f"plattli:{again}", "--quiet"]) == 0

    with Reader(archive) as one, Reader(again) as two:
        for name in ("train/loss", "train/n", "train/epoch", "validate/loss"):
            assert [part.tolist() for part in one.metric(name)] == [part.tolist() for part in two.metric(name)]
        assert two.config()["lr"] == 0.1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again", "digits.plattli", "digits.plattli.followers", "metrics.jsonl", "metrics.jsonl.followers", "run",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["RUN", "--to", "nowhere:x"], 2, "expected one of tensorboard:DIR"),
        (["RUN", "--to", "jsonl"], 2, "got 'jsonl'"),
        (["missing", "--to", "jsonl:x.jsonl"], 1, "missing: no such file or directory"),
        (["RUN", "--to", "plattli:RUN"], 2, "is the run itself"),
    ],
)
def test_what_cannot_be_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    """Exit codes, and nothing written where it does not belong."""
    run = tmp_path / "run"
    write_run(run)
    words = [word.replace("RUN", str(run)).replace("missing", str(tmp_path / "missing")) for word in arguments]
    assert plattli(["replay", *words]) == code
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("kind", ["tensorboard", "plattli", "jsonl"])
def test_a_run_that_was_resumed_is_sent_as_it_is_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Steps that were cut and logged again replace the old ones, where the target can; else it says so, once."""
    run, out = tmp_path / "run", tmp_path / "out"
    logger = write_run(run, 30, end=None)
    state = logger.logger_state()
    log(logger, range(30, 50))
    logger.log_other("late", "gone with the cut")
    logger.finish("error")
    command = ["replay", str(run), "--to", f"{kind}:{out}"]
    assert plattli(command) == 0
    logger = PlattliLogger(run)
    logger.reattach(state)
    for step in range(30, 45):
        logger.log_metrics({"loss": -step, "n": -step}, step=step, epoch=7, walltime=1.6e9 + step)
    logger.finish("completed")
    capsys.readouterr()
    assert plattli(command) == 0
    said = capsys.readouterr().err
    assert plattli(command) == 0
    assert "has all of it already" in capsys.readouterr().out

    n = [(step, step if step < 30 else -step) for step in range(45)]
    if kind == "tensorboard":
        files = Files(out)
        assert files.scalars("train/n") == n
        assert files.scalars("train/loss") == [(s, s / 4 if s < 30 else -s) for s in range(45)]
        assert files.scalars("validate/loss") == [(step, step / 2) for step in range(0, 30, 10)]
        assert files.scalars("train/epoch") == [(s, s // 10 if s < 30 else 7) for s in range(45)]
        assert len(files.texts("other/note")) == 1
        assert files.status() == "STATUS_SUCCESS"
        assert files.params() == {"lr": 0.1}
    elif kind == "plattli":
        with Reader(out) as reader, Reader(run) as source:
            assert reader.metrics() == source.metrics()
            for name in source.metrics():
                one, two = reader.metric(name), source.metric(name)
                assert [part.tolist() for part in one] == [part.tolist() for part in two], name
    else:
        assert said.count("JSONLinesFile cannot") == 1
        last = {row["step"]: row["n"] for row in rows(out) if row["type"] == "metrics" and row["context"] == "train"}
        assert last.items() >= set(n)
        assert [row["status"] for row in rows(out) if row["type"] == "finish"] == ["error", "completed"]


def test_another_run_in_the_same_place_is_not_mixed_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused, in the words of the command line."""
    run, file = tmp_path / "run", tmp_path / "out.jsonl"
    write_run(run, 5)
    command = ["replay", str(run), "--to", f"jsonl:{file}"]
    assert plattli(command) == 0
    replaced = PlattliLogger(run, if_exists="replace")
    log(replaced, range(8))
    replaced.finish("completed")
    assert plattli(command) == 1
    assert "replace it with --force" in capsys.readouterr().err
    assert plattli([*command, "--force"]) == 0
    assert points(file) == expected(8)


def test_a_target_that_fails_while_it_is_followed_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An outage, that is; without --follow, and for good, it is an error."""
    run, logdir = tmp_path / "run", tmp_path / "tb"
    write_run(run)
    command = ["replay", str(run), "--to", f"tensorboard:{logdir}"]
    with failing_disk(first=3, count=1, below=logdir):
        assert plattli(command) == 1
    assert "failed with OSError" in capsys.readouterr().err
    with failing_disk(first=3, count=1, below=logdir):
        assert plattli([*command, "--follow"]) == 0
    assert capsys.readouterr().err.count("trying again in 1 s") == 1

    assert Files(logdir).scalars("train/n") == [(step, float(step)) for step in range(50)]


def test_killed_in_the_middle_and_called_again(tmp_path: Path) -> None:
    """TensorBoard has every point once, whatever the first call got to."""
    run, logdir = tmp_path / "run", tmp_path / "tb"
    write_run(run, 20_000)
    command = [sys.executable, "-m", "plattli", "replay", str(run), "--to", f"tensorboard:{logdir}", "--quiet"]
    first = subprocess.Popen(command, cwd=ROOT)
    while first.poll() is None and not list(run.glob(".followers/*.json")):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0

    found = Files(logdir)
    assert found.scalars("train/loss") == [(step, step / 4) for step in range(20_000)]
    assert found.scalars("validate/loss") == [(step, step / 2) for step in range(0, 20_000, 10)]


def test_attached_to_a_run_that_is_long_and_growing(tmp_path: Path) -> None:
    """100,000 lines are there already when the follower comes, and more come while it catches up."""
    run, file = tmp_path / "run", tmp_path / "run.jsonl"
    logger = PlattliLogger(run)
    log(logger, range(100_000))
    command = [sys.executable, "-m", "plattli", "replay", str(run), "--to", f"jsonl:{file}", "--follow"]
    follower = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for step in range(100_000, 110_000):
        log(logger, range(step, step + 1))
    assert follower.poll() is None
    logger.finish("completed")
    assert follower.communicate(timeout=240)[0] == f"{run}: 121,000 lines sent to jsonl:{file}\n"

    assert points(file) == expected(110_000)
    assert rows(file)[-1] == {"type": "finish", "status": "completed"}


def test_what_is_no_run_is_said_with_what_is_there_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of runs is the usual slip."""
    write_run(tmp_path / "runs" / "a", steps=1)
    assert plattli(["replay", str(tmp_path / "runs"), "--to", "stdout:"]) == 1
    assert "not a run itself, but a folder of runs: 'a'" in capsys.readouterr().err
    assert plattli(["replay", str(tmp_path / "none"), "--to", "stdout:"]) == 1
    assert capsys.readouterr().err == f"plattli replay: {tmp_path / 'none'}: no such file or directory\n"


@pytest.mark.parametrize("poll", ["-1", "0", "nan", "inf", "soon"])
def test_a_poll_that_is_no_time_is_wrong_usage(tmp_path: Path, poll: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent."""
    with pytest.raises(SystemExit) as exit_:
        plattli(["replay", str(tmp_path), "--to", "stdout:", f"--poll={poll}"])
    assert exit_.value.code == 2
    assert f"must be a positive number of seconds, got '{poll}'" in capsys.readouterr().err
