"""The few protocol-buffer messages of an event file, encoded by hand.

A row of scalars is the hot path of the TensorBoard backend. Building it from generated message
classes costs ten times what the bytes themselves do, and those classes would have to be imported
first. So each message here is a function from values to bytes. Field numbers are those of
``event.proto``, ``summary.proto``, ``tensor.proto`` and the hparams plugin's ``plugin_data.proto``;
the tests parse every one of them back with TensorBoard's own classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

#: What the HParams table can show in a cell.
HParam: TypeAlias = "bool | int | float | str"

#: The largest step that an event can carry (int64).
LAST_STEP: Final = 2**63 - 1

# hparams status codes
SUCCESS: Final = 1
FAILURE: Final = 2
RUNNING: Final = 3

_double = struct.Struct("<d").pack
_float = struct.Struct("<f").pack
# Event.wall_time (field 1, double), then the key of Event.step (field 2, varint)
_stamp = struct.Struct("<BdB").pack
_SUMMARY: Final = b"\x2a"  # Event.summary, field 5
_SESSION_LOG: Final = b"\x3a"  # Event.session_log, field 7
_NO_FIELD: Final = b"\x7a"  # field 15, of the same kind, which Event does not have: every reader passes over it
_METADATA: Final = b"\x4a"  # Value.metadata, field 9: here it comes right behind the tag, in values with a tensor
_SESSION_END: Final = b"_hparams_/session_end_info"
# TensorProto of floats, of which there are none: the plugin data in the metadata is what counts
_NULL_TENSOR: Final = b"\x08\x01\x12\x02\x12\x00"


def varint(number: int) -> bytes:
    """Encode an int64 the way protocol buffers do: 7 bits a byte, lowest first, negatives as 2**64 - n."""
    if 0 <= number < 0x20_0000:  # nearly every one; each row has its step
        if number < 0x80:
            return bytes((number,))
        if number < 0x4000:
            return bytes((number & 127 | 128, number >> 7))
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def text_bytes(text: str) -> bytes:
    """Encode text as UTF-8. A lone surrogate, which UTF-8 cannot spell, is written as its escape."""
    return text.encode("utf-8", "backslashreplace")


def _sized(field: int, content: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + varint(value)


def _double_field(field: int, value: float) -> bytes:
    return bytes((field << 3 | 1,)) + _double(value)


def float32(value: float) -> float:
    """Return ``value`` as a float that float32 can hold: what is too large becomes an infinity."""
    try:
        _float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


# --- events -------------------------------------------------------------------------------------------


def version_event(wall_time: float) -> bytes:
    """Return the event that opens every event file."""
    return _double_field(1, wall_time) + _sized(3, b"brain.Event:2")


def start_event(step: int, wall_time: float) -> bytes:
    """Return ``SessionLog.START``: a reader drops what it has read for ``step`` and later ones."""
    return _stamp(9, wall_time, 16) + varint(step) + _sized(7, b"\x08\x01")


def summary_event(value: bytes, step: int, wall_time: float) -> bytes:
    """Return an event that holds one encoded ``Summary.Value``."""
    return _stamp(9, wall_time, 16) + varint(step) + _sized(5, _sized(1, value))


def summary_step(event: bytes, *, default: int) -> int:
    """Return the step of a summary event that this module encoded, or ``default`` for another event."""
    at = _behind_step(event)
    if not at or event[at : at + 1] != _SUMMARY:
        return default
    step, _ = _read_varint(event, 10)
    return step if step <= LAST_STEP else step - 2**64


def start_step(event: bytes, *, default: int) -> int:
    """Return the step of a :func:`start_event`, or ``default`` for another event."""
    at = _behind_step(event)
    return _read_varint(event, 10)[0] if at and event[at : at + 1] == _SESSION_LOG else default


def holds_text(event: bytes) -> bool:
    """Return whether this is a summary of this module with a tensor: a text, or a word for HParams."""
    _, end = _tag_span(event)
    return end > 0 and event[end : end + 1] == _METADATA


def holds_end(event: bytes) -> bool:
    """Return whether this is how a run ended, in an event of this module."""
    start, end = _tag_span(event)
    return event[start:end] == _SESSION_END


def first_tag(event: bytes) -> str | None:
    """Return the tag of a summary's first value, or ``None`` for another event."""
    start, end = _tag_span(event)
    return event[start:end].decode("utf-8", "replace") if end else None


