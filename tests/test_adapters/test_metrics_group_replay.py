"""From a metrics group to any logger, and from a run to a metrics group."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from adapters import MetricsGroupLogger, TensorBoardLogger
from adapters.backends.metrics_group import NoGroupError
from adapters.importers.metrics_group import replay_group
from loggers import PlattliLogger
from loggers.replay import replay
from loggers.testing import RecordingLogger
from plattli.cli import main
from tests.test_adapters.metrics_groups import ByHand
from tests.test_loggers.test_contract import plattli_run


def some_run(logger: object) -> None:
    """Log a bit of everything that a group can hold."""
    logger.log_params({"lr": 0.1, "net": {"widths": [8, 4]}})  # type: ignore[attr-defined]
    logger.log_tags({"data": "digits", "small": True})  # type: ignore[attr-defined]
    log = logger.log_metrics  # type: ignore[attr-defined]
    for step in range(1, 31):
        log({"loss": 1 / step, "n": step}, step=step, epoch=step // 10, walltime=1.7e9 + step / 7)
        if step % 10 == 0:
            log({"loss": 2 / step}, step=step, epoch=step // 10, context="validate", walltime=1.7e9 + step / 7 + 0.01)
            log({"loss": 3 / step}, step=step, context="test/clean", walltime=1.7e9 + step / 7 + 0.02)
    log({"loss": math.nan, "late": math.inf}, step=4, epoch=0, walltime=1.7e9 + 99)
    logger.log_other("report", {"best": [1, None]})  # type: ignore[attr-defined]
    logger.log_confusion([[3, 1], [0, 2]], ["cat", "dog"], step=20, epoch=2, context="validate")  # type: ignore[attr-defined]
    logger.log_params({"lr": 0.05})  # type: ignore[attr-defined]
    logger.finish("early_stop")  # type: ignore[attr-defined]


@pytest.mark.parametrize("densified", [True, False])
def test_a_round_trip_gives_an_equal_run(tmp_path: Path, densified: bool) -> None:
    """Run, group, run: metrics, times, params, tags, confusions and status, whether from arrays or from the log."""
    some_run(PlattliLogger(tmp_path / "run"))
    replay(tmp_path / "run", MetricsGroupLogger(tmp_path / "metrics"))
    if not densified:
        (tmp_path / "metrics" / "zarr.json").unlink()
    made = replay_group(tmp_path / "metrics", PlattliLogger(tmp_path / "again"))
    before, after = plattli_run(tmp_path / "run"), plattli_run(tmp_path / "again")
    for found in (before, after):  # every number is a float64 on its way, and NaN is not equal to itself
        found.metrics = {name: [(step, repr(float(v))) for step, v in points] for name, points in found.metrics.items()}

    assert after == before
    assert before.status == "early_stop"
    assert len(before.metrics["train/walltime"]) == 30
    assert made > 36


def test_lines_come_back_as_they_were_logged(tmp_path: Path) -> None:
    """What was logged in one call is one call, with its context, epoch and time; by step, then by time."""
    logger = MetricsGroupLogger(tmp_path)
    logger.log_metrics({"a": 1.0, "b": 2.0}, step=2, epoch=1, walltime=20.5)
    logger.log_metrics({"a": 3.0}, step=1, walltime=30.0)
    logger.log_metrics({"c": 4.0}, step=2, walltime=10.0)
    logger.log_metrics({"a/b": 5.0}, step=2, context="x/y", walltime=40.0)
    logger.finish("error")
    recorded = RecordingLogger()
    replay_group(tmp_path, recorded)

    kept = [(call.args[0], {axis: value for axis, value in call.kwargs.items() if value is not None})
            for call in recorded.calls if call.verb == "log_metrics"]  # fmt: skip

    assert kept == [
        ({"a": 3.0}, {"step": 1, "context": "train", "walltime": 30.0}),
        ({"c": 4.0}, {"step": 2, "context": "train", "walltime": 10.0}),
        ({"a": 1.0, "b": 2.0}, {"step": 2, "context": "train", "epoch": 1, "walltime": 20.5}),
        ({"a/b": 5.0}, {"step": 2, "context": "x/y", "walltime": 40.0}),
    ]
    assert recorded.calls[-1].args == ("error",)


def test_a_group_of_somebody_else(tmp_path: Path) -> None:
    """Keys without a slash have a context, points without a step get one, times that are none are left out."""
    events = [
        {"key": "loss", "value": 1.0}, {"key": "loss", "value": 2.0}, {"key": "m/a", "value": 3.0, "step": 7},
        {"key": "m/a", "value": 4.0}, {"key": "m/a", "value": 5.0}, {"key": "m/a", "value": 6.0, "step": 3},
    ]  # fmt: skip
    lines = [json.dumps({"type": "scalar", "time": "unknown", **event}) for event in events]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    recorded = RecordingLogger()
    replay_group(tmp_path, recorded, context="run")
    found = recorded.stored()

    assert found.metrics == {"run/loss": [(0, 1.0), (1, 2.0)], "m/a": [(3, 6.0), (7, 3.0), (8, 4.0), (9, 5.0)]}
    assert found.status is None
    assert not any("walltime" in call.kwargs for call in recorded.calls)


def test_more_lines_than_are_in_memory_at_once(tmp_path: Path) -> None:
    """In order, with steps far apart, and progress told."""
    logger = MetricsGroupLogger(tmp_path)
    steps = [step * step * 10**6 for step in range(4500)]
    for step in steps:
        logger.log_metrics({"loss": step / 7}, step=step)
    logger.log_other("report", "x")
    recorded, told = RecordingLogger(), []
    made = replay_group(tmp_path, recorded, progress=told.append)

    assert recorded.stored().metrics["train/loss"] == [(step, step / 7) for step in steps]
    assert (made, told) == (4501, [2000, 4000, 4501])


def test_a_logger_that_cannot_take_a_value_gets_the_rest(tmp_path: Path) -> None:
    """And what is no group is said."""
    some_run(MetricsGroupLogger(tmp_path / "metrics"))
    replay_group(tmp_path / "metrics", TensorBoardLogger(tmp_path / "tb"))
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))
    with pytest.raises(NoGroupError):
        replay_group(tmp_path / "tb", RecordingLogger())


def test_the_command_makes_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``plattli replay RUN --to zarr:DIR``, twice, and by force."""
    monkeypatch.chdir(tmp_path)
    some_run(PlattliLogger("run"))
    for more, code in ([], 0), ([], 0), (["--force"], 0):
        assert main(["replay", "run", "--to", "zarr:out/metrics", "--quiet", *more]) == code
    found = ByHand(tmp_path / "out" / "metrics", log=False).stored()

    assert len(found.metrics["train/loss"]) == 30
    assert (found.params["lr"], found.status) == (0.05, "early_stop")
