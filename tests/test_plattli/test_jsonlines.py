"""JSON lines, against splitting and parsing everything."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plattli import _jsonlines
from plattli._jsonlines import LineIndex


class Bytes:
    """Bytes as a blob."""

    def __init__(self, data):
        self.file = None
        self.size = len(data)
        self.data = data

    def read(self, offset, length):
        return self.data[offset : offset + length]


lines = st.lists(st.sampled_from(["1", "null", '"a\u2028b"', '{"k": [1]}', " 2 ", "[]", "NaN"]), max_size=8)


@given(lines, st.sampled_from(["\n", "\r", "\r\n"]), st.sampled_from(["", "3", '"to', "\r", "\n", "x\r\n"]))
def test_index_finds_every_line(parts, end, tail):
    """Lines are where splitting finds them, without a last one that is no JSON."""
    data = "".join(part + end for part in parts).encode() + tail.encode()
    expected = data.splitlines(keepends=True)
    if expected and not _jsonlines.is_valid(expected[-1]):
        expected.pop()

    offsets = LineIndex().update(Bytes(data)).tolist()

    assert [data[a:b] for a, b in itertools.pairwise(offsets)] == expected


@given(lines, st.sampled_from(["\n", "\r", "\r\n"]), st.sampled_from(["", "3", '"to', "\n"]), st.integers(1, 9))
def test_counting_and_looking_from_the_end(parts, end, tail, wanted):
    """A count is what an index finds; the last lines are the last lines, or are not found from there."""
    blob = Bytes("".join(part + end for part in parts).encode() + tail.encode())
    offsets = LineIndex().update(blob).tolist()

    count, stop = LineIndex().count(blob)

    assert (count, stop) == (len(offsets) - 1, offsets[-1])
    last = _jsonlines.last_lines(blob, stop, wanted)
    if ("\r" in end and count) or wanted > count:
        assert last is None or last == b"".join(blob.data[:stop].splitlines(keepends=True)[-wanted:])
    else:
        assert last == blob.data[offsets[-1 - wanted] : stop]


def test_counting_goes_on_where_it_ended(monkeypatch):
    """And neither does a count in pieces lose a line."""
    monkeypatch.setattr(_jsonlines, "_COUNT_CHUNK", 3)
    monkeypatch.setattr(_jsonlines, "_NEAR", 1)
    data = b"".join(b"%d\n" % n for n in range(200))
    index = LineIndex()

    assert index.count(Bytes(data)) == (200, len(data))
    assert index.count(Bytes(data + b"7")) == (201, len(data) + 1)
    assert index.count(Bytes(data + b"7\n8\n[")) == (202, len(data) + 4)
    index.update(Bytes(data))
    assert index.count(Bytes(data + b"7\n8\n[")) == (202, len(data) + 4)
    assert _jsonlines.last_lines(Bytes(data), len(data), 150) == data[-550:]
    monkeypatch.setattr(_jsonlines, "_FAR", 8)
    assert _jsonlines.last_lines(Bytes(data), len(data), 150) is None


class File(Bytes):
    """Bytes of a file that may become another one."""

    def __init__(self, data, file):
        super().__init__(data)
        self.file = file
        self.was_read = 0

    def read(self, offset, length):
        self.was_read += max(0, min(length, self.size - offset))
        return super().read(offset, length)


#: what is written: whole lines, lines without a value, ends of all kinds, halves of a line
pieces = ["1", "22", "null", '"a\u2028b"', "\n", "\n", "\n", "1\n", "22\n", "\r\n", "\r", " ", '{"k', "x\n"]
writes = st.lists(st.sampled_from(pieces), max_size=9).map("".join)
#: what happens to a file between two looks, and where
changes = st.tuples(st.sampled_from(["append", "append", "cut", "replace"]), writes, st.integers(0, 9))


@given(writes, st.lists(changes, max_size=6), st.integers(1, 7), st.integers(1, 40))
def test_those_who_look_again_count_what_whoever_looks_first_counts(text, changed, chunk, tail):
    """With an index that stays and with new ones: where a file grows, where it was cut, where it is another one."""
    data, file, edition, path = text.encode(), 0, 0, "path"

    def check(*indices):
        parts = data.splitlines(keepends=True)
        if parts and not _jsonlines.is_valid(parts[-1]):
            parts.pop()
        for one in (*indices, LineIndex(path=path, edition=edition)):
            assert one.count(File(data, file)) == (len(parts), len(b"".join(parts)))
        kept = _jsonlines._counts.get(path)
        if kept is not None and kept.of == (file, edition) and b"\r" not in data:
            assert kept == (kept.of, data.count(b"\n"), data.rfind(b"\n") + 1, data[: kept.end][-tail:])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_jsonlines, "_COUNT_CHUNK", chunk)
        patch.setattr(_jsonlines, "_TAIL", tail)
        patch.setattr(_jsonlines, "_counts", {})
        index = LineIndex(path=path, edition=edition)
        check(index)
        for event, written, at in changed:
            if event == "cut":
                data = data[: len(data) * at // 9]
                check(index)
                edition += 1  # before anything is written over
                index = LineIndex(path=path, edition=edition)
            elif event == "replace":
                data, file = b"", file + 1
            data += written.encode()
            check(index)


def test_what_was_counted_is_not_read_again():
    """Also by others; but under another edition, in another file or when it is to be forgotten."""
    data = b"".join(b"%d\n" % n for n in range(100_000))

    def looked(data=data, file=1, path="file", edition=1):
        blob = File(data, file)
        index = LineIndex(path=path, edition=edition)
        assert index.count(blob) == (data.count(b"\n"), len(data))
        return index, blob.was_read

    for changed in ({}, {"file": 2}, {"path": "other"}, {"edition": 2}, {"data": data[:-6]}, {"data": b"1\n" + data}):
        first, was_read = looked(path=f"file {changed}")
        assert was_read > len(data)
        _, was_read = looked(**{"path": f"file {changed}", **changed})
        assert (was_read > len(data) - 9) == bool(changed)
        _, was_read = looked(path=f"file {changed}", edition=3)
        _, was_read = looked(path=f"file {changed}", edition=3, data=data + b"7\n")
        assert was_read < 10_000
        first.forget()
        _, was_read = looked(path=f"file {changed}", edition=3)
        assert was_read > len(data)


def test_no_more_counts_are_kept_than_somebody_needs(monkeypatch):
    """Not one for each file that there ever was."""
    monkeypatch.setattr(_jsonlines, "_counts", {})
    for path in range(2 * _jsonlines._MOST + 1):
        LineIndex(path=path).count(File(b"1\n", 1))
        assert path in _jsonlines._counts
    assert len(_jsonlines._counts) <= _jsonlines._MOST


@given(lines, st.data())
def test_index_of_a_growing_file(parts, data):
    """An index that watched a file grow is the index of the whole file."""
    text = "".join(part + data.draw(st.sampled_from(["\n", "\n", "\r\n"])) for part in parts).encode()
    index = LineIndex()
    for size in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4))):
        index.update(Bytes(text[:size]))

    assert index.update(Bytes(text)).tolist() == LineIndex().update(Bytes(text)).tolist()


def test_long_files_are_scanned_in_pieces(monkeypatch):
    """Lines may lie across the pieces in which a file is scanned."""
    monkeypatch.setattr(_jsonlines, "_CHUNK", 3)
    data = b"".join(b"%d\n" % n for n in range(200))

    offsets = LineIndex().update(Bytes(data)).tolist()

    assert [int(data[a:b]) for a, b in itertools.pairwise(offsets)] == list(range(200))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_parse_equals_the_standard_library(value):
    """Values come out as the standard library reads them, surrounded by white space or not."""
    for text in (json.dumps(value), f" {json.dumps(value)}\t"):
        assert repr(_jsonlines.parse(text.encode())) == repr(json.loads(text))


def test_numbers_beyond_64_bits_and_infinities():
    """Big integers stay exact; the non-finite tokens are read."""
    assert _jsonlines.parse(b"123456789012345678901234567890") == 123456789012345678901234567890
    assert _jsonlines.parse(b"-Infinity") == -math.inf


@pytest.mark.parametrize("line", [b"", b"1 2", b"{", b"\xff", b"[" * 100_000, b"\xef\xbb\xbf1", b"'a'"])
def test_what_is_no_value(line):
    """Anything else is a ValueError."""
    assert not _jsonlines.is_valid(line)
    with pytest.raises(ValueError, match="row 12 is not JSON"):
        _jsonlines.parse_all(b"1\n2\n" + line + b"\n", first=10)


def test_objects_keep_lists():
    """Lists of one length do not become a second dimension."""
    array = _jsonlines.objects([[1, 2], [3, 4]], 2)

    assert array.shape == (2,)
    assert array.tolist() == [[1, 2], [3, 4]]
