"""DirectWriter: values straight into columns, against a model, against a failing disk, and killed everywhere."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import CompactingWriter, DirectWriter, Reader, direct
from plattli.errors import PlattliError, RunFinishedError
from tests.killing import every_kill

Model = dict[str, dict[int, Any]]


def stored(run: Path, *, exclude_hot: bool = False) -> Model:
    with Reader(run, exclude_hot=exclude_hot) as reader:
        found: Model = {}
        for name in reader.metrics():
            steps, values = reader.metric(name, dtype="storage")
            assert sorted(set(steps.tolist())) == steps.tolist(), f"{name}: steps out of order or doubled"
            found[name] = dict(zip(steps.tolist(), values.tolist(), strict=True))
        return {name: points for name, points in found.items() if points}


def names_of_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_loop_of_the_format_s_own_readme(tmp_path: Path) -> None:
    """Write, end the step, die, go on at a step, finish."""
    writer = DirectWriter(tmp_path, config={"lr": 3e-4, "depth": 32})
    writer.write(loss=1.5)
    writer.write(note="ok")
    writer.end_step()
    writer.write({"detail/thing0": np.uint8(7)}, loss=1.25)
    writer.end_step()
    del writer
    with DirectWriter(tmp_path, step=1, write_threads=16, config={"lr": 3e-4, "depth": 32}) as writer:
        writer.write(loss=1.0)
        writer.write(prediction={"qid": "42096", "answer": "Yes"})
        writer.end_step()
    assert writer.step == 2
    writer.finish()

    assert [p.name for p in tmp_path.iterdir()] == ["metrics.plattli"]
    assert stored(tmp_path) == {
        "loss": {0: 1.5, 1: 1.0}, "note": {0: "ok"}, "prediction": {1: {"qid": "42096", "answer": "Yes"}},
    }  # fmt: skip
    with Reader(tmp_path) as reader:
        assert reader.config() == {"lr": 3e-4, "depth": 32}
        assert reader.manifest()["loss"]["indices"] == [{"start": 0, "stop": 2, "step": 1}]


def test_a_value_is_in_its_column_when_write_returns(tmp_path: Path) -> None:
    """One file of values and one of steps per metric; steady logging leaves the manifest alone."""
    writer = DirectWriter(tmp_path)
    writer.write({"a/b": 0.5}, n=1)
    folder = tmp_path / "plattli"
    manifest = (folder / "plattli.json").read_bytes()
    assert json.loads(manifest)["a/b"] == {"indices": "indices", "dtype": "f32"}
    inode = (folder / "plattli.json").stat().st_ino
    for step in range(1, 6):
        writer.end_step()
        writer.write({"a/b": step + 0.5}, n=step)
        assert stored(tmp_path, exclude_hot=True)["a/b"][step] == step + 0.5
    writer.step = 70
    writer._written.clear()
    writer.write(n=70)
    writer.close()

    assert (folder / "plattli.json").stat().st_ino == inode
    assert names_of_files(folder) == ["a/b.f32", "a/b.indices", "config.json", "n.i64", "n.indices", "plattli.json"]
    assert (folder / "n.indices").read_bytes() == np.array([0, 1, 2, 3, 4, 5, 70], "<u4").tobytes()


# ---- opening --------------------------------------------------------------------------------------


def test_hot_rows_of_another_writer_are_folded_in_first(tmp_path: Path) -> None:
    """Also those of metrics that have no column yet; nothing of the hot log stays."""
    writer = CompactingWriter(tmp_path, hotsize=3)
    for step in range(8):
        writer.write(a=step * 0.5)
        if step == 7:
            writer.write(hot_only=np.uint8(3), note=["x"])
        writer.end_step()
    writer.close()
    assert "hot_only" not in stored(tmp_path, exclude_hot=True)
    writer = DirectWriter(tmp_path, step="auto")
    assert writer.step == 8
    assert stored(tmp_path, exclude_hot=True)["hot_only"] == {7: 3}
    writer.write(a=4.0, hot_only=np.uint8(4))
    writer.end_step()
    assert "hot.jsonl" not in names_of_files(tmp_path / "plattli")
    writer.finish()

    assert stored(tmp_path) == {
        "a": {s: s * 0.5 for s in range(9)}, "hot_only": {7: 3, 8: 4}, "note": {7: ["x"]},
    }  # fmt: skip


def test_an_existing_run_is_not_emptied_by_default(tmp_path: Path) -> None:
    """The error names the three ways on; each of them does what it says."""
    for step, kept in ((None, None), ("auto", [0, 1, 2]), (1, [0]), (0, [])):
        run = tmp_path / str(step)
        with DirectWriter(run) as writer:
            for value in range(3):
                writer.write(a=value)
                writer.end_step()
        writer.close()
        if kept is None:
            with pytest.raises(RuntimeError, match=r"step=N.*step='auto'.*step=0"):
                DirectWriter(run)
            assert stored(run) == {"a": {0: 0, 1: 1, 2: 2}}
            continue
        writer = DirectWriter(run, step)  # type: ignore[arg-type]
        assert writer.step == len(kept)
        writer.write(a=9)
        writer.finish()

        assert stored(run) == {"a": {**{s: s for s in kept}, len(kept): 9}}


def test_a_finished_run_is_resumed_only_if_asked(tmp_path: Path) -> None:
    """Segments become step files, narrow integers widen with the next one."""
    writer = DirectWriter(tmp_path)
    for step in range(3):
        writer.write(a=step)
        writer.end_step()
    writer.finish()
    with pytest.raises(RuntimeError, match="finished"):
        writer.write(a=1)
    with pytest.raises(RuntimeError, match="finished"):
        writer.end_step()
    with pytest.raises(RuntimeError, match="allow_resume_finalized"):
        DirectWriter(tmp_path, step=3)
    writer = DirectWriter(tmp_path, 3, 0, "config.json", True)
    with Reader(tmp_path) as reader:
        assert reader.manifest() == {"a": {"indices": "indices", "dtype": "u8"}}
    writer.write(a=-3)
    writer.finish(optimize=False, zip=False)

    assert stored(tmp_path) == {"a": {0: 0, 1: 1, 2: 2, 3: -3}}
    assert names_of_files(tmp_path) == [f"plattli/{n}" for n in ("a.i64", "a.indices", "config.json", "plattli.json")]


def test_columns_of_a_writer_that_died_before_its_manifest_are_not_continued(tmp_path: Path) -> None:
    """New metrics start empty, whatever files lie around under their names."""
    folder = tmp_path / "plattli"
    folder.mkdir()
    (folder / "a.i64").write_bytes(b"\1" * 16)
    (folder / "a.f32").write_bytes(b"\1" * 8)
    (folder / "a.indices").write_bytes(b"\0" * 8)
    writer = DirectWriter(tmp_path)
    writer.write(a=7)
    writer.close()

    assert stored(tmp_path) == {"a": {0: 7}}
    assert names_of_files(folder) == ["a.i64", "a.indices", "config.json", "plattli.json"]


@pytest.mark.parametrize(
    ("threads", "error"), [(1.0, TypeError), ("1", TypeError), (None, TypeError), (-1, ValueError)]
)
def test_write_threads_is_a_number_of_threads(tmp_path: Path, threads: Any, error: type) -> None:
    """And refused before anything exists."""
    with pytest.raises(error, match="write_threads"):
        DirectWriter(tmp_path / "run", write_threads=threads)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("step", "error"), [(True, TypeError), (1.0, TypeError), ("1", TypeError), (2**63, ValueError)]
)
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any, error: type) -> None:
    """By the constructor before anything exists, and by write(); the last valid step can be ended."""
    with pytest.raises(error, match="step"):
        DirectWriter(tmp_path / "run", step=step)
    assert not (tmp_path / "run").exists()
    with DirectWriter(tmp_path / "run", step=np.uint64(2**63 - 1)) as writer:
        writer.write(a=1)
        writer.end_step()
        assert writer.step == 2**63
        writer.step = step
        with pytest.raises(error, match="step"):
            writer.write(a=1)
    writer.finish()
    assert stored(tmp_path / "run") == {"a": {2**63 - 1: 1}}


def test_a_run_root_called_plattli_is_refused(tmp_path: Path) -> None:
    """It is the folder inside one."""
    with pytest.raises(ValueError, match="run root"):
        DirectWriter(tmp_path / "plattli")
    assert not (tmp_path / "plattli").exists()


# ---- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (1, 0.5, TypeError),
        (1.0, None, TypeError),
        (1.0, [1.0], ValueError),
        (1.0, np.zeros(2), ValueError),
        (1.5, 1e39, OverflowError),
        (-1, np.uint64(2**63), OverflowError),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(tmp_path: Path, first: Any, second: Any, error: type) -> None:
    """The whole call is unapplied, the writer goes on, and the error is ours and the builtin's."""
    run = tmp_path / "run"
    writer = DirectWriter(run)
    writer.write(x=first)
    writer.end_step()
    with pytest.raises(error, match=r"'x'.*'run'") as caught:
        writer.write({"new": 1, "x": second})
    assert isinstance(caught.value, PlattliError)
    writer.write(x=first, y=1)
    with pytest.raises(RuntimeError, match="already written"):
        writer.write(x=first)
    writer.close()

    assert stored(run) == {"x": {0: first, 1: first}, "y": {1: 1}}


