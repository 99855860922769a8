"""The engine: rows at any step, against a model; and killed at every one of its file operations."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import random
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import Reader
from plattli._columns import Column
from plattli.errors import (
    MetricNameError,
    PlattliError,
    RunExistsError,
    RunFinishedError,
    RunLockedError,
    StepError,
)
from plattli.rows import Json, RowWriter
from tests import interrupting
from tests.faults import failing_disk
from tests.killing import every_kill

Model = dict[str, dict[int, Any]]


def write(writer: RowWriter, model: Model, step: int, row: dict[str, Any]) -> None:
    assert writer.append(step, tuple(row), tuple(row.values())) == {}
    remember(model, step, row)


def remember(model: Model, step: int, row: dict[str, Any]) -> None:
    for name, value in row.items():
        model.setdefault(name, {})[step] = value.value if isinstance(value, Json) else value


def stored(run: Path) -> Model:
    with Reader(run) as reader:
        found: Model = {}
        for name in reader.metrics():
            steps, values = reader.metric(name, dtype="storage")
            assert sorted(set(steps.tolist())) == steps.tolist(), f"{name}: steps out of order or doubled"
            found[name] = dict(zip(steps.tolist(), values.tolist(), strict=True))
        return {name: points for name, points in found.items() if points}


def same(found: Model, expected: Model) -> bool:
    return {n: spelled(p) for n, p in found.items()} == {n: spelled(p) for n, p in expected.items() if p}


def spelled(points: dict[int, Any]) -> dict[int, str]:
    # as floats where numbers: an integer column that floats joined holds the same numbers
    return {
        step: repr(float(value)) if isinstance(value, int | float) and abs(value) < 2**53 else repr(value)
        for step, value in points.items()
    }


f32 = st.floats(width=32)
VALUES = {
    "loss": st.floats() | f32,
    "acc": f32,
    "count": st.integers(0, 300) | st.integers(0, 300) | f32.filter(lambda v: math.isfinite(v) and abs(v) < 1e6),
    "big": st.integers(-(2**63), 2**63 - 1),
    "note": st.sampled_from([None, "a", [1, [2]], {"k": 1.5}, True]).map(Json),
    "deep/er": st.integers(-5, 5),
}
ROWS = st.tuples(
    st.integers(0, 60),
    st.sets(st.sampled_from(sorted(VALUES)), min_size=1).flatmap(
        lambda names: st.fixed_dictionaries({name: VALUES[name] for name in sorted(names)})
    ),
)
RISING = st.tuples(st.integers(1, 3), ROWS)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), ROWS), max_size=60),
    st.integers(1, 7),
    st.sampled_from(["live", "close", "finish", "reopen", "folder"]),
)
def test_any_rows_at_any_steps_read_back_as_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], hotsize: int, end: str
) -> None:
    """Late, repeated, joined and promoted values all end where a dict of dicts has them."""
    run = tmp_path_factory.mktemp("run")
    model: Model = {}
    writer = RowWriter(run, hotsize=hotsize)
    for number, (rising, (step, row)) in enumerate(rows):
        write(writer, model, writer.newest + 1 + step % 3 if rising else step, row)
        if number == len(rows) // 2 and end == "reopen":
            writer.close()
            writer = RowWriter(run, hotsize=hotsize, if_exists="append")
    if model:
        assert same(stored(run), model)
    if end == "finish":
        writer.finish()
    elif end == "folder":
        writer.finish(zip=False)
    else:
        writer.close()
    if model or end == "finish":
        assert same(stored(run), model)


def test_nothing_is_left_in_the_hot_log_after_drain(tmp_path: Path) -> None:
    """drain() returns when all rows are in the columns."""
    writer = RowWriter(tmp_path, hotsize=100)
    for step in range(5):
        writer.append(step, ("a",), (step * 0.5,))
    writer.drain()
    with Reader(tmp_path, exclude_hot=True) as reader:
        steps, values = reader.metric("a")
    writer.close()

    assert steps.tolist() == [0, 1, 2, 3, 4]
    assert values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_rows_move_to_columns_in_the_background(tmp_path: Path) -> None:
    """hotsize rows in the log start a batch; the newest row stays hot."""
    writer = RowWriter(tmp_path, hotsize=4)
    for step in range(5):
        writer.append(step, ("a",), (float(step),))
    writer.settle()
    with Reader(tmp_path, exclude_hot=True) as reader:
        steps = reader.metric_indices("a")
    writer.close()

    assert steps.tolist() == [0, 1, 2]


def test_a_float_keeps_every_bit(tmp_path: Path) -> None:
    """Floats that float32 holds are stored as such; the first that it does not widens the column."""
    writer = RowWriter(tmp_path, hotsize=2)
    values = [0.5, 1.25, 0.1, float(np.float32(0.1)), 123456789.0, 5e-324, -0.0]
    for step, value in enumerate(values):
        writer.append(step, ("a",), (value,))
    writer.close()
    with Reader(tmp_path) as reader:
        found = reader.metric_values("a")
        dtype = reader.manifest()["a"]["dtype"]

    assert [v.hex() for v in values] == [v.hex() for v in found.tolist()]
    assert dtype == "f64"


def test_integers_and_floats_in_one_metric_stay_what_they_are(tmp_path: Path) -> None:
    """0 and then 0.5 read 0, 0.5; an integer that floats cannot hold refuses to become one."""
    writer = RowWriter(tmp_path, hotsize=2)
    assert writer.append(0, ("a", "b"), (0, 2**53 + 1)) == {}
    assert writer.append(1, ("a",), (0.5,)) == {}
    refused = writer.append(2, ("a", "b"), (2, 0.5))
    writer.close()

    assert list(refused) == ["b"]
    assert "2**53" in str(refused["b"])
    assert stored(tmp_path) == {"a": {0: 0.0, 1: 0.5, 2: 2.0}, "b": {0: 2**53 + 1}}


def test_a_bad_value_does_not_cost_its_siblings_theirs(tmp_path: Path) -> None:
    """What fits is stored, what does not is named."""
    writer = RowWriter(tmp_path, hotsize=2)
    writer.append(0, ("a", "b"), (1.0, 2.0))
    refused = writer.append(1, ("a", "b", "c"), ("text", 3.0, object()))
    writer.close()

    assert sorted(refused) == ["a", "c"]
    assert all(isinstance(error, PlattliError) and name in str(error) for name, error in refused.items())
    assert stored(tmp_path) == {"a": {0: 1.0}, "b": {0: 2.0, 1: 3.0}}


@pytest.mark.parametrize("name", ["", "a//b", "../x", "/x", "a\\b", "step", "x" * 250, "hot.jsonl/x", "config.json/y"])
def test_a_name_that_is_no_path_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    """The other metrics of the row are stored, and no file lies outside."""
    writer = RowWriter(tmp_path / "run", hotsize=1)
    refused = writer.append(0, ("ok", name), (1.0, 2.0))
    writer.finish()

    assert list(refused) == [name]
    assert isinstance(refused[name], MetricNameError)
    assert stored(tmp_path / "run") == {"ok": {0: 1.0}}
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_two_names_that_need_one_path_are_refused(tmp_path: Path) -> None:
    """foo.f32 cannot be a file and a folder; within one row and across rows."""
    writer = RowWriter(tmp_path, hotsize=1)
    assert list(writer.append(0, ("foo", "foo.f32/x"), (1.0, 2.0))) == ["foo.f32/x"]
    assert list(writer.append(1, ("bar.indices/x", "ok"), (1.0, 2.0))) == []
    assert list(writer.append(2, ("bar",), (1.0,))) == ["bar"]
    writer.finish()

    assert sorted(stored(tmp_path)) == ["bar.indices/x", "foo", "ok"]


@pytest.mark.parametrize("step", [-1, 2**63])
def test_a_step_out_of_range_is_refused_before_anything_is_written(tmp_path: Path, step: int) -> None:
    """Nothing wraps."""
    with RowWriter(tmp_path, hotsize=2) as writer:
        with pytest.raises(StepError, match=r"2\*\*63 - 1"):
            writer.append(step, ("a",), (1.0,))
        assert list(writer.metrics) == []


def test_the_last_step_of_the_older_format_is_a_step(tmp_path: Path) -> None:
    """2**32 - 1 is stored; its segment ends at 2**32."""
    writer = RowWriter(tmp_path, hotsize=1)
    for step in (2**32 - 2, 2**32 - 1):
        writer.append(step, ("a",), (1,))
    writer.finish()

    assert stored(tmp_path) == {"a": {2**32 - 2: 1, 2**32 - 1: 1}}


def test_an_existing_run_is_never_emptied_by_accident(tmp_path: Path) -> None:
    """Opening it without saying what to do is an error; replacing it is possible."""
    with RowWriter(tmp_path, hotsize=2) as writer:
        writer.append(0, ("a",), (1.0,))
    with pytest.raises(RunExistsError):
        RowWriter(tmp_path, hotsize=2)
    with RowWriter(tmp_path, hotsize=2, if_exists="replace") as writer:
        writer.append(7, ("b",), (1.0,))

    assert stored(tmp_path) == {"b": {7: 1.0}}


def test_a_cut_is_per_metric(tmp_path: Path) -> None:
    """Each metric is cut at its own step, in columns and in the hot log, finished or not."""
    for finished in (False, True):
        run = tmp_path / str(finished)
        writer = RowWriter(run, hotsize=3)
        for step in range(10):
            writer.append(step, ("a", "b", "c"), (step, step, step))
        writer.finish() if finished else writer.close()
        cuts = {"a": 4, "b": 0}
        RowWriter(run, hotsize=3, if_exists="append", cut=cuts.get).close()

        assert stored(run) == {"a": {s: s for s in range(4)}, "c": {s: s for s in range(10)}}


def test_another_process_cannot_write_a_live_run(tmp_path: Path) -> None:
    """It is refused by the owner's name; when the owner has gone, nothing is in the way."""
    import subprocess

    script = "import sys; from plattli.rows import RowWriter; RowWriter(sys.argv[1], hotsize=1, if_exists='append')"
    writer = RowWriter(tmp_path, hotsize=2)
    writer.append(0, ("a",), (1.0,))
    refused = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    writer.close()
    allowed = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)

    import os

    assert "RunLockedError" in refused.stderr
    assert f"process {os.getpid()}" in refused.stderr
    assert allowed.returncode == 0, allowed.stderr
    with pytest.raises(RunLockedError):
        raise RunLockedError  # the class that scripts catch is also BlockingIOError
    assert issubclass(RunLockedError, BlockingIOError)


