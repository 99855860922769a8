"""The reader's methods, on runs laid out by hand."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from plattli import CompactingWriter, Reader, _stored
from plattli.errors import (
    ConversionError,
    CorruptRunError,
    DtypeError,
    MetricNameError,
    MissingFileError,
    NotARunError,
    ReaderClosedError,
    RowIndexError,
    UnknownMetricError,
    ValueRangeError,
)
from tests.test_plattli.byhand import append_hot, append_steps, append_values, pack, write_manifest


@pytest.fixture
def folder(tmp_path):
    """The metric folder of a run called ``run7``."""
    folder = tmp_path / "run7" / "plattli"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def ten(folder):
    """Ten rows of several metrics, finished but not archived."""
    closed = [{"start": 0, "stop": 20, "step": 2}]
    columns = {
        "loss": ("f32", [1 / (n + 1) for n in range(10)]),
        "clock": ("f64", [n * 1.5 for n in range(10)]),
        "big": ("u64", [2**63 - 5 + n for n in range(10)]),
        "n": ("i64", list(range(-3, 7))),
        "note": ("jsonl", [None, "a", [1], [2], {"k": 1}, True, 1.5, "b", [], 2**70]),
        "gaps": ("f32", [0.5, math.nan, math.inf, -math.inf, 1.5, 2.0, 3.0, -1.0, 0.0, 7.0]),
    }
    specs = {name: {"indices": closed, "dtype": dtype} for name, (dtype, _) in columns.items()}
    specs["clock"]["monotonic"] = "inc"
    for name, (dtype, values) in columns.items():
        append_values(folder, name, dtype, values)
    (folder / "config.json").write_text('{"lr": 0.1}')
    write_manifest(folder, specs, run_rows=10)
    return folder


# ---- opening and closing


def test_metadata(ten):
    """Names, config, manifest and time come from the files."""
    reader = Reader(ten.parent)

    assert reader.metrics() == ["big", "clock", "gaps", "loss", "n", "note"]
    assert reader.config() == {"lr": 0.1}
    assert reader.manifest()["loss"] == {"indices": [{"start": 0, "stop": 20, "step": 2}], "dtype": "f32"}
    assert reader.when_exported() == "2026-01-03T12:34:56Z"
    assert (reader.kind, reader.root, reader.exclude_hot) == ("dir", ten, False)
    assert repr(reader) == f"Reader({str(ten)!r}, kind='dir', exclude_hot=False)"


def test_no_run(tmp_path):
    """What is no run is refused by its path."""
    with pytest.raises(NotARunError, match=f"not a plattli run: {tmp_path}"):
        Reader(tmp_path)
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "missing")


def test_kind_skips_the_search(ten, tmp_path):
    """A folder named by kind is not looked at before the first read; an archive is opened."""
    missing = Reader(tmp_path / "later", kind="dir")
    with pytest.raises(NotARunError):
        missing.metrics()
    with pytest.raises(NotARunError, match="not a plattli archive"):
        Reader(ten, kind="zip")
    assert Reader(ten, kind="dir").rows("loss") == 10


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"kind": "tar"}, ValueError), ({"exclude_hot": 1}, TypeError)],
)
def test_arguments_are_checked(ten, arguments, error):
    """A kind that does not exist and a bool that is none are refused."""
    with pytest.raises(error, match=next(iter(arguments))):
        Reader(ten, **arguments)


def test_a_closed_archive(ten, tmp_path):
    """After close, what is known is still known; reading says what is wrong."""
    pack(ten, tmp_path / "run7.plattli")
    with Reader(tmp_path / "run7.plattli") as reader:
        names = reader.metrics()
        os.unlink(tmp_path / "run7.plattli")
        assert reader.rows("loss") == 10  # an open file outlives its name
    reader.close()

    assert reader.metrics() == names
    with pytest.raises(ReaderClosedError, match="'run7' was closed"):
        reader.metric("loss")


def test_a_closed_folder_reader_still_reads(ten):
    """Nothing of a folder is held open, so there is nothing to close."""
    with Reader(ten) as reader:
        pass

    assert reader.rows("loss") == 10


# ---- errors


@pytest.mark.parametrize("method", ["metric", "metric_values", "metric_indices", "rows"])
def test_unknown_metric(ten, method):
    """The error names metric and run, and is a KeyError."""
    with pytest.raises(UnknownMetricError) as caught:
        getattr(Reader(ten), method)("zzz")

    assert str(caught.value) == "unknown metric 'zzz' (run 'run7')"
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("live", [True, False])
def test_a_metric_without_its_context_is_told_which_there_is(tmp_path, live):
    """The first slip of everybody who logs ``loss`` and reads it back, in a live run's hot rows too."""
    writer = CompactingWriter(tmp_path / "run", hotsize=10)
    writer.write(dict.fromkeys(("validate/loss", "train/loss", "train/floss"), 1.0))
    writer.end_step()
    if not live:
        writer.finish()
    with Reader(tmp_path / "run") as reader, pytest.raises(UnknownMetricError) as caught:
        reader.metric("loss")

    assert str(caught.value) == "unknown metric 'loss' (run 'run'): there is 'train/loss'"
    if live:
        writer.finish()