def test_arguments_of_write(tmp_path: Path) -> None:
    """One dict, keywords, both; flush and self are metrics like any other here."""
    writer = DirectWriter(tmp_path)
    writer.write({"a/b": 1}, c=2)
    writer.write(None)
    writer.write()
    writer.write(flush=1.5, self=2)
    with pytest.raises(ValueError, match=r"twice.*'d'"):
        writer.write({"d": 1}, d=2)
    with pytest.raises(TypeError, match="at most one dict"):
        writer.write({"d": 1}, {"e": 1})
    with pytest.raises(TypeError, match="dict"):
        writer.write([("d", 1)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reserved"):
        writer.write({"d": 1, "step": 1})
    writer.finish()

    assert stored(tmp_path) == {"a/b": {0: 1}, "c": {0: 2}, "flush": {0: 1.5}, "self": {0: 2}}


def test_a_value_belongs_to_the_step_at_which_it_was_written(tmp_path: Path) -> None:
    """Whatever the step is when it ends; going back joins, inserts or replaces."""
    writer = DirectWriter(tmp_path)
    writer.write(a=1, j=["one"])
    writer.step = 5
    writer.write(b=2)
    writer.end_step()
    assert writer.step == 6
    writer.write(a=6, b=6, j=["six"])
    writer.end_step()
    writer.step = 5
    writer.write(a=5, b=-2, j=["five", 5])
    writer.end_step()
    writer.write(a=-6, j=["a longer six"])
    writer.end_step()
    writer.write(a=7, b=7, j=[7])
    expected = {
        "a": {0: 1, 5: 5, 6: -6, 7: 7},
        "b": {5: -2, 6: 6, 7: 7},
        "j": {0: ["one"], 5: ["five", 5], 6: ["a longer six"], 7: [7]},
    }
    assert stored(tmp_path, exclude_hot=True) == expected
    writer.finish()

    assert stored(tmp_path) == expected


NUMBERS = st.integers(-300, 300) | st.integers(-(2**62), 2**62)
VALUES = {
    "x": st.floats(width=32, allow_nan=False),
    "wide": st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False).map(np.float64),
    "n": NUMBERS | st.integers(0, 255).map(np.uint8) | st.integers(-99, 99).map(np.int16),
    "deep/er": st.integers(0, 2**32 - 1).map(np.uint32) | st.integers(0, 9).map(np.uint8),
    "note": st.text(max_size=9).filter(lambda text: text.isprintable()) | st.none() | st.lists(st.booleans()),
}
ROWS = st.sets(st.sampled_from(sorted(VALUES)), min_size=1).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in sorted(names)})
)
OPS = st.lists(st.tuples(st.integers(0, 3) | st.none(), st.integers(0, 40), ROWS), max_size=50)


