"""``TeeLogger``: one logger that keeps everything, and any number that are told about it.

The **primary** is written first, in the caller's thread, and its errors are real. Everybody else is a
**replica**: of what the primary has stored, so that nothing a replica does can slow training or lose a
line. There is no queue. A replica that is slow, broken or unreachable is behind, and what it has not
got yet is in the primary's files, where a follower finds it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from adapters.follower import FOLDER, Job, JobFiles, State
from loggers.contract import JSON
from loggers.errors import LoggerError, LoggerFinishedError, MetricValueError, RecordError, UndeliveredError
from loggers.records import checkpoint_record, resume, type_name
from loggers.replay import Cursor, clip, everything, forget, is_written, replay, source_path
from loggers.values import check_status, plain
from loggers.verbs import (
    check_logger,
    finish,
    log_confusion,
    log_metrics,
    log_other,
    log_params,
    log_tags,
    logger_info,
    run_id,
    run_url,
    verb_of,
)

_FLOATS: Final = {float}
#: How often a follower process is started again after it died (not: after its backend failed).
MAX_RESTARTS: Final = 3
#: How long a resume waits for the follower of the process before it.
_PATIENCE_S: Final = 10.0


class TeeLogger:
    """Log to a primary, and let replicas follow it.

    ::

        logger = TeeLogger(
            PlattliLogger("runs/digits"),
            TensorBoardLogger("runs/digits/tensorboard"),
            WandbLogger(project="digits"),
        )

    Where a replica runs is its own choice, its attribute ``placement``:

    - ``"inline"`` (TensorBoard, JSON Lines, and any logger that says nothing): called in turn, in the
      caller's thread. When it raises, a thread takes over that reads the run and catches up.
    - ``"process"`` (W&B): a process of its own follows the run's files, with what training leaves of
      the cores. It outlives a killed training process for as long as it takes to deliver the rest.

    A replica never raises into training; what went wrong is one warning, :meth:`report`, and, with
    ``strict=True``, an error at :meth:`finish`.
    """

    placement: Final = "inline"

    def __init__(
        self,
        primary: Any,
        *others: Any,
        finish_timeout: float = 30.0,
        strict: bool = False,
        poll: float = 0.25,
    ) -> None:
        """Check the loggers. Nothing is started before the first verb.

        Args:
            primary: a logger whose run can be read back: ``PlattliLogger`` or ``JSONLogger``.
            *others: the replicas; ``None`` is left out.
            finish_timeout: seconds that :meth:`finish` waits for the replicas, all together.
            strict: raise :class:`~loggers.errors.UndeliveredError` at finish if a replica did not get
                everything, instead of warning.
            poll: seconds between two looks of a follower at the run.

        Raises:
            MissingVerbError: a logger lacks a verb.
            TypeError: the primary's run cannot be read back, or a replica that wants a process of its
                own cannot be pickled.
        """
        check_logger(primary)
        if source_path(primary) is None and not hasattr(primary, "adopt"):
            raise TypeError(
                f"the first logger of a tee must be one whose run can be read back (PlattliLogger, JSONLogger), "
                f"got {type(primary).__name__}: the others are fed from its files"
            )
        self._primary = primary
        self._strict = strict
        self._finish_timeout = finish_timeout
        self._pid = os.getpid()
        self._started = False
        self._finished = False
        #: what happened to replicas and the caller has not been told yet
        self._news: list[str] = []
        self._replicas: list[_Replica] = []
        for number, other in enumerate((o for o in others if o is not None), 1):
            check_logger(other)
            self._replicas.append(_replica(other, f"{number}-{type(other).__name__}", poll, self._news))
        #: the replicas that are called in turn; a tuple that is replaced when one falls behind
        self._inline = tuple(r for r in self._replicas if isinstance(r, _Inline))
        self._log_primary = verb_of(primary, "log_metrics")

    # ---- the verbs --------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Log one line; see :meth:`loggers.contract.Logger.log_metrics`. Raises what the primary raises."""
        given = values = metrics
        if type(metrics) is not dict or {*map(type, metrics.values())} != _FLOATS:
            # converted once, so that what lies on a device is fetched once for everybody
            values, problems = plain(metrics)
            if not problems:  # else all of it, so that the primary's error names what could not be converted
                given = values
        # one line has one time, wherever it goes
        where = {"step": step, "epoch": epoch, "context": context, "walltime": time.time(), **axes}
        failure: MetricValueError | None = None
        try:
            self._log_primary(given, **where)
        except MetricValueError as error:
            failure = error  # every good value of the line is stored
            values = _accepted(metrics, values, error)
        if not self._started:
            self._start()
        for replica in self._inline:
            # the same as replica.call(), without its cost: this is the hot path
            try:
                replica.log_line(values, **where)
                replica.delivered += 1
            except Exception as error:
                replica.failed(error, log_metrics, (values,), where)
        if self._news:
            self._speak()
        if failure is not None:
            raise failure

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log hyperparameters."""
        self._all(log_params, params)

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Tag the run."""
        self._all(log_tags, list(tags) if isinstance(tags, Iterator) else tags)

    def log_other(self, key: str, value: Any) -> None:
        """Log a free-form value."""
        self._all(log_other, key, value)

    def log_confusion(
        self,
        matrix: Sequence[Sequence[float]],
        labels: Sequence[str],
        *,
        epoch: int | None = None,
        step: int | None = None,
        context: str | None = None,
        name: str = "confusion",
    ) -> None:
        """Log a confusion matrix."""
        self._all(log_confusion, matrix, labels, epoch=epoch, step=step, context=context, name=name)

    def _all(self, verb: Any, *args: Any, **kwargs: Any) -> None:
        verb(self._primary, *args, **kwargs)
        if not self._started:
            self._start()
        for replica in self._inline:
            replica.call(verb, *args, **kwargs)
        self._speak()

    def finish(self, status: str) -> None:
        """Finish the primary, then give the replicas ``finish_timeout`` seconds to get the rest.

        Every replica is reached, in reverse order, whatever the others do. One that does not get
        everything in time is stopped; what it misses is in the run, and the warning says how to send it.

        Raises:
            UndeliveredError: with ``strict=True``, if something is missing.
            Exception: what the primary raised; the tee can be finished again.
        """
        if self._finished:
            raise LoggerFinishedError("the tee was finished before")
        # what the primary raises (a status that is none, a full disk) ends nothing: finish can be called again
        finish(self._primary, check_status(status))
        if self._forked():
            return
        self._finished = True
        deadline = time.monotonic() + self._finish_timeout
        if self._started:  # else nothing was ever logged, so there is nothing to end
            try:
                for replica in reversed(self._replicas):
                    replica.finish(status, deadline)
            except BaseException:
                # Ctrl-C while a tracker hangs: leave no process behind
                for replica in self._replicas:
                    replica.abandon(status)
                raise
        problems = [(r, problem) for r in self._replicas if (problem := r.missing(self._run_path()))]
        self._speak()
        if problems and self._strict:
            raise UndeliveredError("; ".join(problem for _, problem in problems))
        for replica, problem in problems:
            if not replica.told:
                warnings.warn(problem, RuntimeWarning, stacklevel=3)

    def run_id(self) -> str | None:
        """Return the primary's run id."""
        return run_id(self._primary)

    def run_url(self) -> str | None:
        """Return the first address that any of the loggers has."""
        return run_url(self._primary) or next((url for r in self._replicas if (url := r.url())), None)

    def logger_state(self) -> dict[str, JSON]:
        """Return the state of the primary and of every replica."""
        # one without state has an entry all the same: it is in the tee, so it has what was logged until now
        replicas: list[JSON] = [r.record() or {"logger": type_name(r.logger), "state": None} for r in self._replicas]
        return {"primary": checkpoint_record(self._primary), "replicas": replicas}

    def reattach(self, state: Any) -> None:
        """Put the primary back to where the state was taken, and the replicas with it.

        A replica that was not in the tee when the state was taken receives the whole run. One that was, and
        has no state of its own (a JSON Lines file), goes on behind what it has: it cannot be cut, so it
        keeps the lines that came after the state. Raises what the primary raises.
        """
        if not (isinstance(state, Mapping) and "primary" in state and isinstance(state.get("replicas"), list)):
            raise RecordError(f"expected the state of a TeeLogger (primary, replicas), got {state!r:.200}")
        if self._started:
            raise RecordError("this tee has begun to log already: reattach before logging anything")
        if not is_written(self._run_path()):  # else its owner lives, with its followers, and the primary says so
            for replica in self._replicas:
                # the follower of a killed process delivers the rest before the primary cuts it off
                replica.end_predecessor(self._run_path())
        resume(self._primary, state["primary"])
        records = list(state["replicas"])
        for replica in self._replicas:
            mine = next((r for r in records if replica.owns(r)), None)
            if mine is not None:
                records.remove(mine)
            replica.prepare(mine)
        self._start(resumed=True)
        self._speak()

    def adopt(self, directory: str | os.PathLike[str]) -> None:
        """Hand a driver's directory to a primary that has none."""
        if hasattr(self._primary, "adopt"):
            self._primary.adopt(directory)

    # ---- around the verbs -------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path | None:
        """The primary's run."""
        return source_path(self._primary)

    def backend(self) -> Any:
        """Return the primary."""
        return self._primary

    @property
    def replicas(self) -> list[Any]:
        """The loggers beside the primary, as they were handed over."""
        return [replica.logger for replica in self._replicas]

    def report(self) -> list[dict[str, JSON]]:
        """Return, per replica: ``logger``, ``placement``, ``delivered``, ``restarts``, ``error``, ``info``."""
        return [replica.report() for replica in self._replicas]

    def logger_info(self) -> dict[str, JSON]:
        """Return the primary's info, and the replicas' reports."""
        return {**logger_info(self._primary), "replicas": self.report()}

    def _run_path(self) -> Path:
        path = source_path(self._primary)
        if path is None:
            raise LoggerError(f"{type(self._primary).__name__} has no file yet; call adopt(directory) first")
        return path

    def _start(self, *, resumed: bool = False) -> None:
        """Start the followers: the primary has begun, so there is a run to follow."""
        if self._forked():
            return
        self._started = True
        path = self._run_path()
        for replica in self._replicas:
            replica.start(path, run_id(self._primary), resumed=resumed)

    def _speak(self) -> None:
        """Say in the caller's thread what happened to replicas; move those that fell behind."""
        behind = [replica for replica in self._inline if replica.broken is not None]
        for broken in behind:
            try:
                follower = broken.fall_behind(self._run_path())
            except Exception as error:  # the run cannot be read now: with the next line it is tried again
                self._news.append(f"{broken.name} failed ({broken.broken}), and so did what goes on with it ({error})")
                break
            self._replicas[self._replicas.index(broken)] = follower
        if behind:
            self._inline = tuple(r for r in self._replicas if isinstance(r, _Inline))
        while self._news:
            if message := self._news.pop(0):
                warnings.warn(message, RuntimeWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        """Return the loggers: a pickled or copied tee writes nothing, like its primary's copy."""
        return {"primary": self._primary}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["primary"])  # type: ignore[misc]
        self._pid = -1

    def _forked(self) -> bool:
        return os.getpid() != self._pid


