"""A confusion matrix as a picture: PNG, made with NumPy and zlib only."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adapters.backends._font import ADVANCE, HEIGHT, draw

#: A matrix is drawn at most about so many pixels wide, which is as much as a screen shows.
_WIDEST: Final = 1600
_LONGEST_LABEL: Final = 16
_MARGIN: Final = 8
_INK: Final = np.array((30, 30, 30), np.uint8)
_PAPER: Final = np.array((255, 255, 255), np.uint8)
_FULL: Final = np.array((8, 64, 129), np.float64)  # the colour of a rate of 1
_LINE: Final = np.array((205, 205, 205), np.uint8)


class Picture(NamedTuple):
    """An encoded picture. ``height`` and ``width`` are in pixels."""

    png: bytes
    height: int
    width: int


def confusion_picture(matrix: Sequence[Sequence[float]], labels: Sequence[str]) -> Picture:
    """Draw a confusion matrix as a heat map on white.

    Each cell is shaded by its share of its row, so that rare classes show as well as frequent ones,
    and has its number in it. With many classes the numbers go first, then the labels.

    Args:
        matrix: [K, K] finite numbers; rows are true classes, columns predicted ones.
        labels: [K] class names; long ones are shortened.

    Returns:
        The picture, about 1600 pixels wide at most.
    """
    return encode_png(_paint(np.array(matrix, np.float64), matrix, [_shorten(label) for label in labels]))


def encode_png(pixels: NDArray[np.uint8]) -> Picture:
    """Encode [height, width, channels] as PNG: 1 channel is grey, 3 are RGB, 4 are RGB and opacity."""
    height, width, channels = pixels.shape
    # every line begins with its filter: 0, none
    lines = np.concatenate((np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)), axis=1)
    kind = {1: 0, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)  # 8 bits a channel, not interlaced
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))
    return Picture(png, height, width)


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, data = chunk
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _shorten(label: str) -> str:
    label = " ".join(label.split())
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 2] + ".."


def _number(value: float) -> str:
    if isinstance(value, int) or value == int(value):
        return str(int(value)) if abs(value) < 1e6 else f"{value:.1e}"
    return f"{value:.2f}" if 0.01 <= abs(value) < 1000 else f"{value:.1e}"


def _shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes = np.abs(counts)
    largest = sizes.max(axis=1, keepdims=True)
    # divide by the largest first: a row of huge counts must not sum to infinity
    sizes = np.divide(sizes, largest, out=np.zeros_like(sizes), where=largest > 0)
    total = sizes.sum(axis=1, keepdims=True)
    shares: NDArray[np.float64] = np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0)
    return shares


def _paint(
    counts: NDArray[np.float64], matrix: Sequence[Sequence[float]], labels: Sequence[str]
) -> NDArray[np.uint8]:
    classes = len(labels)
    scale = 2 if classes <= 16 else 1
    cell = max(_WIDEST // classes, 1)
    # one digit and its margin are what a number needs at the least
    numbers = [[_number(value) for value in row] for row in matrix] if cell >= scale * HEIGHT + 10 else []
    longest = max((len(number) for row in numbers for number in row), default=0)
    wanted = scale * max(ADVANCE * longest, HEIGHT) + 10
    if wanted <= cell:
        cell = wanted
    else:
        numbers = []
    with_labels = cell >= scale * HEIGHT + 1
    label_room = scale * ADVANCE * max(map(len, labels)) + _MARGIN if with_labels else 0
    title_room = scale * HEIGHT + _MARGIN

    # columns are predicted: their names stand upright above; rows are true: their names lie to the left
    top = left = _MARGIN + title_room + label_room
    size = classes * cell
    # a small matrix must still have room for the words "predicted" and "true"
    extent = max(size, scale * ADVANCE * len("predicted"))
    canvas = np.full((top + extent + _MARGIN, left + extent + _MARGIN, 3), _PAPER, np.uint8)

    shades = np.sqrt(_shares(counts))  # the root, or a confusion of a few percent would be white
    colours = (_PAPER + shades[..., None] * (_FULL - _PAPER)).round().astype(np.uint8)
    canvas[top : top + size, left : left + size] = colours.repeat(cell, axis=0).repeat(cell, axis=1)
    if cell >= 6:
        edges = np.arange(classes + 1) * cell
        canvas[top + edges, left : left + size + 1] = _LINE
        canvas[top : top + size + 1, left + edges] = _LINE

    _stamp(canvas, draw("predicted", scale), _MARGIN + title_room // 2, left + extent // 2)
    _stamp(canvas, np.rot90(draw("true", scale)), top + extent // 2, _MARGIN + title_room // 2)
    for place in range(classes):
        middle = place * cell + cell // 2
        if with_labels:
            name = draw(labels[place], scale)
            _stamp(canvas, name, top + middle, left - _MARGIN // 2 - name.shape[1] // 2 - 1)
            _stamp(canvas, np.rot90(name), top - _MARGIN // 2 - name.shape[1] // 2 - 1, left + middle)
        for column, number in enumerate(numbers[place] if numbers else ()):
            ink = _PAPER if shades[place, column] > 0.6 else _INK
            _stamp(canvas, draw(number, scale), top + middle, left + column * cell + cell // 2, ink)
    return canvas


def _stamp(
    canvas: NDArray[np.uint8], bitmap: NDArray[np.bool_], row: int, column: int, ink: NDArray[np.uint8] = _INK
) -> None:
    """Put ``bitmap`` on ``canvas``, centred on a pixel."""
    height, width = bitmap.shape
    top, left = max(row - height // 2, 0), max(column - width // 2, 0)
    room = canvas[top : top + height, left : left + width]
    room[bitmap[: room.shape[0], : room.shape[1]]] = ink
