"""Hot logs: merging, tails, growing and rotation."""

from __future__ import annotations

import json
import os

import pytest

from plattli import _hotreader, _jsonlines
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
