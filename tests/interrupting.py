"""Ctrl-C at any line of chosen modules, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def interrupted_at(n: int, call: Callable[[], object], *, modules: Collection[str], guards: Collection[str]) -> bool:
    """Run ``call`` with Ctrl-C at the n-th line of some modules; tell if there was such a line.

    Args:
        n: 1, 2, …
        call: what is interrupted.
        modules: file names.
        guards: functions whose own lines hold no instruction at which Python looks for signals while something is
            in the air.
    """
    left = [n]

    def trace(frame: Any, event: str, arg: object) -> Any:
        if Path(frame.f_code.co_filename).name not in modules:
            return None
        if event == "line" and frame.f_code.co_name not in guards:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


__all__ = ["interrupted_at"]
