"""Rows that a thread of the writer moves into the columns while the caller goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from plattli._rowform import HotRows

#: For how many times as long as a batch took there should be no other one: each of the many system calls of a batch may
#: cost one call of the logger a turn at the interpreter's lock.
_REST: Final = 8


class Batch:
    """Rows on their way into the columns."""

    def __init__(self, rows: HotRows, move: Callable[[HotRows], None], *, told: bool = False) -> None:
        """Describe the work.

        Args:
            rows: what is to be moved.
            move: moves them; may be called again after it has failed.
            told: whether somebody has been told that it failed.
        """
        self.rows = rows
        #: why the last attempt failed
        self.error: Exception | None = None
        self.told = told
        #: when there may be another one, by ``time.monotonic``
        self.rested = 0.0
        self._move: Callable[[HotRows], None] | None = move
        # no Event: Ctrl-C inside its wait() can leave it locked, for the thread too
        self._over = False
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def run(self) -> None:
        """Do the work here and now, unless it is done."""
        move = self._move
        if move is None:
            return
        began = time.monotonic()
        try:
            move(self.rows)
        except Exception as error:  # told by whoever waits for the batch: the rows are still in the hot log
            self.error = error
        else:
            # the writer and the rows must not wait for the next batch, or for the cycle collector
            self._move, self.error, self.rows = None, None, HotRows()
        finally:
            now = time.monotonic()
            self.rested = now + _REST * (now - began)
            if not self._over:
                self._over = True
                self._waiting.release()

    def is_alive(self) -> bool:
        """Tell whether an attempt is still to end."""
        return not self._over

    def join(self) -> None:
        """Return when the work is done, or has failed."""
        if not self._over:
            with self._waiting:
                pass


class Background:
    """A thread that runs batches: one for all of them, because the caller would have to wait for each to start."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._batches: SimpleQueue[Batch | None]

    def begin(self, batch: Batch) -> None:
        """Have a batch run, or run it here and now if there is no thread to be had."""
        if self._thread is None:
            self._batches = SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._batches,), name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # a limit on threads, or the interpreter is going down
                self._thread = None
                batch.run()
                return
        self._batches.put(batch)

    def end(self) -> None:
        """Return when all batches are over and the thread is gone; a later batch starts another one.

        When Ctrl-C ends the wait, the next call waits again: a thread that is at work is never forgotten.
        """
        thread = self._thread
        if thread is None:
            return
        # the thread itself comes here if it held the last reference to a writer
        elsewhere = thread is not threading.current_thread()
        if elsewhere and thread.is_alive():
            # a batch behind all others, because a join that Ctrl-C ends takes the thread for stopped
            last = Batch(HotRows(), lambda rows: None)
            self._batches.put(last)
            last.join()
        self._thread = None
        self._batches.put(None)
        if elsewhere:
            with contextlib.suppress(RuntimeError):  # Ctrl-C ended its start: it has no batch
                thread.join()


def _serve(batches: SimpleQueue[Batch | None]) -> None:
    while (batch := batches.get()) is not None:
        batch.run()
        del batch
