"""What a PlattliLogger's state says, and which rows of a run are newer than it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from loggers import names as _names
from loggers.errors import RecordError

#: Stands in a state's steps for what belongs to no context: ``log_other``, confusions without one.
WHOLE_RUN: Final = ""


def cut_after(steps: Mapping[str, int]) -> Callable[[str], int]:
    """Return the first step to remove, by stored metric name."""
    contexts = sorted((context for context in steps if context), key=len, reverse=True)
    stored = [(_names.encode(f"{context}/x").removesuffix("x"), steps[context]) for context in contexts]
    whole_run = steps.get(WHOLE_RUN, -1)

    def cut(name: str) -> int:
        for prefix, step in stored:
            if name.startswith(prefix):
                return step + 1
        # a context that the state does not know is newer than the state
        return whole_run + 1 if context_of(_names.decode(name), ()) == WHOLE_RUN else 0

    return cut


def context_of(full_name: str, contexts: Iterable[str]) -> str:
    """Return the context in a full metric name; ``contexts`` are those that have a slash themselves."""
    for context in sorted(contexts, key=len, reverse=True):
        if full_name.startswith(f"{context}/"):
            return context
    context, slash, _ = full_name.partition("/")
    return context if slash and context != "other" else WHOLE_RUN


def check_state(state: Any) -> tuple[str, dict[str, int]]:
    """Return the run's id, and context -> last step, of a state.

    Raises:
        RecordError: it is none of a PlattliLogger.
    """
    run_id = state.get("run_id") if isinstance(state, Mapping) else None
    steps = state.get("steps") if isinstance(state, Mapping) else None
    if (
        not isinstance(run_id, str)
        or not isinstance(steps, Mapping)
        or not all(isinstance(c, str) and type(s) is int for c, s in steps.items())
    ):
        raise RecordError(
            f"expected the state of a PlattliLogger (run_id, directory, step, steps), got {state!r:.200}"
        )
    return run_id, dict(steps)
