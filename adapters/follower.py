"""A follower: whoever carries a run's lines to a replica, outside the training loop.

A **job** is a file beside the run: which run, which logger (pickled before it began), where it had got
to. ``python -m adapters.follower JOB`` works it off in a process of its own: it reads the run's files,
makes the verb calls, and notes after each batch what has been delivered. So it can be killed and started
again at any time, by its tee or by hand (``plattli send RUN``).

::

    <run>/.followers/1-WandbLogger.job      pickled, readable by its owner only; gone when all is delivered
                     1-WandbLogger.json     how far it is: the cursor, the logger's record, error, url
                     1-WandbLogger.lock     held while somebody works on the job
                     1-WandbLogger.log      what the backend prints
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from loggers.records import checkpoint_record, resume
from loggers.replay import Cursor, replay
from loggers.verbs import finish, logger_info, run_url

try:
    import fcntl
except ImportError:  # no file locks here: nothing keeps two followers of one job apart
    fcntl = None  # type: ignore[assignment]

FOLDER: Final = ".followers"
#: Attempts without any progress before a job is given up until somebody sends it by hand.
MAX_ATTEMPTS: Final = 5
_GAVE_UP: Final = 3
_BUSY: Final = 4
#: Seconds to wait for another follower of the same job.
_PATIENCE_S: Final = 60.0
#: How much a follower stands back on a machine whose cores are all busy: a tenth of a core against one.
_NICE: Final = 10


@dataclass
class State:
    """What is known of a replica, for people and for the next process.

    The logger's record and the cursor are of the same moment: a follower that is killed is cut back to its record
    by the next one, which delivers again what lies behind the cursor.
    """

    logger: str
    delivered: int = 0
    attempts: int = 0
    finished: bool = False
    error: str | None = None
    url: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    cursor: dict[str, Any] | None = None


@dataclass
class Job:
    """What a follower needs to know."""

    run: Path
    recipe: bytes
    record: dict[str, Any] | None
    poll: float
    owner_pid: int
    path: list[str]


class JobFiles:
    """The files of one replica's job."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{self.key}.{suffix}"

    @property
    def job(self) -> Path:
        """Where the job is."""
        return self._file("job")

    @property
    def log(self) -> Path:
        """Where the backend's output goes."""
        return self._file("log")

    def save_job(self, job: Job) -> None:
        """Write the job; only its owner may read it, since a recipe may hold a key."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replace(self.job, pickle.dumps(asdict(job)))

    def load_job(self) -> Job:
        """Return the job.

        Raises:
            FileNotFoundError: it is done.
        """
        return Job(**pickle.loads(self.job.read_bytes()))

    def load_cursor(self) -> Cursor | None:
        """Return what has been delivered, ``None`` if nobody ever noted it."""
        state = self.load_state()
        return None if state is None or state.cursor is None else Cursor.from_json(state.cursor)

    def save_state(self, state: State) -> None:
        """Write the state."""
        self._replace(self._file("json"), json.dumps(asdict(state), default=str).encode())

    def load_state(self) -> State | None:
        """Return the state, ``None`` before there is one."""
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            return State(**json.loads(self._file("json").read_bytes()))
        return None

    def forget(self) -> None:
        """Remove what another run left."""
        for suffix in ("job", "json", "log"):
            self._file(suffix).unlink(missing_ok=True)

    def try_lock(self) -> int | None:
        """Return an open file whose lock means "I work on this job", ``None`` if somebody else does."""
        fd = os.open(self._file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
        return fd

    def wait_for_lock(self, patience: float) -> int | None:
        """Return what :meth:`try_lock` does, once nobody else works on the job; ``None`` after ``patience`` s."""
        deadline = time.monotonic() + patience
        while (lock := self.try_lock()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return lock

    def end_worker(self) -> bool:
        """Kill whoever works on the job, with all it started; ``False`` if it is not on this machine."""
        try:
            pid, host = self._file("lock").read_text().split()
        except (FileNotFoundError, ValueError):
            return True  # it has only just begun, or has just ended
        if host != socket.gethostname() or int(pid) == os.getpid():
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(pid), signal.SIGKILL)
        return True

    @staticmethod
    def _replace(path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)


def jobs(run: Path) -> list[JobFiles]:
    """Return the jobs of a run that are not done."""
    return [JobFiles(path.parent, path.stem) for path in sorted((run / FOLDER).glob("*.job"))]


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
    cursor = Cursor() if state.cursor is None else Cursor.from_json(state.cursor)
    if (record := state.record or job.record) is not None:
        resume(logger, record)

    def note(cursor: Cursor) -> None:
        if cursor.lines == state.delivered and cursor.finished == state.finished and state.info:
            return
        state.cursor = cursor.to_json()
        state.delivered, state.finished = cursor.lines, cursor.finished
        state.attempts, state.error = 0, None
        state.info, state.url = logger_info(logger), run_url(logger)
        state.record = checkpoint_record(logger)
        files.save_state(state)
        if progress is not None:
            progress(cursor)

    try:
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
    except Exception as error:
        state.attempts += 1
        state.error = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # the backend is broken; what it last said of itself stands
            state.record = checkpoint_record(logger) or state.record
        files.save_state(state)
        raise
    if cursor.finished:
        files.job.unlink(missing_ok=True)
    return cursor


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
    path = Path((argv or sys.argv[1:])[0])
    if hasattr(os, "nice"):
        os.nice(_NICE)  # training goes first
    _stand_back()
    files = JobFiles(path.parent, path.stem)
    if files.wait_for_lock(_PATIENCE_S) is None:
        return _BUSY
    try:
        job = files.load_job()
    except FileNotFoundError:
        return 0
    sys.path[:] = job.path
    try:
        work(files, job, progress=lambda cursor: _stand_back())
    except Exception:
        traceback.print_exc()
        state = files.load_state()
        attempts = state.attempts if state is not None else MAX_ATTEMPTS
        if attempts >= MAX_ATTEMPTS:
            return _GAVE_UP
        time.sleep(min(2.0 ** (attempts - 1), 60.0))
        sys.stdout.flush()
        sys.stderr.flush()
        # a fresh interpreter: a client that failed half-way may not be usable again in this one
        os.execv(sys.executable, [sys.executable, "-P", "-m", "adapters.follower", str(path)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
