"""Backends for the tests of the fan-out: they keep what they get in a file, and fail on demand.

A follower process imports this module to unpickle them, so they live here and not in a test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from adapters import WandbLogger


class FileLogger:
    """Appends every verb call to a file as a JSON line."""

    placement: str = "inline"

    def __init__(self, path: Path, *, placement: str = "inline") -> None:
        self.path_of_calls = path
        self.placement = placement

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        with self.path_of_calls.open("a") as file:
            file.write(json.dumps([verb, args, kwargs]) + "\n")

    def log_metrics(self, metrics: Any, **place: Any) -> None:
        self._note("log_metrics", dict(metrics), **place)

    def log_params(self, params: Any) -> None:
        self._note("log_params", dict(params))

    def log_tags(self, tags: Any) -> None:
        self._note("log_tags", tags)

    def log_other(self, key: str, value: Any) -> None:
        self._note("log_other", key, value)

    def log_confusion(self, matrix: Any, labels: Any, **place: Any) -> None:
        self._note("log_confusion", matrix, labels, **place)

    def finish(self, status: str) -> None:
        self._note("finish", status)

    def run_id(self) -> None:
        """It has none."""

    def run_url(self) -> None:
        """It has none."""

    def logger_state(self) -> dict[str, str]:
        return {"path": str(self.path_of_calls)}

    def reattach(self, state: Any) -> None:
        self._note("reattach", state)


class FailingLogger(FileLogger):
    """Raises in the verbs named, always or until a file appears."""

    def __init__(self, path: Path, verbs: tuple[str, ...], *, placement: str = "inline", until: Path | None = None):
        super().__init__(path, placement=placement)
        self.verbs = verbs
        self.until = until

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb in self.verbs and (self.until is None or not self.until.exists()):
            raise RuntimeError(f"no {verb} today")
        super()._note(verb, *args, **kwargs)


class HangingLogger(FileLogger):
    """Never returns from the verbs named."""

    def __init__(self, path: Path, verbs: tuple[str, ...], *, placement: str = "process"):
        super().__init__(path, placement=placement)
        self.verbs = verbs

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb in self.verbs:
            signal.pause()
        super()._note(verb, *args, **kwargs)


class DyingLogger(FileLogger):
    """Kills its process once, at the n-th line: what a crash of a tracker's own code amounts to."""

    def __init__(self, path: Path, at: int):
        super().__init__(path, placement="process")
        self.at = at

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        died = self.path_of_calls.with_suffix(".died")
        if not died.exists() and len(calls(self.path_of_calls)) == self.at:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super()._note(verb, *args, **kwargs)


class HelpedLogger(FileLogger):
    """Works in a process of its own, with a helper process in a session of its own."""

    def __init__(self, path: Path):
        super().__init__(path, placement="process")
        self.helper: subprocess.Popen[bytes] | None = None

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if self.helper is None:
            self.helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
            draft = self.path_of_calls.with_suffix(".draft")
            draft.write_text(f"{os.getpid()} {self.helper.pid}")
            draft.replace(self.path_of_calls.with_suffix(".pids"))
        super()._note(verb, *args, **kwargs)
        if verb == "finish" and self.helper.stdin is not None:
            self.helper.stdin.close()
            self.helper.wait()

    def pids(self) -> list[int] | None:
        """Return those of the follower and the helper, ``None`` before they have begun."""
        path = self.path_of_calls.with_suffix(".pids")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else None


def calls(path: Path) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Return the calls noted in a file: verb, arguments, keyword arguments."""
    if not path.exists():
        return []
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def points(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """Return the metrics of a file of calls: full name -> (step, value) in the order received."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for verb, args, place in calls(path):
        if verb == "log_metrics":
            for name, value in args[0].items():
                found.setdefault(f"{place['context']}/{name}", []).append((place["step"], value))
    return found


PATIENCE_S: Final = 240.0


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail when it does not come to hold."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class RaisingWandb(WandbLogger):
    """A W&B logger whose lines raise."""

    def log_metrics(self, metrics: Any, **place: Any) -> None:
        raise ConnectionResetError("the tracker is broken")


class MemoryLogger:
    """Keeps what it gets, and raises what it is told to, when it is told to."""

    placement: str = "inline"

    def __init__(self, *, placement: str = "inline") -> None:
        self.placement = placement
        self.values: list[tuple[str, int, Any]] = []
        self.verbs: list[str] = []
        self.error: Exception | None = None

    def _take(self, verb: str) -> None:
        if self.error is not None:
            raise self.error
        self.verbs.append(verb)

    def log_metrics(self, metrics: Any, *, step: int, epoch: Any = None, context: str = "train", **axes: Any) -> None:
        self._take("log_metrics")
        self.values += [(f"{context}/{name}", step, value) for name, value in metrics.items()]

    def log_params(self, params: Any) -> None:
        self._take("log_params")

    def log_tags(self, tags: Any) -> None:
        self._take("log_tags")

    def log_other(self, key: str, value: Any) -> None:
        self._take("log_other")
        self.values.append((key, -1, value))

    def log_confusion(
        self, matrix: Any, labels: Any, *, epoch: Any = None, step: Any = None, context: Any = None, name: str = ""
    ) -> None:
        self._take("log_confusion")
        self.values.append((name, -1, matrix))

    def finish(self, status: str) -> None:
        self._take(f"finish {status}")

    def run_id(self) -> None:
        """It has none."""

    def run_url(self) -> None:
        """It has none."""

    def logger_state(self) -> dict[str, Any] | None:
        return {"count": len(self.values)}

    def reattach(self, state: Any) -> None:
        del self.values[state["count"] :]


class SlowLogger(FileLogger):
    """Takes 100 ms for each line, until a file appears."""

    def __init__(self, path: Path, *, placement: str = "inline", until: Path) -> None:
        super().__init__(path, placement=placement)
        self.until = until

    def _note(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics" and not self.until.exists():
            time.sleep(0.1)
        super()._note(verb, *args, **kwargs)


class CuttingLogger(FileLogger):
    """Goes back to where its state was taken, as a tracker does that can be cut."""

    def logger_state(self) -> dict[str, Any]:
        return {"size": self.path_of_calls.stat().st_size if self.path_of_calls.exists() else 0}

    def reattach(self, state: Any) -> None:
        if self.path_of_calls.exists():
            os.truncate(self.path_of_calls, state["size"])
