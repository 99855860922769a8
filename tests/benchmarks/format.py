"""Reading and writing whole runs, against the reference: time, and memory beyond what was there before."""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import _runs
from tests.benchmarks._harness import Bench, Side
from tests.benchmarks._report import Row, Target

SUBJECTS: Final = Path(__file__).with_name("_format_subjects.py")
_NOT_SLOWER: Final = Target(faster=1.0)


@contextmanager
def _sides(bench: Bench) -> Iterator[dict[str, Side]]:
    """Start a process for each implementation."""
    with Side(SUBJECTS) as ours, Side(SUBJECTS, bench.reference) as peer:
        yield {"ours": ours, "peer": peer}


def _compare(
    bench: Bench,
    name: str,
    subject: str,
    arguments: dict[str, Any],
    target: Target = _NOT_SLOWER,
    *,
    template: Path | None = None,
    headline: bool = False,
) -> None:
    """Time one long operation, each time on a new run, or on a copy of ``template``."""
    with bench.folder() as folder, _sides(bench) as sides:
        turns = itertools.count()

        def given() -> dict[str, Any]:
            root = folder / str(next(turns))
            if template is not None:
                shutil.copytree(template, root)
            return {"root": str(root), **arguments}

        found = bench.timed(sides, subject, given, target)
    ours, peer = found["ours"], found["peer"]
    note = f"peak +{ours['peak_mb']:.1f} MB, reference +{peer['peak_mb']:.1f} MB"
    if peer["stopped"]:
        note = f"peak +{ours['peak_mb']:.1f} MB; reference stopped after {peer['s']:.0f} s: the ratio is a bound"
    elif peer["turns"] < bench.repeats:
        note += f"; reference measured {peer['turns']:.0f} x"
    more = {"timed": found}
    bench.add(Row(f"format/{name}", ours["s"], "s", "reference", peer["s"], target, note, more=more, headline=headline))


def _read(
    bench: Bench,
    sides: dict[str, Side],
    name: str,
    root: Path,
    method: str,
    arguments: dict[str, Any],
    target: Target | None = _NOT_SLOWER,
    *,
    calls: int = 8,
    subject: str = "Read",
    against: str = "reference",
    other: dict[str, Any] | None = None,
    headline: bool = False,
    **options: Any,
) -> None:
    """Time one question to a reader, many times in each of two processes; both must say the same.

    Args:
        calls: in each turn; 1 for those that may take seconds.
        against: what the second side is: the reference, or a subject with the arguments ``other``.
        options: of the reader.
    """
    given = {"root": str(root), "method": method, "arguments": arguments, **options}
    opened = {"ours": (subject, given), "peer": (subject, given) if other is None else (against, other)}
    for key, side in sides.items():
        side.do("open", subject=opened[key][0], arguments=opened[key][1])
    first = {key: side.do("once") for key, side in sides.items()}
    if calls == 1:
        turns = [first]
        while len(turns) < bench.repeats and sum(turn["peer"]["s"] for turn in turns) < bench.patience:
            turns.append({key: side.do("once") for key, side in sides.items()})
        one, two = (statistics.median(turn[key]["s"] for turn in turns) * 1e3 for key in sides)
        more: dict[str, Any] = {}
    else:
        found = bench.interleaved({key: (side, calls) for key, side in sides.items()}, warm=0)
        one, two = (found[key].p50 / 1e3 for key in sides)
        more = {f"{key}_latency": latency.plain() for key, latency in found.items()}
    said = [side.do("ask", method="said", arguments={})["answer"] for side in sides.values()]
    for side in sides.values():
        side.do("close")
    _answered(bench, name, (one, two), first, target, said, against=against, more=more, headline=headline)


