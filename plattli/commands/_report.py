"""A run as text for people, as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from plattli._format import JSONL
from plattli._fs import describe_owner
from plattli.commands._summary import MetricSummary
from plattli.commands._text import cells, number, pad, plain_value, printable, shorten
from plattli.runinfo import RunInfo

_HEADINGS: Final = ("metric", "dtype", "count", "steps", "last", "min", "max", "")
_RIGHT: Final = (False, False, True, True, True, True, True, False)
_GAP: Final = "  "
#: Names are cut down to this before the table is given up for one paragraph per metric.
_NARROWEST_NAME: Final = 18
#: How much of a JSON value is shown where nobody limits the width.
_WORDS_WIDTH: Final = 60
#: Unix seconds that are a time: from 2001 to 2286.
_TIMES: Final = (1e9, 1e10)


def run_text(
    info: RunInfo, metrics: Sequence[MetricSummary], *, written: str | None, width: int | None
) -> str:
    """Return the run's page.

    Args:
        info: the run.
        metrics: its metrics, in the order to show them.
        written: when it last grew.
        width: columns to fill at most, ``None`` for no limit.
    """
    lines = [f"{printable(info.name)}  {info.status}"]
    facts: dict[str, Sequence[str]] = {
        "id": [info.id or ""],
        "started": [_started(info)],
        "finished": [_time(info.finished)],
        "written": ["" if info.finished else _time(written)],
        "writer": [describe_owner(info.owner)] if info.owner else [],
        "path": [printable(str(info.path))],
        "tags": [_tags(info.tags)],
        "params": _params(info.params),
    }
    for heading, values in facts.items():
        for at, value in enumerate(filter(None, values)):
            line = f"  {heading if at == 0 else '':8}  {value}"
            # a path is there to be copied: it may run over the edge
            lines.append(shorten(line, width) if width and heading != "path" else line)
    lines += ["", *(_metrics(metrics, width) if metrics else ["  no metric to show"])]
    return "\n".join(lines)


def _started(info: RunInfo) -> str:
    start, end = _parsed(info.started), _parsed(info.finished)
    if start is None:
        return _time(info.started)
    if end is None and info.status != "running":
        return _time(info.started)
    seconds = int(((end or datetime.now(UTC)) - start).total_seconds())
    return f"{_time(info.started)}, {'took' if end else 'for'} {_duration(max(seconds, 0))}"


def _parsed(text: str | None) -> datetime | None:
    try:
        when = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _time(text: str | None) -> str:
    # local time, as the user's clock shows it; what is no time is shown as it is
    when = _parsed(text)
    return printable(text or "") if when is None else when.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def _tags(tags: Mapping[str, Any]) -> str:
    # a tag that was logged as a bare word has no value worth showing
    words = {printable(name): value for name, value in tags.items()}
    return ", ".join(
        name if value is None or value is True or value == "" else f"{name}={plain_value(value)}"
        for name, value in words.items()
    )


def _params(params: Mapping[str, Any]) -> list[str]:
    names = [printable(name) for name in params]
    wide = max(map(cells, names), default=0)
    values = map(plain_value, params.values())
    return [f"{pad(name, wide)}  {value}" for name, value in zip(names, values, strict=True)]


def _metrics(metrics: Sequence[MetricSummary], width: int | None) -> Iterator[str]:
    rows = [list(_HEADINGS), *map(_numbers, metrics)]
    widths = [max(cells(row[at]) for row in rows if at < len(row)) for at in range(len(_HEADINGS))]
    excess = sum(widths) + len(_GAP) * len(widths) - width if width else 0
    if excess > 0 and widths[0] - excess < min(_NARROWEST_NAME, widths[0]):
        for metric in metrics:
            yield from _paragraph(metric, width or 0)
        return
    widths[0] -= max(excess, 0)
    for row, words in zip(rows, ["", *map(_words, metrics)], strict=True):
        row[0] = shorten(row[0], widths[0], middle=True)
        columns = zip(row, widths, _RIGHT, strict=False)
        line = _GAP + _GAP.join(pad(text, wide, right=right) for text, wide, right in columns)
        # words run over the columns of numbers that their metric has none for
        room = width - cells(line) - len(_GAP) if width else _WORDS_WIDTH
        yield (line + _GAP + shorten(words, max(room, 1)) if words else line).rstrip()


def _paragraph(metric: MetricSummary, width: int) -> Iterator[str]:
    # for terminals that are too narrow for the table
    yield from textwrap.wrap(printable(metric.name), width, initial_indent=_GAP, subsequent_indent=_GAP)
    _, dtype, *numbers = _numbers(metric)
    labels = ("", "rows ", "steps ", "last ", "min ", "max ", "")
    facts = [label + text for label, text in zip(labels, (dtype, *numbers), strict=False) if text]
    glued = ", ".join(fact.replace(" ", "\0") for fact in facts)  # a label and its number share a line
    for line in textwrap.wrap(glued, width, initial_indent=2 * _GAP, subsequent_indent=2 * _GAP):
        yield line.replace("\0", " ")
    if words := _words(metric):
        yield shorten(2 * _GAP + words, width)


def _numbers(metric: MetricSummary) -> list[str]:
    # as many of the columns as the metric fills
    row = [printable(metric.name), metric.dtype]
    if metric.problem:
        return row
    first, last = metric.first_step, metric.last_step
    row += [str(metric.count), "" if first is None else str(first) if first == last else f"{first}..{last}"]
    if not metric.count or _is_words(metric):
        return row
    row += ["" if value is None else number(value) for value in (metric.last, metric.min, metric.max)]
    return [*row, f"nan: {metric.nan}" if metric.nan else ""]


def _words(metric: MetricSummary) -> str:
    if metric.problem:
        return f"cannot be read: {printable(metric.problem)}"
    if not metric.count or not _is_words(metric):
        return ""
    if _is_time(metric):
        return _time(datetime.fromtimestamp(metric.last, UTC).isoformat())
    return plain_value(metric.last)


def _is_words(metric: MetricSummary) -> bool:
    # a hot metric has no dtype yet: its value says what it is
    return metric.dtype == JSONL or type(metric.last) not in (int, float) or _is_time(metric)


def _is_time(metric: MetricSummary) -> bool:
    # Unix seconds, as loggers put them beside each line: a clock says more than their last, min and max
    is_walltime = metric.name.rpartition("/")[2] == "walltime" and type(metric.last) in (int, float)
    return is_walltime and _TIMES[0] <= metric.last < _TIMES[1]
