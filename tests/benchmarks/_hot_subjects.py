"""What :mod:`tests.benchmarks.hotpath` and ``scale`` call: one line of metrics each time.

Loaded by the worker processes; the reference's has nothing but the reference and NumPy.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
from typing import Any

#: A training loop makes a new dict each time, but not new names.
_KINDS = 64


def some_rows(metrics: int, prefix: str = "m", first: int = 0) -> list[dict[str, float]]:
    """Return rows of Python floats that no float32 holds, which is the harder case for us."""
    source = random.Random(metrics)
    names = [f"{prefix}{first + i}" for i in range(metrics)]
    return [{name: source.random() for name in names} for _ in range(_KINDS)]


# ---- ours -----------------------------------------------------------------------------------------------


class Plattli:
    """One train line per step."""

    def __init__(self, folder: str, metrics: int, hotsize: int = 500) -> None:
        from loggers import PlattliLogger

        self.rows = some_rows(metrics)
        self.logger = PlattliLogger(folder, hotsize=hotsize)

    def __call__(self, number: int) -> None:
        self.logger.log_metrics(self.rows[number % _KINDS], step=number)

    def settle(self) -> None:
        if (writer := self.logger.backend()) is not None:
            writer.settle()

    def close(self) -> None:
        self.logger.finish("interrupted")


class PlattliTwice(Plattli):
    """Two lines per step: train, then validate."""

    def __call__(self, number: int) -> None:
        step, validate = divmod(number, 2)
        self.logger.log_metrics(
            self.rows[number % _KINDS], step=step, context="validate" if validate else "train"
        )


class Ours:
    """Our ``CompactingWriter``, called as a program for the reference calls it."""

    def __init__(self, folder: str, metrics: int, hotsize: int = 500) -> None:
        import plattli

        self.rows = some_rows(metrics)
        self.writer = plattli.CompactingWriter(folder, hotsize=hotsize)

    def __call__(self, number: int) -> None:
        self.writer.write(self.rows[number % _KINDS])
        self.writer.end_step()

    def settle(self) -> None:
        with self.writer:  # leaving waits for the batch in progress
            pass


class OursTwice(Ours):
    """Each step's second half on disk on its own: the reference must be told, ours needs not."""

    def __init__(self, folder: str, metrics: int, hotsize: int = 500) -> None:
        super().__init__(folder, metrics, hotsize)
        self.others = some_rows(metrics, "v")

    def __call__(self, number: int) -> None:
        if number % 2:
            self.writer.write(self.others[number % _KINDS])
            self.writer.end_step()
        else:
            self.writer.write(self.rows[number % _KINDS], flush=True)


#: The same words, where the interpreter finds the reference.
Reference, ReferenceTwice = Ours, OursTwice


class TensorBoard:
    def __init__(self, folder: str, metrics: int) -> None:
        from adapters import TensorBoardLogger

        self.rows = some_rows(metrics)
        self.logger = TensorBoardLogger(folder)

    def __call__(self, number: int) -> None:
        self.logger.log_metrics(self.rows[number % _KINDS], step=number)

    def close(self) -> None:
        self.logger.finish("interrupted")


class Tee:
    """A tee with its defaults; W&B follows in a process of its own."""

    def __init__(self, folder: str, metrics: int) -> None:
        from adapters import TensorBoardLogger, WandbLogger
        from adapters.fanout import TeeLogger
        from loggers import PlattliLogger

        self.rows = some_rows(metrics)
        self.primary = PlattliLogger(folder)
        others = TensorBoardLogger(f"{folder}/tensorboard"), WandbLogger("benchmark", mode="offline", dir=folder)
        self.logger = TeeLogger(self.primary, *others, finish_timeout=1.0)

    def __call__(self, number: int) -> None:
        self.logger.log_metrics(self.rows[number % _KINDS], step=number)

    def settle(self) -> None:
        if (writer := self.primary.backend()) is not None:
            writer.settle()

    def close(self) -> None:
        self.logger.finish("interrupted")


# ---- the least that it could cost -------------------------------------------------------------------------