def _first(
    bench: Bench, name: str, root: Path, method: str, arguments: dict[str, Any], target: Target = _NOT_SLOWER
) -> None:
    """Time one question to a reader in processes that have asked nothing before."""
    given = {"root": str(root), "method": method, "arguments": arguments}
    turns: list[dict[str, dict[str, Any]]] = []
    while not turns or (len(turns) < bench.repeats and sum(turn["peer"]["s"] for turn in turns) < bench.patience):
        with _sides(bench) as sides:
            for side in sides.values():
                side.do("open", subject="Read", arguments=given)
            turns.append({key: side.do("once") for key, side in sides.items()})
            said = [side.do("ask", method="said", arguments={})["answer"] for side in sides.values()]
    one, two = (statistics.median(turn[key]["s"] for turn in turns) * 1e3 for key in ("ours", "peer"))
    _answered(bench, name, (one, two), turns[0], target, said)


def _answered(
    bench: Bench,
    name: str,
    ms: tuple[float, float],
    first: dict[str, dict[str, Any]],
    target: Target | None,
    said: list[str],
    *,
    against: str = "reference",
    more: dict[str, Any] | None = None,
    headline: bool = False,
) -> None:
    peaks = [first[key]["peak_kib"] * 1024 / 1e6 for key in ("ours", "peer")]
    note = f"peak +{peaks[0]:.1f} MB, {against} +{peaks[1]:.1f} MB"
    more = {**(more or {}), "peak_mb": peaks}
    row = Row(f"format/{name}", ms[0], "ms", against, ms[1], target, note, more=more, headline=headline)
    if said[0] != said[1]:
        row.note, row.passed = "the answers differ", False
    bench.add(row)


def finish(bench: Bench) -> None:
    """Ending a run with many metrics of a few rows."""
    metrics = bench.size(5_000, 300)
    # quick is less than the reference's quadratic cost needs to show
    target = Target(faster=5.0 if bench.quick else 50.0)
    given = {"metrics": metrics, "rows": 3, "value": 1}
    _compare(bench, f"finish {metrics:,} integer metrics", "Finish", given, target)
    metrics = bench.size(2_000, 300)
    _compare(bench, f"finish {metrics:,} float metrics", "Finish", {"metrics": metrics, "rows": 3, "value": 0.5})


def register(bench: Bench) -> None:
    """New metrics, one ``write`` each."""
    names = bench.size(2_000, 200)
    target = Target(faster=20.0 if not bench.quick else 5.0)
    _compare(bench, f"register {names:,} metrics one by one", "Register", {"names": names}, target)


def live(bench: Bench) -> None:
    """Reading a live run with many metrics in its hot log."""
    metrics = bench.size(5_000, 500)
    with bench.folder() as folder:
        root = _runs.live_run(folder / "live", metrics, 200)
        name = f"live, {metrics:,} metrics x 200 hot rows"
        one = {"name": "detail/metric-7"}
        with _sides(bench) as sides:
            _read(bench, sides, f"{name}, exclude_hot", root, "metric", one, exclude_hot=True)
            target = Target(faster=30.0)
            _read(bench, sides, f"{name}, one metric", root, "metric", one, target, calls=1, headline=True)
        _compare(bench, f"{name}, reopen", "Reopen", {"step": 200}, template=root)


def jsonl(bench: Bench) -> None:
    """A long column of JSON."""
    rows = bench.size(1_000_000, 50_000)
    last = Target(faster=500.0 if not bench.quick else 50.0)
    kinds: dict[str, tuple[_runs.Steps, bool]] = {
        "segment": ("segment", False), "zip": ("segment", True), "open": ("open", False)
    }  # fmt: skip
    questions: dict[str, dict[str, Any]] = {"metric": {}, "metric_values": {"istart": -1000}}
    with bench.folder() as folder:
        for kind, (steps, zip) in kinds.items():
            root = _runs.long_run(folder / kind, rows, steps, floats=0, integers=False, zip=zip)
            name = f"{rows:,} rows of JSON ({kind})"
            one = {"name": "json", "idx": -1}
            if kind == "open":  # what was counted once is not counted again in the same process
                _first(bench, f"{name}, idx=-1, first", root, "metric", one, last)
            with _sides(bench) as sides:
                for side in sides.values() if kind == "open" else ():
                    side.do("open", subject="Read", arguments={"root": str(root), "method": "metric", "arguments": one})
                    side.do("once")
                what = "idx=-1, again" if kind == "open" else "idx=-1"
                _read(bench, sides, f"{name}, {what}", root, "metric", one, last, calls=1, headline=kind == "segment")
        for method, selectors in questions.items():
            what = ", ".join(f"{key}={value}" for key, value in selectors.items())
            _first(bench, f"{name}, {method}({what})", root, method, {"name": "json", **selectors})


