"""``jsonl2plattli``: what becomes of a training log, and of everything that lies around it."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import CompactingWriter, Reader
from plattli import _trainlog as trainlog
from plattli._bulk import BulkColumn, Extra, write_archive
from plattli._trainlog import read_log, settle
from plattli.convert import Converted, Job, convert, main
from plattli.errors import DtypeError, LogLineError, MetricNameError, RunExistsError

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden"
NAN = float("nan")


def make_log(run: Path, rows: Iterable[Any] | str | bytes, config: Any = None) -> Path:
    """Write the log of a run: rows as JSON lines, or text as it is."""
    run.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, str):
        rows = rows.encode()
    if not isinstance(rows, bytes):
        rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    (run / "metrics.jsonl").write_bytes(rows)
    if config is not None:
        (run / "config.json").write_text(json.dumps(config))
    return run


def run_program(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, list[str], list[str]]:
    """Return the exit code, and the lines of stdout and of stderr."""
    code = main([*map(str, args)])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.splitlines()


def contents(path: Path) -> dict[str, tuple[str, list[int], list[Any]]]:
    """Return metric -> (dtype, steps, values) of a run."""
    with Reader(path) as reader:
        manifest = reader.manifest()
        read = {name: reader.metric(name, dtype="storage") for name in reader.metrics()}
        return {name: (manifest[name]["dtype"], s.tolist(), v.tolist()) for name, (s, v) in read.items()}


def members(path: Path) -> dict[str, bytes]:
    """Return the files in an archive."""
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


# ---- the archive ----------------------------------------------------------------------------------


def test_archive_to_the_byte(tmp_path: Path) -> None:
    """Names, order, bytes and modes of all members are those that the format's bulk writer makes."""
    rows = [
        {"step": 0, "loss": 0.1, "n": 1, "s": "ü"},
        {"step": 1, "loss": 0.25, "n": 300, "s": [1, {"a": None}]},
        {"step": 4, "loss": 1, "deep/er": -3},
    ]
    run = make_log(tmp_path / "exp" / "a", rows, {"lr": 0.1})

    convert(Job(run, run / "metrics.plattli", in_place=True))

    files = members(run / "metrics.plattli")
    manifest = json.loads(files.pop("plattli.json"))
    assert manifest.pop("when_exported").endswith("Z")
    two = {"start": 0, "stop": 2, "step": 1}
    assert manifest == {
        "loss": {"indices": [two, {"start": 4, "stop": 5, "step": 1}], "dtype": "f32", "monotonic": "inc"},
        "n": {"indices": [two], "dtype": "u16", "monotonic": "inc"},
        "s": {"indices": [two], "dtype": "jsonl", "bytes": 22},
        "deep/er": {"indices": "indices", "dtype": "i8", "monotonic": "inc"},
        "run_rows": 3,
    }
    assert list(files.items()) == [
        ("config.json", b'{"lr": 0.1}'),
        ("loss.f32", np.array([0.1, 0.25, 1], "<f4").tobytes()),
        ("n.u16", np.array([1, 300], "<u2").tobytes()),
        ("s.jsonl", '"ü"\n[1, {"a": null}]\n'.encode()),
        ("deep/er.indices", np.array([4], "<u4").tobytes()),
        ("deep/er.i8", b"\xfd"),
    ]
    with zipfile.ZipFile(run / "metrics.plattli") as bundle:
        assert {(info.compress_type, info.external_attr >> 16) for info in bundle.infolist()} == {
            (zipfile.ZIP_STORED, 0o600)
        }
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "metrics.jsonl", "metrics.plattli"]


def test_irregular_steps_go_to_a_file(tmp_path: Path) -> None:
    """Steps that are no few segments are stored one by one."""
    steps = [at * at for at in range(100)]
    run = make_log(tmp_path / "a", [{"step": step, "x": 0.5} for step in steps])

    convert(Job(run, run / "metrics.plattli", in_place=True))

    assert members(run / "metrics.plattli")["x.indices"] == np.array(steps, "<u4").tobytes()
    assert contents(run)["x"][1] == steps


