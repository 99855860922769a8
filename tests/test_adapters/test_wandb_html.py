"""Pages for W&B's HTML panels."""

from __future__ import annotations

import base64
import re
import struct

from adapters.backends._wandb_html import MOST_CLASSES, confusion_page, text_page


def test_text_is_shown_as_it_is() -> None:
    """Markup in a text is text."""
    assert "<pre>a &lt;b&gt; &amp; c\n  d</pre>" in text_page("a <b> & c\n  d")


def test_a_cell_s_colour_is_its_share_of_its_row() -> None:
    """Rows are true classes: each is coloured by itself, an empty one not at all."""
    page = confusion_page([[3, 1], [0, 0]], ["a", "<b>"], "at <0>")

    assert re.findall(r"rgba\(30,100,200,([\d.]+)\)\">(\d+)<", page) == [
        ("0.75", "3"),
        ("0.25", "1"),
        ("0.00", "0"),
        ("0.00", "0"),
    ]
    assert page.count("<th>&lt;b&gt;</th>") == 2
    assert "<h3>at &lt;0&gt;</h3>" in page


def test_rates_are_shortened() -> None:
    """Numbers that are no counts have four digits."""
    assert ">0.3333<" in confusion_page([[1 / 3]], ["a"], "t")


def test_many_classes_are_a_picture_and_the_worst_confusions() -> None:
    """A matrix too big for a table is a picture, with the confusions that happen most below it."""
    classes = MOST_CLASSES + 1
    matrix = [[10 if i == j else 0 for j in range(classes)] for i in range(classes)]
    matrix[7][5], matrix[60][0] = 3, 8
    page = confusion_page(matrix, [f"c{i}" for i in range(classes)], "t")
    picture = base64.b64decode(page.partition("data:image/png;base64,")[2].partition('"')[0])
    width, height = struct.unpack(">II", picture[16:24])

    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert width >= classes
    assert height >= classes
    assert re.findall(r"<td>(c\d+)</td><td>(c\d+)</td><td>(\d+)</td>", page) == [
        ("c60", "c0", "8"),
        ("c7", "c5", "3"),
    ]
    assert "http" not in page
