"""A metrics group, live or closed, as verb calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from adapters.backends.metrics_group import NO_STEP, MetricsGroup, Series, open_group
from loggers.contract import STATUSES
from loggers.errors import MetricValueError
from loggers.verbs import finish as finish_run
from loggers.verbs import verb_of

#: Steps whose lines are in memory at once.
_WINDOW: Final = 2000


class Call(NamedTuple):
    """One verb call to make."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def replay_group(
    path: str | os.PathLike[str],
    logger: Any,
    *,
    context: str = "train",
    finish: bool = True,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Make the verb calls of a metrics group again on ``logger``.

    Params and tags, then the lines by step, each with its context, epoch and original ``walltime``, values of
    ``log_other`` and confusion matrices between them; last ``finish``, if the run has ended.

    Args:
        path: the group's folder.
        logger: anything with the ten verbs.
        context: of keys without a slash.
        finish: finish the logger if the run has ended.
        progress: called now and then with the number of calls made so far.

    Returns:
        How many calls were made.

    Raises:
        NoGroupError: there is no group.
        CorruptGroupError: it is damaged.
        Exception: whatever a verb raises, other than about single values.
    """
    group = open_group(path)
    status = group.run().status
    made = 0
    for call in calls(group, context):
        # a value that this logger cannot take: its siblings are written, and the group itself holds it
        with contextlib.suppress(MetricValueError):
            verb_of(logger, call.verb)(*call.args, **call.kwargs)
        made += 1
        if progress is not None and made % _WINDOW == 0:
            progress(made)
    if finish and status in STATUSES:
        finish_run(logger, status)
    if progress is not None:
        progress(made)
    return made


def calls(group: MetricsGroup, context: str = "train") -> Iterator[Call]:
    """Yield the verb calls of a group, without ``finish``.

    A point without a step gets one: they follow the largest step of their series, from 0 on if there is none.
    """
    events = group.events()
    for event in events:
        if event.get("type") in ("params", "tags") and isinstance(event.get("value"), dict):
            yield Call(f"log_{event['type']}", (event["value"],), {})
    run = group.run()
    columns = [_Column(group[key].by_step(), *_split(key, run.contexts, context)) for key in group.names()]
    notes: dict[int | None, list[Call]] = {}
    for event in events:
        if (call := _note(event)) is not None:
            notes.setdefault(event.get("step"), []).append(call)
    yield from notes.pop(None, [])
    noted = np.array(sorted(step for step in notes if step is not None), np.int64)
    steps = np.unique(np.concatenate([noted, *(column.steps for column in columns)]))
    for at in range(0, len(steps), _WINDOW):
        low, high = int(steps[at]), int(steps[at : at + _WINDOW][-1])
        found = _lines(columns, low, high)
        for step in noted[np.searchsorted(noted, low) : np.searchsorted(noted, high, "right")].tolist():
            found += [(step, np.inf, call) for call in notes[step]]
        # what was logged together is one line, and lines come by step and then as they were logged
        yield from (call for *_, call in sorted(found, key=lambda item: item[:2]))


class _Column:
    """A series by its steps, which every point has."""

    def __init__(self, series: Series, context: str, metric: str) -> None:
        self.context, self.metric = context, metric
        self.values = series.values
        self.seconds = np.nan_to_num(series.seconds(), nan=np.inf)
        steps = np.full(len(series), NO_STEP) if series.steps is None else series.steps
        without = steps == NO_STEP  # these come first
        count = int(without.sum())
        first = max(int(steps[-1]), -1) + 1
        order = np.roll(np.arange(len(steps)), -count)
        self.steps = np.where(without, first + np.arange(len(steps)), steps)[order]
        self.values, self.seconds = self.values[order], self.seconds[order]

    def between(self, low: int, high: int) -> Iterator[tuple[int, float, float]]:
        """Yield (step, value, Unix seconds) of the points of some steps."""
        rows = slice(np.searchsorted(self.steps, low), np.searchsorted(self.steps, high, "right"))
        return zip(self.steps[rows].tolist(), self.values[rows].tolist(), self.seconds[rows].tolist(), strict=True)


def _lines(columns: list[_Column], low: int, high: int) -> list[tuple[int, float, Call]]:
    """Return step, time and call of the lines of some steps."""
    lines: dict[tuple[int, float, str], dict[str, float]] = {}
    for column in columns:
        for step, value, seconds in column.between(low, high):
            lines.setdefault((step, seconds, column.context), {})[column.metric] = value
    return [(step, seconds, _line(step, seconds, context, row)) for (step, seconds, context), row in lines.items()]


def _line(step: int, seconds: float, context: str, row: dict[str, float]) -> Call:
    axes: dict[str, Any] = {"step": step, "context": context}
    if seconds != np.inf:  # there is a time
        axes["walltime"] = seconds
    epoch = row.get("epoch")
    if epoch is not None and epoch >= 0 and epoch == epoch // 1 and epoch < 2**63:
        axes["epoch"] = int(row.pop("epoch"))
    return Call("log_metrics", (row,), axes)


def _note(event: dict[str, Any]) -> Call | None:
    """Return the call of an event that is neither a point nor about the run as a whole."""
    key, value, step = event.get("key"), event.get("value"), event.get("step")
    if not isinstance(key, str):
        return None
    if event.get("type") == "other":
        return Call("log_other", (key, value), {})
    if event.get("type") == "confusion" and isinstance(value, dict) and {"matrix", "labels"} <= value.keys():
        context = (event.get("tags") or {}).get("context")
        name = key if context is None else key.removeprefix(f"{context}/")
        place = {"step": step, "epoch": value.get("epoch"), "context": context, "name": name}
        return Call("log_confusion", (value["matrix"], value["labels"]), place)
    return None


def _split(key: str, contexts: set[str], context: str) -> tuple[str, str]:
    """Return the context and the metric of a key."""
    for known in sorted(contexts, key=len, reverse=True):
        if key.startswith(f"{known}/"):
            return known, key[len(known) + 1 :]
    before, _, after = key.partition("/")
    return (before, after) if before and after else (context, key)