def test_failed_archive_leaves_nothing(tmp_path: Path) -> None:
    """An error in the middle of writing leaves what was there before, and no temporary file."""
    target = tmp_path / "metrics.plattli"
    steps = np.arange(2, dtype=np.uint32)
    write_archive(target, {"a": BulkColumn(steps, np.array([1.0, 2.0]))}, b"{}")
    before = target.read_bytes()

    with pytest.raises(DtypeError, match="metric 'b' holds text that UTF-8 cannot spell"):
        write_archive(target, {"b": BulkColumn(steps, ["x", "\udc80"])}, b"{}")
    clash = Extra(zipfile.ZipInfo("plattli.json"), lambda: target.open("rb"))
    with pytest.raises(RunExistsError, match=r"'plattli\.json' of unknown origin"):
        write_archive(target, {}, b"{}", [clash])

    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


# ---- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "stored"),
    [
        ([1, 2, 255], "u8", [1, 2, 255]),
        ([0, -129], "i16", [0, -129]),
        ([2**64 - 1, 0], "u64", [2**64 - 1, 0]),
        ([-(2**63), 2**63 - 1], "i64", [-(2**63), 2**63 - 1]),
        ([0.1, NAN], "f32", [float(np.float32(0.1)), NAN]),
        ([0.5, 7], "f32", [0.5, 7.0]),
        ([7, 0.5], "f32", [7.0, 0.5]),
        ([0.1, 2**24 + 1, 0.1], "f64", [float(np.float32(0.1)), 2.0**24 + 1, 0.1]),
        ([2**24 + 1, 0.1], "f64", [2.0**24 + 1, 0.1]),
        ([0.1, 1e39, 0.1], "f64", [float(np.float32(0.1)), 1e39, 0.1]),
        ([1e400, -0.0], "f32", [float("inf"), -0.0]),
        ([0.5, 2**53 + 1], "jsonl", [0.5, 2**53 + 1]),
        ([-1, 2**63], "jsonl", [-1, 2**63]),
        ([2**64], "jsonl", [2**64]),
        ([0.5, 10**400], "jsonl", [0.5, 10**400]),
        ([True, False], "jsonl", [True, False]),
        ([None, 1], "jsonl", [None, 1]),
        ([1, None], "jsonl", [1, None]),
        ([1.5, "x", {"a": [1]}], "jsonl", [1.5, "x", {"a": [1]}]),
    ],
)
def test_columns(tmp_path: Path, values: list[Any], dtype: str, stored: list[Any]) -> None:
    """Numbers become the smallest column that holds them all, whatever their order; the rest is JSON."""
    run = make_log(tmp_path / "a", [{"x": value} for value in values])

    convert(Job(run, run / "metrics.plattli", in_place=True))

    found, steps, read = contents(run)["x"]
    assert (found, steps) == (dtype, list(range(len(values))))
    assert list(map(repr, read)) == list(map(repr, stored))


@given(st.lists(st.one_of(st.integers(-(2**70), 2**70), st.floats(width=32), st.floats()), min_size=1))
@settings(max_examples=200)
def test_no_number_changes_but_by_rounding_to_f32(values: list[Any]) -> None:
    """Every integer is exact in its column; every float is itself or its f32."""
    column = settle(values)

    for value, kept in zip(values, column if isinstance(column, list) else column.tolist(), strict=True):
        if isinstance(value, int):
            assert kept == value
        else:
            with np.errstate(over="ignore"):
                assert repr(kept) in (repr(value), repr(float(np.float32(value))))
            assert np.isfinite(kept) == np.isfinite(value)


