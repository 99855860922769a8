"""The loggers beside a tee's primary: those that are called in turn, and those that a thread follows."""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn

from adapters._jobs import Backoff, Job, State, how_to_send, is_permanent, job_files
from loggers.contract import JSON
from loggers.errors import ConfusionError, MetricNameError, MetricValueError, StepError
from loggers.records import checkpoint_record, resume, type_name
from loggers.replay import Cursor, Lag, Missed, everything, lag, last_late_call, replay
from loggers.verbs import finish, logger_info, run_url, verb_of

#: What a logger says of a call that it cannot take, after it has taken what it can of it.
_REFUSALS: Final = (MetricValueError, MetricNameError, StepError, ConfusionError)


#: Seconds from which on a call of a replica counts as time that training waited.
LONG_S: Final = 0.001
#: Seconds that a replica that is called in turn has to end, however late it is.
_LEAST_S: Final = 1.0
#: Seconds, and a share of all time beside them, that training waits for a replica that is called in turn.
_ALLOWED_S, _ALLOWED_SHARE = 1.0, 0.1


class Options(NamedTuple):
    """What a user says of all followers of a tee."""

    poll: float
    backoff: Backoff


class _Over(Exception):
    """A follower in this process has been told to stop."""


class Behind(Exception):
    """The replica has failed before, and gets nothing until a thread goes on with it."""


class Replica:
    """What the tee knows of one logger beside the primary."""

    where: Literal["inline", "thread", "process"]

    def __init__(
        self, logger: Any, key: str, options: Options, news: list[str], recipe: bytes | None = None
    ) -> None:
        self.logger = logger
        self.key = key
        self.options = options
        self.error: str | None = None
        self.last_error: str | None = None
        self.delivered = 0
        self.restarts = 0
        #: the tee's list of what the caller has not been told yet
        self.news = news
        #: the caller knows that this replica is behind: one warning is enough
        self.told = False
        self.log_line = verb_of(logger, "log_metrics")
        #: it was in the tee at the state that is resumed; one that was not gets the whole run first
        self.known = True
        #: what makes such a logger in another process; ``None`` of one that is tied to this process
        self.recipe = recipe or _recipe(logger)
        if (hold_nothing := getattr(self._innermost, "hold_nothing", None)) is not None:
            hold_nothing()  # what it has not written is in the run, and lives longer there than in its memory

    @property
    def _innermost(self) -> Any:
        logger = self.logger
        while (inner := getattr(logger, "wrapped", None)) is not None:
            logger = inner
        return logger

    @property
    def name(self) -> str:
        """What people call it: a wrapper goes by what it wraps."""
        return type(self._innermost).__name__

    def owns(self, record: Any) -> bool:
        """Tell whether a record of a tee's state is of this replica's type."""
        return isinstance(record, Mapping) and record.get("logger") == type_name(self.logger)

    def end_predecessor(self, run: Path) -> None:
        """Let whoever worked for an earlier process on the same run come to an end."""

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        """Take the replica's entry of a tee's state, before :meth:`start`; ``None`` if there is none."""
        raise NotImplementedError

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        """Begin, or go on, with a run that is there."""
        raise NotImplementedError

    def finish(self, status: str, deadline: float) -> None:
        """Get the rest, and end, until a moment of the monotonic clock."""
        raise NotImplementedError

    def abandon(self, status: str) -> None:
        """End the replica without waiting for anything."""
        raise NotImplementedError

    def entry(self) -> dict[str, JSON]:
        """Return the replica's entry of a tee's state; with a cursor if it may not have all of the run."""
        # one without state has an entry all the same: it is in the tee, so it has what was logged until now
        return checkpoint_record(self.logger) or {"logger": type_name(self.logger), "state": None}

    def entry_if_possible(self) -> dict[str, JSON]:
        """Return :meth:`Replica.entry` of a logger that may be broken, and not even know what it has."""
        try:
            return Replica.entry(self)
        except Exception:
            return {"logger": type_name(self.logger), "state": None}

    def leave_job(self, run: Path, cursor: dict[str, JSON], entry: Mapping[str, Any]) -> bool:
        """Leave what is missing to ``plattli send``; return whether that was possible.

        Args:
            run: the run.
            cursor: what the logger has had.
            entry: its entry of a tee's state, of the same moment.
        """
        if self.recipe is None:
            return False
        record = plain_record(with_state(entry))
        files = job_files(run, self.key)
        try:
            files.folder.mkdir(parents=True, exist_ok=True)
            files.save_state(State(self.name, self.delivered, last_error=self.last_error, record=record, cursor=cursor))
            files.save_job(Job(run.resolve(), self.recipe, record, self.options.poll, 0, list(sys.path)))
        except OSError:
            return False
        return True

    def url(self) -> str | None:
        """Return where people can look at the run."""
        return run_url(self.logger)

    def info(self) -> dict[str, Any]:
        """Return what the logger says of itself."""
        return logger_info(self.logger)

    def missing(self, run: Path) -> str | None:
        """Return what to tell the user if the replica has not got everything."""
        raise NotImplementedError

    def lag(self, run: Path) -> Lag:
        """Return how far it is behind the run."""
        raise NotImplementedError

    def report(self, run: Path | None) -> dict[str, JSON]:
        """Return what :meth:`adapters.TeeLogger.report` does, of this replica."""
        behind = None
        if run is not None:
            with contextlib.suppress(OSError, ValueError):  # there is no run yet, or it cannot be read now
                behind = self.lag(run)
        return {
            "logger": self.name,
            "placement": self.where,
            "delivered": self.delivered,
            "pending": None if behind is None else behind.lines,
            "lag": None if behind is None else round(behind.seconds, 3),
            "restarts": self.restarts,
            "error": self.error,
            "last_error": self.last_error,
            "info": self.info(),
        }


