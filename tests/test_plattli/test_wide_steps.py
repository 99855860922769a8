"""Steps above 2**32 - 1: stored wide where they are needed, and nowhere else."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loggers import PlattliLogger
from loggers.replay import Cursor, PlattliSource, replay
from plattli import BulkWriter, CompactingWriter, DirectWriter, Reader
from plattli._trainlog import read_log
from plattli.check import check_run
from plattli.convert import main as jsonl2plattli
from plattli.errors import CorruptRunError, StepError
from plattli.rows import Json, RowWriter
from tests.killing import every_kill
from tests.test_loggers.plattli_runs import stored as logged
from tests.test_plattli.byhand import append_hot, append_values, write_manifest

FIRST = 2**32
#: Both sides of the first wide step, and steps that no float64 tells from their neighbours.
STEPS = [0, 5, FIRST - 2, FIRST - 1, FIRST, FIRST + 1, FIRST + 2, 2**40, 2**53 + 1, 2**63 - 2, 2**63 - 1]
NARROW = [step for step in STEPS if step < FIRST]
MANIFEST = "plattli/plattli.json"
Points = dict[str, dict[int, Any]]


def stored(run: Path) -> Points:
    """Return metric -> step -> value; each step once, in order, and of the width that the metric needs."""
    found: Points = {}
    with Reader(run) as reader:
        for name in reader.metrics():
            steps, values = reader.metric(name, dtype="storage")
            numbers = steps.tolist()
            assert numbers == sorted(set(numbers)), name
            assert steps.dtype == (np.uint64 if max(numbers, default=0) >= FIRST else np.uint32), name
            assert reader.rows(name) == len(numbers)
            found[name] = dict(zip(numbers, values.tolist(), strict=True))
    return found


def files(run: Path) -> dict[str, bytes]:
    """Return what a run's files hold, the times of its manifests left out."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.name == "metrics.plattli":
            with zipfile.ZipFile(path) as bundle:
                found |= {f"zip:{name}": bundle.read(name) for name in bundle.namelist()}
        elif path.is_file() and path.name != ".plattli.lock":
            found[path.relative_to(run).as_posix()] = path.read_bytes()
    for name in [name for name in found if name.endswith("plattli.json")]:
        manifest = json.loads(found[name])
        del manifest["when_exported"]
        found[name] = json.dumps(manifest).encode()
    return found


def indices(run: Path) -> dict[str, Any]:
    with Reader(run) as reader:
        return {name: spec["indices"] for name, spec in reader.manifest().items()}


# ---- every writer, every state --------------------------------------------------------------------

WRITERS: dict[str, Callable[[Path], Any]] = {
    "compacting, hot": lambda run: CompactingWriter(run, hotsize=100),
    "compacting, compacted": lambda run: CompactingWriter(run, hotsize=2),
    "direct": DirectWriter,
    "bulk": BulkWriter,
}
MODEL: Points = {
    "a": {step: i for i, step in enumerate(STEPS)},
    "low": {step: i / 2 for i, step in enumerate(NARROW)},
    "j": {step: [i] for i, step in enumerate(STEPS) if i % 2},
}


def write_model(writer: Any) -> None:
    for step in STEPS:
        writer.step = step
        writer.write({name: points[step] for name, points in MODEL.items() if step in points})
        writer.end_step()


STATES = ["live", "folder", "zip", "folder as it is", "zip as it is"]


@pytest.mark.parametrize(
    ("kind", "state"), [(kind, state) for kind in WRITERS for state in STATES if (kind, state) != ("bulk", "live")]
)
def test_steps_around_the_boundary(tmp_path: Path, kind: str, state: str) -> None:
    """What was written reads back, the check has nothing to say, and metrics that need no wide steps have none."""
    run = tmp_path / "run"
    writer = WRITERS[kind](run)
    write_model(writer)
    if state != "live":
        writer.finish(zip=state.startswith("zip"), optimize="as it is" not in state)

    assert stored(run) == MODEL
    specs = indices(run)
    assert [name for name, spec in specs.items() if isinstance(spec, dict)] == ["a", "j"]
    assert list(specs) == ["a", "j", "low"], "those that an older writer does not know come first"
    writer.close()
    assert check_run(run).findings == ()
    with Reader(run) as reader:
        if kind == "compacting, hot" and state == "live":
            assert reader.approx_max_rows() == 0, "hot rows do not count"
        elif kind != "compacting, compacted" or state != "live":
            assert reader.approx_max_rows() == len(STEPS)


