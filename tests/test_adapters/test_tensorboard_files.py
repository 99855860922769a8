"""Event files: records, names, spans, replacing."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.backends import _tfevents, _tfproto
from tests.lazy import Lazy
from tests.test_adapters.tensorboard_files import events

tb = Lazy("tensorboard.backend.event_processing.event_file_loader", "tensorboard.summary.writer.record_writer")


def records(path: Path) -> list[bytes]:
    """Return the records of a file, their checksums verified by TensorBoard."""
    return list(tb.RawEventFileLoader(str(path)).Load())


def row(step: int) -> bytes:
    """Return an event."""
    return _tfproto.ScalarRow(("loss",)).event((1.0,), step, 1.0)


def words(tag: str, markdown: str, step: int) -> bytes:
    """Return an event with a text."""
    return _tfproto.summary_event(_tfproto.text_value(tag, markdown), step, 1.0)


def steps(path: Path) -> list[int]:
    """Return the steps of the summaries in a file."""
    return [event.step for event in events(path) if event.HasField("summary")]


class Sink:
    """A file for TensorBoard's own record writer."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        """Keep the data."""
        self.data += data


@given(st.lists(st.binary()))
def test_records_are_those_of_tensorboards_own_writer(payloads: list[bytes]) -> None:
    """Byte for byte, checksums included."""
    sink = Sink()
    writer = tb.RecordWriter(sink)
    frame = _tfevents.framer(google_crc32c.value)
    ours = b""
    for payload in payloads:
        writer.write(payload)
        ours += frame(payload)
    assert ours == sink.data


def test_a_file_opens_with_the_version_and_what_goes_ahead(tmp_path: Path) -> None:
    """Nothing is made before the first record, and that comes behind the others."""
    start = _tfproto.start_event(4, 1.0)
    writer = _tfevents.EventWriter(str(tmp_path / "run"), ahead=[start])
    assert not (tmp_path / "run").exists()
    writer.write(row(4))
    (path,) = (tmp_path / "run").iterdir()
    version, *others = records(path)
    assert b"brain.Event:2" in version
    assert others == [start, row(4)]


def test_a_name_says_when_where_and_who(tmp_path: Path) -> None:
    """TensorBoard's own scheme, so that other tools find the file."""
    before = int(time.time())
    _tfevents.EventWriter(str(tmp_path)).write(row(0))
    (path,) = tmp_path.iterdir()
    head, seconds, rest = path.name.split("tfevents.")[0], *path.name.split("tfevents.")[1].split(".", 1)
    assert head == "events.out."
    assert before <= int(seconds) <= time.time()
    assert rest == f"{socket.gethostname()}.{os.getpid()}"


@pytest.mark.parametrize("ahead", [0, 5000])
def test_the_newest_file_sorts_last(tmp_path: Path, ahead: int) -> None:
    """Also within one second, and when the old file's clock was ahead of ours."""
    (tmp_path / f"events.out.tfevents.{int(time.time()) + ahead:010d}.zebra.99999.9").touch()
    writers = [_tfevents.EventWriter(str(tmp_path)) for _ in range(3)]
    for step, writer in enumerate(writers):
        writer.write(row(step))
    assert [steps(path) for path in sorted(tmp_path.iterdir())[1:]] == [[0], [1], [2]]


def test_a_closed_writer_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """What had to go ahead went ahead once."""
    writer = _tfevents.EventWriter(str(tmp_path), ahead=[_tfproto.start_event(0, 1.0)])
    writer.write(row(0))
    writer.close()
    writer.close()
    writer.write(row(1))
    first, second = sorted(tmp_path.iterdir())
    assert steps(first) == [0]
    assert steps(second) == [1]
    assert not any(event.HasField("session_log") for event in events(second))


def test_spans_cover_what_was_written_since(tmp_path: Path) -> None:
    """Across files, and nothing else."""
    writer = _tfevents.EventWriter(str(tmp_path))
    assert writer.spans(writer.position()) == []
    writer.write(row(0))
    since = writer.position()
    writer.write(row(1))
    writer.close()
    writer.write(row(2))
    writer.write(row(3))
    spans = writer.spans(since)
    assert len(spans) == 2
    found = []
    for name, start, end in spans:
        found += _tfevents.read_span(str(tmp_path / name), start, end, who="test") or []
    rows = [event for event in found if _tfproto.summary_step(event, default=-1) >= 0]
    assert rows == [row(1), row(2), row(3)]


@pytest.mark.parametrize("tail", [b"", b"\7", b"\7\0\0\0\0\0\0\0", b"\xff" * 40])
def test_hiding_moves_nothing(tmp_path: Path, tail: bytes) -> None:
    """What is hidden is an empty event for readers, from the given byte on; a torn tail stays as it is."""
    writer = _tfevents.EventWriter(str(tmp_path))
    writer.write(words("a", "before", 1))
    _, start = writer.position()
    writer.write(row(2))
    writer.write(words("b", "after", 3))
    writer.write(row(4))
    writer.close()
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(tail)
    before = path.read_bytes()
    _tfevents.hide(str(path), start, None, _tfproto.holds_text, who="test")
    after = path.read_bytes()
    assert len(after) == len(before)
    assert after[:start] == before[:start]
    assert after.endswith(tail)
    path.write_bytes(after[: len(after) - len(tail)])
    _version, text, *others = records(path)
    assert others[::2] == [row(2), row(4)]
    assert [_tfproto.holds_text(event) for event in (text, others[1], _tfproto.shown(others[1]))] == [True, False, True]


def test_hiding_goes_as_far_as_it_is_told(tmp_path: Path) -> None:
    """The last byte is a limit, and a file that is gone has nothing to hide."""
    writer = _tfevents.EventWriter(str(tmp_path))
    writer.write(words("a", "first", 1))
    _, end = writer.position()
    writer.write(words("a", "second", 2))
    (path,) = tmp_path.iterdir()
    _tfevents.hide(str(path), 0, end, _tfproto.holds_text, who="test")
    assert steps(path) == [2]
    path.unlink()
    _tfevents.hide(str(path), 0, None, _tfproto.holds_text, who="test")
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_writer_closes_its_file(tmp_path: Path) -> None:
    """Without a warning, and without being asked."""
    writer = _tfevents.EventWriter(str(tmp_path))
    writer.write(row(0))
    (path,) = tmp_path.iterdir()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert str(path) in opened
    del writer
    gc.collect()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert str(path) not in opened


def test_the_small_file_comes_first_and_is_replaced(tmp_path: Path) -> None:
    """A second time there is only the second, and TensorBoard never sees the draft."""
    _tfevents.EventWriter(str(tmp_path)).write(row(0))
    for step in (1, 2):
        _tfevents.replace_first_file(str(tmp_path), "hparams", [row(step)], who="test")
        first, other = _tfevents.event_files(str(tmp_path))
        assert first == "events.out.tfevents.0000000000.hparams"
        assert records(tmp_path / first)[1:] == [row(step)]
        assert len(os.listdir(tmp_path)) == 2
        assert steps(tmp_path / other) == [0]


def test_only_event_files_count(tmp_path: Path) -> None:
    """A directory that is not there has none."""
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "x.tfevents.1").touch()
    assert _tfevents.event_files(str(tmp_path)) == ["x.tfevents.1"]
    assert _tfevents.event_files(str(tmp_path / "missing")) == []


def test_the_package_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever builds a writer is told which extra brings the checksum."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ImportError, match=r"EventWriter needs the package 'google_crc32c'.*\[tensorboard\]"):
        _tfevents.EventWriter(str(tmp_path))
