"""Reading and writing whole runs, against the reference: time, and memory beyond what was there before."""

from __future__ import annotations

import shutil
import statistics
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import plattli
from tests.benchmarks import _runs
from tests.benchmarks._harness import Bench, Row, Side, Target

SUBJECTS: Final = Path(__file__).with_name("_format_subjects.py")
_NOT_SLOWER: Final = Target(faster=1.0)


def _open(interpreter: Path | None, subject: str, arguments: dict[str, Any]) -> Side:
    side = Side(SUBJECTS, interpreter)
    try:
        side.do("open", subject=subject, arguments=arguments)
    except BaseException:
        side.end()
        raise
    return side


def _compare(
    bench: Bench,
    name: str,
    subject: str,
    arguments: dict[str, Any],
    target: Target | None = _NOT_SLOWER,
    *,
    template: Path | None = None,
    patience: float = 10.0,
) -> None:
    """Time one long operation in fresh processes, each with a run of its own if it changes the run."""
    with bench.folder() as folder:
        turn = 0

        def make(interpreter: Path | None) -> Callable[[], Side]:
            def start() -> Side:
                nonlocal turn
                turn += 1
                root = folder / str(turn)
                if template is not None:
                    shutil.copytree(template, root)
                given = arguments if "root" in arguments else {"root": str(root), **arguments}
                return _open(interpreter, subject, given)

            return start

        found = bench.timed({"ours": make(None), "peer": make(bench.reference)}, patience=patience)
    ours, peer = found["ours"], found["peer"]
    note = f"peak +{ours['peak_mb']:.1f} MB, reference +{peer['peak_mb']:.1f} MB"
    if peer["stopped"]:
        note = f"peak +{ours['peak_mb']:.1f} MB; reference stopped after {peer['s']:.0f} s: the ratio is a bound"
    elif peer["turns"] < bench.repeats:
        note += f"; reference measured {peer['turns']} x"
    bench.add(Row(f"format/{name}", ours["s"], "s", "reference", peer["s"], target, note, more=found))


