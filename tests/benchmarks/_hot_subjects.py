"""What :mod:`tests.benchmarks.hotpath` and ``scale`` call: one line of metrics each time.

Loaded by the worker processes; those of other environments have only what is installed there, so each subject
imports what it needs when it starts.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

#: A training loop makes a new dict each time, but not new names.
_KINDS = 64


def some_rows(metrics: int, prefix: str = "m", first: int = 0) -> list[dict[str, float]]:
    """Return rows of Python floats that no float32 holds, which is the harder case for us."""
    source = random.Random(metrics)
    names = [f"{prefix}{first + i}" for i in range(metrics)]
    return [{name: source.random() for name in names} for _ in range(_KINDS)]


class Subject:
    """One line of metrics per call, numbered 0, 1, 2, …"""

    #: ``log(row, step=…)``, where a subject has such a thing; others override ``__call__``
    log: Callable[..., object]
    prefix = "m"

    def __init__(self, folder: str, metrics: int, **options: Any) -> None:
        os.makedirs(folder, exist_ok=True)
        self.rows = some_rows(metrics, self.prefix)
        self.start(folder, **options)

    def start(self, folder: str) -> None:
        """Open whatever it logs to."""
        raise NotImplementedError

    def __call__(self, number: int) -> None:
        self.log(self.rows[number % _KINDS], step=number)

    def settle(self) -> None:
        """Wait for what goes on in the background."""

    def close(self) -> None:
        """End it."""


# ---- ours -----------------------------------------------------------------------------------------------


def _settle(logger: Any) -> None:
    """Wait for the batch that a ``PlattliLogger`` has handed over."""
    if (writer := logger.backend()) is not None:
        writer.settle()


class Plattli(Subject):
    """One train line per step."""

    def start(self, folder: str, hotsize: int = 500) -> None:
        from loggers import PlattliLogger

        self.logger = PlattliLogger(f"{folder}/run", hotsize=hotsize)
        self.log = self.logger.log_metrics

    def settle(self) -> None:
        _settle(self.logger)

    def close(self) -> None:
        self.logger.finish("interrupted")


class PlattliTwice(Plattli):
    """Two lines per step: train, then validate."""

    def __call__(self, number: int) -> None:
        step, validate = divmod(number, 2)
        self.log(self.rows[number % _KINDS], step=step, context="validate" if validate else "train")


class DeviceScalars(Plattli):
    """Twenty scalars of torch or JAX per line, new ones each time: their values are not on the host yet."""

    def start(self, folder: str, hotsize: int = 500, module: str = "torch") -> None:
        super().start(folder, hotsize)
        self.make: Callable[[], list[Any]]
        self.wait: Callable[[list[Any]], object]
        if module == "torch":
            import torch

            self.device = "cuda" if torch.cuda.is_available() else "cpu"
            self.make = lambda: list(torch.rand(20, device=self.device).unbind())
            self.wait = lambda arrays: torch.cuda.synchronize() if self.device == "cuda" else None
        else:
            import jax

            self.device = jax.devices()[0].platform
            self.make = lambda: list(jax.numpy.asarray(list(self.rows[0].values())))
            self.wait = jax.block_until_ready

    def compare(self, first: int, count: int) -> dict[str, Any]:
        """Return what a line costs, in us, with the scalars as they are and with each read by the caller."""
        together: list[int] = []
        apart: list[int] = []
        for step in range(first, first + count, 2):
            for offset, took in enumerate((together, apart)):
                row = dict(zip(self.rows[0], self.make(), strict=True))
                self.wait(list(row.values()))
                begin = time.perf_counter_ns()
                if took is apart:
                    row = {name: scalar.item() for name, scalar in row.items()}
                self.log(row, step=step + offset)
                took.append(time.perf_counter_ns() - begin)
        self.settle()
        middle = count // 4
        return {"together": sorted(together)[middle] / 1e3, "apart": sorted(apart)[middle] / 1e3, "on": self.device}


class Ours(Subject):
    """Our ``CompactingWriter``, called as a program for the reference calls it."""

    def start(self, folder: str, hotsize: int = 500) -> None:
        import plattli

        self.writer = plattli.CompactingWriter(f"{folder}/run", hotsize=hotsize)

    def __call__(self, number: int) -> None:
        self.writer.write(self.rows[number % _KINDS])
        self.writer.end_step()

    def settle(self) -> None:
        with self.writer:  # leaving waits for the batch in progress
            pass


class OursTwice(Ours):
    """Each step's second half on disk on its own: the reference must be told, ours needs not."""

    def start(self, folder: str, hotsize: int = 500) -> None:
        super().start(folder, hotsize)
        self.others = [{f"v{name}": value for name, value in row.items()} for row in self.rows]

    def __call__(self, number: int) -> None:
        if number % 2:
            self.writer.write(self.others[number % _KINDS])
            self.writer.end_step()
        else:
            self.writer.write(self.rows[number % _KINDS], flush=True)


