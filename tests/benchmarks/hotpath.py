"""What a training loop pays for each line, against the reference and against what else it could call."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks._environments import NotInstalled
from tests.benchmarks._harness import Bench, Latency, Side, opened
from tests.benchmarks._report import Row, Target
from tests.test_adapters.wandb_server import WandbServer

SUBJECTS: Final = Path(__file__).with_name("_hot_subjects.py")
#: subject -> (its name for people, what share of our calls it makes: some peers take milliseconds)
_TRACKERS: Final = {
    "JsonLines": ("json.dumps + flush", 1.0),
    "SummaryWriter": ("tensorboard summary.Writer", 0.05),
    "EventFileWriter": ("tensorboard EventFileWriter", 0.3),
    "TensorboardX": ("tensorboardX", 0.05),
    "Wandb": ("wandb offline", 0.1),
    "Mlflow": ("MLflow (SQLite)", 0.02),
    "Trackio": ("Trackio", 0.5),
}
#: our backends, alone -> (name, share of the calls)
_BACKENDS: Final = {
    "JsonBackend": ("JSONLogger", 1.0),
    "CsvBackend": ("CSVLogger", 1.0),
    "StdoutBackend": ("StdoutLogger", 1.0),
    "EventsBackend": ("EventsLogger", 1.0),
    "TensorBoard": ("TensorBoardLogger", 1.0),
    "GroupBackend": ("MetricsGroupLogger", 1.0),
    "WandbBackend": ("WandbLogger, offline", 0.2),
    "MlflowBackend": ("MLflowLogger, SQLite", 0.5),
    "TrackioBackend": ("TrackioLogger", 0.5),
}
_NAMES: Final = {
    "Plattli": "PlattliLogger",
    "TensorBoard": "TensorBoardLogger",
    "Tee": "TeeLogger (plattli, tensorboard, wandb)",
    "Reference": "reference",
    "Encoder": "orjson + os.write",
    "Ours": "our CompactingWriter",
    **{subject: name for subject, (name, _) in (_BACKENDS | _TRACKERS).items()},
}


def _more(ours: Latency, **peers: Latency) -> dict[str, Any]:
    return {"ours_latency": ours.plain(), "peer_latency": {name: peer.plain() for name, peer in peers.items()}}


def _measure(bench: Bench, subjects: dict[str, float], metrics: int, calls: int) -> dict[str, Latency]:
    """Let subjects take turns; each makes its share of the calls."""
    interpreters = {name: bench.environments.interpreter(name) for name in subjects}
    with bench.folder() as folder:
        sides = {
            name: (Side(SUBJECTS, interpreters[name]), name, {"folder": str(folder / name), "metrics": metrics})
            for name in subjects
        }
        with opened(sides) as running:
            turns = {name: (side, max(int(calls * subjects[name]), 2)) for name, side in running.items()}
            found = bench.interleaved(turns, warm=20)
    for name, latency in found.items():
        if name in _NAMES:
            bench.line(_NAMES[name], metrics, latency.plain())
    return found


def reference(bench: Bench) -> None:
    """PlattliLogger against the reference's ``write()`` + ``end_step()``, and what all threads spend."""
    for metrics, p50, p99 in ((10, 5.0, 4.0), (100, 8.0, 6.0)):
        calls = bench.size(10_000 if metrics == 10 else 4_000, 2_000 if metrics == 10 else 1_000)
        found = _measure(bench, {"Plattli": 1.0, "Reference": 1.0, "Encoder": 1.0, "Ours": 1.0}, metrics, calls)
        ours, peer, encoder, writer = found.values()
        name = f"hotpath/log_metrics, {metrics} metrics"
        more = _more(ours, reference=peer, encoder=encoder, our_compacting_writer=writer)
        cpu, peer_cpu = ours.per_line(ours.cpu) * 1e6, peer.per_line(peer.cpu) * 1e6
        written, peer_written = ours.per_line(ours.written), peer.per_line(peer.written)
        floor = Target(within=3.5) if metrics == 10 else None
        bench.add(
            Row(f"{name}, p50", ours.p50, "us", "reference", peer.p50, Target(faster=p50), str(ours), more=more,
                headline=True),
            Row(f"{name}, p99", ours.p99, "us", "reference", peer.p99, Target(faster=p99), f"reference {peer}",
                headline=True),
            Row(f"{name}, p50", ours.p50, "us", "orjson + os.write", encoder.p50, floor, headline=metrics == 10),
            Row(f"{name}, CPU of all threads", cpu, "us", "reference", peer_cpu, Target(faster=2.0), "per line",
                headline=True),
            Row(f"{name}, written by all threads", written, "bytes", "reference", peer_written, None, "per line"),
            Row(f"{name}, CompactingWriter, p50", writer.p50, "us", "reference", peer.p50, Target(faster=1.0)),
            Row(f"{name}, CompactingWriter, p99", writer.p99, "us", "reference", peer.p99, Target(faster=1.0)),
        )  # fmt: skip


