"""The program ``jsonl2plattli``: training logs of one JSON object per line become Plättli archives."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import sys
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Final

from plattli._bulk import Run, extras_of, publish, write_archive
from plattli._console import Progress, run_program
from plattli._format import ARCHIVE, CONFIG, METRIC_DIR, dumps
from plattli._fs import RunLock
from plattli._packing import remove_temporaries
from plattli._trainlog import read_log
from plattli.errors import ConfigError, PlattliError, RunExistsError

LOG: Final = "metrics.jsonl"
#: What ``--skipcols DEFAULT`` stands for: the norms of single parameters and gradients.
DEFAULT_SKIP: Final = "[pg]norm.*"
#: What a bad run raises; anything else is a mistake of this program.
EXPECTED: Final = (PlattliError, OSError, zipfile.BadZipFile, BrokenProcessPool)
_POLL_S: Final = 0.2
_EPILOG: Final = """\
examples:
  jsonl2plattli runs                        runs/*/metrics.jsonl -> runs/*/metrics.plattli
  jsonl2plattli -o converted runs           -> converted/runs/*.plattli
  jsonl2plattli --deep --skipcols DEFAULT   at any depth below here, without [pg]norm columns

A row is a JSON object with an optional, increasing integer "step". Blank lines and a last line that
was cut short are left out, integers and floats may be mixed, and a run that cannot be converted does
not stop the others: stderr says what happened and where.

exit code: 0 fine (also if there is nothing to convert), 1 something could not be converted, 2 wrong
usage
"""


@dataclass(frozen=True)
class Job:
    """One run to convert.

    Attributes:
        run: its folder.
        target: the archive to write.
        in_place: whether the archive becomes the run's own, replacing an earlier one.
        skip: patterns of metrics to leave out.
        allow_rewinds: see :func:`plattli._trainlog.read_log`.
    """

    run: Path
    target: Path
    in_place: bool
    skip: tuple[str, ...] = ()
    allow_rewinds: bool = False


@dataclass(frozen=True)
class Converted:
    """What became of a run: how big it was, and what was unusual."""

    rows: int
    cols: int
    notes: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program ``jsonl2plattli``.

    Args:
        argv: the arguments, ``sys.argv[1:]`` by default.

    Returns:
        The exit code: 0 fine, 1 something could not be converted, 2 wrong usage.
    """
    return run_program(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    indirs = [Path(indir).resolve() for indir in args.indirs or ["."]]
    outdir = Path(args.outdir).resolve() if args.outdir else None
    failures = 0
    if outdir:
        outdir.mkdir(parents=True, exist_ok=True)
    jobs: dict[Path, Job] = {}
    for indir in indirs:
        if not indir.is_dir():
            failures += _complain(f"{indir}: no such directory")
            continue
        for run in _runs(indir, deep=args.deep):
            target = _target(run, indir, outdir)
            if target in jobs and jobs[target].run != run:
                failures += _complain(f"{run}: {jobs[target].run} becomes {target} already: convert them apart")
            else:
                jobs.setdefault(target, Job(run, target, outdir is None, tuple(args.skip), args.allow_rewinds))
    if not jobs:
        print("No runs found. Nothing to export.")
        return int(failures > 0)
    print(f"Found {_runs_of(len(jobs))} under {[indir.name for indir in indirs]}")
    failures += _convert_all(sorted(jobs.values(), key=lambda job: job.run), args.workers, outdir)
    return int(failures > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jsonl2plattli",
        description="Find training logs (metrics.jsonl) and convert each run into a Plättli archive.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "indirs", nargs="*", metavar="DIR", help="experiment folders, whose children are runs (default: here)"
    )
    parser.add_argument(
        "-o", "--outdir", metavar="DIR", help="write DIR/<experiment>/<run>.plattli, not <run>/metrics.plattli"
    )
    parser.add_argument(
        "-w",
        "--workers",
        type=_positive,
        default=max(1, (os.cpu_count() or 1) - 2),
        metavar="N",
        help="processes to convert with (default: CPUs - 2)",
    )
    parser.add_argument(
        "--skipcols",
        action="append",
        default=[],
        type=_pattern,
        dest="skip",
        metavar="REGEXP",
        help=f"leave out metrics whose whole name matches; DEFAULT stands for {DEFAULT_SKIP}; can be repeated",
    )
    parser.add_argument(
        "--deep", action="store_true", help="look for runs at any depth, the folders themselves included"
    )
    parser.add_argument(
        "--allow-rewinds",
        action="store_true",
        help="a step below the one before it drops the rows from there on (a resumed run)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"is no regular expression: {text!r}: {error}") from None
    return DEFAULT_SKIP if text == "DEFAULT" else text


def _complain(message: object) -> int:
    print(f"jsonl2plattli: {message}", file=sys.stderr)
    return 1


# ---- which runs -----------------------------------------------------------------------------------


def _runs(indir: Path, *, deep: bool) -> Iterator[Path]:
    if deep:
        for folder, _, files in os.walk(indir):
            if LOG in files:
                yield Path(folder)
    else:
        yield from (child for child in indir.iterdir() if (child / LOG).is_file())


def _runs_of(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _target(run: Path, indir: Path, outdir: Path | None) -> Path:
    if outdir is None:
        return run / ARCHIVE
    path = outdir / indir.name / run.relative_to(indir)
    return path.with_name(path.name + ".plattli")


# ---- one run --------------------------------------------------------------------------------------


def convert(job: Job) -> Converted:
    """Convert one run.

    Raises:
        PlattliError: the log, or the name of a metric in it, is not what the format allows, or
            somebody else is writing the run.
        OSError: a file cannot be read or written.
    """
    log = read_log(
        job.run / LOG,
        skip=[re.compile(pattern) for pattern in job.skip],
        allow_rewinds=job.allow_rewinds,
        report=_report,
    )
    notes = list(log.notes)
    if not job.in_place:
        config = dumps(_parsed_config(job.run)).encode()
        job.target.parent.mkdir(parents=True, exist_ok=True)
        write_archive(job.target, log.columns, config)
        return Converted(log.rows, log.cols, notes)
    earlier = job.run / METRIC_DIR
    if earlier.exists() and not earlier.is_dir():
        raise RunExistsError(f"{earlier} is no directory: move it away")
    lock = RunLock(job.run)  # nobody's live run is replaced
    try:
        remove_temporaries(job.run)
        replaced = earlier.is_dir()
        publish(job.run, Run(log.columns, _config_bytes(job.run), extras_of(job.run)))
        if replaced:
            notes.append(f"{earlier} was replaced by {job.target}")
    finally:
        lock.release()
    return Converted(log.rows, log.cols, notes)


def _config_bytes(run: Path) -> bytes:
    with suppress(FileNotFoundError):
        return (run / CONFIG).read_bytes()
    return b"{}"


def _parsed_config(run: Path) -> object:
    try:
        return json.loads(_config_bytes(run))
    except ValueError as error:
        raise ConfigError(f"{run / CONFIG} is not JSON: {error}") from error


# ---- all runs -------------------------------------------------------------------------------------

#: In a worker: how many bytes of logs all workers have read, roughly, for it has no lock that a dying
#: worker could take along.
_bytes_read: ctypes.c_uint64 | None = None


def _start_worker(bytes_read: ctypes.c_uint64) -> None:
    global _bytes_read
    _bytes_read = bytes_read
    # Ctrl-C reaches the workers too: they go without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _report(count: int) -> None:
    if _bytes_read is not None:
        _bytes_read.value += count


def _convert_all(jobs: Sequence[Job], workers: int, outdir: Path | None) -> int:
    """Convert all runs, tell how each went, and return how many failed."""
    bytes_read = RawValue(ctypes.c_uint64, 0)
    progress = Progress(sys.stderr, total=sum(map(_size, jobs)), unit="runs")
    done = failed = 0
    for news in _results(jobs, workers, bytes_read):
        if news is None:
            progress.update(bytes_read.value, f"{done + failed} of {len(jobs)}")
            continue
        progress.clear()
        job, result = news
        if isinstance(result, Converted):
            done += 1
            name = job.target if outdir is None else job.target.relative_to(outdir)
            print(f"converted {name} ({result.rows} rows, {result.cols} cols)", flush=True)
            for note in result.notes:
                print(f"jsonl2plattli: note: {note}", file=sys.stderr)
        else:
            failed += 1
            _complain(f"{job.run} was not converted: {result}")
            if not isinstance(result, EXPECTED):  # a mistake of ours: say where
                traceback.print_exception(result)
    progress.clear()
    print(f"done. exported {_runs_of(done)} {'in-place' if outdir is None else f'into {outdir}'}")
    if failed:
        _complain(f"{failed} of {_runs_of(len(jobs))} could not be converted")
    return failed


def _size(job: Job) -> int:
    with suppress(OSError):  # whatever is wrong with it comes up when it is read
        return (job.run / LOG).stat().st_size
    return 0


def _results(
    jobs: Sequence[Job], workers: int, bytes_read: ctypes.c_uint64
) -> Iterator[tuple[Job, Converted | BaseException] | None]:
    """Yield each run with what came of it, as they finish, and ``None`` now and then in between."""
    lost: list[Job] = []
    workers = min(workers, len(jobs))
    with ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(bytes_read,)) as pool:
        futures: dict[Future[Converted], Job] = {}
        for job in jobs:
            try:
                futures[pool.submit(convert, job)] = job
            except BrokenProcessPool:
                lost.append(job)
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            yield None
            for future in finished:
                error = future.exception()
                if isinstance(error, BrokenProcessPool) and len(jobs) > 1:
                    lost.append(futures[future])
                else:
                    yield futures[future], error or future.result()
    # a worker that is killed, as for want of memory, takes the others' work along: each gets its own now
    for job in lost:
        yield from _results([job], 1, bytes_read)
