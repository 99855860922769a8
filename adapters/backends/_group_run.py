"""One metrics group, opened to be written: its log, and what is densified of it."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from adapters.backends._group_catalog import Catalog, NoGroupError
from adapters.backends._group_dense import Arrays, Densifier
from adapters.backends._group_events import event_line
from adapters.backends._group_log import FILE_NAME, Log
from loggers.contract import JSON
from loggers.errors import LoggerError, RecordError, RunExistsError

WHO: Final = "MetricsGroupLogger"
#: Types of events that are logged anew when a run goes on after a cut.
_OF_THE_RUN: Final = frozenset(("params", "tags", "finish", "resume"))


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """A group at one moment, in terms that JSON can hold.

    Attributes:
        path: where the group was.
        run_id: what it is called; the group may have moved.
        size: bytes of its log.
        step, epoch: the current ones, ``None`` before the first line.
        status: how the run has ended, ``None`` if it has not.
    """

    path: str
    run_id: str
    size: int = 0
    step: int | None = None
    epoch: int | None = None
    status: str | None = None

    def plain(self) -> dict[str, JSON]:
        """Return JSON data for a checkpoint."""
        wal: dict[str, JSON] = {"bytes": self.size}
        return {"path": self.path, "run_id": self.run_id, "wal": wal, "step": self.step, "epoch": self.epoch,
                "status": self.status}  # fmt: skip

    @classmethod
    def of(cls, state: Any, folder: Path) -> GroupState:
        """Return the state that a checkpoint holds.

        Raises:
            RecordError: it holds none.
        """
        try:
            run = cls(
                path=state["path"],
                run_id=state["run_id"],
                size=state["wal"]["bytes"],
                step=state["step"],
                epoch=state["epoch"],
                status=state["status"],
            )
            numbers = [run.size, *(number for number in (run.step, run.epoch) if number is not None)]
            if not isinstance(run.run_id, str) or not all(type(n) is int and n >= 0 for n in numbers):
                raise TypeError("a value is of another type")
        except (TypeError, KeyError, AttributeError) as error:
            raise RecordError(
                f"{WHO} on {folder} got a state that its logger_state() never returns "
                f"({type(error).__name__}: {error}): {state!r:.200}; pass the one from the checkpoint"
            ) from None
        return run


class GroupRun:
    """A metrics group that one logger writes.

    Attributes:
        log: its log.
        densifier: its arrays and its catalog.
    """

    def __init__(self, folder: Path, *, take: bool = True) -> None:
        """Open the group in ``folder``, which is made if it is not there; for ``take`` see :class:`Log`."""
        arrays = Arrays(folder, own=True)  # raises before anything is written if zarr is not installed
        folder.mkdir(parents=True, exist_ok=True)
        self.log = Log(folder, take=take)
        try:
            # read behind the lock: whoever wrote the group before has written the last of it
            self.densifier = Densifier(folder, arrays, Catalog.load(folder) or Catalog.new(folder))
        except BaseException:
            self.log.close()
            raise
        self._told: set[str] = set()  # contexts with slashes of which the log says that they are some
        self._lines = 0  # since it was densified
        self._warned = False

    @classmethod
    def begin(cls, folder: Path, run_id: str, if_exists: Literal["refuse", "append", "replace"]) -> GroupRun:
        """Open a group to log to.

        Args:
            folder: the group's.
            run_id: what to call a run that has no name yet.
            if_exists: what to do with a run that is there.

        Raises:
            RunExistsError: there is one, and it is to be refused.
            RunLockedError: another live logger writes it.
            CorruptGroupError: the catalog cannot be read.
            OSError: the disk refused something.
        """
        if if_exists == "refuse" and holds_run(folder):
            raise RunExistsError(
                f"{folder} holds a metrics group already: go on with it by reattaching a state, or build "
                f"{WHO}(path, if_exists='append') or (path, if_exists='replace')"
            )
        run = cls(folder)
        try:
            catalog = run.densifier.catalog
            if if_exists == "replace":
                run._clear()
            elif catalog.covers is None or catalog.covers[1] > run.log.size:
                run.densifier.rewrite_log(run.log)
            run._sign(run_id)
        except BaseException:
            run.log.close()
            raise
        return run

    @classmethod
    def resume(cls, folder: Path, state: GroupState) -> GroupRun:
        """Open a group, and take everything away that was logged after a state.

        Raises:
            RecordError: the state is of another group, or of more than is there.
            RunLockedError: another live logger writes it.
            CorruptGroupError: the catalog cannot be read.
            OSError: the disk refused something.
        """
        catalog = Catalog.load(folder)
        if (there := None if catalog is None else catalog.run_id) not in (None, state.run_id):
            raise RecordError(
                f"{WHO} on {folder} cannot go on with run {state.run_id!r}, which was at {state.path}: "
                f"run {there!r} is there; build {WHO} with the path of the run of this record"
            )
        path = folder / FILE_NAME
        size = path.stat().st_size if path.is_file() else 0
        # whoever was killed behind a rewind, before the next state, asks for it again: until then all of it stays
        was_rewound = catalog is not None and catalog.rewound >= state.size
        if size < state.size and not was_rewound:
            raise RecordError(
                f"{WHO} on {folder} cannot go on with run {state.run_id!r}: {path} has {size} bytes, and had "
                f"{state.size} when the state was taken; restore it, or build {WHO}(path, if_exists='append')"
            )
        run = cls(folder)
        try:
            covers = run.densifier.catalog.covers
            end = state.size if run.log.ends_line(state.size) or not was_rewound else run.log.size
            if covers is None or not run.log.ends_line(end):
                problem = "it is no part of the group" if covers is None else f"no line ends at byte {state.size}"
                raise RecordError(
                    f"{WHO} on {folder} cannot go on with run {state.run_id!r}: {path} is not the log of which the "
                    f"state was taken, as {problem}; restore it, or build {WHO}(path, if_exists='append')"
                )
            run.densifier.rewind(rebuild=covers[1] > end)
            run.log.cut(end)
            run.densifier.mark_cut()
            run._sign(state.run_id)
        except BaseException:
            run.log.close()
            raise
        return run

    def rewind(self, step: int) -> None:
        """Take away what belongs to a step from ``step`` on, and params, tags and the end.

        Raises:
            OSError: the disk refused it; nothing of the log is gone.
        """
        self.densifier.note_rewind(self.log.size)
        self.densifier.rewind(rebuild=True)
        self.log.keep(partial(_is_before, step))
        self.densifier.mark_cut()

    def append_in(self, context: str, line: bytes, time: str) -> None:
        """Write a line to the log, with what tells where its context ends, which has a slash itself."""
        if context not in self._told:
            line = event_line("context", context, None, time) + line
        self.log.append(line)
        self._told.add(context)

    def densify(self) -> None:
        """Bring the arrays up to date; see :meth:`Densifier.densify`."""
        self._lines = 0
        self.log.check()
        self.densifier.densify()

    def densify_every(self, lines: int) -> None:
        """Count a line, and densify if it is time.

        The line is in the log: whatever goes wrong here is no error of that line, and is said once.
        """
        self._lines += 1
        if self._lines < lines:
            return
        try:
            self.densify()
        except (OSError, LoggerError) as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{WHO}({str(self.log.path.parent)!r}) could not bring its arrays up to date "
                    f"({type(error).__name__}: {error}); the log has everything, and it is tried again",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def state(self, step: int | None, epoch: int | None, status: str | None) -> GroupState:
        """Return the group's state now, with what only its logger knows."""
        folder = str(self.log.path.parent)
        return GroupState(path=folder, run_id=self.run_id, size=self.log.size, step=step, epoch=epoch, status=status)

    @property
    def run_id(self) -> str:
        """What the run is called."""
        return str(self.densifier.catalog.run_id)

    def _clear(self) -> None:
        self.densifier.rewind(rebuild=True)
        self.log.cut(0)
        catalog = self.densifier.catalog.copy()
        catalog.forget()
        self.densifier.save(catalog)

    def _sign(self, run_id: str) -> None:
        """Say in the catalog what the run is called, and that there is a log."""
        catalog = self.densifier.catalog.copy()
        catalog.data["run_id"] = catalog.run_id or run_id
        catalog.data.setdefault("wal", {"lines": 0, "bytes": 0})
        catalog.data.setdefault("series", {})
        if catalog.data != self.densifier.catalog.data:
            self.densifier.save(catalog)