def reopen(bench: Bench) -> None:
    """Going on with a long run, and ending it."""
    rows = bench.size(1_000_000, 50_000)
    kinds: tuple[tuple[str, bool, _runs.Steps], ...] = (
        ("open-tail jsonl", True, "open"),
        ("jsonl in a step file", True, "file"),
        ("jsonl, closed", True, "segment"),
        ("floats, open tail", False, "open"),
        ("floats in step files", False, "file"),
    )
    with bench.folder() as folder:
        for kind, jsonl, steps in kinds[::2] if bench.quick else kinds:
            template = _runs.long_run(folder / kind, rows, steps, jsonl=jsonl, floats=8 if jsonl else 9)
            name = f"{rows:,} steps x 10 ({kind})"
            tail = jsonl and steps == "open"
            target = Target(faster=5.0 if bench.quick else 50.0) if tail else _NOT_SLOWER
            given = {"step": rows}
            _compare(bench, f"reopen {name}", "Reopen", given, target, template=template, headline=tail)
            _compare(bench, f"finish {name}", "ReopenFinish", given, template=template)
            shutil.rmtree(template)


def numbers(bench: Bench) -> None:
    """A long column of numbers, in a folder and in an archive."""
    rows = bench.size(1_000_000, 100_000)
    every: tuple[_runs.Steps, ...] = ("segment", "open", "file")
    for steps in every[:1] if bench.quick else every:
        for zip in (False, True):
            with bench.folder() as folder:
                _numbers(bench, folder / "run", rows, steps, zip=zip)


