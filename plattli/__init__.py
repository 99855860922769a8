"""Readers and writers for the Plättli metric format: columns on disk, with a row-wise hot log."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from plattli.compacting import CompactingWriter
from plattli.errors import PlattliError

try:
    __version__ = version("plattli-loggers")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["CompactingWriter", "PlattliError", "__version__"]
