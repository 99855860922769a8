"""The logger's part of a checkpoint: take it, check it, give it to the next process.

::

    record = checkpoint_record(lgr)      {"logger": type name, "state": plain JSON data, "version": 1}
    …in a new process…
    resume(lgr, record)                  refuses another logger's record, else lgr.reattach(state)

A tee's record holds its primary's record. So a run may be resumed with a tee around the logger that it had, and with
that logger alone: what is resumed is the primary's part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from loggers import verbs
from loggers.contract import JSON
from loggers.errors import MissingVerbError, RecordError
from loggers.ranks import InertLogger

#: The version of the record that this release writes. It reads this one and all below.
RECORD_VERSION: Final = 1


def checkpoint_record(lgr: Any) -> dict[str, JSON] | None:
    """Return what a checkpoint must hold so that a new process can go on with the run.

    Returns:
        Plain JSON data that shares nothing with the logger, or ``None`` if there is nothing to
        reattach (no logger, or one without state).

    Raises:
        RecordError: the logger's state is not plain JSON data; names the path and the type.
        MissingVerbError: there is state, but no ``reattach`` that could ever use it.
    """
    lgr = verbs.resolved(lgr)
    state = verbs.logger_state(lgr)
    if state is None:
        return None
    if not verbs.has_verb(lgr, "reattach"):
        raise MissingVerbError(
            f"{type_name(lgr)} has a logger_state and lacks reattach: "
            "define reattach(self, state), or return None from logger_state"
        )
    return {"logger": type_name(lgr), "state": plain_json(state, "$.state"), "version": RECORD_VERSION}


def resume(lgr: Any, record: Mapping[str, Any] | None) -> None:
    """Let ``lgr`` go on with the run of a record. Without a record, or a logger that logs, do nothing.

    Args:
        lgr: a logger that nothing has been logged to yet.
        record: what :func:`checkpoint_record` returned, perhaps through JSON. A tee also takes the record of its
            primary alone, and a logger that of a tee whose primary it was.

    Raises:
        RecordError: no record, a newer version's, or one of another type of logger.
        MissingVerbError: the logger cannot reattach.
    """
    if lgr is None or record is None or isinstance(lgr, InertLogger):
        return
    lgr = verbs.resolved(lgr)
    check_version(record, "logger record", ("logger", "state"), RECORD_VERSION)
    theirs, ours, state = record["logger"], type_name(lgr), record["state"]
    primary = getattr(lgr, "primary", None)
    if not _same_type(theirs, ours) and (primary is None or not _same_type(theirs, type_name(primary))):
        if is_of_tee(state) and (state["primary"] is not None or not verbs.has_verb(lgr, "reattach")):
            resume(lgr, state["primary"])
            return
        raise RecordError(
            f"the checkpoint's logger record is of {theirs}, and this run's logger is {ours}: "
            "resume with the same type of logger, or pass no record to start a new run"
        )
    verbs.reattach(lgr, plain_json(state, "$.state"))


def is_of_tee(state: Any) -> bool:
    """Tell whether a state is a tee's, which holds its primary's record."""
    return isinstance(state, Mapping) and "primary" in state and isinstance(state.get("replicas"), list)


def check_version(record: Any, what: str, fields: tuple[str, ...], newest: int) -> None:
    """Refuse a record that lacks fields or was written by a newer release.

    Raises:
        RecordError: says what is missing, or both versions.
    """
    if not isinstance(record, Mapping):
        raise RecordError(f"a {what} is a mapping, got {type(record).__qualname__}: pass it as it was saved")
    missing = [field for field in (*fields, "version") if field not in record]
    if missing:
        has = ", ".join(map(repr, record)) or "nothing"
        raise RecordError(f"not a {what}: it lacks {', '.join(missing)} and has {has}")
    version = record["version"]
    if type(version) is not int or version < 1:
        raise RecordError(f"the {what}'s version must be a positive int, got {version!r}")
    if version > newest:
        raise RecordError(
            f"the {what} has version {version}, and this release reads up to {newest}: "
            "resume with the release that wrote it, or a newer one"
        )


def type_name(lgr: object) -> str:
    """Return the qualified name of ``lgr``'s type, under which it stands in records."""
    return f"{type(lgr).__module__}.{type(lgr).__qualname__}"


def plain_json(value: Any, path: str = "$") -> JSON:
    """Return a deep copy of plain JSON data.

    Plain means: exactly ``None``, ``bool``, ``int``, finite ``float``, ``str``, ``list``, or ``dict``
    with string keys, so that a round trip through any JSON file gives the same again.

    Args:
        value: what should be plain.
        path: where it stands, such as ``$.state``; for messages.

    Raises:
        RecordError: names the path and the type of the first value that is not plain.
    """
    return _copy(value, path, ())


def _copy(value: Any, path: str, above: tuple[int, ...]) -> JSON:
    if value is None or type(value) in (bool, int):
        return value  # type: ignore[no-any-return]
    if type(value) is float:
        if math.isfinite(value):
            return value
        raise RecordError(f"{path} is {value!r}, which JSON cannot hold: use None or a string for it")
    if type(value) is str:
        if value.isascii() or _is_utf8(value):
            return value
        raise RecordError(f"{path} is a string with a lone surrogate, which UTF-8 cannot spell: {value!r}")
    if type(value) not in (list, dict):
        raise RecordError(
            f"{path} is a {type_name(value)}, not plain JSON data: "
            "make it None, bool, int, float, str, list or dict"
        )
    if id(value) in above:
        raise RecordError(f"{path} contains itself")
    if len(above) >= 100:
        raise RecordError(f"{path} is nested deeper than 100 levels: flatten the state")
    above = (*above, id(value))
    if isinstance(value, list):
        return [_copy(item, f"{path}[{i}]", above) for i, item in enumerate(value)]
    copy: dict[str, JSON] = {}
    for key, item in value.items():
        if type(key) is not str or not _is_utf8(key):
            raise RecordError(f"{path} has the key {key!r} ({type(key).__qualname__}): make its keys strings")
        copy[key] = _copy(item, f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]", above)
    return copy


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _same_type(theirs: Any, ours: str) -> bool:
    if theirs == ours or not isinstance(theirs, str):
        return bool(theirs == ours)
    # a logger defined in the script itself: `python train.py` and `python -m train` name it differently
    for script, other in ((theirs, ours), (ours, theirs)):
        if script.startswith("__main__.") and other.endswith(script.removeprefix("__main__")):
            return True
    return False
