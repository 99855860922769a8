"""Our writers and readers against the reference package, which runs in an environment of its own.

    python -m pytest tests/interop [--programs N]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.readers import Readers
from tests.interop.workers import REFERENCE_VERSION, ROOT, Worker, reference_interpreter


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", type=int, default=2000, help="how many random programs to play (2000)")


@pytest.fixture(scope="session")
def reference() -> Iterator[Worker]:
    """The reference package, at work."""
    worker = Worker(reference_interpreter())
    assert worker.version == REFERENCE_VERSION
    assert Path(worker.location).is_relative_to(ROOT / ".cache")
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def ours() -> Iterator[Worker]:
    """This package, at work."""
    worker = Worker(Path(sys.executable), ROOT)
    assert Path(worker.location).is_relative_to(ROOT / "plattli")
    yield worker
    worker.close()


@pytest.fixture
def readers(ours: Worker, reference: Worker) -> Readers:
    """Both Readers."""
    return Readers(ours, reference)
