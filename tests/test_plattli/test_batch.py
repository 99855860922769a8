"""The background of the engine: what waits for a batch, what a batch makes wait, and what survives a power loss."""

from __future__ import annotations

import gc
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from plattli import Reader
from plattli._batch import Background, Batch
from plattli._rowform import HotRows
from plattli.rows import Json, RowWriter


def append(writer: RowWriter, step: int, **values: Any) -> None:
    assert writer.append(step, tuple(values), tuple(values.values())) == {}


def steps(run: Path, name: str) -> list[int]:
    with Reader(run) as reader:
        return reader.metric_indices(name).tolist()


class Syncs:
    """Every ``os.fsync`` from here on: which file, in which thread; those of other threads can be held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self.mine: list[str] = []
        self.waiting, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self._caller = threading.current_thread()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        self.found.append(name)
        if threading.current_thread() is self._caller:
            self.mine.append(name)
        else:
            self.waiting.set()
            assert self.go_on.wait(240)
        self._fsync(fd)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    if not Path("/proc/self/fd").exists():
        pytest.fail("the test needs to know which file an fd is of: run it on Linux")
    return Syncs(monkeypatch)


def test_waiting_rows_are_nothing_to_the_cycle_collector(tmp_path: Path) -> None:
    """Rows of two kinds, some with two lines: their number leaves that of the objects that it visits alone."""
    with RowWriter(tmp_path, hotsize=10_000) as writer:

        def log(steps: range) -> None:
            for step in steps:
                append(writer, step, **{"train/a": step / 3, "train/b": step})
                if step % 10 == 0:
                    append(writer, step, **{"validate/a": step / 7})

        log(range(100))
        gc.collect()
        before = len(gc.get_objects())
        log(range(100, 3000))
        gc.collect()

        assert len(gc.get_objects()) - before < 50
    assert steps(tmp_path, "train/a") == list(range(3000))
    assert steps(tmp_path, "validate/a") == list(range(0, 3000, 10))


def test_the_caller_waits_for_no_fsync(tmp_path: Path, syncs: Syncs) -> None:
    """While the disk holds a batch: not for rows, not for new metrics, not for the manifest that the batch writes."""
    with RowWriter(tmp_path, hotsize=10) as writer:
        for step in range(10):
            append(writer, step, a=step / 3)
        syncs.mine.clear()  # of the opening
        syncs.go_on.clear()
        for step in range(10, 50):
            append(writer, step, a=step / 3)
        assert syncs.waiting.wait(240)
        append(writer, 50, a=1.0, b=2.0, c=Json("new"))
        for step in range(51, 60):
            append(writer, step, a=step / 3, d=step)

        assert syncs.mine == []
        assert steps(tmp_path, "a") == list(range(60))
        assert steps(tmp_path, "b") == [50]
        syncs.go_on.set()
        writer.settle()
        assert [steps(tmp_path, name) for name in "abcd"] == [list(range(60)), [50], [50], list(range(51, 60))]


def test_a_batch_syncs_the_manifest_that_the_caller_did_not(tmp_path: Path, syncs: Syncs) -> None:
    """Nothing about the batch itself changes the manifest: it goes on where the columns' steps left off."""
    with RowWriter(tmp_path, hotsize=10) as writer:
        for step in range(30):
            append(writer, step, a=step / 3)
        writer.drain()
        syncs.found.clear()
        for step in range(30, 60):
            append(writer, step, a=step / 3)
        writer.drain()
        assert not [name for name in syncs.found if name.startswith("plattli.json")]

        append(writer, 60, b=1)  # a new metric: published, not synced
        assert not [name for name in syncs.found if name.startswith("plattli.json")]
        for step in range(61, 72):
            append(writer, step, a=step / 3)
        writer.drain()
        assert "plattli.json.tmp" in syncs.found
        assert "plattli" in syncs.found  # the directory
        assert writer._store.manifest_unsynced is False