@pytest.mark.parametrize("archive", [True, False])
def test_a_run_is_gone_on_with(tmp_path: Path, archive: bool) -> None:
    """Whoever wrote it, whoever goes on, on which side of the boundary."""
    for number, (first, second) in enumerate(
        [(a, b) for a in WRITERS for b in ("compacting, hot", "compacting, compacted", "direct")]
    ):
        for cut in (FIRST - 1, FIRST, FIRST + 1, 2**63 - 1):
            run = tmp_path / f"{number}-{cut}"
            writer = WRITERS[first](run)
            write_model(writer)
            writer.finish(zip=archive)
            options: dict[str, Any] = {"step": cut, "allow_resume_finalized": True}
            if second != "direct":
                options["hotsize"] = 100 if second == "compacting, hot" else 2
            cls: Any = DirectWriter if second == "direct" else CompactingWriter
            with cls(run, **options) as again:
                kept = {name: {s: v for s, v in points.items() if s < cut} for name, points in MODEL.items()}
                assert stored(run) == kept
                again.write(a=77, low=0.5)
                again.end_step()
            expected = {**kept, "a": {**kept["a"], cut: 77}, "low": {**kept["low"], cut: 0.5}}
            assert stored(run) == expected
            again.finish(zip=not archive)
            assert stored(run) == expected
            assert check_run(run).findings == ()
            shutil.rmtree(run)


@pytest.mark.parametrize("kind", ["compacting, hot", "compacting, compacted", "direct"])
def test_a_run_that_lost_its_wide_steps_is_stored_as_if_it_never_had_any(tmp_path: Path, kind: str) -> None:
    """A cut below the boundary brings back the format that every reader knows."""
    cls: Any = DirectWriter if kind == "direct" else CompactingWriter
    options = {} if kind == "direct" else {"hotsize": 100 if kind == "compacting, hot" else 2}
    for steps in (STEPS, NARROW):
        writer = WRITERS[kind](tmp_path / str(len(steps)))
        for i, step in enumerate(steps):
            writer.step = step
            writer.write(a=i, j=[i])
            writer.end_step()
        writer.close()
        again = cls(tmp_path / str(len(steps)), step=FIRST, **options)
        assert not any(isinstance(spec, dict) for spec in indices(tmp_path / str(len(steps))).values())
        again.finish(zip=False)

    assert files(tmp_path / str(len(STEPS))) == files(tmp_path / str(len(NARROW)))


def test_bulk_rows_in_any_order(tmp_path: Path) -> None:
    """They are sorted, the last of a step counts, and an earlier wide step that is gone costs nothing."""
    writer = BulkWriter(tmp_path / "run")
    for value, step in enumerate([7, 2**63 - 1, 3, FIRST, 2**63 - 1, 7]):
        writer.step = step
        writer.write(a=value, b=float(value), c={"v": value})
        writer.end_step()
    writer.finish()

    expected = {3: 2, 7: 5, FIRST: 3, 2**63 - 1: 4}
    assert stored(tmp_path / "run") == {"a": expected, "b": expected, "c": {s: {"v": v} for s, v in expected.items()}}


@pytest.mark.parametrize("kind", WRITERS)
def test_there_is_no_step_above_the_last(tmp_path: Path, kind: str) -> None:
    """2**63 - 1 can be ended, not passed."""
    writer = WRITERS[kind](tmp_path / "run")
    writer.step = 2**63 - 1
    writer.write(a=1)
    writer.end_step()
    with pytest.raises(StepError, match=r"2\*\*63 - 1"):
        writer.write(a=2)
    writer.finish()

    assert stored(tmp_path / "run") == {"a": {2**63 - 1: 1}}


# ---- any rows, in any order -----------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.sampled_from(STEPS) | st.integers(0, 9) | st.integers(FIRST - 20, FIRST + 20) | st.integers(0, 2**63 - 1),
        st.dictionaries(st.sampled_from("abc"), st.integers(-9, 9) | st.floats(-9, 9), min_size=1),
        st.sampled_from(["", "", "", "", "", "drain", "settle", "reopen", "cut"]),
    ),
    max_size=25,
)