def _tag_span(event: bytes) -> tuple[int, int]:
    """Return where the tag of a summary's first value begins and ends, or zeros if there is none."""
    at = _behind_step(event)
    if not at or event[at : at + 1] != _SUMMARY:
        return 0, 0
    size, at = _read_varint(event, at + 1)
    for _ in ("Summary.value", "Value.tag"):
        if event[at : at + 1] != b"\x0a":  # another program's
            return 0, 0
        size, at = _read_varint(event, at + 1)
    return at, at + size


def hidden(event: bytes) -> bytes:
    """Return a summary event so that no reader sees the summary. Only one byte is another one."""
    return _with_key(event, _SUMMARY, _NO_FIELD)


def shown(event: bytes) -> bytes:
    """Return the event that :func:`hidden` was given; any other event as it is."""
    return _with_key(event, _NO_FIELD, _SUMMARY)


def _with_key(event: bytes, old: bytes, new: bytes) -> bytes:
    at = _behind_step(event)
    return event[:at] + new + event[at + 1 :] if at and event[at : at + 1] == old else event


def _behind_step(event: bytes) -> int:
    """Return where the key of an event's content is, or 0 if time and step are not as this module has them."""
    if len(event) < 11 or event[0] != 9 or event[9] != 16:
        return 0
    return _read_varint(event, 10)[1]


