"""The run on disk that a ``PlattliLogger`` writes: its writer, its config, and how far it has come."""

from __future__ import annotations

import contextlib
import errno
import json
import platform
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from loggers import _revisions
from loggers import names as _names
from loggers._backlog import Sink
from loggers._runstate import context_of, cut_after
from loggers.contract import JSON
from loggers.errors import RecordError, RunExistsError, RunLockedError
from loggers.ranks import rank_hint
from plattli import __version__
from plattli import errors as plattli_errors
from plattli._syncing import Syncer
from plattli.rows import Json, RowWriter, exists

#: The one key of ``config.json`` that is ours; all others are the user's params.
RUN_KEY: Final = "_run"
#: Statuses that end a run for good; the others leave it open for a resume.
_FINAL: Final = ("completed", "early_stop")
#: What a context has beside its metrics: of each line.
CARRIERS: Final = ("epoch", "walltime")
#: No room: an archive is made beside the folder, and takes as much again.
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
#: What a row costs in memory beside its values, and a number in it, in bytes; generous.
_ROW, _NUMBER = 160, 40


class Row(NamedTuple):
    """One row, as :meth:`plattli.rows.RowWriter.append` takes it."""

    step: int
    names: tuple[str, ...]
    values: tuple[Any, ...]
    floats: bool

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        size: int = _ROW + _NUMBER * len(self.values)
        for value in self.values:
            if isinstance(value, Json):
                value = value.value
            if isinstance(value, str | list | dict):
                size += 8 * len(repr(value))  # a list of small integers takes about that
        return size


@dataclass(frozen=True)
class Options:
    """How a run is written; the fields are arguments of ``PlattliLogger``."""

    if_exists: Literal["refuse", "append", "replace"]
    floats: Literal["exact", "f32", "f64"]
    hotsize: int
    durability: Literal["process", "fsync"]
    sync_every: float