@given(ROWS, st.integers(1, 5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_rows_read_back_as_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, dict[str, Any], str]], hotsize: int, archive: bool
) -> None:
    """Late, repeated and joined points, resumes and cuts, on both sides of the boundary."""
    run = tmp_path_factory.mktemp("run")
    writer = RowWriter(run, hotsize=hotsize)
    model: Points = {}
    for number, (step, row, then) in enumerate(rows):
        row = {**row, "j": Json([number])} if number % 3 == 0 else row
        assert writer.append(step, tuple(row), tuple(row.values())) == {}
        for name, value in row.items():
            model.setdefault(name, {})[step] = value.value if isinstance(value, Json) else value
        if then == "drain":
            writer.drain()
        elif then == "settle":
            writer.settle()
        elif then:
            writer.close()
            limit = sorted(step for points in model.values() for step in points)[-1] if then == "cut" else 2**63
            writer = RowWriter(run, hotsize=hotsize, if_exists="append", cut=lambda name, limit=limit: limit)
            model = {name: {s: v for s, v in points.items() if s < limit} for name, points in model.items()}
        with Reader(run) as reader:
            name = next(iter(row))
            steps, values = reader.metric(name)
            found = dict(zip(steps.tolist(), values.tolist(), strict=True))
            assert found == model[name]
    ordered = {name: dict(sorted(points.items())) for name, points in model.items()}
    writer.finish(zip=archive)

    assert stored(run) == ordered
    wide = {name for name, points in ordered.items() if max(points, default=0) >= FIRST}
    assert {name for name, spec in indices(run).items() if isinstance(spec, dict)} == wide
    assert check_run(run).findings == ()


# ---- killed at every file operation ---------------------------------------------------------------


def steps_of(program: str) -> list[int]:
    # the second kind has its steps in a file when it crosses the boundary
    odd = [i * i for i in range(9)]
    return [*range(4), FIRST - 1, *range(FIRST, FIRST + 4)] if program == "segments" else [*odd, *STEPS[3:6], STEPS[-2]]


def crossing(program: str, kind: str) -> Callable[[Path, Callable[[object], None]], None]:
    def write_rows(run: Path, acknowledge: Callable[[object], None]) -> None:
        cls: Any = DirectWriter if kind == "direct" else CompactingWriter
        writer = cls(run, step="auto", **({} if kind == "direct" else {"hotsize": 3}))
        for step in steps_of(program):
            writer.step = step
            writer.write(low=1.5, a=step) if step < FIRST else writer.write(a=step)
            writer.end_step()
            acknowledge(step)
            writer._rows.settle()
        writer.finish(zip=program == "segments", optimize=False)

    return write_rows


