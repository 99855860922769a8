"""Readers and writers for the Plättli metric format: columns on disk, with a row-wise hot log."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from plattli.bulk import BulkWriter
from plattli.compacting import CompactingWriter
from plattli.direct import DirectWriter
from plattli.errors import PlattliError
from plattli.reader import Reader
from plattli.runinfo import RunInfo, run_info
from plattli.runs import is_run, is_run_dir, resolve_run_dir

try:
    __version__ = version("plattli-loggers")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "BulkWriter",
    "CompactingWriter",
    "DirectWriter",
    "PlattliError",
    "Reader",
    "RunInfo",
    "__version__",
    "is_run",
    "is_run_dir",
    "resolve_run_dir",
    "run_info",
]
