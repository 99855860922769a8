"""The subcommands of ``plattli`` that talk to trackers."""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from adapters._jobs import FOLDER, Backoff, Job, JobFiles, is_permanent, jobs
from adapters.follower import wait, work
from adapters.targets import SPELLINGS, Recipe, absolute, open_target, place
from loggers.errors import LoggerError, RecordError, RunExistsError
from loggers.records import checkpoint_record
from loggers.replay import Cursor, Source, count_lines, is_written, open_source
from plattli._console import Progress
from plattli._format import ARCHIVE, METRIC_DIR
from plattli.commands._runs import complain, not_a_run
from plattli.errors import NotARunError, PlattliError
from plattli.runs import is_run

#: The target that keeps nothing, so that a second call begins anew: its spellings.
_PRINTED: Final = ("stdout", "stdout:")
_EXAMPLES: Final = """\
examples:
  plattli send runs/digits          send what its trackers have not received
  plattli send runs/*/              the same for many runs

It goes on where it stopped, and sends nothing twice: call it as often as you like.

exit code: 0 all sent, or nothing to send; 1 something could not be sent; 2 wrong usage
"""


_REPLAY_EXAMPLES: Final = """\
examples:
  plattli replay runs/digits --to tensorboard:tb/digits           all of a run into TensorBoard
  plattli replay runs/digits --to wandb:digits --follow           go on until the run has ended
  plattli replay runs/digits.plattli --to jsonl:digits.jsonl      an archive as JSON Lines
  plattli replay runs/digits --to csv:digits.csv                  as a table, what is no metric beside it
  plattli replay runs/digits --to stdout: --follow                watch a live run on this terminal

A second call goes on where the first one stopped, and sends nothing twice: what was sent is noted in RUN/.followers.
JSON Lines hold no times: lines that come back from them get the time at which they do.

exit code: 0 all is sent; 1 something could not be sent; 2 wrong usage
"""