def test_a_newer_writer_in_the_process_fences_the_older_one(tmp_path: Path) -> None:
    """The older one's next call says so, and changes nothing."""
    older = RowWriter(tmp_path, hotsize=2)
    for step in range(5):
        older.append(step, ("a",), (float(step),))
    newer = RowWriter(tmp_path, hotsize=2, if_exists="append")
    with pytest.raises(RunFinishedError, match="newer writer"):
        older.append(5, ("a",), (5.0,))
    newer.append(5, ("a",), (50.0,))
    newer.close()

    assert stored(tmp_path)["a"] == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 50.0}


def test_a_crashed_batch_is_not_doubled_and_not_lost(tmp_path: Path) -> None:
    """Rows that are both in columns and in a hot log that a kill left come back once."""
    run = tmp_path / "run"
    writer = RowWriter(run, hotsize=50)
    for step in range(6):
        writer.append(step, ("a", "b"), (step * 0.5, step))
    log = (run / "plattli" / "hot.jsonl").read_bytes()
    writer.drain()
    writer.close()
    (run / "plattli" / "hot.compacting.jsonl").write_bytes(log)
    (run / "plattli" / "b.i64").write_bytes((run / "plattli" / "b.i64").read_bytes()[:20])
    with RowWriter(run, hotsize=50, if_exists="append") as writer:
        writer.append(6, ("a", "b"), (3.0, 6))

    assert stored(run) == {"a": {s: s * 0.5 for s in range(7)}, "b": {s: s for s in range(7)}}


