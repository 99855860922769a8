"""Checkpoints that exist hold these words; they mean the same for good, whatever later versions write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapters import TeeLogger
from adapters.backends.tensorboard import TensorBoardLogger
from adapters.backends.wandb import WandbLogger
from loggers import JSONLogger, PlattliLogger, TrainingSession, resume
from plattli import Reader
from tests.test_adapters.tensorboard_files import Files
from tests.test_adapters.test_contract import json_run
from tests.test_loggers.plattli_runs import stored

SESSION_OF_0_1_0 = """{
    "step": 5, "epoch": 2, "version": 1,
    "logger": {"logger": "adapters.fanout.TeeLogger", "version": 1, "state": {
        "primary": {"logger": "loggers.plattli_logger.PlattliLogger", "version": 1, "state": {
            "run_id": "r", "directory": "/elsewhere/run", "step": 5, "steps": {"train": 5, "validate": 3}}},
        "replicas": [{"logger": "loggers.json_logger.JSONLogger", "state": null}]}}
}"""

TENSORBOARD_OF_0_1_0 = """{
    "logdir": "/elsewhere/tb", "run_id": "tb", "step": 4, "steps": {"train": 4, "validate": 3}, "pictures": {},
    "tail": [], "params": {"lr": 0.1}, "tags": {"t": true}, "started": 1796034700.5
}"""

WANDB_OF_0_1_0 = """{
    "entity": null, "project": "proj", "mode": "offline", "dir": "/elsewhere", "base_url": null, "url": null,
    "id": "5be81fc653ad0db2", "tags": ["a:1"], "sync_dirs": ["/elsewhere/offline-run-1"], "latest": [["train", 4, 1]]
}"""


def fill(logger: Any) -> None:
    logger.log_params({"lr": 0.1})
    for step in range(1, 9):
        logger.log_metrics({"a": float(step)}, step=step, epoch=1)
    logger.log_metrics({"a": 0.5}, step=3, context="validate")
    logger.log_metrics({"a": 0.25}, step=8, context="validate")
    logger.finish("interrupted")


def test_a_session_with_a_tee(tmp_path: Path) -> None:
    """Step, epoch, the primary's cut in both contexts, and a replica that has no state."""

    def build() -> TeeLogger:
        primary = PlattliLogger(tmp_path / "run", run_id="r", walltime=False)
        return TeeLogger(primary, JSONLogger(tmp_path / "log.jsonl"))

    fill(build())
    with TrainingSession(build()) as session:
        session.resume(json.loads(SESSION_OF_0_1_0))
        assert (session.step, session.epoch) == (5, 2)
        session.train({"a": -6.0})

    assert stored(tmp_path / "run") == {
        "train/a": {**{step: float(step) for step in range(1, 6)}, 6: -6.0},
        "train/epoch": {**dict.fromkeys(range(1, 6), 1), 6: 2},
        "validate/a": {3: 0.5},
    }
    with Reader(tmp_path / "run") as reader:
        assert reader.config()["_run"]["id"] == "r"
    assert json_run(tmp_path / "log.jsonl").metrics["train/a"][-1] == (6, -6.0)


def test_tensorboard(tmp_path: Path) -> None:
    """A reader that purges sees the state's lines and the new one."""
    logger = TensorBoardLogger(tmp_path / "tb")
    for step in range(1, 5):
        logger.log_metrics({"a": float(step)}, step=step)
    tail = logger.logger_state()["tail"]  # a file's name has the host and the process in it
    logger.log_metrics({"a": 9.0}, step=5)
    logger.finish("interrupted")
    logger = TensorBoardLogger(tmp_path / "tb")
    state = {**json.loads(TENSORBOARD_OF_0_1_0), "logdir": str(tmp_path / "tb"), "tail": tail}
    name = "adapters.backends.tensorboard.TensorBoardLogger"
    resume(logger, {"logger": name, "state": state, "version": 1})
    logger.log_metrics({"a": -5.0}, step=5)
    logger.finish("completed")

    assert Files(tmp_path / "tb").scalars("train/a") == [*((step, float(step)) for step in range(1, 5)), (5, -5.0)]


def test_wandb() -> None:
    """The run it names is the one that goes on; nothing is started for that."""
    logger = WandbLogger("proj", mode="offline")
    logger.reattach(json.loads(WANDB_OF_0_1_0))

    assert logger.run_id() == "5be81fc653ad0db2"
    state = logger.logger_state()
    assert (state["tags"], state["latest"]) == (["a:1"], [["train", 4, 1]])
    assert state["sync_dirs"] == ["/elsewhere/offline-run-1"]
