"""Hot logs: merging, tails, growing and rotation."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import Reader, _hotreader, _jsonlines
from plattli._hotreader import HotReader
from plattli.errors import CorruptRunError, MetricNameError, UnstableRunError


def line(step, **values):
    """A row as writers write it."""
    return json.dumps({"step": step, **values}, separators=(",", ":")) + "\n"


def read(folder, name="a", reader=None):
    """Steps and values of one metric, paired."""
    return list(zip(*(reader or HotReader(folder, "run7")).read().column(name), strict=True))


def test_no_log(tmp_path):
    """Without a log there are no rows; an empty log is a log."""
    assert not HotReader(tmp_path, "run7").read().exists
    assert not HotReader(tmp_path / "missing", "run7").read().exists
    (tmp_path / "hot.jsonl").touch()

    hot = HotReader(tmp_path, "run7").read()

    assert hot.exists
    assert hot.names == frozenset()


def test_compacting_log_comes_first(tmp_path):
    """Rows come in log order; a later row for a step replaces the earlier one in its place, as a whole."""
    (tmp_path / "hot.compacting.jsonl").write_text(line(0, a=0) + line(1, a=1, b=1) + line(2, a=2))
    (tmp_path / "hot.jsonl").write_text(line(1, a=10) + line(3, a=3) + line(2, c=5))

    hot = HotReader(tmp_path, "run7").read()

    assert hot.column("a") == ([0, 1, 3], [0, 10, 3])
    assert hot.column("b") == ([], [])
    assert hot.column("c") == ([2], [5])
    assert hot.names == {"a", "c"}


@pytest.mark.parametrize("tail", ["", '{"step":5,"a":', "\n", "\x00\x00", '{"step":5,"a":1}x\n'])
def test_a_torn_last_line_is_ignored(tmp_path, tail):
    """A last line that is no JSON has not been written yet, or never will be."""
    (tmp_path / "hot.jsonl").write_text(line(3, a=3) + line(4, a=4) + tail)

    assert read(tmp_path) == [(3, 3), (4, 4)]


def test_a_last_line_needs_no_newline(tmp_path):
    """A whole row counts, also while its newline is missing, and counts once when it comes."""
    path = tmp_path / "hot.jsonl"
    reader = HotReader(tmp_path, "run7")
    path.write_text(line(3, a=3) + line(4, a=4).rstrip())
    assert read(tmp_path, reader=reader) == [(3, 3), (4, 4)]
    path.write_text(line(3, a=3) + line(4, a=4) + line(5, a=5))

    assert read(tmp_path, reader=reader) == [(3, 3), (4, 4), (5, 5)]


@pytest.mark.parametrize(
    "bad",
    ["{", "", "5", "[]", '{"a":1}', '{"step":-1}', '{"step":9223372036854775808}', '{"step":null}', '{"step":"x"}'],
)
def test_bad_lines(tmp_path, bad):
    """Any other line that is no row is an error that says where."""
    (tmp_path / "hot.jsonl").write_text(line(0, a=0) + bad + "\n" + line(1, a=1))

    with pytest.raises(CorruptRunError, match="hot log of run 'run7': line 2"):
        HotReader(tmp_path, "run7").read()


def test_names_are_checked(tmp_path):
    """A name that no manifest could have is refused."""
    (tmp_path / "hot.jsonl").write_text(line(0, a=0) + json.dumps({"step": 1, "../b": 1}) + "\n")

    with pytest.raises(MetricNameError, match="run7"):
        HotReader(tmp_path, "run7").read()


def test_only_new_lines_are_parsed(tmp_path, monkeypatch):
    """A log that grew, or was renamed, is not parsed again; one that changed is."""
    parsed = []
    parse = _jsonlines.parse
    monkeypatch.setattr(_jsonlines, "parse", lambda text: parsed.append(text) or parse(text))
    path, reader = tmp_path / "hot.jsonl", HotReader(tmp_path, "run7")
    path.write_text(line(0, a=0) + line(1, a=1))
    read(tmp_path, reader=reader)
    assert len(parsed) == 2

    with path.open("a") as log:
        log.write(line(2, a=2))
    assert read(tmp_path, reader=reader) == [(0, 0), (1, 1), (2, 2)]
    assert len(parsed) == 3

    os.rename(path, tmp_path / "hot.compacting.jsonl")
    path.write_text(line(3, a=3))
    assert read(tmp_path, reader=reader) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert len(parsed) == 4

    (tmp_path / "hot.compacting.jsonl").unlink()
    path.write_text(line(3, a=30) + line(4, a=4))  # the same inode, other content
    assert read(tmp_path, reader=reader) == [(3, 30), (4, 4)]


NAMES = st.sampled_from(
    ["a", "ab", "b,", ",a", ":1,", "}", " a", "a b", 'q"', "ü", '","a":1,"', "step2", "]", "{", "n/a"]
)
LEAVES = st.integers() | st.floats() | st.sampled_from(["", "a", ',"a":', "{", "}", "ü", "x,y", "[", ":", "\\"])
VALUES = LEAVES | st.dictionaries(NAMES, LEAVES, max_size=2) | st.lists(LEAVES, max_size=3)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.dictionaries(NAMES, VALUES, max_size=5)), max_size=12),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", "\t:")]),
    st.sampled_from(["", "\n", '{"step":5,"a":', '{"step":6,"a":1}', '{"step":6,"a":1,"a":2}\n', "x\n"]),
    st.integers(0, 12),
)
@settings(deadline=None)
def test_big_logs_read_for_one_metric(rows, ascii, separators, tail, split):
    """Whatever names and values look like, one metric's rows are those of the log that is parsed as a whole."""
    lines = []
    for step, row in rows:
        rest = json.dumps(row, ensure_ascii=ascii, separators=separators)[1:]
        lines.append(f'{{"step":{step}{"," if row else ""}{rest}\n')
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_hotreader, "_BIG", 0)
        folder = Path(root)
        (folder / "hot.compacting.jsonl").write_text("".join(lines[:split]))
        (folder / "hot.jsonl").write_text("".join(lines[split:]) + tail)
        whole = HotReader(folder, "run7").read()
        for name in ("a", *whole.names, "none"):
            assert repr(HotReader(folder, "run7").look().column(name)) == repr(whole.column(name))
        reader = HotReader(folder, "run7")
        looked = reader.look()
        for name in ("a", *whole.names, "none"):
            assert repr(looked.column(name)) == repr(whole.column(name))
        assert (looked.exists, looked.names) == (whole.exists, whole.names)
        again = reader.look()
        assert repr([again.column(name) for name in whole.names]) == repr([whole.column(n) for n in whole.names])