class Encoder:
    """The very line that PlattliLogger writes, by the fastest JSON encoder and one ``write``: no columns, no checks."""

    def __init__(self, folder: str, metrics: int) -> None:
        import orjson

        self.rows = some_rows(metrics, "train/m")
        os.makedirs(folder)
        self.fd = os.open(f"{folder}/log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.dumps = orjson.dumps

    def __call__(self, number: int) -> None:
        line = {"step": number, **self.rows[number % _KINDS], "train/walltime": time.time()}
        os.write(self.fd, self.dumps(line) + b"\n")


class JsonLines:
    """What many a training script does."""

    def __init__(self, folder: str, metrics: int) -> None:
        self.rows = some_rows(metrics)
        os.makedirs(folder)
        self.file = open(f"{folder}/log.jsonl", "a")  # noqa: SIM115

    def __call__(self, number: int) -> None:
        self.file.write(json.dumps({"step": number, **self.rows[number % _KINDS]}) + "\n")
        self.file.flush()


# ---- other trackers -----------------------------------------------------------------------------------------


class SummaryWriter:
    """``tensorboard.summary.Writer``: one call per metric."""

    def __init__(self, folder: str, metrics: int) -> None:
        from tensorboard.summary import Writer

        self.rows = some_rows(metrics)
        self.writer = Writer(folder)

    def __call__(self, number: int) -> None:
        for name, value in self.rows[number % _KINDS].items():
            self.writer.add_scalar(name, value, number)

    def settle(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class EventFileWriter:
    """TensorBoard's own event writer with one event per row."""

    def __init__(self, folder: str, metrics: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter as Writer

        self.rows = some_rows(metrics)
        self.event, self.summary = Event, Summary
        self.writer = Writer(folder)

    def __call__(self, number: int) -> None:
        values = [
            self.summary.Value(tag=name, simple_value=value) for name, value in self.rows[number % _KINDS].items()
        ]
        self.writer.add_event(
            self.event(wall_time=time.time(), step=number, summary=self.summary(value=values))
        )

    def settle(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class TensorboardX:
    def __init__(self, folder: str, metrics: int) -> None:
        from tensorboardX import SummaryWriter

        self.rows = some_rows(metrics)
        self.writer = SummaryWriter(folder)

    def __call__(self, number: int) -> None:
        for name, value in self.rows[number % _KINDS].items():
            self.writer.add_scalar(name, value, number)

    def settle(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """The client, offline, called by the training process itself."""

    def __init__(self, folder: str, metrics: int) -> None:
        import wandb

        self.rows = some_rows(metrics)
        os.makedirs(folder)
        self.run = wandb.init(project="benchmark", mode="offline", dir=folder)

    def __call__(self, number: int) -> None:
        self.run.log(self.rows[number % _KINDS], step=number)

    def close(self) -> None:
        self.run.finish()


class Mlflow:
    """MLflow with its SQLite store."""

    def __init__(self, folder: str, metrics: int) -> None:
        import mlflow

        self.rows = some_rows(metrics)
        os.makedirs(folder)
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.start_run()
        self.log = mlflow.log_metrics
        self.end = mlflow.end_run

    def __call__(self, number: int) -> None:
        self.log(self.rows[number % _KINDS], step=number)

    def close(self) -> None:
        self.end()


class Trackio:
    def __init__(self, folder: str, metrics: int) -> None:
        os.environ["TRACKIO_DIR"] = folder
        import trackio

        self.rows = some_rows(metrics)
        trackio.init(project="benchmark")
        self.trackio = trackio

    def __call__(self, number: int) -> None:
        self.trackio.log(self.rows[number % _KINDS], step=number)

    def close(self) -> None:
        self.trackio.finish()


# ---- how the cost grows ---------------------------------------------------------------------------------------


class Ageing(Plattli):
    """A run that grows old, beside young ones: what a call costs in each, and what its worst calls did."""

    def __init__(self, folder: str, metrics: int) -> None:
        super().__init__(f"{folder}/old", metrics)
        self.folder = folder
        self.fresh = 0

    def grow(self, steps: int, first: int) -> dict[str, Any]:
        """Log ``steps`` lines from step ``first``; return the ten slowest calls."""
        clock, rows, log = time.perf_counter_ns, self.rows, self.logger.log_metrics
        worst: list[tuple[int, dict[str, Any]]] = []
        least, over = 0, 0
        schedule = _Schedule()
        for step in range(first, first + steps):
            before, cpu = schedule.now(), time.thread_time_ns()
            batch = self._batch()
            begin = clock()
            log(rows[step % _KINDS], step=step)
            took = clock() - begin
            if took > least or took > 5_000_000:
                cpu = time.thread_time_ns() - cpu
                waited = schedule.now() - before
                about = {
                    "ms": took / 1e6,
                    "step": step,
                    "cpu_ms": cpu / 1e6,
                    "no_core_ms": waited / 1e6,
                    "ran": self._what_ran(batch),
                }
                # what the scheduler gave to others is not ours; nor is what goes by while we compute nothing
                over += took - waited > 5_000_000
                worst = sorted([*worst, (took, about)], key=lambda pair: -pair[0])[:10]
                least = worst[-1][0] if len(worst) == 10 else 0
        schedule.close()
        return {"worst": [about for _, about in worst], "over_5_ms": over}

    def _batch(self) -> Any:
        writer = self.logger.backend()
        return None if writer is None else writer._batch

    def _what_ran(self, before: Any) -> str:
        after = self._batch()
        if after is not before and after is not None:
            return "handed a batch over"
        return "compaction" if before is not None and before.is_alive() else "nothing else"

    def young(self, metrics: int) -> None:
        """Start a run beside the old one and bring it to step 1,000."""
        from loggers import PlattliLogger

        self.fresh += 1
        self.other = PlattliLogger(f"{self.folder}/young-{self.fresh}")
        for step in range(1000):
            self.other.log_metrics(self.rows[step % _KINDS], step=step)
        self.other.backend().settle()

    def compare(self, first: int, count: int) -> list[float]:
        """Return the median cost, in us, of lines of the old run from step ``first``, and of the young one."""
        medians = []
        for logger, start in ((self.logger, first), (self.other, 1000)):
            took = []
            for step in range(start, start + count):
                begin = time.perf_counter_ns()
                logger.log_metrics(self.rows[step % _KINDS], step=step)
                took.append(time.perf_counter_ns() - begin)
            logger.backend().settle()
            medians.append(sorted(took)[count // 2] / 1e3)
        self.other.finish("interrupted")
        return medians

    def resident_kib(self) -> int:
        self.settle()
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


class _Schedule:
    """How long this thread was ready to run and had no core, in ns."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = -1

    def now(self) -> int:
        return int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class ManyNames(Plattli):
    """Lines that bring 100 new metrics each, until there are ``names``; then these again."""

    def __init__(self, folder: str, names: int) -> None:
        super().__init__(folder, 1)
        self.groups = [some_rows(100, first=first)[0] for first in range(0, names, 100)]

    def __call__(self, number: int) -> None:
        self.logger.log_metrics(self.groups[number % len(self.groups)], step=number)

    def descriptors(self) -> dict[str, int]:
        self.settle()
        return {"open": len(os.listdir("/proc/self/fd")), "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
