"""Any string a user may log, as a name that becomes a file path, and back.

Almost every name is stored as it is. What a path cannot be is percent-encoded, reversibly:

======================================  =============================
``a//b``, ``/a``, ``a/``                the slash that makes an empty part: ``a/%2Fb``
a part ``.`` or ``..``                  its first dot: ``%2E``, ``%2E.``
backslash, NUL                          ``%5C``, ``%00``
``C:`` at the start                     the colon: ``C%3A``
a reserved word of the format           its first letter: ``%73tep``
``%`` that would read as one of these   ``%25``
a part of more than 200 bytes           split: ``aaa…/%~aaa…``
======================================  =============================

Only three kinds of names are refused: the empty one, those that UTF-8 cannot spell, and those whose path
would be longer than operating systems take.
"""

from __future__ import annotations

import re
from typing import Final

from loggers.errors import MetricNameError

_RESERVED: Final = frozenset({"step", "run_rows", "when_exported", "hot", "hot.compacting"})
_MAX_PART: Final = 200
#: Operating systems take paths of some 4,000 bytes; the run's directory and suffixes need some of them.
_MAX_PATH: Final = 2000
_SPLIT: Final = "/%~"
_NEEDS_WORK: Final = re.compile(r"[%\\\0]|//|^/|/\Z|(?:^|/)\.{1,2}(?:/|\Z)|^[A-Za-z]:")
_PERCENT: Final = re.compile(r"%(?=[0-9A-Fa-f]{2}|~)")
_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")


def encode(name: str) -> str:
    """Return the stored form of a metric's full name.

    Raises:
        MetricNameError: the name is empty, too long, or holds a lone surrogate, which no file can spell.
    """
    if not name:
        raise MetricNameError("a metric name must not be empty; give the metric a name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise MetricNameError(
            f"metric name {name!r} holds a lone surrogate, which UTF-8 cannot spell; remove it"
        ) from None
    if _NEEDS_WORK.search(name):
        name = _PERCENT.sub("%25", name).replace("\\", "%5C").replace("\0", "%00")
        name = re.sub(r"(?<=/)/|^/|/\Z", "%2F", name)
        name = re.sub(r"(^|/)\.(?=\.?(?:/|\Z))", r"\1%2E", name)
        name = re.sub(r"^([A-Za-z]):", r"\1%3A", name)
    if name in _RESERVED:
        name = f"%{ord(name[0]):02X}{name[1:]}"
    size = len(name.encode())
    if size > _MAX_PATH:
        raise MetricNameError(
            f"metric name {name[:60]!r}… takes {size} bytes as a path, and file systems {_MAX_PATH} at most; shorten it"
        )
    if size > _MAX_PART:
        name = "/".join(_SPLIT.join(_chunks(part)) for part in name.split("/"))
    return name


def decode(stored: str) -> str:
    """Return the name that :func:`encode` stored."""
    if "%" not in stored:
        return stored
    return _ENCODED.sub(lambda match: chr(int(match[1], 16)), stored.replace(_SPLIT, ""))


def _chunks(part: str) -> list[str]:
    """Cut a part into pieces that a file system takes, never inside an escape or a character."""
    pieces, piece, size = [], "", 0
    for unit in re.findall(r"%[0-9A-F]{2}|.", part, re.DOTALL):
        width = len(unit.encode())
        if size + width > _MAX_PART:
            pieces.append(piece)
            piece, size = "", 0
        piece += unit
        size += width
    return [*pieces, piece]
