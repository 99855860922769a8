"""One TensorBoard run while one process writes it: what has been written, and how to go on from there."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from adapters.backends import _charts, _markdown, _tfevents, _tfproto
from adapters.backends._picture import Picture
from adapters.backends._series import Series
from adapters.backends._tfstate import RunState
from loggers.errors import RunExistsError

_STATUS: Final = {
    "completed": _tfproto.SUCCESS,
    "early_stop": _tfproto.SUCCESS,
    "error": _tfproto.FAILURE,
    "interrupted": _tfproto.FAILURE,
}


class EventSink(Protocol):
    """Where a run's events go; :class:`~adapters.backends._tfevents.EventWriter` has the words."""

    def write(self, event: bytes) -> tuple[int, int]: ...

    def spans(self, since: tuple[int, int]) -> list[tuple[str, int, int]]: ...

    def close(self) -> None: ...


class Run:
    """The files of a run directory. Not safe to call from two threads at once.

    Args:
        logdir: the directory.
        writer: an open writer in it.
        state: what the run is like so far.
        ended: whether an older file may say how the run ended before.
        who: who asks, for messages.
    """

    def __init__(
        self, logdir: str, writer: EventSink, state: RunState, *, ended: bool, who: str
    ) -> None:
        self.writer = writer
        #: The highest step so far, -1 before the first.
        self.step = state.step
        self._logdir = logdir
        self._since = (0, 0)  # where in the writer's files the records of that step begin
        self._series = {context: self._new_series(context, step) for context, step in state.steps.items()}
        self._pictures = dict(state.pictures)  # tag -> last step
        self._params = dict(state.params)
        self._tags = dict(state.tags)
        self._charts = _charts.Charts(state.charts)
        self._layout_due = bool(state.charts)  # the file that had it may be gone
        self._started = state.started
        self._ended = ended
        self._who = who

    @classmethod
    def begin(cls, logdir: str, *, if_exists: Literal["refuse", "append", "replace"], who: str) -> Run:
        """Begin a run.

        Raises:
            RunExistsError: there is one, and ``if_exists`` is ``"refuse"``.
            OSError: the disk refused it.
        """
        there = _tfevents.event_files(logdir)
        if there and if_exists == "refuse":
            raise RunExistsError(
                f"{logdir} has event files already ({there[-1]}): call reattach(state) first to go on with "
                "that run, or give each run its own directory, or pass if_exists='append' or 'replace'"
            )
        if if_exists == "replace":
            for name in there:
                os.unlink(os.path.join(logdir, name))
        now = time.time()
        # the record drops what lies behind its step, which is nothing when appending; it is written all
        # the same, because one of TensorBoard's readers takes the first of them for a mere beginning
        first = _tfproto.LAST_STEP if there and if_exists == "append" else 0
        writer = _tfevents.EventWriter(logdir, ahead=[_tfproto.start_event(first, now)], who=who)
        writer.open()
        return cls(logdir, writer, RunState(logdir=logdir, started=now), ended=bool(first), who=who)

    @classmethod
    def resume(cls, logdir: str, state: RunState, *, who: str) -> Run:
        """Go on with a run, cut back to ``state``.

        Raises:
            OSError: the disk refused it.
        """
        old = _tfevents.process_files(logdir)
        writer = _tfevents.EventWriter(logdir, ahead=state.restart(time.time(), who), who=who)
        writer.open()
        ended = True
        try:
            ended = not state.hide_rest(old, who)
        except OSError as error:  # no reason not to go on
            warnings.warn(
                f"{who} cannot take old texts and lines out of {logdir} ({error}), so TensorBoard's readers may show "
                "some twice, or some that were cut: make the event files there writable and reattach again",
                RuntimeWarning,
                stacklevel=3,
            )
        run = cls(logdir, writer, state, ended=ended, who=who)
        run._write_hparams()
        return run

    def state(self) -> RunState:
        """Return what another process needs to go on from here."""
        return RunState(
            logdir=self._logdir,
            step=self.step,
            steps={context: series.step for context, series in self._series.items()},
            pictures=dict(self._pictures),
            tail=self.writer.spans(self._since),
            params=dict(self._params),
            tags=dict(self._tags),
            charts=self._charts.contexts(),
            started=self._started,
        )

    def add_row(self, context: str, row: dict[str, Any], step: int, wall_time: float) -> list[str]:
        """Write a row of numbers, less what is there already. The row belongs to this object then.

        Returns:
            The tags for which the step is too old; they were left out.

        Raises:
            TypeError: a name is no text; nothing was written.
            struct.error: a value is no number; nothing was written.
            OSError: the disk refused it; nothing was written.
        """
        series = self._series.get(context)
        if series is None:
            series = self._series[context] = self._new_series(context)
        late: list[str] = []
        if step <= series.step:
            row, late = series.news(row, step)
            late = [f"{context}/{name}" for name in late]
        if row:
            encoder = series.encoder(row)
            at = self.writer.write(encoder.event(row.values(), step, wall_time))
            if step > self.step:
                self.step = step
                if step:  # what comes before the first step has step 0, and is kept or cut with it
                    self._since = at
            series.wrote(row, step, encoder)
        return late

    def _new_series(self, context: str, floor: int = -1) -> Series:
        return Series(context, floor, on_names=self._add_names)

    def _add_names(self, context: str, names: Iterable[str]) -> None:
        """Write the layout of the Custom Scalars tab again, if these names bring a chart."""
        # readers go by the last layout, and a running server reads on in this file, but never again in a small one
        self._layout_due |= self._charts.add(context, names)
        if self._layout_due:
            self._write(_tfproto.layout_value(_charts.TITLE, self._charts.layout()), 0)
            self._layout_due = False

    def add_params(self, params: Mapping[str, _tfproto.HParam]) -> None:
        """Write all params so far, if there is anything new in these."""
        merged = {**self._params, **params}
        if merged != self._params:
            self._params = merged
            self._write_hparams()
            self._write(_tfproto.text_value("params", _markdown.params_table(merged)), 0)

    def add_tags(self, tags: Mapping[str, Any]) -> None:
        """Write all tags so far, if there is anything new in these."""
        merged = {**self._tags, **tags}
        if merged != self._tags:
            self._tags = merged
            self._write(_tfproto.text_value("tags", _markdown.tags_list(merged)), 0)

    def add_text(self, tag: str, markdown: str) -> None:
        """Write a text at the current step."""
        self.add_value(_tfproto.text_value(tag, markdown), None, None)

    def add_value(self, value: bytes, step: int | None, wall_time: float | None) -> None:
        """Write an encoded value, by default at the current step and now, whatever its tag has already."""
        at = max(self.step, 0) if step is None else step
        self.writer.write(_tfproto.summary_event(value, at, time.time() if wall_time is None else wall_time))

    def add_event(self, event: bytes) -> None:
        """Write an encoded event, with its own step and time."""
        self.writer.write(event)

    def add_picture(self, tag: str, picture: Picture, markdown: str, step: int | None) -> list[str]:
        """Write a picture and the text that says the same, by default at the current step.

        Returns:
            The tag, if the step is too old for it; nothing was written then.
        """
        at = max(self.step, 0) if step is None else step
        if at < self._pictures.get(tag, -1):
            return [tag]
        self._write(_tfproto.image_value(tag, picture.png, height=picture.height, width=picture.width), at)
        # TensorBoard knows one kind of data per tag
        self._write(_tfproto.text_value(f"{tag}/table", markdown), at)
        self._pictures[tag] = at
        return []

    def finish(self, status: str) -> None:
        """Write how the run ended, and close the file."""
        # whoever starts TensorBoard later reads the small file first; one that is running, this record
        self._write_hparams(_STATUS[status])
        self._write(_tfproto.session_end_value(_STATUS[status], time.time()), 0)
        self.writer.close()

    def _write(self, value: bytes, step: int) -> None:
        self.writer.write(_tfproto.summary_event(value, step, time.time()))

    def _write_hparams(self, status: int | None = None) -> None:
        # TensorBoard goes by the first record of a kind that it meets. So these have a file of their own, which
        # comes first and is replaced. That a run is running is only said where something else might be read
        # otherwise: a server that has met it would never look for the end.
        now = time.time()
        values = [_tfproto.session_start_value(self._params, self._started)]
        if status is not None or self._ended:
            values.append(_tfproto.session_end_value(status or _tfproto.RUNNING, now))
        self._write_first(values)

    def _write_first(self, values: Sequence[bytes]) -> None:
        now = time.time()
        events = [_tfproto.summary_event(value, 0, now) for value in values]
        _tfevents.replace_first_file(self._logdir, "hparams", events, who=self._who)