class Inline(Replica):
    """Called in turn, in the caller's thread."""

    where = "inline"

    def __init__(self, logger: Any, key: str, options: Options, news: list[str]) -> None:
        super().__init__(logger, key, options, news)
        #: what it raised, if that was the last call of it
        self.broken: BaseException | None = None
        #: training has waited for it too long
        self.is_slow = False
        self._waited = 0.0
        self._since = time.monotonic()
        #: the calls that it has not had since, or not all of
        self._missed: list[Missed] = []
        #: how far it had come when it began, if that was not the end of the run
        self._cursor: Cursor | None = None
        self._refused: set[str] = set()
        #: what a process before may have been killed in, between the primary and this replica
        self._unsure: list[Missed] = []

    def end_predecessor(self, run: Path) -> None:
        """See :class:`Replica`."""
        with contextlib.suppress(OSError, ValueError):  # the primary says what is wrong with its run
            self._unsure = last_late_call(run)

    def call(self, verb: Any, missed: Missed, *args: Any, **kwargs: Any) -> None:
        """Make a verb call, of which ``missed`` says what is missing if it fails."""
        begun = time.perf_counter()
        try:
            if self.broken is not None or self.is_slow:
                raise Behind
            verb(self.logger, *args, **kwargs)
            self.delivered += 1
        except Exception as error:
            self.failed(error, missed)
        self.took(time.perf_counter() - begun)

    def took(self, seconds: float) -> None:
        """Count what training waited for it; no more than a tenth of the time, beside a second."""
        self._waited += seconds
        if not self.is_slow and self._waited > _ALLOWED_S + _ALLOWED_SHARE * (time.monotonic() - self._since):
            self.is_slow, self.log_line = True, _skip
            self.news.append("")

    @property
    def why(self) -> str:
        """Why it cannot be called in turn any more."""
        if self.broken is None:
            return f"is slow (training waited {self._waited:.1f} s for it)"
        return f"failed ({type(self.broken).__name__}: {self.broken})"

    def failed(self, error: BaseException, missed: Missed) -> None:
        """Take note of a verb call that raised."""
        if isinstance(error, _REFUSALS):
            # its siblings are written; the value itself is something this backend cannot show
            if (message := str(error)) not in self._refused and len(self._refused) < 32:
                self._refused.add(message)
                self.news.append(f"{self.name}: {message}")
            return
        if self.broken is None and not self.is_slow:
            self.broken = error
            self.log_line = _skip
        self._missed.append(missed)
        self.news.append("")  # the tee has to look at its replicas

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        """See :class:`Replica`."""
        self.known = record is not None
        if record is not None and record.get("cursor") is not None:
            self._cursor = Cursor.from_json(record["cursor"])
        try:
            resume(self.logger, with_state(record))
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        self.broken, self.log_line = error, _skip
        self.news.append("")

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        """See :class:`Replica`."""
        _forget_job(run, self.key)
        if not resumed:
            return
        if not self.known:
            self._cursor = Cursor()
        elif self._cursor is None and self._unsure:  # twice is better than not at all
            self._cursor = everything(run, (), self._unsure)
        if self._cursor is not None and self.broken is None:
            try:
                replay(run, self.logger, since=self._cursor, finish=False)
                self._cursor = None
            except Exception as error:
                self._break(error)

    def fall_behind(self, run: Path, waiting: list[Any]) -> Thread:
        """Return the follower that goes on in place of this replica.

        Args:
            run: the run, which can be read.
            waiting: what was logged and is not in the run yet; see :func:`loggers.replay.everything`.
        """
        cursor = self._cursor if self._cursor is not None else everything(run, waiting, self._missed)
        follower = Thread(self.logger, self.key, self.options, self.news, self.recipe)
        follower.delivered = self.delivered
        if self.broken is not None:
            follower.error = follower.last_error = f"{type(self.broken).__name__}: {self.broken}"
            follower.told = True
        given_up = self.broken is not None and is_permanent(self.broken)
        if given_up:
            self.news.append(
                f"{self.name} {self.why} and is left behind: that is no outage, so it is not tried again; training "
                f"goes on, and all lines are in {run}, for plattli replay to send"
            )
        else:
            self.news.append(
                f"{self.name} {self.why}; a thread goes on with it from what is stored in {run}, and training goes on "
                f"without waiting for it"
            )
        follower.begin(run, cursor, given_up=given_up)
        return follower

    def entry(self) -> dict[str, JSON]:
        """See :class:`Replica`."""
        if self.broken is None and not self.is_slow:
            return super().entry()
        # the run cannot be read now, so nobody can tell what it lacks: twice is better than not at all
        return {**self.entry_if_possible(), "cursor": Cursor().to_json()}

    def finish(self, status: str, deadline: float) -> None:
        """See :class:`Replica`."""
        if self.broken is not None or self.is_slow:  # and the run could not be read since
            self.error = self.last_error = self.why
            return
        # in a thread, since nothing else ends a call that never returns
        self.error = "it did not return in time"
        ending = threading.Thread(target=self._finish, args=(status,), name=f"finish-{self.key}", daemon=True)
        ending.start()
        ending.join(max(deadline - time.monotonic(), _LEAST_S))

    def _finish(self, status: str) -> None:
        try:
            finish(self.logger, status)
            self.error = None
        except Exception as error:
            self.error = self.last_error = f"{type(error).__name__}: {error}"

    def abandon(self, status: str) -> None:
        """See :class:`Replica`."""
        self.finish(status, 0.0)

    def missing(self, run: Path) -> str | None:
        """See :class:`Replica`."""
        if self.error is None:
            return None
        if self.broken is not None or self.is_slow:
            return f"{self.name} did not get everything ({self.error}); the whole run is in {run}"
        with contextlib.suppress(OSError, ValueError):  # the run cannot be read
            if self.leave_job(run, everything(run).to_json(), self.entry_if_possible()):
                return f"{self.name} could not be finished: {self.error}. {how_to_send(run)}"
        return f"{self.name} could not be finished: {self.error}; all lines are in {run}"

    def lag(self, run: Path) -> Lag:
        """See :class:`Replica`."""
        return Lag(len(self._missed), 0.0)


