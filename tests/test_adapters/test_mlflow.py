"""``MLflowLogger``, read back with MLflow's own client: from a database file, and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from adapters.backends.mlflow import STATUSES, MLflowLogger
from loggers.testing import LoggerContract, Stored
from tests.test_adapters import mlflow_runs


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database for all tests: to make one takes MLflow more than a second. Each test has its experiment."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/ml.db"
    client = mlflow_runs.client(uri)
    yield uri
    client._tracking_client.store.engine.dispose()  # else SQLite's connections are found open at exit


class TestContract(LoggerContract):
    """MLflow keeps every point, and takes none back."""

    precision = "float64"
    live = False
    holds_text = False
    replaces = False
    cuts = False
    statuses: ClassVar[dict[str, str]] = STATUSES

    @pytest.fixture(autouse=True)
    def _database(self, database: str) -> None:
        self.uri = database

    def rounded(self, value: Any) -> Any:
        """Its databases keep an infinity as the largest number there is."""
        largest = np.finfo(float).max
        return float(np.clip(float(value), -largest, largest)) if isinstance(value, (int, float)) else value

    def build(self, directory: Path) -> MLflowLogger:
        return MLflowLogger(self.uri, experiment=str(directory))

    def stored(self, directory: Path) -> Stored:
        return mlflow_runs.stored(self.uri, str(directory), directory)
