"""``backend(logger)``: pictures, histograms and more in a run, read with TensorBoard's accumulator."""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import TensorBoardLogger
from adapters.backends._tfwriter import RunWriter
from loggers import backend
from loggers.errors import MetricNameError, MetricValueError, RunExistsError, StepError
from tests.lazy import Lazy
from tests.test_adapters.tensorboard_files import Files

tb = Lazy("tensorboard.compat.proto.event_pb2", "tensorboard.compat.proto.summary_pb2")
Image = Lazy("PIL.Image")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return where a run shall be."""
    return tmp_path / "board" / "run"


@pytest.fixture
def writer(run: Path) -> RunWriter:
    """Return the writer of a new run."""
    found: RunWriter = backend(TensorBoardLogger(run))
    return found


def pixels(files: Files, tag: str) -> np.ndarray:
    """Return the only picture of a tag as [height, width, channels]."""
    (image,) = files.images(tag)
    decoded = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert (image.height, image.width) == decoded.shape[:2]
    return decoded if decoded.ndim == 3 else decoded[:, :, None]


def test_its_words_are_those_of_summary_writer(run: Path, writer: RunWriter) -> None:
    """By position and by keyword, everything lands in the run."""
    writer.add_scalar("mine", 0.5, 3, 2.0)
    writer.add_scalar(tag="mine", scalar_value=np.float32(0.25), global_step=4, walltime=3.0)
    writer.add_text("words", "*a*", 3)
    writer.add_image("dot", np.zeros((3, 4, 5)), 3)
    writer.add_histogram("weights", np.arange(10), 3)
    writer.flush()
    files = Files(run)

    assert writer.log_dir == str(run)
    assert files.scalars("mine") == [(3, 0.5), (4, 0.25)]
    assert files.wall_times("mine") == [2.0, 3.0]
    assert files.texts("words") == [(3, "*a*")]
    assert [image.step for image in files.images("dot")] == [3]
    assert [point.step for point in files.histograms("weights")] == [3]


def test_without_a_step_it_is_the_current_one(run: Path) -> None:
    """That of the logger's last line."""
    logger = TensorBoardLogger(run)
    backend(logger).add_scalar("before", 1.0)
    logger.log_metrics({"loss": 1.0}, step=7)
    backend(logger).add_scalar("after", 1.0)

    assert (Files(run).scalars("before"), Files(run).scalars("after")) == ([(0, 1.0)], [(7, 1.0)])


def test_asking_for_it_begins_nothing(run: Path) -> None:
    """So it can be asked for before the run is resumed, and writes wherever its logger writes."""
    first = TensorBoardLogger(run)
    first.log_metrics({"loss": 1.0}, step=1)
    state = first.logger_state()
    backend(first).add_scalar("mine", 9.0, 2)
    logger = TensorBoardLogger(run)
    writer = backend(logger)
    with pytest.raises(RunExistsError, match="reattach"):
        writer.add_scalar("mine", 1.0, 1)
    logger.reattach(state)
    writer.add_scalar("mine", 2.0, 2)

    assert Files(run).scalars("mine") == [(2, 2.0)]


@pytest.mark.parametrize(
    ("image", "dataformats", "expected"),
    [
        (np.full((3, 2, 5), 7, np.uint8), "CHW", np.full((2, 5, 3), 7)),
        (np.full((2, 5, 4), 7, np.int64), "HWC", np.full((2, 5, 4), 7)),
        (np.full((1, 2, 5), 0.5), "CHW", np.full((2, 5, 1), 128)),
        (np.full((2, 5), 2.0, np.float32), "HW", np.full((2, 5, 1), 255)),
        (np.ones((2, 5), bool), "hw", np.full((2, 5, 1), 255)),
    ],
)
def test_a_picture_is_an_array(
    run: Path, writer: RunWriter, image: Any, dataformats: str, expected: Any
) -> None:
    """Of bytes 0 .. 255, of floats 0 .. 1, or of yes and no; what the dimensions are can be said."""
    writer.add_image("a", image, 1, dataformats=dataformats)

    assert np.array_equal(pixels(Files(run), "a"), expected)


def test_a_picture_may_be_a_png(run: Path, writer: RunWriter) -> None:
    """As it is; its size is in it."""
    file = io.BytesIO()
    Image.new("RGB", (5, 2), (1, 2, 3)).save(file, "PNG")
    writer.add_image("a", file.getvalue(), 1)

    assert pixels(Files(run), "a").tolist() == [[[1, 2, 3]] * 5] * 2


