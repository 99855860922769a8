"""Values, names and numbers as short, printable text."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any, Final

#: What stands where something was cut out.
ELLIPSIS: Final = "…"


def number(value: float) -> str:
    """Return a number with about six significant digits; integers in full."""
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value) and 1e6 <= abs(value) < 1e10:  # Unix seconds, token counts
        return f"{value:.0f}"
    return f"{value:.6g}"


def printable(text: str) -> str:
    """Return ``text`` in which whatever would move the cursor, or shows nothing, is an escape."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def plain_value(value: Any) -> str:
    """Return a JSON value on one line: text as it is, numbers short, the rest as compact JSON."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return printable(json.dumps(value, ensure_ascii=False, default=str))


def cells(text: str) -> int:
    """Return how many terminal columns ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return ``text`` filled up with blanks to ``width`` columns, on the left if ``right``."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def shorten(text: str, width: int, *, middle: bool = False) -> str:
    """Return ``text`` cut to ``width`` columns (at least 1), its end or its middle left out."""
    if cells(text) <= width:
        return text
    if not middle:
        return _head(text, width - 1) + ELLIPSIS
    tail = _head(text[::-1], (width - 1) // 2)[::-1]
    return _head(text, width - 1 - cells(tail)) + ELLIPSIS + tail


def _head(text: str, width: int) -> str:
    # as much of the text as fits into the width
    used = 0
    for at, char in enumerate(text):
        used += cells(char)
        if used > width:
            return text[:at]
    return text
