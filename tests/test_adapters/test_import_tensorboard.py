"""``plattli import`` of TensorBoard event files, whoever wrote them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters import TensorBoardLogger
from adapters.importers.finding import find_sources
from adapters.importers.importing import import_run
from adapters.importers.items import Options
from loggers import names, replay
from tests.lazy import Lazy
from tests.test_adapters.imported import about, as_float32, imported, points, write_run

tb = Lazy(
    *(f"tensorboard.compat.proto.{name}_pb2" for name in ("event", "summary", "tensor")),
    "tensorboard.plugins.hparams.summary_v2",
    "tensorboard.summary",
    "tensorboard.summary.writer.event_file_writer",
    "tensorboard.util.tensor_util",
)
tensorboardX = Lazy("tensorboardX")


@pytest.mark.parametrize(
    ("end", "held"),
    [("completed", "completed"), ("early_stop", "completed"), ("error", "error"), ("interrupted", "error")],
)
def test_a_round_trip_keeps_what_float32_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, held: str
) -> None:
    """run -> TensorBoardLogger -> run: every number as float32, times in full, texts, params and tags."""
    run = write_run(tmp_path / "run", end=end)
    replay(run, TensorBoardLogger(tmp_path / "tb"))
    (said,) = imported(tmp_path / "tb", tmp_path / "again", capsys=capsys)

    expected, found = points(run), points(tmp_path / "again")
    del expected["validate/confusion"]  # a picture and a text there
    table = found.pop("validate/confusion/table")
    assert table[0][1].startswith("epoch 1\n\n| true")
    times = {name: expected.pop(name) for name in list(expected) if name.endswith("/walltime")}
    assert {name: found.pop(name) for name in times} == times
    assert found == as_float32(expected)
    status, params, tags = about(run)
    assert (status, held) == (end, said["status"])
    assert about(tmp_path / "again") == (held, params, tags)
    said["left_out"].pop("chart layouts", None)
    assert said["left_out"] == {"images": 1}


def scalar(tag: str, value: float, **more: Any) -> tb.Summary:
    return tb.Summary(value=[tb.Summary.Value(tag=tag, simple_value=value, **more)])


def write(folder: Path, *events: tb.Event, name: str = "a") -> Path:
    """Write events with TensorBoard's own writer, one file that sorts by its name."""
    writer = tb.EventFileWriter(str(folder), filename_suffix=f".{name}")
    for event in events:
        writer.add_event(event)
    writer.close()
    (file,) = folder.glob(f"*tfevents*.{name}")
    return file.rename(folder / f"events.out.tfevents.{ord(name[0])}.{name}")


def at(step: int, summary: tb.Summary, *, time: float | None = None) -> tb.Event:
    return tb.Event(step=step, wall_time=1.7e9 + step if time is None else time, summary=summary)


def start(step: int) -> tb.Event:
    return tb.Event(step=step, wall_time=1.7e9, session_log=tb.SessionLog(status=tb.SessionLog.START))


def test_one_event_per_scalar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As torch's SummaryWriter and tensorboardX have it: the scalars of a step are lines of one time each."""
    events = [at(step, scalar(tag, step / 4)) for step in range(3) for tag in ("loss", "lr", "val/acc", "a/b/c", "/x")]
    write(tmp_path / "tb", *events, at(2, scalar("loss", 9.0), time=1.8e9))
    (said,) = imported(tmp_path / "tb", tmp_path / "run", capsys=capsys)

    series = [(step, step / 4) for step in range(3)]
    times = [(step, 1.7e9 + step) for step in range(3)]
    assert {names.decode(name): found for name, found in points(tmp_path / "run").items()} == {
        "train/loss": [*series[:2], (2, 9.0)],
        "train/lr": series,
        "train//x": series,
        "train/walltime": [*times[:2], (2, 1.8e9)],
        "val/acc": series,
        "val/walltime": times,
        "a/b/c": series,
        "a/walltime": times,
    }
    assert (said["lines"], said["values"], said["status"]) == (10, 16, "interrupted")