@pytest.mark.parametrize(
    ("image", "dataformats", "words"),
    [
        (b"GIF89a", "CHW", r"must be a PNG or an array, got the bytes b'GIF89a'"),
        (np.zeros((2, 5)), "CHW", r"'a' of shape \(2, 5\) and dtype float64.*2 dimensions.*'CHW'.*dataformats"),
        (np.zeros((2, 5, 3)), "CHW", r"as 'CHW' it has 2 channels"),
        (np.zeros((3, 0, 5)), "CHW", r"is no picture"),
        (np.full((3, 2, 5), math.nan), "CHW", r"NaN or infinite"),
        (np.full((3, 2, 5), 256), "CHW", r"integers must be 0 .. 255"),
        (np.full((3, 2, 5), "x"), "CHW", r"integers must be 0 .. 255"),
    ],
)
def test_what_is_no_picture_is_named(
    run: Path, writer: RunWriter, image: Any, dataformats: str, words: str
) -> None:
    """With its shape and the remedy, and nothing is written."""
    with pytest.raises(MetricValueError, match=words):
        writer.add_image("a", image, 1, dataformats=dataformats)
    assert not run.exists()


@pytest.mark.parametrize("bins", [10, "tensorflow", "auto", [0.0, 0.5, 1.0]])
def test_a_histogram_counts_every_value(run: Path, writer: RunWriter, bins: Any) -> None:
    """Its buckets are NumPy's."""
    values = np.random.default_rng(1).random((7, 11))
    writer.add_histogram("w", values, 2, bins)
    ((found),) = (point.histogram_value for point in Files(run).histograms("w"))
    counts, edges = np.histogram(values, 30 if bins == "tensorflow" else bins)

    assert [*found.bucket] == counts.tolist()
    assert [found.min, *found.bucket_limit] == edges.tolist()
    assert (found.num, found.max) == (77, edges[-1])
    assert found.sum == pytest.approx(values.sum())
    assert found.sum_squares == pytest.approx((values**2).sum())


def test_a_histogram_leaves_out_what_has_no_place(run: Path, writer: RunWriter) -> None:
    """And says how many values that are; with no others there is no histogram."""
    with pytest.warns(RuntimeWarning, match="2 values of 'w' are NaN or infinite"):
        writer.add_histogram("w", [1.0, math.nan, 2.0, -math.inf], 0)
    with pytest.raises(MetricValueError, match="none of the 1 values of 'w' is finite"):
        writer.add_histogram("w", [math.nan], 1)

    assert [(point.step, point.histogram_value.num) for point in Files(run).histograms("w")] == [(0, 2.0)]


@pytest.mark.parametrize("values", [[], "abc", [1j], [None]])
def test_what_is_no_histogram_is_named(run: Path, writer: RunWriter, values: Any) -> None:
    """With its shape and dtype, and nothing is written."""
    with pytest.raises(MetricValueError, match="'w' must be an array of numbers, got"):
        writer.add_histogram("w", values, 1)
    assert not run.exists()


def test_any_other_event_can_be_written(run: Path, writer: RunWriter) -> None:
    """As a message or as its bytes, with its own step and time."""
    event = tb.Event(step=4, wall_time=2.0, summary=tb.Summary(value=[tb.Summary.Value(tag="a", simple_value=0.5)]))
    writer.add_event(event)
    event.step = 5
    writer.add_event(event.SerializeToString())
    with pytest.raises(MetricValueError, match="expected an Event or its bytes, got dict"):
        writer.add_event({})  # type: ignore[arg-type]

    assert Files(run).scalars("a") == [(4, 0.5), (5, 0.5)]
    assert Files(run).wall_times("a") == [2.0, 2.0]


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (MetricValueError, lambda writer: writer.add_scalar("a", "high", 1)),
        (MetricValueError, lambda writer: writer.add_scalar("a", 1j, 1)),
        (MetricValueError, lambda writer: writer.add_scalar("a", 1.0, 1, "noon")),
        (MetricValueError, lambda writer: writer.add_text("a", 1.0, 1)),
        (MetricNameError, lambda writer: writer.add_scalar("", 1.0, 1)),
        (MetricNameError, lambda writer: writer.add_text(None, "a", 1)),
        (StepError, lambda writer: writer.add_scalar("a", 1.0, -1)),
        (StepError, lambda writer: writer.add_text("a", "b", 2**63)),
    ],
)
def test_bad_arguments_write_nothing(
    run: Path, writer: RunWriter, error: type[Exception], call: Any
) -> None:
    """They raise what the verbs raise."""
    with pytest.raises(error):
        call(writer)
    assert not run.exists()


if importlib.util.find_spec("torch") is not None:

    def test_tensors_are_arrays(run: Path, writer: RunWriter) -> None:
        """Also those with a gradient, and those of a type that NumPy does not have."""
        import torch

        weights = torch.arange(4.0, requires_grad=True)
        writer.add_histogram("w", weights, 0)
        writer.add_histogram("w", weights.to(torch.bfloat16), 1)
        writer.add_scalar("a", weights.sum(), 0)
        writer.add_image("i", torch.full((3, 2, 5), 7, dtype=torch.uint8), 0)

        assert [point.histogram_value.sum for point in Files(run).histograms("w")] == [6.0, 6.0]
        assert Files(run).scalars("a") == [(0, 6.0)]
        assert pixels(Files(run), "i").tolist() == [[[7] * 3] * 5] * 2
