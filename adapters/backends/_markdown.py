"""Params, tags, values and matrices as the markdown that TensorBoard's Text tab renders."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: A table of more classes than this is no longer read, only scrolled.
_MOST_CLASSES: Final = 50
_MOST_MISTAKES: Final = 50


def code(value: Any) -> str:
    """Return ``value`` as a code span, in which markdown has no meaning and ``|`` ends no table cell."""
    plain = isinstance(value, str) and value and value.isprintable()
    text = value if plain else json.dumps(value, ensure_ascii=False)
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def params_table(params: Mapping[str, Any]) -> str:
    """Return a table of one row per param."""
    rows = [f"| {code(name)} | {code(value)} |" for name, value in params.items()]
    return "\n".join(("| param | value |", "| --- | --- |", *rows))


def tags_list(tags: Mapping[str, Any]) -> str:
    """Return a list of tags; those that are ``True`` are only their name."""
    return "\n".join(
        f"- {code(tag)}" if value is True else f"- {code(tag)}: {code(value)}" for tag, value in tags.items()
    )


def free_form(value: Any) -> str:
    """Return JSON data as markdown: text as it is, numbers as they are spelled, the rest as a block."""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list)):
        return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"
    return json.dumps(value)


def confusion_table(
    matrix: Sequence[Sequence[float]], labels: Sequence[str], *, epoch: int | None = None
) -> str:
    """Return a confusion matrix as a table, or the most frequent mistakes if it has many classes.

    Args:
        matrix: [K, K], rows true, columns predicted.
        labels: [K] class names.
        epoch: said above the table.
    """
    if len(labels) <= _MOST_CLASSES:
        lines = [f"| true \\\\ predicted | {' | '.join(map(code, labels))} |"]
        lines.append("| --- |" + " ---: |" * len(labels))
        for label, row in zip(labels, matrix, strict=True):
            lines.append(f"| {code(label)} | {' | '.join(map(_cell, row))} |")
    else:
        lines = ["| true | predicted | count |", "| --- | --- | ---: |"]
        mistakes = [
            (value, labels[true], labels[predicted])
            for true, row in enumerate(matrix)
            for predicted, value in enumerate(row)
            if true != predicted and value
        ]
        for value, label, predicted in heapq.nlargest(_MOST_MISTAKES, mistakes):
            lines.append(f"| {code(label)} | {code(predicted)} | {_cell(value)} |")
    return ("" if epoch is None else f"epoch {epoch}\n\n") + "\n".join(lines)


def _cell(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
