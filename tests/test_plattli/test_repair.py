"""``plattli check --repair``: puts in order what it can, and loses nothing that a reader could read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import BulkWriter, DirectWriter, PlattliError, Reader
from plattli._finding import Cut
from plattli._repair import Repaired, _Repair, repair_run
from plattli.check import Report, check_run
from plattli.cli import main
from plattli.errors import NotARunError, RunLockedError, UnstableRunError
from plattli.rows import Json, RowWriter
from tests.killing import every_kill
from tests.test_plattli.byhand import append_hot, append_steps, append_values, pack, write_manifest
from tests.test_plattli.test_check import CASES, DAMAGE, GOLDEN, golden, specs
from tests.test_plattli.test_reader_damage import damage
from tests.test_plattli.test_rows import program, rows_of_a_run, stored

#: Golden runs with what no repair can do anything about.
BEYOND_REPAIR = {
    "bad_manifest_name", "config_symlink", "extra_files", "hot_corrupt_middle", "hot_with_run_rows_ignored",
    "steps_backwards_direct", "truncated_indices_partial_zip", "truncated_jsonl_corrupt_middle",
    "truncated_values_empty_zip", "truncated_values_longer_zip", "truncated_values_missing",
    "truncated_values_missing_zip",
}  # fmt: skip


def everything(path: Path) -> dict[str, str]:
    """Return all that a reader returns of a run, spelled out; what it raises about is left out."""
    found: dict[str, str] = {}

    def take(key: str, read: Callable[[], Any]) -> None:
        try:
            result = read()
        except PlattliError:
            return
        if isinstance(result, tuple):
            steps, values = result
            spelled = repr(values.tolist()) if values.dtype == object else f"{values.dtype} {values.tobytes().hex()}"
            result = f"{steps.tolist()} {spelled}"
        found[key] = str(result)

    for exclude_hot in (False, True):
        try:
            reader = Reader(path, exclude_hot=exclude_hot)
        except NotARunError:
            continue
        with reader:
            take("config", reader.config)
            names: list[str] = []
            take("metrics", lambda: names.extend(reader.metrics()) or sorted(names))  # noqa: B023
            for name in names:
                take(f"{exclude_hot} {name}", lambda: reader.metric(name, dtype="storage"))  # noqa: B023
                take(f"{exclude_hot} {name} last", lambda: repr(reader.metric(name, idx=-1)[0]))  # noqa: B023
                take(f"{exclude_hot} {name} steps 1..3", lambda: reader.metric(name, start=1, stop=3))  # noqa: B023
    return found


def repaired(path: Path) -> Repaired:
    """Repair a run, and see that it reads as before and that a second repair finds nothing to do."""
    before = everything(path)
    result = repair_run(path)
    after = everything(path)
    assert {key: after.get(key) for key in before} == before
    assert result.after == check_run(path)
    assert result.after.fixes == [], result.after.findings
    assert result.after.count("error") <= result.before.count("error")
    again = repair_run(path)
    assert (again.done, again.copies) == ((), None)
    return result


def problems(report: Report) -> list[Any]:
    return [(f.severity, f.code, f.file, f.what) for f in report.findings if f.severity != "note"]


@pytest.mark.parametrize("name", CASES)
def test_a_repaired_golden_run_reads_as_before(name: str, tmp_path: Path) -> None:
    """And is clean, unless its damage is beyond repair."""
    shutil.copytree(GOLDEN / name, tmp_path / name)
    result = repaired(tmp_path / golden(name).relative_to(GOLDEN))

    assert result.after.is_clean == (name not in BEYOND_REPAIR), problems(result.after)
    assert bool(result.done) == bool(result.before.fixes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that a dead writer left: numbers, a step file, JSON, and rows in the hot log."""
    return made(tmp_path / "run")


