"""BulkWriter: a run in memory, written at the end over whatever was there, and killed everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import BulkWriter, CompactingWriter, DirectWriter, Reader
from plattli.errors import CorruptRunError, PlattliError, RunFinishedError
from tests.killing import every_kill

Model = dict[str, dict[int, Any]]


def stored(run: Path) -> Model:
    with Reader(run) as reader:
        found: Model = {}
        for name in reader.metrics():
            steps, values = reader.metric(name, dtype="storage")
            assert sorted(set(steps.tolist())) == steps.tolist(), f"{name}: steps out of order or doubled"
            found[name] = dict(zip(steps.tolist(), values.tolist(), strict=True))
        return found


def contents(run: Path) -> dict[str, bytes]:
    """Return the files of a run, archived or not, but the manifest."""
    if (run / "metrics.plattli").exists():
        with zipfile.ZipFile(run / "metrics.plattli") as archive:
            assert archive.testzip() is None
            files = {name: archive.read(name) for name in archive.namelist()}
    else:
        folder = run / "plattli"
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: data for name, data in files.items() if name != "plattli.json"}


def write_bulk(run: Path, value: Any, *, zip: bool = True, **options: Any) -> None:
    writer = BulkWriter(run, **options)
    writer.write(new=value)
    writer.end_step()
    writer.finish(zip=zip)


@pytest.mark.parametrize("zip", [True, False])
@pytest.mark.parametrize("optimize", [True, False])
def test_a_whole_run(tmp_path: Path, optimize: bool, zip: bool) -> None:
    """Nothing is there before finish(), and nothing but the run after it."""
    writer = BulkWriter(tmp_path / "run", step=2, config={"lr": 0.1})
    assert writer.root == tmp_path / "run" / "plattli"
    for value in range(4):
        writer.write({"deep/er": np.uint8(value)}, loss=value * 0.5, n=value - 2)
        if value == 2:
            writer.write(note=["x", {"ü": None}])
        writer.end_step()
    assert [p.name for p in (tmp_path / "run").iterdir()] == [".plattli.lock"]
    writer.finish(optimize, zip, {"seed": 1})

    assert [p.name for p in (tmp_path / "run").iterdir()] == ["metrics.plattli" if zip else "plattli"]
    assert stored(tmp_path / "run") == {
        "loss": {s + 2: s * 0.5 for s in range(4)}, "n": {s + 2: s - 2 for s in range(4)},
        "deep/er": {s + 2: s for s in range(4)}, "note": {4: ["x", {"ü": None}]},
    }  # fmt: skip
    with Reader(tmp_path / "run") as reader:
        assert reader.config() == {"lr": 0.1, "seed": 1}
        assert reader.approx_max_rows(0) == 4
        manifest = reader.manifest()
    steps = [{"start": 2, "stop": 6, "step": 1}] if optimize else "indices"
    assert manifest == {
        "deep/er": {"indices": steps, "dtype": "u8", "monotonic": "inc"},
        "loss": {"indices": steps, "dtype": "f32", "monotonic": "inc"},
        "n": {"indices": steps, "dtype": "i8" if optimize else "i64", "monotonic": "inc"},
        "note": {"indices": "indices", "dtype": "jsonl", "bytes": 20},
    }
    files = contents(tmp_path / "run")
    assert files["note.jsonl"] == '["x", {"ü": null}]\n'.encode()
    assert files["note.indices"] == b"\4\0\0\0"


def test_a_run_without_metrics(tmp_path: Path) -> None:
    """Is a run."""
    BulkWriter(tmp_path, config=None).finish()
    with Reader(tmp_path) as reader:
        assert (reader.metrics(), reader.config(), reader.approx_max_rows()) == ([], {}, 0)


NUMBERS = st.integers(-300, 300) | st.integers(-(2**62), 2**62)
VALUES = {
    "x": st.floats(width=32, allow_nan=False),
    "wide": st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False).map(np.float64),
    "n": NUMBERS | st.integers(0, 255).map(np.uint8) | st.integers(-99, 99).map(np.int16),
    "deep/er": st.integers(0, 2**64 - 1).map(np.uint64),
    "note": st.text(st.characters(codec="utf-8"), max_size=9) | st.none() | st.lists(st.booleans()),
}
ROWS = st.sets(st.sampled_from(sorted(VALUES))).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in sorted(names)})
)
OPS = st.lists(st.tuples(st.integers(0, 3) | st.none(), st.integers(0, 40), ROWS), max_size=50)


@settings(max_examples=200, deadline=None)
@given(OPS, st.booleans(), st.booleans())
def test_any_values_at_any_steps_read_back_as_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, ops: list[Any], optimize: bool, zip: bool
) -> None:
    """Steps are sorted, the last of several values stays, widened columns keep what they held."""
    run = tmp_path_factory.mktemp("run")
    model: Model = {}
    writer = BulkWriter(run)
    for jump, anywhere, row in ops:
        writer.step = anywhere if jump is None else writer.step + jump
        writer.write(row)
        for name, value in row.items():
            model.setdefault(name, {})[writer.step] = value.item() if isinstance(value, np.generic) else value
        writer.end_step()
    writer.finish(optimize, zip)

    assert stored(run) == model


# ---- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "error"),
    [(True, TypeError), (None, TypeError), ("auto", TypeError), (-1, ValueError), (2**63, ValueError)],
)
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any, error: type) -> None:
    """By the constructor before anything exists, and by write(), even of nothing."""
    with pytest.raises(error, match="step"):
        BulkWriter(tmp_path / "run", step=step)
    assert not (tmp_path / "run").exists()
    writer = BulkWriter(tmp_path / "run", step=np.uint64(2**63 - 1))
    writer.write(a=1)
    writer.end_step()
    assert writer.step == 2**63
    writer.step = step
    with pytest.raises(error, match="step"):
        writer.write()
    writer.finish()
    assert stored(tmp_path / "run") == {"a": {2**63 - 1: 1}}


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (1, 0.5, TypeError),
        (1.0, None, TypeError),
        (1.0, [1.0], ValueError),
        (1.5, 1e39, OverflowError),
        (-1, np.uint64(2**63), OverflowError),
        (1, 2**63, OverflowError),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(tmp_path: Path, first: Any, second: Any, error: type) -> None:
    """The whole call is unapplied, the writer goes on, and the error is ours and the builtin's."""
    writer = BulkWriter(tmp_path / "run")
    writer.write(x=first)
    writer.end_step()
    with pytest.raises(error, match=r"'x'.*'run'") as caught:
        writer.write({"new": 1, "x": second})
    assert isinstance(caught.value, PlattliError)
    writer.write(x=first)
    with pytest.raises(RuntimeError, match="already written"):
        writer.write(y=1, x=first)
    with pytest.raises(ValueError, match=r"'x\.u8/y'"):
        writer.write({"x.u8/y": 1})
    with pytest.raises(ValueError, match="twice"):
        writer.write({"y": 1}, y=1)
    writer.finish()

    assert stored(tmp_path / "run") == {"x": {0: first, 1: first}}


