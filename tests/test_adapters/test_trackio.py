"""``TrackioLogger``, read back with Trackio's own readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.backends.trackio import TrackioLogger
from loggers.testing import LoggerContract, Stored
from tests.test_adapters import trackio_runs


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trackio's directory. It is one for a whole process, so each test has a project of its own."""
    return trackio_runs.home(tmp_path_factory.mktemp("trackio"))


def project_of(directory: Path) -> str:
    return "-".join(directory.parts[-3:])


class TestContract(LoggerContract):
    """Trackio keeps every row; the logger takes those back that are behind a checkpoint."""

    live = False
    replaces = False

    def build(self, directory: Path) -> TrackioLogger:
        return TrackioLogger(project_of(directory))

    def stored(self, directory: Path) -> Stored:
        return trackio_runs.stored(project_of(directory))
