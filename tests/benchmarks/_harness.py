"""What every benchmark is made of: sides in processes of their own, turns, medians, verdicts, a table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_WORKER: Final = Path(__file__).with_name("_worker.py")


# ---- one side of a comparison -----------------------------------------------------------------------


class Side:
    """A process that measures one side, see :mod:`tests.benchmarks._worker`."""

    def __init__(self, subjects: Path, interpreter: Path | None = None, *, prefix: Iterable[str] = ()) -> None:
        """Start it: with our package, or with whatever ``interpreter`` has installed."""
        roots = [str(ROOT)] if interpreter is None else []
        self._process = subprocess.Popen(
            [*prefix, str(interpreter or sys.executable), "-I", str(_WORKER), str(subjects), *roots],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # trackers talk; what a subject raises comes as an answer
            text=True,
            env={**os.environ, "WANDB_SILENT": "true", "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"},
        )

    def do(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            RuntimeError: the subject raised, or the process ended.
        """
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        process.stdin.write(json.dumps([request, arguments]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "crash" in answer:
            raise RuntimeError(answer["crash"])
        return answer

    def once(self, limit: float) -> dict[str, Any]:
        """Send ``once``; after ``limit`` seconds end the process, and return the limit as the time."""
        timer = threading.Timer(limit, self._process.kill)
        timer.start()
        begin = time.perf_counter()
        try:
            return {**self.do("once"), "stopped": False}
        except RuntimeError:
            if time.perf_counter() - begin < limit:
                raise
            return {"s": limit, "cpu": limit, "peak_kib": 0, "stopped": True}
        finally:
            timer.cancel()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# ---- figures and verdicts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a ratio has to be."""

    #: ours is at least this many times faster: the ratio is peer / ours
    faster: float | None = None
    #: ours costs at most this many times the peer: the ratio is ours / peer
    within: float | None = None
    #: ours is at most this much more, in the unit of the row
    beyond: float | None = None

    def ratio(self, ours: float, peer: float) -> float:
        if self.beyond is not None:
            return ours - peer
        top, bottom = (ours, peer) if self.within is not None else (peer, ours)
        return top / bottom if bottom else float("inf")

    def met(self, ratio: float) -> bool:
        if self.beyond is not None:
            return ratio <= self.beyond
        return ratio <= self.within if self.within is not None else ratio >= (self.faster or 0.0)

    def __str__(self) -> str:
        if self.beyond is not None:
            return f"<= +{self.beyond:g}"
        return f"<= {self.within:g}x" if self.within is not None else f">= {self.faster:g}x faster"


@dataclass
class Row:
    """One line of the table.

    Without a target, or a peer, the row is only reported. ``passed`` overrides what the ratio says.
    """

    name: str
    ours: float | None
    unit: str
    peer_name: str = ""
    peer: float | None = None
    target: Target | None = None
    note: str = ""
    passed: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.ours is None or self.peer is None:
            return None
        return (self.target or Target(faster=0.0)).ratio(self.ours, self.peer)

    @property
    def verdict(self) -> str:
        passed = self.passed
        if passed is None and self.target is not None and self.ratio is not None:
            passed = self.target.met(self.ratio)
        return "reported" if passed is None else "pass" if passed else "FAIL"

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return {
            "name": self.name,
            "ours": self.ours,
            "unit": self.unit,
            "peer": self.peer_name,
            "peer_value": self.peer,
            "ratio": self.ratio,
            "target": None if self.target is None else str(self.target),
            "verdict": self.verdict,
            "note": self.note,
            **self.more,
        }


#: unit -> (factor below which the next smaller one reads better, that one)
_SMALLER: Final = {"s": (1e-1, 1e3, "ms"), "ms": (1e-1, 1e3, "us"), "MB": (1e-1, 1e3, "kB")}


def amount(value: float | None, unit: str) -> str:
    """Return a figure with three digits and its unit."""
    if value is None:
        return ""
    while unit in _SMALLER and 0 < abs(value) < _SMALLER[unit][0]:
        _, factor, unit = _SMALLER[unit]
        value *= factor
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 100 else f"{value:.3g} {unit}".strip()


def table(rows: Iterable[Row]) -> str:
    """Return all rows as one table."""
    lines = [("name", "ours", "peer", "", "ratio", "target", "verdict", "note")]
    for row in rows:
        ratio = row.ratio
        sign = "" if row.target is not None and row.target.beyond is not None else "x"
        lines.append(
            (
                row.name,
                amount(row.ours, row.unit),
                row.peer_name,
                amount(row.peer, row.unit),
                "" if ratio is None else (f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}") + sign,
                "" if row.target is None else str(row.target),
                row.verdict,
                row.note,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]) - 1)]
    right = (1, 3, 4)
    return "\n".join(
        "  ".join(
            [
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line[:-1], widths, strict=True))
            ]
            + [line[-1]]
        ).rstrip()
        for line in lines
    )


# ---- measuring ----------------------------------------------------------------------------------------


