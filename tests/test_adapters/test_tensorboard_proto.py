"""The hand-made protocol buffers, parsed back with TensorBoard's own classes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.backends import _tfproto
from tests.lazy import Lazy

tb = Lazy(*(f"tensorboard.compat.proto.{name}_pb2" for name in ("event", "summary", "types")))
custom_scalars = Lazy("tensorboard.plugins.custom_scalar.metadata", "tensorboard.plugins.custom_scalar.layout_pb2")
hparams = Lazy("tensorboard.plugins.hparams.metadata")
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)))
FLOATS = st.floats() | st.integers(-(2**63), 2**64 - 1)


@given(INT64)
@example(127)
@example(128)
@example(-1)
def test_varints_are_what_a_parser_expects(number: int) -> None:
    """Every int64 comes back as an event's step."""
    assert tb.Event.FromString(b"\x10" + _tfproto.varint(number)).step == number


@given(st.dictionaries(TEXT, FLOATS), INT64, st.floats(allow_nan=False))
def test_a_row_has_all_its_values(row: dict[str, float], step: int, wall_time: float) -> None:
    """Tags, float32 values, step and time, for any row, twice with one encoder."""
    encoder = _tfproto.ScalarRow(row)
    for values in (list(row.values()), [0.0] * len(row)):
        event = tb.Event.FromString(encoder.event(values, step, wall_time))
        assert (event.step, event.wall_time) == (step, wall_time)
        assert [value.tag for value in event.summary.value] == list(row)
        with np.errstate(over="ignore"):  # too large for float32 is an infinity, here as there
            expected = np.array(values, np.float64).astype(np.float32)
        np.testing.assert_array_equal([value.simple_value for value in event.summary.value], expected)


@given(st.lists(st.one_of(INT64, st.integers(-300, 40_000)), min_size=1))
@example([127, 128, 129, 127, 16_383, 16_384, -1, 0, 2**63 - 1, 2**63 - 2])
def test_steps_may_come_in_any_order(steps: list[int]) -> None:
    """Whatever of the step an encoder keeps from one row to the next, each row has its own."""
    encoder = _tfproto.ScalarRow(("a", "b"))
    for step in steps:
        event = encoder.event((1.0, 2.0), step, 3.5)
        expected = [tb.Summary.Value(tag="a", simple_value=1.0), tb.Summary.Value(tag="b", simple_value=2.0)]
        assert tb.Event.FromString(event) == tb.Event(wall_time=3.5, step=step, summary=tb.Summary(value=expected))


@pytest.mark.parametrize("value", ["1", None, [1.0], 1j])
def test_a_row_takes_numbers_only(value: object) -> None:
    """Anything else is noticed before there are any bytes."""
    with pytest.raises(struct.error):
        _tfproto.ScalarRow(("a", "b")).event((1.0, value), 0, 0.0)  # type: ignore[arg-type]


def test_a_lone_surrogate_is_spelled_out() -> None:
    """UTF-8 has no word for it, and a tag that is no UTF-8 would cost the reader the file."""
    event = tb.Event.FromString(_tfproto.ScalarRow(("a\udc80",)).event((1.0,), 0, 0.0))
    assert event.summary.value[0].tag == "a\\udc80"


def test_the_opening_events() -> None:
    """The version and the start of a session."""
    assert tb.Event.FromString(_tfproto.version_event(2.5)) == tb.Event(wall_time=2.5, file_version="brain.Event:2")
    started = tb.Event(wall_time=2.5, step=7, session_log=tb.SessionLog(status=tb.SessionLog.START))
    assert tb.Event.FromString(_tfproto.start_event(7, 2.5)) == started


@given(TEXT, TEXT, INT64)
def test_text_is_a_string_without_dimensions(tag: str, markdown: str, step: int) -> None:
    """The text plugin's tensor."""
    event = tb.Event.FromString(_tfproto.summary_event(_tfproto.text_value(tag, markdown), step, 1.0))
    (value,) = event.summary.value
    assert (event.step, event.wall_time, value.tag) == (step, 1.0, tag)
    assert value.metadata.plugin_data.plugin_name == "text"
    assert value.tensor.dtype == tb.DT_STRING
    assert value.tensor.HasField("tensor_shape")
    assert [text.decode() for text in value.tensor.string_val] == [markdown]


