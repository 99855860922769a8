"""A follower: whoever carries a run's lines to a replica, outside the training loop.

``python -m adapters.follower JOB`` works a job (see :mod:`adapters._jobs`) off in a process of its own: it reads the
run's files, makes the verb calls, and notes after each batch what has been delivered. So it can be killed and started
again at any time, by its tee or by hand (``plattli send RUN``).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from adapters._jobs import FOLDER, Backoff, Job, JobFiles, State, is_permanent, jobs
from loggers.errors import RunExistsError
from loggers.records import checkpoint_record, resume
from loggers.replay import Cursor, is_written, replay
from loggers.verbs import finish, logger_info, run_url

__all__ = ["FOLDER", "Backoff", "Job", "JobFiles", "State", "jobs", "wait", "work"]

_GAVE_UP: Final = 3
_BUSY: Final = 4
#: Seconds to wait for another follower of the same job.
_PATIENCE_S: Final = 60.0
#: How much a follower stands back on a machine whose cores are all busy: a tenth of a core against one.
_NICE: Final = 10


class _OwnerGone(threading.Event):
    """Set when the process that started this one has died."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def is_set(self) -> bool:
        return super().is_set() or (self._pid > 0 and os.getppid() != self._pid)


def work(
    files: JobFiles, job: Job, *, progress: Callable[[Cursor], None] | None = None, follow: bool = True
) -> Cursor:
    """Deliver a job's run to its logger, to the end; return where that is. Raises whatever the logger raises."""
    logger = pickle.loads(job.recipe)
    state = files.load_state() or State(type(logger).__name__)
    noted: Any = None
    is_saved = True
    try:
        cursor = Cursor() if state.cursor is None else Cursor.from_json(state.cursor)
        if (record := state.record or job.record) is not None:
            resume(logger, record)
        elif (record := checkpoint_record(logger)) is not None:
            # so that what we leave in the backend if we are killed before our first note is cut by the next one
            state.record, state.cursor = record, cursor.to_json()
            files.save_state(state)

        def save() -> bool:
            nonlocal is_saved
            is_saved = False
            with contextlib.suppress(OSError):  # a disk that is full now is no reason to deliver all of it again
                files.save_state(state)
                is_saved = True
            return is_saved

        def note(cursor: Cursor) -> None:
            nonlocal noted
            mark = cursor.lines, cursor.finished, cursor.revision
            # no newer record before the last one is saved: a logger keeps what comes behind the latest two
            if mark != noted and (is_saved or save()):
                noted = mark
                _note(state, logger, cursor)
                save()
                if progress is not None:
                    progress(cursor)

        cursor = replay(
            job.run,
            logger,
            since=cursor,
            follow=follow,
            poll=job.poll,
            stop=_OwnerGone(job.owner_pid),
            progress=note,
        )
        if follow and not cursor.finished:  # a run that cannot tell its end, whose writer is gone
            finish(logger, "error")
            cursor.finished = True
        note(cursor)
        if not is_saved:
            files.save_state(state)  # raises: whoever tries again saves it
            is_saved = True
            note(cursor)
    except Exception as error:
        state.attempts += 1
        state.error = state.last_error = f"{type(error).__name__}: {error}"
        if noted is None and isinstance(error, RunExistsError):
            state.record = state.cursor = None  # what is there is not ours to cut
        with contextlib.suppress(OSError):  # the run's folder may be what is away
            files.save_state(state)
        raise
    if cursor.finished:
        files.job.unlink(missing_ok=True)
    return cursor


def _note(state: State, logger: Any, cursor: Cursor) -> None:
    """Put what a logger has received, and its record, into a state."""
    state.cursor, state.record = cursor.to_json(), checkpoint_record(logger)
    if cursor.lines > state.delivered or cursor.finished:
        state.attempts, state.error = 0, None
    state.delivered, state.finished = cursor.lines, cursor.finished
    state.info, state.url = logger_info(logger), run_url(logger)


def _keep_to_a_core() -> None:
    """Share one core with the other followers of our training, so that it never has to share the others with us."""
    with contextlib.suppress(OSError, AttributeError):  # forbidden by a sandbox; no such calls on this system
        # when we wake we wait for our turn, instead of interrupting whoever is at work
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getppid() % len(cores)]})


def _stand_back() -> None:
    """Let training go first where Linux divides the cores among sessions, and heeds niceness only within one.

    We have a session of our own, and a backend's helper process may have begun another.
    """
    pids = ["self"]
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids += children.read_text().split()
    for pid in pids:
        with contextlib.suppress(OSError):  # no such system, or a process that has just ended, or too many at once
            Path(f"/proc/{pid}/autogroup").write_text(str(_NICE))


def main(argv: list[str] | None = None) -> int:
    """Work a job off; return 0 when all is delivered."""
    job_path, *rest = argv or sys.argv[1:]
    path, failures = Path(job_path), int(rest[0]) if rest else 0
    if hasattr(os, "nice"):
        os.nice(_NICE)  # training goes first
    _keep_to_a_core()
    _stand_back()
    files = JobFiles(path.parent, path.stem)
    while not path.parent.exists() and os.getppid() != 1:
        time.sleep(0.1)  # the run was moved away: it may come back as long as its training lives
    if files.wait_for_lock(_PATIENCE_S) is None:
        return _BUSY
    try:
        job = files.load_job()
    except FileNotFoundError:
        return 0
    sys.path[:] = job.path
    # what has been delivered is noted on the way out
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    before = files.load_state()
    try:
        work(files, job, progress=lambda cursor: _stand_back())
    except Exception as error:
        with contextlib.suppress(OSError):  # our output is a file beside the run, and its disk may be what is full
            traceback.print_exc()
        state = files.load_state()
        # a full disk does not take the number of attempts either
        went_on = state is not None and state.delivered > (0 if before is None else before.delivered)
        attempts = max(0 if state is None else state.attempts, 1 if went_on else failures + 1)
        orphaned = _OwnerGone(job.owner_pid).is_set()
        if is_permanent(error) or job.backoff.is_over(attempts, orphaned=orphaned):
            return _GAVE_UP
        wait(job.backoff.wait(attempts), job.run)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        # a fresh interpreter: a client that failed half-way may not be usable again in this one
        program = [sys.executable, "-P", "-m", "adapters.follower", str(path), str(attempts)]
        os.execv(sys.executable, program)
    return 0


def wait(seconds: float, run: Path) -> None:
    """Wait before another attempt, unless the run ends meanwhile: then there is somebody who waits for us."""
    deadline = time.monotonic() + seconds
    was_written = is_written(run)
    while (left := deadline - time.monotonic()) > 0 and is_written(run) == was_written:
        time.sleep(min(left, 0.1))


if __name__ == "__main__":
    sys.exit(main())