@settings(max_examples=150, deadline=None)
@given(OPS, st.sampled_from(["close", "finish", "folder", "plain"]), st.integers(0, 50))
def test_any_values_at_any_steps_read_back_as_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, ops: list[Any], end: str, reopened_at: int
) -> None:
    """Promoted, late and repeated values all end where a dict of dicts has them."""
    run = tmp_path_factory.mktemp("run")
    model: Model = {}
    writer = DirectWriter(run)
    for number, (jump, anywhere, row) in enumerate(ops):
        if number == reopened_at:
            writer.close()
            writer = DirectWriter(run, step="auto")
        writer.step = anywhere if jump is None else writer.step + jump
        writer.write(row)
        for name, value in row.items():
            model.setdefault(name, {})[writer.step] = value.item() if isinstance(value, np.generic) else value
        writer.end_step()
    if model:
        assert stored(run, exclude_hot=True) == model
    if end == "close":
        writer.close()
    else:
        writer.finish(optimize=end != "plain", zip=end == "finish")
    if model or end != "close":
        assert stored(run) == model


# ---- files ----------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_more_metrics_than_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one unused for longest is closed, and opened again when its turn comes."""
    monkeypatch.setattr(direct, "_MOST_OPEN", 3)
    before = open_files()
    writer = DirectWriter(tmp_path)
    for step in range(4):
        writer.write({f"m{i}": step * 10 + i for i in range(8)})
        writer.write(note=str(step))
        writer.end_step()
        assert open_files() == before + 1 + 2 * 3  # the lock, and three columns
    writer.close()
    assert open_files() == before

    assert stored(tmp_path) == {
        **{f"m{i}": {s: s * 10 + i for s in range(4)} for i in range(8)}, "note": {s: str(s) for s in range(4)},
    }  # fmt: skip


