"""Import somebody else's package at the moment a backend needs it, or say how to get it."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def check(*packages: str, extra: str, who: str) -> None:
    """Find out, importing nothing, whether ``who`` would get its packages: what a backend's ``preflight`` asks.

    Raises:
        ImportError: one is not installed; the message names the extra that brings it.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise _missing(package, extra, who)


def require(module: str, *, extra: str, who: str) -> ModuleType:
    """Import ``module`` for ``who``.

    Raises:
        ImportError: the package is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        # a broken import inside an installed package is its own story: let it through
        if missing.name is None or missing.name.split(".")[0] != module.split(".")[0]:
            raise
        raise _missing(module.split(".")[0], extra, who) from None


def _missing(package: str, extra: str, who: str) -> ImportError:
    remedy = f"pip install 'plattli-loggers[{extra}]'"
    return ImportError(f"{who} needs the package {package!r}, which is not installed: {remedy}")
