"""Threads that share a logger: a data loader's, a validation's, a server's. Each value is there once, at its step."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters import MLflowLogger, TensorBoardLogger, TrackioLogger
from loggers import CSVLogger, JSONLogger, PlattliLogger
from loggers.testing import Stored
from tests.test_adapters import mlflow_runs, trackio_runs
from tests.test_adapters.test_contract import tensorboard_run
from tests.test_loggers.test_contract import csv_run, json_run, plattli_run

THREADS, STEPS = 8, 60


@pytest.fixture(scope="module")
def trackio_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trackio_runs.home(tmp_path_factory.mktemp("trackio"))


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def mlflow_uri(directory: Path) -> str:
    return f"sqlite:///{directory}/ml.db"


LOGGERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Stored]]] = {
    "csv": (lambda path: CSVLogger(path / "m.csv"), lambda path: csv_run(path / "m.csv")),
    "json": (lambda path: JSONLogger(path / "m.jsonl"), lambda path: json_run(path / "m.jsonl")),
    "plattli": (PlattliLogger, plattli_run),
    "tensorboard": (TensorBoardLogger, tensorboard_run),
    "mlflow": (
        lambda path: MLflowLogger(mlflow_uri(path), experiment="e"),
        lambda path: mlflow_runs.stored(mlflow_uri(path), "e", path / "artifacts"),
    ),
    "trackio": (lambda _: TrackioLogger("threads"), lambda _: trackio_runs.stored("threads")),
}


@pytest.mark.usefixtures("trackio_home", "eager_threads")
@pytest.mark.parametrize("kind", LOGGERS)
def test_threads_share_a_logger(tmp_path: Path, kind: str) -> None:
    """From its first verb on; metrics that are new every now and then, and a state that is taken meanwhile."""
    build, stored = LOGGERS[kind]
    logger, together, failed = build(tmp_path), threading.Barrier(THREADS), []

    def log(number: int) -> None:
        together.wait()
        try:
            for step in range(STEPS):
                logger.log_metrics({"a": float(step), f"b{step // 30}": float(number)}, step=step, context=f"c{number}")
                if step == 30 and number == 0:
                    logger.logger_state()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.finish("completed")
    found = stored(tmp_path)

    assert failed == []
    for number in range(THREADS):
        assert found.metrics[f"c{number}/a"] == [(step, float(step)) for step in range(STEPS)]
        values = found.metrics[f"c{number}/b0"] + found.metrics[f"c{number}/b1"]
        assert values == [(step, float(number)) for step in range(STEPS)]


@pytest.mark.usefixtures("trackio_home", "eager_threads")
@pytest.mark.parametrize("kind", ["csv", "json", "plattli", "tensorboard", "mlflow", "trackio"])
def test_a_child_that_is_forked_meanwhile_writes_and_hangs_on_nothing(tmp_path: Path, kind: str) -> None:
    """As a data loader's workers are, whatever another thread is at: beginning the run, or in the middle of a line."""
    build, stored = LOGGERS[kind]
    logger = build(tmp_path)

    def log(number: int) -> None:
        for step in range(STEPS):
            logger.log_metrics({"a": float(step)}, step=step, context=f"f{number}")

    threads = [threading.Thread(target=log, args=(number,)) for number in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        # a child that is forked before has a logger of its own; Trackio's files are elsewhere
        while not (any(tmp_path.iterdir()) or getattr(logger, "_pid", None)):
            assert threads[0].is_alive()
        children = [fork(logger) for _ in range(4)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        for thread in threads:
            thread.join()
        logger.finish("completed")
    found = stored(tmp_path).metrics

    assert codes == [0] * 4
    assert [found[f"f{number}/a"] for number in range(2)] == [[(step, float(step)) for step in range(STEPS)]] * 2


def fork(logger: Any) -> int:
    """Fork a child that logs and ends; one that hangs is ended by a signal."""
    if (pid := os.fork()) == 0:
        signal.alarm(240)
        logger.log_metrics({"a": -1.0}, step=1, context="f0")
        logger.logger_state()
        os._exit(0)
    return pid


@pytest.mark.usefixtures("trackio_home")
@pytest.mark.parametrize("kind", ["csv", "json", "mlflow", "trackio"])
def test_a_logger_with_a_lock_can_be_copied(tmp_path: Path, kind: str) -> None:
    """By pickle and by copy, before it has begun: the copy is a logger of its own."""
    build, stored = LOGGERS[kind]
    logger = copy.copy(pickle.loads(pickle.dumps(build(tmp_path))))
    logger.log_metrics({"a": 1.0}, step=1, context="copied")
    logger.finish("completed")

    assert stored(tmp_path).metrics["copied/a"] == [(1, 1.0)]
