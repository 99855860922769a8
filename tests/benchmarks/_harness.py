"""What every benchmark is made of: sides in processes of their own, turns, medians."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.benchmarks._environments import Environments
from tests.benchmarks._report import Row, Target, table
from tests.interop.workers import ROOT

_WORKER: Final = Path(__file__).with_name("_worker.py")
#: What keeps trackers quiet, and away from the network.
_QUIET: Final = {
    "WANDB_SILENT": "true",
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
}


# ---- one side of a comparison -----------------------------------------------------------------------


class TookTooLong(RuntimeError):
    """A request was not answered in time, and its process was ended."""


class Side:
    """A process that measures one side, see :mod:`tests.benchmarks._worker`."""

    def __init__(self, subjects: Path, interpreter: Path | None = None, *, prefix: Iterable[str] = ()) -> None:
        """Start it: with our package, or with whatever ``interpreter`` has installed."""
        roots = [str(ROOT)] if interpreter is None else []
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*prefix, str(interpreter or sys.executable), "-I", str(_WORKER), str(subjects), *roots],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, **_QUIET},
        )

    def do(self, request: str, *, limit: float = 300.0, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            TookTooLong: there was none within ``limit`` seconds.
            RuntimeError: the subject raised, or the process ended; says what was on its stderr last.
        """
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(limit, expire)
        timer.start()
        try:
            process.stdin.write(json.dumps([request, arguments]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            if expired.is_set():
                raise TookTooLong(f"{request} took more than {limit:g} s")
            raise RuntimeError(f"{request}: the worker ended with code {process.wait()}{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "crash" in answer:
            raise RuntimeError(f"{request}: {answer['crash']}{self._last_words()}")
        return answer

    def once(self, limit: float) -> dict[str, Any]:
        """Send ``once``; after ``limit`` seconds end the process, and return the limit as the time."""
        try:
            return {**self.do("once", limit=limit), "stopped": False}
        except TookTooLong:
            return {"s": limit, "cpu": limit, "peak_kib": 0, "stopped": True}

    def _last_words(self) -> str:
        end = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(end - 4000, 0))
        lines = self._said.read().decode(errors="replace").splitlines()[-20:]
        return "".join(f"\n  stderr: {line}" for line in lines)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it ended by itself
                self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# ---- figures ----------------------------------------------------------------------------------------


@dataclass
class Latency:
    """What single calls cost, in microseconds, and what all threads needed for them."""

    chunks: list[list[int]] = field(default_factory=list)  # ns
    cpu: list[float] = field(default_factory=list)  # s
    written: list[int] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        """Take the answer to one ``calls`` request."""
        self.chunks.append(answer["ns"])
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
    """Where benchmarks find their sizes, a folder to write to, and a place for their figures."""

    def __init__(self, *, quick: bool, say: Callable[[str], None]) -> None:
        self.quick = quick
        self.repeats = 3 if quick else 5
        #: seconds after which a side has no more turns
        self.patience = 1.0 if quick else 3.0
        self.rows: list[Row] = []
        #: (subject, metrics) -> what one line costs
        self.lines: dict[tuple[str, int], dict[str, Any]] = {}
        self.say = say
        self.environments = Environments(install=not quick)

    def size(self, full: int, quick: int) -> int:
        """Return one or the other."""
        return quick if self.quick else full

    @property
    def reference(self) -> Path:
        """The interpreter of the reference's environment."""
        found = self.environments.interpreter("Reference")
        if found is None:
            raise RuntimeError("the reference cannot be in our own environment")
        return found

    def add(self, *rows: Row) -> None:
        """Put rows into the table."""
        for row in rows:
            self.rows.append(row)
            self.say(table([row.plain()]).splitlines()[1])

    def line(self, subject: str, metrics: int, figures: Mapping[str, Any]) -> None:
        """Note figures of what a subject's line costs; those that come first stay."""
        known = self.lines.setdefault((subject, metrics), {})
        known.update({key: value for key, value in figures.items() if key not in known})

    def results(self) -> dict[str, Any]:
        """Return all figures as JSON data."""
        lines = [
            {"subject": subject, "metrics": metrics, **figures}
            for (subject, metrics), figures in self.lines.items()
            if "p50_us" in figures
        ]
        return {"rows": [row.plain() for row in self.rows], "lines": lines}

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder on the disk of the project, gone afterwards."""
        parent = ROOT / ".cache" / "benchmarks"
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            yield Path(folder)

    def interleaved(self, sides: dict[str, tuple[Side, int]], *, warm: int) -> dict[str, Latency]:
        """Let sides take turns: each ``(side, calls)`` makes its calls, then the next one does.

        Args:
            warm: calls ahead of the first turn, in 1/100 of those of a turn.
        """
        found = {name: Latency() for name in sides}
        for side, count in sides.values():
            if warm:
                side.do("calls", count=max(count * warm // 100, 1))
        for _ in range(self.repeats):
            for name, (side, count) in sides.items():
                found[name].add(side.do("calls", count=count))
        return found

    def timed(
        self,
        sides: dict[str, Side],
        subject: str,
        arguments: Callable[[], dict[str, Any]],
        target: Target | None,
    ) -> dict[str, dict[str, float]]:
        """Let sides take turns at one long operation, each time with a subject of its own.

        A side that has used up the patience has no more turns. One that has taken twice as long as it must for ours to
        reach the target is stopped: that it took so long is all that is known then.

        Args:
            sides: ours first.
            arguments: makes what a turn's subject is opened with.

        Returns:
            by side: medians of ``s`` and ``cpu_s``, the highest ``peak_mb``, how many ``turns`` there were, and
            whether it was ``stopped``.
        """
        limit = 2.0 if self.quick else 10.0
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        first, *_ = found
        for _ in range(self.repeats):
            for name, side in sides.items():
                if sum(turn["s"] for turn in found[name]) >= self.patience:
                    continue
                side.do("open", subject=subject, arguments=arguments())
                ours = statistics.median([turn["s"] for turn in found[first]] or [0.0])
                enough = 2 * ours * ((target.faster if target else None) or 1.0)
                found[name].append(side.once(300.0 if name == first else max(limit, enough)))
        return {name: _medians(turns) for name, turns in found.items()}

    def wall(
        self, commands: Mapping[str, Callable[[int], list[str]]], *, repeats: int | None = None
    ) -> dict[str, float]:
        """Return the median seconds of whole commands that take turns; each is made from the turn's number."""
        found: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(repeats or self.repeats):
            for name, command in commands.items():
                begin = time.perf_counter()
                done = subprocess.run(command(turn), check=False, cwd=ROOT, capture_output=True, text=True)
                found[name].append(time.perf_counter() - begin)
                if done.returncode:
                    raise RuntimeError(f"{command(turn)} failed with code {done.returncode}:\n{done.stderr[-4000:]}")
        return {name: statistics.median(times) for name, times in found.items()}


def _medians(turns: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "s": statistics.median(turn["s"] for turn in turns),
        "cpu_s": statistics.median(turn["cpu"] for turn in turns),
        "peak_mb": max(turn["peak_kib"] for turn in turns) * 1024 / 1e6,
        "turns": len(turns),
        "stopped": any(turn["stopped"] for turn in turns),
    }


@contextmanager
def opened(sides: dict[str, tuple[Side, str, dict[str, Any]]]) -> Iterator[dict[str, Side]]:
    """Open a subject in each side; close them and end their processes afterwards."""
    with ExitStack() as stack:
        for side, _, _ in sides.values():
            stack.enter_context(side)
        for side, subject, arguments in sides.values():
            side.do("open", subject=subject, arguments=arguments)
        yield {name: side for name, (side, _, _) in sides.items()}
        for side, _, _ in sides.values():
            side.do("close")