def test_nearly_numeric_columns_are_named(tmp_path: Path) -> None:
    """Who wonders why a metric is JSON is told where to look."""
    run = make_log(tmp_path / "a", [{"x": 1.5, "word": "w"}, {"x": None, "word": "w", "big": 2**64}])

    notes = read_log(run / "metrics.jsonl").notes

    assert notes == [
        f"{run}/metrics.jsonl: metric 'x' holds 1 numbers and 1 other values, such as null; it is stored as JSON",
        f"{run}/metrics.jsonl: metric 'big' holds numbers that no number type can hold together; it is stored as JSON",
    ]


# ---- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "end"])
def test_line_ends(tmp_path: Path, end: str, last: str) -> None:
    """LF, CRLF and CR end lines, and the last line needs none."""
    run = make_log(tmp_path / "a", end.join(['{"x": 1}', '{"x": 2}', '{"x": 3}']) + (end if last else ""))

    log = read_log(run / "metrics.jsonl")

    assert (log.rows, log.columns["x"].values.tolist(), log.notes) == (3, [1, 2, 3], [])  # type: ignore[union-attr]


def test_blank_lines_are_said(tmp_path: Path) -> None:
    """Blank lines cost nothing, not even a step."""
    run = make_log(tmp_path / "a", '{"x": 1}\n\n  \n{"x": 2}\n\n')

    log = read_log(run / "metrics.jsonl")

    assert log.columns["x"].steps.tolist() == [0, 1]
    assert log.notes == [f"{run}/metrics.jsonl:2: 3 blank lines were left out"]


@pytest.mark.parametrize("torn", [b'{"x": 3', b'{"x": "\xc3', b'{"x": 3}}', b"{'x': 3}\n", b"\x00\x00\x00\n\n"])
def test_torn_last_line_is_said(tmp_path: Path, torn: bytes) -> None:
    """A last line that a dying process cut short is left out."""
    run = make_log(tmp_path / "a", b'{"x": 1}\n{"x": 2}\n' + torn)

    log = read_log(run / "metrics.jsonl")

    assert (log.rows, log.columns["x"].values.tolist()) == (2, [1, 2])  # type: ignore[union-attr]
    assert log.notes[0].startswith(f"{run}/metrics.jsonl:3: the line is not JSON: ")
    assert log.notes[0].endswith("it is the last one, probably cut short, and was left out")


def test_byte_order_mark(tmp_path: Path) -> None:
    """Some editors put one in front."""
    run = make_log(tmp_path / "a", b'\xef\xbb\xbf{"x": 1}\n')

    assert read_log(run / "metrics.jsonl").rows == 1


def test_empty_log(tmp_path: Path) -> None:
    """A run that logged nothing becomes a run without metrics."""
    run = make_log(tmp_path / "a", "")

    assert convert(Job(run, run / "metrics.plattli", in_place=True)) == Converted(0, 0, [])
    assert contents(run) == {}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{"x": 1\n{"x": 2}\n', 1, "is not JSON"),
        ('{"x": 1}\n[1]\n{"x": 2}\n', 2, "must hold an object, got list"),
        ('{"x": 1}\n3\n', 2, "must hold an object, got int"),
        ('{"step": true}\n', 1, "needs an integer step, got True"),
        ('{"step": 1.0}\n', 1, "needs an integer step, got 1.0"),
        ('{"step": "7"}\n', 1, "needs an integer step, got '7'"),
        ('{"step": -1}\n', 1, "needs a step in 0 .. 9223372036854775807 (2**63 - 1), got -1"),
        ('{"step": 9223372036854775808}\n', 1, "needs a step in 0 .. 9223372036854775807 (2**63 - 1), got "
         "9223372036854775808"),
        ('{"step": 0}\n{"x": 1}\n', 2, "has no step, and those before it had one"),
        ('{"x": 1}\n{"step": 5}\n', 2, "has a step, and those before it had none"),
        ('{"step": 5}\n{"step": 5}\n', 2, "has step 5 after 5, and steps must increase"),
        ('{"step": 5}\n{"step": 4}\n', 2, "has step 4 after 5, and steps must increase; if the run was resumed, "
         "--allow-rewinds drops what it redid"),
        ("[" * 100_000 + "\n{}\n", 1, "is not JSON: JSON is nested too deeply"),
    ],
)  # fmt: skip
def test_bad_lines(tmp_path: Path, text: str, line: int, message: str) -> None:
    """A bad line is named by file and number, with what was expected."""
    path = make_log(tmp_path / "a", text) / "metrics.jsonl"

    with pytest.raises(LogLineError) as caught:
        read_log(path)

    assert str(caught.value).startswith(f"{path}:{line}: the line {message}")