def add_replay(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli replay``."""
    parser = subparsers.add_parser(
        "replay",
        help="send a stored run (live, dead or finished) to TensorBoard, W&B, …",
        description="Make the verb calls of a stored run again, on another logger: params, tags,\n"
        "every line with its step, epoch and time, confusion matrices, and the end.",
        epilog=_REPLAY_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_path", type=Path, metavar="RUN", help="run directory, .plattli archive or metrics.jsonl")
    parser.add_argument("--to", required=True, metavar="TARGET", help=f"one of {SPELLINGS}")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on until the run has ended or its process died, and try again while TARGET cannot be reached",
    )
    parser.add_argument("--poll", type=_seconds, default=0.5, metavar="S", help="seconds between two looks (0.5)")
    parser.add_argument("--force", action="store_true", help="replace what is at TARGET, and send all of the run")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(run=_replay)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def _replay(args: argparse.Namespace) -> int:
    run: Path = args.run_path
    if run.name in (METRIC_DIR, ARCHIVE):
        run = run.absolute().parent  # what was sent is noted beside the run, not in it
    try:
        open_target(args.to)  # raises if there is no such kind
        spec = absolute(args.to)
        if (at := place(spec)) is not None and at.resolve() == run.resolve():
            raise LoggerError(f"{args.to} is the run itself: name another place")
        source = open_source(run)
        next(source.calls(Cursor()), None)  # raises if there is no run
    except NotARunError:
        complain("replay", not_a_run(str(args.run_path)))
        return 1
    except (LoggerError, PlattliError, ImportError) as error:
        print(f"plattli replay: {error}", file=sys.stderr)
        return 2 if isinstance(error, LoggerError) else 1
    folder = run / FOLDER if run.is_dir() else run.with_name(run.name + FOLDER)
    files = JobFiles(folder, f"replay-{spec.partition(':')[0]}-{hashlib.sha256(spec.encode()).hexdigest()[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    lock = files.try_lock()
    if lock is None:
        print(f"plattli replay: {run} is being sent to {args.to} by another process already", file=sys.stderr)
        return 1
    try:
        cursor = files.load_cursor()
        if args.force or spec in _PRINTED or (cursor is not None and at is not None and not at.exists()):
            files.forget()  # what was sent is gone, or goes
            cursor = None
        if at is not None and at.is_file() and cursor is None:
            if not args.force:
                raise RunExistsError
            for file in getattr(open_target(spec), "files", (at,)):
                file.unlink(missing_ok=True)
        if cursor is not None and cursor.finished and _is_all(source, copy.deepcopy(cursor)):
            if not args.quiet:
                print(f"{run}: {args.to} has all of it already; --force sends it again")
            return 0
        recipe = pickle.dumps(Recipe(spec, replace=args.force))
        files.save_job(Job(run.absolute(), recipe, _record(files, spec), args.poll, 0, list(sys.path)))
        return _work_off(run, args, files)
    except RunExistsError:
        print(f"plattli replay: {args.to} is there already: name another place, or replace it with --force",
              file=sys.stderr)  # fmt: skip
        return 1
    except RecordError as error:
        print(f"plattli replay: {error}: name another place than {args.to}, or replace it with --force",
              file=sys.stderr)  # fmt: skip
        return 1
    except (LoggerError, PlattliError) as error:
        print(f"plattli replay: {error}", file=sys.stderr)
        return 1
    finally:
        os.close(lock)


def _record(files: JobFiles, spec: str) -> dict[str, Any] | None:
    """Return what tells every call for a target on another machine that it is the same run."""
    if place(spec) is not None:
        return None
    try:
        return files.load_job().record  # of a call that ended before it had sent anything
    except FileNotFoundError:
        return checkpoint_record(open_target(spec))


def _is_all(source: Source, cursor: Cursor) -> bool:
    """Tell whether a run has nothing that a cursor, which is changed, has not seen."""
    taken_back = source.taken_back(cursor) is not None
    return not taken_back and cursor.finished and next(source.calls(cursor), None) is None


def _work_off(run: Path, args: argparse.Namespace, files: JobFiles) -> int:
    bar = Progress(sys.stderr, total=count_lines(run), unit="lines")

    def show(cursor: Cursor) -> None:
        if not args.quiet and args.to not in _PRINTED:  # those lines tell how far it is
            bar.update(cursor.lines, f"{cursor.lines:,}")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.showwarning = lambda message, *rest, **more: print(
                f"plattli replay: {message}", file=sys.stderr
            )
            cursor = _insist(run, args, files, show)
    except Exception as error:  # the backend's own errors are of any kind
        bar.clear()
        state = files.load_state()
        if state is None or not state.delivered:
            files.forget()  # it has not begun, so there is nothing to go on with
        if isinstance(error, RunExistsError | RecordError):
            raise
        print(f"plattli replay: {args.to} failed with {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    bar.clear()
    if not args.quiet:
        # among what is printed this would be one line more of it
        to = sys.stderr if args.to in _PRINTED else sys.stdout
        print(f"{run}: {cursor.lines:,} lines sent to {args.to}{_where(files)}", file=to)
        if not cursor.finished:
            print(f"{run} is still being written: call again for the rest, or with --follow", file=sys.stderr)
    return 0


def _insist(run: Path, args: argparse.Namespace, files: JobFiles, show: Callable[[Cursor], None]) -> Cursor:
    """Send a run; one that is followed again and again, as long as what fails may be an outage."""
    backoff = Backoff()
    while True:
        try:
            return work(files, files.load_job(), follow=args.follow, progress=show)
        except Exception as error:
            state = files.load_state()
            attempts = 1 if state is None else state.attempts
            over = backoff.is_over(attempts, orphaned=not is_written(run))
            if not args.follow or is_permanent(error) or over:
                raise
            seconds = backoff.wait(attempts)
            warnings.warn(
                f"{args.to} failed with {type(error).__name__}: {error}; trying again in {seconds:g} s",
                RuntimeWarning,
                stacklevel=2,
            )
        wait(seconds, run)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of ``plattli send``."""
    parser = subparsers.add_parser(
        "send",
        help="send what a run's trackers (W&B, …) have not received yet",
        description="Send what the trackers of a run have not received yet. A tee leaves a job beside\n"
        "the run for every tracker that could not be reached, or was not done when\ntraining ended.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(run=_send)


def _send(args: argparse.Namespace) -> int:
    failed = False
    for run in args.runs:
        if run.is_file():
            complain("send", f"{run} is a file: name the directory of the run")
            failed = True
            continue
        pending = jobs(run)
        if not pending and not _is_teed(run):
            complain("send", not_a_run(str(run)))
            failed = True
            continue
        if not pending and not args.quiet:
            print(f"{run}: nothing to send")
        for files in pending:
            failed |= not _send_job(run, files, quiet=args.quiet)
    return int(failed)


def _is_teed(run: Path) -> bool:
    """Tell whether a tee can have worked here: a folder of runs, or a slip of the pen, must not pass for all sent."""
    return (run / FOLDER).is_dir() or is_run(run) or any(map(_is_log, run.glob("*.jsonl")))


def _is_log(path: Path) -> bool:
    """Tell whether a JSONLogger has written a file."""
    try:
        return next(open_source(path).calls(Cursor()), None) is not None
    except (PlattliError, OSError):
        return False


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
        print(f"{run}: {name}: {cursor.lines} lines sent{_where(files)}")
    if not cursor.finished:
        print(f"plattli send: {run} is still being written; {name} has what is there now", file=sys.stderr)
    return True


def _where(files: JobFiles) -> str:
    """Return the page of what was sent, in brackets, if it has one."""
    state = files.load_state()
    return f" ({state.url})" if state is not None and state.url else ""
