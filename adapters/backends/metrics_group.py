"""A metrics group: a live log beside dense Zarr arrays of the same, in one folder.

::

    metrics/
        zarr.json                 a Zarr v3 group; its attributes are the catalog
        metrics.jsonl             the live log: whatever a verb wrote is here when it returns
        series/train%2Floss       one value per point, float64
        steps/train%2Floss        their steps, int64
        wall_time/train%2Floss    their times, RFC 3339 strings

``docs/metrics-group.md`` has every detail. Densifying brings the arrays up to date with the log: when the run is
finished, when :meth:`MetricsGroupLogger.densify` is called, and every so many lines if that is wanted. A reader
(:func:`open_group`) sees the same at any time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from adapters._require import check
from adapters.backends._group_catalog import NoGroupError
from adapters.backends._group_events import LAST_STEP, NO_STEP, Clock, CorruptGroupError, event_line, scalars_line
from adapters.backends._group_names import safe_name, series_key
from adapters.backends._group_reader import MetricsGroup, RunRecord, Series, open_group
from adapters.backends._group_run import WHO, GroupRun, GroupState, densify, holds_run, stored_run_id
from adapters.backends._group_values import FLOATS, NO_PROBLEMS, NOTHING, PointValues, confusion_event, storable
from loggers.contract import JSON
from loggers.errors import LoggerError, LoggerFinishedError, MetricNameError, RunLockedError
from loggers.values import (
    check_context,
    check_epoch,
    check_status,
    check_step,
    plain_params,
    plain_tags,
    plain_value,
    raise_for,
)

__all__ = [
    "NO_STEP",
    "CorruptGroupError",
    "MetricsGroup",
    "MetricsGroupLogger",
    "NoGroupError",
    "RunRecord",
    "Series",
    "densify",
    "open_group",
    "safe_name",
    "series_key",
]


class MetricsGroupLogger:
    """The ten verbs, written to a metrics group.

    A metric is the series ``<context>/<name>``, its epoch ``<context>/epoch``. A line is one ``write`` to the log, and
    survives ``kill -9`` when the verb returns. Values are float64: integers beyond 2**53 are rounded in the arrays,
    not in the log. Text is no metric. The same step of a metric again replaces its value, in its place.

    Building the object does no work, so it can be pickled and sent to where it shall run. The first verb makes the
    folder. The pickle of a logger that has begun leads to its run and holds nothing of it. After ``fork`` the child's
    copy does nothing.

    Args:
        path: the group's folder.
        if_exists: what to do when it holds a run and :meth:`reattach` is not called: ``"refuse"`` raises at the first
            verb, ``"append"`` goes on behind it, ``"replace"`` deletes the run and nothing else of the group.
        densify_every: bring the arrays up to date after so many lines, within the verb that writes the last of them.
            ``None`` leaves it to :meth:`densify` and :meth:`finish`.

    Raises:
        LoggerError: ``if_exists`` or ``densify_every`` is something else.
    """

    #: A few microseconds and local files: the fan-out calls this logger in turn.
    placement: ClassVar[str] = "inline"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        if_exists: Literal["refuse", "append", "replace"] = "refuse",
        densify_every: int | None = None,
    ) -> None:
        if if_exists not in ("refuse", "append", "replace"):
            raise LoggerError(f"if_exists must be 'refuse', 'append' or 'replace', got {if_exists!r}")
        if densify_every is not None and (type(densify_every) is not int or densify_every < 1):
            raise LoggerError(f"densify_every must be a number of lines or None, got {densify_every!r}")
        self._path = os.path.abspath(os.fsdecode(path))
        self._if_exists: Literal["refuse", "append", "replace"] = if_exists
        self._densify_every = densify_every
        self._id = secrets.token_hex(8)
        self._run: GroupRun | None = None
        self._finished = False
        self._lock = threading.RLock()
        self._clock = Clock()
        self._points = PointValues()
        self._known = self._points.known
        self._place: tuple[int | None, int | None] = None, None  # step and epoch of the last line
        self._status: str | None = None
        self._warned: set[str] = set()

    def __reduce__(self) -> tuple[Callable[..., MetricsGroupLogger], tuple[str]]:
        # "replace" in the copy of a logger that has begun would delete its run
        if_exists = self._if_exists if self._run is None else "refuse"
        return partial(type(self), if_exists=if_exists, densify_every=self._densify_every), (self._path,)

    def __repr__(self) -> str:
        return f"{WHO}({self._path!r})"

    # --- the ten verbs --------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Write one line of the log: an event for each metric.

        Args:
            metrics: name -> number, kept as float64.
            step: the points' step, up to 2**63 - 1.
            epoch: becomes ``<context>/epoch``, also in place of a metric of that name, which is said once.
            context: what the series' keys begin with.
            **axes: ``walltime`` in Unix seconds is the points' time, now by default. Others are ignored.

        Raises:
            StepError: ``step`` or ``epoch`` is no integer that fits; nothing was written.
            MetricValueError: some values are no real numbers, or have names that cannot be stored; the others were
                written.
            RunExistsError, RunLockedError: the folder holds a run already, or another logger writes it.
            LoggerFinishedError: after :meth:`finish`.
            ImportError: zarr is not installed.
            OSError: the disk refused the line; nothing of it is there.
        """
        if type(step) is not int or not 0 <= step <= LAST_STEP:
            step = storable(check_step(step))
        if epoch is not None:
            epoch = storable(check_epoch(epoch) or 0)
        if type(context) is not str or not context:
            context = check_context(context)
        walltime = axes.get("walltime")
        when = self._clock.now() if walltime is None else self._clock.of(walltime)
        values, problems = metrics, NO_PROBLEMS
        if not (
            type(metrics) is dict
            and {*map(type, metrics.values())} == FLOATS
            and metrics.keys() <= self._known.get(context, NOTHING)
        ):
            values, problems = self._points.of(context, metrics)
        row = values if epoch is None else {**values, "epoch": epoch}
        if row or not problems:
            run = self._run
            if run is None or not run.log.is_open:
                if not self._begin():
                    return
                run = self._current()
            with self._lock:
                if not run.log.is_open:  # another thread was faster, with an end or another logger
                    self._begin()
                    run = self._current()
                if row:
                    line = scalars_line(context, row, step, when)
                    run.log.append(line) if "/" not in context else run.append_in(context, line, when)
                self._place = step, epoch
                if self._densify_every is not None:
                    run.densify_every(self._densify_every)
        if epoch is not None and "epoch" in metrics:
            self._say_clash(context)
        if problems:
            raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write hyperparameters as an event. Later values win over earlier ones.

        Raises:
            MetricValueError: ``params`` is no mapping.
            Exception: as from :meth:`log_metrics`.
        """
        self._add("params", "params", plain_params(params))

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Write tags as an event. They add up.

        Raises:
            MetricValueError: no tags.
            Exception: as from :meth:`log_metrics`.
        """
        self._add("tags", "tags", plain_tags(tags))

    def log_other(self, key: str, value: Any) -> None:
        """Write a free-form value as an event, at the current step.

        Raises:
            MetricNameError: the key is no non-empty string.
            MetricValueError: JSON cannot hold the value.
            Exception: as from :meth:`log_metrics`.
        """
        if not isinstance(key, str) or not key:
            raise MetricNameError(f"the key of log_other must be a non-empty string, got {key!r}")
        data, problem = plain_value(value)
        if problem is not None:
            raise_for({key: problem}, where="log_other")
        at = {} if self._place[0] is None else {"step": self._place[0]}
        self._add("other", str.__str__(key), data, **at)

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
        """Write a confusion matrix as an event, by default at the current step and epoch.

        Args:
            matrix: [K, K] counts or rates, rows true, columns predicted.
            labels: [K] class names.
            epoch, step: where it belongs.
            context: what its key begins with.
            name: what the key ends with.

        Raises:
            ConfusionError: not square, not finite numbers, or not one label per class.
            StepError: ``step`` or ``epoch`` is no integer that fits.
            MetricNameError: the name is no non-empty string.
            Exception: as from :meth:`log_metrics`.
        """
        if step is None:
            step, epoch = self._place[0], self._place[1] if epoch is None else epoch
        key, value, more = confusion_event(matrix, labels, epoch, step, context, name)
        self._add("confusion", key, value, **more)

    def finish(self, status: str) -> None:
        """Write the status as an event, densify, and close the log.

        A run that is there already, and that this logger has not gone on with, stays as it is.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: called before.
            OSError: the disk refused it. Nothing is lost, and finishing may be tried again.
        """
        status = check_status(status)
        foreign = self._run is None and self._if_exists == "refuse" and holds_run(Path(self._path))
        if self._finished or not foreign:
            if not self._begin():
                return
            with self._lock:
                run = self._current()
                run.log.append(event_line("finish", "status", status, self._clock.now()))
                self._status = status
                run.densify()
                run.log.close()
        self._finished = True

    def run_id(self) -> str:
        """Return the run's identity, which is in the catalog as ``run_id`` and goes with the folder."""
        if self._run is not None:
            return self._run.run_id
        return (None if self._if_exists == "replace" else stored_run_id(Path(self._path))) or self._id

    def run_url(self) -> None:
        """Return ``None``: a folder has no address."""

    def logger_state(self) -> dict[str, JSON]:
        """Return what :meth:`reattach` needs.

        Returns:
            ``path``, ``run_id``, ``wal`` with the ``bytes`` of the log, the current ``step`` and ``epoch``, and
            the ``status`` if the run has ended.
        """
        if self._run is None and self._if_exists == "append" and holds_run(Path(self._path)):
            self._begin()  # the state of what is there
        # in a forked child a thread that is not there may hold the lock
        with contextlib.nullcontext() if self._forked(say=False) else self._lock:
            if self._run is None:
                return GroupState(path=self._path, run_id=self.run_id()).plain()
            return self._run.state(*self._place, self._status).plain()

    def reattach(self, state: Any) -> None:
        """Go on with the run, cut back to where ``state`` was taken: to that byte of the log.

        Arrays that hold more than that are removed; the next densifying makes them anew.

        Args:
            state: what :meth:`logger_state` returned, here or in another process; the group may have moved.

        Raises:
            RecordError: not such a state, or not one of the run that is there.
            RunLockedError: another logger writes it.
            OSError: the disk refused it.
        """
        group_state = GroupState.of(state, Path(self._path))
        if self._forked():
            return
        with self._lock:
            try:
                self._run = GroupRun.resume(Path(self._path), group_state)
            except BaseException:
                if self._run is not None and self._run.log.is_taken:
                    self._run = None  # it came too far to leave all as it was: whoever logs now has to decide anew
                raise
            self._finished = False
            self._place, self._status = (group_state.step, group_state.epoch), None
            if group_state.status is not None:  # its last event says that it has ended
                self._run.log.append(event_line("resume", "status", None, self._clock.now()))

    # --- beside the verbs -------------------------------------------------------------------------------

    def rewind(self, step: int) -> None:
        """Go on as if nothing had been logged from ``step`` on, nor params and tags.

        A replay asks for it when its run was cut by a resume; it then makes all of these calls again. Arrays are
        removed; the next densifying makes them anew.

        Raises:
            RunExistsError: the folder holds a run that this logger has not gone on with.
            OSError: the disk refused it.
        """
        if self._forked():
            return
        with self._lock:
            if self._finished:
                self.reattach(self.logger_state())  # it goes on
            if self._begin():
                self._current().rewind(step)
                last = self._place[0]
                if last is not None and last >= step:
                    self._place = (step - 1 if step else None), None

    def densify(self) -> None:
        """Bring the arrays up to date with the log.

        Raises:
            RunExistsError: the folder holds a run already.
            LoggerFinishedError: after :meth:`finish`, which has done it.
            CorruptGroupError: the log or an array is damaged.
            OSError: the disk refused it. Nothing is lost, and it may be tried again.
        """
        if self._begin():
            with self._lock:
                self._current().densify()

    def backend(self) -> MetricsGroup:
        """Return a reader of the group.

        Raises:
            NoGroupError: nothing has been logged.
        """
        return open_group(self._path)

    def logger_info(self) -> dict[str, JSON]:
        """Return a few facts for people and tools."""
        return {"logger": WHO, "run_id": self.run_id(), "path": self._path, "step": self._place[0]}

    # --- private ----------------------------------------------------------------------------------------

    def _add(self, kind: str, key: str, value: Any, **more: Any) -> None:
        line = event_line(kind, key, value, self._clock.now(), **more)
        if self._begin():
            with self._lock:
                self._current().log.append(line)

    def preflight(self) -> None:
        """Raise ``ImportError`` if zarr is not installed: a tee asks before training begins."""
        check("zarr", extra="zarr", who=WHO)

    def _begin(self) -> bool:
        """Open the group, if it is not open. Returns ``False`` in a forked child, which has none."""
        run = self._run
        if run is not None and run.log.is_open:
            return True
        if self._forked():
            return False
        with self._lock:
            if self._run is None and not self._finished:
                self._run = GroupRun.begin(Path(self._path), self._id, self._if_exists)
            if self._current().log.is_taken:
                raise RunLockedError(f"a newer logger in this process has taken the run of {self!r} over: use that one")
        return True

    def _current(self) -> GroupRun:
        if self._run is None or self._finished:
            raise LoggerFinishedError(f"{self!r} is finished: to go on with the run, reattach a state")
        return self._run

    def _forked(self, *, say: bool = True) -> bool:
        if self._run is None or not self._run.log.is_forked:
            return False
        if say:
            self._warn_once(
                "forked",
                f"{self!r} was opened by another process, its copy in the forked process {os.getpid()} writes nothing: "
                "log in the process that opened it, or build another logger here",
            )
        return True

    def _say_clash(self, context: str) -> None:
        self._warn_once(
            f"clash {context}",
            f"{self!r}: the metric 'epoch' of context {context!r} is left out, because the line's own epoch is "
            f"{context}/epoch: log the metric under another name",
        )

    def _warn_once(self, what: str, words: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(words, RuntimeWarning, stacklevel=4)