def test_promotion_of_integers_by_a_float_is_asked_for(tmp_path: Path) -> None:
    """promote='float' turns the column into floats."""
    writer = BulkWriter(tmp_path, promote="float")
    for value in (0, 2, 0.5):
        writer.write(x=value)
        writer.end_step()
    writer.finish()

    assert stored(tmp_path) == {"x": {0: 0.0, 1: 2.0, 2: 0.5}}


def test_after_finish_there_is_no_more(tmp_path: Path) -> None:
    """Every call says so."""
    writer = BulkWriter(tmp_path)
    writer.finish()
    for call in (writer.write, writer.end_step, writer.finish, lambda: writer.set_config({})):
        with pytest.raises(RuntimeError, match="finished"):
            call()


def test_the_run_is_this_writer_s_until_the_end(tmp_path: Path) -> None:
    """Another process is refused by name; a newer writer of this one takes over."""
    script = "import sys; from plattli import BulkWriter; BulkWriter(sys.argv[1], overwrite=True)"
    writer = BulkWriter(tmp_path)
    refused = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert f"is being written by process {os.getpid()}" in refused.stderr
    newer = CompactingWriter(tmp_path, hotsize=1)
    for call in (writer.write, writer.finish):
        with pytest.raises(RunFinishedError, match="newer writer"):
            call()
    newer.write(a=1)
    newer.finish()

    assert stored(tmp_path) == {"a": {0: 1}}


