"""A tracker whose package is not installed is a mistake that the first call tells, not a run that nobody follows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters import (
    MetricsGroupLogger,
    MLflowLogger,
    TeeLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
)
from loggers import PlattliLogger, Thinned, TrainingSession

BUILD: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "google_crc32c": ("tensorboard", lambda path: TensorBoardLogger(path / "replica")),
    "wandb": ("wandb", lambda path: WandbLogger("p", mode="offline", dir=path / "replica")),
    "mlflow": ("mlflow", lambda path: MLflowLogger(f"sqlite:///{path}/replica")),
    "trackio": ("trackio", lambda path: TrackioLogger("p", directory=path / "replica")),
    "zarr": ("zarr", lambda path: MetricsGroupLogger(path / "replica")),
}


@pytest.mark.parametrize("thinned", [False, True])
@pytest.mark.parametrize("package", BUILD)
def test_a_tee_says_so_at_its_first_verb(
    package: str, thinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written, and how to get it."""
    monkeypatch.setitem(sys.modules, package, None)
    extra, build = BUILD[package]
    replica = Thinned(build(tmp_path), every_n_steps=2) if thinned else build(tmp_path)
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), replica)

    with pytest.raises(ImportError, match=rf"Logger needs the package '{package}'.*pip install '.*\[{extra}\]'"):
        logger.log_metrics({"loss": 0.5}, step=0)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("params", [None, {"lr": 0.1}])
def test_nothing_is_left_of_a_session(
    params: dict[str, float] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tee that never began has no run to finish; once the package is there, it begins."""
    logger = TeeLogger(PlattliLogger(tmp_path / "run"), TensorBoardLogger(tmp_path / "replica"))
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "google_crc32c", None)
        with pytest.raises(ImportError, match="google_crc32c") as caught, TrainingSession(logger, params) as session:
            session.train({"loss": 0.5})
        assert list(tmp_path.iterdir()) == []
        assert not hasattr(caught.value, "__notes__")

    logger.log_metrics({"loss": 0.5}, step=1)
    logger.finish("completed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replica", "run"]