@pytest.mark.parametrize(
    "rest",
    [
        '"b":{"c":1,"a":2}',  # the name in another object
        '"b":{"c":1,"a":2},"a":3',
        '"b":{"c":1,"a":2,"d":3}',
        '"b":["a",5,6],"c":1',
        '"b,":1,":5,":2',
        '"a":1,"a":2',  # twice: the last one counts
        '"a":1, "a":2',
        '"a":1,"b":"a"',
        '"b,":1,":":2',  # ,": is the end of a string and what follows
        '"b":"x,","c":"}"',
        '"a" :1,"b": "a"',
        '"b":1, "a":2',
        '"b":"\\",\\"a\\":7","c":1',  # a string that holds a name
        '"\\u0061":1',
        '"a":"x,y","b":1',
        '"b":1,"a":"x}"',
        '"b":1,"a":"x" ',
        '"a":[1,2],"b":[{"a":1}]',
        '"b":[],"a":[1]',
        '"b":1,"a":NaN',
        '"a": -1.5e3 ,"b":null',
        '"b":["a","b"],"c":["b","a"]',
        '"b":"a","c":1',
    ],
)
def test_lines_that_look_otherwise_than_they_are(tmp_path, monkeypatch, rest):
    """What a line of a big log says of a metric is what parsing it says."""
    monkeypatch.setattr(_hotreader, "_BIG", 0)
    (tmp_path / "hot.jsonl").write_text(f'{{"step":3,{rest}}}\n' + line(4, d=1))
    row = json.loads(f"{{{rest}}}")

    for name in ("a", "b", "c", "b,", ":", ":1,", ",", "x,", "}", "b,a"):
        expected = ([3], [row[name]]) if name in row else ([], [])
        assert repr(HotReader(tmp_path, "run7").look().column(name)) == repr(expected)


