"""The example program: what it logs, and that a killed and resumed run is the run that was never killed."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plattli import Reader
from plattli.runinfo import run_info

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "examples.train_digits"]
STEPS_PER_EPOCH = 44
EPOCHS = 5  # of the short runs
STEPS = EPOCHS * STEPS_PER_EPOCH
# with this seed the fourth epoch is the best: a run that is killed in the fifth must not forget it
SEED = 7
SHORT = ["--epochs", str(EPOCHS), "--checkpoint-every", "40", "--seed", str(SEED)]
METRICS = {
    "train/loss",
    "train/accuracy",
    "train/grad_norm",
    "train/schedule/lr",
    "train/epoch",
    "train/walltime",
    "validate/loss",
    "validate/accuracy",
    "validate/confusion",
    "validate/epoch",
    "validate/walltime",
    "data/data_wait_frac",
    "data/epoch",
    "data/walltime",
    "other/model",
    "other/best",
}


def train(out: Path, *flags: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program without trackers, check its exit code, and that nothing warned."""
    command = [*PROGRAM, "--out", str(out), "--tee", "none", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    assert "Warning" not in done.stderr
    return done


def metrics(out: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return name -> (steps, values) of a run."""
    with Reader(out) as reader:
        return {name: reader.metric(name) for name in reader.metrics()}


def assert_same_values(
    ones: dict[str, tuple[np.ndarray, np.ndarray]], others: dict[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    """Compare every value but wall times, bit for bit, and the steps of all."""
    assert set(ones) == set(others)
    for name, (steps, values) in ones.items():
        other_steps, other_values = others[name]
        assert steps.tolist() == other_steps.tolist(), name
        assert len(set(steps.tolist())) == len(steps), name
        if name.endswith("/walltime"):
            continue
        assert values.dtype == other_values.dtype, name
        if values.dtype == object:
            assert values.tolist() == other_values.tolist(), name
        else:
            assert values.tobytes() == other_values.tobytes(), name


def assert_same_run(one: Path, other: Path) -> None:
    """Compare two runs that went to the end."""
    ones = metrics(one)
    assert set(ones) == METRICS
    assert_same_values(ones, metrics(other))
    assert run_info(one).status == run_info(other).status == "completed"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    out.with_suffix(".log").write_text(train(out, *SHORT).stderr)
    return out


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with another seed."""
    out = tmp_path_factory.mktemp("other") / "run"
    train(out, *SHORT, "--seed", str(SEED + 1))
    return out


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `whole`, killed at step 137: copy it before use."""
    out = tmp_path_factory.mktemp("dead") / "run"
    train(out, *SHORT, "--kill-at", "137", code=-signal.SIGKILL)
    return out


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run with the default settings, and what was printed."""
    out = tmp_path_factory.mktemp("default") / "run"
    return out, train(out)


def test_default_run_learns(default: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The run a newcomer starts has more than 1,200 steps and validates above 95 %."""
    out, _ = default
    stored = metrics(out)
    steps, accuracy = stored["validate/accuracy"]
    assert steps[-1] > 1200
    assert accuracy[-1] > 0.95
    assert stored["train/loss"][0].tolist() == list(range(1, steps[-1] + 1))
    assert run_info(out).status == "completed"


def test_default_run_ends_with_a_table(default: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The last thing printed is the table of final and best values and the ways to look at the run."""
    out, done = default
    lines = done.stdout.splitlines()
    steps, accuracy = metrics(out)["validate/accuracy"]
    best = int(accuracy.argmax())
    row = next(line.split() for line in lines if line.startswith("validate/accuracy"))
    assert row[1:] == [str(len(steps)), f"{accuracy[-1]:.5g}", f"{accuracy[best]:.5g}", str(steps[best])]
    assert "status       completed" in lines
    assert f"look         plattli show {out}" in lines
    # the Python lines work as they are
    start = lines.index(next(line for line in lines if line.startswith("Python")))
    names: dict[str, Any] = {}
    exec("\n".join(line.removeprefix("Python").strip() for line in lines[start : start + 2]), names)
    assert np.array_equal(names["values"], accuracy)


def test_progress_is_one_line_per_epoch_without_a_terminal(
    default: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """A log file gets plain lines, one per epoch."""
    lines = [line.split() for line in default[1].stderr.splitlines()]
    assert [line[:3] for line in lines] == [[f"{44 * n}/1320", "epoch", str(n)] for n in range(1, 31)]


def test_every_line_is_logged_where_it_belongs(whole: Path) -> None:
    """Train lines every step; validate, data and confusion at the last step of each epoch."""
    stored = metrics(whole)
    ends = [STEPS_PER_EPOCH * epoch for epoch in range(1, EPOCHS + 1)]
    assert stored["train/loss"][0].tolist() == list(range(1, STEPS + 1))
    for name in ("validate/loss", "validate/accuracy", "validate/confusion", "data/data_wait_frac"):
        assert stored[name][0].tolist() == ends
    assert stored["train/epoch"][1].tolist() == [1 + step // STEPS_PER_EPOCH for step in range(STEPS)]
    assert stored["validate/epoch"][1].tolist() == list(range(1, EPOCHS + 1))
    # 8 batches per chunk: 44 steps wait five or six times, in turn
    assert stored["data/data_wait_frac"][1].tolist() == [count / 44 for count in (6, 5, 6, 5, 6)]
    lr = stored["train/schedule/lr"][1]
    assert lr[0] < lr.max() > 10 * lr[-1]


def test_confusion_matrix_agrees_with_the_accuracy(whole: Path) -> None:
    """The matrix counts each held-out image once, and its diagonal is the accuracy."""
    stored = metrics(whole)
    for value, accuracy, epoch in zip(
        stored["validate/confusion"][1], stored["validate/accuracy"][1], range(1, EPOCHS + 1), strict=True
    ):
        matrix = np.array(value["matrix"])
        assert value["labels"] == list("0123456789")
        assert value["epoch"] == epoch
        assert matrix.shape == (10, 10)
        assert matrix.sum() == 360
        assert matrix.trace() / 360 == accuracy


def test_params_and_tags_are_stored(whole: Path) -> None:
    """Every hyperparameter and the size of the network can be looked up in the run."""
    info = run_info(whole)
    assert info.params["seed"] == SEED
    assert info.params["epochs"] == EPOCHS
    assert info.params["parameters"] == 64 * 64 + 64 + 64 * 10 + 10
    assert info.params["peak_lr"] == 0.1
    assert set(info.tags) == {"digits", "mlp"}


def test_another_seed_is_another_run(whole: Path, other: Path) -> None:
    """The comparison that the resume tests rest on does tell two runs apart."""
    with pytest.raises(AssertionError):
        assert_same_run(whole, other)


@pytest.mark.parametrize(
    ("step", "every"),
    [
        pytest.param(41, 40, id="after a checkpoint"),
        pytest.param(80, 40, id="before a checkpoint"),
        pytest.param(88, 40, id="before the end of an epoch"),
        pytest.param(50, 44, id="checkpoints where epochs end"),
        pytest.param(219, 40, id="in the last epoch"),
    ],
)
def test_a_killed_run_resumes_as_if_nothing_had_happened(
    whole: Path, tmp_path: Path, step: int, every: int
) -> None:
    """After kill -9 and --resume every metric is the undisturbed run's, step for step and bit for bit."""
    out = tmp_path / "run"
    flags = [*SHORT, "--checkpoint-every", str(every)]
    train(out, *flags, "--kill-at", str(step), code=-signal.SIGKILL)
    assert run_info(out).status == "died"
    assert metrics(out)["train/loss"][0].tolist() == list(range(1, step + 1))
    message, *epochs = train(out, *flags, "--resume").stderr.splitlines()
    assert message.endswith(f"going on after step {(step - 1) // every * every}")
    assert_same_run(whole, out)
    # what is shown depends on sums that began before the checkpoint
    assert epochs == whole.with_suffix(".log").read_text().splitlines()[-len(epochs) :]


def test_a_run_can_be_killed_again_and_again(whole: Path, tmp_path: Path) -> None:
    """Resuming a resumed run is as exact, and --seed and --epochs need not be repeated."""
    out = tmp_path / "run"
    train(out, *SHORT, "--kill-at", "50", code=-signal.SIGKILL)
    for step in ("45", "130", "131"):
        train(out, "--resume", "--checkpoint-every", "40", "--kill-at", step, code=-signal.SIGKILL)
    train(out, "--resume", "--checkpoint-every", "40")
    assert_same_run(whole, out)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_is_passed_over(whole: Path, dead: Path, tmp_path: Path, damage: str) -> None:
    """The newest checkpoint that is whole counts, the program says so, and the run is the same."""
    out = tmp_path / "run"
    shutil.copytree(dead, out)
    newest = sorted((out / "checkpoints").iterdir())[-1]
    assert newest.name == "step-00000120.ckpt"
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    newest.write_bytes(content[: {"truncated": len(content) // 2, "flipped": None, "empty": 0}[damage]])
    resumed = train(out, *SHORT, "--resume")
    assert f"{newest} is damaged" in resumed.stderr
    assert "going on after step 80" in resumed.stderr
    assert_same_run(whole, out)


def test_the_last_three_checkpoints_are_kept(whole: Path) -> None:
    """Older ones are deleted, the last one holds the end of the training, and nothing else lies there."""
    names = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert names == ["step-00000160.ckpt", "step-00000200.ckpt", "step-00000220.ckpt"]


def test_a_run_whose_checkpoints_are_all_damaged_is_kept(dead: Path, tmp_path: Path) -> None:
    """Starting over would delete what was logged, so that takes another flag."""
    out = tmp_path / "run"
    shutil.copytree(dead, out)
    for path in (out / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    before = metrics(out)
    refused = train(out, *SHORT, "--resume", code=2)
    assert refused.stderr.count("is damaged") == 3
    assert "start over with --overwrite" in refused.stderr
    assert_same_values(metrics(out), before)


def test_resume_without_a_checkpoint_starts_over(whole: Path, tmp_path: Path) -> None:
    """A run that died before its first checkpoint is replaced."""
    out = tmp_path / "run"
    train(out, *SHORT, "--kill-at", "39", code=-signal.SIGKILL)
    resumed = train(out, *SHORT, "--resume")
    assert f"no checkpoint in {out}" in resumed.stderr
    assert_same_run(whole, out)


def test_resume_without_a_run_starts_one(whole: Path, tmp_path: Path) -> None:
    """So a job script can always say --resume."""
    out = tmp_path / "run"
    assert f"no checkpoint in {out}" in train(out, *SHORT, "--resume").stderr
    assert_same_run(whole, out)


def test_a_run_is_never_overwritten_by_accident(whole: Path) -> None:
    """Without a flag the program refuses, names the ways on in one line, and changes nothing."""
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    refused = train(whole, *SHORT, code=2)
    assert len(refused.stderr.splitlines()) == 1
    for way in (str(whole), "--resume", "--overwrite", "--out"):
        assert way in refused.stderr
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("tee", ["none", "tensorboard,wandb"])
def test_a_path_that_can_never_work_is_refused(tmp_path: Path, tee: str) -> None:
    """One line, and no training, also with trackers."""
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        refused = train(out, *SHORT, "--tee", tee, code=2)
        assert len(refused.stderr.splitlines()) == 1
        assert str(out) in refused.stderr
        assert "give the logger another path" in refused.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_checkpoints_without_a_run_are_not_deleted(whole: Path, tmp_path: Path) -> None:
    """What is left of a run whose metrics were moved away counts as a run."""
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    assert "--overwrite" in train(tmp_path, *SHORT, code=2).stderr
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3
    assert "there is no run in" in train(tmp_path, *SHORT, "--resume", code=2).stderr


def test_overwrite_replaces_the_run_and_its_checkpoints(whole: Path, other: Path, tmp_path: Path) -> None:
    """With --overwrite nothing of the old run is left, not even a checkpoint that seems newer."""
    out = tmp_path / "run"
    shutil.copytree(other, out)
    (out / "checkpoints" / f"step-{STEPS:08d}.ckpt").rename(out / "checkpoints" / "step-00009999.ckpt")
    train(out, *SHORT, "--overwrite")
    assert_same_run(whole, out)
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert names == sorted(path.name for path in (whole / "checkpoints").iterdir())


@pytest.mark.parametrize("change", [["--seed", "8"], ["--epochs", "9"]])
def test_resume_with_other_settings_is_refused(dead: Path, tmp_path: Path, change: list[str]) -> None:
    """Another seed or length would make it another run: one line says which it was begun with."""
    out = tmp_path / "run"
    shutil.copytree(dead, out)
    before = metrics(out)
    refused = train(out, *SHORT, *change, "--resume", code=2)
    assert len(refused.stderr.splitlines()) == 1
    assert f"--seed {SEED} --epochs {EPOCHS}" in refused.stderr
    assert_same_values(metrics(out), before)


def test_resuming_a_completed_run_changes_nothing(whole: Path) -> None:
    """There is nothing left to do, which the program says, with the table."""
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    done = train(whole, "--resume")
    assert "completed" in done.stderr
    assert "status       completed" in done.stdout
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM end the run as interrupted, with the shell's exit code and a hint that works."""
    out = tmp_path / "run"
    command = [*PROGRAM, "--out", str(out), "--tee", "none", "--epochs", "1000", "--checkpoint-every", "40"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=null, stderr=pipe, text=True) as p:
        assert p.stderr is not None
        assert "epoch 1 " in p.stderr.readline()  # so it is training
        p.send_signal(number)
        _, errors = p.communicate(timeout=240)
    assert p.returncode == code, errors
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].endswith(f"python -m examples.train_digits --out {out} --resume")
    assert run_info(out).status == "interrupted"
    train(out, "--resume", "--kill-at", str(int(metrics(out)["train/loss"][0][-1]) + 5), code=-signal.SIGKILL)


def test_progress_is_redrawn_on_a_terminal(tmp_path: Path) -> None:
    """A terminal gets a single line that grows to its full length."""
    terminal, end = pty.openpty()
    command = [*PROGRAM, "--out", str(tmp_path / "run"), "--tee", "none", *SHORT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=end):
        os.close(end)
        shown = b""
        try:
            while piece := os.read(terminal, 4096):
                shown += piece
        except OSError:  # how Linux reports that the other end is closed
            pass
    os.close(terminal)
    assert shown.count(b"\n") == 1
    assert f"\r[{'#' * 30}] {STEPS}/{STEPS}  epoch {EPOCHS}".encode() in shown


def test_missing_trackers_are_left_out(tmp_path: Path) -> None:
    """Without the optional packages the program says what to install, one line each, and trains."""
    out = tmp_path / "run"
    hide = "import sys, runpy; sys.modules['wandb'] = sys.modules['tensorboard'] = None; "
    program = hide + "runpy.run_module('examples.train_digits', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program, "--out", str(out), "--epochs", "1", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["tensorboard", "wandb"]
    assert "pip install 'plattli-loggers[wandb]'" in lines[1]
    assert run_info(out).status == "completed"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epochs", "0"], "--epochs must be 1 or more, got 0"),
        (["--checkpoint-every", "-5"], "--checkpoint-every must be 1 or more, got -5"),
        (["--seed", "-1"], "--seed must be 0 or more, got -1"),
        (["--seed", "one"], "invalid int value: 'one'"),
        (["--tee", "tensorbord"], "'tensorbord' is not one of tensorboard, wandb, none"),
    ],
)
def test_bad_flags_are_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    """A flag that makes no sense ends with exit code 2 before anything is written."""
    out = tmp_path / "run"
    refused = train(out, *flags, code=2)
    assert message in refused.stderr
    assert not out.exists()


def test_data_file_is_what_its_readme_says() -> None:
    """The images that ship with the example are whole."""
    with np.load(ROOT / "examples" / "data" / "digits.npz") as file:
        images, labels = file["images"], file["labels"]
    assert images.shape == (1797, 8, 8)
    assert images.dtype == labels.dtype == np.uint8
    assert images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
