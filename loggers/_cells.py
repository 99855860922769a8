"""Values as text that people read, in a table or on a line, and back.

A number is spelled so that it reads back equal, NaN and the infinities are ``nan``, ``inf`` and ``-inf``. Text stands
as it is, unless it reads as something else or has control characters: then it is in quotes, as JSON has it.
Everything else is JSON. So a cell never has a line break or a tab, and the empty one is no value.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

_INT: Final = re.compile(r"-?[0-9]+")
_FLOAT: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|inf)|nan")
_WORDS: Final = {"null": None, "true": True, "false": False}
#: What a line cannot hold, and what UTF-8 cannot spell.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def cell(value: Any) -> str:
    """Return a plain value (see :mod:`loggers.values`) as text on one line."""
    if type(value) is float:
        return repr(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return value if value and value_of(value) == value and not _UNPRINTABLE.search(value) else quoted(value)
    return _json(value)


def value_of(text: str) -> Any:
    """Return the value of a cell that is not empty."""
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] in ('"', "[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # text that only begins like that
    return text


def quoted(text: str) -> str:
    """Return a string as JSON, on one line."""
    return _json(text)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _UNPRINTABLE.search(text) else text


def name_cell(name: str, reserved: frozenset[str] = frozenset()) -> str:
    """Return a metric's name as the head of a column: quoted where it is reserved, or could not be told apart."""
    return quoted(name) if name in reserved or name.startswith('"') or _UNPRINTABLE.search(name) else name


def name_of(text: str) -> str:
    """Return the name behind the head of a column."""
    name = json.loads(text) if text.startswith('"') else text
    if not isinstance(name, str):
        raise ValueError(f"{text!r} is no name")
    return name


def short(value: Any) -> str:
    """Return a value as text of which floats have four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else cell(value)
