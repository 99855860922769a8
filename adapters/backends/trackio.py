"""Log to Trackio, the local one: rows of a SQLite file that ``trackio show`` draws.

A line is a row with the keys ``<context>/<name>`` and the driver's step. Rows are written by a thread, in
one transaction for as many as have come together.
"""

from __future__ import annotations

import getpass
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

from adapters._require import check
from adapters.backends._queued import Operation, Queued
from adapters.backends._trackio_data import (
    OURS,
    checked_state,
    config_key,
    cut,
    deliver,
    plain_operation,
    problem,
    row_key,
    storage,
)
from adapters.backends._wandb_data import check_name, json_data
from loggers.contract import JSON
from loggers.errors import RecordError, StepError
from loggers.values import (
    check_confusion,
    check_context,
    check_epoch,
    check_status,
    check_step,
    plain,
    plain_params,
    plain_tags,
    plain_value,
    raise_for,
)

_LAST_STEP: Final = 2**63 - 1


class TrackioLogger(Queued):
    """Logs one run to a Trackio project on this machine.

    Building one does no work and imports nothing: the object is the recipe of a run. It can be pickled
    at any time; the copy knows which run it belongs to and begins it, or goes on with it, in the process
    that uses it first.

    A verb returns before its row is on disk: ``kill -9`` costs what was logged while the last transaction
    was under way, some milliseconds. :meth:`logger_state` and :meth:`finish` wait until everything is
    there. While the disk takes nothing, rows wait in memory, a warning says so once, and writing is tried
    again. In a fan-out nothing is lost at all: what is missing comes from the primary.

    Numbers are exact, text and structures are kept. When a step is logged again there are two rows, and
    the later one comes last. A resume takes away the rows behind its checkpoint.

    Args:
        project: the Trackio project.
        name: what the run is called; by default its time of birth. Names need not be unique.
        group: as in ``trackio.init``.
        tags: as for :meth:`log_tags`.
        directory: where Trackio keeps its files, by default ``TRACKIO_DIR`` or what Trackio thinks best. It
            is settled by the first import of Trackio in a process.
        finish_timeout: seconds that :meth:`finish` and :meth:`logger_state` may wait; ``None`` waits for ever.
        max_pending: calls that may wait while the disk takes nothing. Then verbs raise.
    """

    #: A fan-out runs this logger in a process of its own, which takes the encoding and the disk off training.
    placement: ClassVar[str] = "process"
    tracker: ClassVar[str] = "Trackio"

    def __init__(
        self,
        project: str,
        *,
        name: str | None = None,
        group: str | None = None,
        tags: Mapping[str, Any] | Iterable[str] | str | None = None,
        directory: str | os.PathLike[str] | None = None,
        finish_timeout: float | None = 10.0,
        max_pending: int = 10_000,
    ) -> None:
        if not isinstance(project, str) or not project.strip():
            raise ValueError(f"project must be a non-empty string, got {project!r}")
        if finish_timeout is not None and not finish_timeout > 0:
            raise ValueError(f"finish_timeout must be seconds above 0, or None, got {finish_timeout!r}")
        if max_pending < 1:
            raise ValueError(f"max_pending must be at least 1, got {max_pending!r}")
        where = os.environ.get("TRACKIO_DIR") if directory is None else os.fsdecode(directory)
        self._project = project
        self._given_name = name
        self._name = name or f"{datetime.now():%Y-%m-%d %H.%M.%S}"
        self._directory = os.path.abspath(where) if where else None
        self._finish_timeout, self._max_pending = finish_timeout, max_pending
        # secrets, not random: two runs with the same seed must not share an id
        self._id: str = secrets.token_hex(16)
        self._config: dict[str, Any] = {
            "_Username": os.environ.get("USER") or _user(),
            "_Created": _time(time.time()),
            "_Group": group,
            OURS: {"run_id": self._id, "tags": {} if tags is None else json_data(plain_tags(tags)), "status": None},
        }
        self._rows = 0  # logged so far
        self._latest: dict[str | None, int] = {}  # context -> step; None: any
        self._newest = 0.0  # Unix seconds: rows are read in the order of their times, and a clock may be put back
        self._unsent: list[Operation] = []
        self._cut = False  # whether rows behind ours have to go before the first verb
        self._set_idle()

    # --- the verbs -----------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Log one row: ``<context>/<name>``, and ``<context>/epoch`` where there is one.

        Text, lists and dicts are logged too. The axis ``walltime`` (Unix seconds) is the row's time, now
        by default.

        Raises:
            StepError, MetricNameError: before anything is logged.
            MetricValueError: after the good values of the line are logged.
            LoggerFinishedError: the run has ended.
            UndeliveredError: the disk takes nothing, and memory no more; nothing of the line is logged.
            ImportError, LoggerError: the run could not begin.
        """
        self._check_open("log_metrics")
        step, epoch, context = check_step(step), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        walltime = axes.get("walltime")
        when = self._now() if walltime is None else _time(float(walltime))
        row: dict[str, Any] = {}
        for name, value in values.items():
            if type(value) is not float and (why := problem(value)) is not None:
                problems[name] = why
            elif name == "epoch" and epoch is not None and value != epoch:
                problems[name] = f"got {value!r}, but the line's epoch is {epoch}: rename it"
            elif (key := row_key(f"{context}/{name}")).isascii() or _is_text(key):
                row[key] = value
            else:
                problems[repr(name)] = "the name has a lone surrogate: clean it with .encode(errors='replace')"
        if row:
            if epoch is not None:
                row[row_key(f"{context}/epoch")] = epoch
            self._put_row(when, step, row)
            self._latest[context] = self._latest[None] = step
        raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log hyperparameters to the run's config, nested ones nested. Later values win.

        Raises:
            MetricValueError: ``params`` is not a mapping.
            LoggerFinishedError: the run has ended.
            UndeliveredError: the disk takes nothing, and memory no more.
        """
        self._check_open("log_params")
        if config := {config_key(name): value for name, value in json_data(plain_params(params)).items()}:
            self._put_config(config)

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Note tags in the run's config, under ``loggers``: Trackio has none.

        Raises:
            MetricValueError: no tags.
            LoggerFinishedError: the run has ended.
            UndeliveredError: the disk takes nothing, and memory no more.
        """
        self._check_open("log_tags")
        if new := json_data(plain_tags(tags)):
            with self._turn():
                self._put_config({OURS: {**self._config[OURS], "tags": self._config[OURS]["tags"] | new}})

    def log_other(self, key: str, value: Any) -> None:
        """Log a free-form value as ``other/<key>`` at the current step.

        Raises:
            MetricNameError: ``key`` is not a non-empty string.
            MetricValueError: ``value`` is no JSON data and no scalar, or would read back as something else.
            LoggerFinishedError: the run has ended.
            UndeliveredError: the disk takes nothing, and memory no more.
        """
        self._check_open("log_other")
        check_name(key, "key of log_other")
        data, why = plain_value(value)
        why = why or problem(data)
        raise_for({} if why is None else {key: why}, where="log_other")
        self._put_row(self._now(), self._latest.get(None, 0), {f"other/{key}": data})

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
        """Log a confusion matrix as ``<context>/<name>``, or ``<name>``: ``{"epoch", "labels", "matrix"}``.

        Args:
            matrix: [K, K] counts or rates, rows true, columns predicted.
            labels: [K] class names.
            epoch: noted in it.
            step: where it belongs; that of the latest line of ``context`` by default.
            context: left out of the name if there is none.
            name: what to call it.

        Raises:
            ConfusionError: not square, or not one label per class.
            StepError, MetricNameError: a bad step, epoch, context or name.
            LoggerFinishedError: the run has ended.
            UndeliveredError: the disk takes nothing, and memory no more.
        """
        self._check_open("log_confusion")
        rows, names = check_confusion(matrix, labels)
        check_name(name, "name of the confusion matrix")
        latest = self._latest.get(context, self._latest.get(None, 0))
        step, epoch = latest if step is None else check_step(step), check_epoch(epoch)
        key = name if context is None else f"{check_context(context)}/{name}"
        record = {"epoch": epoch, "labels": names, "matrix": rows}
        self._put_row(self._now(), step, {row_key(key): record})

    def finish(self, status: str) -> None:
        """End the run when everything is on disk, or raise after ``finish_timeout``.

        Trackio knows no status: it is in the config, under ``loggers``. A run that never began stays unborn.

        Raises:
            StatusError: not one of the four; the run goes on.
            UndeliveredError: the time is up, and the rest is in this process's memory only. Call it again
                to go on waiting.
            LoggerFinishedError: the run has ended before.
        """
        status = check_status(status)
        self._check_open("finish")
        if self._outbox is None and not (self._cut or self._unsent):
            self._status = status
            return
        self._finish(status, ["config", _ended(self._config, status)])

    def run_id(self) -> str:
        """Return Trackio's id of the run. It is known before the run begins."""
        return self._id

    def run_url(self) -> None:
        """Return ``None``: there is a page while somebody runs ``trackio show``."""

    def logger_state(self) -> dict[str, JSON]:
        """Return what another process needs to go on with this run, once everything logged is on disk.

        What the disk does not take within ``finish_timeout`` is in the state itself, under ``pending``.
        While that lasts, later states do not wait again.
        """
        with self._turn():
            pending = self._flush()
            return {
                "project": self._project,
                "name": self._name,
                "id": self._id,
                "directory": self._directory,
                "rows": self._rows,
                "config": plain_operation(["config", self._config])[1],
                "latest": [[context, step] for context, step in self._latest.items()],
                "pending": [plain_operation(operation) for operation in pending],
            }

    def reattach(self, state: Any) -> None:
        """Go on with the run that ``state`` describes. Call it before the first verb.

        With the first verb, or :meth:`finish`, the rows that were logged after the state are deleted.

        A ``directory`` given to the constructor is kept, since files may move.

        Raises:
            RecordError: not a state of this logger, of a project or a name that contradicts the
                constructor, or the run has begun already.
        """
        if self._outbox is not None or self._status is not None:
            raise RecordError(
                f"reattach on Trackio run {self._id}, which has begun already: "
                "call it on a new TrackioLogger, before anything is logged"
            )
        known = checked_state(state)
        for key, given in (("project", self._project), ("name", self._given_name)):
            if given is not None and known[key] != given:
                raise RecordError(
                    f"the checkpoint belongs to Trackio {key} {known[key]!r}, this logger was built with "
                    f"{given!r}: build it with {known[key]!r}, or start without the checkpoint's record"
                )
        self._id, self._name, self._rows = known["id"], known["name"], known["rows"]
        self._directory = self._directory or known["directory"]
        tags = known["config"].get(OURS, {}).get("tags", {}) | self._config[OURS]["tags"]
        self._config = known["config"] | {OURS: {"run_id": self._id, "tags": tags, "status": None}}
        self._latest = dict(known["latest"])
        self._unsent, self._cut = [*known["pending"]], True

    def rewind(self, step: int) -> None:
        """Delete the rows of ``step`` and behind, however they came: a replay logs them anew when its run was cut.

        Raises:
            LoggerFinishedError: the run has ended.
            UndeliveredError: the disk takes nothing, and memory no more.
        """
        self._check_open("rewind")
        with self._turn():
            if self._start() is not None:
                self._put(["rewind", self._rows, step])
                self._latest = {context: last for context, last in self._latest.items() if last < step}

    def backend(self) -> Any:
        """Return the run as ``trackio.Api().runs(project)`` has it, begun if need be.

        Inside a fan-out the run is written by another process; there this would be a second writer.
        """
        if self._outbox is None:
            self._check_open("backend")
        self._start()
        self._flush()
        from trackio.api import Run

        return Run(self._project, self._name, self._id)

    def logger_info(self) -> dict[str, JSON]:
        """Return what people want to know of this run, among it the command that shows it."""
        outbox = self._own_outbox()
        where = "" if self._directory is None else f"TRACKIO_DIR={self._directory} "
        return {
            "run_id": self._id,
            "project": self._project,
            "name": self._name,
            "directory": self._directory,
            "show_command": f"{where}trackio show --project {self._project!r}",
            "started": self._outbox is not None,
            "status": self._status,
            "pending": len(self._unsent) if outbox is None else len(outbox),
            "error": None if outbox is None or outbox.error is None else str(outbox.error),
        }

    # --- pickling ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Keep the recipe and the identity; the queue stays with its process."""
        lost = ("_outbox", "_turns", "_pid", "_abandoned", "_end", "_status", "_news", "_told")
        return {key: value for key, value in self.__dict__.items() if key not in lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a recipe, ready to start."""
        self.__dict__.update(state)
        self._set_idle()

    def __repr__(self) -> str:
        return f"TrackioLogger({self._project!r}, name={self._name!r}, run_id={self._id!r})"

    # --- the run -------------------------------------------------------------------------------------

    def preflight(self) -> None:
        """Raise ``ImportError`` if Trackio is not installed: a tee asks before training begins."""
        check("trackio", extra="trackio", who="TrackioLogger")

    def _begin(self) -> tuple[Callable[[list[Operation]], None], Callable[[str], None]]:
        files = storage(self._directory)
        files.validate_project_name(self._project)
        self._directory = os.path.dirname(os.path.abspath(files.get_project_db_path(self._project)))
        if self._cut:
            cut(files, self._project, self._id, self._rows)
            self._cut = False
        write = partial(deliver, files, self._project, self._name, self._id)
        config = self._config  # changed in place, so what is written at the end is the newest
        return write, lambda status: write([["config", _ended(config, status)]])

    def _first(self) -> Iterable[Operation]:
        yield ["config", {**self._config}]

    def _now(self) -> str:
        self._newest = max(time.time(), self._newest)
        return _time(self._newest)

    def _put_row(self, when: str, step: int, row: dict[str, Any]) -> None:
        if step > _LAST_STEP:
            raise StepError(f"Trackio's steps go up to 2**63 - 1, got {step}")
        with self._turn():
            if self._start() is not None:
                self._put(["row", self._rows, when, step, row])
                self._rows += 1

    def _put_config(self, new: dict[str, Any]) -> None:
        with self._turn():
            if self._start() is not None:
                self._put(["config", self._config | new])
                self._config |= new


def _ended(config: Mapping[str, Any], status: str) -> dict[str, Any]:
    return {**config, OURS: {**config[OURS], "status": status}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


__all__ = ["TrackioLogger"]
