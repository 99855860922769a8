"""Points as they come, and refreshes that read only what was appended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import CompactingWriter, Reader, _follow, _hotreader, _jsonlines, reader
from plattli._hotreader import HotReader
from plattli._source import Folder
from plattli.errors import CorruptRunError, MissingFileError, ReaderClosedError, UnknownMetricError
from plattli.rows import RowWriter
from tests.test_plattli.byhand import append_hot, append_values, pack, write_manifest

POLL = 0.001


def pairs(piece):
    """Steps and values of a piece, paired."""
    steps, values = piece[-2:]
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def rest(pieces):
    """All points that a follower still yields."""
    return [point for piece in pieces for point in pairs(piece)]


def log(writer, steps, value=float):
    """Log one metric at some steps."""
    for step in steps:
        writer.step = step
        writer.write(a=value(step))
        writer.end_step()


def settle(folder):
    """Make the names in a folder old enough to be trusted."""
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))


@pytest.fixture
def run(tmp_path):
    """Where a run called ``run7`` goes."""
    return tmp_path / "run7"


@pytest.fixture
def folder(run):
    """The metric folder of a run without a writer."""
    folder = run / "plattli"
    folder.mkdir(parents=True)
    return folder


# ---- each point once ------------------------------------------------------------------------------


def test_points_come_once_across_compactions_and_the_archive(run):
    """Rows come as soon as they are logged, and not again when they move to the columns or the archive."""
    writer = CompactingWriter(run, hotsize=3)
    log(writer, range(2))
    pieces = Reader(run).follow("a", poll=POLL)
    assert pairs(next(pieces)) == [(0, 0.0), (1, 1.0)]
    for step in range(2, 20):
        log(writer, [step])
        assert pairs(next(pieces)) == [(step, float(step))]
    writer.drain()
    log(writer, [20, 21])
    assert pairs(next(pieces)) == [(20, 20.0), (21, 21.0)]
    log(writer, [100, 102])

    writer.finish()

    assert rest(pieces) == [(100, 100.0), (102, 102.0)]


def test_a_writer_that_is_faster_than_the_reader(run):
    """Whatever is going on at the moment of a look, no point is lost, repeated or out of order."""
    writer = CompactingWriter(run, hotsize=7)
    log(writer, [0])

    def write():
        for step in range(1, 3000):
            writer.write(a=float(step), j=[step], **({} if step % 3 else {"b": step}))
            writer.end_step()
        writer.finish()

    thread = threading.Thread(target=write)
    thread.start()
    got = {"a": [], "b": [], "j": []}
    for name, steps, values in Reader(run).follow(["a", "b", "j"], poll=0):
        got[name] += zip(steps.tolist(), values.tolist(), strict=True)
    thread.join()

    assert got["a"] == [(step, float(step)) for step in range(3000)]
    assert got["b"] == [(step, step) for step in range(3, 3000, 3)]
    assert got["j"] == [(step, [step]) for step in range(1, 3000)]


def test_a_promoted_column_goes_on(run):
    """An integer metric that becomes floats yields only what is new, as floats."""
    writer = CompactingWriter(run, hotsize=2, promote="float")
    log(writer, range(5), int)
    pieces = Reader(run).follow("a", poll=POLL)
    assert pairs(next(pieces)) == [(step, step) for step in range(5)]

    log(writer, [5], lambda step: 5.5)
    steps, values = next(pieces)

    assert (steps.tolist(), values.tolist(), values.dtype.kind) == ([5], [5.5], "f")
    writer.finish()
    assert rest(pieces) == []


def test_late_points_come_when_they_are_there(run):
    """A point between earlier ones is found, in the hot log and in the columns."""
    with RowWriter(run, hotsize=100) as writer:
        for step in (0, 10, 20, 30):
            writer.append(step, ("a",), (float(step),))
        pieces = Reader(run).follow("a", poll=POLL)
        assert len(pairs(next(pieces))) == 4

        writer.append(15, ("a",), (15.0,))
        assert pairs(next(pieces)) == [(15, 15.0)]
        writer.drain()
        writer.append(5, ("a",), (5.0,))
        writer.append(40, ("a",), (40.0,))
        assert pairs(next(pieces)) == [(5, 5.0), (40, 40.0)]

    assert rest(pieces) == []


def test_a_resume_takes_back_what_it_cuts(run):
    """What a new writer logs after its cut comes, though the steps are not new."""
    writer = CompactingWriter(run, hotsize=3)
    log(writer, range(10))
    pieces = Reader(run).follow("a", poll=POLL)
    assert len(pairs(next(pieces))) == 10

    resumed = CompactingWriter(run, step=6, hotsize=3)
    log(resumed, [6], lambda step: -1.0)

    assert pairs(next(pieces)) == [(6, -1.0)]
    log(resumed, [7])
    assert pairs(next(pieces)) == [(7, 7.0)]
    resumed.finish()
    assert rest(pieces) == []


@pytest.mark.parametrize("cut", [0, 6, 9])
def test_a_cut_that_was_written_over_between_two_looks(run, cut):
    """A resumed run that is as long as before, or longer, is not taken for the one that was delivered."""
    log(writer := CompactingWriter(run, hotsize=3), range(10))
    pieces = Reader(run).follow("a", poll=POLL)
    assert len(pairs(next(pieces))) == 10

    writer = CompactingWriter(run, step=cut, hotsize=3)
    log(writer, range(cut, 15), lambda step: -float(step) - 1)
    writer.finish()

    assert rest(pieces) == [(step, -float(step) - 1) for step in range(cut, 15)]


def test_a_cut_that_is_written_again_just_as_it_was(run):
    """Points that a resume makes again, the same, before anybody looked, are the same points."""
    first = CompactingWriter(run, hotsize=3)  # kept: a writer that is collected has ended
    log(first, range(10))
    pieces = Reader(run).follow("a", poll=POLL)
    assert len(pairs(next(pieces))) == 10

    log(writer := CompactingWriter(run, step=4, hotsize=3), range(4, 12))
    writer.finish()

    assert rest(pieces) == [(10, 10.0), (11, 11.0)]


def test_json_values_are_compared_as_they_read(run):
    """NaN inside a JSON value does not make it a new point after each resume; ``true`` for ``1`` does."""
    values = [{"v": float("nan")}, ["x"], [1]]
    writer = CompactingWriter(run, hotsize=3)
    log(writer, range(3), values.__getitem__)
    pieces = Reader(run).follow("a", poll=POLL)
    assert len(next(pieces)[0]) == 3

    log(writer := CompactingWriter(run, step=2, hotsize=3), [2, 3], lambda step: [True])
    writer.finish()

    assert rest(pieces) == [(2, [True]), (3, [True])]


def test_an_archive_that_is_resumed(run):
    """The archive of a run that is being continued is left for the folder that it becomes."""
    writer = CompactingWriter(run, hotsize=3)
    log(writer, range(4))
    writer.finish()
    archive = Reader(run)
    assert archive.kind == "zip"
    writer = CompactingWriter(run, step=2, hotsize=3, allow_resume_finalized=True)
    pieces = archive.follow("a", poll=POLL)
    assert pairs(next(pieces)) == [(0, 0.0), (1, 1.0)]

    log(writer, [2])

    assert pairs(next(pieces)) == [(2, 2.0)]
    writer.finish()
    assert rest(pieces) == []
    assert archive.kind == "zip"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("log"), st.integers(1, 8)),
            st.tuples(st.just("late"), st.integers(0, 60)),
            st.tuples(st.just("reopen"), st.integers(0, 60)),
            st.tuples(st.sampled_from(["drain", "look", "finish"]), st.just(0)),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_whoever_keeps_the_latest_value_of_each_step_has_the_run(tmp_path_factory, program, as_json):
    """After each look a dict of all that came agrees with the run; without cuts, nothing comes twice."""
    run = tmp_path_factory.mktemp("run")
    stamp = iter(range(10**6))
    written, replaced = {}, set()

    def write(step):
        # every value is another one, so that what was cut and written again can be told
        value = [next(stamp)] if as_json else float(next(stamp))
        if step in written:
            replaced.add(step)  # in place, and so not promised to come
        written[step] = value
        writer.append(step, ("a",), (value,))

    writer = RowWriter(run, hotsize=4, if_exists="append")
    write(0)
    with Reader(run) as follower:
        points = _follow.Points("a", follower._stored_from)
        got, came, cuts = {}, [], 0
        for action, number in [*program, ("look", 0), ("finish", 0), ("look", 0)]:
            if action == "log":
                for step in range(writer.newest + 1, writer.newest + 1 + number):
                    write(step * (2 if number == 8 else 1))
            elif action == "late":
                write(number)
            elif action == "drain":
                writer.drain()
            elif action == "reopen":
                writer = RowWriter(run, hotsize=4, if_exists="append", cut=lambda name, first=number: first)
                for step in [step for step in written if step >= number]:
                    del written[step]
                    replaced.discard(step)
                write(max(writer.newest + 1, number))
                cuts += 1
            elif action == "finish":
                writer.finish()
                writer = RowWriter(run, hotsize=4, if_exists="append")
            else:
                new = pairs(points.new(follower._moment().state))
                came += [json.dumps(point) for point in new]
                got.update(new)
                assert written.keys() <= got.keys()
                assert {step for step, value in written.items() if got[step] != value} <= replaced
                if cuts == 0:
                    assert len(came) == len(set(came))
        writer.close()


def test_lines_of_a_file_that_was_replaced(run):
    """Where the lines of a JSON column are is found anew when one of them became longer or shorter."""
    with RowWriter(run, hotsize=100) as writer:
        for step in range(10):
            writer.append(step, ("a",), ([step],))
        writer.drain()
        kept = Reader(run)
        assert kept.metric_values("a").tolist() == [[step] for step in range(10)]
        for value in ([1000], [10], ["long" * 50], [3]):
            writer.append(3, ("a",), (value,))
            assert kept.metric_values("a").tolist() == [value if step == 3 else [step] for step in range(10)]
            assert kept.metric("a", idx=-1) == (9, [9])


def test_a_file_that_was_cut_and_grew(tmp_path):
    """A file that does not go on as it did is scanned anew, though it is the same file."""
    path, source, index = tmp_path / "a.jsonl", Folder(tmp_path), _jsonlines.LineIndex()

    def offsets():
        with source.open("a.jsonl") as blob:
            return index.update(blob).tolist()

    path.write_bytes(b"1\n22\n333\n")
    assert offsets() == [0, 2, 5, 9]
    path.write_bytes(b"1\n22\n")
    assert offsets() == [0, 2, 5]
    path.write_bytes(b"1\n2222222222\n3\n")
    assert offsets() == [0, 2, 13, 15]
    path.write_bytes(b"1\n2\r\n3\n")
    assert offsets() == [0, 2, 5, 7]
    path.write_bytes(b"1\n22\n333\n")
    assert offsets() == [0, 2, 5, 9]


# ---- when it ends ---------------------------------------------------------------------------------


def test_a_killed_writer(run):
    """When the writer's process is gone, all it has logged is delivered, and that was it."""
    code = (
        "import sys, time; from plattli import CompactingWriter\n"
        f"w = CompactingWriter({str(run)!r}, hotsize=5)\n"
        "for i in range(23): w.write(a=float(i)); w.end_step()\n"
        "print('there', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"there\n"
        pieces = Reader(run).follow("a", poll=POLL)
        first = pairs(next(pieces))
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()

    assert first + rest(pieces) == [(step, float(step)) for step in range(23)]


def test_a_closed_writer(run):
    """A run that nobody writes is read once, finished or not."""
    writer = CompactingWriter(run, hotsize=5)
    log(writer, range(3))
    writer.close()

    assert rest(Reader(run).follow("a")) == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_writer_without_a_lock(folder):
    """Without a timeout, a run that no lock shows to be written is read once; with one, it is waited for."""
    write_manifest(folder, {"a": {"indices": [{"start": 0, "step": 1}], "dtype": "i64"}})
    append_values(folder, "a", "i64", range(3))
    assert len(rest(Reader(folder).follow("a"))) == 3

    pieces = Reader(folder).follow("a", poll=POLL, timeout=240)
    assert len(pairs(next(pieces))) == 3
    append_hot(folder, 3, {"a": 3})
    assert pairs(next(pieces)) == [(3, 3)]
    append_values(folder, "a", "i64", [3, 4])
    assert pairs(next(pieces)) == [(4, 4)]
    pieces.close()

    # a finished run is not waited for
    write_manifest(folder, {"a": {"indices": [{"start": 0, "stop": 5, "step": 1}], "dtype": "i64"}}, run_rows=5)
    assert len(rest(Reader(folder).follow("a", timeout=600))) == 5
    pack(folder, folder.parent / "metrics.plattli")
    assert len(rest(Reader(folder.parent).follow("a", timeout=600))) == 5


def test_timeout_ends_what_nothing_comes_from(run):
    """A live writer that logs nothing is left after the timeout, also before the metric's first value."""
    writer = CompactingWriter(run, hotsize=5)
    log(writer, range(3))

    assert len(rest(Reader(run).follow("a", poll=POLL, timeout=0.05))) == 3
    assert rest(Reader(run).follow("missing", poll=POLL, timeout=0.05)) == []
    writer.close()


def test_unknown_metrics(run):
    """A metric may be yet to come; when the run has ended without it, that is an error."""
    writer = CompactingWriter(run, hotsize=5)
    log(writer, range(3))
    pieces = Reader(run).follow(["a", "b"], poll=POLL)
    assert next(pieces)[0] == "a"
    writer.write(b=1)
    writer.end_step()

    name, steps, values = next(pieces)

    assert (name, steps.tolist(), values.tolist()) == ("b", [3], [1])
    missing = Reader(run).follow("c", poll=POLL)
    writer.finish()
    assert rest(pieces) == []
    with pytest.raises(UnknownMetricError, match=r"unknown metric 'c' \(run 'run7'\)"):
        next(missing)


def test_a_folder_that_is_no_run_yet(folder):
    """A follower may begin before the writer has written anything."""
    pieces = Reader(folder, kind="dir").follow("a", poll=POLL, timeout=240)
    with pytest.raises(MissingFileError):
        next(Reader(folder, kind="dir").follow("a"))

    with RowWriter(folder.parent, hotsize=3) as writer:
        writer.append(0, ("a",), (1.5,))
        assert pairs(next(pieces)) == [(0, 1.5)]
    pieces.close()


def test_damage_is_not_waited_for(folder):
    """A run that cannot be read right raises, though it may be written."""
    write_manifest(folder, {"a": {"indices": [{"start": 0, "step": 1}], "dtype": "x9"}})

    with pytest.raises(CorruptRunError, match="x9"):
        next(Reader(folder).follow("a", timeout=240))


def test_closing(run):
    """A reader that is closed ends its followers, and makes no more."""
    writer = CompactingWriter(run, hotsize=5)
    log(writer, range(3))
    follower = Reader(run)
    pieces = follower.follow("a", poll=POLL)
    next(pieces)

    follower.close()

    assert rest(pieces) == []
    with pytest.raises(ReaderClosedError, match="run7"):
        follower.follow("a")
    writer.close()


@pytest.mark.parametrize("bad", [{"poll": -1}, {"timeout": -0.5}, {"timeout": float("nan")}, {"dtype": "nonsense"}])
def test_bad_arguments(folder, bad):
    """Nonsense is refused by the call, not by the first piece."""
    write_manifest(folder, {})

    with pytest.raises((ValueError, TypeError)):
        Reader(folder).follow("a", **bad)


# ---- which points ---------------------------------------------------------------------------------


def test_a_range_of_steps(run):
    """Both ends count; when the last wanted step is there, nothing else is waited for."""
    writer = CompactingWriter(run, hotsize=3)
    log(writer, range(0, 20, 2))
    pieces = Reader(run).follow("a", poll=POLL, start=8, stop=22)
    assert [step for step, _ in pairs(next(pieces))] == [8, 10, 12, 14, 16, 18]

    log(writer, [20, 22, 24])

    assert [step for step, _ in rest(pieces)] == [20, 22]
    writer.close()


def test_dtypes(run):
    """Pieces have the dtype that was asked for."""
    writer = CompactingWriter(run, hotsize=3)
    log(writer, range(5), int)
    writer.finish()

    def dtype(**options):
        return next(Reader(run).follow("a", **options))[1].dtype

    assert dtype() == np.int64
    assert dtype(dtype="storage") == np.uint8
    assert dtype(dtype=np.float32) == np.float32
    assert [name for name, *_ in Reader(run).follow(["a", "a"])] == ["a"]


# ---- what a look costs ----------------------------------------------------------------------------


def test_a_refresh_parses_only_what_was_appended(folder, monkeypatch):
    """Neither an old row nor a manifest that stayed is parsed again; the log itself is not even read."""
    write_manifest(folder, {"a": {"indices": [], "dtype": "i64"}})
    for step in range(50):
        append_hot(folder, step, {"a": step, "b": [step]})
    settle(folder)
    live = Reader(folder)
    assert live.rows("a") == 50
    parsed, loaded, opened = [], [], []
    parse, load, texts = _jsonlines.parse, reader.load, HotReader._texts
    monkeypatch.setattr(_jsonlines, "parse", lambda line: parsed.append(line) or parse(line))
    monkeypatch.setattr(reader, "load", lambda *args: loaded.append(args) or load(*args))
    monkeypatch.setattr(HotReader, "_texts", lambda self: opened.append(self) or texts(self))

    live.refresh()
    assert live.rows("a") == 50
    append_hot(folder, 50, {"a": 50, "c": 1})
    live.refresh()
    assert live.metric("a", idx=-1) == (50, 50)
    assert live.metrics() == ["a", "b", "c"]
    assert (len(parsed), len(loaded), len(opened)) == (1, 0, 0)

    # a new manifest is read; the log, which may be another one now, is, but its rows are known
    write_manifest(folder, {"a": {"indices": [], "dtype": "i32"}})
    live.refresh()
    assert live.metric_values("a", dtype="storage").dtype == np.int32
    assert (len(parsed), len(loaded), len(opened)) == (1, 1, 1)


def test_following_parses_only_what_was_appended(run, monkeypatch):
    """Each look costs its new rows, hot or in the columns of a JSON metric."""
    writer = CompactingWriter(run, hotsize=1000)
    log(writer, range(200), lambda step: [step])
    writer.drain()
    log(writer, range(200, 300), lambda step: [step])
    pieces = Reader(run).follow("a", poll=POLL)
    assert len(next(pieces)[0]) == 300
    parsed = []
    parse = _jsonlines.parse
    monkeypatch.setattr(_jsonlines, "parse", lambda line: parsed.append(line) or parse(line))

    for step in range(300, 310):
        log(writer, [step], lambda step: [step])
        assert pairs(next(pieces)) == [(step, [step])]
    assert len(parsed) <= 2 * 10
    # behind the stored rows there could be a torn one
    assert {json.loads(line)[0] if line.startswith(b"[") else "hot" for line in parsed} == {199, "hot"}

    writer.drain()
    log(writer, [310], lambda step: [step])
    assert pairs(next(pieces)) == [(310, [310])]
    # the last lines, and the row before, which must be the one that was delivered
    assert len(parsed) <= 2 * 10 + 4
    writer.close()


def hot_pairs(hot, name="a"):
    """Steps and values of a metric in hot rows, paired."""
    return list(zip(*hot.column(name), strict=True))


def test_a_log_that_grows_in_a_quiet_folder(tmp_path):
    """Torn lines, replaced rows and other files are what they are, also when only the rest is read."""
    path, hot = tmp_path / "hot.jsonl", HotReader(tmp_path, "run7")
    settle(tmp_path)
    assert not hot.read().exists
    append_hot(tmp_path, 0, {"a": 0, "b": 0})
    settle(tmp_path)  # as if it were another minute
    assert hot_pairs(hot.read()) == [(0, 0)]
    first = hot.read()
    with path.open("a") as file:
        file.write('{"step":1,"a"')
    assert hot_pairs(hot.read()) == [(0, 0)]
    with path.open("a") as file:
        file.write(":1}")
    assert hot_pairs(hot.read()) == [(0, 0), (1, 1)]
    with path.open("a") as file:
        file.write("\n")
    append_hot(tmp_path, 2, {"a": 2})
    assert hot_pairs(hot.read()) == [(0, 0), (1, 1), (2, 2)]
    assert hot.read() is hot.read()
    append_hot(tmp_path, 0, {"a": 10})
    assert hot_pairs(hot.read()) == [(0, 10), (1, 1), (2, 2)]
    assert hot.read().names == {"a"}
    assert hot_pairs(first) == [(0, 0)]

    with path.open("a") as file:
        file.write("{\n")
    append_hot(tmp_path, 3, {"a": 3})
    with pytest.raises(CorruptRunError, match="line 5 is not JSON"):
        hot.read()
    path.write_text('{"step":0,"a":5}\n' * 20)  # the same inode, longer, and nothing of it as it was
    assert hot_pairs(hot.read()) == [(0, 5)]
    path.write_text('{"step":7,"a":5}\n' * 30)
    assert hot_pairs(hot.read()) == [(7, 5)]
    path.write_text("")
    assert hot.read().exists
    assert hot_pairs(hot.read()) == []


def test_a_log_that_is_replaced_by_one_with_its_inode(tmp_path, monkeypatch):
    """Numbers of files are used again; a new name in the folder means that nothing is taken for granted."""
    path, hot = tmp_path / "hot.jsonl", HotReader(tmp_path, "run7")
    append_hot(tmp_path, 0, {"a": 0})
    append_hot(tmp_path, 1, {"a": 1})
    settle(tmp_path)
    assert hot_pairs(hot.read()) == [(0, 0), (1, 1)]
    inode = path.stat().st_ino

    data = path.read_bytes().replace(b'"a":0', b'"a":9') + b'{"step":2,"a":2}\n'
    for _ in range(50):
        (tmp_path / "new").write_bytes(data)
        os.replace(tmp_path / "new", path)
        if path.stat().st_ino == inode:
            break

    assert hot_pairs(hot.read()) == [(0, 9), (1, 1), (2, 2)]


def test_names_that_are_too_new_are_not_trusted(tmp_path):
    """Within a tick of the clock names may change without a trace."""
    append_hot(tmp_path, 0, {"a": 0})
    assert _hotreader._settled(tmp_path) is None
    settle(tmp_path)
    assert _hotreader._settled(tmp_path) is not None
    assert _hotreader._settled(tmp_path / "missing") is None
