"""SIGTERM as an exception, so that a run that is told to end gets to say so."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Terminated(SystemExit):
    """SIGTERM arrived. Uncaught, it ends the process with the code 143 that shells expect."""

    def __init__(self, code: int = 128 + signal.SIGTERM) -> None:
        super().__init__(code)


class SigtermWatch:
    """Raises :class:`Terminated` in the main thread when SIGTERM arrives between ``start`` and ``stop``.

    Used as a context manager it is a shield: a SIGTERM that arrives inside waits for the end of the
    block, so that no logger is torn out of a half-written line; a second one does not wait.

    A handler that was there before keeps its say: it is called, and nothing is raised, because if it
    returns it has chosen to go on.

    Attributes:
        seen: whether a SIGTERM has arrived.
        finishing: set it when the run ends anyway. A SIGTERM is then delivered after ``stop``.
    """

    def __init__(self) -> None:
        self.seen = False
        self.finishing = False
        self._shielded = False
        self._pending = False
        self._previous: Any = None
        self._handler: Any = None
        self._active = False

    def start(self) -> None:
        """Begin to watch, if this is the main thread and SIGTERM is not ignored."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous in (signal.SIG_IGN, None):  # None: installed from C, so it could not be put back
            return
        self._previous, self._handler, self._active = previous, self._on_sigterm, True
        signal.signal(signal.SIGTERM, self._handler)

    def stop(self) -> None:
        """Put the previous handler back, unless somebody has put another one on top of ours."""
        if not self._active:
            return
        self._active = False
        if signal.getsignal(signal.SIGTERM) == self._handler:
            signal.signal(signal.SIGTERM, self._beneath())
        if self._pending:
            signal.raise_signal(signal.SIGTERM)

    def __enter__(self) -> None:
        """Raise the shield."""
        self._shielded = True

    def __exit__(self, *exc_info: object) -> None:
        """Lower the shield; raise what it has kept out."""
        self._shielded = False
        if self._pending and not self.finishing:
            self._pending = False
            raise Terminated

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        first, self.seen = not self.seen, True
        previous = self._beneath()
        if callable(previous):
            previous(number, frame)
        elif not self._active:  # the handler on top of ours calls us still: do what would be done without us
            signal.signal(number, previous)
            signal.raise_signal(number)
        elif self.finishing or (self._shielded and first):
            self._pending = first
        else:
            self._pending = False
            raise Terminated

    def _beneath(self) -> Any:
        """Return the handler that was there before, looking through other watches that have stopped since."""
        previous = self._previous
        while isinstance(watch := getattr(previous, "__self__", None), SigtermWatch) and not watch._active:
            previous = watch._previous
        return previous