def misread(run: Path) -> list[str]:
    """Return which metrics have a wide step in some file, while the manifest does not say that they may."""
    folder = run / "plattli"
    if not (folder / "plattli.json").exists():
        return []
    specs = json.loads((folder / "plattli.json").read_bytes())
    wide = set()
    for log in ("hot.compacting.jsonl", "hot.jsonl"):
        lines = (folder / log).read_bytes().splitlines() if (folder / log).exists() else []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            wide |= {name for name in row if row["step"] >= FIRST}
    for name in specs.keys() - {"when_exported", "run_rows"}:
        values = folder / f"{name}.i64"
        if values.exists() and (np.fromfile(values, "<i8", values.stat().st_size // 8) >= FIRST).any():
            wide.add(name)
    return [name for name in wide - {"step"} if not isinstance(specs[name]["indices"], dict)]


@pytest.mark.parametrize("kind", ["compacting", "direct"])
@pytest.mark.parametrize("steps", ["segments", "file"])
def test_a_kill_while_widening_loses_nothing(tmp_path: Path, steps: str, kind: str) -> None:
    """Every row that ended is there, to readers and writers; and no wide step stands where it would be misread."""
    for n, run, acknowledged in every_kill(crossing(steps, kind), tmp_path):
        done = [int(step) for step in acknowledged]
        if not done:
            continue
        everything = steps_of(steps)
        under_way = everything[: len(done) + 1]
        assert misread(run) == [], n

        def check(where: Path, n: int = n, done: list[int] = done, under_way: list[int] = under_way) -> None:
            with Reader(where) as reader:
                found, values = reader.metric("a")
                assert found.tolist() == values.tolist(), n
                assert found.tolist() in (done, under_way), n
                low = reader.metric_indices("low")
                assert low.dtype == np.uint32
                assert low.tolist() in [[s for s in steps if s < FIRST] for steps in (done, under_way)]

        check(run)
        assert [f for f in check_run(run).findings if f.severity == "error"] == [], n
        writer = RowWriter(run, hotsize=3, if_exists="append")
        check(run)
        assert misread(run) == [], n
        assert writer.append(2**63 - 1, ("z",), (1,)) == {}
        writer.finish()
        check(run)
        assert check_run(run).findings == (), n
        assert [path.name for path in run.iterdir()] == ["metrics.plattli"], n


def test_a_kill_while_a_cut_narrows_loses_nothing(tmp_path: Path) -> None:
    """The rows below the cut are there, whatever form their steps have when the kill comes."""
    for kind in ("compacting", "direct"):
        origin = tmp_path / kind
        writer = WRITERS["compacting, compacted" if kind == "compacting" else kind](origin)
        write_model(writer)
        writer.close()

        def reopen(run: Path, acknowledge: Callable[[object], None]) -> None:
            RowWriter(run, hotsize=2, if_exists="append", cut=lambda name: FIRST).close()

        expected = {name: {s: v for s, v in points.items() if s < FIRST} for name, points in MODEL.items()}
        for _, run, _ in every_kill(reopen, tmp_path, prepare=origin):
            with Reader(run) as reader:
                for name, points in expected.items():
                    steps, values = reader.metric(name, stop=FIRST - 1)
                    assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == points
            RowWriter(run, hotsize=2, if_exists="append", cut=lambda name: FIRST).close()
            assert stored(run) == expected
            assert not any(isinstance(spec, dict) for spec in indices(run).values())


def test_the_manifest_speaks_before_the_row_comes(tmp_path: Path) -> None:
    """A disk that takes no manifest gets no wide row, not even by a way that the writer knows well."""
    run = tmp_path / "run"
    writer = RowWriter(run, hotsize=9)
    for step in range(3):
        writer.append(step, ("a", "b"), (1, 2.0))
    temporary = run / MANIFEST
    temporary = temporary.with_name(temporary.name + ".tmp")
    temporary.mkdir()
    for names in (("a", "b"), ("a",), ("b",)):
        with pytest.raises(OSError, match="directory"):
            writer.append(FIRST, names, (1, 2.0)[: len(names)])
        assert misread(run) == []
    assert writer.append(3, ("b", "a"), (2.0, 1)) == {}  # what fits goes on
    with pytest.raises(OSError, match="directory"):
        writer.append(FIRST, ("b", "a"), (2.0, 1))
    temporary.rmdir()
    assert writer.append(FIRST, ("b", "a"), (2.0, 1)) == {}
    assert misread(run) == []
    writer.finish()

    assert stored(run) == {"a": dict.fromkeys([0, 1, 2, 3, FIRST], 1), "b": dict.fromkeys([0, 1, 2, 3, FIRST], 2.0)}


# ---- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["hot", "segments", "file"])
def test_selections_across_the_boundary(tmp_path: Path, state: str) -> None:
    """Bounds of any kind of number select exactly; every selection has the metric's width."""
    run = tmp_path / "run"
    writer = CompactingWriter(run, hotsize=100) if state == "hot" else BulkWriter(run)
    write_model(writer)
    if state != "hot":
        writer.finish(optimize=state == "segments")
    bounds: list[Any] = [*STEPS, 2**53, 2**63, 2**70, -1, 3.5, float("inf"), float("-inf"), 2.0**40 + 0.5]
    bounds += [np.uint64(2**53 + 1), np.int64(2**63 - 1), np.uint32(5), None]
    with Reader(run) as reader:
        for low in bounds:
            for high in bounds:
                steps = reader.metric_indices("a", start=low, stop=high)
                exact = [None if b is None else int(b) if isinstance(b, np.integer) else b for b in (low, high)]
                wanted = [
                    s for s in STEPS if (exact[0] is None or s >= exact[0]) and (exact[1] is None or s <= exact[1])
                ]
                assert steps.tolist() == wanted, (low, high)
                assert steps.dtype == np.uint64
        for i, step in enumerate(STEPS):
            one, value = reader.metric("a", i - len(STEPS))
            assert (int(one), int(value), one.dtype) == (step, i, np.uint64)
        assert reader.metric_indices("a", istart=2, istop=5).tolist() == STEPS[2:5]
        assert reader.metric_indices("low", start=FIRST).dtype == np.uint32
        assert reader.metric_indices("a", vstart=3, vstop=4).tolist() == STEPS[3:5]


@pytest.mark.parametrize("finished", [True, False])
def test_tables_across_the_boundary(tmp_path: Path, finished: bool) -> None:
    """They are uint64 if one of their metrics is, whatever is selected, and join exactly."""
    run = tmp_path / "run"
    writer: Any = BulkWriter(run) if finished else CompactingWriter(run, hotsize=4)
    write_model(writer)
    if finished:
        writer.finish()
    with Reader(run) as reader:
        for names in (["a", "j"], ["j", "a"]):
            steps, columns = reader.table(names)
            assert (steps.dtype, steps.tolist()) == (np.uint64, STEPS[1::2])
            assert columns["a"].tolist() == list(range(1, len(STEPS), 2))
        for names in (["a", "low"], ["low", "a"]):
            steps, columns = reader.table(names)
            assert (steps.dtype, steps.tolist()) == (np.uint64, NARROW)
            assert reader.table(names, start=2, stop=9)[0].dtype == np.uint64
        assert reader.table(["low"])[0].dtype == np.uint32
        assert reader.table(["a"], on="j", start=2**53 + 1)[0].tolist() == [s for s in STEPS[1::2] if s > 2**53]


def test_follow_across_the_boundary(tmp_path: Path) -> None:
    """Every point comes once; the width grows with the metric."""
    run = tmp_path / "run"
    writer = CompactingWriter(run, hotsize=3)
    writer.write(a=0)
    writer.end_step()
    with Reader(run) as reader:
        points = reader.follow("a", poll=0.001, stop=2**63 - 1)
        steps, _ = next(points)
        assert (steps.tolist(), steps.dtype) == ([0], np.uint32)
        seen: list[int] = []
        for i, step in enumerate(STEPS[2:], 1):
            writer.step = step
            writer.write(a=i)
            writer.end_step()
            steps, values = next(points)
            assert (values.tolist(), steps.dtype) == ([i], np.uint32 if step < FIRST else np.uint64)
            seen += steps.tolist()
        assert seen == STEPS[2:]
        assert list(points) == []
        assert [s.tolist() for s, _ in reader.follow("a", start=2**63 - 2, stop=2**63 - 2)] == [[2**63 - 2]]
    writer.close()


def test_a_step_file_beyond_the_last_step_is_damage(tmp_path: Path) -> None:
    """A check finds the row; a writer refuses to go on from it."""
    run = tmp_path / "run"
    writer = DirectWriter(run)
    for step in (FIRST, FIRST + 1, FIRST + 7):
        writer.step = step
        writer.write(a=1)
        writer.end_step()
    writer.close()
    path = run / "plattli" / "a.steps64"
    assert path.read_bytes() == np.array([FIRST, FIRST + 1, FIRST + 7], "<u8").tobytes()
    path.write_bytes(np.array([FIRST, 2**63, FIRST + 7], "<u8").tobytes())

    assert [(f.severity, f.code, f.file, f.offset) for f in check_run(run).findings] == [
        ("error", "step-range", "plattli/a.steps64", 8)
    ]
    with pytest.raises(CorruptRunError, match="above 9223372036854775807"):
        RowWriter(run, hotsize=1, if_exists="append")


def test_what_a_check_says_of_wide_metrics(tmp_path: Path) -> None:
    """Torn files, leftovers of the other width, and steps that the manifest has not announced."""
    run = tmp_path / "run"
    folder = run / "plattli"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    write_manifest(
        folder,
        {
            "file": {"indices": {"u64": "indices"}, "dtype": "f32"},
            "segments": {"indices": {"u64": [{"start": FIRST, "step": 2}]}, "dtype": "i8"},
            "hot/x": {"indices": [], "dtype": "f32"},
            "bad": {"indices": {"u64": [{"start": 2**63 - 1, "step": 1}]}, "dtype": "i8"},
        },
    )
    (folder / "file.steps64").write_bytes(np.array([1, FIRST], "<u8").tobytes() + b"abc")
    (folder / "file.indices").write_bytes(b"\1\0\0\0")
    append_values(folder, "file", "f32", [1, 2])
    append_values(folder, "segments", "i8", [1, 2])
    append_values(folder, "bad", "i8", [1, 2])
    append_hot(folder, FIRST + 9, {"hot/x": 1.0})

    found = {(f.severity, f.code, f.file, f.metric, f.offset) for f in check_run(run).findings}

    assert found == {
        ("warning", "torn-tail", "plattli/file.steps64", "file", 16),
        ("warning", "superseded", "plattli/file.indices", None, None),
        ("warning", "unannounced-step", "plattli/hot.jsonl", "hot/x", 0),
        ("error", "segments", MANIFEST, "bad", None),
    }
    with Reader(run) as reader:
        assert reader.metric_indices("file").tolist() == [1, FIRST]
        assert reader.metric_indices("segments").tolist() == [FIRST, FIRST + 2]
        assert reader.metric_indices("hot/x").tolist() == [FIRST + 9]
        with pytest.raises(CorruptRunError, match="above"):
            reader.metric("bad")


# ---- the logger, the converter --------------------------------------------------------------------


@pytest.mark.parametrize("end", ["live", "completed"])
@pytest.mark.parametrize("cut", [FIRST - 1, FIRST, 2**40])
def test_the_logger_late_repeated_and_resumed(tmp_path: Path, cut: int, end: str) -> None:
    """As below the boundary: late points go where they belong, repeats replace, a resume cuts exactly."""
    run = tmp_path / "run"
    logger = PlattliLogger(run, hotsize=3, walltime=False)
    model: Points = {}

    def log(step: int, value: Any) -> None:
        logger.log_metrics({"loss": value, "text": f"at {step}"}, step=step)
        model.setdefault("train/loss", {})[step] = value
        model.setdefault("train/text", {})[step] = f"at {step}"

    for i, step in enumerate([0, FIRST - 2, FIRST + 5, FIRST + 1, 2**40, FIRST - 1, 3, FIRST, 2**53 + 1, 2**53, 2**40]):
        log(step, i / 2)
        if step == cut and i < 10:
            state = logger.logger_state()
    logger.log_confusion([[1]], ["a"], step=2**62, context="validate")
    logger.log_other("note", "x")
    assert {name: dict(sorted(p.items())) for name, p in model.items()} == {
        name: points for name, points in logged(run).items() if name in model
    }
    logger.finish("error" if end == "live" else end)
    del logger

    state = {**state, "step": cut, "steps": {"train": cut}}
    logger = PlattliLogger(run, hotsize=3, walltime=False)
    logger.reattach(state)
    model = {name: {s: v for s, v in points.items() if s <= cut} for name, points in model.items()}
    log(cut + 1, 99.0)
    assert logged(run) == {name: dict(sorted(points.items())) for name, points in model.items()}
    log(2**63 - 1, 100.0)
    logger.finish("completed")
    assert logged(run) == {name: dict(sorted(points.items())) for name, points in model.items()}


def test_a_replay_delivers_wide_steps_once(tmp_path: Path) -> None:
    """The copy has every point, and a second look finds nothing new, however far apart the steps are."""
    logger = PlattliLogger(tmp_path / "run", hotsize=3)
    for i, step in enumerate([*STEPS, 2**53 + 2, 2**62]):
        logger.log_metrics({"loss": i / 2}, step=step)
    copy = PlattliLogger(tmp_path / "copy", hotsize=3)
    cursor = replay(tmp_path / "run", copy, finish=False)
    assert logged(tmp_path / "copy") == logged(tmp_path / "run")
    again = Cursor.from_json(cursor.to_json())
    assert [call for calls in PlattliSource(tmp_path / "run").calls(again) for call in calls] == []
    logger.log_metrics({"loss": 0.5}, step=2**62 + 1)
    source = PlattliSource(tmp_path / "run")
    source.taken_back(again)  # that point is a late one
    assert [call.kwargs["step"] for calls in source.calls(again) for call in calls] == [2**62 + 1]
    logger.finish("completed")
    copy.finish("completed")


def test_jsonl2plattli_takes_wide_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a rewind across the boundary leaves a run that everybody can read."""
    for name, steps in (("wide", STEPS), ("rewound", [*STEPS, 6, 7])):
        run = tmp_path / "logs" / name
        run.mkdir(parents=True)
        lines = [json.dumps({"step": step, "loss": i / 2, "low": 1} if step < FIRST else {"step": step, "loss": i / 2})
                 for i, step in enumerate(steps)]  # fmt: skip
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    assert jsonl2plattli(["--allow-rewinds", "-w", "1", str(tmp_path / "logs")]) == 0

    assert "2 runs" in capsys.readouterr().out
    assert read_log(tmp_path / "logs" / "wide" / "metrics.jsonl").columns["loss"].steps.tolist() == STEPS
    wide = stored(tmp_path / "logs" / "wide")
    assert wide == {"loss": {s: i / 2 for i, s in enumerate(STEPS)}, "low": dict.fromkeys(NARROW, 1)}
    assert list(stored(tmp_path / "logs" / "rewound")["loss"]) == [0, 5, 6, 7]
    assert not any(isinstance(spec, dict) for spec in indices(tmp_path / "logs" / "rewound").values())
