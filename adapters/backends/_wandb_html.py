"""Confusion matrices and long texts as HTML that needs nothing from the network to be looked at."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Final

from adapters.backends._picture import confusion_picture

#: Up to here a matrix is a table of numbers; a bigger one is a picture and a list of its worst cells.
MOST_CLASSES: Final = 60
_WORST: Final = 50
_STYLE: Final = (
    "<style>body{font:13px sans-serif}table{border-collapse:collapse}td{text-align:right;padding:2px 6px}"
    "th{font-weight:normal;color:#555;text-align:right;padding:2px 6px}"
    "img{max-width:100%}</style>"
)


def text_page(text: str) -> str:
    """Return ``text`` as a page that shows it as it is."""
    return f"<!doctype html><meta charset=utf-8><pre>{html.escape(text)}</pre>"


def confusion_page(matrix: Sequence[Sequence[float]], labels: Sequence[str], title: str) -> str:
    """Return a page with the matrix as a coloured picture and as numbers.

    Args:
        matrix: [K, K] counts or rates, rows true, columns predicted. A cell's colour is its share of
            its row.
        labels: [K] class names.
        title: what to write above it.
    """
    body = _table(matrix, labels) if len(labels) <= MOST_CLASSES else _picture(matrix, labels)
    return (
        f"<!doctype html><meta charset=utf-8>{_STYLE}"
        f"<h3>{html.escape(title)}</h3><p>rows: true class, columns: predicted class</p>{body}"
    )


def _shares(row: Sequence[float]) -> list[float]:
    total = sum(row)
    return [min(max(cell / total, 0.0), 1.0) if total > 0 else 0.0 for cell in row]


def _number(cell: float) -> str:
    return str(cell) if isinstance(cell, int) else f"{cell:.4g}"


def _table(matrix: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    names = [html.escape(label) for label in labels]
    lines = [f"<tr><th></th>{''.join(f'<th>{name}</th>' for name in names)}</tr>"]
    for name, row in zip(names, matrix, strict=True):
        cells = (
            f'<td style="background:rgba(30,100,200,{share:.2f})">{_number(cell)}</td>'
            for cell, share in zip(row, _shares(row), strict=True)
        )
        lines.append(f"<tr><th>{name}</th>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _picture(matrix: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    picture = base64.b64encode(confusion_picture(matrix, labels).png).decode()
    wrong = sorted(
        ((cell, i, j) for i, row in enumerate(matrix) for j, cell in enumerate(row) if i != j and cell > 0),
        key=lambda item: -item[0],
    )
    lines = "".join(
        f"<tr><td>{html.escape(labels[i])}</td><td>{html.escape(labels[j])}</td><td>{_number(cell)}</td></tr>"
        for cell, i, j in wrong[:_WORST]
    )
    return (
        f'<img src="data:image/png;base64,{picture}"><p>most confused</p>'
        f"<table><tr><th>true</th><th>predicted</th><th>count</th></tr>{lines}</table>"
    )
