"""Lines drawn with characters: braille dots where the terminal has them, plain ASCII elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plattli.commands._series import Box, Series, box_of, thin
from plattli.commands._text import cells, number, pad, printable
from plattli.commands._ticks import labels, log_ticks, ticks

#: Bit of each dot of a braille character, [4 rows, 2 columns].
_DOTS: Final = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BRAILLE: Final = 0x2800
#: ANSI colours, in an order in which neighbours differ for most eyes: cyan, yellow, magenta, …
_COLOURS: Final = (36, 33, 35, 32, 34, 31)
#: What stands in the legend in the colour of the line, by whether there is Unicode.
_COLOURED_MARK: Final = {True: "━━", False: "--"}
_NARROWEST: Final = 16
_LOWEST: Final = 4


class Look(NamedTuple):
    """What the terminal can do: characters beyond ASCII, and colours."""

    unicode: bool
    colour: bool


class _Style(NamedTuple):
    marks: str  # one per line, over and over
    left: str  # the axes: without and with a tick
    left_tick: str
    corner: str
    bottom: str
    bottom_tick: str


_UNICODE: Final = _Style("•×+○▪△◇", "│", "┤", "└", "─", "┬")
_ASCII: Final = _Style("*x+o#@%", "|", "+", "+", "-", "+")
#: Everything that a terminal must be able to show for the better look.
UNICODE_CHARS: Final = "".join(_UNICODE) + chr(_BRAILLE) + chr(_BRAILLE + 0xFF)


def chart(series: Sequence[Series], *, width: int, height: int, log_y: bool, look: Look) -> str:
    """Return the lines over their steps as text, with axes and a legend.

    Args:
        series: the lines.
        width: columns of the whole picture.
        height: rows of the picture without its legend.
        log_y: whether the value axis is logarithmic; all finite values are above 0 then.
        look: what the terminal can do.
    """
    style = _UNICODE if look.unicode else _ASCII
    legend = _legend(series, style, look)
    box = box_of(series, log_y=log_y)
    if box is None:
        return "\n".join(legend)
    rows = max(height - 2, _LOWEST)
    y_ticks, y_labels, margin = _y_axis(box, rows, log_y)
    columns = max(width - margin - 2, _NARROWEST)
    if look.unicode and (look.colour or len(series) == 1):
        drawn = _braille(series, box, columns, rows, log_y, look.colour)
    else:
        drawn = _marked(series, box, columns, rows, log_y, style.marks)
    at_row = dict(zip(_rows_of(np.array(y_ticks), box, rows, log_y).tolist(), y_labels, strict=True))
    picture = [
        f"{at_row.get(row, ''):>{margin}} {style.left_tick if row in at_row else style.left}{line}"
        for row, line in enumerate(drawn)
    ]
    return "\n".join([*picture, *_x_axis(box, columns, margin, style), *legend])


def _legend(series: Sequence[Series], style: _Style, look: Look) -> list[str]:
    names = [printable(line.label) for line in series]
    wide = max(map(cells, names), default=0)
    lines = []
    for at, (name, line) in enumerate(zip(names, series, strict=True)):
        mark = _COLOURED_MARK[look.unicode] if look.colour else style.marks[at % len(style.marks)]
        mark = f"{_coloured(mark, at) if look.colour else mark} " if look.colour or len(series) > 1 else ""
        lines.append(f"{mark}{pad(name, wide)}  {_facts(line)}")
    return lines


def _facts(line: Series) -> str:
    facts = ["1 point" if len(line.steps) == 1 else f"{len(line.steps)} points"]
    finite = np.flatnonzero(np.isfinite(line.values))
    if len(finite):
        facts.append(f"last {number(float(line.values[finite[-1]]))} at step {line.steps[finite[-1]]:.0f}")
    return ", ".join([*facts, *filter(None, [line.note])])


def _coloured(text: str, at: int) -> str:
    return f"\x1b[{_COLOURS[at % len(_COLOURS)]}m{text}\x1b[0m"


# ---- axes -----------------------------------------------------------------------------------------


def _y_axis(box: Box, rows: int, log_y: bool) -> tuple[list[float], list[str], int]:
    make = log_ticks if log_y else ticks
    numbers = make(box.low, box.high, max(3, rows * 2 // 5))
    texts = labels(numbers)
    return numbers, texts, max(map(len, texts), default=0)


def _x_axis(box: Box, columns: int, margin: int, style: _Style) -> list[str]:
    widest = len(f"{box.right:.0f}")
    numbers = ticks(box.left, box.right, max(3, columns // (widest + 4)), whole=True)
    line, words = [style.bottom] * columns, [" "] * (columns + margin + 2)
    used = 0  # up to where there are words already
    for value, text in zip(numbers, labels(numbers), strict=True):
        at = _column_of(value, box, columns)
        line[at] = style.bottom_tick
        begin = min(max(margin + 2 + at - len(text) // 2, used), len(words) - len(text))
        if begin >= used:
            words[begin : begin + len(text)] = text
            used = begin + len(text) + 1
    if used + len("step") <= len(words):
        words[-len("step") :] = "step"
    return [" " * margin + " " + style.corner + "".join(line), "".join(words).rstrip()]


def _column_of(step: float, box: Box, columns: int) -> int:
    return min(int((step - box.left) / (box.right - box.left) * columns), columns - 1)


def _rows_of(values: NDArray[Any], box: Box, rows: int, log_y: bool) -> NDArray[np.int64]:
    # row 0 is on top
    low, high = box.low, box.high
    if log_y:
        values, low, high = np.log10(values), math.log10(low), math.log10(high)
    return rows - 1 - ((values - low) / (high - low) * rows).astype(np.int64).clip(0, rows - 1)


# ---- lines ----------------------------------------------------------------------------------------


def _raster(line: Series, box: Box, columns: int, rows: int, log_y: bool) -> NDArray[np.bool_]:
    """Return which of [rows, columns] pixels the line covers."""
    pixels = np.zeros((rows, columns), np.bool_)
    steps, values = thin(line, box, columns)
    finite = np.isfinite(values)
    x = ((steps - box.left) / (box.right - box.left) * columns).astype(np.int64).clip(0, columns - 1)
    y = np.zeros_like(x)
    y[finite] = _rows_of(values[finite], box, rows, log_y)
    pixels[y[finite], x[finite]] = True
    for at in np.flatnonzero(finite[:-1] & finite[1:]):
        count = max(abs(x[at + 1] - x[at]), abs(y[at + 1] - y[at])) + 1
        across = np.linspace(x[at], x[at + 1], count).round().astype(np.int64)
        down = np.linspace(y[at], y[at + 1], count).round().astype(np.int64)
        pixels[down, across] = True
    return pixels


def _braille(
    series: Sequence[Series], box: Box, columns: int, rows: int, log_y: bool, colour: bool
) -> list[str]:
    """Return rows of characters of 4 x 2 dots, each in the colour of the line with most dots in it."""
    dots = [_raster(line, box, 2 * columns, 4 * rows, log_y).reshape(rows, 4, columns, 2) for line in series]
    codes = (np.logical_or.reduce(dots) * _DOTS[:, None, :]).sum(axis=(1, 3))
    most = np.argmax([line.sum(axis=(1, 3)) for line in dots], axis=0)
    most[codes == 0] = -1
    drawn = []
    for code_row, most_row in zip(codes.tolist(), most.tolist(), strict=True):
        text = ""
        for at, run in groupby(zip(most_row, code_row, strict=True), key=lambda cell: cell[0]):
            piece = "".join(chr(_BRAILLE + code) if code else " " for _, code in run)
            text += _coloured(piece, at) if colour and at >= 0 else piece
        drawn.append(text.rstrip())
    return drawn


def _marked(
    series: Sequence[Series], box: Box, columns: int, rows: int, log_y: bool, marks: str
) -> list[str]:
    """Return rows of characters, each the mark of the first line that passes through it."""
    drawn = np.full((rows, columns), " ")
    for at, line in reversed(list(enumerate(series))):
        drawn[_raster(line, box, columns, rows, log_y)] = marks[at % len(marks)]
    return ["".join(row).rstrip() for row in drawn.tolist()]