def _numbers(bench: Bench, root: Path, rows: int, steps: _runs.Steps, *, zip: bool) -> None:
    _runs.long_run(root, rows, steps, jsonl=False, floats=3, zip=zip)
    name = f"{rows:,} numbers ({'zip' if zip else 'folder'}, {steps})"
    one, count = {"name": "float-0"}, {"name": "count"}
    last = Target(faster=10.0) if zip and not bench.quick else _NOT_SLOWER
    questions: dict[str, tuple[str, dict[str, Any], Target]] = {
        "all": ("metric", one, _NOT_SLOWER),
        "idx=-1": ("metric", {**one, "idx": -1}, last),
        "last 1000": ("metric", {**one, "istart": -1000}, _NOT_SLOWER),
        "1000 steps": ("metric", {**one, "start": rows // 2, "stop": rows // 2 + 999}, _NOT_SLOWER),
        "rows()": ("rows", one, _NOT_SLOWER),
        "all of i64": ("metric", count, _NOT_SLOWER),
        "range of values": ("metric", {**count, "vstart": 3000, "vstop": 6000}, _NOT_SLOWER),
        "table of 3": ("table", {"names": ["float-0", "float-1", "count"]}, _NOT_SLOWER),
    }
    with _sides(bench) as sides:
        for what, (method, given, target) in questions.items():
            headline = zip and steps == "segment" and what == "idx=-1"
            _read(bench, sides, f"{name}, {what}", root, method, given, target, headline=headline)
        if zip:
            again = {**one, "idx": -1}
            _read(bench, sides, f"{name}, idx=-1, open Reader", root, "metric", again, last, subject="ReadAgain")
    if steps != "file":
        bound, column = Target(within=1.5), _column(root, "float-0.f32", rows)
        with Side(SUBJECTS) as ours, Side(SUBJECTS) as floor:
            sides = {"ours": ours, "peer": floor}
            _read(bench, sides, f"{name}, all", root, "metric", one, bound, calls=20, against="FromFile", other=column)


def _column(root: Path, file: str, rows: int) -> dict[str, Any]:
    path = root / "plattli" / file
    if path.exists():
        return {"path": str(path), "rows": rows}
    path = root / "metrics.plattli"
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo(file).header_offset + 30 + len(file)
    return {"path": str(path), "rows": rows, "offset": offset}


def wide(bench: Bench) -> None:
    """An archive with many metrics."""
    metrics = bench.size(5_000, 300)
    with bench.folder() as folder:
        root = _runs.wide_run(folder / "wide", metrics, 50)
        name = f"archive of {metrics:,} metrics"
        with _sides(bench) as sides:
            _read(bench, sides, f"{name}, metrics()", root, "metrics", {})
            _read(bench, sides, f"{name}, one of them", root, "metric", {"name": "detail/metric-7"})
        _compare(bench, f"{name}, reopen", "ReopenArchive", {"step": 50}, template=root)


def writers(bench: Bench) -> None:
    """DirectWriter and BulkWriter."""
    for metrics in (10, 100):
        with bench.folder() as folder, _sides(bench) as sides:
            for key, side in sides.items():
                given = {"root": str(folder / key), "metrics": metrics, "writer": "DirectWriter"}
                side.do("open", subject="Write", arguments=given)
            calls = bench.size(400, 60)
            found = bench.interleaved({"ours": (sides["ours"], calls), "peer": (sides["peer"], calls // 4)}, warm=10)
        one, two = found.values()
        more = {"ours_latency": one.plain(), "peer_latency": two.plain()}
        name = f"format/DirectWriter, {metrics} metrics, p50"
        bench.add(Row(name, one.p50, "us", "reference", two.p50, _NOT_SLOWER, str(one), more=more))
    names = bench.size(500, 60)
    given = {"names": names, "writer": "DirectWriter"}
    _compare(bench, f"DirectWriter, register {names:,} metrics", "Register", given)
    given = {"metrics": names, "rows": 3, "value": 1, "writer": "DirectWriter"}
    _compare(bench, f"DirectWriter, finish {names:,} integer metrics", "Finish", given)
    given = {"metrics": 10, "rows": bench.size(100_000, 5_000)}
    _compare(bench, f"BulkWriter, {given['rows']:,} steps x 10", "BulkRun", given)


def convert(bench: Bench) -> None:
    """``jsonl2plattli`` on a training log."""
    rows = bench.size(50_000, 5_000)
    line = '{{"step": {0}, "loss": {1}, "accuracy": {2}, "lr": 0.001, "epoch": {3}}}\n'
    with bench.folder() as folder:
        run = folder / "runs" / "run"
        run.mkdir(parents=True)
        log = (line.format(row, 1.0 / (row + 1), row / rows, row // 100) for row in range(rows))
        (run / "metrics.jsonl").write_text("".join(log))

        def ours(turn: int) -> list[str]:
            main = "import sys; from plattli.convert import main; sys.exit(main())"
            return [sys.executable, "-c", main, "-o", str(folder / f"ours-{turn}"), str(run.parent)]

        def peer(turn: int) -> list[str]:
            # the environment was renamed when it was complete, so its scripts don't find their interpreter
            script = [str(bench.reference), str(bench.reference.with_name("jsonl2plattli"))]
            return [*script, "-o", str(folder / f"peer-{turn}"), str(run.parent)]

        found = bench.wall({"ours": ours, "peer": peer})
    name = f"format/jsonl2plattli, {rows:,} lines"
    bench.add(Row(name, found["ours"], "s", "reference", found["peer"], _NOT_SLOWER, "with the start of the program"))


BENCHMARKS: Final = {
    "finish": finish,
    "register": register,
    "live": live,
    "jsonl": jsonl,
    "reopen": reopen,
    "numbers": numbers,
    "wide": wide,
    "writers": writers,
    "convert": convert,
}