#: The same words, where the interpreter finds the reference.
Reference, ReferenceTwice = Ours, OursTwice


class TensorBoard(Subject):
    def start(self, folder: str) -> None:
        from adapters import TensorBoardLogger

        self.logger = TensorBoardLogger(f"{folder}/run")
        self.log = self.logger.log_metrics

    def close(self) -> None:
        self.logger.finish("interrupted")


class Backend(Subject):
    """One of our backends, alone: nothing follows, so it does its own work in the training process."""

    logger: Any

    def settle(self) -> None:
        self.logger.logger_state()  # waits for what is queued

    def close(self) -> None:
        self.logger.finish("interrupted")


class JsonBackend(Backend):
    def start(self, folder: str) -> None:
        from loggers import JSONLogger

        self.logger = JSONLogger(f"{folder}/metrics.jsonl")
        self.log = self.logger.log_metrics


class CsvBackend(Backend):
    def start(self, folder: str) -> None:
        from loggers import CSVLogger

        self.logger = CSVLogger(f"{folder}/metrics.csv")
        self.log = self.logger.log_metrics


class StdoutBackend(Backend):
    """Lines that go to a file."""

    def start(self, folder: str) -> None:
        from loggers import StdoutLogger

        self.logger = StdoutLogger(file=open(f"{folder}/lines.tsv", "w"))  # noqa: SIM115
        self.log = self.logger.log_metrics


class EventsBackend(Backend):
    """One line in thirty seconds is published, to nobody."""

    def start(self, folder: str) -> None:
        from loggers import EventsLogger

        self.logger = EventsLogger(lambda name, payload: None)
        self.log = self.logger.log_metrics


class GroupBackend(Backend):
    """The log of a metrics group; nothing is densified before the end."""

    def start(self, folder: str) -> None:
        from adapters import MetricsGroupLogger

        self.logger = MetricsGroupLogger(f"{folder}/run")
        self.log = self.logger.log_metrics

    def densify(self, first: int, lines: int) -> float:
        """Log lines, and return the seconds that densifying them takes."""
        for step in range(first, first + lines):
            self(step)
        begin = time.perf_counter()
        self.logger.densify()
        return time.perf_counter() - begin


class WandbBackend(Backend):
    def start(self, folder: str) -> None:
        from adapters import WandbLogger

        self.logger = WandbLogger("benchmark", mode="offline", dir=folder)
        self.log = self.logger.log_metrics


class MlflowBackend(Backend):
    def start(self, folder: str) -> None:
        from adapters import MLflowLogger

        self.logger = MLflowLogger(f"sqlite:///{folder}/mlflow.db", finish_timeout=None)
        self.log = self.logger.log_metrics


class TrackioBackend(Backend):
    def start(self, folder: str) -> None:
        from adapters import TrackioLogger

        self.logger = TrackioLogger("benchmark", directory=folder, finish_timeout=None)
        self.log = self.logger.log_metrics