def test_scalars_as_tensors(tmp_path: Path) -> None:
    """What ``tensorboard.summary.Writer`` and TensorFlow 2 write, and what only some loaders show: exact there."""
    writer = tb.Writer(str(tmp_path / "tb"))
    for step in range(3):
        writer.add_scalar("train/loss", 0.1 * step, step, wall_time=1.7e9 + step)
    writer.close()
    scalars = tb.SummaryMetadata(plugin_data=tb.SummaryMetadata.PluginData(plugin_name="scalars"))

    def value(tag: str, number: Any, metadata: Any = None) -> tb.Summary:
        tensor = tb.make_tensor_proto(number)
        return tb.Summary(value=[tb.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])

    write(
        tmp_path / "tb",
        at(0, value("train/double", np.float64(0.1), scalars)),
        at(1, value("train/double", np.float64(0.2))),  # the first metadata counts
        at(0, value("train/int", np.int64(2**60 + 1), scalars)),
        at(0, value("train/half", np.float16(0.5))),
        at(0, value("train/flag", np.array([True]))),
        name="z",
    )
    imported(tmp_path / "tb", tmp_path / "run")

    found = points(tmp_path / "run", without=("walltime",))
    assert found == {
        "train/loss": [(step, float(np.float32(0.1 * step))) for step in range(3)],
        "train/double": [(0, 0.1), (1, 0.2)],
        "train/int": [(0, 2**60 + 1)],
        "train/half": [(0, 0.5)],
        "train/flag": [(0, 1)],
    }


def test_texts_params_and_what_a_run_has_no_place_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts are values; hparams are params, the first ones; histograms and pictures are counted."""
    text = tb.SummaryMetadata(plugin_data=tb.SummaryMetadata.PluginData(plugin_name="text"))
    histograms = tb.SummaryMetadata(plugin_data=tb.SummaryMetadata.PluginData(plugin_name="histograms"))

    def strings(tag: str, value: Any) -> tb.Summary:
        tensor = tb.make_tensor_proto(value)
        return tb.Summary(value=[tb.Summary.Value(tag=tag, tensor=tensor, metadata=text)])

    write(
        tmp_path / "tb",
        at(0, tb.hparams_pb({"lr": 0.5, "layers": 3, "opt": "adam", "deep": True}, trial_id="t")),
        at(0, tb.hparams_pb({"lr": 9.0}, trial_id="t")),
        at(4, strings("notes", "*ünï*")),
        at(5, strings("notes", ["a", "b"])),
        at(5, strings("other/report", "text of any kind")),
        at(5, tb.Summary(value=[tb.Summary.Value(tag="h", histo=tb.HistogramProto(min=0, max=1))])),
        at(5, tb.Summary(value=[tb.Summary.Value(tag="h2", tensor=tb.make_tensor_proto(np.ones((2, 3))),
                                           metadata=histograms)])),
        at(5, tb.Summary(value=[tb.Summary.Value(tag="v", tensor=tb.make_tensor_proto(np.ones(3)))])),
        at(5, tb.Summary(value=[tb.Summary.Value(tag="i", image=tb.Summary.Image(encoded_image_string=b"x"))])),
        at(5, tb.Summary(value=[tb.Summary.Value(tag="odd", tensor=tb.TensorProto(dtype=21))])),
        tb.Event(step=0, wall_time=1.0, graph_def=b"graph"),
        at(-1, scalar("loss", 1.0)),
    )  # fmt: skip
    (said,) = imported(tmp_path / "tb", tmp_path / "run", capsys=capsys)

    assert points(tmp_path / "run", without=("walltime",)) == {
        "train/notes": [(4, "*ünï*"), (5, ["a", "b"])],
        "other/report": [(5, "text of any kind")],
    }
    assert about(tmp_path / "run")[1] == {"lr": 0.5, "layers": 3, "opt": "adam", "deep": True}
    assert said["left_out"] == {
        "histograms": 2, "tensors": 2, "images": 1, "graph_def events": 1,
        "lines whose step is no integer from 0 on": 1,
    }  # fmt: skip


def test_a_restart_that_says_where_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SessionLog.START takes away every later step of the run, in tags that do not come again, too."""
    old = [at(s, scalar(tag, 1.0)) for s in range(8) for tag in ("train/loss", "validate/loss")]
    new = [at(s, scalar("train/loss", 2.0)) for s in range(5, 7)]
    write(tmp_path / "tb", start(0), *old, name="a")
    write(tmp_path / "tb", start(5), *new, name="b")
    (said,) = imported(tmp_path / "tb", tmp_path / "run", capsys=capsys)

    found = points(tmp_path / "run")
    assert found["train/loss"] == [(s, 1.0) for s in range(5)] + [(5, 2.0), (6, 2.0)]
    assert found["validate/loss"] == [(s, 1.0) for s in range(5)]
    assert found["train/walltime"] == [(s, 1.7e9 + s) for s in range(7)]
    assert (said["restarts"], said["replaced"]) == (1, 6)


