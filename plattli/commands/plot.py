"""``plattli plot``: metrics over steps, in the terminal or as a picture file."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from plattli._console import can_show, terminal_width, wants_colour
from plattli._format import JSONL, run_name
from plattli.commands import _figure
from plattli.commands._chart import UNICODE_CHARS, Look, chart
from plattli.commands._runs import (
    RUN_HELP,
    UNREADABLE,
    complain,
    matching,
    no_such_metric,
    read_run,
)
from plattli.commands._series import Series, make_series
from plattli.commands._summary import HOT_ONLY
from plattli.commands._text import cells, pad, printable
from plattli.errors import UnknownMetricError
from plattli.reader import Reader

_EXAMPLES: Final = """\
examples:
  plattli plot runs/digits                                   the losses, in the terminal
  plattli plot runs/digits -m 'validate/*' --last 100        some metrics, their newest 100 points
  plattli plot runs/a runs/b -m train/loss --log-y           two runs in one picture
  plattli plot runs/digits -m train/loss -o loss.png         a picture file (needs matplotlib)
  plattli plot runs/digits --list                            what there is to plot

A glob leaves out walltimes unless it says wall, as '*/walltime' does.

Values that are not finite leave a gap, which the legend counts. However long a metric is, its
highest and lowest points stay visible.

exit code: 0 fine, 1 something could not be read or drawn, 2 wrong usage
"""
#: What is drawn if nobody says: these, or else the first few numbers of the run.
_FAVOURITES: Final = ("train/loss", "validate/loss")
_FIRST_FEW: Final = 4
#: Last parts of names that are axes rather than results.
_AXES: Final = ("epoch", "walltime", "step")
#: Where no terminal says how big it is.
_PLAIN_WIDTH: Final = 80
_PLAIN_HEIGHT: Final = 20
_LOWEST: Final = 8
_HIGHEST: Final = 28
_PIXELS: Final = (1200, 675)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli plot``."""
    parser = subparsers.add_parser(
        "plot",
        help="draw metrics over steps, in the terminal or as PNG, SVG or PDF",
        description="Draw metrics over their steps, in the terminal or, with -o, into a file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "-m",
        "--metric",
        action="append",
        default=[],
        metavar="GLOB",
        help="draw this metric, a name or a glob; can be repeated (default: train/loss and "
        "validate/loss, else the first few numbers of the run)",
    )
    parser.add_argument(
        "-o", "--output", type=_picture, metavar="FILE", help="write a picture: FILE.png, .svg or .pdf"
    )
    parser.add_argument("--width", type=_positive, help="columns of the terminal, or pixels with -o")
    parser.add_argument("--height", type=_positive, help="rows of the terminal, or pixels with -o")
    parser.add_argument("--log-y", action="store_true", help="logarithmic value axis")
    which = parser.add_argument_group("which points (default: all)")
    which.add_argument("--last", type=_positive, metavar="N", help="the newest N of every metric")
    which.add_argument("--start", type=int, metavar="STEP", help="from this step on")
    which.add_argument("--stop", type=int, metavar="STEP", help="up to and with this step")
    parser.add_argument("--list", action="store_true", help="list the metrics instead of drawing them")
    parser.set_defaults(run=run, usage_error=parser.error)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in _figure.FORMATS:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(_figure.FORMATS)}, got {text!r}")
    return path


class _Run(NamedTuple):
    path: str  # as the user gave it
    name: str
    dtypes: dict[str, str]  # metric -> storage dtype, in the order of the manifest


class _NothingToDrawError(Exception):
    """What the user asked for cannot be drawn; the message says why."""


