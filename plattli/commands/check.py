"""``plattli check``: is a run whole? What is wrong, where, and what a repair would do about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

from plattli._console import Progress
from plattli._finding import Finding
from plattli._repair import Repaired, repair_run
from plattli.check import Report, check_run, describe_owner
from plattli.commands._runs import RUN_HELP, UNREADABLE, give_up, not_a_run
from plattli.commands._text import printable
from plattli.errors import NotARunError

T = TypeVar("T")

_EXAMPLES: Final = """\
examples:
  plattli check runs/digits                    a run: live, dead or finished, folder or archive
  plattli check runs/*/ -q                     one line per run
  plattli check runs/digits --repair           put in order what can be, losing nothing readable
  plattli check runs/digits --json | jq '.findings[]'

An error is where a reader raises or returns something wrong, a warning is what readers cope with, a note
is worth knowing. What --repair takes away it keeps in RUN/.plattli-repair-<time>/. It refuses a run that a
live writer holds; writers of plattli 0.19 take no lock, so see to it that none is at work. It never edits
an archive: resume the run with a writer and finish it again, that writes a new one.

With --json every run is one line, one object: path, state, owner, verdict, metrics, rows, errors,
warnings, notes, findings (severity, code, file, line, offset, metric, what, repair), and with --repair
repaired (what was done) and copies. Of a run that cannot be read it is path and error.

exit code: 0 clean, notes allowed; 1 there are findings, or a run could not be read; 2 wrong usage
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli check``."""
    parser = subparsers.add_parser(
        "check",
        help="is a run whole? what is wrong where; --repair puts it in order",
        description="Verify runs: manifest, steps, values, hot rows, config, checksums, leftovers, the lock.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--repair", action="store_true", help="repair what can be, losing nothing readable")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per run, for programs")
    form.add_argument("-q", "--quiet", action="store_true", help="print the verdicts only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check the runs of the parsed arguments and return the exit code."""
    code = 0
    for path in args.runs:
        repaired: Repaired | None = None
        try:
            if args.repair:
                repaired = _with_progress(lambda progress: repair_run(path, progress=progress))  # noqa: B023
                report = repaired.after
            else:
                report = _with_progress(lambda progress: check_run(path, progress=progress))  # noqa: B023
        except NotARunError:
            give_up("check", not_a_run(path), path, as_json=args.json)
            code = 1
            continue
        except UNREADABLE as error:
            give_up("check", error, path, as_json=args.json)
            code = 1
            continue
        code = code if report.is_clean else 1
        if args.json:
            print(json.dumps(_as_json(report, repaired), ensure_ascii=False, default=str))
        else:
            _print(path, report, repaired, quiet=args.quiet)
    return code


def _with_progress(work: Callable[[Callable[[int, int, str], None]], T]) -> T:
    bar = Progress(sys.stderr, total=100, unit="files and metrics")

    def show(done: int, total: int, name: str) -> None:
        bar.update(100 * done // max(total, 1), f"{done} of about {total}")

    try:
        return work(show)
    finally:
        bar.clear()


# ---- for people -----------------------------------------------------------------------------------


def _print(path: str, report: Report, repaired: Repaired | None, *, quiet: bool) -> None:
    print(f"{printable(path)}: {_verdict(report, repaired)}")
    if quiet:
        return
    for sentence in repaired.done if repaired is not None else ():
        print(f"  repaired  {printable(sentence)}")
    if repaired is not None and repaired.copies is not None:
        print(f"  copies    {printable(str(repaired.copies))}")
    for file, findings in groupby(report.findings, key=lambda finding: finding.file):
        print(f"  {printable(file)}")
        for finding in findings:
            print(f"    {finding.severity:8} {_sentence(finding)}")
            if finding.repair is not None:
                print(f"    {'':8} --repair would {finding.repair}")


def _sentence(finding: Finding) -> str:
    where = [f"line {finding.line}" if finding.line is not None else "",
             f"byte {finding.offset}" if finding.offset is not None else ""]  # fmt: skip
    place = ", ".join(filter(None, where))
    metric = f"metric {finding.metric!r}: " if finding.metric is not None else ""
    if metric.strip(": ") in finding.what:
        metric = ""
    return printable(f"{f'{place}: ' if place else ''}{metric}{finding.what}")


def _verdict(report: Report, repaired: Repaired | None) -> str:
    counts = [(report.count("error"), "error"), (report.count("warning"), "warning"), (report.count("note"), "note")]
    words = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts if number)
    verdict = "clean" if report.is_clean else "damaged" if report.count("error") else "readable, not in order"
    facts = f"{report.state} run, {report.metrics} metric{'s' * (report.metrics != 1)}, {report.rows} stored " \
            f"row{'s' * (report.rows != 1)}"  # fmt: skip
    if report.owner is not None:
        facts += f", held by {describe_owner(report.owner)}"
    hint = ""
    if repaired is not None and not repaired.done:
        hint = "; nothing to repair"
    elif repaired is None and report.fixes:
        hint = f"; --repair would change {len(report.fixes)} thing{'s' * (len(report.fixes) != 1)}"
    return f"{verdict} ({facts}){': ' if words else ''}{words}{hint}"


# ---- for programs ---------------------------------------------------------------------------------


def _as_json(report: Report, repaired: Repaired | None) -> dict[str, Any]:
    page: dict[str, Any] = {
        "path": str(report.path),
        "state": report.state,
        "owner": report.owner,
        "verdict": "clean" if report.is_clean else "damaged" if report.count("error") else "untidy",
        "metrics": report.metrics,
        "rows": report.rows,
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "notes": report.count("note"),
        "findings": [
            {
                "severity": finding.severity,
                "code": finding.code,
                "file": finding.file,
                "line": finding.line,
                "offset": finding.offset,
                "metric": finding.metric,
                "what": finding.what,
                "repair": finding.repair,
            }
            for finding in report.findings
        ],
    }
    if repaired is not None:
        page["repaired"] = list(repaired.done)
        page["copies"] = None if repaired.copies is None else str(Path(repaired.copies))
    return page