def test_a_short_column_is_cut_never_padded(tmp_path: Path) -> None:
    """Values that are missing at the end stay missing: no zeros, nothing moves to another step."""
    run = tmp_path / "run"
    writer = RowWriter(run, hotsize=2)
    for step in range(5):
        writer.append(step, ("n", "j"), (step + 1, Json([step])))
    writer.finish(zip=False)
    (run / "plattli" / "n.u8").write_bytes(b"\x01\x02\x03")
    lines = (run / "plattli" / "j.jsonl").read_bytes().splitlines(keepends=True)
    (run / "plattli" / "j.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:1])
    with RowWriter(run, hotsize=2, if_exists="append") as writer:
        writer.append(5, ("n", "j"), (6, Json([5])))

    assert stored(run) == {"n": {0: 1, 1: 2, 2: 3, 5: 6}, "j": {0: [0], 1: [1], 5: [5]}}


def test_a_broken_line_that_a_cut_makes_the_last_one_goes(tmp_path: Path) -> None:
    """Readers do not count a broken last line, so no writer may go on behind it; long lines are lines too."""
    writer = RowWriter(tmp_path, hotsize=2)
    for step in range(6):
        writer.append(step, ("j",), (Json("x" * (10_000 if step == 1 else 1)),))
    writer.finish(zip=False)
    path = tmp_path / "plattli" / "j.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b'"x\n', *lines[3:]]))
    writer = RowWriter(tmp_path, hotsize=2, if_exists="append", cut=lambda name: 3)
    writer.append(4, ("j",), (Json("new"),))
    writer.finish()

    assert stored(tmp_path) == {"j": {0: "x", 1: "x" * 10_000, 4: "new"}}


def test_a_hot_row_below_stored_ones_costs_none_of_them(tmp_path: Path) -> None:
    """A writer that went back to an earlier step leaves one; the later value wins, the rest stays."""
    writer = RowWriter(tmp_path, hotsize=100)
    for step in range(6):
        writer.append(step, ("a", "j", "b"), (step * 0.5, Json([step]), step))
    writer.drain()
    writer.close()
    (tmp_path / "plattli" / "hot.jsonl").write_text('{"step":2,"a":99.0,"j":"new"}\n')
    RowWriter(tmp_path, hotsize=100, if_exists="append").close()

    assert stored(tmp_path) == {
        "a": {0: 0.0, 1: 0.5, 2: 99.0, 3: 1.5, 4: 2.0, 5: 2.5},
        "j": {0: [0], 1: [1], 2: "new", 3: [3], 4: [4], 5: [5]},
        "b": {s: s for s in range(6)},
    }


@pytest.mark.parametrize("first", range(1, 40))
def test_a_value_that_replaces_one_after_a_finish_that_failed(tmp_path: Path, first: int) -> None:
    """Some columns may have their last rows by then; what is logged again at such a step counts all the same."""
    run = tmp_path / "run"
    writer = RowWriter(run, hotsize=100)
    model: Model = {}
    for step in range(6):
        write(writer, model, step, {"a": step * 0.5, "b": step, "j": Json([step])})
    writer.drain()
    for step in range(6, 12):
        write(writer, model, step, {"a": step * 0.5, "b": step, "j": Json([step])})
    with failing_disk(first, code=errno.ENOSPC) as disk:
        with contextlib.suppress(OSError):
            writer.finish()
        disk.heal()
    if writer.lost is not None:  # the archive was complete
        writer = RowWriter(run, hotsize=100, if_exists="append")
    write(writer, model, 8, {"a": 99.0, "b": 99})
    write(writer, model, 20, {"a": 1.0, "new": 1})
    writer.drain()
    assert same(stored(run), model)
    writer.finish()

    assert same(stored(run), model)


def test_a_manifest_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """A new metric is in it once the writer is closed, whatever failed when it came."""
    writer = RowWriter(tmp_path, hotsize=100)
    model: Model = {}
    write(writer, model, 0, {"a": 0.5})
    with failing_disk(code=errno.ENOSPC), pytest.raises(OSError, match="No space"):
        writer.append(1, ("a", "new"), (1.5, 2.5))
    write(writer, model, 2, {"a": 2.5, "new": 3.5})
    writer.close()

    assert json.loads((tmp_path / "plattli" / "plattli.json").read_text()).keys() >= {"a", "new"}
    assert same(stored(tmp_path), model)


# ---- interrupted at every instruction --------------------------------------------------------------

INTERRUPTED = ("rows.py", "_hot.py", "_hotlog.py", "_columns.py", "_rowform.py", "_store.py", "_finishing.py", "_fs.py")
# the guards' own lines hold no instruction at which Python looks for signals
interrupted_at = partial(interrupting.interrupted_at, modules=INTERRUPTED, guards=("append", "guarded"))


@pytest.mark.parametrize("end", ["finish", "close", "go on"])
def test_ctrl_c_anywhere_loses_nothing(tmp_path: Path, end: str) -> None:
    """Whatever the interrupt leaves half done in memory, the next call reads the run again."""
    for n in range(1, 10_000, 7):
        run = tmp_path / str(n)
        writer = RowWriter(run, hotsize=2)
        model: Model = {}

        def log(writer: RowWriter = writer, model: Model = model) -> None:
            for step, row in enumerate([{"a": 1.5}, {"a": 0.1, "b": 1}, {"a": 2.0}, {"b": 0.5}, {"c": Json("x")}]):
                write(writer, model, step, row)

        hit = interrupted_at(n, log)
        if end == "go on":
            write(writer, model, 50, {"a": 3.0})
        if end == "finish":
            writer.finish()
        else:
            writer.close()
        found = stored(run) if model else {}
        for name, points in model.items():
            assert spelled(points).items() <= spelled(found[name]).items(), (n, name)
        if not hit:
            return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it hits finalizers, too
def test_ctrl_c_anywhere_in_the_end_leaves_a_run_that_opens(tmp_path: Path) -> None:
    """Opening it, or ending it: nothing is lost, and this process does not stand in its own way."""
    for kind in ("open", "drain", "archive", "folder"):
        for n in range(1, 10_000, 9):
            run = tmp_path / f"{kind}-{n}"
            writer = RowWriter(run, hotsize=2)
            model: Model = {}
            for step, row in rows_of_a_run(1):
                write(writer, model, step, row)
            calls: dict[str, Callable[[], Any]] = {
                "open": partial(RowWriter, run, hotsize=2, if_exists="append"),
                "drain": writer.drain,
                "archive": writer.finish,
                "folder": partial(writer.finish, zip=False),
            }
            if kind == "open":
                writer.close()
            hit = interrupted_at(n, calls[kind])
            del writer, calls
            writer = RowWriter(run, hotsize=2, if_exists="append")
            write(writer, model, 50, {"n": 7})
            writer.finish()
            found = stored(run)
            for name, points in model.items():
                assert spelled(points).items() <= spelled(found[name]).items(), (kind, n, name)
            shutil.rmtree(run)
            if not hit:
                break


def test_a_drain_that_fails_half_way_takes_no_row_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some columns have the newest rows then, and others do not: late points and repeated ones come behind."""
    writer = RowWriter(tmp_path / "run", hotsize=100)
    model: Model = {}
    write(writer, model, 5, {"a": 0.5, "b": Json("x")})
    put = Column.put

    def refuse(column: Column, *args: Any, **kwargs: Any) -> None:
        if column.name == "b":
            raise OSError(errno.ENOSPC, "no room")
        put(column, *args, **kwargs)

    monkeypatch.setattr(Column, "put", refuse)
    with pytest.raises(OSError, match="no room"):
        writer.drain()
    monkeypatch.setattr(Column, "put", put)
    write(writer, model, 3, {"a": 99.0})
    write(writer, model, 5, {"a": 77.0})
    writer.finish()

    assert stored(tmp_path / "run") == model


# ---- killed at every file operation ---------------------------------------------------------------


def rows_of_a_run(seed: int) -> list[tuple[int, dict[str, Any]]]:
    """A little of everything: promotions, JSON, new metrics, joins, late and repeated points."""
    dice = random.Random(seed)
    rows: list[tuple[int, dict[str, Any]]] = []
    for step in range(14):
        row: dict[str, Any] = {"loss": step / 7 if step > 3 else float(step), "n": step if step < 9 else step + 0.5}
        if step % 4 == 1:
            row["note"] = Json({"s": step})
        rows.append((step, row))
        if step % 3 == 2:
            rows.append((step, {"val/loss": step * 0.5}))
        if step % 5 == 4:
            rows.append((dice.randrange(step), {"val/late": step}))
            rows.append((dice.randrange(step), {"loss": -1.0}))
    return rows


def program(end: str) -> Callable[[Path, Callable[[object], None]], None]:
    def write_rows(run: Path, acknowledge: Callable[[object], None]) -> None:
        writer = RowWriter(run, hotsize=4, if_exists="append")
        for number, (step, row) in enumerate(rows_of_a_run(1)):
            assert writer.append(step, tuple(row), tuple(row.values())) == {}
            acknowledge(number)
            writer.settle()
        if end == "finish":
            writer.finish()
            acknowledge("finished")
        else:
            writer.close()

    return write_rows


def check_survivor(run: Path, acknowledged: list[str], expected_rows: list[tuple[int, dict[str, Any]]]) -> None:
    """All that was acknowledged is there; of the row that was under way, each metric or none."""
    done = len([fact for fact in acknowledged if fact != "finished"])
    model: Model = {}
    for step, row in expected_rows[:done]:
        remember(model, step, row)
    with_next = json.loads(json.dumps({}))
    with_next = {name: dict(points) for name, points in model.items()}
    for step, row in expected_rows[done : done + 1]:
        remember(with_next, step, row)
    found = stored(run) if done or (run / "plattli" / "plattli.json").exists() else {}
    for name in with_next.keys() | found.keys():
        options = [spelled(model.get(name, {})), spelled(with_next.get(name, {}))]
        assert spelled(found.get(name, {})) in options, (name, found.get(name), options)


@pytest.mark.parametrize("end", ["close", "finish"])
def test_a_kill_at_any_file_operation_loses_nothing_and_reopens(tmp_path: Path, end: str) -> None:
    """Whatever was acknowledged reads back, before and after a new writer opens the run and finishes it."""
    rows = rows_of_a_run(1)
    kills = 0
    for n, run, acknowledged in every_kill(program(end), tmp_path):
        if not run.exists():
            continue
        check_survivor(run, acknowledged, rows)
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        writer = RowWriter(copy, hotsize=4, if_exists="append")
        check_survivor(copy, acknowledged, rows)
        assert writer.append(99, ("loss",), (0.25,)) == {}, n
        writer.finish()
        found = stored(copy)
        assert found["loss"].pop(99) == 0.25
        assert [p.name for p in copy.iterdir()] == ["metrics.plattli"], n
        kills = n

    assert kills > 100


def test_a_kill_while_reopening_loses_nothing(tmp_path: Path) -> None:
    """Recovery, a cut at a step, and the unpacking of an archive can themselves be killed anywhere."""
    for finished in (False, True):
        origin = tmp_path / f"origin-{finished}"
        writer = RowWriter(origin, hotsize=4)
        model: Model = {}
        for step, row in rows_of_a_run(1):
            write(writer, model, step, row)
        writer.finish() if finished else writer.settle()
        if not finished:
            writer._hot.log.close()
            shutil.copytree(origin, tmp_path / "dead")
            writer.close()
            origin = tmp_path / "dead"
        expected = {name: {s: v for s, v in points.items() if s < 9} for name, points in model.items()}

        def reopen(run: Path, acknowledge: Callable[[object], None]) -> None:
            RowWriter(run, hotsize=4, if_exists="append", cut=lambda name: 9).close()
            acknowledge("reopened")

        for _, run, acknowledged in every_kill(reopen, tmp_path, prepare=origin):
            found = stored(run)
            for name, points in found.items():
                kept = {s: v for s, v in points.items() if s < 9}
                assert spelled(kept) == spelled(expected.get(name, {}))
            RowWriter(run, hotsize=4, if_exists="append", cut=lambda name: 9).close()
            assert same(stored(run), expected), acknowledged