@pytest.mark.parametrize("end", ["close", "forget"])
def test_a_writer_that_is_not_finished_leaves_nothing(tmp_path: Path, end: str) -> None:
    """Closed, or dropped after an error whose traceback knew it, it lets go of the run at once."""
    writer = BulkWriter(tmp_path)
    writer.write(a=1)
    with pytest.raises(ValueError, match="empty"):
        writer.write({"": 1})
    if end == "close":
        writer.close()
        with pytest.raises(RuntimeError, match="released"):
            writer.finish()
    else:
        del writer

    assert list(tmp_path.iterdir()) == []


# ---- config ---------------------------------------------------------------------------------------


def test_bad_configs_and_overrides_leave_the_writer_usable(tmp_path: Path) -> None:
    """They are found before anything is written."""
    with pytest.raises(TypeError, match="config"):
        BulkWriter(tmp_path / "run", config={"x": object()})
    with pytest.raises(FileNotFoundError, match="config target"):
        BulkWriter(tmp_path / "run", config=str(tmp_path))
    assert not (tmp_path / "run").exists()
    writer = BulkWriter(tmp_path / "run", config=[1])
    with pytest.raises(TypeError, match="config_overrides"):
        writer.finish(config_overrides=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config_overrides"):
        writer.finish(config_overrides={"x": 1})
    with pytest.raises(TypeError, match="config"):
        writer.set_config(tmp_path)
    writer.set_config(config := {"a": [1]})
    config["a"].append(2)
    writer.finish(config_overrides={"x": 1})
    with Reader(tmp_path / "run") as reader:
        assert reader.config() == {"a": [1], "x": 1}


@pytest.mark.parametrize("zip", [True, False])
def test_a_config_file_is_copied_or_linked(tmp_path: Path, zip: bool) -> None:
    """Into an archive as it is; from a folder by a link that survives a move; missing, it is empty."""
    run = tmp_path / "run"
    writer = BulkWriter(run)
    (run / "config.json").write_text('{"from":  "file"}')
    writer.write(a=1)
    writer.finish(zip=zip)
    run = run.rename(tmp_path / "moved")
    assert contents(run)["config.json"] == b'{"from":  "file"}'
    assert zip or os.readlink(run / "plattli" / "config.json") == "../config.json"
    write_bulk(run, 1, zip=zip, overwrite=True, config="missing.json")

    assert contents(run)["config.json"] == b"{}"
    assert (run / "config.json").read_text() == '{"from":  "file"}'


def test_a_config_in_the_old_output_is_copied_in_time(tmp_path: Path) -> None:
    """It goes with that output."""
    write_bulk(tmp_path, 1, zip=False, config={"old": 1})
    write_bulk(tmp_path, 2, zip=False, config="plattli/config.json", overwrite=True)

    assert not (tmp_path / "plattli" / "config.json").is_symlink()
    with Reader(tmp_path) as reader:
        assert reader.config() == {"old": 1}


# ---- overwriting ----------------------------------------------------------------------------------

OLD: Model = {"old": {0: 0.5, 1: 1.5}, "note": {0: ["x"]}}


def make_old(run: Path, kind: str) -> None:
    """Make an earlier run, live or finished, with strangers among its files."""
    writer = DirectWriter(run) if kind == "direct" else CompactingWriter(run, hotsize=1 if kind == "live" else 9)
    for step, value in OLD["old"].items():
        writer.write(old=value)
        if step in OLD["note"]:
            writer.write(note=OLD["note"][step])
        writer.end_step()
    (run / "plattli" / "sub").mkdir()
    (run / "plattli" / "sub" / "own.txt").write_text("mine")
    (run / "plattli" / "old.i8").write_text("an earlier dtype")
    (run / "plattli" / "orphan.indices").write_bytes(b"\0" * 4)
    (run / "plattli" / "orphan.f32").write_bytes(b"\0" * 4)
    (run / "plattli" / "lone.f32").write_bytes(b"\0" * 4)
    if kind in ("zip", "folder"):
        writer.finish(zip=kind == "zip")
    else:
        writer.close()


KINDS = ["zip", "folder", "hot", "live", "direct"]


@pytest.mark.parametrize("zip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_overwriting_keeps_what_is_not_the_run_s(tmp_path: Path, kind: str, zip: bool) -> None:
    """The old run goes with all its files; the strangers move; it has to be asked for."""
    make_old(tmp_path, kind)
    with pytest.raises(RuntimeError, match=r"found existing .*overwrite=True"):
        BulkWriter(tmp_path)
    assert stored(tmp_path) == OLD
    writer = BulkWriter(tmp_path, overwrite=True)
    writer.write(new=1)
    assert stored(tmp_path) == OLD
    writer.finish(zip=zip)

    assert stored(tmp_path) == {"new": {0: 1}}
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.plattli" if zip else "plattli"]
    files = contents(tmp_path)
    assert sorted(files) == ["config.json", "lone.f32", "new.indices", "new.u8", "sub/own.txt"]
    assert files["sub/own.txt"] == b"mine"


def test_an_empty_folder_counts_as_something_there(tmp_path: Path) -> None:
    """Somebody made it for a purpose."""
    (tmp_path / "plattli").mkdir()
    with pytest.raises(RuntimeError, match=r"found existing .*plattli; pass overwrite=True"):
        BulkWriter(tmp_path)
    write_bulk(tmp_path, 1, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.plattli"]


@pytest.mark.parametrize("zip", [True, False])
@pytest.mark.parametrize("stranger", ["new.u8", "new.u8/x", "deep", "config.json/x"])
def test_a_stranger_in_the_way(tmp_path: Path, stranger: str, zip: bool) -> None:
    """A file that would be lost, or could not lie there, stops it; with that out of the way it can go on."""
    path = tmp_path / "plattli" / stranger
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    writer = BulkWriter(tmp_path, overwrite=True)
    writer.write({"new": 1, "deep/er": 1})
    with pytest.raises(ValueError, match=f"'{stranger}' of unknown origin"):
        writer.finish(zip=zip)
    assert path.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".plattli.lock", "plattli"]
    path.unlink()
    writer.end_step()
    writer.write(new=2)
    writer.finish(zip=zip)

    assert stored(tmp_path) == {"new": {0: 1, 1: 2}, "deep/er": {0: 1}}


def test_folder_and_archive_that_contradict_each_other(tmp_path: Path) -> None:
    """Two different files of one name are for the user to sort out; a metric of either is no stranger."""
    make_old(tmp_path, "zip")
    folder = tmp_path / "plattli"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "own.txt").write_text("mine too")
    (folder / "old.f64").write_text("of a metric that only the archive knows")
    (folder / "plattli.json").write_text("{}")
    with pytest.raises(ValueError, match=r"different files 'sub/own\.txt'"):
        write_bulk(tmp_path, 1, overwrite=True)
    assert stored(tmp_path) == OLD
    (folder / "sub" / "own.txt").write_text("mine")
    write_bulk(tmp_path, 1, overwrite=True)

    assert sorted(contents(tmp_path)) == ["config.json", "lone.f32", "new.indices", "new.u8", "sub/own.txt"]


def test_an_old_run_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    """For who knows what else is in it."""
    (tmp_path / "metrics.plattli").write_bytes(b"junk")
    with pytest.raises(CorruptRunError, match="no readable archive"):
        write_bulk(tmp_path, 1, overwrite=True)
    assert (tmp_path / "metrics.plattli").read_bytes() == b"junk"
    (tmp_path / "metrics.plattli").unlink()
    (tmp_path / "plattli").mkdir()
    (tmp_path / "plattli" / "plattli.json").write_text("{")
    with pytest.raises(ValueError, match=r"plattli\.json"):
        write_bulk(tmp_path, 1, overwrite=True)
    shutil.rmtree(tmp_path / "plattli")
    (tmp_path / "plattli").write_text("a file")
    with pytest.raises(RuntimeError, match="to be a directory"):
        write_bulk(tmp_path, 1, overwrite=True)
    assert (tmp_path / "plattli").read_text() == "a file"


def test_a_member_of_an_old_archive_stays_inside(tmp_path: Path) -> None:
    """A path that leads out of the folder is refused."""
    run = tmp_path / "run"
    run.mkdir()
    with zipfile.ZipFile(run / "metrics.plattli", "w") as archive:
        archive.writestr("plattli.json", "{}")
        archive.writestr("../../out.txt", "x")
    with pytest.raises(CorruptRunError, match="unsafe member"):
        write_bulk(run, 1, zip=False, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


# ---- killed at every file operation ---------------------------------------------------------------


@pytest.mark.parametrize("zip", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "nothing"])
def test_a_kill_at_any_file_operation_leaves_the_old_run_or_the_new_one(tmp_path: Path, kind: str, zip: bool) -> None:
    """Under its own name, for readers; and for the next writer, which leaves nothing of it lying around."""
    origin = tmp_path / "origin"
    origin.mkdir()
    if kind != "nothing":
        make_old(origin, kind)

    def replace(run: Path, acknowledge: Callable[[object], None]) -> None:
        write_bulk(run, 7, zip=zip, overwrite=True)
        acknowledge("finished")

    kills = 0
    seen: list[str] = []
    for n, run, acknowledged in every_kill(replace, tmp_path, prepare=origin):
        kills = n
        if kind == "nothing" and not any((run / name).exists() for name in ("metrics.plattli", "plattli")):
            assert not acknowledged
            write_bulk(run, 8)
            assert [p.name for p in run.iterdir()] == ["metrics.plattli"], n
            continue
        found = stored(run)
        assert found in (OLD, {"new": {0: 7}}), n
        assert not acknowledged or found != OLD
        seen += ["old" if found == OLD else "new"]
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        writer = CompactingWriter(copy, step="auto", hotsize=1, allow_resume_finalized=True)
        assert {name: points for name, points in stored(copy).items() if points} == found, n
        writer.finish()
        assert [p.name for p in copy.iterdir()] == ["metrics.plattli"], n
        assert stored(copy) == found
        assert kind == "nothing" or contents(copy)["sub/own.txt"] == b"mine"
        write_bulk(run, 8, zip=not zip, overwrite=True)
        assert [p.name for p in run.iterdir()] == ["plattli" if zip else "metrics.plattli"], n
        assert stored(run) == {"new": {0: 8}}
        assert kind == "nothing" or contents(run)["sub/own.txt"] == b"mine"

    assert kills > 5
    assert seen == sorted(seen, reverse=True)  # never back to the old one
    assert kind == "nothing" or set(seen) == {"old", "new"}


def test_values_in_memory_take_what_their_files_take(tmp_path: Path) -> None:
    """A few bytes each, while they wait."""
    writer = BulkWriter(tmp_path)
    for step in range(1000):
        writer.write(x=0.1, n=step, b=np.int8(1), j=None)
        writer.end_step()
    sizes = {name: len(memoryview(buffer._values).tobytes()) for name, buffer in writer._buffers.items()}

    assert sizes == {"x": 4000, "n": 8000, "b": 1000, "j": 5000}


def test_a_manifest_lists_metrics_in_the_order_of_first_write(tmp_path: Path) -> None:
    """As every writer does."""
    writer = BulkWriter(tmp_path)
    for name in ("z", "a", "m"):
        writer.write({name: 1})
        writer.end_step()
    writer.finish(zip=False)

    manifest = json.loads((tmp_path / "plattli" / "plattli.json").read_text())
    assert list(manifest) == ["z", "a", "m", "when_exported", "run_rows"]
