"""Tests that anybody's logger can inherit, and a logger for the tests of drivers.

Import it by its name, ``loggers.testing``: it needs pytest, and nothing else in ``loggers`` does.
"""

from __future__ import annotations

import pytest

# before they are imported: a test that fails shows the values it compared
pytest.register_assert_rewrite(
    *(f"loggers.testing.{name}" for name in ("_backend", "_lines", "_programs", "_resuming", "_runs"))
)

from loggers.testing._backend import Run  # noqa: E402
from loggers.testing.contract import LoggerContract  # noqa: E402
from loggers.testing.recording import Call, RecordingLogger, stored_by  # noqa: E402
from loggers.testing.stored import Stored  # noqa: E402

__all__ = ["Call", "LoggerContract", "RecordingLogger", "Run", "Stored", "stored_by"]
