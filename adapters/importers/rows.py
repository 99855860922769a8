"""Rows of a step and values, whose names say what belongs where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from adapters.importers.items import ImportingError, Line, Options, as_epoch, by_context

#: What others call the step, and the time of a row, best first.
STEPS: Final = ("step", "_step", "global_step", "trainer/global_step", "train/global_step", "iteration", "iter")
TIMES: Final = ("walltime", "wall_time", "_timestamp", "timestamp", "time")
#: Unix seconds of 1973 and 5138: a number outside is a duration, or something else.
_UNIX: Final = (1e8, 1e11)


def step_column(names: Iterable[str], options: Options, where: str) -> str:
    """Return what the step is called.

    Raises:
        ImportingError: nothing in the row looks like one, or the user's choice is not in it.
    """
    wanted = STEPS if options.step_column is None else (options.step_column,)
    for name in wanted:
        if name in names:
            return name
    has = ", ".join(map(repr, list(names)[:20])) or "nothing"
    raise ImportingError(
        f"{where} has no step: looked for {', '.join(map(repr, wanted))}; say with --step-column what the step is "
        f"called; it has {has}"
    )


def lines_of(row: dict[str, Any], step: Any, default: str) -> Iterator[Line]:
    """Yield a row's lines: one for each context, with the row's epoch and time, if it has any."""
    epoch = as_epoch(row.get("epoch"))
    if epoch is not None:
        del row["epoch"]
    walltime = None
    for name in TIMES:
        if name in row and (walltime := unix_seconds(row[name])) is not None:
            del row[name]
            break
    for context, metrics in by_context(row, default).items():
        yield Line(step, context, metrics, epoch, walltime)


def unix_seconds(value: Any) -> float | None:
    """Return a time as Unix seconds, ``None`` if it is none: a number of seconds that is one, or ISO 8601."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and _UNIX[0] <= value <= _UNIX[1]:
        return float(value)
    return None