class Tee(Subject):
    """A tee with its defaults; W&B follows in a process of its own."""

    def start(self, folder: str) -> None:
        from adapters import TeeLogger, TensorBoardLogger, WandbLogger
        from loggers import PlattliLogger

        self.primary = PlattliLogger(f"{folder}/run")
        tensorboard = TensorBoardLogger(f"{folder}/tensorboard")
        wandb = WandbLogger("benchmark", mode="offline", dir=folder)
        self.logger = TeeLogger(self.primary, tensorboard, wandb, finish_timeout=1.0)
        self.log = self.logger.log_metrics

    def settle(self) -> None:
        _settle(self.primary)

    def close(self) -> None:
        self.logger.finish("interrupted")


def _waited() -> float:
    """Return the seconds that this thread could have run and had no core; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:
        return 0.0


class Busy(Plattli):
    """A training loop that keeps a core and the interpreter's lock busy, about a millisecond per step and line."""

    def start(self, folder: str, hotsize: int = 500) -> None:
        import numpy as np

        super().start(folder, hotsize)
        self.data = np.random.default_rng(0).random(60_000)
        self.numpy = np

    def train(self, first: int, count: int) -> tuple[float, float, float]:
        """Train so many steps from step ``first``.

        Returns:
            The seconds it took, those that its thread computed, and those that it waited for a core.
        """
        log, rows, data, tanh = self.log, self.rows, self.data, self.numpy.tanh
        begin, computed, waited = time.perf_counter(), time.thread_time(), _waited()
        for step in range(first, first + count):
            total = float(tanh(data).sum())
            for i in range(14_000):
                total += i * i % 7
            log(rows[step % _KINDS], step=step)
        return time.perf_counter() - begin, time.thread_time() - computed, _waited() - waited

    def rest(self) -> None:
        """Wait until nothing is under way."""
        self.settle()


class BusyFollowed(Busy):
    """The same while TensorBoard, W&B and MLflow follow it."""

    def start(self, folder: str, hotsize: int = 500) -> None:
        from adapters import MLflowLogger, TeeLogger, TensorBoardLogger, WandbLogger

        super().start(folder, hotsize)
        wandb = WandbLogger("benchmark", mode="offline", dir=folder)
        mlflow = MLflowLogger(f"sqlite:///{folder}/mlflow.db")
        self.tee = TeeLogger(self.logger, TensorBoardLogger(f"{folder}/tensorboard"), wandb, mlflow)
        self.log = self.tee.log_metrics

    def rest(self) -> None:
        while any(replica["pending"] for replica in self.tee.report()):
            time.sleep(0.1)
        self.settle()

    def close(self) -> None:
        self.tee.finish("interrupted")


class Hosted(Plattli):
    """A training loop of half a millisecond a step whose tee follows into W&B on a server."""

    def start(self, folder: str, hotsize: int = 500, environment: dict[str, str] | None = None) -> None:
        from adapters import TeeLogger, WandbLogger

        super().start(folder, hotsize)
        os.environ.update(environment or {})
        wandb = WandbLogger("benchmark", run_id="hosted", mode="online", dir=folder)
        self.tee = TeeLogger(self.logger, wandb, finish_timeout=120.0)
        self.log = self.tee.log_metrics

    def paced(self, first: int, count: int) -> list[int]:
        """Train so many steps from step ``first``; return the nanoseconds of each line."""
        log, rows, clock = self.log, self.rows, time.perf_counter_ns
        took = []
        for step in range(first, first + count):
            end = clock() + 500_000
            while clock() < end:
                pass
            begin = clock()
            log(rows[step % _KINDS], step=step)
            took.append(clock() - begin)
        return took

    def pending(self) -> Any:
        """Return how many lines W&B's client has not got yet."""
        (replica,) = self.tee.report()
        return replica["pending"]

    def close(self) -> None:
        self.tee.finish("completed")


# ---- the least that it could cost -------------------------------------------------------------------------


