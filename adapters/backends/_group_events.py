"""The lines of a metrics group's log: events as JSON, and many of them as columns.

::

    {"type":"scalar","key":"train/loss","step":4,"time":"2026-08-04T00:00:02.25+00:00","value":0.31}
    {"type":"scalar","key":"train","step":4,"time":"…","values":{"loss":0.31,"acc":0.5}}     two events
    {"type":"params","key":"params","time":"…","value":{"lr":0.1}}

The format is in ``docs/metrics-group.md``.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from adapters.backends._group_names import check_key
from loggers.errors import LoggerError, MetricNameError, MetricValueError

#: The type of the events that are points of a series.
SCALAR: Final = "scalar"
#: Stands in an array of steps for a point that has none.
NO_STEP: Final = -(2**63)
LAST_STEP: Final = 2**63 - 1
#: How Zarr's own documents spell the numbers that JSON has no way to write.
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBERS: Final = frozenset((int, float))
_BILLION: Final = 10**9
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


class CorruptGroupError(LoggerError, ValueError):
    """A metrics group holds what no writer of one leaves there."""


# --- one event ----------------------------------------------------------------------------------------


class Clock:
    """Writes times as RFC 3339 has them, in UTC, to the nanosecond."""

    def __init__(self) -> None:
        # the last second and its text, as most lines come in the second of the one before; one object, so that
        # threads cannot take it apart
        self._last = 0, "1970-01-01T00:00:00"

    def text(self, seconds: int, nanoseconds: int) -> str:
        """Return a time as text.

        Args:
            seconds: Unix seconds.
            nanoseconds: what there is beyond them, 0 to 999,999,999.

        Raises:
            MetricValueError: outside the years 1 to 9999.
        """
        second, text = self._last
        if seconds != second:
            text = self._to_second(seconds)
        return f"{text}.{nanoseconds:09d}+00:00" if nanoseconds else f"{text}+00:00"

    def _to_second(self, seconds: int) -> str:
        try:
            moment = _EPOCH + datetime.timedelta(seconds=seconds)
        except OverflowError:
            raise MetricValueError(
                f"walltime must be Unix seconds in the years 1 to 9999, got {seconds}: pass time.time()"
            ) from None
        text = moment.isoformat()[:19]
        self._last = seconds, text
        return text

    def now(self) -> str:
        """Return the time that it is."""
        nanoseconds = time.time_ns()
        second, text = self._last
        if nanoseconds // _BILLION != second:
            text = self._to_second(nanoseconds // _BILLION)
        return f"{text}.{nanoseconds % _BILLION:09d}+00:00"

    def of(self, walltime: Any) -> str:
        """Return a time that a caller gave in Unix seconds. It reads back as the same float.

        Raises:
            MetricValueError: it is no such number.
        """
        try:
            number = float(walltime)
            seconds = math.floor(number)
        except (TypeError, ValueError, OverflowError):
            problem = f"walltime must be Unix seconds, got {walltime!r:.60}: pass time.time()"
            raise MetricValueError(problem) from None
        # the difference is exact, the product is not quite
        nanoseconds = round((number - seconds) * 1e9)
        return self.text(seconds + 1, 0) if nanoseconds == _BILLION else self.text(seconds, nanoseconds)


def unix_seconds(text: str) -> float | None:
    """Return an RFC 3339 time in Unix seconds, ``None`` if the text is none."""
    parts = _RFC3339.fullmatch(text)
    if parts is None:
        return None
    date, clock, fraction, zone = parts.groups()
    try:
        moment = datetime.datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone in 'zZ' else zone}")
    except ValueError:  # a 61st minute, a 13th month
        return None
    whole = (moment - _EPOCH) // datetime.timedelta(seconds=1)
    return whole + float(fraction) if fraction else float(whole)


def scalars_line(key: str, values: Mapping[str, float], step: int, time: str) -> bytes:
    """Return the line of the scalars of one call.

    Args:
        key: what the series keys begin with.
        values: what stands behind the slash -> number.
        step: the point's step.
        time: RFC 3339.
    """
    if len(values) == 1:
        ((name, value),) = values.items()
        event: dict[str, Any] = {"type": SCALAR, "key": f"{key}/{name}", "step": step, "time": time, "value": value}
    else:
        event = {"type": SCALAR, "key": key, "step": step, "time": time, "values": values}
    try:
        line = orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a name of a subclass of str
        return scalars_line(key, {str.__str__(name): value for name, value in values.items()}, step, time)
    if b"null" in line:  # which orjson writes for what is not finite; a name may hold the word, too
        spelled = {name: _spelled(value) for name, value in values.items()}
        if spelled != values:
            return scalars_line(key, spelled, step, time)
    return line


def _spelled(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def points_lines(key: str, points: Points) -> bytes:
    """Return the lines of events of one series."""
    lines = []
    for value, step, when in zip(points.values.tolist(), points.steps.tolist(), points.times, strict=True):
        place = {} if step == NO_STEP else {"step": step}
        lines.append(orjson.dumps({"type": SCALAR, "key": key, **place, "time": when, "value": _spelled(value)}))
    return b"\n".join([*lines, b""])


def event_line(kind: str, key: str, value: Any, time: str, **more: Any) -> bytes:
    """Return the line of an event that is no scalar.

    NaN and the infinities inside the value are the bare tokens that Python's ``json`` reads and writes.
    """
    event = {"type": kind, "key": key, **more, "time": time, "value": value}
    return (json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


# --- many events --------------------------------------------------------------------------------------


@dataclass
class Points:
    """Events of one series, as they were logged.

    Attributes:
        values: float64 [n].
        steps: int64 [n]; :data:`NO_STEP` where an event has none.
        times: [n] RFC 3339 strings.
    """

    values: np.ndarray[Any, Any]
    steps: np.ndarray[Any, Any]
    times: list[str]

    def __len__(self) -> int:
        """Return how many events there are."""
        return len(self.times)

    def merged(self) -> Points:
        """Return one point for each step.

        The later of two events with the same step replaces the earlier one, in its place. Events without
        a step stay as they are.
        """
        first, last = replaced(self.steps)
        if len(first) == len(self):
            return self
        return self.take(first, last)

    def take(self, first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> Points:
        """Return the points that :func:`replaced` speaks of."""
        return Points(self.values[last], self.steps[first], [self.times[i] for i in last.tolist()])

    @classmethod
    def joined(cls, parts: list[Points]) -> Points:
        """Return the events of several parts behind each other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([np.empty(0), *(part.values for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.steps for part in parts)]),
            [time for part in parts for time in part.times],
        )