# ---- replicas -------------------------------------------------------------------------------------


class _Replica:
    """What the tee knows of one logger beside the primary."""

    where: Literal["inline", "thread", "process"]

    def __init__(self, logger: Any, key: str, poll: float, news: list[str]) -> None:
        self.logger = logger
        self.key = key
        self.poll = poll
        self.error: str | None = None
        self.delivered = 0
        self.restarts = 0
        #: the tee's list of what the caller has not been told yet
        self.news = news
        #: the caller knows that this replica is behind: one warning is enough
        self.told = False
        #: what it raised, if that was the last call of it
        self.broken: Exception | None = None
        self.log_line = verb_of(logger, "log_metrics")
        #: it was in the tee at the state that is resumed; one that was not gets the whole run first
        self.known = True

    @property
    def name(self) -> str:
        return type(self.logger).__name__

    def owns(self, record: Any) -> bool:
        """Tell whether a record of a tee's state is of this replica's type."""
        return isinstance(record, Mapping) and record.get("logger") == type_name(self.logger)

    def end_predecessor(self, run: Path) -> None:
        """Let whoever worked for an earlier process on the same run come to an end."""

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        """Take the replica's entry of a tee's state, before :meth:`start`; ``None`` if there is none."""
        raise NotImplementedError

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        raise NotImplementedError

    def finish(self, status: str, deadline: float) -> None:
        raise NotImplementedError

    def abandon(self, status: str) -> None:
        """End the replica without waiting for anything: the primary could not be finished."""
        raise NotImplementedError

    def record(self) -> dict[str, JSON] | None:
        return checkpoint_record(self.logger)

    def url(self) -> str | None:
        return run_url(self.logger)

    def info(self) -> dict[str, Any]:
        return logger_info(self.logger)

    def missing(self, run: Path) -> str | None:
        """Return what to tell the user if the replica has not got everything."""
        raise NotImplementedError

    def report(self) -> dict[str, JSON]:
        return {
            "logger": self.name,
            "placement": self.where,
            "delivered": self.delivered,
            "restarts": self.restarts,
            "error": self.error,
            "info": self.info(),
        }