def test_index_out_of_range(ten):
    """The error names index, metric, its length and run."""
    with pytest.raises(RowIndexError) as caught:
        Reader(ten).metric("loss", idx=10)

    assert str(caught.value) == "index 10 is out of range for metric 'loss' with 10 rows (run 'run7')"
    with pytest.raises(IndexError):
        Reader(ten).metric("loss", idx=-11)


def test_ranges_of_two_kinds(ten):
    """Ranges of steps, rows and values exclude each other."""
    with pytest.raises(ValueError, match=r"start/stop.*istart/istop.*vstart/vstop"):
        Reader(ten).metric("loss", start=1, vstop=2)
    with pytest.raises(TypeError, match="integer"):
        Reader(ten).metric("loss", istart=1.5)
    with pytest.raises(TypeError, match="bool"):
        Reader(ten).metric("loss", idx=True)


def test_names_of_a_manifest_cannot_leave_the_run(folder):
    """A name that is no clean relative path makes the manifest unusable, not a way out."""
    write_manifest(folder, {"../evil": {"indices": "indices", "dtype": "f32"}})
    with pytest.raises(MetricNameError, match=r"'\.\./evil'"):
        Reader(folder).metrics()


def test_names_of_hot_rows_are_checked(folder):
    """Hot rows may not bring names that a manifest could not have."""
    write_manifest(folder, {})
    append_hot(folder, 0, {"a//b": 1})
    with pytest.raises(MetricNameError, match="a//b"):
        Reader(folder).metrics()


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"indices": "indices", "dtype": "f16"}, "unknown dtype 'f16'"),
        ({"indices": 7, "dtype": "f32"}, "invalid indices spec 7"),
        ({"indices": [{"start": 4, "stop": 3, "step": 1}], "dtype": "f32"}, "0 <= start < stop"),
    ],
)
def test_broken_entries(folder, spec, error):
    """An entry that makes no sense breaks its own metric only."""
    append_values(folder, "good", "f32", [1.0])
    write_manifest(folder, {"good": {"indices": [{"start": 0, "step": 1}], "dtype": "f32"}, "bad": spec})
    reader = Reader(folder)

    assert reader.metric_values("good").tolist() == [1.0]
    with pytest.raises(CorruptRunError, match=error) as caught:
        reader.metric("bad")
    assert "'bad' (run 'run7')" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1}', '{"a": {"dtype": "f32"}}', '{"run_rows": "x"}'])
def test_broken_manifest(folder, text):
    """What is no manifest is a corrupt run, which is also a ValueError."""
    (folder / "plattli.json").write_text(text)
    with pytest.raises(ValueError, match="run 'run7'") as caught:
        Reader(folder).metrics()
    assert isinstance(caught.value, CorruptRunError)


