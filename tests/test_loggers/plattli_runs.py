"""What the tests of PlattliLogger share: a run as dictionaries, and functions that run in a process of their own."""

from __future__ import annotations

import json
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loggers.names import decode
from plattli import Reader

Points = dict[str, dict[int, Any]]


def stored(run: Path, reader: Reader | None = None) -> Points:
    """Return name -> step -> value of all metrics that have rows; each step once, in order."""
    if reader is None:
        with Reader(run) as reader:
            return stored(run, reader)
    found: Points = {}
    for name in reader.metrics():
        steps, values = reader.metric(name, dtype="storage")
        assert sorted(set(steps.tolist())) == steps.tolist(), f"{name}: steps out of order or doubled"
        if len(steps):
            found[decode(name)] = dict(zip(steps.tolist(), values.tolist(), strict=True))
    return found


def about(run: Path) -> dict[str, Any]:
    """Return the logger's own part of the config."""
    with Reader(run) as reader:
        return reader.config()["_run"]


def fork(program: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Run ``program(say)`` in a forked child; return its pid and the pipe's end with the lines it said.

    A child that fails says ``failed: ...`` and exits with 1.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads that are idle
        pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:
        os.close(read)
        program(lambda line: os.write(write, f"{line}\n".encode()))  # type: ignore[arg-type, return-value]
        code = 0
    except BaseException:
        os.write(write, f"failed: {json.dumps(traceback.format_exc())}\n".encode())
    finally:
        os._exit(code)


def in_child(program: Callable[[], Any]) -> str:
    """Return what ``program()`` returns in a forked child, or the name and text of its exception."""

    def run(say: Callable[[str], None]) -> None:
        try:
            say(repr(program()))
        except Exception as error:
            say(f"{type(error).__name__}: {error}")

    pid, read = fork(run)
    with os.fdopen(read) as pipe:
        said = pipe.read().strip()
    os.waitpid(pid, 0)
    return said
