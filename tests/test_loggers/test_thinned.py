"""A thinned logger gets some lines, the first and the last ones among them, and everything that is no line."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import TeeLogger
from loggers import PlattliLogger, Thinned, checkpoint_record, resume
from loggers.errors import LoggerError, MetricValueError, MissingVerbError, RecordError, StepError
from plattli import Reader
from tests.test_adapters.replicas import FileLogger, MemoryLogger, calls, points
from tests.test_loggers.test_contract import TestRecordingLogger as RecordingContract


class TestThinned(RecordingContract):
    """With nothing left out it is the logger."""

    def build(self, directory: Path) -> Thinned:
        return Thinned(super().build(directory))


def steps_of(logger: MemoryLogger, name: str) -> list[int]:
    return [step for found, step, _ in logger.values if found == name]


def log(logger: Any, steps: range) -> None:
    for step in steps:
        logger.log_metrics({"loss": step / 4, "acc": step}, step=step)
        logger.log_metrics({"wait": 0.5}, step=step, context="data")
        if step % 7 == 0:
            logger.log_metrics({"loss": step / 2}, step=step, context="validate")


def test_every_nth_step_and_the_first_and_the_last_one() -> None:
    """Validation is not thinned; the last lines come with the end."""
    target = MemoryLogger()
    logger = Thinned(target, every_n_steps=10)
    log(logger, range(3, 46))
    assert steps_of(target, "train/loss") == [3, 10, 20, 30, 40]
    logger.finish("completed")

    assert steps_of(target, "train/loss") == steps_of(target, "data/wait") == [3, 10, 20, 30, 40, 45]
    assert steps_of(target, "validate/loss") == [7, 14, 21, 28, 35, 42]
    assert target.values[-2:] == [("train/acc", 45, 45), ("data/wait", 45, 0.5)]
    assert target.verbs[-1] == "finish completed"
    assert logger.logger_info()["left_out"] == 74


def test_a_last_line_that_was_passed_on_is_not_passed_on_again() -> None:
    """Nor is a late one taken for the last."""
    target = MemoryLogger()
    logger = Thinned(target, every_n_steps={"train": 5, "validate": 2})
    for step in (1, 2, 9, 10, 8):
        logger.log_metrics({"loss": step}, step=step)
        logger.log_metrics({"loss": step}, step=step, context="validate")
    logger.finish("completed")

    assert steps_of(target, "train/loss") == [1, 10, 8]
    assert steps_of(target, "validate/loss") == [1, 2, 10, 8]


def test_some_metrics_of_some_contexts() -> None:
    """Patterns are of names or of full names; a line of which nothing is left is none."""
    target = MemoryLogger()
    logger = Thinned(target, contexts=("train", "validate"), metrics=("lo*", "validate/acc"))
    logger.log_metrics({"loss": 1, "acc": 2}, step=1)
    logger.log_metrics({"acc": 2}, step=2)
    logger.log_metrics({"loss": 3, "acc": 4, "Loss": 5}, step=3, context="validate")
    logger.log_metrics({"loss": 1}, step=4, context="data")
    logger.log_confusion([[1]], ["a"], context="data", name="gone")
    logger.log_confusion([[1]], ["a"], name="kept")
    logger.log_params({"a": 1})
    logger.log_tags(["b"])
    logger.log_other("c", 2)

    assert target.values == [
        ("train/loss", 1, 1), ("validate/loss", 3, 3), ("validate/acc", 3, 4), ("kept", -1, [[1]]), ("c", -1, 2),
    ]  # fmt: skip
    assert target.verbs.count("log_metrics") == 2
    assert {"log_params", "log_tags"} < {*target.verbs}


def test_the_line_that_was_left_out_last_survives_a_checkpoint() -> None:
    """As values at the time of the call, NaN among them."""
    target = MemoryLogger()
    logger = Thinned(target, every_n_steps=10)
    value = np.array(2.5, np.float32)
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.log_metrics({"loss": value, "nan": math.nan}, step=7)
    value[...] = 9.0
    record = json.loads(json.dumps(checkpoint_record(logger), allow_nan=False))
    log(logger, range(8, 12))
    again = Thinned(target, every_n_steps=10)
    resume(again, record)
    assert target.values == [("train/loss", 0, 1.0)]
    again.log_metrics({"loss": 3.0}, step=8, context="validate")
    again.finish("completed")

    assert target.values[:3] == [("train/loss", 0, 1.0), ("validate/loss", 8, 3.0), ("train/loss", 7, 2.5)]
    assert math.isnan(target.values[3][2])


def test_what_cannot_be_is_refused() -> None:
    """By the argument's name; bad values of a line that is left out are errors all the same."""
    for wrong in ({"every_n_steps": 0}, {"every_n_steps": {"train": 1.5}}, {"contexts": "train"}, {"metrics": "loss"}):
        with pytest.raises(LoggerError, match=next(iter(wrong))):
            Thinned(MemoryLogger(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(MissingVerbError):
        Thinned(object())
    with pytest.raises(RecordError, match="state of a Thinned"):
        Thinned(MemoryLogger()).reattach({"x": 1})
    logger = Thinned(MemoryLogger(), every_n_steps=10)
    logger.log_metrics({"loss": 1.0}, step=0)
    with pytest.raises(MetricValueError, match="bad"):
        logger.log_metrics({"loss": 1.0, "bad": object()}, step=1)
    with pytest.raises(StepError):
        logger.log_metrics({"loss": 1.0}, step=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", ["inline", "process"])
def test_a_thinned_replica_runs_where_its_logger_would(tmp_path: Path, placement: str) -> None:
    """In a tee the run has all of it; a resume goes on with what was left out."""

    def build() -> TeeLogger:
        tracker = Thinned(FileLogger(tmp_path / "calls", placement=placement), every_n_steps=20, metrics=("loss",))
        return TeeLogger(PlattliLogger(tmp_path / "run"), pickle.loads(pickle.dumps(tracker)), poll=0.02)

    logger = build()
    log(logger, range(1, 31))
    assert logger.report()[0]["placement"] == placement
    assert logger.report()[0]["logger"] == "FileLogger"
    record = checkpoint_record(logger)
    logger.finish("interrupted")
    assert [step for step, _ in points(tmp_path / "calls")["train/loss"]] == [1, 20, 30]
    again = build()
    resume(again, record)
    log(again, range(31, 51))
    again.finish("completed")

    got = points(tmp_path / "calls")
    assert [step for step, _ in got["train/loss"]] == [1, 20, 30, 40, 50]
    assert [step for step, _ in got["validate/loss"]] == [7, 14, 21, 28, 35, 42, 49]
    assert got.keys() == {"train/loss", "validate/loss"}
    assert calls(tmp_path / "calls")[-1] == ("finish", ["completed"], {})
    with Reader(tmp_path / "run") as reader:
        assert reader.rows("train/acc") == 50


def test_a_thinned_logger_takes_back_what_its_logger_can() -> None:
    """Held lines go with the steps that a resume cut; a logger that cannot take back has no such thing."""

    class Rewinding(MemoryLogger):
        def rewind(self, step: int) -> None:
            self.values = [value for value in self.values if value[1] < step]

    target = Rewinding()
    logger = Thinned(target, every_n_steps=10)
    log(logger, range(10, 26))
    logger.rewind(20)
    logger.finish("completed")

    assert steps_of(target, "train/loss") == [10]
    assert Thinned(MemoryLogger()).rewind is None


def test_a_step_that_is_logged_in_several_calls_is_passed_on_whole() -> None:
    """The first one, and the last one, with the last value of each metric."""
    target = MemoryLogger()
    logger = Thinned(target, every_n_steps=10)
    for step in range(1, 8):
        logger.log_metrics({"loss": step, "grad": 0}, step=step, epoch=1)
        logger.log_metrics({"grad": step, "lr": step}, step=step)
        if step == 1:
            again = Thinned(target, every_n_steps=10)
            again.reattach(json.loads(json.dumps(logger.logger_state())))
            logger = again
    logger.finish("completed")
    assert steps_of(target, "train/loss") == [1, 7]
    assert steps_of(target, "train/lr") == [1, 7]
    assert [value for name, _, value in target.values if name == "train/grad"] == [0, 1, 7]