@dataclass
class Latency:
    """What single calls cost, in microseconds, and what all threads needed for them."""

    chunks: list[list[int]] = field(default_factory=list)  # ns
    cpu: list[float] = field(default_factory=list)  # s
    written: list[int] = field(default_factory=list)

    def add(self, answer: dict[str, Any], keep: slice = slice(None)) -> None:
        """Take the answer to one ``calls`` request."""
        self.chunks.append(answer["ns"][keep])
        self.cpu.append(answer["cpu"])
        self.written.append(answer["bytes"])

    def quantile(self, q: float) -> float:
        """Return the median over repetitions of each one's quantile."""
        return statistics.median(_quantile(chunk, q) for chunk in self.chunks) / 1e3

    @property
    def p50(self) -> float:
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        return self.quantile(0.99)

    def per_line(self, figures: list[float] | list[int]) -> float:
        """Return a figure of whole repetitions, by line."""
        return statistics.median(f / len(chunk) for f, chunk in zip(figures, self.chunks, strict=True))

    def plain(self) -> dict[str, float]:
        """Return the figures as JSON data; the extremes are those of all repetitions together."""
        calls = [ns for chunk in self.chunks for ns in chunk]
        return {
            "p50_us": round(self.p50, 2),
            "p99_us": round(self.p99, 2),
            "p99.9_us": round(_quantile(calls, 0.999) / 1e3, 2),
            "max_us": round(max(calls) / 1e3, 2),
            "cpu_us_per_line": round(self.per_line(self.cpu) * 1e6, 2),
            "bytes_per_line": round(self.per_line(self.written), 1),
            "calls": len(calls),
        }

    def __str__(self) -> str:
        f = self.plain()
        return f"p50 {f['p50_us']:.3g}, p99 {f['p99_us']:.4g}, p99.9 {f['p99.9_us']:.4g}, max {f['max_us']:,.0f} us"


def _quantile(calls: list[int], q: float) -> int:
    return sorted(calls)[min(len(calls) - 1, int(q * len(calls)))]


class Bench:
    """Where benchmarks find their sizes, a folder to write to, and a place for their rows."""

    def __init__(self, *, quick: bool, say: Callable[[str], None]) -> None:
        self.quick = quick
        self.repeats = 3 if quick else 5
        self.rows: list[Row] = []
        self.say = say
        self._reference: Path | None = None

    def size(self, full: int, quick: int) -> int:
        """Return one or the other."""
        return quick if self.quick else full

    @property
    def reference(self) -> Path:
        """The interpreter of the reference's environment."""
        if self._reference is None:
            from tests.interop.workers import reference_interpreter

            self._reference = reference_interpreter()
        return self._reference

    def add(self, *rows: Row) -> None:
        """Put rows into the table."""
        for row in rows:
            self.rows.append(row)
            self.say(table([row]).splitlines()[1])

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder on the disk of the project, gone afterwards."""
        parent = ROOT / ".cache" / "benchmarks"
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            yield Path(folder)

    def interleaved(
        self, sides: dict[str, tuple[Side, int]], *, warm: int, repeats: int | None = None
    ) -> dict[str, Latency]:
        """Let sides take turns: each ``(side, calls)`` makes its calls, then the next one does.

        Args:
            warm: calls ahead of the first turn, in 1/100 of those of a turn.
            repeats: turns; as many as the run has by default.
        """
        found = {name: Latency() for name in sides}
        for side, count in sides.values():
            if warm:
                side.do("calls", count=max(count * warm // 100, 1))
        for _ in range(repeats or self.repeats):
            for name, (side, count) in sides.items():
                found[name].add(side.do("calls", count=count))
        return found

    def timed(
        self,
        make: dict[str, Callable[[], Side]],
        *,
        repeats: int | None = None,
        patience: float = 20.0,
        limit: float = 60.0,
    ) -> dict[str, dict[str, float]]:
        """Let sides take turns at one long operation, each time in a fresh process.

        Args:
            make: starts a side with its subject open.
            repeats: turns; a side that has taken ``patience`` seconds has no more of them.
            limit: seconds after which an operation is stopped; that it took so long is all that is known then.

        Returns:
            by side: medians of ``s``, ``cpu_s`` and ``peak_mb``, how many ``turns`` there were, and whether it was
            ``stopped``.
        """
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in make}
        for _ in range(repeats or self.repeats):
            for name, start in make.items():
                if sum(turn["s"] for turn in found[name]) >= patience:
                    continue
                with start() as side:
                    found[name].append(side.once(limit))
        return {name: _medians(turns) for name, turns in found.items()}

    def wall(self, commands: dict[str, Callable[[int], list[str]]], *, repeats: int | None = None) -> dict[str, float]:
        """Return the median seconds of whole commands that take turns; each is made from the turn's number."""
        found: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(repeats or self.repeats):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run(command(turn), check=True, cwd=ROOT, capture_output=True)
                found[name].append(time.perf_counter() - begin)
        return {name: statistics.median(times) for name, times in found.items()}


def _medians(turns: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "s": statistics.median(turn["s"] for turn in turns),
        "cpu_s": statistics.median(turn["cpu"] for turn in turns),
        "peak_mb": statistics.median(turn["peak_kib"] for turn in turns) * 1024 / 1e6,
        "turns": len(turns),
        "stopped": any(turn["stopped"] for turn in turns),
    }


@contextmanager
def opened(sides: dict[str, tuple[Side, str, dict[str, Any]]]) -> Iterator[dict[str, Side]]:
    """Open a subject in each side; close them and end their processes afterwards."""
    with ExitStack() as stack:
        for side, subject, arguments in sides.values():
            stack.enter_context(side)
            side.do("open", subject=subject, arguments=arguments)
        yield {name: side for name, (side, _, _) in sides.items()}
        for side, _, _ in sides.values():
            side.do("close")
