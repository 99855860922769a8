"""What a run holds, as somebody finds it who has never seen the logger that wrote it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stored:
    """A run as its backend's own reader shows it. One without any calls is ``Stored()``.

    Attributes:
        metrics: ``<context>/<name>`` -> (step, value) of each point, in the order in which readers see
            them. With an epoch there may be ``<context>/epoch``; what else a logger adds to each
            context, ``walltime`` and ``step``, may be there or not.
        params: the hyperparameters, newest values.
        tags: name -> value, ``True`` for a tag that is only a name.
        other: key -> the newest value of ``log_other``.
        confusions: ``<context>/<name>``, or ``<name>`` without a context -> (step, labels, matrix) of
            each confusion matrix.
        status: how the run ended, in the backend's words.
    """

    metrics: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    confusions: dict[str, list[tuple[int, list[str], list[list[float]]]]] = field(default_factory=dict)
    status: str | None = None