@pytest.mark.parametrize("text", ["", "{", '"\xff"'])
def test_broken_config(ten, text):
    """A config that is no JSON is a corrupt run; none at all is a missing file."""
    (ten / "config.json").write_bytes(text.encode("latin1"))
    with pytest.raises(CorruptRunError, match="config"):
        Reader(ten).config()
    (ten / "config.json").unlink()
    with pytest.raises(MissingFileError, match="config"):
        Reader(ten).config()


# ---- values


def test_standard_and_storage_dtypes(ten):
    """Integers are int64 unless the storage dtype is asked for; everything else stays."""
    reader = Reader(ten)

    assert {name: reader.metric_values(name, istart=0, istop=1).dtype.name for name in reader.metrics()} == {
        "big": "int64",
        "clock": "float64",
        "gaps": "float32",
        "loss": "float32",
        "n": "int64",
        "note": "object",
    }
    assert reader.metric_values("big", dtype="storage").dtype == np.uint64
    assert reader.metric_indices("n").dtype == np.uint32


def test_conversions_apply_to_what_was_selected(ten):
    """Only selected values can fail to convert."""
    reader = Reader(ten)

    assert reader.metric_values("big", istop=5).tolist() == [2**63 - 5 + n for n in range(5)]
    with pytest.raises(ValueRangeError, match=r"metric 'big' \(run 'run7'\) holds 9223372036854775812"):
        reader.metric("big")
    assert reader.metric_values("gaps", vstart=2, vstop=3, dtype=np.uint8).tolist() == [2, 3]
    with pytest.raises(ConversionError, match=r"holds 0\.5, which is not an integer"):
        reader.metric("gaps", dtype=int)
    with pytest.raises(DtypeError, match="object"):
        reader.metric("note", dtype=int)


def test_scalars_are_numpy_scalars(ten):
    """One row is a uint32 step and a scalar of the dtype, or the JSON value itself."""
    reader = Reader(ten)

    step, value = reader.metric("loss", idx=-1)
    assert (type(step), type(value), int(step)) == (np.uint32, np.float32, 18)
    assert type(reader.metric("n", idx=np.int8(2), dtype=np.float64)[1]) is np.float64
    assert reader.metric("note", idx=2) == (4, [1])
    assert type(reader.metric("note", idx=2)[1]) is list


def test_other_indices_are_numpys(ten):
    """Slices, lists and indices into a selection work on the selected arrays."""
    reader = Reader(ten)

    assert reader.metric("n", slice(None, None, 4))[1].tolist() == [-3, 1, 5]
    assert reader.metric("n", idx=[1, -1])[0].tolist() == [2, 18]
    assert reader.metric("n", idx=-1, start=3, stop=7) == (6, 0)
    with pytest.raises(IndexError, match="out of bounds"):
        reader.metric("n", idx=5, start=3, stop=7)


