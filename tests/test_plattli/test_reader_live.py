"""Reads of runs that change meanwhile."""

from __future__ import annotations

import os
import shutil
import threading

import numpy as np
import pytest

from plattli import CompactingWriter, Reader
from plattli.errors import MissingFileError, UnstableRunError
from tests.test_plattli.byhand import append_hot, append_steps, append_values, pack, write_manifest


@pytest.fixture
def folder(tmp_path):
    """The metric folder of a run called ``run7``."""
    folder = tmp_path / "run7" / "plattli"
    folder.mkdir(parents=True)
    return folder


def live(folder, rows=3):
    """A live run with one metric in its columns."""
    append_values(folder, "a", "i64", range(rows))
    write_manifest(folder, {"a": {"indices": [{"start": 0, "step": 1}], "dtype": "i64"}})


def test_refresh_shows_new_hot_rows(folder):
    """Hot rows and counts are kept until refresh, which reads only what is new."""
    live(folder)
    append_hot(folder, 3, {"a": 3})
    reader = Reader(folder)
    assert reader.rows("a") == 4
    append_hot(folder, 4, {"a": 4, "b": "x"})
    assert reader.rows("a") == 4
    assert reader.metrics() == ["a"]

    reader.refresh()

    assert reader.metric("a")[1].tolist() == [0, 1, 2, 3, 4]
    assert reader.metrics() == ["a", "b"]


def test_appended_columns_show_without_refresh(folder):
    """Columns are read anew by each call."""
    live(folder)
    reader = Reader(folder)
    assert len(reader.metric_values("a")) == 3
    append_values(folder, "a", "i64", [3, 4])

    assert reader.metric_values("a").tolist() == [0, 1, 2, 3, 4]