def test_of_a_big_log_one_metric_is_parsed(tmp_path, monkeypatch):
    """The others are when all names are wanted, or a ninth metric; a later look parses what was appended."""
    monkeypatch.setattr(_hotreader, "_BIG", 0)
    parsed = []
    parse = _jsonlines.parse
    monkeypatch.setattr(_jsonlines, "parse", lambda text: parsed.append(text) or parse(text))
    path, reader = tmp_path / "hot.jsonl", HotReader(tmp_path, "run7")
    path.write_text(line(0, a=0, ab=1) + line(1, ab="a", a=[1]) + line(1, ab=7) + line(2, a={"a": 1}) + line(3, a=4))
    hot = reader.look()

    assert hot.column("a") == ([0, 2, 3], [0, {"a": 1}, 4])
    assert [text[:9] for text in parsed] == [b'{"step":3', b'{"step":2']
    for name in "bcdefgh":
        assert hot.column(name) == ([], [])
    assert len(parsed) == 2
    assert hot.column("i") == ([], [])
    assert len(parsed) == 7
    assert hot.names == {"a", "ab"}

    with path.open("a") as log:
        log.write(line(5, a=6))
    assert reader.look().column("a") == ([0, 2, 3, 5], [0, {"a": 1}, 4, 6])
    assert len(parsed) == 8


@pytest.mark.parametrize("bad", ["{", "", "5", "[]", '{"a":1}', '{"step":-1}', '{"step":9223372036854775808}', "}"])
def test_a_bad_line_of_a_big_log(tmp_path, monkeypatch, bad):
    """A line that does not begin and end as a row is bad for every metric."""
    monkeypatch.setattr(_hotreader, "_BIG", 0)
    (tmp_path / "hot.jsonl").write_text(line(0, a=0) + bad + "\n" + line(1, a=1))

    with pytest.raises(CorruptRunError, match="hot log of run 'run7': line 2"):
        HotReader(tmp_path, "run7").look()


def test_a_line_of_a_big_log_that_is_bad_inside(tmp_path, monkeypatch):
    """It is bad for the metric whose value it breaks, and for whoever wants all; a reader looks twice."""
    monkeypatch.setattr(_hotreader, "_BIG", 0)
    folder = tmp_path / "run7" / "plattli"
    folder.mkdir(parents=True)
    log = folder / "hot.jsonl"
    broken = line(0, a=0, b=1) + '{"step":1,"a":1,"b":2 2}\n' + line(2, b=3)
    log.write_text(broken)
    (folder / "plattli.json").write_text(json.dumps({name: {"indices": [], "dtype": "f32"} for name in "ab"}))
    reader = Reader(folder)

    assert reader.metric("a")[1].tolist() == [0, 1]
    with pytest.raises(CorruptRunError, match="hot log of run 'run7': line 2 is not JSON"):
        reader.metric("b")
    with pytest.raises(CorruptRunError, match="hot log of run 'run7': line 2 is not JSON"):
        Reader(folder).metrics()

    look = HotReader.look

    def heal(self):
        hot = look(self)
        log.write_text(broken.replace("2 2", "2"))
        return hot

    monkeypatch.setattr(HotReader, "look", heal)
    assert Reader(folder).metric("b")[1].tolist() == [1, 2, 3]
    log.write_text(broken)
    assert Reader(folder).metrics() == ["a", "b"]


def test_rotation_between_the_two_logs(tmp_path, monkeypatch):
    """Rows do not slip away when the log is renamed between the looks at the two names."""
    active, compacting = tmp_path / "hot.jsonl", tmp_path / "hot.compacting.jsonl"
    active.write_text(line(0, a=0))
    look = _hotreader._open

    def rotate(path, files):
        file = look(path, files)
        if path == str(compacting) and not compacting.exists():
            os.rename(active, compacting)
            active.write_text(line(1, a=1))
        return file

    monkeypatch.setattr(_hotreader, "_open", rotate)

    assert read(tmp_path) == [(0, 0), (1, 1)]


def test_rotation_without_end(tmp_path, monkeypatch):
    """A log that is rotated at every look is given up with advice."""
    active, compacting = tmp_path / "hot.jsonl", tmp_path / "hot.compacting.jsonl"
    look = _hotreader._open

    def rotate(path, files):
        file = look(path, files)
        if path == str(active):
            active.write_text(line(1, a=1))
            os.rename(active, compacting)
        return file

    monkeypatch.setattr(_hotreader, "_open", rotate)

    with pytest.raises(UnstableRunError, match=r"'run7'.*try again"):
        read(tmp_path)


def test_a_line_that_was_half_visible(tmp_path, monkeypatch):
    """A bad line is looked at again before it is believed."""
    (tmp_path / "hot.jsonl").write_text("{\n" + line(1, a=1))
    texts = HotReader._texts
    looks = []

    def heal(self):
        looks.append(1)
        if len(looks) == 2:
            (tmp_path / "hot.jsonl").write_text(line(0, a=0) + line(1, a=1))
        return texts(self)

    monkeypatch.setattr(HotReader, "_texts", heal)

    assert read(tmp_path) == [(0, 0), (1, 1)]