def replaced(steps: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return what is left when later events replace earlier ones with the same step.

    Args:
        steps: int64 [n], in log order; :data:`NO_STEP` is no step, and is never replaced.

    Returns:
        For each point, by its first event: the number of its first event and of its last.
    """
    if np.all(steps[1:] > steps[:-1]) and not np.any(steps[:1] == NO_STEP):
        everything = np.arange(len(steps))
        return everything, everything
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    begins = np.ones(len(steps), bool)
    begins[1:] = (ordered[1:] != ordered[:-1]) | (ordered[1:] == NO_STEP)
    ends = np.ones(len(steps), bool)
    ends[:-1] = begins[1:]
    first, last = order[begins], order[ends]
    by_place = np.argsort(first)
    return first[by_place], last[by_place]


@dataclass
class Batch:
    """Lines of a log, read.

    Attributes:
        lines: how many there were.
        size: their bytes.
        others: the lines that hold something else than points, without their line ends.
    """

    lines: int = 0
    size: int = 0
    others: list[str] = field(default_factory=list)
    _keys: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[str, ...], tuple[list[int], bool]] = field(default_factory=dict)
    _series: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)
    _times: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many points there are."""
        return len(self._series)

    def read(self, data: bytes, where: str, first_line: int) -> None:
        """Add complete lines.

        Args:
            data: the lines.
            where: their file, for messages.
            first_line: the number of the first one, from 0.

        Raises:
            CorruptGroupError: a line is no JSON object. Nothing of ``data`` may be used then.
        """
        for number, line in enumerate(data.split(b"\n")[:-1]):
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                if not line.strip():
                    continue
                event = _read_slowly(line, where, first_line + number)
            if type(event) is not dict:
                raise _corrupt(line, where, first_line + number)
            if event.get("type") != SCALAR or not self._add(event):
                self.others.append(line.decode())
        self.lines += data.count(b"\n")
        self.size += len(data)

    def _add(self, event: dict[str, Any]) -> bool:
        """Add the points of an event. Returns whether that is all that it holds."""
        key, step, time = event.get("key"), event.get("step"), event.get("time")
        if type(key) is not str or type(time) is not str or not time.isascii():
            return False
        if step is None:
            step = NO_STEP
        elif type(step) is not int or not NO_STEP < step <= LAST_STEP:
            return False
        values = event.get("values")
        names: tuple[str, ...] = (key,)
        numbers: list[Any] = [event.get("value")]
        if type(values) is dict and values:
            names, numbers = (key, *values), [*values.values()]
        elif values is not None:
            return False
        series, whole = self._numbers_of(names)
        if not whole or not _NUMBERS.issuperset(map(type, numbers)):
            pairs = [(at, _number(value)) for at, value in zip(series, numbers, strict=True)]
            fit = [(at, number) for at, number in pairs if at >= 0 and number is not None]
            whole = len(fit) == len(pairs)
            series, numbers = [at for at, _ in fit], [number for _, number in fit]
        self._series += series
        self._values += numbers
        self._steps += [step] * len(series)
        self._times += [time] * len(series)
        return whole

    def _numbers_of(self, names: tuple[str, ...]) -> tuple[list[int], bool]:
        """Return the numbers of a line's series, -1 for what can be none, and whether all can be.

        Args:
            names: the line's key alone, or with the names of its values behind it.
        """
        known = self._known.get(names)
        if known is None:
            key, *rest = names
            numbers = [self._number_of(f"{key}/{name}") for name in rest] or [self._number_of(key)]
            known = self._known[names] = numbers, -1 not in numbers
        return known

    def _number_of(self, key: str) -> int:
        try:
            check_key(key)
        except MetricNameError:
            return -1
        return self._keys.setdefault(key, len(self._keys))

    def series(self) -> Iterator[tuple[str, Points]]:
        """Yield the key and the events of each series, by its first event."""
        numbers = np.array(self._series, np.int64)
        values = np.array(self._values, np.float64)
        steps = np.array(self._steps, np.int64)
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(self._keys) + 1))
        for key, low, high in zip(self._keys, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            rows = order[low:high]
            if len(rows):
                times = self._times
                yield key, Points(values[rows], steps[rows], [times[i] for i in rows.tolist()])


def read_event(line: str) -> dict[str, Any]:
    """Return an event that was kept as its line. Integers of any size are exact."""
    event: dict[str, Any] = json.loads(line)
    return event


def _read_slowly(line: bytes, where: str, number: int) -> Any:
    try:
        return json.loads(line.decode(), parse_int=_integer)  # given bytes, it would guess other encodings
    except ValueError:
        raise _corrupt(line, where, number) from None


def _corrupt(line: bytes, where: str, number: int) -> CorruptGroupError:
    return CorruptGroupError(
        f"{where}:{number + 1} is no event, which is a JSON object on a line of its own: {line[:80]!r}; "
        "correct that line, or cut the file before it"
    )


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    return float(value) if type(value) in _NUMBERS else None


def _integer(text: str) -> int | float:
    number = int(text)
    return number if -(2**63) <= number < 2**64 else float(text)
