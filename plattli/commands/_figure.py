"""Lines drawn into a picture file, with matplotlib."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from plattli._format import TMP_SUFFIX
from plattli.commands._series import Series, box_of, thin

#: What ``-o`` can write: suffix -> what matplotlib calls it.
FORMATS: Final = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
_DPI: Final = 150
#: Lines of so few points show each of them.
_FEW: Final = 40


def save(
    series: Sequence[Series], path: Path, *, width: int, height: int, log_y: bool, title: str
) -> None:
    """Draw the lines over their steps and write the picture to ``path``, atomically.

    Args:
        series: the lines.
        path: the file; its suffix, one of :data:`FORMATS`, says what it becomes.
        width, height: in pixels.
        log_y: whether the value axis is logarithmic.
        title: the headline.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra that brings it.
        OSError: the file cannot be written.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no directory {path.parent}")
    size = (width / _DPI, height / _DPI)
    figure = _matplotlib("figure").Figure(figsize=size, dpi=_DPI, layout="constrained")
    _matplotlib("backends.backend_agg").FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, series, width, log_y=log_y)
    if log_y:
        axes.set_yscale("log")
    ticker = _matplotlib("ticker")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("step")
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # names are text: a dollar sign in one starts no formula
    axes.set_title(title, loc="left", fontsize="medium", parse_math=False)
    temporary = path.with_name(path.name + TMP_SUFFIX)
    figure.savefig(temporary, format=FORMATS[path.suffix.lower()])
    os.replace(temporary, path)


def _draw(axes: Any, series: Sequence[Series], width: int, *, log_y: bool) -> None:
    box = box_of(series, log_y=log_y)
    if box is None:
        return
    handles = []
    for line in series:
        steps, values = thin(line, box, width)
        marker = "o" if len(steps) <= _FEW else ""
        (drawn,) = axes.plot(steps, values, linewidth=1.4, marker=marker, markersize=3.5)
        handles.append(drawn)
        if len(steps) > _FEW:
            # a point between two gaps has no line to be part of
            finite = np.concatenate([[False], np.isfinite(values), [False]])
            alone = (finite[1:-1] & ~finite[:-2] & ~finite[2:]).nonzero()
            axes.plot(steps[alone], values[alone], ".", color=drawn.get_color(), markersize=4)
    # set afterwards: as arguments, labels with a leading underscore would be left out
    legend = axes.legend(handles, map(str, range(len(series))), frameon=False)
    for text, line in zip(legend.get_texts(), series, strict=True):
        text.set_parse_math(False)
        text.set_text(f"{line.label} ({line.note})" if line.note else line.label)


def _matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ModuleNotFoundError as missing:
        # a broken import inside an installed package is its own story
        if (missing.name or "").split(".")[0] != "matplotlib":
            raise
        raise ImportError(
            "drawing into a file needs the package 'matplotlib', which is not installed: "
            "pip install 'plattli-loggers[plot]'"
        ) from None
