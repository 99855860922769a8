"""Confusion matrices as pictures, decoded by another library."""

from __future__ import annotations

import io
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapters.backends._font import draw
from adapters.backends._picture import Picture, confusion_picture, encode_png
from tests.lazy import Lazy

Image = Lazy("PIL.Image")
PRINTABLE = string.digits + string.ascii_letters + string.punctuation


def decode(picture: Picture) -> np.ndarray:
    """Return [height, width, 3] pixels; the checksums are verified on the way."""
    image = Image.open(io.BytesIO(picture.png))
    image.load()
    assert image.mode == "RGB"
    return np.asarray(image)


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))))
def test_png_keeps_every_pixel(pixels: np.ndarray) -> None:
    """Any picture comes back as it was, with its size."""
    picture = encode_png(pixels)
    assert (picture.height, picture.width) == pixels.shape[:2]
    np.testing.assert_array_equal(decode(picture), pixels)


def test_every_printable_character_has_a_shape_of_its_own() -> None:
    """No two look the same, none is empty, none is the box for the unknown."""
    shapes = {draw(character).tobytes() for character in PRINTABLE}
    assert len(shapes) == len(PRINTABLE) == 94
    assert draw(" ").tobytes() not in shapes
    assert draw("日").tobytes() not in shapes
    assert not draw(" ").any()


def test_text_has_its_size_and_loses_accents() -> None:
    """Six dots a character, scaled; an umlaut is drawn as its letter."""
    assert draw("ab", 1).shape == (7, 11)
    assert draw("ab", 3).shape == (21, 33)
    assert draw("", 1).shape[0] == 7
    np.testing.assert_array_equal(draw("Ü"), draw("U"))
    np.testing.assert_array_equal(draw("A", 2)[::2, ::2], draw("A"))


def test_shades_follow_the_share_of_the_row() -> None:
    """White is none, dark is all; a rare class shows like a frequent one; rows are true classes."""
    matrix = [[0, 9, 0], [5, 0, 5], [1, 0, 0]]
    pixels = decode(confusion_picture(matrix, ["a", "b", "c"]))
    grid = np.argwhere((pixels == 205).all(axis=2))
    (top, left), (bottom, right) = grid.min(axis=0), grid.max(axis=0)
    cell = (bottom - top) // 3
    assert right - left == bottom - top
    brightness = pixels.astype(int).sum(axis=2)[top + 3 : bottom : cell, left + 3 : right : cell]
    full, half, none = brightness[0, 1], brightness[1, 0], brightness[0, 0]
    assert full < half < none == 3 * 255
    np.testing.assert_array_equal(brightness, [[none, full, none], [half, none, half], [full, none, none]])
    assert (pixels[0] == 255).all()


def test_numbers_and_names_are_in_the_picture() -> None:
    """Two matrices of equal shades differ by their numbers, two of equal numbers by their names."""
    small = confusion_picture([[1, 0], [0, 1]], ["a", "b"])
    large = confusion_picture([[8, 0], [0, 8]], ["a", "b"])
    named = confusion_picture([[1, 0], [0, 1]], ["a", "c"])
    assert small.png != large.png
    assert small.png != named.png


@pytest.mark.parametrize(
    "matrix",
    [[[0]], [[0, 0], [0, 0]], [[1e308, 1e308], [1e-308, 0]], [[-1, 2], [0.25, 0.75]], [[2**70, 1], [1, 1]]],
)
def test_odd_matrices_are_drawn(matrix: list[list[float]]) -> None:
    """Empty rows, huge and negative numbers, rates."""
    labels = ["x" * 100, "\n", "日本"][: len(matrix)]
    assert decode(confusion_picture(matrix, labels)).min() < 255


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 300))
def test_the_size_is_bounded(classes: int) -> None:
    """However many classes, the picture fits a screen, and small ones are not stretched."""
    picture = confusion_picture(np.eye(classes).tolist(), [f"class {i}" for i in range(classes)])
    assert decode(picture).shape == (picture.height, picture.width, 3)
    assert max(picture.height, picture.width) < 1900
    if classes <= 4:
        assert max(picture.height, picture.width) < 320
