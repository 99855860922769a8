"""Lifecycle events for whoever coordinates jobs: small, bounded, and never worth a training.

::

    workload.phase        {"phase": "training", "completed": 0, "total": 10000}         at the first verb
    workload.progress     {"completed": 400, "total": 10000, "metrics": {"loss": 0.31}}  about every 30 s
    workload.milestone    {"milestone": "evaluation", "context": "validate", "completed": 400, "metrics": {…}}
    workload.artifact     {"artifact": "checkpoint", "path": "…", "step": 400}
    workload.phase        {"phase": "completed", "completed": 10000, "total": 10000}    at finish

What is not in an event is not sent at all: an event has at most 32 metrics, of which each is a finite number under a
key of at most 96 characters. The whole run belongs in another logger beside this one.
"""

from __future__ import annotations

import math
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from loggers.errors import LoggerError, LoggerFinishedError
from loggers.values import check_context, check_epoch, check_status, check_step, plain, raise_for

#: Metrics in one event.
MOST_METRICS: Final = 32
#: Characters of a metric's key.
LONGEST_KEY: Final = 96
#: What stands first in an event, so that it is never among what there is no room for.
_FIRST: Final = ("loss", "lr")

Publish = Callable[[str, dict[str, Any]], object]


class EventsLogger:
    """Tells a coordinator how far training is.

    Train lines become progress, one in ``every`` seconds; lines of any other context a milestone each; a value that
    is logged as ``"checkpoint"`` (a mapping with ``path`` and ``step``) an artifact; begin and end a phase each.
    Params, tags, other values and confusion matrices are for other loggers. Text and values that are not finite are
    left out.

    A publisher that raises is called again with the next event; one warning says so, :meth:`logger_info` counts.

    After a ``fork`` the child's copy publishes nothing, and neither does a pickled copy of a logger that has begun.

    Args:
        publish: called as ``publish(name, payload)``, in the caller's thread; the payload is plain JSON data.
        total: steps of the whole training, if known.
        every: seconds between two progress events.
        zero_based: steps are indices, as Koochak's: the line of step 0 is the first completed step.
        strict: let a publisher's errors out, and with them end training.
        clock: seconds; only differences count.

    Raises:
        LoggerError: ``publish`` cannot be called, ``total`` is no integer, or ``every`` is no time.
    """

    #: A call in the caller's thread, and the publisher is an object of the caller's: it cannot leave the process.
    placement: Final = "inline"

    def __init__(
        self,
        publish: Publish,
        *,
        total: int | None = None,
        every: float = 30.0,
        zero_based: bool = False,
        strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not callable(publish):
            raise LoggerError(f"publish must be a function of an event's name and its payload, got {publish!r:.80}")
        if not isinstance(every, (int, float)) or not every >= 0:
            raise LoggerError(f"every must be seconds, 0 or more, got {every!r}")
        self._publish = publish
        try:
            # NumPy's integers are no JSON data
            self._total = None if total is None else operator.index(total)
        except TypeError:
            raise LoggerError(f"total must be a number of steps, or None, got {total!r:.80}") from None
        self._every = every
        self._zero_based = zero_based
        self._strict = strict
        self._clock = clock
        self._due: float | None = None  # when the next progress may be published
        self._completed = 0
        self._pid: int | None = None
        self._finished = False
        self._published = self._failed = 0

    # --- the verbs ------------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Publish progress if it is time, or the milestone of an evaluation.

        Raises:
            StepError, MetricNameError: the step, epoch or context is none; nothing is published.
            MetricValueError: names the values that are nothing a logger takes, after the others were published.
        """
        if not self._may_publish():
            return
        step, epoch, context = check_step(step), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        self._begin()
        self._completed = max(self._completed, step + self._zero_based)
        where = {} if epoch is None else {"epoch": epoch}
        if context != "train":
            milestone = {"milestone": "evaluation", "context": context[:LONGEST_KEY]}
            self._say("milestone", {**milestone, **self._progress(), **where, "metrics": _bounded(values)})
        elif self._due is None or self._clock() >= self._due:
            self._due = self._clock() + self._every
            self._say("progress", {**self._progress(), **where, "metrics": _bounded(values)})
        if problems:
            raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Publish that training begins, and nothing of the params."""
        if self._may_publish():
            self._begin()

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Publish nothing: tags are for other loggers."""
        self._may_publish()

    def log_other(self, key: str, value: Any) -> None:
        """Publish a checkpoint as an artifact; nothing else."""
        if self._may_publish() and key == "checkpoint" and isinstance(value, Mapping) and "path" in value:
            self._begin()
            step = _bounded(plain({"step": value.get("step")})[0]).get("step")
            artifact = {"artifact": "checkpoint", "path": str(value["path"]), "step": step}
            self._say("artifact", artifact)

    def log_confusion(
        self,
        matrix: Sequence[Sequence[float]],
        labels: Sequence[str],
        *,
        epoch: int | None = None,
        step: int | None = None,
        context: str | None = None,
        name: str = "confusion",
    ) -> None:
        """Publish nothing: matrices are for other loggers."""
        self._may_publish()

    def finish(self, status: str) -> None:
        """Publish how training ended.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: here and from every later verb, if the run has finished before.
        """
        check_status(status)
        if self._may_publish():
            self._say("phase", {"phase": status, **self._progress()})
        self._finished = True

    def run_id(self) -> str | None:
        """Return ``None``: the coordinator knows the job."""
        return None

    def run_url(self) -> str | None:
        """Return ``None``: there is no page to look at."""
        return None

    def logger_state(self) -> None:
        """Return ``None``: what was told was told."""

    def logger_info(self) -> dict[str, Any]:
        """Return how many events were published, and how many could not be."""
        return {"logger": "EventsLogger", "published": self._published, "failed": self._failed}

    # --- private --------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a logger in use belongs to no process."""
        return {**self.__dict__, **({} if self._pid is None else {"_pid": -1})}

    def _may_publish(self) -> bool:
        if self._finished:
            raise LoggerFinishedError("this EventsLogger is finished and publishes nothing any more: build another one")
        return self._pid in (None, os.getpid())

    def _begin(self) -> None:
        if self._pid is None:
            self._say("phase", {"phase": "training", **self._progress()})

    def _progress(self) -> dict[str, Any]:
        return {"completed": self._completed, "total": self._total}

    def _say(self, kind: str, payload: dict[str, Any]) -> None:
        self._pid = os.getpid()
        try:
            self._publish(f"workload.{kind}", payload)
        except Exception as error:
            self._failed += 1
            if self._strict:
                raise
            if self._failed == 1:
                warnings.warn(
                    f"EventsLogger could not publish workload.{kind} ({type(error).__name__}: {error}); training goes "
                    "on, the next event is tried again, and logger_info()['failed'] counts any more",
                    RuntimeWarning,
                    stacklevel=4,
                )
        else:
            self._published += 1


def _bounded(values: Mapping[str, Any]) -> dict[str, float | int]:
    """Return as many finite numbers as an event may have: loss and lr, then the rest as they come."""
    fitting = {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value) and len(name) <= LONGEST_KEY
    }
    names: list[str] = [name for name in _FIRST if name in fitting]
    names += [name for name in fitting if name not in _FIRST]
    return {name: fitting[name] for name in names[:MOST_METRICS]}