class _Inline(_Replica):
    """Called in turn, in the caller's thread."""

    where = "inline"

    def __init__(self, logger: Any, key: str, poll: float, news: list[str]) -> None:
        super().__init__(logger, key, poll, news)
        #: the verb call at which it broke
        self._failed: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
        self._refused: set[str] = set()

    def call(self, verb: Any, *args: Any, **kwargs: Any) -> None:
        if self.broken is not None:
            return
        try:
            verb(self.logger, *args, **kwargs)
            self.delivered += 1
        except Exception as error:
            self.failed(error, verb, args, kwargs)

    def failed(self, error: Exception, verb: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a verb call that raised."""
        if isinstance(error, MetricValueError):
            # its siblings are written; the value itself is something this backend cannot show
            if (message := str(error)) not in self._refused and len(self._refused) < 32:
                self._refused.add(message)
                self.news.append(f"{self.name}: {message}")
        elif self.broken is None:
            self.broken = error
            self._failed = (verb.__name__, args, kwargs)
            self.news.append("")  # the tee has to look at its replicas

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        self.known = record is not None
        try:
            resume(self.logger, _with_state(record))
        except Exception as error:
            self.broken = error

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        if resumed and not self.known and self.broken is None:
            try:
                replay(run, self.logger, finish=False)
            except Exception as error:
                self.broken = error

    def fall_behind(self, run: Path) -> _Thread:
        """Return the follower that goes on in place of this replica."""
        error = self.broken
        follower = _Thread(self.logger, self.key, self.poll, self.news)
        follower.error = f"{type(error).__name__}: {error}"
        follower.delivered = self.delivered
        follower.told = True
        cursor = everything(run)
        if self._failed is not None:
            forget(cursor, run, *self._failed)
        self.news.append(
            f"{self.name} failed ({follower.error}); a thread goes on with it from what is stored in {run}, "
            f"and training goes on without waiting for it"
        )
        follower.begin(run, cursor)
        return follower

    def finish(self, status: str, deadline: float) -> None:
        if self.broken is None:
            try:
                finish(self.logger, status)
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"

    def abandon(self, status: str) -> None:
        self.finish(status, 0.0)

    def missing(self, run: Path) -> str | None:
        if self.error is None:
            return None
        return f"{self.name} could not be finished: {self.error}; all lines are in {run}"


class _Thread(_Replica):
    """Followed by a thread, because the backend object is alive in this process."""

    where = "thread"

    def begin(self, run: Path, cursor: Cursor) -> None:
        self._run = run
        self._cursor = cursor
        #: set at finish: from then on one more failure is the last
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follower-{self.key}", daemon=True)
        self._thread.start()

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        raise LoggerError("a follower thread begins in the middle of a run")

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        raise LoggerError("a follower thread begins in the middle of a run")

    def _follow(self) -> None:
        before, failures, lines = self.delivered, 0, 0

        def note(cursor: Cursor) -> None:
            self.delivered = before + cursor.lines

        while not self._cursor.finished:
            closing = self._closing.is_set()
            try:
                replay(self._run, self.logger, since=self._cursor, follow=True, poll=self.poll, progress=note)
                self.error = None
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                if closing:
                    return
                failures = 0 if self._cursor.lines > lines else failures + 1
                lines = self._cursor.lines
                self._closing.wait(min(0.25 * 2.0**failures, 30.0))

    def finish(self, status: str, deadline: float) -> None:
        self._closing.set()
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def abandon(self, status: str) -> None:
        self._closing.set()

    def missing(self, run: Path) -> str | None:
        if self._cursor.finished:
            return None
        why = self.error or "it was too slow"
        return f"{self.name} did not get everything ({why}); the whole run is in {run}"


class _Process(_Replica):
    """Followed by a process of its own."""

    where = "process"

    def __init__(self, logger: Any, key: str, poll: float, news: list[str]) -> None:
        super().__init__(logger, key, poll, news)
        try:
            self._recipe = pickle.dumps(logger)
        except Exception as error:
            raise TypeError(
                f"{type(logger).__name__} runs in a process of its own and cannot be pickled: {error}"
            ) from error
        self._record: Mapping[str, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._files: JobFiles | None = None
        self._ending = threading.Event()
        self._job: Job | None = None
        self._watcher: threading.Thread | None = None

    def _files_of(self, run: Path) -> JobFiles:
        return JobFiles((run if run.suffix != ".jsonl" else run.parent) / FOLDER, self.key)

    def end_predecessor(self, run: Path) -> None:
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
        self.known = record is not None
        self._record = _with_state(record)

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        self.end_predecessor(run)
        files = self._files = self._files_of(run)
        files.folder.mkdir(parents=True, exist_ok=True)
        cursor = files.load_cursor()
        if cursor is not None and cursor.run_id not in (None, run_id):
            files.forget()  # the directory held another run
            cursor = None
        if resumed and not self.known:
            files.forget()
        if (state := files.load_state()) is not None:
            if cursor is not None:
                clip(cursor, run)
                state.cursor = cursor.to_json()
            state.attempts, state.finished, state.error = 0, False, None
            # what the follower itself noted of this run is newer than the checkpoint's
            files.save_state(state)
        record = dict(self._record) if self._record is not None else None
        self._job = Job(run.resolve(), self._recipe, record, self.poll, os.getpid(), list(sys.path))
        files.save_job(self._job)
        self._launch()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{self.key}", daemon=True)
        self._watcher.start()

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
        while (process := self._process) is not None:
            code = process.wait()
            if code == 0 or self._ending.is_set():
                return
            self.error = self._state_error() or f"the follower process ended with code {code}"
            if code > 0 or self.restarts >= MAX_RESTARTS:
                self.news.append(
                    f"{self.name} could not be reached and is left behind ({self.error}); training goes on. "
                    f"{self._how_to_send()}"
                )
                self.told = True
                return
            self.restarts += 1
            if self._ending.wait(2.0 ** (self.restarts - 2)):
                return
            self._launch()

    def finish(self, status: str, deadline: float) -> None:
        if self._watcher is not None:
            # it returns when all is delivered, or when there is nothing more to hope for
            self._watcher.join(max(deadline - time.monotonic(), 0.0))
        self._ending.set()
        self._end()

    def abandon(self, status: str) -> None:
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

    def _state_error(self) -> str | None:
        state = self._state()
        return state.error if state is not None else None

    def _how_to_send(self) -> str:
        run = self._job.run if self._job is not None else "RUN"
        return f"What it has not got is stored; send it with: plattli send {run}"

    def record(self) -> dict[str, JSON] | None:
        state = self._state()
        if state is not None and state.record is not None:
            return state.record
        if self._record is not None:
            return dict(self._record)
        return checkpoint_record(self.logger)

    def url(self) -> str | None:
        state = self._state()
        return state.url if state is not None else None

    def info(self) -> dict[str, Any]:
        state = self._state()
        return state.info if state is not None and state.info else logger_info(self.logger)

    def missing(self, run: Path) -> str | None:
        state = self._state()
        if (state is not None and state.finished) or self._job is None:
            return None
        why = (state.error if state is not None else None) or self.error or "it did not answer in time"
        return f"{self.name} did not get everything ({why}). {self._how_to_send()}"

    def report(self) -> dict[str, JSON]:
        state = self._state()
        report = super().report()
        if state is not None:
            report.update(delivered=state.delivered, error=state.error or self.error)
        return report


def _accepted(metrics: Mapping[Any, Any], values: Mapping[str, Any], error: MetricValueError) -> dict[str, Any]:
    """Return what the primary has stored of a line that it has not taken as a whole.

    Args:
        metrics: the line as it was given.
        values: the same as plain values, but for floats whose names nobody has looked at.
        error: the primary's.
    """
    good, _ = plain(values)
    # what is no name stands in the error as its repr, which may be the text of a good one
    refused = error.metrics - {repr(name) for name in metrics if not isinstance(name, str) or not name}
    return {name: value for name, value in good.items() if name not in refused}


def _with_state(record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a replica's entry of a tee's state, if there is anything in it to reattach."""
    return None if record is None or record.get("state") is None else record


def _replica(logger: Any, key: str, poll: float, news: list[str]) -> _Replica:
    placement = getattr(logger, "placement", "inline")
    if placement not in ("inline", "process"):
        raise ValueError(f"{type(logger).__name__}.placement must be 'inline' or 'process', got {placement!r}")
    return (_Process if placement == "process" else _Inline)(logger, key, poll, news)


__all__ = ["TeeLogger"]