def made(root: Path) -> Path:
    folder = root / "plattli"
    folder.mkdir(parents=True)
    append_values(folder, "a", "f32", [1.0, 2.0, 3.0, 4.0])
    append_values(folder, "b/c", "i16", [5, 4, 4])
    append_steps(folder, "b/c", [0, 2, 3])
    append_values(folder, "j", "jsonl", [None, {"k": [1]}, "x"])
    append_hot(folder, 4, {"a": 1.5, "j": "y"})
    append_hot(folder, 5, {"b/c": 7, "h": 1})
    (folder / "config.json").write_text('{"lr": 0.1}')
    write_manifest(folder, specs())
    return root


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_repaired_or_left_alone(run: Path, kind: str) -> None:
    """Whatever was readable stays; what has a fix is gone afterwards; what was taken away is kept."""
    DAMAGE[kind][0](run)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    before = check_run(run)
    result = repaired(run)

    fixed = [finding for finding in before.findings if finding.fix is not None]
    left = {(f.code, f.file) for f in result.after.findings}
    assert not left & {(f.code, f.file) for f in fixed}
    for path, data in files.items():
        # every byte that was there is there, or in a copy
        now = path.read_bytes() if path.is_file() else b""
        if path.name == ".plattli.lock" or now.startswith(data):
            continue
        assert result.copies is not None
        copy = result.copies / path.relative_to(run)
        cut = copy.with_name(f"{copy.name}@{len(now)}")
        assert (now + cut.read_bytes() if cut.exists() else copy.read_bytes()) == data


def test_several_damages_of_one_file(run: Path) -> None:
    """One cut takes off values without steps and the half value behind them."""
    with (run / "plattli" / "b/c.i16").open("ab") as file:
        file.write(b"\1\0\2\0\3")
    with (run / "plattli" / "j.jsonl").open("ab") as file:
        file.write(b"7")
    result = repaired(run)

    assert result.after.is_clean
    assert (run / "plattli" / "b/c.i16").stat().st_size == 6
    assert (run / "plattli" / "j.jsonl").read_bytes() == b'null\n{"k": [1]}\n"x"\n'
    assert result.copies is not None
    assert (result.copies / "plattli/b/c.i16@6").read_bytes() == b"\1\0\2\0\3"
    assert (result.copies / "repair.txt").read_text().splitlines() == list(result.done)


def test_a_repaired_manifest_keeps_what_it_is_not_about(run: Path) -> None:
    """Unknown keys, other entries and their order; the old one is among the copies."""
    entries = specs()
    entries["b/c"] |= {"monotonic": "inc", "unit": "€"}
    write_manifest(run / "plattli", entries, later="x" * 3)
    manifest = run / "plattli" / "plattli.json"
    old = manifest.read_bytes()
    edited = json.loads(old) | {"later": {"indices": [], "dtype": "f32", "more": [1]}}
    manifest.write_text(json.dumps(edited))
    result = repaired(run)

    edited["b/c"]["monotonic"] = "dec"
    assert result.after.is_clean
    assert list(json.loads(manifest.read_bytes()).items()) == list(edited.items())
    assert result.copies is not None
    assert (result.copies / "plattli/plattli.json").is_file()
    with Reader(run) as reader:
        assert reader.metric("b/c", vstart=5, vstop=5)[0].tolist() == [0]


def test_a_live_writer_is_named_and_nothing_is_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says so too, with exit code 1; when the writer has gone the repair goes through."""
    with RowWriter(run, hotsize=100, if_exists="append"):
        DAMAGE["a temporary file"][0](run)
        with pytest.raises(RunLockedError, match=f"process {os.getpid()} on host"):
            repair_run(run)
        assert main(["check", "--repair", str(run)]) == 1
        assert f"is being written by process {os.getpid()}" in capsys.readouterr().err
        assert (run / "plattli/b/c.i64.tmp").exists()

    assert main(["check", "--repair", str(run)]) == 0


def test_a_writer_without_a_lock_is_noticed(run: Path) -> None:
    """What grew since it was looked at is not cut."""
    path = run / "plattli" / "a.f32"
    with pytest.raises(UnstableRunError, match="had 15 bytes a moment ago and has 16 now"):
        _Repair(run).apply([Cut(path, 12, 15)])

    assert path.stat().st_size == 16


def test_a_dangling_config_becomes_an_empty_one(run: Path) -> None:
    """The link is among the copies."""
    DAMAGE["a config that links to nowhere"][0](run)
    result = repaired(run)

    assert result.after.is_clean
    with Reader(run) as reader:
        assert reader.config() == {}
    assert result.copies is not None
    assert os.readlink(result.copies / "plattli/config.json") == "../gone.json"


def test_an_archive_is_never_touched(run: Path, tmp_path: Path) -> None:
    """Neither under its run's name nor under another; what lies beside it is put in order."""
    (run / "plattli" / "hot.jsonl").unlink()
    entries = specs()
    entries["b/c"]["monotonic"] = "inc"
    write_manifest(run / "plattli", entries, run_rows=4)
    (run / "plattli" / "a.f32.tmp").write_bytes(b"x")
    shutil.copytree(run / "plattli", tmp_path / "again")
    pack(run / "plattli", run / "metrics.plattli")
    shutil.copytree(tmp_path / "again", run / "plattli")
    data = (run / "metrics.plattli").read_bytes()
    result = repaired(run)

    assert (run / "metrics.plattli").read_bytes() == data
    assert not (run / "plattli").exists()
    assert [f.code for f in result.after.findings] == ["monotonic", "temporary", "copies"]
    assert result.copies is not None
    assert (result.copies / "plattli" / "a.f32").exists()


