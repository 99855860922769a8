"""Modules that load when a test uses them, not when it is collected.

What one test module loads at its top is there in all other tests as well, and each that forks pays for its memory.
"""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for modules, and has the names of all of them; they load when it is asked for one."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):  # pytest looks at everything whether it is a fixture
            for module in map(importlib.import_module, self._modules):
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(name)


__all__ = ["Lazy"]