def test_a_column_that_was_cut(folder):
    """A writer that resumes cuts columns before it touches the manifest."""
    append_values(folder, "j", "jsonl", [[0], [1], [2], [3]])
    write_manifest(folder, {"j": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"}})
    reader = Reader(folder)
    assert reader.metric_values("j").tolist() == [[0], [1], [2], [3]]
    os.truncate(folder / "j.jsonl", 8)

    assert reader.metric_values("j").tolist() == [[0], [1]]


def test_a_new_manifest_is_noticed(folder):
    """Values that a newer manifest explains are never read with the older one."""
    live(folder)
    append_hot(folder, 3, {"a": 3})
    reader = Reader(folder)
    assert reader.metric("a")[0].tolist() == [0, 1, 2, 3]
    # the next step jumps: the tail is closed, and a new one opened, before values are appended
    segments = [{"start": 0, "stop": 4, "step": 1}, {"start": 100, "step": 1}]
    write_manifest(folder, {"a": {"indices": segments, "dtype": "i64"}})
    append_values(folder, "a", "i64", [3, 100, 101])

    steps, values = reader.metric("a")

    assert steps.tolist() == values.tolist() == [0, 1, 2, 3, 100, 101]


def test_a_stale_monotonic_flag_is_not_used(folder):
    """A flag that a newer manifest has dropped does not lead a search astray."""
    append_values(folder, "a", "i64", [1, 2, 3])
    spec = {"indices": [{"start": 0, "step": 1}], "dtype": "i64"}
    write_manifest(folder, {"a": {**spec, "monotonic": "inc"}})
    reader = Reader(folder)
    assert reader.metric_values("a", vstart=2).tolist() == [2, 3]
    write_manifest(folder, {"a": spec})
    append_values(folder, "a", "i64", [0, 1, 0])

    assert reader.metric_values("a", vstop=1).tolist() == [1, 0, 1, 0]


def test_a_promoted_column_is_found(folder):
    """A column that was rewritten with another dtype is read under its new name."""
    live(folder)
    reader = Reader(folder)
    assert reader.manifest()["a"]["dtype"] == "i64"
    append_values(folder, "a", "f64", [0.0, 1.0, 2.5])
    write_manifest(folder, {"a": {"indices": [{"start": 0, "step": 1}], "dtype": "f64"}})
    (folder / "a.i64").unlink()

    assert reader.metric_values("a").tolist() == [0.0, 1.0, 2.5]
    assert reader.manifest()["a"]["dtype"] == "f64"


def test_a_hot_metric_gets_its_dtype_from_the_manifest(folder):
    """A metric that was announced after the manifest was read is not taken for JSON."""
    live(folder)
    reader = Reader(folder)
    reader.manifest()
    specs = {"a": {"indices": [{"start": 0, "step": 1}], "dtype": "i64"}, "b": {"indices": [], "dtype": "f32"}}
    write_manifest(folder, specs)
    append_hot(folder, 3, {"b": 0.1})

    assert reader.metrics() == ["a", "b"]
    assert reader.metric_values("b").dtype == np.float32


def test_columns_win_over_hot_rows(folder):
    """A hot row at or before the last stored step has been moved already."""
    live(folder)
    for step in range(5):
        append_hot(folder, step, {"a": 10 * step})

    assert Reader(folder).metric("a")[1].tolist() == [0, 1, 2, 30, 40]
    assert Reader(folder, exclude_hot=True).metric("a")[1].tolist() == [0, 1, 2]


def test_missing_files_of_a_live_run(folder):
    """With a hot log around, or hot rows excluded, a column may not be there yet; else it is missing."""
    write_manifest(folder, {"a": {"indices": "indices", "dtype": "f32"}})
    (folder / "hot.jsonl").touch()
    assert Reader(folder).rows("a") == 0
    (folder / "hot.jsonl").unlink()
    assert len(Reader(folder, exclude_hot=True).metric_values("a")) == 0
    with pytest.raises(MissingFileError, match=r"missing values file of metric 'a' \(run 'run7'\)"):
        Reader(folder).rows("a")
    append_values(folder, "a", "f32", [1.0])
    with pytest.raises(FileNotFoundError, match="missing indices file"):
        Reader(folder).metric("a")


def test_a_reader_follows_its_run_into_the_archive(folder):
    """When finish has archived the run and removed the folder, an open reader goes on."""
    live(folder)
    (folder / "config.json").write_text('{"lr": 0.1}')
    reader, other = Reader(folder.parent), Reader(folder.parent, exclude_hot=True)
    assert reader.rows("a") == 3
    append_values(folder, "a", "i64", [3])
    archive = folder.parent / "metrics.plattli"
    pack(folder, archive)

    assert reader.metric_values("a").tolist() == [0, 1, 2, 3]
    assert (reader.kind, reader.root) == ("zip", archive)
    assert other.config() == {"lr": 0.1}
    assert other.metrics() == ["a"]
    reader.close()
    other.close()


@pytest.mark.parametrize("exclude_hot", [False, True])
def test_a_half_removed_folder_is_not_read(folder, exclude_hot):
    """Once the archive is there, columns missing from the folder are read from it."""
    live(folder)
    reader = Reader(folder.parent, exclude_hot=exclude_hot)
    reader.manifest()
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy)
    pack(copy, folder.parent / "metrics.plattli")
    (folder / "a.i64").unlink()

    assert reader.metric_values("a").tolist() == [0, 1, 2]
    assert reader.kind == "zip"
    reader.close()


def test_a_vanished_run(folder):
    """A folder that is gone without an archive is a missing file."""
    live(folder)
    reader = Reader(folder)
    reader.metrics()
    shutil.rmtree(folder)

    with pytest.raises(MissingFileError, match="'a'"):
        reader.metric("a")


def test_a_manifest_that_never_rests(folder, monkeypatch):
    """A read that is overtaken each time gives up with advice."""
    live(folder)
    reader = Reader(folder)
    steps = iter(range(1, 100))
    read = Reader._select

    def overtaken(self, name, selection):
        rows = read(self, name, selection)
        write_manifest(folder, {"a": {"indices": [{"start": next(steps), "step": 1}], "dtype": "i64"}})
        return rows

    monkeypatch.setattr(Reader, "_select", overtaken)

    with pytest.raises(UnstableRunError, match="'run7' changed 10 times while it was read: try again"):
        reader.metric("a")


class Writer(threading.Thread):
    """Writes a run by the rules of the format: hot row, rotation, step file, manifest, values, unlink."""

    def __init__(self, folder, steps):
        super().__init__(daemon=True)
        self.folder, self.steps = folder, steps
        self.specs = {}

    def run(self):
        rows = []
        for n in range(self.steps):
            step = n + 50 * (n // 400)  # a gap now and then, which needs a new segment
            if n % 100 == 0:
                self.specs[f"m{n}"] = {"indices": [], "dtype": "u8"}
                for name in ("a", "j", "f"):
                    self.specs.setdefault(name, {"indices": [], "dtype": {"a": "i64", "j": "jsonl", "f": "f32"}[name]})
                write_manifest(self.folder, self.specs)
            row = {"a": step, "j": {"s": step}, f"m{n // 100 * 100}": n % 100}
            if n % 3 == 0:
                row["f"] = step
            append_hot(self.folder, step, row)
            rows.append((step, row))
            if len(rows) == 7:
                self.compact(rows)
                rows = []
        self.compact(rows)
        write_manifest(self.folder, self.specs, run_rows=self.steps)
        pack(self.folder, self.folder.parent / "metrics.plattli")

    def compact(self, rows):
        os.rename(self.folder / "hot.jsonl", self.folder / "hot.compacting.jsonl")
        columns = {}
        for step, row in rows:
            for name, value in row.items():
                columns.setdefault(name, []).append((step, value))
        changed = False
        for name, column in columns.items():
            spec = self.specs[name]
            if name == "f":  # steps in a file, as of a metric that came irregularly
                changed |= spec["indices"] == []
                spec["indices"] = "indices"
                append_steps(self.folder, name, [step for step, _ in column])
                continue
            for step, _ in column:
                last = spec["indices"][-1] if spec["indices"] else None
                if last is None or step != last["start"] + self.rows_of_tail(name):
                    if last is not None:
                        last["stop"] = last["start"] + self.rows_of_tail(name)
                    spec["indices"].append({"start": step, "step": 1})
                    spec["tail"] = 0
                    changed = True
                spec["tail"] = spec.get("tail", 0) + 1
        if changed:
            write_manifest(self.folder, self.specs)
        for name, column in columns.items():
            append_values(self.folder, name, self.specs[name]["dtype"], [value for _, value in column])
        os.unlink(self.folder / "hot.compacting.jsonl")

    def rows_of_tail(self, name):
        return self.specs[name].get("tail", 0)


def test_reads_beside_a_writer(folder):
    """No read sees a gap, a double, a row at the wrong step, or fewer rows than a read before it."""
    write_manifest(folder, {})
    writer = Writer(folder, 2500)
    kept = Reader(folder.parent)
    excluded = Reader(folder.parent, exclude_hot=True)
    seen = {}
    writer.start()
    reads = 0
    while True:
        done = not writer.is_alive()
        kept.refresh()
        with Reader(folder.parent) as fresh:
            for reader in (fresh, kept, excluded):
                if "a" not in reader.metrics():
                    excluded.refresh()
                    continue
                steps, values = reader.metric("a")
                n = len(steps)
                assert steps.tolist() == values.tolist() == [i + 50 * (i // 400) for i in range(n)]
                assert n >= seen.get(id(reader), 0)
                seen[id(kept if reader is fresh else reader)] = n
                steps, values = reader.metric("j", istart=-20)
                assert [value["s"] for value in values] == steps.tolist()
                steps, values = reader.metric("f")
                assert steps.tolist() == values.tolist() == [i + 50 * (i // 400) for i in range(0, 3 * len(steps), 3)]
                for name in reader.metrics():
                    if name.startswith("m"):
                        values = reader.metric_values(name).tolist()
                        assert values == list(range(len(values)))
                reads += 1
        if done:
            break
    writer.join()

    assert kept.kind == "zip"
    assert kept.rows("a") == 2500
    assert reads > 10
    kept.close()
    excluded.close()


# ---- readers that come and go ---------------------------------------------------------------------


def last_of(root):
    with Reader(root) as reader:
        step, value = reader.metric("json", idx=-1)
    return int(step), value


def test_new_readers_read_what_was_appended(folder, monkeypatch):
    """What a reader has counted in a column of JSON, the next one in the same process need not count again."""
    write_manifest(folder, {"json": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"}})
    append_values(folder, "json", "jsonl", [{"n": n} for n in range(20_000)])
    assert last_of(folder) == (19_999, {"n": 19_999})
    was_read = 0
    pread = os.pread

    def counted(descriptor, length, offset):
        nonlocal was_read
        data = pread(descriptor, length, offset)
        was_read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    append_values(folder, "json", "jsonl", [1, 2])
    assert last_of(folder) == (20_001, 2)
    assert was_read < 20_000


def test_a_run_that_is_cut_and_goes_on_with_lines_of_the_same_look(tmp_path):
    """A manifest is published before anything is written over, so nothing that was counted before counts."""

    def log(first, values):
        run = CompactingWriter(tmp_path, step=first, hotsize=3, config={})
        for value in values:
            run.write({"json": value})
            run.end_step()
        run.drain()
        assert last_of(tmp_path) == (first + len(values) - 1, values[-1])
        run.close()

    same = ["x" * 50] * 60
    log(0, same)
    log(1, ["two lines".ljust(103), *same])  # in as many bytes, so that others end where others ended
    log(1, same)
    log(20, same)


def test_what_cannot_be_is_not_counted_on(folder):
    """Somebody who edits a file in its place, keeping its size, is noticed at the latest when all of it is read."""
    write_manifest(folder, {"json": {"indices": [{"start": 0, "step": 1}], "dtype": "jsonl"}})
    append_values(folder, "json", "jsonl", [1] * 5_000)
    assert last_of(folder) == (4_999, 1)
    with (folder / "json.jsonl").open("r+b") as file:
        file.write(b"1  \n")
    with Reader(folder) as reader:
        steps, values = reader.metric("json")
    assert len(steps) == len(values) == 4_999
    assert last_of(folder) == (4_998, 1)