@pytest.mark.parametrize("end", ["finish", "forget", "fence"])
def test_no_file_stays_open(tmp_path: Path, end: str) -> None:
    """Finished, dropped, or overtaken by a newer writer, which then may go on."""
    before = open_files()
    writer = DirectWriter(tmp_path)
    writer.write(a=1, b="x")
    writer.end_step()
    if end == "finish":
        writer.finish()
    elif end == "fence":
        newer = DirectWriter(tmp_path, step="auto")
        with pytest.raises(RunFinishedError, match="newer writer"):
            writer.write(a=2)
        newer.write(a=3)
        newer.close()
        assert stored(tmp_path)["a"] == {0: 1, 1: 3}
    del writer
    gc.collect()

    assert open_files() == before


@pytest.fixture
def limit() -> Iterator[Callable[[int, int], None]]:
    """Lower a limit of this process; it is restored in the end."""
    old: dict[int, tuple[int, int]] = {}

    def lower(which: int, soft: int) -> None:
        hard = old.setdefault(which, resource.getrlimit(which))[1]
        resource.setrlimit(which, (soft, hard))

    yield lower
    for which, limits in old.items():
        resource.setrlimit(which, limits)


def test_a_program_that_runs_out_of_files_gets_some_back(tmp_path: Path, limit: Callable[[int, int], None]) -> None:
    """Columns then share what is left."""
    writer = DirectWriter(tmp_path)
    writer.write({f"m{i}": 0 for i in range(20)})
    writer.end_step()
    limit(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + 4)
    for step in range(1, 3):
        writer.write({f"m{i}": step for i in reversed(range(30))})
        writer.end_step()
    writer.close()

    assert stored(tmp_path) == {f"m{i}": {s: s for s in range(i >= 20, 3)} for i in range(30)}


def test_a_disk_that_refuses_a_value_can_be_tried_again(tmp_path: Path, limit: Callable[[int, int], None]) -> None:
    """write() raises, nothing is glued together, and the same call works when there is room."""
    writer = DirectWriter(tmp_path)
    writer.write(n=1, note="a" * 90)
    writer.end_step()
    limit(resource.RLIMIT_FSIZE, 150)  # of one file
    with pytest.raises(OSError, match="too large"):
        writer.write(n=2, note="b" * 90)
    assert stored(tmp_path)["note"] == {0: "a" * 90}
    limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    writer.write(n=3, note="c")
    writer.end_step()
    writer.write(n=4, note="d" * 200)
    writer.finish()

    assert stored(tmp_path) == {"n": {0: 1, 1: 3, 2: 4}, "note": {0: "a" * 90, 1: "c", 2: "d" * 200}}


def test_a_disk_that_refuses_the_manifest_can_be_tried_again(tmp_path: Path, limit: Callable[[int, int], None]) -> None:
    """No value lands in a column that no reader can find, not that of a new metric, nor a widened one."""
    writer = DirectWriter(tmp_path)
    writer.write(n=np.uint8(1))
    writer.end_step()
    limit(resource.RLIMIT_FSIZE, 20)
    for row in ({"new": 1}, {"n": np.int16(-2)}):
        with pytest.raises(OSError, match="too large"):
            writer.write(row)
    limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    writer.write({"new": 1, "n": np.int16(-2)})
    assert stored(tmp_path) == {"n": {0: 1, 1: -2}, "new": {1: 1}}
    writer.finish()

    assert stored(tmp_path) == {"n": {0: 1, 1: -2}, "new": {1: 1}}


