"""Replicas that a process of their own follows: started, watched, started again, and ended by their tee."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from adapters._jobs import Job, JobFiles, State, how_to_send, job_files
from adapters._replicas import Options, Replica, plain_record, with_state
from loggers.contract import JSON
from loggers.records import type_name
from loggers.replay import Cursor, Lag, lag
from loggers.verbs import logger_info

#: How often in a row a follower process is started again after it died (not: after its backend failed).
_MAX_RESTARTS: Final = 3
#: How long a resume waits for the follower of the process before it.
_PATIENCE_S: Final = 10.0


class Process(Replica):
    """Followed by a process of its own."""

    where = "process"

    def __init__(self, logger: Any, key: str, options: Options, news: list[str]) -> None:
        super().__init__(logger, key, options, news)
        try:
            self._recipe: bytes = self.recipe or pickle.dumps(logger)
        except Exception as error:
            raise TypeError(
                f"{type(logger).__name__} runs in a process of its own and cannot be pickled: {error}"
            ) from error
        self._entry: Mapping[str, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._files: JobFiles | None = None
        self._ending = threading.Event()
        self._job: Job | None = None
        self._watcher: threading.Thread | None = None
        self._begin: Callable[[], None] = lambda: None

    def _files_of(self, run: Path) -> JobFiles:
        return job_files(run, self.key)

    def end_predecessor(self, run: Path) -> None:
        """See :class:`Replica`."""
        files = self._files_of(run)
        if not files.folder.exists():
            return
        lock = files.wait_for_lock(_PATIENCE_S)
        if lock is None and files.end_worker():
            # it hung in its backend; what it has not delivered is ours to deliver
            lock = files.wait_for_lock(_PATIENCE_S)
        if lock is not None:  # else it is on another machine, and our follower waits for it
            os.close(lock)

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        """See :class:`Replica`."""
        self.known = record is not None
        self._entry = record

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        """See :class:`Replica`. A disk that takes nothing now is no matter of training's: it is tried again."""
        self._begin = partial(self._start, run, run_id, resumed=resumed)
        self._try_to_begin()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{self.key}", daemon=True)
        self._watcher.start()

    def _try_to_begin(self) -> None:
        try:
            self._begin()
        except OSError as error:
            self.error = self.last_error = f"{type(error).__name__}: {error}"
        else:
            self.error = None

    def _start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        self.end_predecessor(run)
        files = self._files = self._files_of(run)
        files.folder.mkdir(parents=True, exist_ok=True)
        cursor = files.load_cursor()
        if (cursor is not None and cursor.run_id not in (None, run_id)) or (resumed and not self.known):
            files.forget()  # the directory held another run, or this replica is to have all of it
        record = with_state(self._entry)
        state = files.load_state()
        if state is None and self._entry is not None and self._entry.get("cursor") is not None:
            # the run was moved without what its follower had noted: so it is where the checkpoint says
            state = State(self.name, record=plain_record(record), cursor=self._entry["cursor"])
        if state is not None:
            if state.cursor is not None:
                # a tracker may begin a new part, which should tell what the run is without the others
                state.cursor.update(params={}, tags={}, finished=False)
            state.attempts, state.finished, state.error = 0, False, None
            # what the follower itself noted of this run is newer than the checkpoint's
            files.save_state(state)
        self._job = Job(
            run.resolve(),
            self._recipe,
            plain_record(record),
            self.options.poll,
            os.getpid(),
            list(sys.path),
            self.options.backoff,
        )
        files.save_job(self._job)
        self._launch()

    def _launch(self) -> None:
        if self._files is None:
            return
        private = getattr(self.logger, "private_environment", ())
        inherited = {name: value for name, value in os.environ.items() if name not in private}
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        with self._files.log.open("ab") as log:
            self._process = subprocess.Popen(
                # -P: our path is below, and what lies in the working directory is no part of it
                [sys.executable, "-P", "-m", "adapters.follower", str(self._files.job.resolve())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the training, which then finishes us
            )

    def _watch(self) -> None:
        """Start the follower again when it dies; costs nothing while it lives."""
        deaths, delivered, failures = 0, 0, 0
        while self._process is None:
            failures += 1
            if self._ending.wait(self.options.backoff.wait(failures)):
                return
            self._try_to_begin()
        while (process := self._process) is not None:
            code = process.wait()
            if code == 0 or self._ending.is_set():
                return
            state = self._state() or State(self.name)
            deaths = 1 if state.delivered > delivered else deaths + 1
            delivered = state.delivered
            self.error = self.last_error = state.error or f"the follower process ended with code {code}"
            if code > 0 or deaths > _MAX_RESTARTS:
                self.news.append(
                    f"{self.name} is left behind ({self.error}); training goes on. {self._how_to_send()}"
                )
                self.told = True
                return
            self.restarts += 1
            if self._ending.wait(2.0 ** (deaths - 2)):
                return
            try:
                self._launch()
            except OSError as error:  # the run's folder is away, or there is no room for a process
                self.error = self.last_error = f"{type(error).__name__}: {error}"
            else:
                self.error = None

    def finish(self, status: str, deadline: float) -> None:
        """See :class:`Replica`."""
        if self._watcher is not None:
            # it returns when all is delivered, or when there is nothing more to hope for
            self._watcher.join(max(deadline - time.monotonic(), 0.0))
        self._ending.set()
        self._end()

    def abandon(self, status: str) -> None:
        """See :class:`Replica`."""
        self._ending.set()
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        # the whole session: a backend's own helper processes must not stay behind
        for signum, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                return

    def _state(self) -> State | None:
        return self._files.load_state() if self._files is not None else None

    def _how_to_send(self) -> str:
        return how_to_send(self._job.run if self._job is not None else "RUN")

    def entry(self) -> dict[str, JSON]:
        """See :class:`Replica`."""
        state = self._state()
        if state is not None and state.cursor is not None:
            record = state.record or {"logger": type_name(self.logger), "state": None}
            return {**record, "cursor": state.cursor}
        if self._entry is not None:
            return dict(self._entry)
        return {**super().entry(), "cursor": Cursor().to_json()}

    def url(self) -> str | None:
        """See :class:`Replica`."""
        state = self._state()
        return state.url if state is not None else None

    def info(self) -> dict[str, Any]:
        """See :class:`Replica`."""
        state = self._state()
        return state.info if state is not None and state.info else logger_info(self.logger)

    def missing(self, run: Path) -> str | None:
        """See :class:`Replica`."""
        state = self._state()
        if (state is not None and state.finished) or self._watcher is None:
            return None
        why = (state.error if state is not None else None) or self.error or "it did not answer in time"
        return f"{self.name} did not get everything ({why}). {self._how_to_send()}"

    def lag(self, run: Path) -> Lag:
        """See :class:`Replica`."""
        state = self._state()
        return lag(run, Cursor() if state is None or state.cursor is None else Cursor.from_json(state.cursor))

    def report(self, run: Path | None) -> dict[str, JSON]:
        """See :class:`Replica`."""
        report = super().report(run)
        if (state := self._state()) is not None:
            report.update(
                delivered=state.delivered,
                error=state.error or self.error,
                last_error=state.last_error or self.last_error,
            )
        return report