def _is_before(step: int, line: bytes) -> bool:
    event = json.loads(line)
    at = event.get("step")
    return event["type"] not in _OF_THE_RUN and (at is None or at < step)


def holds_run(folder: Path) -> bool:
    """Return whether somebody has logged to a group in ``folder``."""
    path = folder / FILE_NAME
    if path.is_file() and path.stat().st_size:
        return True
    catalog = Catalog.load(folder)
    return catalog is not None and catalog.holds_points


def stored_run_id(folder: Path) -> str | None:
    """Return what the run in ``folder`` is called, ``None`` if there is none, or it has no name."""
    catalog = Catalog.load(folder)
    return None if catalog is None else catalog.run_id


def densify(path: str | os.PathLike[str]) -> None:
    """Bring the arrays of a group that nobody writes up to date with its log.

    Raises:
        NoGroupError: there is neither a group nor a log.
        RunLockedError: a live logger writes it; it densifies itself.
        CorruptGroupError: the log or an array is damaged.
        OSError: the disk refused it. Nothing is lost, and it may be tried again.
    """
    folder = Path(path)
    if not (folder / FILE_NAME).is_file() and Catalog.load(folder) is None:
        raise NoGroupError(f"there is no metrics group at {folder}")
    run = GroupRun(folder, take=False)
    try:
        run.densifier.densify()
    finally:
        run.log.close()
