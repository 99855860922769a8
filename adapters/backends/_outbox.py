"""A queue and the thread that empties it, for a client whose every call waits for a disk or a server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")

#: Seconds between two attempts, at most.
_LONGEST_PAUSE: float = 30.0


class Full(Exception):
    """The queue holds as much as it may, and what has to take it fails."""


class Outbox(Generic[Item]):
    """Sends items in order, as many at once as have come together while the last ones were sent.

    What cannot be sent stays, and is tried again; so ``send`` has to bear getting an item twice.

    Args:
        send: delivers some items; raises if it could not. Called in the outbox's own thread.
        is_final: whether an error of ``send`` is a refusal, which another attempt would not change. Then
            the items are sent one by one, and the one that is refused is put aside.
        limit: items that may wait.
        most: items sent at once.
        name: the thread's name.
        patience: seconds that :meth:`put` waits for room at most.
        first: items to begin with, however many.
    """

    def __init__(
        self,
        send: Callable[[list[Item]], None],
        *,
        is_final: Callable[[Exception], bool],
        limit: int,
        most: int,
        name: str,
        patience: float = 30.0,
        first: Iterable[Item] = (),
    ) -> None:
        self._send = send
        self._is_final = is_final
        self._limit = limit
        self._most = most
        self._patience = patience
        self._waiting: deque[Item] = deque(first)
        self._changed = threading.Condition()
        self._closing = False
        self._abandoned = False
        self._asked = False
        self._stuck = False  # a flush was in vain, and nothing was delivered since
        #: why the last attempt failed; ``None`` when it did not
        self.error: Exception | None = None
        #: what was refused, and why
        self.refused: list[tuple[Item, Exception]] = []
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue an item. Waits for room while the receiver is only slow.

        Raises:
            Full: there is no room, and the last attempt to make some failed, or hangs; the item is not queued.
        """
        with self._changed:
            while len(self._waiting) >= self._limit:
                if self.error is not None or not self._changed.wait(self._patience):
                    raise Full
            self._waiting.append(item)
            self._changed.notify_all()

    def pending(self) -> list[Item]:
        """Return what has not been delivered yet."""
        with self._changed:
            return [*self._waiting]

    def __len__(self) -> int:
        return len(self._waiting)

    def flush(self, timeout: float | None, *, again: bool = True) -> bool:
        """Wait until everything is delivered, or ``timeout`` seconds; return whether it is.

        Without ``again`` it does not wait where a flush before was in vain and nothing was delivered since.
        """
        if threading.current_thread() is self._thread:
            return False  # garbage is collected in any thread, and this one cannot wait for itself
        with self._changed:
            if self._stuck and not again:
                return not self._waiting
            self._asked = True  # an attempt now, not after the pause
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._waiting, timeout)
            self._stuck = not done
            return done

    def close(self, timeout: float | None) -> bool:
        """Flush, and end the thread; what could not be delivered by then is given up. Returns :meth:`flush`'s."""
        done = self.flush(timeout)
        with self._changed:
            self._closing = True
            self._abandoned = not done and threading.current_thread() is not self._thread
            self._changed.notify_all()
        if done:
            self._thread.join()
        return done

    def _work(self) -> None:
        failures, most = 0, self._most
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if self._abandoned or not self._waiting:
                    return
                batch = [item for item, _ in zip(self._waiting, range(most), strict=False)]
            error: Exception | None = None
            try:
                self._send(batch)
            except Exception as raised:
                error = raised
            final = error is not None and self._is_final(error)
            with self._changed:
                if error is not None and final and len(batch) > 1:
                    most = len(batch) // 2  # find the one that is refused
                    continue
                self.error = None if final else error
                if error is None or final:
                    if error is not None:
                        self.refused.append((batch[0], error))
                    for _ in batch:
                        self._waiting.popleft()
                    failures, most = 0, min(self._most, 2 * most)
                    self._stuck = False
                    self._changed.notify_all()
                    continue
                self._changed.notify_all()
                failures += 1
                pause = min(0.25 * 2.0**failures, _LONGEST_PAUSE)
                self._asked = False
                self._changed.wait_for(lambda: self._closing or self._asked, pause)


__all__ = ["Full", "Outbox"]
