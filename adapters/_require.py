"""Import somebody else's package at the moment a backend needs it, or say how to get it."""

from __future__ import annotations

import importlib
from types import ModuleType


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
        raise ImportError(
            f"{who} needs the package {module.split('.')[0]!r}, which is not installed: "
            f"pip install 'plattli-loggers[{extra}]'"
        ) from None
