"""What ``backend(logger)`` is: the words of ``SummaryWriter``, for what the ten verbs have no word for."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from adapters.backends import _tfproto
from adapters.backends._picture import encode_png
from adapters.backends._tfvalues import not_numbers, showable, wall_time
from loggers.errors import MetricNameError, MetricValueError
from loggers.values import check_step, plain, raise_for

_PNG: Final = b"\x89PNG\r\n\x1a\n"


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...


class RunWriter:
    """Writes pictures, histograms, texts, numbers and any other event into a logger's run.

    Its methods are called as those of the ``SummaryWriter`` that PyTorch and tensorboardX have, so code that
    was written for one of these works. A step that is left out is the logger's current one. Nothing waits
    anywhere: what a method wrote is in the file.

    The writer does not know what a tag has already. TensorBoard's fast reader drops all newer points of a tag
    when an older step follows, so keep to increasing steps per tag, and to tags that the verbs do not use.

    It belongs to its logger: it writes where the logger writes, also after ``reattach``, and every method
    raises what a verb would, ``LoggerFinishedError`` after ``finish`` among them.

    Args:
        log_dir: the run.
        add_value: writes an encoded value at a step and a time.
        add_event: writes an encoded event.
    """

    def __init__(
        self,
        log_dir: str,
        *,
        add_value: Callable[[bytes, int | None, float | None], None],
        add_event: Callable[[bytes], None],
    ) -> None:
        #: The run's directory.
        self.log_dir = log_dir
        self._add_value = add_value
        self._add_event = add_event

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Write one number, as float32.

        Args:
            tag: where; what stands before the first ``/`` groups the charts.
            scalar_value: a number, or an array or tensor of one. NaN and the infinities are kept.
            global_step: the x axis.
            walltime: Unix seconds; now by default.

        Raises:
            MetricNameError: ``tag`` is no text, or empty.
            MetricValueError: no number.
            StepError: ``global_step`` is no non-negative integer.
            OSError: the disk refused it.
        """
        values, problems = plain({_tag(tag): scalar_value})
        raise_for({**problems, **not_numbers(values)}, where="add_scalar")
        self._write(_tfproto.scalar_value(tag, values[tag]), global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Write a piece of markdown, shown in the Text tab.

        Args:
            tag, global_step, walltime: as for :meth:`add_scalar`.
            text_string: the text.

        Raises:
            MetricNameError, StepError, OSError: as for :meth:`add_scalar`.
            MetricValueError: no text.
        """
        if not isinstance(text_string, str):
            raise MetricValueError(f"add_text: {tag!r} must be text, got {type(text_string).__name__}: pass str(…)")
        self._write(_tfproto.text_value(_tag(tag), text_string), global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Write a picture, shown in the Images tab.

        Args:
            tag, global_step, walltime: as for :meth:`add_scalar`.
            img_tensor: an array or tensor of bytes 0 .. 255 (uint8), or of floats 0 .. 1, with 1 (grey), 3 (RGB)
                or 4 (RGB and opacity) channels; or an encoded PNG, as bytes.
            dataformats: what the dimensions are, height, width and channels: ``"CHW"``, ``"HWC"`` or ``"HW"``.

        Raises:
            MetricNameError, StepError, OSError: as for :meth:`add_scalar`.
            MetricValueError: no picture.
        """
        if isinstance(img_tensor, (bytes, bytearray, memoryview)):
            png = bytes(img_tensor)
            if not png.startswith(_PNG) or len(png) < 24:
                raise MetricValueError(f"add_image: {tag!r} must be a PNG or an array, got the bytes {png[:8]!r}…")
            width, height = struct.unpack(">II", png[16:24])
        else:
            png, height, width = encode_png(_pixels(img_tensor, tag, dataformats))
        value = _tfproto.image_value(_tag(tag), png, height=height, width=width)
        self._write(value, global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: int | str | Sequence[float] = 30,
        walltime: float | None = None,
    ) -> None:
        """Write how values are distributed, shown in the Histograms and Distributions tabs.

        Args:
            tag, global_step, walltime: as for :meth:`add_scalar`.
            values: an array or tensor of numbers, of any shape.
            bins: their number, or their edges, or a word, as ``numpy.histogram`` takes it; ``"tensorflow"``,
                which is what ``SummaryWriter`` does by default, stands for 30 here.

        Raises:
            MetricNameError, StepError, OSError: as for :meth:`add_scalar`.
            MetricValueError: no numbers, or none that is finite. Some that are not are left out, with a warning.
        """
        numbers = _array(values)
        if numbers.dtype.kind not in "biuf" or not numbers.size:
            raise MetricValueError(
                f"add_histogram: {tag!r} must be an array of numbers, got {type(values).__name__} of shape "
                f"{numbers.shape} and dtype {numbers.dtype}"
            )
        numbers = numbers.ravel().astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            raise MetricValueError(f"add_histogram: none of the {numbers.size} values of {tag!r} is finite")
        if finite.size < numbers.size:
            bad, numbers = numbers.size - finite.size, finite
            message = f"add_histogram: {bad} values of {tag!r} are NaN or infinite, and left out of the histogram"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        counts, edges = np.histogram(numbers, 30 if isinstance(bins, str) and bins == "tensorflow" else bins)
        value = _tfproto.histogram_value(
            _tag(tag),
            edges[1:].tolist(),
            counts.tolist(),
            # where the first bucket begins and the last one ends
            least=float(edges[0]),
            most=float(edges[-1]),
            total=float(numbers.sum()),
            squares=float(np.dot(numbers, numbers)),
        )
        self._write(value, global_step, walltime)

    def add_event(self, event: bytes | _Message) -> None:
        """Write any other event: audio, meshes, curves, whatever a plugin of TensorBoard reads.

        Args:
            event: an ``Event`` of ``tensorboard.compat.proto.event_pb2``, or the bytes of one, with its own
                step and time.

        Raises:
            MetricValueError: no event.
            OSError: the disk refused it.
        """
        data = event if isinstance(event, bytes) else getattr(event, "SerializeToString", lambda: None)()
        if not isinstance(data, bytes):
            raise MetricValueError(f"add_event: expected an Event or its bytes, got {type(event).__name__}")
        self._add_event(data)

    def flush(self) -> None:
        """Do nothing: everything is in the file already."""

    def _write(self, value: bytes, step: int | None, seconds: float | None) -> None:
        self._add_value(value, None if step is None else showable(check_step(step)), wall_time(seconds))


def _tag(tag: Any) -> str:
    if not isinstance(tag, str) or not tag:
        raise MetricNameError(f"a tag must be non-empty text, got {tag!r:.60}")
    return tag


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor that may have a gradient, and lie on a device
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has none
            values = values.float()
    return np.asarray(values)


def _pixels(image: Any, tag: str, dataformats: str) -> NDArray[np.uint8]:
    """Return [height, width, channels]."""
    pixels = _array(image)
    axes = dataformats.upper()
    if axes == "HW" and pixels.ndim == 2:
        pixels = pixels[:, :, None]
    elif axes in ("CHW", "HWC") and pixels.ndim == 3:
        pixels = pixels.transpose([axes.index(axis) for axis in "HWC"])
    else:
        raise _no_picture(tag, pixels, f"it has {pixels.ndim} dimensions, and dataformats is {dataformats!r}")
    if pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise _no_picture(tag, pixels, f"as {dataformats!r} it has {pixels.shape[2]} channels")
    if pixels.dtype.kind == "f":
        if not np.isfinite(pixels).all():
            raise _no_picture(tag, pixels, "some of its values are NaN or infinite")
        pixels = (pixels.clip(0, 1) * 255).round()
    elif pixels.dtype.kind == "b":
        pixels = pixels * 255
    elif pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
        raise _no_picture(tag, pixels, "integers must be 0 .. 255")
    return pixels.astype(np.uint8)


def _no_picture(tag: str, pixels: NDArray[Any], why: str) -> MetricValueError:
    return MetricValueError(
        f"add_image: {tag!r} of shape {pixels.shape} and dtype {pixels.dtype} is no picture: {why}; pass an array "
        "[channels, height, width] with 1, 3 or 4 channels, or say what its dimensions are with dataformats"
    )