def test_json_values_are_one_dimensional(folder):
    """Lists of equal length stay lists, also where columns and hot rows meet."""
    append_values(folder, "pair", "jsonl", [[1, 2], [3, 4]])
    write_manifest(folder, {"pair": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"}})
    append_hot(folder, 2, {"pair": 5})
    append_hot(folder, 3, {"pair": [6, 7]})

    values = Reader(folder).metric_values("pair")

    assert values.shape == (4,)
    assert values.tolist() == [[1, 2], [3, 4], 5, [6, 7]]


def test_json_values_that_cannot_be_compared(ten):
    """A range of values over mixed JSON is a TypeError that names the metric."""
    with pytest.raises(DtypeError, match="'note'"):
        Reader(ten).metric("note", vstart=1)


def test_one_row_of_a_json_column_needs_no_other(folder):
    """Reading some lines does not parse the others."""
    append_values(folder, "j", "jsonl", [0, 1, 2])
    (folder / "j.jsonl").write_text("0\nbroken\n2\n")
    write_manifest(folder, {"j": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"}})
    reader = Reader(folder)

    assert reader.rows("j") == 3
    assert reader.metric("j", idx=-1) == (2, 2)
    assert reader.metric("j", idx=0) == (0, 0)
    with pytest.raises(CorruptRunError, match=r"'j' \(run 'run7'\): row 1 is not JSON"):
        reader.metric("j", istart=1)


def test_a_json_column_of_the_promised_size_is_not_counted(folder, monkeypatch):
    """Of a finished run, the rows near the end are found from there, and the others by looking for all."""
    rows = [{"n": n, "text": "abc" * (n % 7)} for n in range(6000)]
    append_values(folder, "j", "jsonl", rows)
    spec = {"indices": [{"start": 0, "stop": 12000, "step": 2}], "dtype": "jsonl"}
    write_manifest(folder, {"j": spec | {"bytes": (folder / "j.jsonl").stat().st_size}}, run_rows=6000)
    monkeypatch.setattr("plattli._jsonlines._count", None)
    reader = Reader(folder)
    update = reader._line_index("j").update
    reader._line_index("j").update = None

    assert reader.rows("j") == 6000
    assert reader.metric("j", idx=-1) == (11998, rows[-1])
    assert reader.metric("j", idx=-4000) == (4000, rows[2000])
    assert reader.metric_values("j", istart=-4000, istop=-3990).tolist() == rows[2000:2010]
    assert reader.metric_values("j", istart=5990).tolist() == rows[5990:]
    reader._line_index("j").update = update
    assert reader.metric_values("j").tolist() == rows
    assert reader.metric("j", idx=1) == (2, rows[1])


def test_a_promised_size_counts_only_where_it_is_true(folder):
    """Rows are counted if the file has another size, the run is not finished, or its last segment is open."""
    append_values(folder, "j", "jsonl", [0, 1, 2])
    segment = {"start": 0, "stop": 9, "step": 1}

    def rows(size, segment, **final):
        write_manifest(folder, {"j": {"indices": [segment], "dtype": "jsonl", "bytes": size}}, **final)
        return Reader(folder).rows("j")

    assert rows(6, segment, run_rows=9) == 9
    with pytest.raises(CorruptRunError, match=r"'j' \(run 'run7'\) has 3 values for 9 steps.*plattli check"):
        Reader(folder).metric("j", idx=0)
    assert rows(5, segment, run_rows=9) == 3
    assert rows(True, segment, run_rows=9) == 3
    assert rows(6, segment) == 3
    assert rows(6, {"start": 0, "step": 1}, run_rows=9) == 3


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("tail", ["", '"torn', "\x00\x00", "[[" * 5000, "\xff"])
def test_json_lines_end_in_any_way(folder, end, tail):
    """LF, CR and CRLF end lines; a last line that is no JSON does not exist yet."""
    data = end.join(["1", '"\u2028"', "[3]", ""]).encode() + tail.encode("latin1")
    (folder / "j.jsonl").write_bytes(data)
    write_manifest(folder, {"j": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"}})

    assert Reader(folder).metric_values("j").tolist() == [1, "\u2028", [3]]


def test_bounds_beyond_the_stored_type(ten):
    """Bounds are numbers, not values of the column: out of its range is fine."""
    reader = Reader(ten)

    assert len(reader.metric_values("loss", vstart=-1e300, vstop=1e300)) == 10
    assert len(reader.metric_values("clock", vstart=-math.inf)) == 10
    assert len(reader.metric_values("big", vstart=-1, vstop=2**64, dtype="storage")) == 10
    assert len(reader.metric_values("gaps", vstart=-math.inf, vstop=math.inf)) == 9  # all but NaN
    assert len(reader.metric_values("clock", vstop=math.nan)) == 0


def test_hot_values_become_what_the_column_stores(folder):
    """JSON null is NaN, text can be a number, and nothing is cut to fit."""
    columns = {"f": "f32", "i": "i8", "j": "jsonl"}
    write_manifest(folder, {name: {"indices": [], "dtype": dtype} for name, dtype in columns.items()})
    append_hot(folder, 0, {"f": None, "i": 1.0, "j": None, "new": 3})
    append_hot(folder, 1, {"f": "2.5", "i": "7", "j": 1, "new": "x"})
    reader = Reader(folder)

    assert repr(reader.metric_values("f", dtype="storage").tolist()) == "[nan, 2.5]"
    assert reader.metric_values("i", dtype="storage").tolist() == [1, 7]
    assert reader.metric_values("new").tolist() == [3, "x"]
    for value in (300, 1.5, "x", None):
        append_hot(folder, 2, {"i": value})
        reader.refresh()
        with pytest.raises(ValueRangeError if value == 300 else CorruptRunError, match="metric 'i'"):
            reader.metric("i")
    append_hot(folder, 2, {"f": {"a": 1}})
    reader.refresh()
    with pytest.raises(CorruptRunError, match="metric 'f'"):
        reader.metric("f")


# ---- tables


def test_table_arguments(ten):
    """What makes no sense is refused before anything is read."""
    reader = Reader(ten)

    with pytest.raises(ValueError, match="at least one metric name"):
        reader.table([])
    with pytest.raises(TypeError, match=r"\['loss'\]"):
        reader.table("loss")
    with pytest.raises(ValueError, match="on='step'"):
        reader.table(["loss"], vstart=1)
    with pytest.raises(ValueError, match=r"not asked for: \['x'\]"):
        reader.table(["loss"], dtype={"x": int})
    with pytest.raises(UnknownMetricError):
        reader.table(["loss"], on="zzz")


def test_table_dtypes(ten):
    """One dtype for all, or one per metric and standard for the rest."""
    reader = Reader(ten)

    _, all_equal = reader.table(["loss", "n"], dtype=np.float64)
    _, single = reader.table(["loss", "n"], dtype={"n": np.int8})

    assert [values.dtype.name for values in all_equal.values()] == ["float64", "float64"]
    assert [values.dtype.name for values in single.values()] == ["float32", "int8"]


# ---- row counts


def test_approx_max_rows_spreads_its_probes(folder):
    """Closed specs are free; files are looked at by cadence, in turn."""
    specs = {
        "open50": {"indices": [{"start": 0, "step": 1}], "dtype": "f32"},
        "open12": {"indices": [{"start": 0, "step": 4}], "dtype": "f32"},
        "file30": {"indices": "indices", "dtype": "jsonl"},
        "closed3": {"indices": [{"start": 0, "stop": 3, "step": 1}], "dtype": "f32"},
        "json": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"},
        "gone": {"indices": [{"start": 7, "step": 9}], "dtype": "f32"},
    }
    append_values(folder, "open50", "f32", [0.0] * 50)
    append_values(folder, "open12", "f32", [0.0] * 12)
    append_values(folder, "json", "jsonl", [0] * 99)
    append_steps(folder, "file30", range(30))
    write_manifest(folder, specs)
    reader = Reader(folder)

    assert [reader.approx_max_rows(probes) for probes in (0, 1, 2, 3, 12)] == [3, 30, 50, 50, 50]
    with pytest.raises(ValueError, match="nprobes"):
        reader.approx_max_rows(-1)
    with pytest.raises(TypeError, match="nprobes"):
        reader.approx_max_rows(True)


def test_run_rows_are_believed(ten):
    """A finished run has counted its rows."""
    assert Reader(ten).approx_max_rows(0) == 10


@pytest.mark.parametrize("flag", ["inc", "dec"])
def test_ranges_of_many_sorted_values(tmp_path, monkeypatch, flag):
    """A search finds the rows that a scan finds, wherever the bounds lie and however much it reads at once."""
    values = sorted([value // 3 for value in range(3000)] + [math.inf, -math.inf], reverse=flag == "dec")
    append_values(tmp_path, "a", "f32", values)
    write_manifest(tmp_path, {"a": {"indices": [{"start": 0, "step": 1}], "dtype": "f32", "monotonic": flag}})
    for at_once in (0, 1, 100, 512, 5000):
        monkeypatch.setattr(_stored, "_AT_ONCE", at_once)
        with Reader(tmp_path) as reader:
            for low, high in ((None, 10), (-1, 0), (0, 0), (500.5, 501), (700, None), (3, 2), (2000, None), (None, -1)):
                expected = [v for v in values if (low is None or v >= low) and (high is None or v <= high)]
                assert reader.metric_values("a", vstart=low, vstop=high).tolist() == expected