class PlattliRun(Sink[Row]):
    """A run directory while a logger writes it.

    Attributes:
        directory: the run root.
        run_id: what the run is called.
        writer: the run's writer, ``None`` before the first verb.
        steps: context -> highest step logged in it.
    """

    def __init__(self, owner: object, directory: Path, run_id: str, options: Options, limit: int) -> None:
        super().__init__(owner, directory.name, limit)
        self.directory = directory
        self.run_id = run_id
        self.options = options
        self.writer: RowWriter | None = None
        self.steps: dict[str, int] = {}
        self._syncer: Syncer | None = None
        self._journal = _revisions.Journal(directory)
        self._config: dict[str, Any] = {}
        self._unsaved = False
        #: what is to be changed in the config, once it is known
        self._changes: list[Callable[[], None]] = []
        #: stored names of metrics that are called like what the logger itself puts beside the metrics of a line
        self.namesakes: set[str] = set()

    # ---- rows ---------------------------------------------------------------------------------------

    def append(
        self, step: int, names: tuple[str, ...], values: tuple[Any, ...], floats: bool
    ) -> Mapping[str, Exception]:
        """Store a row, or have it wait: :meth:`~loggers._backlog.Sink.store`, without the cost of a :class:`Row`."""
        writer = self.writer
        if writer is not None and self.backlog is None:
            try:
                return writer.append(step, names, values, floats=floats)
            except (OSError, plattli_errors.RunBrokenError) as error:
                self.wait(error)
        return self.store(Row(step, names, values, floats))

    def write(self, line: Row) -> Mapping[str, Exception]:
        """See :meth:`loggers._backlog.Sink.write`."""
        writer = self.writer or self.begin()
        return writer.append(line.step, line.names, line.values, floats=line.floats)

    def is_outage(self, error: BaseException) -> bool:
        """See :meth:`loggers._backlog.Sink.is_outage`."""
        if isinstance(error, plattli_errors.RunBrokenError):
            return isinstance(error.__cause__, OSError)
        # several errors of ours are OSErrors too: a run that is locked, or exists already
        return super().is_outage(error) and not isinstance(error, plattli_errors.PlattliError)

    # ---- the config ---------------------------------------------------------------------------------

    @property
    def about(self) -> dict[str, Any]:
        """The logger's own part of the config."""
        about: dict[str, Any] = self._config[RUN_KEY]
        return about

    def add_params(self, new: dict[str, JSON]) -> None:
        """Set hyperparameters; earlier values of changed ones go into the history."""
        self._change(partial(self._add_params, new))

    def _add_params(self, new: dict[str, JSON]) -> None:
        known = {k: v for k, v in self._config.items() if k in new}
        if changed := {k: v for k, v in known.items() if not _same(v, new[k])}:
            self.about["params_history"].append({"time": _now(), "params": changed})
        if changed or len(known) < len(new):
            self._config.update(new)
            self._unsaved = True

    def add_tags(self, new: dict[str, Any]) -> None:
        """Add tags."""
        self._change(partial(self._add_tags, new))

    def _add_tags(self, new: dict[str, Any]) -> None:
        self.about["tags"].update(new)
        self._unsaved = True

    def add_context(self, context: str) -> None:
        """Say that a context has a slash: readers split a metric's name at the first one otherwise."""
        self._change(partial(self._add_context, context))

    def _add_context(self, context: str) -> None:
        if context not in self.about.setdefault("contexts", []):
            self.about["contexts"].append(context)
            self._unsaved = True

    def _change(self, change: Callable[[], None]) -> None:
        """Change the config, and save it; later if the disk takes nothing now."""
        self._changes.append(change)
        if self.backlog is not None:
            self.backlog.retry(only_if_due=True)
        else:
            try:
                self.complete()
            except OSError as error:
                self.wait(error)
        if self.backlog is not None:
            self.backlog.announce()

    def complete(self) -> None:
        """Make the changes; see :meth:`loggers._backlog.Sink.complete`."""
        writer = self.begin()
        while self._changes:
            self._changes[0]()
            del self._changes[0]
        self._save(writer)

    def waits_beside(self) -> bool:
        """See :meth:`loggers._backlog.Sink.waits_beside`."""
        return bool(self._changes) or self._unsaved

    def _save(self, writer: RowWriter) -> None:
        if self._unsaved:
            writer.set_config(self._config)
            self._unsaved = False

    # ---- its life -----------------------------------------------------------------------------------

    def begin(self) -> RowWriter:
        """Return the run's writer, started if need be; see :meth:`loggers._backlog.Sink.begin`.

        Raises:
            RunExistsError: there is a run already, and nobody said what to do with it.
        """
        writer = self.writer
        if writer is None:
            if_exists = self.options.if_exists
            if if_exists == "refuse" and exists(self.directory):
                raise RunExistsError(
                    f"there is a run already in {self.directory.resolve()}; to go on with it from a checkpoint, "
                    f"call reattach(state) first; to go on after its last step, create the logger with "
                    f"if_exists='append'; to remove it, with if_exists='replace'"
                )
            replaces = if_exists == "replace"
            writer = self._start(
                "replace" if replaces else "append", {} if replaces else None, goes_on=if_exists == "append"
            )
        elif writer.lost is not None:
            writer.refuse()
        self._save(writer)
        return writer

    def resume(self, run_id: str, steps: dict[str, int], state: Mapping[str, Any]) -> None:
        """Go on with the run that is there after ``steps``; everything newer goes.

        Raises:
            RecordError: the directory holds another run or none. Nothing has changed.
            OSError: the disk failed.
        """
        # a writer that is open is not closed: the new one takes the lock over, so that nobody who looks
        # meanwhile finds the run without an owner
        contexts = self._check_identity(run_id, steps, state)
        self.run_id = run_id
        self.steps = dict(steps)
        self._save(self._start("append", {**dict.fromkeys(contexts, -1), **steps}))

    def _check_identity(self, run_id: str, steps: Mapping[str, int], state: Mapping[str, Any]) -> list[str]:
        """Refuse a directory that does not hold the state's run; return the run's contexts with a slash."""
        if not exists(self.directory):
            if steps:
                raise RecordError(
                    f"there is no run in {self.directory.resolve()}; the state is of run {run_id!r}, which was "
                    f"in {state.get('directory')}: create the logger with the directory where that run is now"
                )
            return []
        from plattli.reader import Reader  # noqa: PLC0415 - only a resume reads

        with Reader(self.directory) as reader:
            config = reader.config()
        about = _about(config)
        if about.get("id") != run_id:
            raise RecordError(
                f"{self.directory.resolve()} holds run {about.get('id')!r}, and the state is of run {run_id!r}: "
                f"create the logger with the directory of that run"
            )
        return list(about.get("contexts", []))

    def _start(
        self, if_exists: Literal["append", "replace"], after: Mapping[str, int] | None, *, goes_on: bool = False
    ) -> RowWriter:
        """Open the run, cut behind some steps by context; ``None`` cuts nothing."""
        fresh = not exists(self.directory)
        options = self.options
        try:
            writer = RowWriter(
                self.directory,
                hotsize=options.hotsize,
                floats=options.floats,
                if_exists=if_exists,
                cut=None if after is None else cut_after(after),
                opening=self._cutting(None if fresh else after),
                revising=self._revising,
            )
        except plattli_errors.RunLockedError as error:
            raise _RunLockedError(f"{error}{rank_hint()}") from error
        config = {} if if_exists == "replace" else writer.read_config()
        if fresh and not goes_on and _about(config).get("id") != self.run_id:
            config = {}  # of a writer that died before its first metric: that was another run
        self._config = config if isinstance(config, dict) else {"config": config}
        run = self._config.setdefault(RUN_KEY, {})
        if if_exists == "append" and isinstance(run.get("id"), str):
            self.run_id = run["id"]
        run.setdefault("tags", {})
        run.setdefault("started", _now())
        run.setdefault("params_history", [])
        run.update(
            id=self.run_id,
            status="running",
            finished=None,
            versions={"plattli-loggers": __version__, "python": platform.python_version()},
        )
        self.writer, self.begun = writer, True
        if options.durability == "fsync" and self._syncer is None:
            self._syncer = Syncer(writer.root, options.sync_every)
        self._unsaved = True
        contexts = run.get("contexts", [])
        for name in writer.metrics:
            context, newest = context_of(_names.decode(name), contexts), writer.newest_of(name)
            if newest > self.steps.get(context, -1):
                self.steps[context] = newest
        return writer

    @contextlib.contextmanager
    def _cutting(self, after: Mapping[str, int] | None) -> Iterator[None]:
        """Note that the run is cut, for those who have read it already."""
        with contextlib.nullcontext() if after is None else self._journal.cut(after):
            yield
        self._journal.end()  # what a killed writer was about

    def _revising(self, step: int, names: list[str]) -> contextlib.AbstractContextManager[None]:
        """Note that metrics get another value at a step, for those who have read it already."""
        # a second line of a step has the time of its own, and that alone is no news
        metrics = [n for n in names if n.rpartition("/")[2] not in CARRIERS or n in self.namesakes]
        return self._journal.point(step, metrics) if metrics else contextlib.nullcontext()

    def end(self, status: str) -> None:
        """Record the status; make an archive if the run ends for good. Raises what the disk says."""
        writer = self.begin()
        self.about.update(status=status, finished=_now())
        self._unsaved = True
        self._save(writer)
        if status in _FINAL:
            self._archive(writer)
        else:
            writer.close()
        self._journal.close()
        if self._syncer is not None:
            self._syncer.stop()
            self._syncer = None

    def _archive(self, writer: RowWriter) -> None:
        try:
            writer.finish()
        except OSError as error:
            if writer.lost is not None:  # the archive is complete
                _warn(f"run {self.name!r} is finished, and its folder could not be removed ({error})")
            elif error.errno in _FULL:
                _warn(f"run {self.name!r} stays a folder: the disk has no room for an archive, too ({error})")
                writer.finish(zip=False)
            else:
                raise

    def let_go_after_fork(self) -> None:
        """Leave the parent's files alone in a forked child."""
        self.writer = None
        self._syncer = None  # its thread is the parent's
        self.backlog = None  # and so are the lines
        self._changes.clear()
        self.mutex = threading.RLock()  # another thread may have held it at the fork


class _RunLockedError(RunLockedError, plattli_errors.RunLockedError):
    """Caught as either package's."""


_RunLockedError.__name__ = "RunLockedError"  # what a traceback shows


def _about(config: Any) -> dict[str, Any]:
    """Return what a logger of ours keeps in a config; empty if none wrote it."""
    about = config.get(RUN_KEY) if isinstance(config, dict) else None
    return about if isinstance(about, dict) else {}


def _same(old: Any, new: Any) -> bool:
    """Tell whether two params are the same JSON: ``1`` is not ``True``, and NaN is NaN."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=6)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
