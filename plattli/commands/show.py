"""``plattli show``: what a run is, and where each of its metrics stands."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from plattli._console import terminal_width
from plattli.commands._report import run_text
from plattli.commands._runs import RUN_HELP, UNREADABLE, complain, give_up, matching, no_such_metric, read_run
from plattli.commands._summary import MetricSummary, summarize
from plattli.reader import Reader
from plattli.runinfo import RunInfo, run_info

_EXAMPLES: Final = """\
examples:
  plattli show runs/digits                      a run: live, dead or finished
  plattli show runs/*/ -m 'validate/*'          some metrics of several runs
  plattli show runs/digits/metrics.plattli --json | jq .status

With --json every run is one line, one object: path, kind, id, status, started, finished, written,
owner, params, tags, and metrics, an object of name -> dtype, count, first_step, last_step, last, min,
max, nan. It is strict JSON: numbers that JSON lacks are the strings "NaN", "Infinity", "-Infinity".
min and max leave NaN out; nan counts it. Of a run that cannot be read it is path and error.

exit code: 0 fine, 1 a run or metric could not be read (the others are shown), 2 wrong usage
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli show``."""
    parser = subparsers.add_parser(
        "show",
        help="what a run is: status, params, tags, and its metrics with count, last, min, max",
        description="Show runs: status, params, tags, and each metric with its count, last, min and max.",
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
        help="show only these metrics, names or globs; can be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per run, for programs")
    parser.set_defaults(run=run)


class _Page(NamedTuple):
    info: RunInfo
    written: str | None  # when the run last grew
    names: list[str]  # all metrics of the run
    metrics: list[MetricSummary]  # those to show


def run(args: argparse.Namespace) -> int:
    """Show the runs of the parsed arguments and return the exit code."""
    code = 0
    names: set[str] = set()
    shown: list[str] = []
    for path in args.runs:
        try:
            page = read_run(path, partial(_page, path, args.metric))
        except UNREADABLE as error:
            give_up("show", error, path, as_json=args.json)
            code = 1
            continue
        if args.json:
            print(json.dumps(_strict(_as_json(page)), ensure_ascii=False, allow_nan=False))
        else:
            width = terminal_width(sys.stdout)
            blank = "\n" if shown else ""
            print(blank + run_text(page.info, page.metrics, written=page.written, width=width))
        for metric in page.metrics:
            if metric.problem:
                complain("show", f"{path}: metric {metric.name!r} cannot be read: {metric.problem}")
                code = 1
        names.update(page.names)
        shown.append(path)
    for pattern in args.metric:
        if shown and not matching(names, pattern):
            complain("show", no_such_metric(pattern, names, ", ".join(shown)))
            code = 1
    return code


def _page(path: str, patterns: list[str], reader: Reader) -> _Page:
    names = reader.metrics()
    wanted = {name for pattern in patterns for name in matching(names, pattern)} if patterns else names
    metrics = [summarize(reader, name) for name in names if name in wanted]
    # last, so that the status is at least as fresh as the metrics
    return _Page(run_info(path), _written(reader), names, metrics)


def _written(reader: Reader) -> str | None:
    # the manifest of a live run may be much older than its newest row, the files of an archive younger
    if reader.kind == "dir":
        with suppress(FileNotFoundError):  # archived in this moment
            newest = max(entry.stat().st_mtime for entry in os.scandir(reader.root) if entry.is_file())
            return datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return reader.when_exported()


def _as_json(page: _Page) -> dict[str, Any]:
    info = page.info
    return {
        "path": str(info.path),
        "kind": info.kind,
        "id": info.id,
        "status": info.status,
        "started": info.started,
        "finished": info.finished,
        "written": page.written,
        "owner": info.owner,
        "params": info.params,
        "tags": info.tags,
        "metrics": {metric.name: _metric_as_json(metric) for metric in page.metrics},
    }


def _metric_as_json(metric: MetricSummary) -> dict[str, Any]:
    fields = asdict(metric)
    del fields["name"]
    if metric.problem is None:
        del fields["problem"]
    return fields


def _strict(value: Any) -> Any:
    # JSON has no NaN and no infinities
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
