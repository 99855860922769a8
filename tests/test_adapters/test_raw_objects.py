"""Raw objects of trackers, handed to a session and to a tee as they are: read back by the trackers' own tools.

Their clients keep threads, services and global settings, so each scenario runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.test_adapters.imported import imported, points
from tests.test_adapters.tensorboard_files import Files

ROOT = Path(__file__).parents[2]
#: Logs in every way that there is to hand over a logger. ``raw`` is the object.
PROGRAM = """
import loggers
from adapters import TeeLogger

def train(raw, folder):
    logger = loggers.as_logger(raw)
    assert loggers.as_logger(raw) is logger and loggers.as_logger(logger) is logger
    loggers.check_logger(raw)
    loggers.log_metrics(raw, {"loss": 0.5}, step=1, walltime=1.7e9)
    tee = TeeLogger(loggers.PlattliLogger(folder), raw)
    with loggers.TrainingSession(tee, params={"lr": 0.25}) as session:
        session.step = 1
        session.train({"loss": 0.25})
    assert tee.report()[0]["error"] is None, tee.report()
    return logger
"""


def run(home: Path, script: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_", "XDG_"))}
    env = {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "WANDB_SILENT": "true",
           "WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}  # fmt: skip
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(script)]
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wandb_run(tmp_path: Path) -> None:
    """It goes on with its owner's run, whose rows are beside ours."""
    run(
        tmp_path,
        """
        import wandb
        raw = wandb.init(project="p", id="raw", settings=wandb.Settings(console="off", x_disable_stats=True))
        raw.log({"mine": 7.0})
        logger = train(raw, "run")
        assert type(logger).__name__ == "WandbLogger" and loggers.backend(raw) is raw
        raw.finish()
        """,
    )
    imported(tmp_path / "wandb", tmp_path / "again")

    found = points(tmp_path / "again")
    assert found["train/loss"] == [(1, 0.5), (2, 0.25)]
    assert found["train/mine"] == [(0, 7.0)]
    assert found["train/walltime"][1] == (1, 1.7e9)


def test_an_mlflow_run(tmp_path: Path) -> None:
    """The run that is active, at the tracking URI that is."""
    out = run(
        tmp_path,
        """
        import mlflow
        mlflow.set_tracking_uri("sqlite:///ml.db")
        with mlflow.start_run() as raw:
            logger = train(raw, "run")
            assert type(logger).__name__ == "MLflowLogger"
        client = mlflow.MlflowClient()
        history = client.get_metric_history(raw.info.run_id, "train/loss")
        print(sorted({(point.step, point.value) for point in history}), client.get_run(raw.info.run_id).data.params)
        """,
    )

    assert out.splitlines()[-1] == "[(1, 0.5), (2, 0.25)] {'lr': '0.25'}"


def test_a_summary_writer(tmp_path: Path) -> None:
    """Its owner goes on using it, and closes it."""
    run(
        tmp_path,
        """
        import tensorboardX
        raw = tensorboardX.SummaryWriter("tb")
        raw.add_scalar("mine", 7.0, 1)
        logger = train(raw, "run")
        assert type(logger).__name__ == "SummaryWriterLogger" and loggers.backend(raw) is raw
        raw.close()
        """,
    )
    files = Files(tmp_path / "tb")

    assert files.scalars("train/loss") == [(1, 0.5), (2, 0.25)]
    assert files.scalars("mine") == [(1, 7.0)]
    assert files.params() == {"lr": 0.25}