# ---- killed at every file operation ---------------------------------------------------------------


def writes() -> list[tuple[int, dict[str, Any]]]:
    """New metrics, promotions, JSON, and late, joined and repeated values."""
    return [
        (0, {"x": 0.5, "n": np.uint8(1)}),
        (0, {"j": ["zero"]}),
        (1, {"x": 1.5, "n": np.uint8(2), "j": ["one"]}),
        (2, {"x": 2.5, "n": -3, "new/er": 2}),
        (3, {"x": np.float64(0.1), "j": {"a": 3}}),
        (1, {"new/er": 1, "n": 20}),
        (2, {"j": "late"}),
        (4, {"x": 4.5, "n": 4, "j": None}),
    ]


def program(end: str) -> Callable[[Path, Callable[[object], None]], None]:
    def play(run: Path, acknowledge: Callable[[object], None]) -> None:
        writer = DirectWriter(run, step="auto")
        for number, (step, row) in enumerate(writes()):
            writer.step = step
            writer.write(row)
            acknowledge(number)
            writer.end_step()
        if end == "close":
            writer.close()
        else:
            writer.finish(zip=end == "zip")

    return play


def check_survivor(run: Path, done: int) -> None:
    """All that was acknowledged is there; of the call that was under way, each metric or none."""
    model: Model = {}
    under_way: dict[tuple[str, int], Any] = {}
    for number, (step, row) in enumerate(writes()[: done + 1]):
        for name, value in row.items():
            plain = value.item() if isinstance(value, np.generic) else value
            if number < done:
                model.setdefault(name, {})[step] = plain
            else:
                under_way[name, step] = plain
    found = stored(run) if done or (run / "plattli" / "plattli.json").exists() else {}
    for (name, step), value in under_way.items():
        if step in found.get(name, {}) and found[name][step] == value:
            model.setdefault(name, {})[step] = value
    assert found == model


@pytest.mark.parametrize("end", ["close", "zip", "folder"])
def test_a_kill_at_any_file_operation_loses_nothing_and_reopens(tmp_path: Path, end: str) -> None:
    """What write() returned for reads back, before and after new writers of either kind open and finish the run."""
    kills = 0
    for n, run, acknowledged in every_kill(program(end), tmp_path):
        if not run.exists():
            continue
        check_survivor(run, len(acknowledged))
        copy = shutil.copytree(run, tmp_path / "copy")
        writer: DirectWriter | CompactingWriter
        if n % 2:
            writer = DirectWriter(copy, step="auto", allow_resume_finalized=True)
        else:
            writer = CompactingWriter(copy, step="auto", hotsize=1, allow_resume_finalized=True)
        check_survivor(copy, len(acknowledged))
        writer.step = 99
        writer.write(x=9.0)
        writer.finish()
        assert stored(copy)["x"].pop(99) == 9.0
        assert [p.name for p in copy.iterdir()] == ["metrics.plattli"], n
        shutil.rmtree(copy)
        kills = n

    assert kills > 100


@pytest.mark.parametrize("kind", ["hot", "finished"])
def test_a_kill_while_opening_loses_nothing(tmp_path: Path, kind: str) -> None:
    """Folding hot rows in, unpacking, and spelling segments out can be killed anywhere."""
    origin = tmp_path / "origin"
    writer = CompactingWriter(origin, hotsize=4)
    model: Model = {"a": {}, "j": {}}
    for step in range(10):
        writer.write(a=step)
        model["a"][step] = step
        if step % 3 == 0:
            writer.write(j=[step])
            model["j"][step] = [step]
        writer.end_step()
    writer.finish() if kind == "finished" else writer.close()

    def reopen(run: Path, acknowledge: Callable[[object], None]) -> None:
        DirectWriter(run, step=10, allow_resume_finalized=True).close()

    for _, run, _ in every_kill(reopen, tmp_path, prepare=origin):
        assert stored(run) == model
        DirectWriter(run, step=10, allow_resume_finalized=True).close()
        assert stored(run, exclude_hot=True) == model