def test_a_restart_that_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new file that goes on from an earlier step is one; a second writer with tags of its own is none."""
    write(tmp_path / "tb", *[at(s, scalar("train/loss", 1.0)) for s in range(8)], name="a")
    write(tmp_path / "tb", *[at(s, scalar("gpu/load", 1.0)) for s in (3, 4, 5, 4)], name="b")
    write(tmp_path / "tb", *[at(s, scalar("train/loss", 2.0)) for s in range(5, 7)], name="c")
    (said,) = imported(tmp_path / "tb", tmp_path / "run", capsys=capsys)

    found = points(tmp_path / "run")
    assert found["train/loss"] == [(s, 1.0) for s in range(5)] + [(5, 2.0), (6, 2.0)]
    assert found["gpu/load"] == [(3, 1.0), (4, 1.0)]  # its step 5 was behind the restart, too
    assert (said["restarts"], said["replaced"]) == (1, 4)


def test_our_own_logger_that_was_resumed(tmp_path: Path) -> None:
    """The run that comes back is that of the reattached logger."""
    first = TensorBoardLogger(tmp_path / "tb")
    first.log_tags("tagged")
    for step in range(8):
        if step == 5:
            state = first.logger_state()
        first.log_metrics({"loss": float(step)}, step=step, epoch=0)
    first.log_other("gone", "text")
    second = TensorBoardLogger(tmp_path / "tb")
    second.reattach(state)
    second.log_params({"lr": 0.5})
    for step in range(5, 7):
        second.log_metrics({"loss": float(step + 100)}, step=step, epoch=1)
    second.finish("completed")
    imported(tmp_path / "tb", tmp_path / "run")

    found = points(tmp_path / "run", without=("walltime",))
    assert found == {
        "train/loss": [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 105), (6, 106)],
        "train/epoch": [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1)],
    }
    assert about(tmp_path / "run") == ("completed", {"lr": 0.5}, {"tagged": True})


def test_runs_of_a_logdir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each to a directory of its name; the one in the logdir itself to RUN. A file alone is a run, too."""
    for name in (".", "fit/a", "fit/b"):
        write(tmp_path / "tb" / name, at(1, scalar("loss", len(name))))
    said = imported(tmp_path / "tb", tmp_path / "runs", capsys=capsys)

    assert [result["run"] for result in said] == [str(tmp_path / "runs" / name) for name in (".", "fit/a", "fit/b")]
    assert [points(Path(result["run"]))["train/loss"] for result in said] == [[(1, 1)], [(1, 5)], [(1, 5)]]
    imported(next((tmp_path / "tb/fit/a").iterdir()), tmp_path / "one")
    assert points(tmp_path / "one")["train/loss"] == [(1, 5)]


def record_ends(data: bytearray) -> list[int]:
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 16 + struct.unpack_from("<Q", data, ends[-1])[0])
    return ends[1:]