def _read(
    bench: Bench,
    name: str,
    root: Path,
    method: str,
    arguments: dict[str, Any],
    target: Target | None = _NOT_SLOWER,
    *,
    calls: int = 8,
    subject: str = "Read",
    peer: tuple[str, dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    """Time one question to a reader, many times in each of two processes; both must say the same."""
    given = {"root": str(root), "method": method, "arguments": arguments, **options}
    against = "reference" if peer is None else peer[0]
    other = (bench.reference, subject, given) if peer is None else (None, peer[0], peer[1])
    with _open(None, subject, given) as ours, _open(*other) as theirs:
        sides = {"ours": ours, "peer": theirs}
        first = {key: side.do("once") for key, side in sides.items()}
        if calls == 1:  # it may take seconds: a few times will do
            turns = [{key: side.do("once")["s"] for key, side in sides.items()} for _ in range(2)]
            one, two = (statistics.median([first[key]["s"], *(turn[key] for turn in turns)]) * 1e3 for key in sides)
            more: dict[str, Any] = {}
        else:
            found = bench.interleaved({key: (side, calls) for key, side in sides.items()}, warm=0)
            one, two = (found[key].p50 / 1e3 for key in sides)
            more = {f"{key}_latency": latency.plain() for key, latency in found.items()}
        said = [side.do("ask", method="said", arguments={})["answer"] for side in sides.values()]
        for side in sides.values():
            side.do("close")
    peaks = [first[key]["peak_kib"] * 1024 / 1e6 for key in sides]
    note = f"peak +{peaks[0]:.1f} MB, {against} +{peaks[1]:.1f} MB"
    row = Row(f"format/{name}", one, "ms", against, two, target, note, more={**more, "peak_mb": peaks})
    if said[0] != said[1]:
        row.note, row.passed = "the answers differ", False
    bench.add(row)


def finish(bench: Bench) -> None:
    """Ending a run with many metrics of a few rows."""
    metrics = bench.size(5_000, 500)
    arguments = {"metrics": metrics, "rows": 3, "value": 1}
    # quick is less than the reference's quadratic cost needs to show
    target = Target(faster=5.0 if bench.quick else 50.0)
    _compare(bench, f"finish {metrics:,} integer metrics", "Finish", arguments, target, patience=5.0)
    metrics = bench.size(2_000, 500)
    _compare(bench, f"finish {metrics:,} float metrics", "Finish", {"metrics": metrics, "rows": 3, "value": 0.5})


def register(bench: Bench) -> None:
    """New metrics, one ``write`` each."""
    names = bench.size(2_000, 300)
    target = Target(faster=20.0 if not bench.quick else 5.0)
    _compare(bench, f"register {names:,} metrics one by one", "Register", {"names": names}, target)


def live(bench: Bench) -> None:
    """Reading a live run with many metrics in its hot log."""
    metrics = bench.size(5_000, 500)
    with bench.folder() as folder:
        root = _runs.live_run(folder / "live", metrics, 200)
        name = f"live, {metrics:,} metrics x 200 hot rows"
        one = {"name": "detail/metric-7"}
        target = Target(faster=30.0)
        _read(bench, f"{name}, one metric", root, "metric", one, target, calls=1)
        _read(bench, f"{name}, exclude_hot", root, "metric", one, exclude_hot=True)
        step = {"step": 200}
        _compare(bench, f"{name}, reopen", "Reopen", step, template=root, patience=6.0)


def jsonl(bench: Bench) -> None:
    """A long column of JSON."""
    rows = bench.size(1_000_000, 50_000)
    last = Target(faster=500.0 if not bench.quick else 50.0)
    with bench.folder() as folder:
        for steps in ("segment", "open"):
            root = _runs.long_run(folder / steps, rows, steps, floats=0, integers=False)
            name = f"{rows:,} rows of JSON ({steps})"
            _read(bench, f"{name}, idx=-1", root, "metric", {"name": "json", "idx": -1}, last, calls=1)
        for method, arguments in {
            "metric": {"name": "json"},
            "metric_values": {"name": "json", "istart": -1000},
        }.items():
            what = ", ".join(f"{key}={value}" for key, value in arguments.items() if key != "name")
            _read(bench, f"{name}, {method}({what})", root, method, arguments, calls=1)
        archive = _runs.long_run(folder / "zip", rows, "segment", floats=0, integers=False, zip=True)
        name = f"{rows:,} rows of JSON (zip)"
        _read(bench, f"{name}, idx=-1", archive, "metric", {"name": "json", "idx": -1}, last, calls=1)


def reopen(bench: Bench) -> None:
    """Going on with a long run, and ending it."""
    rows = bench.size(1_000_000, 50_000)
    with bench.folder() as folder:
        for kind, jsonl, steps, target in (
            ("open-tail jsonl", True, "open", Target(faster=50.0 if not bench.quick else 5.0)),
            ("jsonl in a step file", True, "file", _NOT_SLOWER),
            ("jsonl, closed", True, "segment", _NOT_SLOWER),
            ("floats, open tail", False, "open", _NOT_SLOWER),
            ("floats in step files", False, "file", _NOT_SLOWER),
        ):
            template = _runs.long_run(folder / kind, rows, steps, jsonl=jsonl, floats=8 if jsonl else 9)  # type: ignore[arg-type]
            name = f"{rows:,} steps x 10 ({kind})"
            _compare(bench, f"reopen {name}", "Reopen", {"step": rows}, target, template=template, patience=5.0)
            _compare(bench, f"finish {name}", "ReopenFinish", {"step": rows}, template=template, patience=3.0)
            shutil.rmtree(template)


def numbers(bench: Bench) -> None:
    """A long column of numbers, in a folder and in an archive."""
    rows = bench.size(1_000_000, 100_000)
    middle = {"start": rows // 2, "stop": rows // 2 + 999}
    with bench.folder() as folder:
        for steps in ("segment", "open", "file"):
            for zip in (False, True):
                kind = f"{'zip' if zip else 'folder'}, {steps}"
                root = _runs.long_run(folder / kind, rows, steps, jsonl=False, floats=3, zip=zip)  # type: ignore[arg-type]
                name = f"{rows:,} numbers ({kind})"
                if steps != "file":
                    against = ("FromFile", _column(root, "float-0.f32", rows))
                    bound = Target(within=1.5)
                    _read(bench, f"{name}, all", root, "metric", {"name": "float-0"}, bound, peer=against, calls=20)
                _read(bench, f"{name}, all", root, "metric", {"name": "float-0"})
                last = Target(faster=10.0) if zip and not bench.quick else _NOT_SLOWER
                _read(bench, f"{name}, idx=-1", root, "metric", {"name": "float-0", "idx": -1}, last)
                if zip:
                    again = {"name": "float-0", "idx": -1}
                    _read(bench, f"{name}, idx=-1, open Reader", root, "metric", again, last, subject="ReadAgain")
                _read(bench, f"{name}, last 1000", root, "metric", {"name": "float-0", "istart": -1000})
                _read(bench, f"{name}, 1000 steps", root, "metric", {"name": "float-0", **middle})
                _read(bench, f"{name}, rows()", root, "rows", {"name": "float-0"})
                _read(bench, f"{name}, all of i64", root, "metric", {"name": "count"})
                between = {"name": "count", "vstart": 3000, "vstop": 6000}
                _read(bench, f"{name}, range of values", root, "metric", between)
                _read(bench, f"{name}, table of 3", root, "table", {"names": ["float-0", "float-1", "count"]}, calls=4)


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
    metrics = bench.size(5_000, 1_000)
    with bench.folder() as folder:
        root = _runs.wide_run(folder / "wide", metrics, 50)
        name = f"archive of {metrics:,} metrics"
        _read(bench, f"{name}, metrics()", root, "metrics", {})
        _read(bench, f"{name}, one of them", root, "metric", {"name": "detail/metric-7"})
        _compare(bench, f"{name}, reopen", "ReopenArchive", {"step": 50}, template=root, patience=5.0)


def writers(bench: Bench) -> None:
    """DirectWriter and BulkWriter."""
    missing = [name for name in ("DirectWriter", "BulkWriter") if not hasattr(plattli, name)]
    if "DirectWriter" not in missing:
        for metrics in (10, 100):
            with bench.folder() as folder:
                given = {"metrics": metrics, "writer": "DirectWriter"}
                with (
                    _open(None, "Write", {"root": str(folder / "ours"), **given}) as ours,
                    _open(bench.reference, "Write", {"root": str(folder / "theirs"), **given}) as theirs,
                ):
                    calls = bench.size(400, 100)
                    found = bench.interleaved({"ours": (ours, calls), "peer": (theirs, calls // 4)}, warm=10)
            one, two = found.values()
            more = {"ours_latency": one.plain(), "peer_latency": two.plain()}
            name = f"format/DirectWriter, {metrics} metrics, p50"
            bench.add(Row(name, one.p50, "us", "reference", two.p50, _NOT_SLOWER, str(one), more=more))
        names = bench.size(500, 200)
        given = {"names": names, "writer": "DirectWriter"}
        _compare(bench, f"DirectWriter, register {names:,} metrics", "Register", given)
        given = {"metrics": names, "rows": 3, "value": 1, "writer": "DirectWriter"}
        _compare(bench, f"DirectWriter, finish {names:,} integer metrics", "Finish", given)
    if "BulkWriter" not in missing:
        given = {"metrics": 10, "rows": bench.size(100_000, 10_000)}
        _compare(bench, f"BulkWriter, {given['rows']:,} steps x 10", "BulkRun", given)
    for name in missing:
        bench.add(Row(f"format/{name}", None, "", "reference", None, None, "not there yet"))


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
