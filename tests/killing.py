"""Run a program in a forked child that is killed at its n-th file operation.

A kill between two system calls is what ``kill -9`` amounts to: what the calls before did is in the
operating system, and nothing of the rest happens. :func:`every_kill` tries n = 1, 2, … until the program
runs to its end, so no operation is left out.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

#: What changes a file system. A write is killed before it and, as a torn one, in its middle.
OPERATIONS = (
    "open", "write", "pwrite", "rename", "replace", "unlink", "remove", "ftruncate", "truncate", "mkdir", "rmdir",
    "symlink", "fsync",
)  # fmt: skip


class _Countdown:
    def __init__(self, at: int) -> None:
        self._at = at
        self._numbers = itertools.count(1)

    def is_here(self) -> bool:
        """Count an operation, of whatever thread; tell whether it is the last one."""
        return next(self._numbers) == self._at

    def wrap(self, name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def operation(*args: object, **kwargs: object) -> object:
            if name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC):  # type: ignore[operator]
                return real(*args, **kwargs)
            if self.is_here():
                if name in ("write", "pwrite") and len(args[1]) > 1:  # type: ignore[arg-type]
                    real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])  # type: ignore[arg-type, call-overload]
                os._exit(9)
            return real(*args, **kwargs)

        return operation

    def wrap_open(self) -> Callable[..., object]:
        real = io.open

        def opened(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
            if any(letter in mode for letter in "wax+") and self.is_here():
                os._exit(9)
            return real(file, mode, *args, **kwargs)  # type: ignore[call-overload]

        return opened


def run_killed(program: Callable[[Callable[[object], None]], None], at: int) -> tuple[list[str], bool]:
    """Run ``program(acknowledge)`` in a child that dies at file operation ``at``.

    Returns:
        What was acknowledged, as text, and whether the program came to its end.
    """
    read, write = os.pipe()
    real_write = os.write
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads that are idle
        pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            countdown = _Countdown(at)
            for name in OPERATIONS:
                setattr(os, name, countdown.wrap(name))
            builtins.open = io.open = countdown.wrap_open()  # type: ignore[assignment]
            program(lambda fact: real_write(write, f"{fact}\n".encode()))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        acknowledged = pipe.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 9):
        raise AssertionError(f"the program failed with code {code} at operation {at}")
    return acknowledged, code == 0


def every_kill(
    program: Callable[[Path, Callable[[object], None]], None], directory: Path, prepare: Path | None = None
) -> Iterator[tuple[int, Path, list[str]]]:
    """Yield (n, run root, acknowledged) for a program killed at each of its operations, then not at all."""
    n = 0
    while True:
        n += 1
        run = directory / "run"
        if run.exists():
            shutil.rmtree(run)
        if prepare is not None:
            shutil.copytree(prepare, run, symlinks=True)
        acknowledged, done = run_killed(lambda acknowledge, run=run: program(run, acknowledge), n)  # type: ignore[misc]
        yield n, run, acknowledged
        if done:
            return


__all__ = ["OPERATIONS", "every_kill", "run_killed"]
