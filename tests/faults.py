"""Let the disk fail: at the n-th file operation, for as many of them as a test wants."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import itertools
import os
from collections.abc import Callable, Iterator

from tests.killing import OPERATIONS


class Disk:
    """What the process believes its disk is.

    Attributes:
        operations: how many there were.
        failed: how many of them failed.
    """

    def __init__(self, code: int, first: float, count: float, below: str | None = None) -> None:
        self.operations = 0
        self._below = below
        self.failed = 0
        self._numbers = itertools.count(1)
        self._code, self._first, self._last = code, first, first + count

    def heal(self) -> None:
        """Let everything succeed from here on."""
        self._last = 0

    def check(self, path: object) -> None:
        """Count an operation, of whatever thread; fail if it is its turn."""
        if self._below is not None:
            place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)  # type: ignore[call-overload]
            if not str(place).startswith(self._below):
                return
        self.operations = number = next(self._numbers)
        if self._first <= number < self._last:
            self.failed += 1
            raise OSError(self._code, os.strerror(self._code), path if isinstance(path, str) else None)


@contextlib.contextmanager
def failing_disk(
    first: float = 1, count: float = float("inf"), code: int = errno.EIO, below: os.PathLike[str] | None = None
) -> Iterator[Disk]:
    """Let file operations that change something fail with ``code``, ``count`` of them from the ``first`` on.

    A write that fails has written half of its bytes, which is the worst that it may do.

    Args:
        first, count: which operations.
        code: what they fail with.
        below: only operations on files in this folder count; on Linux.
    """
    disk = Disk(code, first, count, None if below is None else os.fspath(below))

    def wrap(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def operation(*args: object, **kwargs: object) -> object:
            if name != "open" or args[1] & (os.O_CREAT | os.O_TRUNC):  # type: ignore[operator]
                try:
                    disk.check(args[0])
                except OSError:
                    if name in ("write", "pwrite"):
                        real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])  # type: ignore[arg-type, call-overload]
                    raise
            return real(*args, **kwargs)

        return operation

    def opened(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
        if any(letter in mode for letter in "wax+"):
            disk.check(file)
        return real_open(file, mode, *args, **kwargs)  # type: ignore[call-overload]

    real_open, before = io.open, {name: getattr(os, name) for name in OPERATIONS}
    for name in OPERATIONS:
        setattr(os, name, wrap(name))
    builtins.open = io.open = opened  # type: ignore[assignment]
    try:
        yield disk
    finally:
        for name, real in before.items():
            setattr(os, name, real)
        builtins.open = io.open = real_open  # type: ignore[misc]
