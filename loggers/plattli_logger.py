"""``PlattliLogger``: every value in a local columnar run that survives ``kill -9``."""

from __future__ import annotations

import os
import secrets
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from loggers import names as _names
from loggers._backlog import BACKLOG
from loggers._plattli_run import CARRIERS, RUN_KEY, Options, PlattliRun
from loggers._runstate import WHOLE_RUN, check_state, context_of
from loggers.contract import JSON
from loggers.errors import (
    LoggerError,
    LoggerFinishedError,
    MetricNameError,
    MetricValueError,
    RecordError,
    RunExistsError,
    StepError,
    UnwrittenError,
)
from loggers.records import is_of_tee
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
from plattli import errors as plattli_errors
from plattli._format import MAX_STEP, METRIC_DIR
from plattli.rows import Json, RowWriter

_FLOATS: Final = {float}
#: All integers up to here are float64s.
_EXACT: Final = 2**53
_NONE: Final[Mapping[str, str]] = {}


class _Line(NamedTuple):
    """What one kind of line is on disk; worked out once.

    Attributes:
        names: stored names of the values kept, then of epoch and walltime.
        keep: positions of the values kept, ``None`` for all.
        refused: metric -> why no name on disk can hold it.
        clashes: metrics that have the name of one of the logger's own.
        wide: positions, among the values kept, of those that are to be float64.
    """

    names: tuple[str, ...]
    keep: tuple[int, ...] | None
    refused: dict[str, str]
    clashes: list[str]
    wide: frozenset[int]


