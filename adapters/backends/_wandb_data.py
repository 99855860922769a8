"""Our data as W&B takes it: names, tags, config values, and the state of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from loggers.errors import MetricNameError, RecordError
from loggers.values import plain_tags

#: What a state says of its run, beside the id. Each is text or ``None``.
IDENTITY: Final = ("entity", "project", "mode", "dir", "base_url", "url")
_LONGEST_TAG: Final = 64  # for one that is longer, W&B refuses all of them


def check_id(run_id: object) -> None:
    """Refuse now what W&B would refuse when the run starts.

    Raises:
        ValueError: not text, empty, or with characters that W&B keeps for itself.
    """
    if not isinstance(run_id, str) or not run_id.strip() or run_id != run_id.strip():
        raise ValueError(f"run_id must be non-empty text without spaces around it, got {run_id!r}")
    _check_characters("run_id", run_id, "/\\#?%:;,'")


def is_run(value: object) -> bool:
    """Tell whether this is an open run, as ``wandb.init`` returns it."""
    return callable(getattr(value, "define_metric", None)) and callable(getattr(value, "log_artifact", None))


def check_project(project: object) -> None:
    """Refuse now what W&B would refuse when the run starts.

    Raises:
        ValueError: not text, empty, too long, or with characters that W&B keeps for itself.
    """
    if not isinstance(project, str) or not 1 <= len(project) <= 128:
        raise ValueError(f"project must be text of 1 to 128 characters, got {project!r}")
    _check_characters("project", project, "/\\#?%:")


def _check_characters(what: str, text: str, refused: str) -> None:
    if bad := sorted({*text} & {*refused}):
        raise ValueError(f"{what} must not have {' or '.join(bad)} in it, got {text!r}: W&B refuses that")


def is_text(name: str) -> bool:
    """Return whether UTF-8 can spell ``name``."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(name: object, what: str) -> None:
    """Refuse a name that nothing could be logged under.

    Raises:
        MetricNameError: not text, empty, or with a lone surrogate.
    """
    if not isinstance(name, str) or not name or not is_text(name):
        raise MetricNameError(f"the {what} must be a non-empty string of valid characters, got {name!r}")


def merged(first: Iterable[str], second: Iterable[str]) -> list[str]:
    """Return both, each text once, in the order of its first appearance."""
    return [*dict.fromkeys((*first, *second))]


def tag_texts(tags: Mapping[str, Any] | Iterable[str] | str) -> tuple[list[str], dict[str, str]]:
    """Return the tags that W&B takes, and what is wrong with the others."""
    texts = [key if value is True else f"{key}:{value}" for key, value in plain_tags(tags).items()]
    problems = {
        text: f"has {len(text)} characters, W&B takes 1 to {_LONGEST_TAG}: shorten it"
        for text in texts
        if not 1 <= len(text) <= _LONGEST_TAG
    }
    return [text for text in texts if text not in problems], problems


def json_data(value: Any) -> Any:
    """Return plain data with text for numbers that JSON has no word for, or the client no room: NaN, 2**70."""
    if isinstance(value, dict):
        return {key: json_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


class State(NamedTuple):
    """What :meth:`WandbLogger.logger_state` said, checked.

    Attributes:
        known: ``id`` and the :data:`IDENTITY`.
        latest: context, or ``None`` for any, with step and epoch of its latest line.
        best: the state of a :class:`Best`, ``None`` in those of earlier releases.
        place: entries and rows of the journal.
        unended: whether the run was begun and not ended.
    """

    known: dict[str, str | None]
    tags: list[str]
    sync_dirs: list[str]
    latest: list[tuple[str | None, int, int | None]]
    best: Any
    place: list[int] | None
    unended: bool


def checked_state(state: Any) -> State:
    """Look through a state.

    Raises:
        RecordError: it is no state of a WandbLogger.
    """
    if not isinstance(state, Mapping):
        raise RecordError(f"the state of a WandbLogger is a mapping, got {state!r} ({type(state).__name__})")
    known: dict[str, Any] = {key: state.get(key) for key in ("id", *IDENTITY)}
    tags, sync_dirs = (state.get(key) or [] for key in ("tags", "sync_dirs"))
    wrong = [key for key, value in known.items() if not isinstance(value, str | None)]
    wrong += ["id"] if not known["id"] else []
    for key, value in (("tags", tags), ("sync_dirs", sync_dirs)):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            wrong.append(key)
    # states of earlier releases have none of these
    latest, place, unended = state.get("latest") or [], state.get("journal"), state.get("unended", False)
    if not isinstance(latest, list) or not all(map(_is_place, latest)):
        wrong.append("latest")
    if place is not None and not (isinstance(place, list) and len(place) == 2 and {*map(type, place)} == {int}):
        wrong.append("journal")
    wrong += [] if isinstance(unended, bool) else ["unended"]
    if wrong:
        raise RecordError(
            f"the state of a WandbLogger has bad {', '.join(dict.fromkeys(wrong))}: got "
            f"{ {key: state.get(key) for key in wrong} }; pass what logger_state() returned"
        )
    lines = [(context, step, epoch) for context, step, epoch in latest]
    return State(known, tags, sync_dirs, lines, state.get("best"), place, unended)


def _is_place(place: Any) -> bool:
    """Return whether ``place`` is [context or None, step, epoch or None]."""
    if not isinstance(place, list) or len(place) != 3:
        return False
    context, step, epoch = place
    return isinstance(context, str | None) and type(step) is int and isinstance(epoch, int | None)
