"""What :mod:`tests.benchmarks.format` calls, in the words that both implementations know.

Loaded by the worker processes; the reference's has nothing but the reference and NumPy. What a call
returns is compared: whoever is faster must still say the same.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np


def digest(answer: Any) -> str:
    """Return a fingerprint of whatever a reader returned."""
    if isinstance(answer, np.ndarray) and answer.dtype != object:
        return hashlib.sha1(np.ascontiguousarray(answer).tobytes()).hexdigest()
    if isinstance(answer, np.ndarray | np.generic):
        answer = answer.tolist()
    if isinstance(answer, dict):
        return digest([[key, digest(value)] for key, value in answer.items()])
    if isinstance(answer, list | tuple) and any(isinstance(part, np.ndarray | np.generic | dict) for part in answer):
        return digest([digest(part) for part in answer])
    return hashlib.sha1(json.dumps(answer).encode()).hexdigest()


class Read:
    """A new Reader, and one question to it."""

    def __init__(self, root: str, method: str, arguments: dict[str, Any], **options: Any) -> None:
        import plattli

        self.reader = plattli.Reader
        self.root, self.method, self.arguments, self.options = root, method, arguments, options
        self.answer: Any = None

    def __call__(self, number: int) -> None:
        with self.reader(self.root, **self.options) as reader:
            self.answer = getattr(reader, self.method)(**self.arguments)

    def said(self) -> str:
        return digest(self.answer)


class ReadAgain(Read):
    """The same question to a Reader that is open."""

    def __init__(self, root: str, method: str, arguments: dict[str, Any], **options: Any) -> None:
        super().__init__(root, method, arguments, **options)
        self.open = self.reader(root, **options)

    def __call__(self, number: int) -> None:
        self.answer = getattr(self.open, self.method)(**self.arguments)

    def close(self) -> None:
        self.open.close()


class FromFile:
    """The bytes of a column, and as many steps: what reading them cannot do without."""

    def __init__(self, path: str, rows: int, offset: int = 0) -> None:
        self.path, self.rows, self.offset = path, rows, offset

    def __call__(self, number: int) -> None:
        self.answer = (
            np.arange(self.rows, dtype=np.uint32),
            np.fromfile(self.path, "<f4", self.rows, offset=self.offset),
        )

    def said(self) -> str:
        return digest(self.answer)


class Register:
    """New metrics, each with a ``write`` of its own."""

    def __init__(self, root: str, names: int, writer: str = "CompactingWriter") -> None:
        self.writer = make(root, writer)
        self.names = [f"group/metric-{i}" for i in range(names)]

    def __call__(self, number: int) -> None:
        for name in self.names:
            self.writer.write({name: 1.5})
        self.writer.end_step()


class Finish:
    """A run of a few rows of many metrics, which ends."""

    def __init__(self, root: str, metrics: int, rows: int, value: float, writer: str = "CompactingWriter") -> None:
        self.writer = make(root, writer)
        for row in range(rows):
            self.writer.write({f"group/metric-{i}": i * row + value for i in range(metrics)})
            self.writer.end_step()

    def __call__(self, number: int) -> None:
        self.writer.finish()


class Reopen:
    """A writer that goes on with a run."""

    def __init__(self, root: str, step: int, writer: str = "CompactingWriter") -> None:
        make(f"{root}-warm", writer)  # imports, and the pool of threads that some writers have
        self.arguments = root, writer, step
        self.writer: Any = None

    def __call__(self, number: int) -> None:
        root, writer, step = self.arguments
        self.writer = make(root, writer, step)


class ReopenArchive:
    """A writer that goes on with a run that was archived."""

    def __init__(self, root: str, step: int) -> None:
        import plattli

        self.open = plattli.CompactingWriter
        self.arguments = root, step
        self.writer: Any = None

    def __call__(self, number: int) -> None:
        self.writer = self.open(*self.arguments, hotsize=200, allow_resume_finalized=True)


class ReopenFinish(Reopen):
    """A run that is opened and ended: its steps are fitted, its columns closed and archived."""

    def __init__(self, root: str, step: int, writer: str = "CompactingWriter") -> None:
        super().__init__(root, step, writer)
        super().__call__(0)

    def __call__(self, number: int) -> None:
        self.writer.finish()


class Write:
    """Rows of floats, one per call."""

    def __init__(self, root: str, metrics: int, writer: str) -> None:
        self.writer = make(root, writer)
        self.rows = [{f"metric-{i}": (row + i) / 7 for i in range(metrics)} for row in range(8)]

    def __call__(self, number: int) -> None:
        self.writer.write(self.rows[number % 8])
        self.writer.end_step()


class BulkRun:
    """A whole run by ``BulkWriter``."""

    def __init__(self, root: str, metrics: int, rows: int) -> None:
        import plattli

        self.arguments = plattli.BulkWriter, root, rows
        self.rows = [{f"metric-{i}": (row + i) / 7 for i in range(metrics)} for row in range(8)]

    def __call__(self, number: int) -> None:
        bulk, root, rows = self.arguments
        writer = bulk(root, config={})
        for row in range(rows):
            writer.write(self.rows[row % 8])
            writer.end_step()
        writer.finish()


def make(root: str, writer: str, step: int = 0) -> Any:
    """Make a writer as a program for either implementation does."""
    import plattli

    options: dict[str, Any] = {"hotsize": 200} if writer == "CompactingWriter" else {}
    return getattr(plattli, writer)(root, step=step, config={}, **options)
