"""The subcommands of ``plattli`` that talk to trackers."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from adapters.follower import JobFiles, jobs, work
from loggers.replay import Cursor

_EXAMPLES: Final = """\
examples:
  plattli send runs/digits          send what its trackers have not received
  plattli send runs/*/              the same for many runs

It goes on where it stopped, and sends nothing twice: call it as often as you like.

exit code: 0 all sent, or nothing to send; 1 something could not be sent; 2 wrong usage
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli send``."""
    parser = subparsers.add_parser(
        "send",
        help="send what a run's trackers (W&B, …) have not received yet",
        description="Send what the trackers of a run have not received yet. A tee leaves a job beside the run for "
        "every tracker that could not be reached, or was not done when training ended.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(run=_send)


def _send(args: argparse.Namespace) -> int:
    failed = False
    for run in args.runs:
        if not run.is_dir():
            print(f"plattli send: {run} is no run directory", file=sys.stderr)
            failed = True
            continue
        pending = jobs(run)
        if not pending and not args.quiet:
            print(f"{run}: nothing to send")
        for files in pending:
            failed |= not _send_job(run, files, quiet=args.quiet)
    return int(failed)


def _send_job(run: Path, files: JobFiles, *, quiet: bool) -> bool:
    name = files.key.partition("-")[2]
    lock = files.try_lock()
    if lock is None:
        print(f"plattli send: {run}: {name} is being sent by another process already", file=sys.stderr)
        return False

    def say(cursor: Cursor) -> None:
        if not quiet and sys.stderr.isatty():
            print(f"\r{run}: {name}: {cursor.lines} lines", end="", file=sys.stderr, flush=True)

    try:
        job = files.load_job()
        job.run, job.owner_pid = run, 0
        cursor = work(files, job, follow=False, progress=say)
    except Exception as error:  # the backend's own errors are of any kind; the next job may go through
        print(f"plattli send: {run}: {name} failed with {type(error).__name__}: {error}", file=sys.stderr)
        return False
    finally:
        os.close(lock)
    if not quiet:
        state = files.load_state()
        where = f" ({state.url})" if state is not None and state.url else ""
        print(f"{run}: {name}: {cursor.lines} lines sent{where}")
    if not cursor.finished:
        print(f"plattli send: {run} is still being written; {name} has what is there now", file=sys.stderr)
    return True
