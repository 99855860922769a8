"""``plattli import``: what other tools have logged becomes a Plättli run."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from adapters.importers.finding import KINDS, find_sources
from adapters.importers.importing import import_run
from adapters.importers.items import Options, Report, Source
from adapters.importers.overlaps import MODES
from loggers.contract import STATUSES
from loggers.errors import LoggerError
from plattli._console import Progress
from plattli.errors import PlattliError

_EXAMPLES: Final = """\
examples:
  plattli import tb/digits runs/digits               a TensorBoard run
  plattli import tb runs                             every run of a logdir, to runs/<its name>
  plattli import wandb/ runs/digits                  an offline run of W&B, with all its attempts
  plattli import log.csv runs/digits --step-column iteration

The source is only read. What the directory RUN holds of it is noted in RUN/.imported.json: a second import of the same
files finds nothing to do, and one of other files refuses. A name is stored as it is; one without a slash is put
into --context first, so `loss` becomes `train/loss`.

Lines that a restarted run has logged again are resolved as a resume would have it: what the attempt before logged
behind that step goes. --overlaps keep takes nothing away, and cut takes every step back for a restart.

With --json every run is one line, one object: run, source, kind, outcome (imported, unchanged, failed), error, and of
an imported one lines, values, first, last, restarts, replaced, status, left_out, notes, bytes_read.

exit code: 0 all is imported, or was before; 1 something could not be imported; 2 wrong usage
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli import``."""
    parser = subparsers.add_parser(
        "import",
        help="make a run of what TensorBoard, W&B, JSON Lines, CSV … hold",
        description=textwrap.fill(
            "Import what other tools have logged: " + ", ".join(kind.WHAT for kind in KINDS.values()) + ".", 80
        ),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="a file, or a directory with one or more runs")
    parser.add_argument("target", type=Path, metavar="RUN", help="directory of the run; of several, the one above")
    parser.add_argument("--from", dest="kind", choices=KINDS, help="what SRC is; told by its content otherwise")
    parser.add_argument("--context", default="train", metavar="NAME", help="of names without a slash (train)")
    parser.add_argument("--step-column", metavar="NAME", help="what the step is called, in CSV and plain JSON Lines")
    parser.add_argument("--overlaps", choices=MODES, default="auto", help="how restarts are resolved (auto)")
    parser.add_argument(
        "--status", choices=STATUSES, default="interrupted", help="of a run that says not how it ended (interrupted)"
    )
    parser.add_argument("--force", action="store_true", help="replace what is at RUN")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per run, for programs")
    form.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Import what the parsed arguments name and return the exit code."""
    if not args.context:
        print("plattli import: --context must not be empty", file=sys.stderr)
        return 2
    options = Options(args.context, args.step_column, args.overlaps, args.status)
    try:
        sources = find_sources(args.source, args.kind)
    except (LoggerError, PlattliError, OSError, ImportError) as error:
        _say(args, str(args.target), {"source": str(args.source), "outcome": "failed", "error": str(error)})
        return 1
    failed = False
    for source in sources:
        failed |= not _import(args, source, args.target / source.name, options)
    return int(failed)


def _import(args: argparse.Namespace, source: Source, target: Path, options: Options) -> bool:
    total = sum(path.stat().st_size for path in source.files)
    bar = Progress(sys.stderr, total=total, unit="lines")
    place = args.source / source.name
    result: dict[str, Any] = {"source": str(place), "kind": source.kind, "outcome": "imported", "error": None}

    def show(report: Report) -> None:
        if not args.quiet:
            bar.update(report.bytes_read, f"{target}: {report.lines:,}")

    try:
        report = import_run(source, target, options, force=args.force, progress=show)
    except (LoggerError, PlattliError, OSError, ImportError) as error:
        bar.clear()
        _say(args, str(target), {**result, "outcome": "failed", "error": str(error)})
        return False
    finally:
        bar.clear()
    if report is None:
        _say(args, str(target), {**result, "outcome": "unchanged"})
    else:
        _say(args, str(target), {**result, **asdict(report)})
    return True


def _say(args: argparse.Namespace, target: str, result: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps({"run": target, **result}, ensure_ascii=False))
    elif result["outcome"] == "failed":
        print(f"plattli import: {result['error']}", file=sys.stderr)
    elif args.quiet:
        return
    elif result["outcome"] == "unchanged":
        print(f"{target}: has all of {result['source']} already; --force imports it again")
    else:
        for sentence in _sentences(target, result):
            print(sentence)


def _sentences(target: str, result: dict[str, Any]) -> list[str]:
    steps = "" if result["first"] is None else f", steps {result['first']} to {result['last']}"
    said = [
        f"{target}: {result['lines']:,} lines ({result['values']:,} values{steps}) from {result['source']} "
        f"({KINDS[result['kind']].WHAT}); {result['status']}"
    ]
    if result["restarts"]:
        times = "once" if result["restarts"] == 1 else f"{result['restarts']} times"
        said.append(f"  was restarted {times}, which took back {result['replaced']:,} lines")
    if result["left_out"]:
        said.append("  left out: " + ", ".join(f"{what} ({count:,})" for what, count in result["left_out"].items()))
    return [*said, *(f"  {note}" for note in result["notes"])]
