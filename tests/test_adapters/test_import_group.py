"""``plattli import`` of metrics groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapters import MetricsGroupLogger
from loggers import replay
from tests.lazy import Lazy
from tests.test_adapters.imported import about, imported, points, write_run

zarr = Lazy("zarr")


@pytest.mark.parametrize("end", ["completed", "interrupted"])
def test_a_round_trip_keeps_what_a_group_does(tmp_path: Path, end: str) -> None:
    """run -> MetricsGroupLogger -> run: numbers as float64, times, confusions, other values, params, tags, status."""
    run = write_run(tmp_path / "run", end=end)
    replay(run, MetricsGroupLogger(tmp_path / "metrics"))
    imported(tmp_path / "metrics", tmp_path / "again")

    expected, found = points(run), points(tmp_path / "again")
    times = {name: expected.pop(name) for name in list(expected) if name.endswith("/walltime")}
    for name, series in times.items():
        assert found.pop(name) == [(step, pytest.approx(time, abs=1e-6)) for step, time in series]
    assert found == expected
    assert about(tmp_path / "again") == about(run)


def test_a_group_that_is_only_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a process that was killed: no array is there yet, and the last line is torn."""
    logger = MetricsGroupLogger(tmp_path / "a" / "metrics")
    for step in range(3):
        logger.log_metrics({"loss": step / 4}, step=step, walltime=1.7e9 + step)
    log = tmp_path / "a" / "metrics" / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-5])
    (said,) = imported(tmp_path / "a", tmp_path / "run", capsys=capsys)

    assert (said["kind"], said["status"]) == ("group", "interrupted")
    assert points(tmp_path / "run") == {
        "train/loss": [(0, 0), (1, 0.25)],
        "train/walltime": [(0, 1.7e9), (1, 1.7e9 + 1)],
    }


def test_another_zarr_group_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the catalog of series, it is somebody else's."""
    zarr.open_group(tmp_path / "other", mode="w", zarr_format=3).create_array("loss", data=np.ones(1))
    (said,) = imported(tmp_path / "other", tmp_path / "run", code=1, capsys=capsys)

    assert "is a directory without anything to import: it has 'loss', 'zarr.json'" in said["error"]
