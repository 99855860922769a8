"""What a training loop pays for each line, against the reference and against what else it could call."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from tests.benchmarks._harness import Bench, Latency, Row, Side, Target, opened

SUBJECTS: Final = Path(__file__).with_name("_hot_subjects.py")
#: subject -> (module that it needs, what share of our calls it makes: some peers take milliseconds)
_TRACKERS: Final = {
    "JsonLines": ("json", 1.0),
    "SummaryWriter": ("tensorboard", 0.05),
    "EventFileWriter": ("tensorboard", 0.3),
    "TensorboardX": ("tensorboardX", 0.05),
    "Wandb": ("wandb", 0.1),
    "Mlflow": ("mlflow", 0.005),
    "Trackio": ("trackio", 0.02),
}


def _more(ours: Latency, **peers: Latency) -> dict[str, Any]:
    return {"ours_latency": ours.plain(), "peer_latency": {name: peer.plain() for name, peer in peers.items()}}


def _measure(bench: Bench, subjects: dict[str, float], metrics: int, calls: int) -> dict[str, Latency]:
    """Let subjects take turns; each makes its share of the calls."""
    with bench.folder() as folder:
        sides = {
            name: (
                Side(SUBJECTS, bench.reference if name.startswith("Reference") else None),
                name,
                {"folder": str(folder / name), "metrics": metrics},
            )
            for name in subjects
        }
        with opened(sides) as running:
            turns = {name: (side, max(int(calls * subjects[name]), 2)) for name, side in running.items()}
            return bench.interleaved(turns, warm=20)


def reference(bench: Bench) -> None:
    """PlattliLogger against the reference's ``write()`` + ``end_step()``, and what all threads spend."""
    for metrics, p50, p99 in ((10, 5.0, 4.0), (100, 8.0, 6.0)):
        calls = bench.size(10_000 if metrics == 10 else 4_000, 2_000 if metrics == 10 else 1_000)
        found = _measure(bench, {"Plattli": 1.0, "Reference": 1.0, "Encoder": 1.0, "Ours": 1.0}, metrics, calls)
        ours, peer, encoder, writer = found.values()
        name = f"hotpath/{metrics} metrics"
        more = _more(ours, reference=peer, encoder=encoder, our_compacting_writer=writer)
        cpu, peer_cpu = ours.per_line(ours.cpu) * 1e6, peer.per_line(peer.cpu) * 1e6
        written, peer_written = ours.per_line(ours.written), peer.per_line(peer.written)
        floor = Target(within=3.5) if metrics == 10 else None
        bench.add(
            Row(f"{name}, p50", ours.p50, "us", "reference", peer.p50, Target(faster=p50), str(ours), more=more),
            Row(f"{name}, p99", ours.p99, "us", "reference", peer.p99, Target(faster=p99), f"reference {peer}"),
            Row(f"{name}, p50", ours.p50, "us", "orjson + os.write", encoder.p50, floor),
            Row(f"{name}, CPU of all threads", cpu, "us", "reference", peer_cpu, Target(faster=2.0), "per line"),
            Row(f"{name}, written by all threads", written, "bytes", "reference", peer_written, None, "per line"),
            Row(f"{name}, CompactingWriter, p50", writer.p50, "us", "reference", peer.p50, Target(faster=1.0)),
            Row(f"{name}, CompactingWriter, p99", writer.p99, "us", "reference", peer.p99, Target(faster=1.0)),
        )


def same_step(bench: Bench) -> None:
    """A validate line after the train line of the same step."""
    for metrics in (10, 100):
        calls = bench.size(4_000, 1_000)
        found = _measure(bench, {"PlattliTwice": 1.0, "ReferenceTwice": 0.05}, metrics, calls)
        (first, second), (peer_first, peer_second) = (_halves(latency) for latency in found.values())
        name = f"hotpath/second line of a step, {metrics} metrics"
        note = f"reference: {peer_first.p50:,.0f} us, then {peer_second.p50:,.0f} us"
        bench.add(
            Row(f"{name}, p50", second.p50, "us", "first line", first.p50, Target(within=2.0), note,
                more=_more(second, first=first, reference=peer_second)),
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
                more=_more(ours, alone=alone)),
            Row(f"{name}, p99", ours.p99, "us", "PlattliLogger", alone.p99, Target(within=3.0)),
        )  # fmt: skip