class Encoder(Subject):
    """The very line that PlattliLogger writes, by the fastest JSON encoder and one ``write``: no columns, no checks."""

    prefix = "train/m"

    def start(self, folder: str) -> None:
        import orjson

        self.fd = os.open(f"{folder}/log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.dumps = orjson.dumps

    def __call__(self, number: int) -> None:
        line = {"step": number, **self.rows[number % _KINDS], "train/walltime": time.time()}
        os.write(self.fd, self.dumps(line) + b"\n")


class JsonLines(Subject):
    """What many a training script does."""

    def start(self, folder: str) -> None:
        self.file = open(f"{folder}/log.jsonl", "a")  # noqa: SIM115

    def __call__(self, number: int) -> None:
        self.file.write(json.dumps({"step": number, **self.rows[number % _KINDS]}) + "\n")
        self.file.flush()


# ---- other trackers -----------------------------------------------------------------------------------------


class SummaryWriter(Subject):
    """``tensorboard.summary.Writer``: one call per metric."""

    writer: Any

    def start(self, folder: str) -> None:
        from tensorboard.summary import Writer

        self.writer = Writer(folder)

    def __call__(self, number: int) -> None:
        for name, value in self.rows[number % _KINDS].items():
            self.writer.add_scalar(name, value, number)

    def settle(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class TensorboardX(SummaryWriter):
    """The same words."""

    def start(self, folder: str) -> None:
        import tensorboardX

        self.writer = tensorboardX.SummaryWriter(folder)


class EventFileWriter(SummaryWriter):
    """TensorBoard's own event writer with one event per row."""

    def start(self, folder: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter as Writer

        self.event, self.summary = Event, Summary
        self.writer = Writer(folder)

    def __call__(self, number: int) -> None:
        value, row = self.summary.Value, self.rows[number % _KINDS]
        summary = self.summary(value=[value(tag=name, simple_value=number) for name, number in row.items()])
        self.writer.add_event(self.event(wall_time=time.time(), step=number, summary=summary))


class Wandb(Subject):
    """The client, offline, called by the training process itself."""

    def start(self, folder: str) -> None:
        import wandb

        self.run = wandb.init(project="benchmark", mode="offline", dir=folder)
        self.log = self.run.log

    def close(self) -> None:
        self.run.finish()


class Mlflow(Subject):
    """MLflow with its SQLite store."""

    def start(self, folder: str) -> None:
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.start_run()
        self.log, self.end = mlflow.log_metrics, mlflow.end_run

    def close(self) -> None:
        self.end()


class Trackio(Subject):
    """Trackio with its SQLite store, which a thread of its own fills."""

    def start(self, folder: str) -> None:
        os.environ["TRACKIO_DIR"] = folder
        import trackio

        trackio.init(project="benchmark", embed=False, auto_log_gpu=False, auto_log_cpu=False)
        self.log, self.end = trackio.log, trackio.finish

    def close(self) -> None:
        self.end()


# ---- how the cost grows ---------------------------------------------------------------------------------------


class Ageing(Plattli):
    """A run that grows old, beside young ones: what a call costs in each, and what its worst calls did."""

    def start(self, folder: str, hotsize: int = 500) -> None:
        super().start(folder, hotsize)
        self.folder = folder
        self.fresh = 0

    def grow(self, steps: int, first: int) -> dict[str, Any]:
        """Log ``steps`` lines from step ``first``.

        Returns:
            ``worst``: the ten slowest calls, and ``over_5_ms``: how many took longer without the system's doing.
        """
        clock, rows, log = time.perf_counter_ns, self.rows, self.log
        worst: list[dict[str, Any]] = []
        least, over = 0, 0
        watch = _Watch()
        for step in range(first, first + steps):
            watch.start()
            begin = clock()
            log(rows[step % _KINDS], step=step)
            took = clock() - begin
            if took > least or took > 5_000_000:
                about = {"step": step, **watch.explain(took)}
                over += about["ours_ms"] > 5
                worst = sorted([*worst, about], key=lambda call: -call["ms"])[:10]
                least = int(worst[-1]["ms"] * 1e6) if len(worst) == 10 else 0
        watch.end()
        return {"worst": worst, "over_5_ms": over}

    def young(self, metrics: int) -> None:
        """Start a run beside the old one and bring it to step 1,000."""
        from loggers import PlattliLogger

        self.fresh += 1
        self.other = PlattliLogger(f"{self.folder}/young-{self.fresh}")
        for step in range(1000):
            self.other.log_metrics(self.rows[step % _KINDS], step=step)
        _settle(self.other)

    def compare(self, first: int, count: int) -> list[float]:
        """Return the median cost, in us, of lines of the old run from step ``first``, and of the young one."""
        medians = []
        for logger, start in ((self.logger, first), (self.other, 1000)):
            took = []
            for step in range(start, start + count):
                begin = time.perf_counter_ns()
                logger.log_metrics(self.rows[step % _KINDS], step=step)
                took.append(time.perf_counter_ns() - begin)
            _settle(logger)
            medians.append(sorted(took)[count // 2] / 1e3)
        self.other.finish("interrupted")
        return medians

    def resident_kib(self) -> int:
        self.settle()
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


class _Watch:
    """What this thread, its process and the system did while one call ran.

    A call takes the time that it computes, the time that it is ready to run and has no core, and the time that it
    waits: for the interpreter's lock or a lock of ours while another thread of this process works, or else for the
    system, which writes and evicts as it likes.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = -1
        self._threads = threading.active_count()
        self._collecting = 0
        gc.callbacks.append(self._collector)

    def _collector(self, phase: str, about: dict[str, int]) -> None:
        self._collecting += time.perf_counter_ns() * (1 if phase == "stop" else -1)

    def _now(self) -> tuple[int, ...]:
        no_core = int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        own, all_threads = time.thread_time_ns(), time.process_time_ns()
        return own, all_threads, no_core, usage.ru_nvcsw, usage.ru_nivcsw, self._collecting

    def start(self) -> None:
        self._busy = threading.active_count() > self._threads
        self._before = self._now()

    def explain(self, took: int) -> dict[str, Any]:
        """Return where the time went, in ms, and in words what ran."""
        own, every, no_core, waits, preemptions, gc_ns = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        others = max(every - own, 0)
        waited = max(took - own - no_core, 0)
        handed_over = not self._busy and threading.active_count() > self._threads
        # a thread of ours that works, or waits for the disk, may be what this one waits for
        ours = took - no_core if self._busy or handed_over else min(own, took)
        parts = {
            "computing": own - gc_ns,
            "collecting garbage": gc_ns,
            "no core": no_core,
            "waiting for the interpreter's lock": min(waited, others),
            "waiting for the disk or a lock": waited - min(waited, others),
        }
        most = max(parts, key=lambda part: parts[part])
        ran = "handing a batch over" if handed_over else "during a compaction" if self._busy else "no compaction"
        return {
            "ms": took / 1e6,
            "ours_ms": ours / 1e6,
            "cpu_ms": own / 1e6,
            "gc_ms": gc_ns / 1e6,
            "no_core_ms": no_core / 1e6,
            "waited_ms": waited / 1e6,
            "other_threads_cpu_ms": others / 1e6,
            "voluntary_switches": waits,
            "involuntary_switches": preemptions,
            "ran": ran,
            "cause": most,
        }

    def end(self) -> None:
        gc.callbacks.remove(self._collector)
        if self._fd >= 0:
            os.close(self._fd)


class ManyNames(Plattli):
    """Lines that bring 100 new metrics each, until there are ``names``; then these again."""

    def __init__(self, folder: str, names: int) -> None:
        super().__init__(folder, 1)
        self.groups = [some_rows(100, first=first)[0] for first in range(0, names, 100)]

    def __call__(self, number: int) -> None:
        self.log(self.groups[number % len(self.groups)], step=number)

    def descriptors(self) -> dict[str, int]:
        self.settle()
        return {"open": len(os.listdir("/proc/self/fd")), "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
