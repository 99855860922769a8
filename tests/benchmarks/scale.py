"""How the cost of a line grows: with steps, with metrics, with names."""

from __future__ import annotations

import statistics
from typing import Any, Final

from tests.benchmarks._harness import Bench, Side, opened
from tests.benchmarks._report import Row, Target
from tests.benchmarks.hotpath import SUBJECTS


def steps(bench: Bench) -> None:
    """A run of a million steps: its last line beside its first, its memory, its ten slowest calls."""
    total, start = bench.size(1_000_000, 60_000), 10_000
    with (
        bench.folder() as folder,
        opened({"": (Side(SUBJECTS), "Ageing", {"folder": str(folder), "metrics": 10})}) as sides,
    ):

        def ask(method: str, **arguments: Any) -> Any:
            return sides[""].do("ask", method=method, arguments=arguments)["answer"]

        ask("grow", first=0, steps=start)
        before = ask("resident_kib")
        slow = ask("grow", first=start, steps=total - start)
        grown = (ask("resident_kib") - before) * 1024 / 1e6
        pairs = []
        for turn in range(bench.repeats):
            ask("young", metrics=10)
            pairs.append(ask("compare", first=total + turn * 2000, count=2000))
    old, young = (statistics.median(pair[i] for pair in pairs) for i in range(2))
    worst, over = slow["worst"], slow["over_5_ms"]
    name = f"scale/{total:,} steps x 10"
    mostly = f"mostly {worst[0]['cause']}, {worst[0]['ran']}"
    rule = "a call's time less what it waited for a core; and for the disk, unless a compaction ran"
    bench.add(
        Row(f"{name}, last line", old, "us", "line 1,000", young, Target(within=1.2), headline=True),
        Row(f"{name}, memory growth", grown, "MB", "none", 0.0, Target(beyond=5.0)),
        Row(f"{name}, slowest call", worst[0]["ms"], "ms", note=mostly, more={"worst": worst}),
        Row(f"{name}, calls above 5 ms of our own", float(over), "", "none", 0.0, Target(beyond=0.0), rule,
            headline=True),
    )  # fmt: skip


def width(bench: Bench) -> None:
    """5,000 metrics in one call beside fifty calls with 100."""
    calls = bench.size(2_000, 500)
    with bench.folder() as folder:
        sides = {
            metrics: (Side(SUBJECTS), "Plattli", {"folder": str(folder / metrics), "metrics": int(metrics)})
            for metrics in ("5000", "100")
        }
        with opened(sides) as running:
            turns = {"5000": (running["5000"], calls // 10), "100": (running["100"], calls)}
            wide, narrow = bench.interleaved(turns, warm=10).values()
    bench.add(
        Row("scale/5,000 metrics per call, p50", wide.p50, "us", "50 x 100 metrics", 50 * narrow.p50,
            Target(within=1.2), str(wide), more={"ours_latency": wide.plain()}, headline=True),
    )  # fmt: skip


def densify(bench: Bench) -> None:
    """A million events of a metrics group from its log into Zarr arrays, all at once, and a thousand lines more."""
    for metrics in (10, 100):
        lines = bench.size(1_000_000, 50_000) // metrics
        with (
            bench.folder() as folder,
            opened({"": (Side(SUBJECTS), "GroupBackend", {"folder": str(folder), "metrics": metrics})}) as sides,
        ):
            side = sides[""]
            all_at_once = side.do("ask", method="densify", arguments={"first": 0, "lines": lines})["answer"]
            more = side.do("ask", method="densify", arguments={"first": lines, "lines": 1000})["answer"]
        name = f"scale/metrics group, {lines * metrics:,} events of {metrics} series"
        bench.add(
            Row(f"{name}, densified", all_at_once, "s", "limit", 5.0, Target(within=1.0)),
            Row(f"{name}, 1,000 lines more", more, "s", "all at once", all_at_once),
        )


def names(bench: Bench) -> None:
    """20,000 metric names, a hundred per line: the first time, later, and how many files are open."""
    count = bench.size(20_000, 3_000)
    lines = count // 100
    with (
        bench.folder() as folder,
        opened({"": (Side(SUBJECTS), "ManyNames", {"folder": str(folder), "names": count})}) as sides,
    ):
        side = sides[""]
        begin = side.do("ask", method="descriptors", arguments={})["answer"]["open"]
        new = side.do("calls", count=lines)["ns"]
        known = side.do("calls", count=5 * lines)["ns"]
        files = side.do("ask", method="descriptors", arguments={})["answer"]["open"]
    name = f"scale/{count:,} names"
    bench.add(
        Row(f"{name}, line of 100 new ones, p50", statistics.median(new) / 1e3, "us", "line of known ones",
            statistics.median(known) / 1e3),
        Row(f"{name}, open files", float(files), "", "before", float(begin), Target(beyond=8.0)),
    )  # fmt: skip


BENCHMARKS: Final = {"steps": steps, "width": width, "names": names, "densify": densify}
