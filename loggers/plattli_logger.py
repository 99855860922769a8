"""``PlattliLogger``: every value in a local columnar run that survives ``kill -9``."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from loggers import names as _names
from loggers._backlog import Backlog, is_outage
from loggers._runstate import WHOLE_RUN, check_state, context_of, cut_after
from loggers.contract import JSON
from loggers.errors import (
    LoggerError,
    LoggerFinishedError,
    MetricNameError,
    MetricValueError,
    RecordError,
    RunExistsError,
    RunLockedError,
    StepError,
    UnwrittenError,
)
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
from plattli import __version__
from plattli import errors as plattli_errors
from plattli._format import MAX_STEP
from plattli._syncing import Syncer
from plattli.rows import Json, RowWriter, exists

#: The one key of ``config.json`` that is ours; all others are the user's params.
RUN_KEY: Final = "_run"
#: Statuses that end a run for good; the others leave it open for a resume.
_FINAL: Final = ("completed", "early_stop")
#: No room: an archive is made beside the folder, and takes as much again.
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
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
    """

    names: tuple[str, ...]
    keep: tuple[int, ...] | None
    refused: dict[str, str]
    clashes: list[str]


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
    per type are in :mod:`loggers.values`.

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
        walltime: bool = True,
        hotsize: int = 500,
        backlog: int = 64_000_000,
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
        if durability not in ("process", "fsync"):
            raise LoggerError(f"durability must be 'process' or 'fsync', got {durability!r}")
        if not isinstance(sync_every, int | float) or not 0 < sync_every < float("inf"):
            raise LoggerError(f"sync_every must be a positive number of seconds, got {sync_every!r}")
        if run_id is not None and (not isinstance(run_id, str) or not run_id):
            raise LoggerError(f"run_id must be a non-empty string, or None to have one made up, got {run_id!r}")
        self._directory = Path(directory)
        self._run_id = _new_id() if run_id is None else run_id
        self._if_exists: Literal["refuse", "append", "replace"] = if_exists
        self._floats: Literal["exact", "f32", "f64"] = floats
        self._walltime = walltime
        self._hotsize = hotsize
        self._backlog_size = backlog
        self._durability: Literal["process", "fsync"] = durability
        self._sync_every = sync_every
        self._syncer: Syncer | None = None
        self._status: str | None = None
        #: why this object writes nothing (a fork's or a pickle's copy), or ``None``
        self._inert: str | None = None
        self._writer: RowWriter | None = None
        #: what the disk did not take, while it takes nothing
        self._backlog: Backlog | None = None
        self._mutex = threading.RLock()
        self._config: dict[str, Any] = {}
        self._unsaved = False
        #: contexts with a slash, which the config lists
        self._slashed: set[str] = set()
        #: (context, has epoch, metric names) -> what such a line is on disk
        self._lines: dict[tuple[Any, ...], _Line] = {}
        #: context -> highest step logged in it
        self._steps: dict[str, int] = {}
        #: context -> step of the state that was reattached, until there is a line
        self._resumed: dict[str, int] = {}
        self._warned: set[str] = set()
        _LIVE.add(self)

    # ---- what a run is made of --------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        """The run root; :class:`plattli.Reader` reads it at any time."""
        return self._directory

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
        with self._mutex:
            line = known = self._lines.get(key)
            if line is None:
                if floats:
                    values, problems = plain(metrics)
                    key = (context, epoch is None, *values)
                line = self._new_line(context, epoch is None, values)
            writer = self._writer
            if writer is None or self._status is not None or self._backlog is not None:
                opened = self._open()
                if opened is None:
                    return
            else:
                opened = writer
            row = (*values.values(),)
            if line.keep is not None:
                row = tuple([row[i] for i in line.keep])
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
            try:
                unfit = opened.append(step, line.names, row, floats=floats)
            except (OSError, plattli_errors.RunBrokenError) as error:
                unfit = self._wait(error).append(step, line.names, row, floats=floats)
            if known is None:
                self._remember(key, line)
                self._compare_with_resume(context, step)
            if step > self._steps.get(context, -1):
                if "/" in context:
                    self._note_context(context)
                self._steps[context] = step
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
        for position, name in enumerate(values):
            if name in clashes:
                continue
            try:
                stored.append(_names.encode(f"{context}/{name}"))
                keep.append(position)
            except MetricNameError as error:
                refused[name] = str(error)
        stored += [_names.encode(f"{context}/{name}") for name in carriers]
        return _Line(tuple(stored), None if len(keep) == len(values) else tuple(keep), refused, clashes)

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
                f"run {self._directory.name!r} was resumed at {context} step {resumed}, and its first {context} line "
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
        raise_for(problems, where=f"the {context} line at step {step} of run {self._directory.name!r}")
        for name in clashes:
            self._warn_once(
                f"metric {name!r} of context {context!r} is not stored: the logger's own {context}/{name} is; "
                f"log it under another name"
            )

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Put hyperparameters into ``config.json``; earlier values of changed ones stay in its history."""
        new = plain_params(params)
        refused = new.pop(RUN_KEY, None)
        with self._mutex:
            self._change(partial(self._set_params, new))
        if refused is not None:
            raise MetricValueError(f"the param {RUN_KEY!r} is the logger's own; give it another name")

    def _set_params(self, new: dict[str, JSON]) -> None:
        known = {k: v for k, v in self._config.items() if k in new}
        if changed := {k: v for k, v in known.items() if not _same(v, new[k])}:
            self._run_info["params_history"].append({"time": _now(), "params": changed})
        if changed or len(known) < len(new):
            self._config.update(new)
            self._unsaved = True

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Add tags to the run."""
        new = plain_tags(tags)
        with self._mutex:
            self._change(partial(self._set_tags, new))

    def _set_tags(self, new: dict[str, Any]) -> None:
        self._run_info["tags"].update(new)
        self._unsaved = True

    def log_other(self, key: str, value: Any) -> None:
        """Store a value as JSON under ``other/<key>``, at the current step."""
        data, problem = plain_value(value)
        if problem is not None:
            raise_for({key: problem}, where=f"log_other of run {self._directory.name!r}")
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
        with self._mutex:
            opened = self._open()
            if opened is None:
                return
            if step is None:
                step = max(self._steps.values(), default=0)
            try:
                unfit = opened.append(step, (stored,), (Json(data),))
            except (OSError, plattli_errors.RunBrokenError) as error:
                unfit = self._wait(error).append(step, (stored,), (Json(data),))
            if not unfit and step > self._steps.get(context, -1):
                if "/" in context:
                    self._note_context(context)
                self._steps[context] = step
        for problem in unfit.values():
            raise_for({full_name: str(problem)}, where=f"run {self._directory.name!r}")

    def _note_context(self, context: str) -> None:
        """Say in the config that a context has a slash: readers split a metric's name at the first one otherwise."""
        if context not in self._slashed:
            self._slashed.add(context)
            self._change(partial(self._set_context, context))

    def _set_context(self, context: str) -> None:
        if context not in self._run_info.setdefault("contexts", []):
            self._run_info["contexts"].append(context)
            self._unsaved = True

    def _change(self, change: Callable[[], None]) -> None:
        """Change the config, and save it; later if the disk takes nothing now."""
        opened = self._open()
        if opened is None:
            return
        if isinstance(opened, Backlog):
            opened.change(change)
            return
        change()
        try:
            self._save_config()
        except OSError as error:
            self._wait(error)

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
        with self._mutex:
            if self._inert is not None:
                return
            if self._status is not None:
                raise LoggerFinishedError(f"run {self._run_id!r} was finished before as {self._status!r}")
            if self._writer is None and self._if_exists == "refuse" and exists(self._directory):
                self._status = status  # nothing was logged here: the run that is there is not ours
                return
            opened = self._open()
            if opened is None:
                return
            if isinstance(opened, Backlog) and not opened.retry():
                raise UnwrittenError(
                    f"{opened.describe()}; the run did not end as {status!r}: make room and call finish again, or "
                    f"they are lost with this process"
                ) from opened.error
            try:
                self._end(status)
            except (OSError, plattli_errors.RunBrokenError) as error:
                if not is_outage(error):
                    raise
                raise UnwrittenError(
                    f"run {self._directory.name!r} did not end as {status!r}: {error}; all its lines are in "
                    f"{self._directory}: make room and call finish again, or go on with the run later"
                ) from error
            self._status = status
            if self._syncer is not None:
                self._syncer.stop()
                self._syncer = None

    def _end(self, status: str) -> None:
        writer = self._begin()
        self._run_info.update(status=status, finished=_now())
        self._unsaved = True
        self._save_config()
        if status not in _FINAL:
            writer.close()
            return
        run = self._directory.name
        try:
            writer.finish()
        except OSError as error:
            if writer.lost is not None:  # the archive is complete
                self._warn_once(f"run {run!r} is finished, and its folder could not be removed ({error})")
            elif error.errno in _FULL:
                self._warn_once(f"run {run!r} stays a folder: the disk has no room for an archive, too ({error})")
                writer.finish(zip=False)
            else:
                raise

    def run_id(self) -> str:
        """Return the run's id, which a resume keeps and which no other run has."""
        return self._run_id

    def run_url(self) -> None:
        """Return ``None``: the run is a local directory, :attr:`run_dir`."""

    def logger_state(self) -> dict[str, JSON]:
        """Return where the run is and how far it has come, per context."""
        with self._mutex:
            if self._backlog is not None:
                self._backlog.retry()  # a checkpoint goes with what is on disk, if that can be
            steps: dict[str, JSON] = dict(self._steps)
            return {
                "run_id": self._run_id,
                "directory": self._absolute,
                "step": max(self._steps.values(), default=-1),
                "steps": steps,
            }

    @cached_property
    def _absolute(self) -> str:
        """The run root for whoever is elsewhere; worked out once, since a driver may ask at every line."""
        return str(self._directory.resolve())

    def reattach(self, state: Any) -> None:
        """Go on with the run of ``state``, without anything that was logged after it was taken.

        Works on a live run that died, on a finished one, and on one that was moved: the directory is
        this logger's, and the run in it must have the state's id.

        Raises:
            RecordError: the state is none of ours, or the directory holds another run or none.
            RunLockedError: another live process writes the run.
            OSError: the disk failed.
        """
        run_id, steps = check_state(state)
        with self._mutex:
            if self._inert is not None:
                return
            if self._writer is not None and self._writer.lost is None and self._run_id != run_id:
                raise RecordError(
                    f"this logger has begun run {self._run_id!r} already, and the state is of {run_id!r}: "
                    f"reattach before logging anything"
                )
            if self._backlog is not None and not self._backlog.retry():
                raise UnwrittenError(f"{self._backlog.describe()}; reattach when it does") from self._backlog.error
            # a writer that is open is not closed: the new one takes the lock over, so that nobody who looks
            # meanwhile finds the run without an owner
            contexts = self._check_identity(run_id, steps, state)
            self._run_id = run_id
            self._steps = dict(steps)
            self._resumed = dict(steps)
            self._status = None
            self._start("append", cut_after({**dict.fromkeys(contexts, -1), **steps}))

    def _check_identity(self, run_id: str, steps: Mapping[str, int], state: Mapping[str, Any]) -> list[str]:
        """Refuse a directory that does not hold the state's run; return the run's contexts with a slash."""
        if not exists(self._directory):
            if steps:
                raise RecordError(
                    f"there is no run in {self._directory.resolve()}; the state is of run {run_id!r}, which was "
                    f"in {state.get('directory')}: create the logger with the directory where that run is now"
                )
            return []
        from plattli.reader import Reader  # noqa: PLC0415 - only a resume reads

        with Reader(self._directory) as reader:
            config = reader.config()
        about = _about(config)
        if about.get("id") != run_id:
            raise RecordError(
                f"{self._directory.resolve()} holds run {about.get('id')!r}, and the state is of run {run_id!r}: "
                f"create the logger with the directory of that run"
            )
        return list(about.get("contexts", []))

    def _open(self) -> RowWriter | Backlog | None:
        """Return what takes lines, started if need be; ``None`` for a copy that must not write."""
        if self._inert is not None:
            self._warn_once(f"this copy of the logger of run {self._run_id!r} writes nothing: {self._inert}")
            return None
        if self._status is not None:
            raise LoggerFinishedError(
                f"run {self._run_id!r} is finished as {self._status!r}; to go on with it, reattach a state or "
                f"create a logger with if_exists='append'"
            )
        if self._backlog is not None:
            return self._backlog
        try:
            return self._begin()
        except OSError as error:
            return self._wait(error)

    def _begin(self) -> RowWriter:
        """Return the writer, started if need be."""
        if self._writer is None:
            if self._if_exists == "refuse" and exists(self._directory):
                raise RunExistsError(
                    f"there is a run already in {self._directory.resolve()}; to go on with it from a checkpoint, "
                    f"call reattach(state) first; to go on after its last step, create the logger with "
                    f"if_exists='append'; to remove it, with if_exists='replace'"
                )
            return self._start(
                "replace" if self._if_exists == "replace" else "append",
                lambda name: None,
                goes_on=self._if_exists == "append",
            )
        if self._writer.lost is not None:
            self._writer.refuse()
        self._save_config()
        return self._writer

    def _wait(self, error: OSError | plattli_errors.RunBrokenError) -> Backlog:
        """Let lines wait until the disk takes them; raise an error that is none of the disk's."""
        if not is_outage(error):
            raise error
        if self._backlog is None:
            self._backlog = Backlog(self._directory.name, self._backlog_size, error, self._begin, self._go_on)
        return self._backlog

    def _go_on(self) -> None:
        self._backlog = None

    def _start(self, if_exists: Literal["append", "replace"], cut: Any, *, goes_on: bool = False) -> RowWriter:
        fresh = not exists(self._directory)
        try:
            writer = RowWriter(
                self._directory, hotsize=self._hotsize, floats=self._floats, if_exists=if_exists, cut=cut
            )
        except plattli_errors.RunLockedError as error:
            raise _RunLockedError(str(error)) from error
        config = {} if if_exists == "replace" else writer.read_config()
        if fresh and not goes_on and _about(config).get("id") != self._run_id:
            config = {}  # of a writer that died before its first metric: that was another run
        self._config = config if isinstance(config, dict) else {"config": config}
        run = self._config.setdefault(RUN_KEY, {})
        if if_exists == "append" and isinstance(run.get("id"), str):
            self._run_id = run["id"]
        run.setdefault("tags", {})
        run.setdefault("started", _now())
        run.setdefault("params_history", [])
        run.update(
            id=self._run_id,
            status="running",
            finished=None,
            versions={"plattli-loggers": __version__, "python": platform.python_version()},
        )
        self._writer = writer
        if self._durability == "fsync" and self._syncer is None:
            self._syncer = Syncer(writer.root, self._sync_every)
        self._unsaved = True
        self._slashed.clear()
        self._lines.clear()
        contexts = run.get("contexts", [])
        for name in writer.metrics:
            context, newest = context_of(_names.decode(name), contexts), writer.newest_of(name)
            if newest > self._steps.get(context, -1):
                self._steps[context] = newest
        self._save_config()
        return writer

    @property
    def _run_info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._config[RUN_KEY]
        return info

    def _save_config(self) -> None:
        if self._unsaved and self._writer is not None:
            self._writer.set_config(self._config)
            self._unsaved = False

    # ---- around the verbs -------------------------------------------------------------------------

    def backend(self) -> RowWriter | None:
        """Return the run's writer, ``None`` before the first verb."""
        return self._writer

    def logger_info(self) -> dict[str, JSON]:
        """Return what people and tools may want to know."""
        return {
            "run_id": self._run_id,
            "directory": str(self._directory.resolve()),
            "status": self._status or ("running" if self._writer is not None else "not started"),
            "step": max(self._steps.values(), default=-1),
            "waiting": 0 if self._backlog is None else len(self._backlog),
        }

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        """Return the identity: a pickled or copied logger writes nothing."""
        return {
            "directory": self._directory,
            "run_id": self._run_id,
            "floats": self._floats,
            "walltime": self._walltime,
            "hotsize": self._hotsize,
            "backlog": self._backlog_size,
            "durability": self._durability,
            "sync_every": self._sync_every,
            "steps": dict(self._steps),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps = state.pop("steps")
        self.__init__(**state)  # type: ignore[misc]
        self._steps = steps  # a checkpoint that asks the copy gets the state of the original
        self._inert = "it is a copy of the logger that does"

    def __repr__(self) -> str:
        return f"PlattliLogger({str(self._directory)!r}, run_id={self._run_id!r})"


class _RunLockedError(RunLockedError, plattli_errors.RunLockedError):
    """Caught as either package's."""


_RunLockedError.__name__ = "RunLockedError"  # what a traceback shows


#: Loggers of this process, so that a fork's copies can be made inert.
_LIVE: Final[weakref.WeakSet[PlattliLogger]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for logger in list(_LIVE):
        logger._inert = "it is in a forked process, and the parent goes on with the run"
        logger._writer = None
        logger._syncer = None  # its thread is the parent's
        if logger._backlog is not None:
            logger._backlog.forget()  # the parent's lines
            logger._backlog = None
        logger._mutex = threading.RLock()  # another thread may have held it at the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _about(config: Any) -> dict[str, Any]:
    """Return what a logger of ours keeps in a config; empty if none wrote it."""
    about = config.get(RUN_KEY) if isinstance(config, dict) else None
    return about if isinstance(about, dict) else {}


def _same(old: Any, new: Any) -> bool:
    """Tell whether two params are the same JSON: ``1`` is not ``True``, and NaN is NaN."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _storable(step: int) -> int:
    if step > MAX_STEP:
        raise StepError(f"step {step} is beyond 2**63 - 1, the last one that a Plättli run can store")
    return step


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