def same_step(bench: Bench) -> None:
    """A validate line after the train line of the same step."""
    for metrics in (10, 100):
        calls = bench.size(4_000, 1_000)
        found = _measure(bench, {"PlattliTwice": 1.0, "ReferenceTwice": 0.02}, metrics, calls)
        (first, second), (peer_first, peer_second) = (_halves(latency) for latency in found.values())
        name = f"hotpath/second line of a step, {metrics} metrics"
        note = f"reference: {peer_first.p50:,.0f} us, then {peer_second.p50:,.0f} us"
        bench.add(
            Row(f"{name}, p50", second.p50, "us", "first line", first.p50, Target(within=2.0), note,
                more=_more(second, first=first, reference=peer_second), headline=True),
            Row(f"{name}, p50", second.p50, "us", "reference", peer_second.p50, Target(faster=1.0)),
        )  # fmt: skip


def _halves(latency: Latency) -> tuple[Latency, Latency]:
    halves = Latency(), Latency()
    for chunk in latency.chunks:
        for odd, half in enumerate(halves):
            half.add({"ns": chunk[odd::2], "cpu": 0.0, "bytes": 0})
    return halves


def tee(bench: Bench) -> None:
    """A tee of Plättli, TensorBoard and W&B (offline) with its defaults: what the caller pays."""
    for metrics in (10, 100):
        calls = bench.size(4_000 if metrics == 10 else 2_000, 1_000)
        found = _measure(bench, {"Tee": 1.0, "Plattli": 1.0}, metrics, calls)
        ours, alone = found.values()
        name = f"hotpath/tee, {metrics} metrics"
        bench.add(
            Row(f"{name}, p50", ours.p50, "us", "PlattliLogger", alone.p50, Target(within=2.5), str(ours),
                more=_more(ours, alone=alone), headline=True),
            Row(f"{name}, p99", ours.p99, "us", "PlattliLogger", alone.p99, Target(within=3.0), headline=True),
        )  # fmt: skip


def busy(bench: Bench) -> None:
    """A loop of NumPy and Python, a line per millisecond, with trackers that follow it, against the same alone."""
    count = bench.size(2_000, 300)
    with bench.folder() as folder:
        given = {name: {"folder": str(folder / name), "metrics": 10} for name in ("BusyFollowed", "Busy")}
        with opened({name: (Side(SUBJECTS), name, arguments) for name, arguments in given.items()}) as sides:
            found: dict[str, list[list[float]]] = {name: [] for name in sides}
            for turn in range(2 * bench.repeats + 1):
                for name, side in sides.items():
                    arguments = {"first": turn * count, "count": count}
                    took = side.do("ask", method="train", arguments=arguments)["answer"]
                    side.do("ask", method="rest", arguments={})  # what still runs must not slow the other side
                    if turn:  # the first one is where everything starts
                        found[name].append(took)
    # neighbours in time are compared, since the machine is faster at one time than at another
    waits = " and ".join(
        f"{statistics.median(turn[2] / turn[0] for turn in turns):.1%}" for turns in found.values()
    )
    for what, at in (("", 0), (", CPU of its thread", 1)):
        ratios = [ours[at] / peer[at] for ours, peer in zip(*found.values(), strict=True)]
        alone = statistics.median(turn[at] for turn in found["Busy"]) / count * 1e3
        bench.add(
            Row(f"hotpath/busy loop that TensorBoard, W&B and MLflow follow, a step{what}",
                alone * statistics.median(ratios), "ms", "PlattliLogger alone", alone, Target(within=1.02),
                f"turns: {', '.join(f'{ratio:.3f}' for ratio in ratios)}; without a core: {waits}", headline=not at)
        )  # fmt: skip