@pytest.mark.parametrize("archived", [False, True])
def test_an_interrupted_publication_is_finished(tmp_path: Path, archived: bool) -> None:
    """The old run was put aside and the new one was not yet there: no reader found any; now they find the new one."""
    staging = tmp_path / "run" / ".plattli-k3j4"
    old = made(tmp_path / "old") / "plattli"
    new = made(tmp_path / "new") / "plattli"
    for folder in (old, new):
        (folder / "hot.jsonl").unlink()
        write_manifest(folder, specs(), run_rows=4)
    append_values(new, "a", "f32", [9.0])
    write_manifest(new, specs(), run_rows=5)
    staging.mkdir(parents=True)
    shutil.move(old, staging / "previous-plattli")
    pack(new, staging / "metrics.plattli") if archived else shutil.move(new, staging / "plattli")
    assert [f.code for f in check_run(tmp_path / "run").findings if f.severity == "error"] == ["staging"]
    result = repaired(tmp_path / "run")

    assert result.after.is_clean
    with Reader(tmp_path / "run") as reader:
        assert reader.kind == ("zip" if archived else "dir")
        assert reader.metric("a", idx=-1)[1] == 9.0
    assert result.copies is not None
    assert (result.copies / ".plattli-k3j4" / "previous-plattli" / "a.f32").exists()


def test_half_a_new_output_is_not_published(tmp_path: Path) -> None:
    """If only the old run is whole, it comes back."""
    staging = tmp_path / "run" / ".plattli-k3j4"
    staging.mkdir(parents=True)
    shutil.move(made(tmp_path / "old") / "plattli", staging / "previous-plattli")
    (staging / "metrics.plattli").write_bytes(b"PK\3\4")
    result = repaired(tmp_path / "run")

    assert result.after.is_clean
    with Reader(tmp_path / "run") as reader:
        assert reader.metric("a")[1].tolist() == [1.0, 2.0, 3.0, 4.0, 1.5]