def test_damage_is_tolerated_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged record costs itself, a damaged length the rest of its file, and a torn end the record there."""
    file = write(tmp_path / "tb", *[at(s, scalar("loss", 1.0)) for s in range(6)])
    data = bytearray(file.read_bytes())
    ends = record_ends(data)
    data[ends[2] - 6] ^= 1  # of the record of step 1, behind the version
    file.write_bytes(data[:-3])
    write(tmp_path / "tb", at(6, scalar("loss", 2.0)), name="b")
    broken = write(tmp_path / "tb", at(7, scalar("loss", 3.0)), at(8, scalar("loss", 3.0)), name="c")
    data = bytearray(broken.read_bytes())
    behind = record_ends(data)[1]
    data[behind + 1] ^= 1
    broken.write_bytes(data)
    (said,) = imported(tmp_path / "tb", tmp_path / "run", capsys=capsys)

    assert points(tmp_path / "run")["train/loss"] == [(0, 1), (2, 1), (3, 1), (4, 1), (6, 2), (7, 3)]
    assert said["left_out"] == {"damaged records": 1, "damaged files": 1}
    assert [note.partition(", which")[0] for note in said["notes"]] == [
        f"events.out.tfevents.97.a has a damaged record at byte {ends[1]}",
        "events.out.tfevents.97.a ends inside a record",
        f"events.out.tfevents.99.c is damaged at byte {behind}: the {len(data) - behind} bytes from there on are "
        "left out",
    ]


TAGS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda tag: tag.rpartition("/")[2] not in ("epoch", "walltime")
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(TAGS, st.floats(width=32)), min_size=1, max_size=5, unique_by=lambda pair: pair[0]),
    st.integers(0, 2**63 - 1),
)
def test_any_tag_and_value(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, float]], step: int
) -> None:
    """By one writer's events, at any step."""
    folder = tmp_path_factory.mktemp("any")
    write(folder / "tb", *[at(step, scalar(tag, value), time=1.0) for tag, value in pairs])
    (source,) = find_sources(folder / "tb")
    report = import_run(source, folder / "run", Options())

    expected = {}
    for tag, value in pairs:
        before, _, after = tag.partition("/")
        expected[tag if before and after else f"train/{tag}"] = [(step, "NaN" if value != value else value)]
    assert report is not None
    assert report.left_out == {}
    found = {names.decode(name): series for name, series in points(folder / "run").items()}
    assert {name: series for name, series in found.items() if not name.endswith("/walltime")} == expected


def test_files_of_tensorboardx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its scalars, texts, histograms and hparams; several scalars of one chart are runs below, and so are hparams."""
    with tensorboardX.SummaryWriter(str(tmp_path / "tb"), filename_suffix=".a") as writer:
        for step in range(6):
            writer.add_scalar("Loss/train", step / 4, step, walltime=1.7e9 + step)
            writer.add_scalars("both", {"a": step, "b": -step}, step)
        writer.add_text("notes", "text", 3)
        writer.add_histogram("weights", np.arange(3), 3)
        writer.add_hparams({"lr": 0.5}, {"final": 0.25}, name="trial")
    with tensorboardX.SummaryWriter(str(tmp_path / "tb"), purge_step=4, filename_suffix=".b") as writer:
        writer.add_scalar("Loss/train", 9.0, 4)
    for name in ("a", "b"):  # both were begun within a second
        (file,) = (tmp_path / "tb").glob(f"*.{name}")
        file.rename(file.with_name(f"events.out.tfevents.{name}"))
    said = imported(tmp_path / "tb", tmp_path / "run", capsys=capsys)

    found = points(tmp_path / "run", without=("walltime",))
    assert found == {
        "Loss/train": [(0, 0), (1, 0.25), (2, 0.5), (3, 0.75), (4, 9)],
        "notes/text_summary": [(3, "text")],
    }
    assert points(tmp_path / "run")["Loss/walltime"][:4] == [(step, 1.7e9 + step) for step in range(4)]
    by_name = {Path(result["run"]).name: result for result in said}
    assert (by_name["run"]["left_out"], by_name["run"]["replaced"]) == ({"histograms": 1}, 2)
    below = {name: points(Path(result["run"]), without=("walltime",)) for name, result in by_name.items()}
    assert below["a"] == {"train/both": [(step, step) for step in range(6)]}
    assert below["trial"] == {"train/final": [(0, 0.25)]}
    assert about(tmp_path / "run" / "trial")[1] == {"lr": 0.5}
