"""What a TensorBoard run hands to the process that goes on with it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from adapters.backends import _tfevents, _tfproto
from loggers.contract import JSON
from loggers.errors import RecordError


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run at one moment, in terms that JSON can hold."""

    logdir: str
    #: The highest step so far, -1 before the first.
    step: int = -1
    #: The last step of each context.
    steps: dict[str, int] = field(default_factory=dict)
    #: The last step of each confusion matrix, by its tag.
    pictures: dict[str, int] = field(default_factory=dict)
    #: Where the records of the highest step are: file name, first byte, last byte.
    tail: list[tuple[str, int, int]] = field(default_factory=list)
    params: dict[str, _tfproto.HParam] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    #: The contexts of each metric that has a chart of its own.
    charts: dict[str, list[str]] = field(default_factory=dict)
    #: When the run began, in Unix seconds.
    started: float = 0.0

    def plain(self) -> dict[str, JSON]:
        """Return JSON data for a checkpoint."""
        return {
            "logdir": self.logdir,
            "run_id": os.path.basename(self.logdir),
            "step": self.step,
            "steps": {**self.steps},
            "pictures": {**self.pictures},
            "tail": [[*span] for span in self.tail],
            "params": {**self.params},
            "tags": {**self.tags},
            "charts": {name: [*contexts] for name, contexts in self.charts.items()},
            "started": self.started,
        }

    @classmethod
    def of(cls, state: Any, logdir: str, who: str) -> RunState:
        """Return the state that a checkpoint holds, if it belongs to the run in ``logdir``.

        Raises:
            RecordError: it does not, or is no such state.
        """
        try:
            run = cls(
                logdir=str(state["logdir"]),
                step=int(state["step"]),
                steps={str(context): int(step) for context, step in state["steps"].items()},
                pictures={str(tag): int(step) for tag, step in state["pictures"].items()},
                tail=[(str(name), int(start), int(end)) for name, start, end in state["tail"]],
                params=dict(state["params"]),
                tags=dict(state["tags"]),
                # not in the checkpoints of versions before there were charts
                charts={str(name): [*map(str, contexts)] for name, contexts in state.get("charts", {}).items()},
                started=float(state["started"]),
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise RecordError(
                f"{who} on {logdir} got a state that its logger_state() never returns "
                f"({type(error).__name__}: {error}): {state!r:.200}; pass the one from the checkpoint"
            ) from None
        if os.path.realpath(run.logdir) != os.path.realpath(logdir):
            raise RecordError(
                f"{who} on {logdir} cannot go on with the run in {run.logdir}, whose curves would be split "
                f"across two runs: build {who}({run.logdir!r}) for this record"
            )
        return run

    def restart(self, wall_time: float, who: str) -> list[bytes]:
        """Return the events with which the next file begins, so that readers see the run as it was.

        TensorBoard's word for this drops whole steps. But of the last step some lines came before the
        checkpoint and some, a validation perhaps, after it. So that step is dropped as well, and
        the former lines are written again.
        """
        kept = self._last_step(who)
        if kept is None:  # cleaned up or damaged: the best that is left is not to touch that step
            return [_tfproto.start_event(self.step + 1, wall_time)]
        return [_tfproto.start_event(max(self.step, 0), wall_time), *kept]

    def hide_rest(self, names: Iterable[str], who: str) -> bool:
        """Hide what was written after this state: readers do not drop it, or not all of them, or not at once.

        TensorBoard's fast reader does not know :meth:`restart`. It drops a tag's points when older steps are
        written again, so those of a tag that is not written again would stay for good. The accumulator does
        not drop texts where it drops scalars and pictures, and no reader drops what has step 0, as params do,
        or what lies behind the newest context: a validation at step 7 that came after this state, if training
        was at step 10 by then and the state's last validation is that of step 4. Nor has the run ended any
        more.

        Texts of the last step are in the new file, so their old ones go, too.

        Args:
            names: the files from before that one.
            who: who asks, for the message if a package is missing.

        Returns:
            Whether all of it is hidden: ``False`` if the files of this state's last step are damaged or gone.

        Raises:
            OSError: an old file cannot be written.
        """
        whole = self._last_step(who) is not None
        if whole:
            for name, start, end in self.tail:
                _tfevents.hide(os.path.join(self.logdir, name), start, end, self._is_kept_text, who=who)
        # with no tail nothing had been written
        cut, size = (self.tail[-1][0], self.tail[-1][2]) if self.tail else ("", 0)
        for name in names:
            path = os.path.join(self.logdir, name)
            if name == cut:
                _tfevents.hide(path, size, None, self._is_rest, who=who)
            elif name > cut:
                _tfevents.hide(path, 0, None, _LaterFile(self, whole=whole), who=who)
        return whole

    def _last_step(self, who: str) -> list[bytes] | None:
        """Return the events of the last step, or ``None`` if they are not all there."""
        kept = []
        for name, start, end in self.tail:
            events = _tfevents.read_span(os.path.join(self.logdir, name), start, end, who=who)
            if events is None:
                return None
            # an earlier resume from this state has hidden some
            kept += [event for event in map(_tfproto.shown, events) if self._is_kept(event)]
        return kept

    def _is_kept(self, event: bytes) -> bool:
        return _tfproto.summary_step(event, default=-1) >= max(self.step, 0) and not _tfproto.holds_end(event)

    def _is_kept_text(self, event: bytes) -> bool:
        return (self._is_kept(event) and _tfproto.holds_text(event)) or _tfproto.holds_end(event)

    @staticmethod
    def _is_rest(event: bytes) -> bool:
        """Return whether to hide an event that was written after this state."""
        return _tfproto.summary_step(event, default=-1) >= 0

    def last_step(self, tag: str, default: int) -> int:
        """Return the step up to which the run in this state has what is called ``tag``.

        Args:
            tag: of a scalar, a picture, or the table that belongs to a picture.
            default: for a tag that this state does not know.
        """
        for picture in (tag, tag.removesuffix("/table")):
            if picture in self.pictures:
                return self.pictures[picture]
        # both contexts and names may have slashes
        return max((step for context, step in self.steps.items() if tag.startswith(f"{context}/")), default=default)


class _LaterFile:
    """What to hide in a file that a process after a state began; asked one event at a time, from its beginning.

    That process may have resumed an even older state, and so have dropped what had led to this one. Then its
    own lines stand in, as far as this state reaches.

    Args:
        state: the state.
        whole: whether the lines of its last step are written again.
    """

    def __init__(self, state: RunState, *, whole: bool) -> None:
        self._state = state
        self._reach = max(state.step - whole, -1)  # the last step for which lines may stand in
        self._unknown = state.step  # what this state does not know may stand in, until we know that it does not

    def __call__(self, event: bytes) -> bool:
        """Return whether to hide the event."""
        state = self._state
        if _tfproto.start_step(event, default=-1) >= max(state.step, 0):
            self._unknown = -1
        step = _tfproto.summary_step(event, default=-1)
        if step < 0 or step > self._reach:
            return step > self._reach
        text = _tfproto.holds_text(event)
        if step == state.step or (text and step == 0):
            return text
        tag = _tfproto.first_tag(event)
        return tag is not None and step > state.last_step(tag, self._unknown)


def json_tag(value: Any) -> Any:
    """Return a tag's value as strict JSON has it: NaN and the infinities become text."""
    if isinstance(value, dict):
        return {name: json_tag(item) for name, item in value.items()}
    if isinstance(value, list):
        return [json_tag(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