def tensorboard(bench: Bench) -> None:
    """TensorBoardLogger against the two writers that TensorBoard has."""
    for metrics in (10, 100):
        calls = bench.size(4_000 if metrics == 10 else 2_000, 1_000)
        shares = {"TensorBoard": 1.0, "SummaryWriter": 0.1, "EventFileWriter": 0.5}
        ours, summary, events = _measure(bench, shares, metrics, calls).values()
        name = f"hotpath/TensorBoardLogger, {metrics} metrics, p50"
        more = _more(ours, summary_writer=summary, event_file_writer=events)
        bench.add(
            Row(name, ours.p50, "us", "summary.Writer", summary.p50, Target(faster=40.0), str(ours), more=more),
            Row(name, ours.p50, "us", "EventFileWriter", events.p50, Target(faster=6.0), "one event per row"),
        )


def trackers(bench: Bench) -> None:
    """PlattliLogger against everything else that is installed here."""
    installed = {name: share for name, (module, share) in _TRACKERS.items() if importlib.util.find_spec(module)}
    for metrics in (10, 100):
        calls = bench.size(2_000 if metrics == 10 else 1_000, 400)
        found = _measure(bench, {"Plattli": 1.0, **installed}, metrics, calls)
        ours = found.pop("Plattli")
        for name, peer in found.items():
            bench.add(
                Row(f"hotpath/trackers, {metrics} metrics, p50", ours.p50, "us", name, peer.p50, None,
                    f"{name} {peer}", more=_more(ours, **{name: peer}))
            )  # fmt: skip
        for name in sorted(_TRACKERS.keys() - installed.keys()):
            row = f"hotpath/trackers, {metrics} metrics, p50"
            bench.add(Row(row, ours.p50, "us", name, note="not installed"))


def syscalls(bench: Bench) -> None:
    """System calls per line, of all threads, by ``strace -c -f``."""
    if shutil.which("strace") is None:
        bench.add(Row("hotpath/system calls per line", None, "", note="strace is not installed"))
        return
    lines = bench.size(4_000, 2_000)
    counts = {}
    with bench.folder() as folder:
        for subject in ("Plattli", "Reference"):
            # the difference of a short and a long run is what the lines themselves cost
            runs = lines // 4, lines + lines // 4
            few, many = (_traced(bench, subject, folder / f"{subject}-{n}", n) for n in runs)
            counts[subject] = {call: (many.get(call, 0) - few.get(call, 0)) / lines for call in {*few, *many}}
    ours, peer = (sum(calls.values()) for calls in counts.values())
    most = sorted(counts["Plattli"].items(), key=lambda item: -item[1])[:5]
    note = ", ".join(f"{call} {number:.2f}" for call, number in most)
    name = "hotpath/system calls per line, 10 metrics"
    bench.add(Row(name, ours, "", "reference", peer, None, note, more={"calls": counts}))


def _traced(bench: Bench, subject: str, folder: Path, lines: int) -> dict[str, int]:
    report = folder.with_suffix(".strace")
    interpreter = bench.reference if subject == "Reference" else None
    with Side(SUBJECTS, interpreter, prefix=["strace", "-c", "-f", "-o", str(report)]) as side:
        side.do("open", subject=subject, arguments={"folder": str(folder), "metrics": 10, "hotsize": 500})
        side.do("calls", count=lines)
    calls = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", report.read_text(), re.MULTILINE)
    return {name: int(count) for count, name in calls if name != "total"}


def imports(bench: Bench) -> None:
    """``import loggers`` beside ``import numpy``."""
    def command(name: str) -> list[str]:
        return [sys.executable, "-c", f"import {name}"]

    commands = {name: lambda turn, name=name: command(name) for name in ("loggers", "numpy")}
    found = bench.wall(commands, repeats=bench.size(15, 7))
    loggers, numpy = (found[name] * 1e3 for name in ("loggers", "numpy"))
    bench.add(Row("hotpath/import loggers", loggers, "ms", "import numpy", numpy, Target(beyond=60.0)))


BENCHMARKS: Final = {
    "reference": reference,
    "same-step": same_step,
    "tee": tee,
    "tensorboard": tensorboard,
    "trackers": trackers,
    "syscalls": syscalls,
    "imports": imports,
}