def test_a_batch_syncs_each_file_before_the_log_goes(tmp_path: Path, syncs: Syncs) -> None:
    """Values of numbers and of JSON, and steps that are spelled out; never in the caller's thread."""
    with RowWriter(tmp_path, hotsize=50) as writer:
        syncs.mine.clear()  # of the opening
        for first in (0, 100):
            syncs.found.clear()
            for step in range(first, first + 100):
                append(writer, step * step, a=step / 3, j=Json({"x": step}))
            writer.settle()
            batch = {name.removesuffix(".tmp") for name in syncs.found}
            assert {"a.f64", "a.indices", "j.jsonl", "j.indices"} <= batch
        assert syncs.mine == []
    assert steps(tmp_path, "j") == [step * step for step in range(200)]


def test_fast_rows_wait_for_a_bigger_batch(tmp_path: Path) -> None:
    """The background rests after a batch, but not for ever."""
    with RowWriter(tmp_path, hotsize=4) as writer:
        for step in range(5):
            append(writer, step, a=step / 3)
        first = writer._hot.batch
        assert first is not None
        first.join()
        first.rested = math.inf
        for step in range(5, 96):
            append(writer, step, a=step / 3)
            assert writer._hot.batch is first
        for step in range(96, 116):
            append(writer, step, a=step / 3)
        assert writer._hot.batch is not first

        batch = writer._hot.batch
        assert batch is not None
        batch.join()
        batch.rested = 0.0
        for step in range(116, 126):
            append(writer, step, a=step / 3)
        assert writer._hot.batch is not batch
    assert steps(tmp_path, "a") == list(range(126))


def test_the_thread_ends_with_its_writer(tmp_path: Path) -> None:
    """Closed, finished or forgotten."""

    def threads() -> int:
        return sum(thread.name == f"plattli-compaction-{tmp_path.name}" for thread in threading.enumerate())

    for round, end in enumerate((RowWriter.close, RowWriter.finish, lambda writer: None)):
        writer = RowWriter(tmp_path, hotsize=2, if_exists="append")
        for step in range(round * 10, round * 10 + 10):
            append(writer, step, a=step)
        assert threads() == 1
        end(writer)
        del writer
        # the last reference may be the running batch's: then the thread ends by itself
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.name.startswith("plattli-compaction"):
                thread.join(240)
        assert threads() == 0
    assert steps(tmp_path, "a") == list(range(30))


def test_a_batch_can_be_tried_again() -> None:
    """What went wrong is kept until it goes right; then neither the rows nor the work are."""
    done: list[HotRows] = []
    errors = [OSError(28, "full"), ValueError("odd")]

    def move(rows: HotRows) -> None:
        if errors:
            raise errors.pop(0)
        done.append(rows)

    rows = HotRows()
    batch = Batch(rows, move)
    background = Background("plattli-compaction-test")
    background.begin(batch)
    batch.join()
    assert isinstance(batch.error, OSError)
    batch.run()
    assert isinstance(batch.error, ValueError)
    batch.run()
    batch.run()
    background.end()
    background.end()

    assert batch.error is None
    assert not batch.is_alive()
    assert done == [rows]
    assert batch.rows is not rows


def test_without_a_thread_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no more of them."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[HotRows] = []
    background = Background("plattli-compaction-test")
    batch = Batch(HotRows(), done.append)
    background.begin(batch)

    assert not batch.is_alive()
    assert len(done) == 1
    background.end()


def test_a_batch_makes_no_folder_where_a_run_was(tmp_path: Path) -> None:
    """It was moved away meanwhile; its rows wait in the log that moved with it."""
    run, away = tmp_path / "run", tmp_path / "away"
    with RowWriter(run, hotsize=100) as writer:
        append(writer, 0, **{"some/folder/a": 1 / 3, "b": 1})
        append(writer, 1, **{"some/folder/a": 2 / 3, "b": 2})
        run.rename(away)
        with pytest.raises(FileNotFoundError):
            writer.drain()
        assert not run.exists()
        away.rename(run)
        writer.drain()
    assert steps(tmp_path / "run", "some/folder/a") == [0, 1]
