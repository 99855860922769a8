"""What loggers have in common whose data goes out on a thread: begin late, queue, say what fails, end once."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar, TypeAlias

from adapters.backends._outbox import Full, Outbox
from loggers.errors import LoggerFinishedError, UndeliveredError

#: One thing to send, as plain JSON data.
Operation: TypeAlias = list[Any]

#: Operations in one go.
_AT_ONCE: int = 200
#: Seconds that the last lines of an abandoned run get when its process ends.
_LAST_CHANCE_S: float = 10.0


class Queued:
    """The run of a logger, and the queue before it.

    A subclass has the verbs. It says how its run begins and ends, and queues operations with :meth:`_put`.
    """

    #: What the tracker is called.
    tracker: ClassVar[str]
    _id: str
    _finish_timeout: float | None
    _max_pending: int
    _unsent: list[Operation]  #: what an earlier process could not deliver

    def _set_idle(self) -> None:
        self._outbox: Outbox[Operation] | None = None
        self._turns = os.getpid(), threading.RLock()
        self._pid = 0  #: the process whose run it is, from the moment that it begins
        self._abandoned: Any = None
        self._status: str | None = None
        self._heard = 0  #: refusals that have been said
        self._news: list[str] = []
        self._told: set[str] = set()

    # --- what a subclass says ------------------------------------------------------------------------

    def _begin(self) -> tuple[Callable[[list[Operation]], None], Callable[[str], None]]:
        """Begin the run, or find it; return how to deliver operations, and how to end it with a status.

        Neither may hold on to the logger. To deliver twice has to be as good as once.
        """
        raise NotImplementedError

    def _first(self) -> Iterable[Operation]:
        """Yield what every start has to send."""
        return ()

    @staticmethod
    def _is_final(error: Exception) -> bool:
        """Return whether ``error`` is a refusal of the data, which another attempt would not change."""
        return False

    # --- the life of a run ---------------------------------------------------------------------------

    def _check_open(self, verb: str) -> None:
        if self._status is not None:
            name = type(self).__name__
            raise LoggerFinishedError(
                f"{verb} after finish({self._status!r}): {self.tracker} run {self._id} has ended; "
                f"build a new {name}, and reattach it to go on with this run"
            )

    def _forked(self) -> bool:
        return self._pid not in (0, os.getpid())

    def _turn(self) -> AbstractContextManager[object]:
        """Hold this while something is numbered, dated or begun: threads may share a logger."""
        if self._forked():
            return nullcontext()
        owner, lock = self._turns
        if owner != os.getpid():  # in a forked child a thread that is not there may hold the lock
            lock = threading.RLock()
            self._turns = os.getpid(), lock
        return lock

    def _own_outbox(self) -> Outbox[Operation] | None:
        """Return the queue, if there is one and it is this process's."""
        return None if self._forked() else self._outbox

    def _start(self) -> Outbox[Operation] | None:
        """Return the queue of the run, which begins if need be; ``None`` in a fork of the process that began it."""
        if self._forked():
            if "fork" not in self._told:
                self._told.add("fork")
                warnings.warn(
                    f"{self.tracker} run {self._id} belongs to process {self._pid}; this fork of it logs nothing",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return None
        if self._outbox is not None:
            return self._outbox
        with self._turn():
            return self._outbox or self._new_outbox()

    def _new_outbox(self) -> Outbox[Operation]:
        self._pid = os.getpid()  # first: who is forked meanwhile has no part in it
        try:
            deliver, end = self._begin()
        except BaseException:
            self._pid = 0
            raise
        self._outbox = outbox = Outbox(
            deliver,
            is_final=self._is_final,
            limit=self._max_pending,
            most=_AT_ONCE,
            name=f"{self.tracker.lower()}-{self._id}",
            first=(*self._unsent, *self._first()),
        )
        self._unsent = []
        self._end = end
        self._abandoned = weakref.finalize(self, _end_abandoned, self._pid, outbox, end)
        return outbox

    def _put(self, operation: Operation) -> None:
        """Queue an operation.

        Raises:
            UndeliveredError: the tracker takes nothing, and memory no more; it is not queued.
        """
        with self._turn():
            self._check_open("logging")  # another thread may have finished it meanwhile
            outbox = self._start()
            if outbox is None:
                return
            try:
                outbox.put(operation)
            except Full:
                raise UndeliveredError(
                    f"{self._undelivered(outbox)}, and no more may wait (max_pending={self._max_pending}): "
                    f"log to a TeeLogger with a local primary to train on without {self.tracker}"
                ) from outbox.error
        if self._news or outbox.error is not None or len(outbox.refused) > self._heard:
            self._speak(outbox)

    def _flush(self) -> list[Operation]:
        """Wait for the tracker, as long as ``finish_timeout``, once in an outage; return what it has not taken."""
        outbox = self._own_outbox()
        if outbox is None:
            return self._unsent
        if self._status is None:
            outbox.flush(self._finish_timeout, again=False)
        return outbox.pending()

    def _finish(self, status: str, last: Operation) -> None:
        """Send ``last``, and end the run when everything is there.

        Raises:
            UndeliveredError: it took too long; the run goes on.
        """
        outbox = self._start()
        if outbox is None:
            return
        with self._turn():
            self._put(last)
            if not outbox.flush(self._finish_timeout):
                raise UndeliveredError(
                    f"{self._undelivered(outbox)} after {self._finish_timeout} s: call finish again to go on "
                    "waiting; they are lost if this process ends before"
                )
            self._end(status)
            self._status = status
            self._abandoned.detach()
            outbox.close(None)
        self._speak(outbox)

    def _undelivered(self, outbox: Outbox[Operation]) -> str:
        why = "" if outbox.error is None else f" ({type(outbox.error).__name__}: {outbox.error})"
        return f"{self.tracker} has not taken {len(outbox)} calls of run {self._id}{why}"

    def _speak(self, outbox: Outbox[Operation]) -> None:
        """Say in the caller's thread what happened in the other: each thing once."""
        if outbox.error is None:
            self._told.discard("outage")
        elif "outage" not in self._told:
            self._told.add("outage")
            self._news.append(f"{self._undelivered(outbox)}; they wait in memory, and sending is tried again")
        new = outbox.refused[self._heard :]
        self._heard += len(new)
        self._news += [f"{self.tracker} refused {str(operation)[:200]}: {error}" for operation, error in new]
        while self._news:
            warnings.warn(self._news.pop(0), RuntimeWarning, stacklevel=4)


def _end_abandoned(pid: int, outbox: Outbox[Operation], end: Callable[[str], None]) -> None:
    """Deliver the rest of a run that nobody finished, and end it as failed."""
    if os.getpid() != pid:
        return
    outbox.close(_LAST_CHANCE_S)
    with suppress(Exception):  # nobody is there to be told
        end("error")
