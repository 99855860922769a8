"""A writer in a thread that stops before its n-th file operation, while somebody looks at what it has left so far."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator

from tests.killing import OPERATIONS


class Stepper:
    """Runs a program, a few file operations at a time.

    Attributes:
        operations: how many there were.
        is_over: the program has ended.
    """

    def __init__(self, program: Callable[[], object]) -> None:
        self.operations = 0
        self.is_over = False
        self.error: BaseException | None = None
        self._program = program
        self._allowed = 0
        self._changed = threading.Condition()
        self._is_waiting = False
        self._thread = threading.Thread(target=self._run)

    def advance(self, operations: int) -> None:
        """Return when the program is about to do the operation after the next ``operations``, or has ended."""
        with self._changed:
            self._allowed += operations
            self._is_waiting = False
            self._changed.notify_all()
            if not self._thread.is_alive() and not self.is_over:
                self._thread.start()
            self._changed.wait_for(lambda: self._is_waiting or self.is_over)
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Let the program run to its end."""
        self.advance(1_000_000)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._program()
        except BaseException as error:
            self.error = error
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def _step(self) -> None:
        if threading.current_thread() is not self._thread:
            return
        with self._changed:
            if self.operations >= self._allowed:
                self._is_waiting = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.operations < self._allowed)
            self.operations += 1


@contextlib.contextmanager
def stepping(program: Callable[[], object]) -> Iterator[Stepper]:
    """Have ``program`` run step by step, in a thread of its own; at the end, to its end."""
    stepper = Stepper(program)

    def wrap(real: Callable[..., object], changes: Callable[..., bool]) -> Callable[..., object]:
        def operation(*args: object, **kwargs: object) -> object:
            if changes(*args):
                stepper._step()
            return real(*args, **kwargs)

        return operation

    def opens_to_write(path: object, mode: object = "r", *_: object) -> bool:
        if isinstance(mode, int):
            return bool(mode & (os.O_CREAT | os.O_TRUNC))
        return any(letter in str(mode) for letter in "wax+")

    before = {name: getattr(os, name) for name in OPERATIONS}
    opened = io.open
    for name, real in before.items():
        setattr(os, name, wrap(real, opens_to_write if name == "open" else lambda *_: True))
    builtins.open = io.open = wrap(opened, opens_to_write)  # type: ignore[assignment]
    try:
        yield stepper
        stepper.finish()
    finally:
        for name, real in before.items():
            setattr(os, name, real)
        builtins.open = io.open = opened  # type: ignore[misc]