def _read_varint(event: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and where it ends."""
    number = shift = 0
    while event[at] > 127:
        number |= (event[at] & 127) << shift
        shift += 7
        at += 1
    return number | event[at] << shift, at + 1


class ScalarRow:
    """An encoder of rows that all have the same tags: what does not change is encoded once.

    ::

        Event.wall_time | Event.step | Event.summary { (tag, float32) (tag, float32) … }

    A row is one call of ``struct``. All bytes of the step but the first are the same for 128 steps, so
    they count among what does not change.

    Args:
        tags: [N] tags, in the order in which the values will come.
    """

    __slots__ = ("_arguments", "_block", "_format", "_more", "_pack", "_packs", "_summary")

    def __init__(self, tags: Iterable[str]) -> None:
        prefixes = []
        for tag in tags:
            start = _sized(1, text_bytes(tag)) + b"\x15"  # Value.tag, and the key of Value.simple_value
            prefixes.append(b"\x0a" + varint(len(start) + 4) + start)  # Summary.value
        self._format = "".join(f"{len(prefix)}sf" for prefix in prefixes)
        self._summary = _SUMMARY + varint(struct.calcsize("<" + self._format))
        #: [9, time, 16, first byte of the step, what is between that and the tags, tag, value, tag, value …]
        self._arguments: list[Any] = [9, 0.0, 16, 0, b"", *(part for prefix in prefixes for part in (prefix, 0.0))]
        self._packs: dict[int, Callable[..., bytes]] = {}  # by the length of the fifth argument
        self._enter(0)

    def _enter(self, step: int) -> None:
        """Prepare for a step and for all that differ from it in their lowest 7 bits only."""
        self._block: int | None = None  # Ctrl-C may come before the last line here: then the next row starts over
        others = varint(step)[1:]
        between = others + self._summary
        pack = self._packs.get(len(between))
        if pack is None:
            pack = self._packs[len(between)] = struct.Struct(f"<BdBB{len(between)}s{self._format}").pack
        self._arguments[4] = between
        self._more, self._pack = 128 if others else 0, pack
        self._block = step >> 7

    def event(self, values: Iterable[float], step: int, wall_time: float) -> bytes:
        """Return the event.

        Args:
            values: [N] numbers. Each becomes a float32; what is too large for one, an infinity.
            step: any int64.
            wall_time: Unix seconds.

        Raises:
            struct.error: a value is no number.
        """
        if step >> 7 != self._block:
            self._enter(step)
        arguments = self._arguments.copy()
        arguments[1] = wall_time
        arguments[3] = step & 127 | self._more
        arguments[6::2] = values
        try:
            return self._pack(*arguments)
        except OverflowError:
            arguments[6::2] = map(float32, arguments[6::2])
            return self._pack(*arguments)


# --- values of a summary --------------------------------------------------------------------------------


def _plugin_value(tag: str, plugin: bytes, content: bytes, tensor: bytes) -> bytes:
    # SummaryMetadata: plugin_data = 1 {name = 1, content = 2}, data_class = 4 (2 is "tensor")
    metadata = _sized(1, _sized(1, plugin) + (_sized(2, content) if content else b"")) + b"\x20\x02"
    return _sized(1, text_bytes(tag)) + _sized(9, metadata) + _sized(8, tensor)


def text_value(tag: str, markdown: str) -> bytes:
    """Return one entry of the Text tab: a string tensor without dimensions."""
    return _plugin_value(tag, b"text", b"", b"\x08\x07\x12\x00" + _sized(8, text_bytes(markdown)))


def layout_value(title: str, charts: Mapping[str, Iterable[str]]) -> bytes:
    """Return what the Custom Scalars tab shows: one category of charts with one curve per matching tag and run.

    Args:
        title: of the category.
        charts: title -> regular expressions, each matched against the beginning of tags.
    """
    category = _sized(1, text_bytes(title))
    for name, patterns in charts.items():
        curves = b"".join(_sized(1, text_bytes(pattern)) for pattern in patterns)
        category += _sized(2, _sized(1, text_bytes(name)) + _sized(2, curves))  # Chart: title, multiline
    tensor = b"\x08\x07\x12\x00" + _sized(8, _sized(2, category))
    return _plugin_value("custom_scalars__config__", b"custom_scalars", b"", tensor)


def histogram_value(
    tag: str,
    limits: Sequence[float],
    counts: Sequence[float],
    *,
    least: float,
    most: float,
    total: float,
    squares: float,
) -> bytes:
    """Return one entry of the Histograms and Distributions tabs.

    Args:
        tag: where.
        limits: [N] upper limits of the buckets, increasing.
        counts: [N] how many values each bucket has.
        least, most: of the values. The first bucket begins at the one, the last ends at the other.
        total, squares: the sums of the values and of their squares.
    """
    histogram = _double_field(1, least) + _double_field(2, most) + _double_field(3, sum(counts))
    histogram += _double_field(4, total) + _double_field(5, squares)
    histogram += b"".join(_sized(field, struct.pack(f"<{len(of)}d", *of)) for field, of in ((6, limits), (7, counts)))
    return _sized(1, text_bytes(tag)) + _sized(5, histogram)


def scalar_value(tag: str, value: float) -> bytes:
    """Return one number; what is too large for a float32 is an infinity."""
    return _sized(1, text_bytes(tag)) + b"\x15" + _float(float32(value))


def image_value(tag: str, png: bytes, *, height: int, width: int) -> bytes:
    """Return one entry of the Images tab. ``height`` and ``width`` are in pixels."""
    image = _number(1, height) + _number(2, width) + _number(3, 3) + _sized(4, png)  # 3: RGB
    return _sized(1, text_bytes(tag)) + _sized(4, image)


def session_start_value(params: Mapping[str, HParam], started: float) -> bytes:
    """Return the row of the HParams table that belongs to this run.

    There is no group name on purpose: TensorBoard then names the row after the run, which is unique,
    where two runs with equal group names would be averaged into one row.
    """
    info = b"".join(_sized(1, _sized(1, text_bytes(k)) + _sized(2, _hparam(v))) for k, v in params.items())
    info += _double_field(5, started)
    return _plugin_value("_hparams_/session_start_info", b"hparams", _sized(3, info), _NULL_TENSOR)


def session_end_value(status: int, ended: float) -> bytes:
    """Return the status of the run's row in the HParams table."""
    info = _number(1, status) + _double_field(2, ended)
    return _plugin_value(_SESSION_END.decode(), b"hparams", _sized(4, info), _NULL_TENSOR)


def _hparam(value: HParam) -> bytes:
    if isinstance(value, bool):
        return _number(4, value)
    if isinstance(value, (int, float)):
        return _double_field(2, value)
    return _sized(3, text_bytes(value))
