"""Tests that anybody's logger can inherit, and a logger for the tests of drivers.

Import it by its name, ``loggers.testing``. :class:`LoggerContract` needs pytest (``pip install pytest``), the rest
does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loggers.testing.recording import Call, RecordingLogger, stored_by
from loggers.testing.stored import Stored

if TYPE_CHECKING:
    from loggers.testing._backend import Run as Run
    from loggers.testing.contract import LoggerContract as LoggerContract

__all__ = ["Call", "LoggerContract", "RecordingLogger", "Run", "Stored", "stored_by"]


def __getattr__(name: str) -> Any:
    if name not in ("LoggerContract", "Run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest  # noqa: PLC0415 - drivers' tests may do without it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"loggers.testing.{name} needs pytest: pip install pytest", name="pytest") from error
    # before they are imported: a test that fails shows the values it compared
    pytest.register_assert_rewrite(
        *(f"loggers.testing.{part}" for part in ("_backend", "_lines", "_programs", "_resuming", "_runs"))
    )
    from loggers.testing import _backend, contract  # noqa: PLC0415

    globals().update(LoggerContract=contract.LoggerContract, Run=_backend.Run)
    return globals()[name]
