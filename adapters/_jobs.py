"""What a follower has to do and how far it is, in files beside the run.

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
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from loggers.errors import LoggerError, RunExistsError, UndeliveredError
from loggers.replay import Cursor

try:
    import fcntl
except ImportError:  # no file locks here: nothing keeps two followers of one job apart
    fcntl = None  # type: ignore[assignment]

FOLDER: Final = ".followers"
#: Attempts without progress of a follower whose training has ended or died, if nobody said how many.
_ORPHANS_ATTEMPTS: Final = 10
#: Errors that another attempt does not mend: of a program, not of a disk or a network.
_FOR_GOOD: Final = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, AssertionError)


def is_permanent(error: BaseException) -> bool:
    """Tell an error that comes again however often one tries from an outage."""
    if isinstance(error, LoggerError):  # ours, so it says that something is wrong, unless it is an outage too
        return isinstance(error, RunExistsError) or not isinstance(error, OSError | UndeliveredError)
    return isinstance(error, _FOR_GOOD)


class Backoff(NamedTuple):
    """When a follower whose logger raised tries again.

    Attributes:
        attempts: failures without progress until the rest is left to ``plattli send``; ``None``: as long as
            training lives, and ten behind that.
        first, longest: seconds to wait after the first failure, and at most; each wait is twice the one before.
    """

    attempts: int | None = None
    first: float = 1.0
    longest: float = 60.0

    def wait(self, failures: int) -> float:
        """Return the seconds to wait after so many failures."""
        return min(self.first * 2.0 ** min(failures - 1, 60), self.longest)

    def is_over(self, failures: int, *, orphaned: bool) -> bool:
        """Tell whether so many failures are enough."""
        if self.attempts is None:
            return orphaned and failures >= _ORPHANS_ATTEMPTS
        return failures >= self.attempts


@dataclass
class State:
    """What is known of a replica, for people and for the next process.

    The logger's record and the cursor are of the same moment: a follower that is killed is cut back to its record
    by the next one, which delivers again what lies behind the cursor.
    """

    logger: str
    delivered: int = 0
    #: failures in a row, without any progress between them
    attempts: int = 0
    finished: bool = False
    #: why nothing is delivered now
    error: str | None = None
    #: what went wrong last, also when it goes well again
    last_error: str | None = None
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
    backoff: Backoff = field(default_factory=Backoff)


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


def job_files(run: Path, key: str) -> JobFiles:
    """Return where the job of a replica lies: in the folder of its run, or of the file that is its run."""
    return JobFiles((run if run.suffix != ".jsonl" else run.parent) / FOLDER, key)


def how_to_send(run: Path | str) -> str:
    """Return what to do about a job that is left."""
    return f"What it has not got is stored; send it with: plattli send {run}"


def jobs(run: Path) -> list[JobFiles]:
    """Return the jobs of a run that are not done."""
    return [JobFiles(path.parent, path.stem) for path in sorted((run / FOLDER).glob("*.job"))]