def run(args: argparse.Namespace) -> int:
    """Draw what the parsed arguments ask for and return the exit code."""
    if args.last and not (args.start is None and args.stop is None):
        args.usage_error("--last cannot be combined with --start or --stop")
    runs = []
    for path in args.runs:
        try:
            runs.append(read_run(path, partial(_look, path)))
        except UNREADABLE as error:
            complain("plot", error, path=path)
    if args.list:
        for each in runs:
            _print_list(each, with_name=len(args.runs) > 1)
        return int(len(runs) < len(args.runs))
    if not runs:
        return 1
    try:
        wanted = _wanted(runs, args.metric)
        series, failures = _read(runs, wanted, args)
        if all(not np.isfinite(line.values).any() for line in series):
            raise _NothingToDrawError(_why_nothing(series))
        _draw(series, _title(runs), args)
    except (_NothingToDrawError, ImportError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        complain("plot", error)
        return 1
    return int(failures or len(runs) < len(args.runs))


# ---- which metrics --------------------------------------------------------------------------------


def _look(path: str, reader: Reader) -> _Run:
    dtypes = {name: str(spec["dtype"]) for name, spec in reader.manifest().items()}
    dtypes = dtypes | {name: HOT_ONLY for name in reader.metrics() if name not in dtypes}
    return _Run(path, run_name(reader.root), dtypes)


def _print_list(each: _Run, *, with_name: bool) -> None:
    if with_name:
        print(f"{printable(each.path)}:")
    wide = max(map(cells, map(printable, each.dtypes)), default=0)
    for name, dtype in each.dtypes.items():
        print(f"{pad(printable(name), wide)}  {dtype}")


def _wanted(runs: Sequence[_Run], patterns: Sequence[str]) -> dict[str, bool]:
    """Return the metrics to draw, and whether each was asked for by its very name."""
    dtypes: dict[str, str] = {}
    for each in reversed(runs):
        dtypes = each.dtypes | dtypes
    wanted: dict[str, bool] = {}
    for pattern in patterns:
        names = matching(dtypes, pattern)
        if not names:
            raise _NothingToDrawError(no_such_metric(pattern, dtypes, ", ".join(each.path for each in runs)))
        # Unix seconds would flatten everything else that `train/*` draws
        results = [name for name in names if name == pattern or not name.endswith("walltime") or "wall" in pattern]
        for name in results or names:
            wanted[name] = wanted.get(name, False) or name == pattern
    if not patterns:
        numbers = [name for name, dtype in dtypes.items() if dtype != JSONL]
        results = [name for name in numbers if name.split("/")[-1] not in _AXES]
        names = [name for name in _FAVOURITES if name in numbers] or (results or numbers)[:_FIRST_FEW]
        if not names:
            raise _NothingToDrawError(f"no metric of {runs[0].path} holds numbers; --list shows what is there")
        complain("plot", f"drawing {', '.join(map(repr, names))}; -m chooses others, --list shows them")
        wanted = dict.fromkeys(names, False)
    return wanted


# ---- their points ---------------------------------------------------------------------------------


def _read(
    runs: Sequence[_Run], wanted: dict[str, bool], args: argparse.Namespace
) -> tuple[list[Series], int]:
    """Return the lines, metric by metric, and how many could not be read; complains about those."""
    points = {each.path: read_run(each.path, partial(_points, list(wanted), args)) for each in runs}
    labels = _labels(runs)
    series: list[Series] = []
    failures = 0
    for name, is_exact in wanted.items():
        for each in runs:
            found = points[each.path][name]
            if isinstance(found, UnknownMetricError):  # some other run has it
                complain("plot", f"{each.path} has no metric {name!r}")
            elif isinstance(found, Exception):
                complain("plot", f"{each.path}: metric {name!r} cannot be read: {found}")
                failures += 1
            else:
                label = name if len(runs) == 1 else f"{labels[each.path]}: {name}"
                try:
                    series.append(make_series(label, *found, log_y=args.log_y))
                except TypeError as error:
                    if is_exact:
                        message = f"{each.path}: metric {name!r} is no line: {error}"
                        raise _NothingToDrawError(message) from None
                    complain("plot", f"{each.path}: metric {name!r} is left out: {error}")
    return series, failures


def _points(names: Sequence[str], args: argparse.Namespace, reader: Reader) -> dict[str, Any]:
    """Return metric -> (steps, values), or the error that its reading raised."""
    which = {"istart": -args.last} if args.last else {"start": args.start, "stop": args.stop}
    points: dict[str, Any] = {}
    for name in names:
        try:
            points[name] = reader.metric(name, dtype="storage", **which)
        except UNREADABLE as error:
            points[name] = error
    return points


def _labels(runs: Sequence[_Run]) -> dict[str, str]:
    # the short names, unless two runs share one
    names = [each.name for each in runs]
    return {each.path: each.name if names.count(each.name) == 1 else each.path for each in runs}


def _why_nothing(series: Sequence[Series]) -> str:
    counts = [f"{line.label!r} has {len(line.steps)} points" for line in series]
    notes = [f", {line.note}" if line.note else "" for line in series]
    return "nothing to draw: " + ("; ".join(map("".join, zip(counts, notes, strict=True))) or "no metric is left")


# ---- the picture ----------------------------------------------------------------------------------


def _draw(series: Sequence[Series], title: str, args: argparse.Namespace) -> None:
    if args.output:
        width, height = args.width or _PIXELS[0], args.height or _PIXELS[1]
        _figure.save(series, args.output, width=width, height=height, log_y=args.log_y, title=title)
        print(f"wrote {printable(str(args.output))}")
        return
    width = args.width or terminal_width(sys.stdout) or _PLAIN_WIDTH
    height = args.height or _PLAIN_HEIGHT
    if not args.height and sys.stdout.isatty():  # picture, title, legend and prompt fit on the screen
        height = min(max(shutil.get_terminal_size().lines - len(series) - 2, _LOWEST), _HIGHEST)
    look = Look(unicode=can_show(sys.stdout, UNICODE_CHARS), colour=wants_colour(sys.stdout))
    print(printable(title))
    print(chart(series, width=width, height=height, log_y=args.log_y, look=look))


def _title(runs: Sequence[_Run]) -> str:
    return ", ".join(_labels(runs).values())
