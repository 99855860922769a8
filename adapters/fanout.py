"""``TeeLogger``: one logger that keeps everything, and any number that are told about it.

The **primary** is written first, in the caller's thread, and its errors are real. Everybody else is a
**replica**: of what the primary has stored, so that nothing a replica does can slow training or lose a
line. There is no queue. A replica that is slow, broken or unreachable is behind, and what it has not
got yet is in the primary's files, where a follower finds it.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from adapters._jobs import Backoff
from adapters._processes import Process
from adapters._replicas import LONG_S, Inline, Options, Replica, Thread
from loggers.contract import JSON
from loggers.errors import LoggerError, LoggerFinishedError, MetricValueError, RecordError, UndeliveredError
from loggers.records import checkpoint_record, is_of_tee, resume, type_name
from loggers.replay import Missed, is_written, source_path
from loggers.values import check_status, plain
from loggers.verbs import (
    as_logger,
    check_logger,
    finish,
    log_confusion,
    log_other,
    log_params,
    log_tags,
    logger_info,
    run_id,
    run_url,
    verb_of,
)

_FLOATS: Final = {float}


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
      caller's thread. When it raises, or is slow for long, a thread takes over that reads the run and catches up.
    - ``"thread"`` (a tracker's object that is alive already): a thread of this process follows the run's files.
    - ``"process"`` (W&B): a process of its own follows them, with what training leaves of the cores. It outlives a
      killed training process for as long as it takes to deliver the rest.

    A replica never raises into training; what went wrong is one warning, :meth:`report`, and, with
    ``strict=True``, an error at :meth:`finish`. A follower whose tracker cannot be reached tries again and again;
    what no further attempt would mend (an error of a program, refused credentials) is said at once, and what is not
    sent can be sent later, with ``plattli send``. To let a tracker have less than the run, see
    :class:`loggers.Thinned`.
    """

    placement: Final = "inline"

    def __init__(
        self,
        primary: Any,
        *others: Any,
        finish_timeout: float = 30.0,
        strict: bool = False,
        poll: float = 0.25,
        attempts: int | None = None,
        first_wait: float = 1.0,
        longest_wait: float = 60.0,
    ) -> None:
        """Check the loggers. Nothing is started before the first verb.

        Args:
            primary: a logger whose run can be read back: ``PlattliLogger`` or ``JSONLogger``.
            *others: the replicas; ``None`` is left out.
            finish_timeout: seconds that :meth:`finish` waits for the replicas, all together.
            strict: raise :class:`~loggers.errors.UndeliveredError` at finish if a replica did not get
                everything, instead of warning.
            poll: seconds between two looks of a follower at the run.
            attempts: how often in a row, without progress, a follower's logger may fail until the rest is left to
                ``plattli send``. By default for as long as training lives, and ten times behind that.
            first_wait: seconds to wait after the first failure; each wait is twice the one before.
            longest_wait: seconds to wait at most. When training ends, the next attempt begins at once.

        Raises:
            ValueError: one of these numbers cannot be.
            MissingVerbError: a logger lacks a verb.
            TypeError: the primary's run cannot be read back, or a replica that wants a process of its
                own cannot be pickled.
        """
        _check("finish_timeout", finish_timeout, 0)
        _check("first_wait", first_wait, 0)
        _check("longest_wait", longest_wait, first_wait)
        if not 0 < poll < float("inf"):
            raise ValueError(f"poll must be seconds above 0, got {poll!r}")
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise ValueError(f"attempts must be an int of 1 or more, or None, got {attempts!r}")
        check_logger(primary)
        primary = as_logger(primary)
        pathless = hasattr(primary, "adopt") and getattr(primary, "path", None) is None
        if source_path(primary) is None and not pathless:
            raise TypeError(
                f"the first logger of a tee must be one whose run can be read back (PlattliLogger, JSONLogger), "
                f"got {type(primary).__name__}: the others are fed from its files"
            )
        self._primary = primary
        self._strict = strict
        self._finish_timeout = finish_timeout
        self._pid = os.getpid()
        #: held around every verb: threads of the caller may share a tee
        self._mutex = threading.RLock()
        self._started = False
        self._finished = False
        self._asked = False
        #: a replica has said that it can never start, so that nothing is written
        self._refused = False
        #: what happened to replicas and the caller has not been told yet
        self._news: list[str] = []
        self._replicas: list[Replica] = []
        options = Options(poll, Backoff(attempts, first_wait, longest_wait))
        for number, other in enumerate((o for o in others if o is not None), 1):
            check_logger(other)
            other = as_logger(other)
            self._replicas.append(_replica(other, f"{number}-{type(other).__name__}", options, self._news))
        #: the replicas that are called in turn; a tuple that is replaced when one falls behind
        self._inline = tuple(r for r in self._replicas if isinstance(r, Inline))
        self._log_primary = verb_of(primary, "log_metrics")
        #: names of metrics that the primary may have for itself
        self._reserved: tuple[str, ...] = primary.reserved(0) if hasattr(primary, "reserved") else ()
        _LIVE.add(self)

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
        failure: MetricValueError | None = None
        with self._mutex:  # replicas get lines in the order in which the primary has them
            if not self._asked:
                self._ask()
            # one line has one time, wherever it goes
            where = {"step": step, "epoch": epoch, "context": context, "walltime": time.time(), **axes}
            reached = 0
            try:
                try:
                    self._log_primary(given, **where)
                except MetricValueError as error:
                    failure = error  # every good value of the line is stored
                    values = _accepted(metrics, values, error)
                for name in self._reserved:
                    if name in values:
                        values = self._without_reserved(values, epoch)
                        break
                if not self._started:
                    self._start()
                begun = time.perf_counter()
                for replica in self._inline:
                    # the same as replica.call(), without its cost: this is the hot path
                    try:
                        replica.log_line(values, **where)
                        replica.delivered += 1
                    except Exception as error:
                        names = [f"{context}/{name}" for name in values]
                        replica.failed(error, Missed("log_metrics", names, int(step)))
                    ended = time.perf_counter()
                    if ended - begun > LONG_S:
                        replica.took(ended - begun)
                    begun = ended
                    reached += 1
            except BaseException as error:
                if not isinstance(error, Exception):
                    names = [f"{context}/{name}" for name in values]
                    self._interrupted(error, reached, Missed("log_metrics", names, int(step)))
                raise
            if self._news:
                self._speak()
        if failure is not None:
            raise failure

    def _interrupted(self, error: BaseException, reached: int, missed: Missed) -> None:
        """Let replicas that a Ctrl-C has kept from a line get it from the run, if the primary has it."""
        for replica in self._inline[reached:]:
            replica.failed(error, missed)

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
        with self._mutex:
            if not self._asked:
                self._ask()
            verb(self._primary, *args, **kwargs)
            if not self._started:
                self._start()
            missed = self._call(verb, args, kwargs)
            for replica in self._inline:
                replica.call(verb, missed, *args, **kwargs)
            self._speak()

    def _call(self, verb: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Missed:
        """Return what a replica lacks that does not take this call, which the primary has taken."""
        names: list[str] = []
        if verb is log_other:
            names = [f"other/{args[0]}"]
        elif verb is log_confusion:
            context = kwargs["context"]
            names = [kwargs["name"] if context is None else f"{context}/{kwargs['name']}"]
        step = kwargs.get("step")
        if step is None:
            step = max(logger_info(self._primary).get("step", 0), 0)
        return Missed(verb.__name__, names, int(step))

    def _without_reserved(self, values: Mapping[str, Any], epoch: int | None) -> Mapping[str, Any]:
        """Return what is left of a line without the metrics whose names the primary has for itself."""
        reserved = self._primary.reserved(epoch)
        return {name: value for name, value in values.items() if name not in reserved}

    def finish(self, status: str) -> None:
        """Finish the primary, then give the replicas ``finish_timeout`` seconds to get the rest.

        Every replica is reached, in reverse order, whatever the others do. One that does not get
        everything in time is stopped; what it misses is in the run, and the warning says how to send it.

        Raises:
            UndeliveredError: with ``strict=True``, if something is missing.
            Exception: what the primary raised; the tee can be finished again.
        """
        with self._mutex:
            if self._finished:
                raise LoggerFinishedError("the tee was finished before")
            if self._refused:
                check_status(status)
                return  # no verb got beyond that: there is nothing to end
            # what the primary raises (a status that is none, a full disk) ends nothing: finish can be called again
            finish(self._primary, check_status(status))
            if self._forked():
                return
            self._finished = True
            self._speak()  # who has failed and could not be moved yet can be now
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
        with self._mutex:
            self._speak()  # who has failed goes on elsewhere, and knows how far it is
            replicas: list[JSON] = [replica.entry() for replica in self._replicas]
            return {"primary": checkpoint_record(self._primary), "replicas": replicas}

    def reattach(self, state: Any) -> None:
        """Put the primary back to where the state was taken, and the replicas with it.

        A replica that was not in the tee when the state was taken receives the whole run. One that was, and
        has no state of its own (a JSON Lines file), goes on behind what it has: it cannot be cut, so it
        keeps the lines that came after the state. Raises what the primary raises.

        The state may be of the primary alone, from before there was a tee around it.
        """
        if not is_of_tee(state):
            state = {"primary": {"logger": type_name(self._primary), "state": state, "version": 1}, "replicas": []}
        if self._started:
            raise RecordError("this tee has begun to log already: reattach before logging anything")
        self._ask()
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

    @property
    def primary(self) -> Any:
        """The logger that keeps everything, as it was handed over; of a raw object its logger."""
        return self._primary

    def backend(self) -> Any:
        """Return the primary."""
        return self._primary

    @property
    def replicas(self) -> list[Any]:
        """The loggers beside the primary, as they were handed over; of a raw object its logger."""
        return [replica.logger for replica in self._replicas]

    def report(self) -> list[dict[str, JSON]]:
        """Return how far each replica is.

        Returns:
            Per replica: ``logger`` and ``placement``; ``delivered``, the verb calls that it has had, see below;
            ``pending``, the lines that it has not, and ``lag``, seconds since the oldest of these was logged, both
            ``None`` where the run cannot be read; ``restarts`` of its process; ``error``, why it gets nothing now;
            ``last_error``; and ``info``, what the logger says of itself.

            All verbs but ``finish`` count as delivered. A logger that is called in turn has those that this tee has
            made: after a resume, those since, without what a new one was sent of the run at its start. A process has
            those that it has made from the run's files, in all attempts: after a resume it goes on counting, calls
            that were taken back stay counted, and params and tags are one call each however many have logged them
            before it looked. A thread counts like a process, on top of the calls that were made in turn before it
            took over. So what is missing is ``pending``, and no difference of two of these.
        """
        run = source_path(self._primary)
        return [replica.report(run) for replica in self._replicas]

    def logger_info(self) -> dict[str, JSON]:
        """Return the primary's info, and the replicas' reports."""
        return {**logger_info(self._primary), "replicas": self.report()}

    def _run_path(self) -> Path:
        path = source_path(self._primary)
        if path is None:
            raise LoggerError(
                f"{type(self._primary).__name__} has no file that can be read back; give it one, or call "
                f"adopt(directory) first"
            )
        return path

    def _ask(self) -> None:
        """Let the replicas say, before anything is written, what would keep them from ever starting."""
        if not self._forked():
            self._refused = True
            for replica in self._replicas:
                if (preflight := getattr(replica.logger, "preflight", None)) is not None:
                    preflight()
            self._refused = False
        self._asked = True

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
        behind = [r for r in self._inline if r.broken is not None or r.is_slow] if self._started else []
        for broken in behind:
            waiting = getattr(self._primary, "waiting", list)
            try:
                follower = broken.fall_behind(self._run_path(), waiting())
            except Exception as error:  # the run cannot be read now: with the next line it is tried again
                if not broken.told:
                    broken.told = True
                    self._news.append(
                        f"{broken.name} {broken.why}, and gets the rest once the run can be read ({error})"
                    )
                continue
            self._replicas[self._replicas.index(broken)] = follower
        if behind:
            self._inline = tuple(r for r in self._replicas if isinstance(r, Inline))
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


#: Tees of this process, so that a fork's copies do not wait for threads that the child does not have.
_LIVE: Final[weakref.WeakSet[TeeLogger]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for tee in list(_LIVE):
        tee._mutex = threading.RLock()
        tee._inline = ()  # the run, and all that is told of it, are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _replica(logger: Any, key: str, options: Options, news: list[str]) -> Replica:
    """Return the replica that a logger asks to be, by its attribute ``placement``.

    Raises:
        ValueError: it is none that there is.
    """
    placement = getattr(logger, "placement", "inline")
    kinds: dict[str, type[Replica]] = {"inline": Inline, "thread": Thread, "process": Process}
    if placement not in kinds:
        raise ValueError(f"{type(logger).__name__}.placement must be one of {', '.join(kinds)}, got {placement!r}")
    return kinds[placement](logger, key, options, news)


def _check(name: str, seconds: float, least: float) -> None:
    if not seconds >= least:
        raise ValueError(f"{name} must be {least:g} or more seconds, got {seconds!r}")


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


__all__ = ["TeeLogger"]
