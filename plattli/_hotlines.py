"""A hot log that is big, read for one metric: its lines as they are, and of each only the value that is wanted.

Parsing a row of thousands of metrics for one of them takes a hundred times as long as finding its name. Names are
found only where there can be no doubt; a line with a doubt is parsed. What nobody asks for is not judged: a line
that begins and ends as a row does may be broken in between, or hold a name that the format forbids, and that is
seen by whoever reads the broken part or all names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from plattli import _jsonlines
from plattli._format import MAX_STEP

#: A row as writers write it; other lines are for the full parser to judge.
_BEGINNING: Final = re.compile(rb'\{"step":(0|[1-9][0-9]{0,18})[,}]')
#: What may stand behind a string: if a name begins so, its opening quote may be another string's closing one.
_BEHIND_STRING: Final = (" ", "\t", "\n", "\r", ",", ":", "}", "]")


class _Line(NamedTuple):
    """A line, without a copy of it."""

    text: bytes
    start: int
    end: int


class HotLines:
    """The lines of the hot logs, one for each step."""

    def __init__(self, lines: dict[int, _Line], parse: Callable[[bytes, int], dict[str, Any]]) -> None:
        """Take over the lines: see :meth:`of`.

        Args:
            lines: step -> line; of two for one step, the later one in the place of the earlier one.
            parse: returns the values of a whole line, given its step, and raises what is to be raised if it is no row.
        """
        self._lines = lines
        self._parse = parse
        self._rows: dict[int, dict[str, Any]] = {}  # what had to be parsed

    @classmethod
    def of(cls, texts: list[bytes], parse: Callable[[bytes, int], dict[str, Any]]) -> HotLines | None:
        """Split logs into lines; ``None`` if one of these does not begin and end as a row does.

        A last line of a log that is no JSON is not there yet.
        """
        lines: dict[int, _Line] = {}
        for text in texts:
            if b"\r" in text:
                return None
            start = 0
            while start < len(text):
                end = text.find(b"\n", start)
                end = len(text) if end < 0 else end
                if end + 1 >= len(text) and not _jsonlines.is_valid(text[start:end]):
                    break
                match = _BEGINNING.match(text, start, end)
                if match is None or not text.endswith(b"}", start, end) or (step := int(match[1])) > MAX_STEP:
                    return None
                lines[step] = _Line(text, start, end)
                start = end + 1
        return cls(lines, parse)

    def column(self, name: str) -> tuple[list[int], list[Any]]:
        """Return the steps and values of one metric, in the order in which steps were first logged."""
        quoted = _quoted(name)
        steps: list[int] = []
        values: list[Any] = []
        for step, line in self._lines.items():
            found = _find(quoted, line) if quoted is not None and step not in self._rows else None
            if found is None:
                if step not in self._rows:
                    self._rows[step] = self._parse(line.text[line.start : line.end], step)
                row = self._rows[step]
                found = [row[name]] if name in row else []
            if found:
                steps.append(step)
                values += found
        return steps, values


def _quoted(name: str) -> bytes | None:
    """Return how lines without escapes spell a name, ``None`` if that may be taken for something else."""
    if name.startswith(_BEHIND_STRING) or '"' in name:
        return None
    try:
        return f'"{name}"'.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can spell
        return None


def _find(quoted: bytes, line: _Line) -> list[Any] | None:
    """Return the value of a name in a line, in a list, which is empty if there is none; ``None`` to parse the line."""
    text, start, stop = line
    if text.find(b"\\", start, stop) >= 0:
        return None
    # without escapes, a quote begins or ends a string, and a name is spelled as it is
    at = text.find(quoted, start, stop)
    if at < 0:
        return []
    behind = at + len(quoted)
    if not (text.startswith(b",", at - 1) and text.startswith(b":", behind)):
        return None
    if text.find(quoted, behind, stop) >= 0 or text.count(b"{", start, stop) != 1:
        return None
    begin = behind + 1
    if text.startswith(b'"', begin):
        end = text.find(b'"', begin + 1, stop) + 1
        if text[end : end + 1] not in (b",", b"}"):
            return None
    else:
        end = text.find(b",", begin, stop)
        end = stop - 1 if end < 0 else end
    try:
        return [json.loads(text[begin:end])]
    except ValueError:  # part of a list, or the line is broken
        return None