@pytest.mark.parametrize("name", ["run_rows", "a//b", "../a", "", "hot"])
def test_names_the_format_forbids(tmp_path: Path, name: str) -> None:
    """A name that cannot be stored is named."""
    run = make_log(tmp_path / "a", [{name: 1}])

    with pytest.raises(MetricNameError, match=f"{name!r}.* \\(run 'a'\\)"):
        read_log(run / "metrics.jsonl")


def test_steps(tmp_path: Path) -> None:
    """Steps come from the rows, up to the last that the format has; null is none."""
    explicit = make_log(tmp_path / "a", [{"step": 3, "x": 1}, {"y": 1, "step": 2**63 - 1, "x": 2}])
    implicit = make_log(tmp_path / "b", [{"x": 1}, {}, {"step": None, "x": 2}])

    columns = read_log(explicit / "metrics.jsonl").columns
    assert {name: column.steps.tolist() for name, column in columns.items()} == {
        "x": [3, 2**63 - 1],
        "y": [2**63 - 1],
    }
    assert read_log(implicit / "metrics.jsonl").columns["x"].steps.tolist() == [0, 2]


def test_rewinds(tmp_path: Path) -> None:
    """What a resumed run logged again replaces what it had logged before, in every metric."""
    rows = [
        {"step": 0, "x": 0.0, "gone": 1},
        {"step": 5, "x": 5.0, "y": "old"},
        {"step": 9, "x": 9.0},
        {"step": 0, "x": 0.5},
        {"step": 3, "y": 3.5},
        {"step": 4, "y": 4.5},
        {"step": 4, "y": 4.5},
    ]
    path = make_log(tmp_path / "a", rows[:6]) / "metrics.jsonl"

    log = read_log(path, allow_rewinds=True)

    assert (log.rows, log.cols) == (6, 2)
    assert {name: (c.steps.tolist(), c.values.tolist()) for name, c in log.columns.items()} == {  # type: ignore[union-attr]
        "x": ([0], [0.5]),
        "y": ([3, 4], [3.5, 4.5]),
    }
    with pytest.raises(LogLineError, match=r"has step 4 after 4, and steps must increase$"):
        read_log(make_log(tmp_path / "b", rows) / "metrics.jsonl", allow_rewinds=True)


# ---- finding runs ---------------------------------------------------------------------------------


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A folder with two runs, one further down, and one that is no run."""
    for name in ("b", "a", "sub/c"):
        make_log(tmp_path / "exp" / name, [{"loss": 0.5, "pnorm/x": 1}, {"loss": 0.25}], {"name": name})
    (tmp_path / "exp" / "other").mkdir()
    return tmp_path / "exp"


def test_in_place(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The children of the folder become archives; stdout says which."""
    code, out, err = run_program(capsys, experiment)

    assert (code, err) == (0, [])
    assert (out[0], out[-1]) == ("Found 2 runs under ['exp']", "done. exported 2 runs in-place")
    assert sorted(out[1:-1]) == [f"converted {experiment}/{name}/metrics.plattli (2 rows, 2 cols)" for name in "ab"]
    assert contents(experiment / "a")["loss"] == ("f32", [0, 1], [0.5, 0.25])
    assert not (experiment / "sub" / "c" / "metrics.plattli").exists()