def outage(bench: Bench) -> None:
    """A line of a tee while W&B's server hangs, and while there is none, against the same while it answers."""
    count = bench.size(2_000, 400)
    found: dict[str, list[list[int]]] = {"answers": [], "hangs": [], "is dead": []}
    with bench.folder() as folder, WandbServer() as server, Side(SUBJECTS) as side:
        arguments = {"folder": str(folder), "metrics": 10, "environment": server.env()}
        side.do("open", subject="Hosted", arguments=arguments)

        def train(first: int, count: int) -> list[int]:
            took: list[int] = side.do("ask", method="paced", arguments={"first": first, "count": count})["answer"]
            return took

        train(0, count)
        while side.do("ask", method="pending", arguments={})["answer"]:  # its client takes seconds to start
            time.sleep(0.1)
        steps = itertools.count(count, count)
        for _ in range(bench.repeats):
            found["answers"].append(train(next(steps), count))
            server.behave(graphql="hang", file_stream="hang")
            found["hangs"].append(train(next(steps), count))
            server.behave(graphql="ok", file_stream="ok")
            server.die()
            found["is dead"].append(train(next(steps), count))
            server.come_back()
        side.do("close")
        stored = {row["train/step"] for row in server.run("benchmark", "hosted").history}
        if stored != set(range(lines := next(steps))):
            raise RuntimeError(f"W&B has {len(stored)} lines of {lines} after the outages")
    latencies = {what: Latency(turns) for what, turns in found.items()}
    for what in ("hangs", "is dead"):
        peer, name = latencies["answers"], f"hotpath/tee whose W&B server {what}"
        for q, limit in (("p50", 1.1), ("p99", 1.2)):
            bench.add(
                Row(f"{name}, {q}", getattr(latencies[what], q), "us", "it answers", getattr(peer, q),
                    Target(within=limit), f"all {lines:,} lines arrived", headline=q == "p99")
            )  # fmt: skip


def tensorboard(bench: Bench) -> None:
    """TensorBoardLogger against the two writers that TensorBoard has."""
    for metrics in (10, 100):
        calls = bench.size(4_000 if metrics == 10 else 2_000, 400)
        shares = {"TensorBoard": 1.0, "SummaryWriter": 0.1, "EventFileWriter": 0.5}
        ours, summary, events = _measure(bench, shares, metrics, calls).values()
        name = f"hotpath/TensorBoardLogger, {metrics} metrics, p50"
        more = _more(ours, summary_writer=summary, event_file_writer=events)
        bench.add(
            Row(name, ours.p50, "us", "summary.Writer", summary.p50, Target(faster=40.0), str(ours), more=more,
                headline=True),
            Row(name, ours.p50, "us", "EventFileWriter", events.p50, Target(faster=6.0), "one event per row",
                headline=True),
        )  # fmt: skip


def metrics_group(bench: Bench) -> None:
    """MetricsGroupLogger's live line beside JSONLogger's."""
    for metrics in (1, 10, 100):
        calls = bench.size(10_000 if metrics < 100 else 4_000, 1_000)
        ours, peer = _measure(bench, {"GroupBackend": 1.0, "JsonBackend": 1.0}, metrics, calls).values()
        name = f"hotpath/MetricsGroupLogger, {metrics} metrics, p50"
        bench.add(
            Row(name, ours.p50, "us", "JSONLogger", peer.p50, Target(within=1.05 if metrics == 1 else 1.0), str(ours),
                more=_more(ours, json_logger=peer), headline=metrics == 10),
        )  # fmt: skip


def trackers(bench: Bench) -> None:
    """PlattliLogger against everything else that can be installed here."""
    reasons: dict[str, str] = {}
    for subject in _TRACKERS:
        try:
            bench.environments.interpreter(subject)
        except NotInstalled as error:
            reasons[subject] = str(error)
    shares = {subject: share for subject, (_, share) in _TRACKERS.items() if subject not in reasons}
    for metrics in (10,) if bench.quick else (10, 100):
        calls = bench.size(2_000 if metrics == 10 else 1_000, 400)
        found = _measure(bench, {"Plattli": 1.0, **shares}, metrics, calls)
        ours = found.pop("Plattli")
        name = f"hotpath/log_metrics beside trackers, {metrics} metrics, p50"
        for subject, peer in found.items():
            more = _more(ours, **{subject: peer})
            # TensorBoard's own stand beside TensorBoardLogger
            headline = metrics == 10 and "tensorboard" not in _NAMES[subject].lower()
            row = Row(name, ours.p50, "us", _NAMES[subject], peer.p50, None, str(peer), more=more, headline=headline)
            bench.add(row)
        bench.add(*(Row(name, ours.p50, "us", _NAMES[subject], note=reason) for subject, reason in reasons.items()))


def backends(bench: Bench) -> None:
    """Each of our backends alone, against PlattliLogger: what the caller pays, and what all threads spend."""
    installed: dict[str, float] = {}
    for subject, (_, share) in _BACKENDS.items():
        try:
            bench.environments.interpreter(subject)
            installed[subject] = share
        except NotInstalled as error:
            bench.add(Row(f"hotpath/{_NAMES[subject]}", None, "us", "PlattliLogger", note=str(error)))
    found = _measure(bench, {"Plattli": 1.0, **installed}, 10, bench.size(4_000, 400))
    plattli = found.pop("Plattli")
    for subject, latency in found.items():
        name = f"hotpath/{_NAMES[subject]}, 10 metrics"
        cpu, plattli_cpu = (each.per_line(each.cpu) * 1e6 for each in (latency, plattli))
        bench.add(
            Row(f"{name}, p50", latency.p50, "us", "PlattliLogger", plattli.p50, None, str(latency),
                more=_more(latency, plattli=plattli)),
            Row(f"{name}, CPU of all threads", cpu, "us", "PlattliLogger", plattli_cpu, None, "per line"),
        )  # fmt: skip