def test_the_command_says_what_it_did(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the character, and for programs; a second time there is nothing to do."""
    DAMAGE["half a hot row"][0](run)
    code = main(["check", "--repair", str(run)])
    (copies,) = run.glob(".plattli-repair-*")

    assert (code, capsys.readouterr().out.splitlines()) == (
        0,
        [
            f"{run}: clean (unfinished run, 4 metrics, 4 stored rows): 1 note",
            "  repaired  cut plattli/hot.jsonl at byte 52; the 10 bytes behind are in "
            f"{copies.name}/plattli/hot.jsonl@52",
            f"  copies    {copies}",
            f"  {copies.name}",
            "    note     holds what a repair took away; remove it when nobody misses that",
        ],
    )
    assert main(["check", "--repair", "--json", str(run)]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["repaired"], page["copies"], page["verdict"]) == ([], None, "clean")


# ---- killed writers -------------------------------------------------------------------------------


def reopened(run: Path, acknowledge: Callable[[object], None]) -> None:
    RowWriter(run, hotsize=4, if_exists="append", cut=lambda name: 9).close()


def written_directly(run: Path, acknowledge: Callable[[object], None]) -> None:
    writer = DirectWriter(run, 0)
    for step in range(4):
        writer.write({"a": step, "b/c": step / 7, "note": {"s": step}})
        writer.end_step()
    writer.finish()


def written_at_once(zip: bool) -> Callable[[Path, Callable[[object], None]], None]:
    def write(run: Path, acknowledge: Callable[[object], None]) -> None:
        writer = BulkWriter(run, overwrite=True)
        for step in range(4):
            writer.write({"a": step * 100, "b/c": step / 7, "note": {"s": step}})
            writer.end_step()
        writer.finish(zip=zip)

    return write


def dead(root: Path) -> Path:
    """A run whose writer was killed, with rows in columns and in the hot log."""
    writer = RowWriter(root / "alive", hotsize=4)
    for step, row in rows_of_a_run(1):
        writer.append(step, tuple(row), tuple(row.values()))
    writer.settle()
    shutil.copytree(root / "alive", root / "dead")
    writer.close()
    return root / "dead"


def archived(root: Path) -> Path:
    """A finished run."""
    writer = RowWriter(root / "finished", hotsize=4)
    for step, row in rows_of_a_run(1):
        writer.append(step, tuple(row), tuple(row.values()))
    writer.finish()
    return root / "finished"


KILLED: dict[str, tuple[Callable[[Path, Callable[[object], None]], None], Callable[[Path], Path] | None]] = {
    "logging": (program("close"), None),
    "finishing": (program("finish"), None),
    "reopening a dead run": (reopened, dead),
    "reopening an archive": (reopened, archived),
    "writing directly": (written_directly, None),
    "replacing a dead run by an archive": (written_at_once(True), dead),
    "replacing a dead run by a folder": (written_at_once(False), dead),
    "replacing an archive": (written_at_once(True), archived),
}


@pytest.mark.parametrize("kind", KILLED)
def test_what_a_killed_writer_leaves_is_no_error_and_repaired(tmp_path: Path, kind: str) -> None:
    """At every file operation: no error, clean after the repair, read as before, and a writer goes on with it."""
    work, prepare = KILLED[kind]
    origin = None if prepare is None else prepare(tmp_path)
    seen = repairs = 0
    for n, run, _ in every_kill(work, tmp_path, prepare=origin):
        try:
            report = check_run(run)
        except NotARunError:
            continue
        seen += 1
        assert not report.count("error"), (n, problems(report))
        result = repaired(run)
        repairs += bool(result.done)
        assert result.after.is_clean, (n, problems(result.after))
        if n % 5 == 0 and result.after.state == "unfinished":
            before = stored(run)
            RowWriter(run, hotsize=4, if_exists="append").close()
            after = stored(run)
            assert {name: after.get(name) for name in before} == before, n

    assert seen > 10
    assert repairs


def test_a_killed_repair_is_repaired(tmp_path: Path) -> None:
    """At every file operation of it, the run reads as before, and the next repair brings it to its end."""
    origin = made(tmp_path / "origin")
    kinds = [
        "half a value", "half a hot row", "a wrong flag", "a temporary file", "a staging folder",
        "a whole JSON line without its newline", "a config that links to nowhere", "values without steps",
    ]  # fmt: skip
    for kind in kinds:
        DAMAGE[kind][0](origin)
    expected = everything(origin)
    kills = 0
    for n, run, _ in every_kill(lambda run, acknowledge: repair_run(run) and None, tmp_path, prepare=origin):
        found = everything(run)
        assert {key: found.get(key) for key in expected} == expected, n
        assert repaired(run).after.is_clean, n
        kills = n

    assert kills > 20


# ---- any bytes ------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.data())
@pytest.mark.filterwarnings("ignore:overflow encountered in cast", "ignore:invalid value encountered in cast")
def test_any_bytes_are_repaired_without_a_loss(data: st.DataObject) -> None:
    """What a reader returned of a damaged run it returns of the repaired one."""
    with tempfile.TemporaryDirectory() as directory:
        root = made(Path(directory) / "run")
        if data.draw(st.booleans(), label="finished"):
            (root / "plattli" / "hot.jsonl").unlink()
            write_manifest(root / "plattli", specs(), run_rows=4)
        if data.draw(st.booleans(), label="twice"):
            shutil.copytree(root / "plattli", root / "copy")
            pack(root / "copy", root / "metrics.plattli")
        for _ in range(data.draw(st.integers(1, 3), label="damages")):
            files = sorted(file for file in root.rglob("*") if file.is_file())
            file = data.draw(st.sampled_from(files), label="file")
            file.write_bytes(data.draw(damage(file.read_bytes()), label="bytes"))
        repaired(root)


def test_json_metrics_keep_their_lines(tmp_path: Path) -> None:
    """A JSON column that a killed writer left in the middle of a line, finished after the repair."""
    writer = RowWriter(tmp_path / "run", hotsize=2)
    for step in range(5):
        writer.append(step, ("j",), (Json([step]),))
    writer.drain()
    writer.close()
    with (tmp_path / "run" / "plattli" / "j.jsonl").open("ab") as file:
        file.write(b"[5")
    repaired(tmp_path / "run")
    writer = RowWriter(tmp_path / "run", hotsize=2, if_exists="append")
    writer.append(5, ("j",), (Json([50]),))
    writer.finish()

    assert stored(tmp_path / "run") == {"j": {**{s: [s] for s in range(5)}, 5: [50]}}