@given(st.binary(), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_an_image_has_its_size(png: bytes, height: int, width: int) -> None:
    """Height, width, RGB and the bytes."""
    value = _tfproto.image_value("t", png, height=height, width=width)
    (parsed,) = tb.Event.FromString(_tfproto.summary_event(value, 0, 0.0)).summary.value
    image = parsed.image
    assert (image.height, image.width, image.colorspace) == (height, width, 3)
    assert image.encoded_image_string == png


@given(TEXT, st.dictionaries(TEXT, st.lists(TEXT)))
def test_a_layout_has_its_charts(title: str, charts: dict[str, list[str]]) -> None:
    """One category, a chart per title, a curve per pattern; it is where the Custom Scalars tab looks for it."""
    value = _tfproto.layout_value(title, charts)
    (parsed,) = tb.Event.FromString(_tfproto.summary_event(value, 0, 0.0)).summary.value
    assert parsed.tag == custom_scalars.CONFIG_SUMMARY_TAG
    assert parsed.metadata.plugin_data.plugin_name == custom_scalars.PLUGIN_NAME
    assert parsed.tensor.dtype == tb.DT_STRING
    (category,) = custom_scalars.Layout.FromString(parsed.tensor.string_val[0]).category
    assert category.title == title
    assert {chart.title: list(chart.multiline.tag) for chart in category.chart} == charts


@given(st.lists(st.tuples(st.floats(), st.integers(0, 2**40))), st.floats(allow_nan=False))
def test_a_histogram_has_its_buckets(buckets: list[tuple[float, int]], number: float) -> None:
    """Limits and counts, least, most and sums."""
    limits, counts = [limit for limit, _ in buckets], [count for _, count in buckets]
    value = _tfproto.histogram_value("t", limits, counts, least=number, most=1.0, total=2.0, squares=3.0)
    (parsed,) = tb.Event.FromString(_tfproto.summary_event(value, 0, 0.0)).summary.value
    histo = parsed.histo
    assert (histo.min, histo.max, histo.sum, histo.sum_squares) == (number, 1.0, 2.0, 3.0)
    assert histo.num == sum(counts)
    assert repr([*histo.bucket_limit]) == repr(limits)
    assert [*histo.bucket] == counts


@given(st.dictionaries(TEXT, st.booleans() | st.floats(allow_nan=False) | TEXT | st.integers(-9, 9)))
def test_hparams_keep_their_types(params: dict[str, _tfproto.HParam]) -> None:
    """Bools are bools, numbers doubles, text text, and there is no group that could be shared."""
    value = _tfproto.session_start_value(params, 3.5)
    (parsed,) = tb.Event.FromString(_tfproto.summary_event(value, 0, 0.0)).summary.value
    assert parsed.tag == hparams.SESSION_START_INFO_TAG
    assert parsed.tensor == hparams.NULL_TENSOR
    info = hparams.parse_session_start_info_plugin_data(parsed.metadata.plugin_data.content)
    got = {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}
    assert got == params
    assert {name: isinstance(value, bool) for name, value in got.items()} == {
        name: isinstance(value, bool) for name, value in params.items()
    }
    assert (info.group_name, info.start_time_secs) == ("", 3.5)


def test_the_end_of_a_session() -> None:
    """Status and time."""
    value = _tfproto.session_end_value(_tfproto.FAILURE, 4.5)
    (parsed,) = tb.Event.FromString(_tfproto.summary_event(value, 0, 0.0)).summary.value
    assert parsed.tag == hparams.SESSION_END_INFO_TAG
    info = hparams.parse_session_end_info_plugin_data(parsed.metadata.plugin_data.content)
    assert (info.status, info.end_time_secs) == (2, 4.5)


@given(INT64)
def test_the_step_of_a_summary_can_be_read(step: int) -> None:
    """Of rows and of single values; other events have none."""
    row = _tfproto.ScalarRow(("a",)).event((1.0,), step, 1.0)
    text = _tfproto.summary_event(_tfproto.text_value("a", "b"), step, 1.0)
    start = _tfproto.start_event(step, 1.0)
    steps = [_tfproto.summary_step(event, default=-7) for event in (row, text, start)]
    assert steps == [step, step, -7]
    assert _tfproto.summary_step(_tfproto.version_event(1.0), default=-7) == -7


@given(TEXT, TEXT, INT64)
def test_a_hidden_text_is_an_event_without_content(tag: str, markdown: str, step: int) -> None:
    """TensorBoard's classes see time and step only; the bytes are as many, and come back whole."""
    event = _tfproto.summary_event(_tfproto.text_value(tag, markdown), step, 1.5)
    hidden = _tfproto.hidden(event)
    parsed = tb.Event.FromString(hidden)
    assert (parsed.WhichOneof("what"), parsed.step, parsed.wall_time) == (None, step, 1.5)
    assert sum(old != new for old, new in zip(event, hidden, strict=True)) == 1
    assert _tfproto.shown(hidden) == event
    assert _tfproto.shown(event) == event
    assert _tfproto.hidden(hidden) == hidden
    assert (_tfproto.holds_text(event), _tfproto.holds_text(hidden)) == (True, False)


@given(TEXT, INT64)
def test_numbers_and_pictures_are_no_text(tag: str, step: int) -> None:
    """Neither ours nor what TensorBoard's classes encode, nor events of another kind."""
    image = _tfproto.image_value(tag, b"JJJ", height=74, width=74)
    ours = [_tfproto.ScalarRow((tag,)).event((1.0,), step, 1.0), _tfproto.summary_event(image, step, 1.0)]
    ours += [_tfproto.start_event(step, 1.0), _tfproto.version_event(1.0), b""]
    assert [event for event in ours if _tfproto.holds_text(event)] == []
    summaries = [tb.Summary(), tb.Summary(value=[tb.Summary.Value()]), tb.Summary(value=[tb.Summary.Value(tag=tag)])]
    summaries += [tb.Summary(value=[tb.Summary.Value(simple_value=1.0)] * 2)]
    theirs = [tb.Event(wall_time=1.0, step=step, summary=summary) for summary in summaries]
    assert [event for event in theirs if _tfproto.holds_text(event.SerializeToString())] == []
    assert _tfproto.holds_text(_tfproto.summary_event(_tfproto.session_end_value(1, 1.0), step, 1.0))