def devices(bench: Bench) -> None:
    """One call with 20 torch or JAX scalars, against reading each of them: all travel together."""
    for module in ("torch", "jax"):
        name = f"hotpath/20 {module} scalars in a call, p50"
        if importlib.util.find_spec(module) is None:
            bench.add(Row(name, None, "us", "read one by one", note=f"{module} is not installed"))
            continue
        with bench.folder() as folder:
            given = {"folder": str(folder / module), "metrics": 20, "module": module}
            with opened({"": (Side(SUBJECTS), "DeviceScalars", given)}) as sides:
                count = bench.size(2_000, 400)
                found = [
                    sides[""].do("ask", method="compare", arguments={"first": turn * count, "count": count})["answer"]
                    for turn in range(bench.repeats)
                ]
        ours, apart = (statistics.median(turn[key] for turn in found) for key in ("together", "apart"))
        bench.add(Row(name, ours, "us", "read one by one", apart, None, f"on {found[0]['on']}"))


def syscalls(bench: Bench) -> None:
    """System calls per line, of all threads and child processes, by ``strace -c -f``."""
    if shutil.which("strace") is None:
        bench.add(Row("hotpath/system calls per line", None, "", note="strace is not installed"))
        return
    slow = {subject: share for subject, (_, share) in _TRACKERS.items()}
    # the follower and its backend wait and ask as they please: of many lines that is little for each
    others = {"TensorBoard": 1.0, "Encoder": 1.0, "Tee": 10.0, **slow}
    calls: dict[str, dict[str, float]] = {}
    for subject, share in {"Plattli": 1.0, "Reference": 1.0, **({} if bench.quick else others)}.items():
        try:
            calls[subject] = _calls(bench, subject, max(int(2_000 * share), 50))
        except NotInstalled:
            continue  # its row in `trackers` says so
        bench.line(_NAMES[subject], 10, {"calls_per_line": sum(calls[subject].values())})
    ours, peer = (sum(calls[subject].values()) for subject in ("Plattli", "Reference"))
    most = sorted(calls["Plattli"].items(), key=lambda item: -item[1])[:5]
    note = ", ".join(f"{call} {number:.2f}" for call, number in most)
    name = "hotpath/system calls per line, 10 metrics"
    bench.add(Row(name, ours, "", "reference", peer, None, note, more={"calls": calls}))


def _calls(bench: Bench, subject: str, lines: int) -> dict[str, float]:
    """Return system calls per line: the difference of a short and a long run is what the lines themselves cost."""
    with bench.folder() as folder:
        few, many = (_traced(bench, subject, folder / str(n), n) for n in (lines // 4, lines + lines // 4))
    return {call: (many.get(call, 0) - few.get(call, 0)) / lines for call in {*few, *many}}


def _traced(bench: Bench, subject: str, folder: Path, lines: int) -> dict[str, int]:
    report = folder.with_suffix(".strace")
    prefix = ["strace", "-c", "-f", "-o", str(report)]
    with Side(SUBJECTS, bench.environments.interpreter(subject), prefix=prefix) as side:
        side.do("open", subject=subject, arguments={"folder": str(folder), "metrics": 10})
        side.do("calls", count=lines)
        side.do("close")
    calls = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", report.read_text(), re.MULTILINE)
    return {name: int(count) for count, name in calls if name != "total"}


def imports(bench: Bench) -> None:
    """``import loggers`` beside ``import numpy``."""

    def importing(name: str) -> Callable[[int], list[str]]:
        return lambda turn: [sys.executable, "-c", f"import {name}"]

    found = bench.wall({name: importing(name) for name in ("loggers", "numpy")}, repeats=bench.size(15, 5))
    loggers, numpy = (found[name] * 1e3 for name in ("loggers", "numpy"))
    row = Row("hotpath/import loggers", loggers, "ms", "import numpy", numpy, Target(beyond=60.0), headline=True)
    bench.add(row)


BENCHMARKS: Final = {
    "reference": reference,
    "same-step": same_step,
    "tee": tee,
    "busy": busy,
    "outage": outage,
    "tensorboard": tensorboard,
    "metrics-group": metrics_group,
    "trackers": trackers,
    "backends": backends,
    "devices": devices,
    "syscalls": syscalls,
    "imports": imports,
}