def test_default_is_here(
    experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without arguments the current folder is searched."""
    monkeypatch.chdir(experiment)

    code, out, _ = run_program(capsys)

    assert (code, out[0]) == (0, "Found 2 runs under ['exp']")


def test_outdir(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --outdir the archives lie in a tree of their own, named after the runs."""
    code, out, _ = run_program(capsys, "--deep", "-o", tmp_path / "out", experiment, experiment / "a")

    assert code == 0
    assert (out[0], out[-1]) == ("Found 4 runs under ['exp', 'a']", f"done. exported 4 runs into {tmp_path}/out")
    names = ["a.plattli", "exp/a.plattli", "exp/b.plattli", "exp/sub/c.plattli"]
    assert sorted(out[1:-1]) == [f"converted {name} (2 rows, 2 cols)" for name in names]
    found = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(map(str, found)) == names
    with Reader(tmp_path / "out" / "exp" / "sub" / "c.plattli") as reader:
        assert reader.config() == {"name": "sub/c"}
    assert not list(experiment.rglob("*.plattli"))


def test_nothing_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without runs is fine, and --outdir exists afterwards."""
    code, out, err = run_program(capsys, "-o", tmp_path / "out", make_log(tmp_path / "a", [{"x": 1}]))

    assert (code, out, err) == (0, ["No runs found. Nothing to export."], [])
    assert (tmp_path / "out").is_dir()


def test_missing_folder(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is not there is named, and the others are converted."""
    code, out, err = run_program(capsys, experiment / "no", experiment)

    assert (code, out[-1]) == (1, "done. exported 2 runs in-place")
    assert err == [f"jsonl2plattli: {experiment}/no: no such directory"]


def test_folder_named_twice(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run is converted once, however often it is named."""
    code, out, _ = run_program(capsys, "--deep", experiment, experiment / "a")

    assert (code, out[0]) == (0, "Found 3 runs under ['exp', 'a']")


def test_two_runs_for_one_archive(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of the same name do not overwrite each other's archive."""
    make_log(tmp_path / "more" / "exp" / "a", [{"x": 1}])

    code, out, err = run_program(capsys, "-o", tmp_path / "out", experiment, tmp_path / "more" / "exp")

    assert (code, out[-1]) == (1, f"done. exported 2 runs into {tmp_path}/out")
    assert err == [
        f"jsonl2plattli: {tmp_path}/more/exp/a: {experiment}/a becomes {tmp_path}/out/exp/a.plattli already: "
        "convert them apart"
    ]
    assert "loss" in contents(tmp_path / "out" / "exp" / "a.plattli")


def test_skipped_columns(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole names are matched, DEFAULT stands for the norms, and step is no column."""
    code, out, _ = run_program(capsys, "--skipcols", "DEFAULT", "--skipcols", "os|step", experiment)

    assert code == 0
    assert list(contents(experiment / "a")) == ["loss"]
    assert "(2 rows, 1 cols)" in out[1]


@pytest.mark.parametrize("options", [["-w", "0"], ["-w", "x"], ["--skipcols", "("], ["--unknown"]])
def test_wrong_usage(options: list[str]) -> None:
    """Bad arguments end in a usage error."""
    with pytest.raises(SystemExit) as caught:
        main(options)

    assert caught.value.code == 2


# ---- what goes wrong ------------------------------------------------------------------------------


def test_bad_run_does_not_stop_the_others(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stderr says which run failed and where; the others are converted, with their notes."""
    make_log(experiment / "bad", '{"x": 1\n{"x": 2}\n')
    make_log(experiment / "torn", '{"x": 1}\n{"x')
    before = sorted((experiment / "bad").iterdir())

    code, out, err = run_program(capsys, experiment)

    assert (code, out[0], out[-1]) == (1, "Found 4 runs under ['exp']", "done. exported 3 runs in-place")
    assert len(err) == 3
    failed = next(entry for entry in err if "was not converted" in entry)
    assert failed.startswith(f"jsonl2plattli: {experiment}/bad was not converted: {experiment}/bad/metrics.jsonl:1: ")
    noted = next(entry for entry in err if "note" in entry)
    assert noted.startswith(f"jsonl2plattli: note: {experiment}/torn/metrics.jsonl:2: ")
    assert err[-1] == "jsonl2plattli: 1 of 4 runs could not be converted"
    assert sorted((experiment / "bad").iterdir()) == before


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="the workers do not inherit the patch")
def test_killed_worker_costs_its_own_run_only(
    experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose worker is killed, as by the out-of-memory killer, fails alone."""
    def read_or_die(path: Path, **options: Any) -> trainlog.TrainLog:
        if path.parent.name == "a":
            os.kill(os.getpid(), signal.SIGKILL)
        return read_log(path, **options)

    monkeypatch.setattr("plattli.convert.read_log", read_or_die)

    code, out, err = run_program(capsys, "--deep", "-w", "2", experiment)

    assert (code, out[-1]) == (1, "done. exported 2 runs in-place")
    assert [entry for entry in err if "was not converted" in entry] == [
        entry for entry in err if entry.startswith(f"jsonl2plattli: {experiment}/a was not converted: ")
    ]
    assert sorted(path.parent.name for path in experiment.rglob("metrics.plattli")) == ["b", "c"]


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="the workers do not inherit the patch")
def test_our_own_mistakes_come_with_a_traceback(
    experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no input should cause is reported in full, and does not stop the others either."""
    def read_wrongly(path: Path, **options: Any) -> trainlog.TrainLog:
        if path.parent.name == "a":
            raise ZeroDivisionError("by mistake")
        return read_log(path, **options)

    monkeypatch.setattr("plattli.convert.read_log", read_wrongly)

    code, out, err = run_program(capsys, experiment)

    assert (code, out[-1]) == (1, "done. exported 1 run in-place")
    assert any("Traceback" in entry for entry in err)
    assert f"jsonl2plattli: {experiment}/a was not converted: by mistake" in err


def test_installed_as_a_program(experiment: Path) -> None:
    """The console script's function runs in a process of its own, and its exit code arrives."""
    code = "import sys; from plattli.convert import main; sys.exit(main())"
    command = [sys.executable, "-c", code, str(experiment), "--allow-rewinds", "-w", "1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("done. exported 2 runs in-place\n")


# ---- config ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "in_place", "stored"),
    [
        (lambda path: path.write_text('{"a":1}  '), True, b'{"a":1}  '),
        (lambda path: path.write_text('{"a":1}  '), False, b'{"a": 1}'),
        (lambda path: path.write_text("[1]"), False, b"[1]"),
        (lambda path: path.write_text("{bad"), True, b"{bad"),
        (lambda path: path.symlink_to("/nowhere/config.json"), True, b"{}"),
        (lambda path: None, True, b"{}"),
        (lambda path: None, False, b"{}"),
    ],
)
def test_config(tmp_path: Path, prepare: Callable[[Path], Any], in_place: bool, stored: bytes) -> None:
    """In place the config is copied as it is; elsewhere it is parsed; without one it is empty."""
    run = make_log(tmp_path / "a", [{"x": 1}])
    prepare(run / "config.json")
    target = run / "metrics.plattli" if in_place else tmp_path / "out" / "a.plattli"

    convert(Job(run, target, in_place))

    assert members(target)["config.json"] == stored


def test_bad_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config that is needed and cannot be read fails its run, by name."""
    bad = make_log(tmp_path / "exp" / "bad", [{"x": 1}])
    (bad / "config.json").write_text("{bad")
    folder = make_log(tmp_path / "exp" / "folder", [{"x": 1}])
    (folder / "config.json").mkdir()

    code, out, err = run_program(capsys, "-o", tmp_path / "out", tmp_path / "exp")

    assert (code, out[-1]) == (1, f"done. exported 0 runs into {tmp_path}/out")
    assert any(f"{bad}/config.json is not JSON: " in entry for entry in err)
    assert any(f"{folder}/config.json" in entry for entry in err)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


# ---- what lies there already ----------------------------------------------------------------------


def test_converting_again_replaces(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second conversion replaces the first, and takes nothing of it along."""
    run_program(capsys, experiment)
    make_log(experiment / "a", [{"other": 1}])

    code, _, err = run_program(capsys, experiment)

    assert (code, err) == (0, [])
    assert contents(experiment / "a") == {"other": ("u8", [0], [1])}
    assert sorted(members(experiment / "a" / "metrics.plattli")) == [
        "config.json", "other.indices", "other.u8", "plattli.json",
    ]  # fmt: skip


def test_earlier_folder_is_replaced_and_strangers_are_kept(tmp_path: Path) -> None:
    """Files of an earlier output go, files of the user's own move into the archive; the note says so."""
    run = make_log(tmp_path / "a", [{"x": 1}])
    shutil.copytree(GOLDEN / "extra_files" / "run" / "plattli", run / "plattli")
    (run / "plattli" / "sub").mkdir(exist_ok=True)
    (run / "plattli" / "sub" / "own.txt").write_text("mine")

    notes = convert(Job(run, run / "metrics.plattli", in_place=True)).notes

    files = members(run / "metrics.plattli")
    assert list(files) == [
        "config.json", "x.indices", "x.u8", "plattli.json", "lone.f32", "notes.txt", "sub/own.txt",
    ]  # fmt: skip
    assert files["sub/own.txt"] == b"mine"
    assert notes == [f"{run}/plattli was replaced by {run}/metrics.plattli"]
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "metrics.plattli"]

    convert(Job(run, run / "metrics.plattli", in_place=True))
    assert members(run / "metrics.plattli")["sub/own.txt"] == b"mine"


def test_strangers_that_contradict_each_other(tmp_path: Path) -> None:
    """Two different files of one name are for the user to sort out; nothing is touched."""
    run = make_log(tmp_path / "a", [{"x": 1}])
    for text in ("one", "two"):
        (run / "plattli").mkdir()
        (run / "plattli" / "notes.txt").write_text(text)
        if text == "one":
            convert(Job(run, run / "metrics.plattli", in_place=True))
    before = (run / "metrics.plattli").read_bytes()

    with pytest.raises(RunExistsError, match=r"hold different files 'notes\.txt'"):
        convert(Job(run, run / "metrics.plattli", in_place=True))

    assert (run / "metrics.plattli").read_bytes() == before
    (run / "plattli" / "notes.txt").write_text("one")
    convert(Job(run, run / "metrics.plattli", in_place=True))
    assert members(run / "metrics.plattli")["notes.txt"] == b"one"


def test_stranger_in_the_way(tmp_path: Path) -> None:
    """A file of unknown origin that has the name of a new column is not overwritten."""
    run = make_log(tmp_path / "a", [{"lone": 0.5}])
    (run / "plattli").mkdir()
    (run / "plattli" / "lone.f32").write_bytes(b"1234")

    with pytest.raises(RunExistsError, match=r"'lone\.f32' of unknown origin"):
        convert(Job(run, run / "metrics.plattli", in_place=True))

    assert (run / "plattli" / "lone.f32").read_bytes() == b"1234"
    assert not (run / "metrics.plattli").exists()


def test_live_run_is_left_alone(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that somebody is writing is refused by name, and goes on unharmed."""
    writer = CompactingWriter(experiment / "a", hotsize=4)
    writer.write(y=1.0)
    writer.end_step()

    code, out, err = run_program(capsys, experiment)
    writer.write(y=2.0)
    writer.end_step()
    writer.close()

    assert (code, out[-1]) == (1, "done. exported 1 run in-place")
    assert f"is being written by process {os.getpid()} on host " in err[0]
    assert contents(experiment / "a") == {"y": ("f32", [0, 1], [1.0, 2.0])}


def test_file_where_the_folder_belongs(tmp_path: Path) -> None:
    """A file called plattli is nobody's output."""
    run = make_log(tmp_path / "a", [{"x": 1}])
    (run / "plattli").write_text("?")

    with pytest.raises(RunExistsError, match="is no directory: move it away"):
        convert(Job(run, run / "metrics.plattli", in_place=True))
