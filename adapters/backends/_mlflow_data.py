"""Our data as MLflow takes it: names of its alphabet, values as text, long ones in pieces.

Everything can be turned back: see :func:`decode`, :func:`joined` and :func:`from_text`.

========================================  ==========================================
a sign MLflow does not take               its code between colons: ``a@b`` is ``a:40:b``
the slash that makes an empty part        ``a//b`` is ``a/:2F:b``
a part ``.`` or ``..``                    its first dot: ``:2E:``, ``:2E:.``
a colon before a digit or one of A to F   ``:3A:``, for it could read as one of these
``name:v2``                               the second value of the param ``name``
``name:p2``                               the second piece of a value that is too long for one
========================================  ==========================================
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from adapters.backends._queued import Operation
from loggers.errors import RecordError
from loggers.values import plain_tags, raise_for

#: Characters. A longer param or tag is cut by MLflow, so we store it in pieces.
LONGEST_PARAM: Final = 6000
LONGEST_TAG: Final = 8000
_LONGEST_NAME: Final = 250
#: Room that a version and a piece may need behind a name.
_SUFFIX_ROOM: Final = 14

_FOREIGN: Final = re.compile(r"[^\w/.\- :]")
_COLON: Final = re.compile(r":(?=[0-9A-F])")
_DOT: Final = re.compile(r"(^|/)\.(?=\.?(?:/|\Z))|\A\.(?=\.)")
_SLASH: Final = re.compile(r"(?<=/)/|^/|/\Z")
_SUFFIX: Final = re.compile(r"(?<=:)[vp](?=[0-9]+(?::|\Z))")
_ESCAPED: Final = re.compile(r":([0-9A-F]{1,6}):")
_STORED: Final = re.compile(r"(.*?)(?::v([0-9]+))?(?::p([0-9]+))?\Z", re.DOTALL)


@lru_cache(4096)
def encode(name: str) -> str:
    """Return the stored form of a name.

    Raises:
        ValueError: nothing can be stored under it; says why.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("the name has a lone surrogate: clean it with .encode(errors='replace')") from None
    stored = _FOREIGN.sub(_code, _COLON.sub(":3A:", name))
    stored = _DOT.sub(lambda match: f"{match[1] or ''}:2E:", _SLASH.sub(":2F:", stored))
    stored = _SUFFIX.sub(_code, stored)
    if not stored:
        raise ValueError("the name is empty")
    if len(stored) > _LONGEST_NAME - _SUFFIX_ROOM:
        raise ValueError(
            f"the name takes {len(stored)} characters as MLflow stores it, "
            f"which has room for {_LONGEST_NAME - _SUFFIX_ROOM}: shorten it"
        )
    return stored


def _code(match: re.Match[str]) -> str:
    return f":{ord(match[0]):X}:"


def decode(stored: str) -> str:
    """Return the name that :func:`encode` stored."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), stored)


def text(value: Any) -> str:
    """Return JSON data as the text of a param or a tag: strings as they are, all else as JSON.

    A string that would read as JSON is put in quotes, so that :func:`from_text` can tell.
    """
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False) if _is_json(value) else value


def from_text(stored: str) -> Any:
    """Return the data that :func:`text` made text of."""
    return json.loads(stored) if _is_json(stored) else stored


def _is_json(words: str) -> bool:
    try:
        json.loads(words)
    except (ValueError, RecursionError):
        return False
    return True


def pieces(stored_name: str, words: str, longest: int) -> dict[str, str]:
    """Return a text as one or more entries that MLflow does not cut.

    The last one is shorter than ``longest``, so that what an older, longer text left behind it does no harm.
    """
    parts = [words[at : at + longest] for at in range(0, len(words) + 1, longest)]
    return {stored_name if i == 1 else f"{stored_name}:p{i}": part for i, part in enumerate(parts, 1)}


def versions(entries: Mapping[str, str], longest: int) -> dict[str, list[str]]:
    """Return what is stored under each name: its values, oldest first, each in one piece.

    Args:
        entries: a run's params or tags, as MLflow's client shows them.
        longest: ``LONGEST_PARAM`` or ``LONGEST_TAG``.
    """
    found: dict[str, dict[int, dict[int, str]]] = {}
    for key, part in entries.items():
        name, version, piece = _STORED.fullmatch(key).groups()  # type: ignore[union-attr]
        found.setdefault(decode(name), {}).setdefault(int(version or 1), {})[int(piece or 1)] = part
    return {
        name: [_whole(parts, longest) for _, parts in sorted(by_version.items())]
        for name, by_version in found.items()
    }


def _whole(parts: Mapping[int, str], longest: int) -> str:
    words = parts.get(1, "")
    for number in itertools.count(2):
        if len(words) < longest * (number - 1) or number not in parts:
            return words
        words += parts[number]
    return words


def tag_key(name: str) -> str:
    """Return the stored form of a user's tag, apart from the tags that we make.

    Raises:
        ValueError: nothing can be stored under it; says why.
    """
    return re.sub(r"\A(other|confusion|loggers)([/.])", lambda m: f"{m[1]}:{ord(m[2]):X}:", encode(name))


def stored_tags(
    tags: Mapping[str, Any] | Iterable[str] | str, problems: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the entries for tags; names that are no good go to ``problems``, or are raised for."""
    entries: dict[str, str] = {}
    bad: dict[str, str] = {} if problems is None else problems
    for name, value in plain_tags(tags).items():
        try:
            entries |= pieces(tag_key(name), text(value), LONGEST_TAG)
        except ValueError as error:
            bad[name] = str(error)
    if problems is None:
        raise_for(bad, where="the tags")
    return entries


def plain_operation(operation: Operation) -> Operation:
    """Return an operation as strict JSON: numbers that it has no word for as text."""
    if operation[0] != "metrics":
        return operation
    kind, when, step, values = operation
    return [kind, when, step, {name: v if math.isfinite(v) else str(v) for name, v in values.items()}]


def revived_operation(operation: Operation) -> Operation:
    """Return the operation that :func:`plain_operation` described."""
    if operation[0] != "metrics":
        return operation
    *place, values = operation
    return [*place, {name: float(v) if isinstance(v, str) else v for name, v in values.items()}]


def checked_state(state: Any) -> dict[str, Any]:
    """Return a copy of the state of an MLflowLogger.

    Raises:
        RecordError: it is none.
    """
    if not isinstance(state, Mapping):
        raise RecordError(f"the state of an MLflowLogger is a mapping, got {state!r} ({type(state).__name__})")
    wrong = [key for key in ("tracking_uri", "experiment", "run") if not isinstance(state.get(key), str | None)]
    if not isinstance(state.get("id"), str) or not state["id"]:
        wrong.append("id")
    for key, is_entry in (("latest", _is_place), ("pending", _is_operation)):
        if not isinstance(state.get(key), list) or not all(map(is_entry, state[key])):
            wrong.append(key)
    if wrong:
        raise RecordError(
            f"the state of an MLflowLogger has bad {', '.join(wrong)}: got "
            f"{ {key: state.get(key) for key in wrong} }; pass what logger_state() returned"
        )
    return {key: state.get(key) for key in ("tracking_uri", "experiment", "run", "id", "latest", "pending")}


def _is_place(place: Any) -> bool:
    """Return whether ``place`` is [context or None, step, time in ms]."""
    return (
        isinstance(place, list)
        and len(place) == 3
        and isinstance(place[0], str | None)
        and all(type(number) is int for number in place[1:])
    )


def _is_operation(operation: Any) -> bool:
    return isinstance(operation, list) and len(operation) > 1 and operation[0] in ("metrics", "params", "tags", "file")