class Thread(Replica):
    """Followed by a thread, because the backend object is alive in this process."""

    where = "thread"

    def __init__(
        self, logger: Any, key: str, options: Options, news: list[str], recipe: bytes | None = None
    ) -> None:
        super().__init__(logger, key, options, news, recipe)
        self._cursor: Cursor | None = None
        #: set at finish: from then on one more failure is the last
        self._closing = threading.Event()
        #: set when there is no time left
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, run: Path, cursor: Cursor, *, given_up: bool = False) -> None:
        """Go on with a logger that has what the cursor says; or do not, and only know how far it is."""
        self._cursor, self._given_up = cursor, given_up
        self._before = self.delivered
        #: where the logger was when it was last asked, and its entry of a tee's state then
        self._noted: tuple[dict[str, JSON], dict[str, JSON]] = cursor.to_json(), self.entry_if_possible()
        if not given_up:
            self._thread = threading.Thread(
                target=self._follow, args=(run, cursor), name=f"follower-{self.key}", daemon=True
            )
            self._thread.start()

    def prepare(self, record: Mapping[str, Any] | None) -> None:
        """See :class:`Replica`."""
        self.known = record is not None
        if record is not None and record.get("cursor") is not None:
            self._cursor = Cursor.from_json(record["cursor"])
        try:
            resume(self.logger, with_state(record))
        except Exception as error:
            self.error = self.last_error = f"{type(error).__name__}: {error}"
            self.news.append(
                f"{self.name} cannot go on with its run ({self.error}) and gets nothing more; training goes on"
            )
            self.told = True

    def start(self, run: Path, run_id: str | None, *, resumed: bool) -> None:
        """See :class:`Replica`."""
        if resumed and self.known and self._cursor is None:
            self._cursor = everything(run)  # it was called in turn then
        _forget_job(run, self.key)
        self.begin(run, self._cursor or Cursor(), given_up=self.error is not None)

    def entry(self) -> dict[str, JSON]:
        """See :class:`Replica`: of the moment at which the thread last looked, so that both belong together."""
        if self._cursor is None:  # nothing has begun
            return super().entry()
        cursor, entry = self._noted
        return {**entry, "cursor": cursor}

    def _follow(self, run: Path, cursor: Cursor) -> None:
        failures, lines = 0, cursor.lines
        while not cursor.finished:
            closing = self._closing.is_set()
            try:
                replay(run, self.logger, since=cursor, follow=True, poll=self.options.poll, progress=self._note)
            except _Over:
                return
            except Exception as error:
                self.error = self.last_error = f"{type(error).__name__}: {error}"
                failures = 1 if cursor.lines > lines else failures + 1
                lines = cursor.lines
                if closing or is_permanent(error) or self.options.backoff.is_over(failures, orphaned=False):
                    return
                self._closing.wait(self.options.backoff.wait(failures))

    def _note(self, cursor: Cursor) -> None:
        if self._before + cursor.lines != self.delivered or cursor.finished:
            self.error = None
            self.delivered = self._before + cursor.lines
            self._noted = cursor.to_json(), self.entry_if_possible()
        if self._over.is_set() and not cursor.finished:
            raise _Over

    def finish(self, status: str, deadline: float) -> None:
        """See :class:`Replica`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
            self._over.set()
            self._thread.join(_LEAST_S)  # it stops behind the call that it is in

    def abandon(self, status: str) -> None:
        """See :class:`Replica`."""
        self._closing.set()
        self._over.set()

    def missing(self, run: Path) -> str | None:
        """See :class:`Replica`."""
        if self._cursor is None or self._cursor.finished:
            return None
        why = self.error or "it was too slow"
        if not self._given_up and self.leave_job(run, *self._noted):
            self.told = False  # the caller knows why, but not what to do
            return f"{self.name} did not get everything ({why}). {how_to_send(run)}"
        return f"{self.name} did not get everything ({why}); the whole run is in {run}, for plattli replay to send"

    def lag(self, run: Path) -> Lag:
        """See :class:`Replica`."""
        return lag(run, Cursor() if self._cursor is None else Cursor.from_json(self._noted[0]))


def _recipe(logger: Any) -> bytes | None:
    """Return what makes such a logger in another process; ``None`` of one that is tied to this process."""
    try:
        return pickle.dumps(logger)
    except Exception:  # whatever its parts say to that
        return None


def _forget_job(run: Path, key: str) -> None:
    """What an earlier process could not deliver is ours to deliver."""
    with contextlib.suppress(OSError):
        job_files(run, key).forget()


def plain_record(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a replica's entry of a tee's state without what is the tee's."""
    return None if record is None else {key: value for key, value in record.items() if key != "cursor"}


def _skip(*args: Any, **kwargs: Any) -> NoReturn:
    raise Behind


def with_state(record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a replica's entry of a tee's state, if there is anything in it to reattach."""
    return None if record is None or record.get("state") is None else record