class PlattliLogger:
    """Log to a Plättli run in a local directory. Loses nothing, resumes exactly.

    ::

        logger = PlattliLogger("runs/digits")
        logger.log_metrics({"loss": 0.3}, step=1, epoch=1)        # metric train/loss
        logger.log_metrics({"loss": 0.4}, step=1, context="validate")
        logger.finish("completed")                                # runs/digits/metrics.plattli

    After :meth:`log_metrics` returns, the line survives ``kill -9``. While the disk takes nothing (it is full, fails,
    is gone), training goes on: one warning says so, and lines wait in memory, up to ``backlog`` bytes of them, until
    it does. One metric has one value per step: logging a (metric, step) again replaces it, wherever it is by now.

    **How values are stored.** Integers as integers. A Python float as float32 where that is exact
    (what a float32 loss gives), else as float64: nothing is rounded, whatever is logged later to the
    same metric. NaN and the infinities are kept. Strings, lists and dicts become JSON values. The rules
    per type are in :mod:`loggers.values`, and with their dtypes in ``docs/values.md``.

    Beside the metrics, each context has ``<context>/epoch`` (when an epoch is given) and
    ``<context>/walltime`` (Unix seconds, float64).
    """

    #: Where a tee calls this logger: it is the primary, in the training process.
    placement: Final = "inline"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        run_id: str | None = None,
        if_exists: Literal["refuse", "append", "replace"] = "refuse",
        floats: Literal["exact", "f32", "f64"] = "exact",
        f64: Iterable[str] | str = (),
        walltime: bool = True,
        hotsize: int = 500,
        backlog: int = BACKLOG,
        durability: Literal["process", "fsync"] = "process",
        sync_every: float = 1.0,
    ) -> None:
        """Describe the run. Nothing is written before the first verb.

        Args:
            directory: the run root.
            run_id: what the run is called; made up if not given, and taken from the run on resume.
            if_exists: what to do when the directory holds a run and :meth:`reattach` is not called:
                ``"refuse"`` raises at the first verb, ``"append"`` goes on after the last step,
                ``"replace"`` removes the old run.
            floats: ``"exact"`` as above; ``"f32"`` rounds Python floats to float32 (half the space);
                ``"f64"`` keeps every float as float64.
            f64: patterns such as ``"*/lr"`` or ``"timing/*"``, as :mod:`fnmatch` has them: metrics whose
                ``<context>/<name>`` matches one are float64 from their first number on, whatever ``floats`` says.
            walltime: log ``<context>/walltime``.
            hotsize: lines that wait in the row-wise log before they become columns; more of them where they come
                fast.
            backlog: bytes of memory for lines that the disk does not take; 0 raises ``UnwrittenError`` at once.
            durability: what a line survives once it is logged. ``"process"``: whatever becomes of the process.
                ``"fsync"``: a power loss, too, from ``sync_every`` seconds later on; a thread of its own sees to it.
            sync_every: seconds, with ``durability="fsync"``.
        """
        if if_exists not in ("refuse", "append", "replace"):
            raise LoggerError(f"if_exists must be 'refuse', 'append' or 'replace', got {if_exists!r}")
        if floats not in ("exact", "f32", "f64"):
            raise LoggerError(f"floats must be 'exact', 'f32' or 'f64', got {floats!r}")
        patterns = (f64,) if isinstance(f64, str) else tuple(f64)
        if not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise LoggerError(f"f64 must be a pattern for metrics such as '*/lr', or some of them, got {f64!r}")
        if durability not in ("process", "fsync"):
            raise LoggerError(f"durability must be 'process' or 'fsync', got {durability!r}")
        if not isinstance(sync_every, int | float) or not 0 < sync_every < float("inf"):
            raise LoggerError(f"sync_every must be a positive number of seconds, got {sync_every!r}")
        if run_id is not None and (not isinstance(run_id, str) or not run_id):
            raise LoggerError(f"run_id must be a non-empty string, or None to have one made up, got {run_id!r}")
        root = Path(directory)
        if root.name == METRIC_DIR:
            raise LoggerError(f"{root} is the name of a run's inner folder: name the run root, the folder above it, "
                              f"or call it otherwise")  # fmt: skip
        self._walltime = walltime
        self._f64 = patterns
        options = Options(if_exists, floats, hotsize, durability, sync_every)
        self._run = PlattliRun(self, root, _new_id() if run_id is None else run_id, options, backlog)
        self._status: str | None = None
        #: why this object writes nothing (a fork's or a pickle's copy), or ``None``
        self._inert: str | None = None
        #: contexts with a slash, which the config lists
        self._slashed: set[str] = set()
        #: (context, has epoch, metric names) -> what such a line is on disk
        self._lines: dict[tuple[Any, ...], _Line] = {}
        #: context -> step of the state that was reattached, until there is a line
        self._resumed: dict[str, int] = {}
        self._warned: set[str] = set()
        _LIVE.add(self)

    # ---- what a run is made of --------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        """The run root; :class:`plattli.Reader` reads it at any time."""
        return self._run.directory

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Log one line; see :meth:`loggers.contract.Logger.log_metrics`.

        The axis ``walltime`` (Unix seconds) replaces the current time.

        Raises:
            StepError: no integer in 0 … 2**63 - 1. Nothing was written.
            MetricNameError: a context that nothing can store. Nothing was written.
            MetricValueError: names what could not be stored; the rest of the line was.
            RunExistsError: the directory holds a run already.
            PathError: nothing can ever be written to the directory.
            UnwrittenError: the disk takes nothing, and memory is used up. Nothing was written.
        """
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            step = _storable(check_step(step))
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            epoch = check_epoch(epoch)
        if type(context) is not str or not context:
            context = check_context(context)
        problems: Mapping[str, str] = _NONE
        values = metrics
        # floats are plain already; their names are good if this kind of line was logged before
        if floats := type(metrics) is dict and {*map(type, metrics.values())} == _FLOATS:
            key: tuple[Any, ...] = (context, epoch is None, *metrics)
        else:
            values, problems = plain(metrics)
            key = (context, epoch is None, *values)
        run = self._run
        with run.mutex:
            line = known = self._lines.get(key)
            if line is None:
                if floats:
                    values, problems = plain(metrics)
                    key = (context, epoch is None, *values)
                line = self._new_line(context, epoch is None, values)
            if (run.writer is None or self._status is not None or run.backlog is not None) and not self._open():
                return
            row = (*values.values(),)
            if line.keep is not None:
                row = tuple([row[i] for i in line.keep])
            if known is None and line.wide:
                row, floats = tuple([_wide(v) if i in line.wide else v for i, v in enumerate(row)]), False
            if epoch is not None:
                row = (*row, epoch)
                floats = floats and epoch <= _EXACT
            if self._walltime:
                given = axes.get("walltime") if axes else None
                now = time.time() if given is None else float(given)
                if known is None:
                    # an np.float64 makes the column one, whatever the option `floats` says of the metrics
                    row, floats = (*row, np.float64(now)), False
                else:
                    row = (*row, now)
            unfit = run.append(step, line.names, row, floats)
            if known is None:
                self._remember(key, line)
                self._compare_with_resume(context, step)
            if step > run.steps.get(context, -1):
                self._advance(context, step)
        if unfit or problems or line.refused or line.clashes:
            self._tell(context, step, {**problems, **line.refused}, unfit, line.clashes)

    def _new_line(self, context: str, no_epoch: bool, values: Mapping[str, Any]) -> _Line:
        """Work out what the metrics of a kind of line are called on disk; write nothing."""
        _names.encode(f"{context}/x")  # a context that cannot be stored costs the line, a metric only itself
        carriers = ([] if no_epoch else ["epoch"]) + (["walltime"] if self._walltime else [])
        clashes = [name for name in carriers if name in values]
        stored: list[str] = []
        keep: list[int] = []
        refused: dict[str, str] = {}
        wide: set[int] = set()
        for position, name in enumerate(values):
            if name in clashes:
                continue
            try:
                stored.append(_names.encode(f"{context}/{name}"))
                keep.append(position)
                if name.rpartition("/")[2] in CARRIERS:
                    self._run.namesakes.add(stored[-1])
                if any(fnmatchcase(f"{context}/{name}", pattern) for pattern in self._f64):
                    wide.add(len(keep) - 1)
            except MetricNameError as error:
                refused[name] = str(error)
        stored += [_names.encode(f"{context}/{name}") for name in carriers]
        kept = None if len(keep) == len(values) else tuple(keep)
        return _Line(tuple(stored), kept, refused, clashes, frozenset(wide))

    def _remember(self, key: tuple[Any, ...], line: _Line) -> None:
        if len(self._lines) >= 4096:  # callers whose lines never look alike
            self._lines.clear()
        self._lines[key] = line

    def _compare_with_resume(self, context: str, step: int) -> None:
        """Say so if a loop that was resumed begins at an earlier step than its checkpoint."""
        # of the first line only: late lines of other contexts are ordinary
        resumed, self._resumed = self._resumed.get(context, -1), {}
        if step < resumed:
            self._warn_once(
                f"run {self._run.name!r} was resumed at {context} step {resumed}, and its first {context} line "
                f"is of step {step}: lines up to step {resumed} replace those that are there; did the training loop "
                f"get its step back from the checkpoint?"
            )

    def _tell(
        self,
        context: str,
        step: int,
        problems: dict[str, str],
        unfit: Mapping[str, Exception],
        clashes: Iterable[str],
    ) -> None:
        """Say what of a line is not stored, now that the rest of it is."""
        prefix = f"{context}/"
        for name, error in unfit.items():
            problems[_names.decode(name).removeprefix(prefix)] = str(error)
        raise_for(problems, where=f"the {context} line at step {step} of run {self._run.name!r}")
        for name in clashes:
            self._warn_once(
                f"metric {name!r} of context {context!r} is not stored: the logger's own {context}/{name} is; "
                f"log it under another name"
            )

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Put hyperparameters into ``config.json``; earlier values of changed ones stay in its history."""
        new = plain_params(params)
        refused = new.pop(RUN_KEY, None)
        with self._run.mutex:
            if self._open():
                self._run.add_params(new)
        if refused is not None:
            raise MetricValueError(f"the param {RUN_KEY!r} is the logger's own; give it another name")

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Add tags to the run."""
        new = plain_tags(tags)
        with self._run.mutex:
            if self._open():
                self._run.add_tags(new)

    def log_other(self, key: str, value: Any) -> None:
        """Store a value as JSON under ``other/<key>``, at the current step."""
        data, problem = plain_value(value)
        if problem is not None:
            raise_for({key: problem}, where=f"log_other of run {self._run.name!r}")
        self._append_json(f"other/{key}", WHOLE_RUN, None, data)

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
        """Store ``{"epoch", "labels", "matrix"}`` under ``<context>/<name>``, or ``<name>``."""
        rows, classes = check_confusion(matrix, labels)
        at = None if step is None else _storable(check_step(step))
        data = {"epoch": check_epoch(epoch), "labels": classes, "matrix": rows}
        if not isinstance(name, str) or not name:
            raise MetricNameError(f"name must be a non-empty string, got {name!r}: call the matrix something")
        if context is not None:
            context = check_context(context)
            name = f"{context}/{name}"
        else:
            context = context_of(name, ())
        self._append_json(name, context, at, data)

    def _append_json(self, full_name: str, context: str, step: int | None, data: Any) -> None:
        stored = _names.encode(full_name)
        run = self._run
        with run.mutex:
            if not self._open():
                return
            if step is None:
                step = max(run.steps.values(), default=0)
            unfit = run.append(step, (stored,), (Json(data),), False)
            if not unfit and step > run.steps.get(context, -1):
                self._advance(context, step)
        for problem in unfit.values():
            raise_for({full_name: str(problem)}, where=f"run {self._run.name!r}")

    def _advance(self, context: str, step: int) -> None:
        self._run.steps[context] = step
        if "/" in context and context not in self._slashed:
            self._slashed.add(context)
            self._run.add_context(context)

    # ---- the life of a run ------------------------------------------------------------------------

    def finish(self, status: str) -> None:
        """End the run.

        ``"completed"`` and ``"early_stop"`` turn it into one archive, ``<dir>/metrics.plattli``. Any
        other status is recorded and leaves the run where it is, to be resumed.

        Raises:
            LoggerFinishedError: it was finished before.
            UnwrittenError: the disk takes nothing. The message says what is missing; ``finish`` can be called again.
        """
        check_status(status)
        run = self._run
        with run.mutex:
            if self._inert is not None:
                return
            if self._status is not None:
                raise LoggerFinishedError(f"run {run.run_id!r} was finished before as {self._status!r}")
            try:
                self._open()
            except RunExistsError:
                self._status = status  # nothing was logged here: the run that is there is not ours
                return
            if run.backlog is not None and not run.backlog.retry():
                raise UnwrittenError(
                    f"{run.backlog.describe()}; the run did not end as {status!r}: make room and call finish again, "
                    f"or they are lost with this process"
                ) from run.backlog.error
            try:
                run.end(status)
            except (OSError, plattli_errors.RunBrokenError) as error:
                if not run.is_outage(error):
                    raise
                raise UnwrittenError(
                    f"run {run.name!r} did not end as {status!r}: {error}; all its lines are in {run.directory}: "
                    f"make room and call finish again, or go on with the run later"
                ) from error
            self._status = status

    def run_id(self) -> str:
        """Return the run's id, which a resume keeps and which no other run has."""
        return self._run.run_id

    def run_url(self) -> None:
        """Return ``None``: the run is a local directory, :attr:`run_dir`."""

    def logger_state(self) -> dict[str, JSON]:
        """Return where the run is and how far it has come, per context."""
        run = self._run
        with run.mutex:
            if run.backlog is not None:
                run.backlog.retry()  # a checkpoint goes with what is on disk, if that can be
            steps: dict[str, JSON] = dict(run.steps)
            return {
                "run_id": run.run_id,
                "directory": self._absolute,
                "step": max(run.steps.values(), default=-1),
                "steps": steps,
            }

    @cached_property
    def _absolute(self) -> str:
        """The run root for whoever is elsewhere; worked out once, since a driver may ask at every line."""
        return os.path.realpath(self._run.directory)  # of a link to itself, too

    def reattach(self, state: Any) -> None:
        """Go on with the run of ``state``, without anything that was logged after it was taken.

        Works on a live run that died, on a finished one, and on one that was moved: the directory is
        this logger's, and the run in it must have the state's id. The state may be of a tee whose primary wrote it.

        Rows go by their step, in each context. A value that came after the state for a step before it (a late one, or
        another one for a point) stays: what was there before is nowhere any more.

        Raises:
            RecordError: the state is none of ours, or the directory holds another run or none.
            RunLockedError: another live process writes the run.
            OSError: the disk failed.
        """
        if is_of_tee(state) and isinstance(state["primary"], Mapping):
            state = state["primary"].get("state")
        run_id, steps = check_state(state)
        run = self._run
        with run.mutex:
            if self._inert is not None:
                return
            if run.writer is not None and run.writer.lost is None and run.run_id != run_id:
                raise RecordError(
                    f"this logger has begun run {run.run_id!r} already, and the state is of {run_id!r}: "
                    f"reattach before logging anything"
                )
            if run.backlog is not None and not run.backlog.retry():
                raise UnwrittenError(f"{run.backlog.describe()}; reattach when it does") from run.backlog.error
            run.resume(run_id, steps, state)
            self._status = None
            self._lines.clear()
            self._slashed.clear()
            self._resumed = dict(steps)

    def _open(self) -> bool:
        """Start the run if need be, or let it wait; tell whether this copy may write at all."""
        run = self._run
        if self._inert is not None:
            self._warn_once(f"this copy of the logger of run {run.run_id!r} writes nothing: {self._inert}")
            return False
        if self._status is not None:
            raise LoggerFinishedError(
                f"run {run.run_id!r} is finished as {self._status!r}; to go on with it, reattach a state or "
                f"create a logger with if_exists='append'"
            )
        run.open()
        return True

    # ---- around the verbs -------------------------------------------------------------------------

    def rewind(self, step: int) -> None:
        """Go on as if nothing had been logged from ``step`` on: a replay asks for it when its run was cut.

        Raises:
            OSError: the disk failed.
        """
        if self._run.writer is not None:
            steps = {context: min(last, step - 1) for context, last in self._run.steps.items()}
            self.reattach({"run_id": self._run.run_id, "steps": steps})

    def reserved(self, epoch: int | None) -> tuple[str, ...]:
        """Return the names that no metric of a line has here, because the logger's own have them."""
        return (*(() if epoch is None else ("epoch",)), *(("walltime",) if self._walltime else ()))

    def hold_nothing(self) -> None:
        """Raise what the disk does not take, as with ``backlog=0``: a tee has it in the run of its primary."""
        self._run.limit = 0

    def waiting(self) -> list[tuple[int, Sequence[str]]]:
        """Return step and stored names of the lines that wait in memory, because the disk takes nothing."""
        with self._run.mutex:
            return [(row.step, row.names) for row in self._run.backlog or ()]

    def backend(self) -> RowWriter | None:
        """Return the run's writer, ``None`` before the first verb."""
        return self._run.writer

    def logger_info(self) -> dict[str, JSON]:
        """Return what people and tools may want to know."""
        run = self._run
        return {
            "run_id": run.run_id,
            "directory": self._absolute,
            "status": self._status or ("running" if run.writer is not None else "not started"),
            "step": max(run.steps.values(), default=-1),
            "waiting": 0 if run.backlog is None else len(run.backlog),
        }

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        """Return the identity: a pickled or copied logger writes nothing."""
        run, options = self._run, self._run.options
        return {
            "directory": run.directory,
            "run_id": run.run_id,
            "floats": options.floats,
            "f64": self._f64,
            "walltime": self._walltime,
            "hotsize": options.hotsize,
            "backlog": run.limit,
            "durability": options.durability,
            "sync_every": options.sync_every,
            "steps": dict(run.steps),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps = state.pop("steps")
        self.__init__(**state)  # type: ignore[misc]
        self._run.steps = steps  # a checkpoint that asks the copy gets the state of the original
        self._inert = "it is a copy of the logger that does"

    def __repr__(self) -> str:
        return f"PlattliLogger({str(self._run.directory)!r}, run_id={self._run.run_id!r})"


#: Loggers of this process, so that a fork's copies can be made inert.
_LIVE: Final[weakref.WeakSet[PlattliLogger]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for logger in list(_LIVE):
        logger._inert = "it is in a forked process, and the parent goes on with the run"
        logger._run.let_go_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _wide(value: Any) -> Any:
    """Return a number such that its column becomes float64; one that this would change stays what it is."""
    return np.float64(value) if type(value) is float or (type(value) is int and -_EXACT <= value <= _EXACT) else value


def _storable(step: int) -> int:
    if step > MAX_STEP:
        raise StepError(f"step {step} is beyond 2**63 - 1, the last one that a Plättli run can store")
    return step


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
