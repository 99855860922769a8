"""What every test may rely on."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# a shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _without_waiting(fd: int) -> None:
    """Take the place of ``os.fsync``: no test cuts the power, so it is all the same when bytes get to the disk."""
    os.fstat(fd)  # an error if the file is not open


os.fsync = _without_waiting

# a slow or busy machine is no reason to fail
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

#: What collecting the tests has loaded.
COLLECTED = pytest.StashKey[frozenset[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that load trackers and the like last: a test that forks pays for all that is in memory."""
    items.sort(
        key=lambda item: (
            item.path.parent.name not in ("test_plattli", "test_loggers")
            or item.path.stem in ("test_plot", "test_reader_remote")
        )
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note what is there before the first test runs."""
    session.config.stash[COLLECTED] = frozenset(sys.modules)


@pytest.fixture
def collected(pytestconfig: pytest.Config) -> frozenset[str]:
    """The modules that were there before the first test ran."""
    return pytestconfig.stash[COLLECTED]
