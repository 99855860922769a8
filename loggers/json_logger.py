"""JSON Lines, the logger of a run that names no other.

::

    {"type":"params","seed":42,"width":128}
    {"type":"tags","tags":{"baseline":true}}
    {"type":"metrics","context":"train","epoch":1,"step":4,"loss":0.31}
    {"type":"confusion","context":"validate","epoch":1,"step":160,"name":"confusion","labels":[…],"matrix":[…]}
    {"type":"other","key":"report","value":"…"}
    {"type":"finish","status":"completed"}

Each line is one ``write`` of a whole line to a file opened for appending. So a killed process loses
nothing it has logged, a crash of the machine loses at most the newest lines, and a resumed run simply
goes on in the same file: there is no state to reattach. Several processes may write to one file, each
of them whole lines. While the disk takes nothing, lines wait in memory; what it took of a line is cut
off again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from loggers._backlog import BACKLOG
from loggers._json_file import JSONFile, JSONLine, encode
from loggers.errors import LoggerFinishedError, MetricNameError, MetricValueError, UnwrittenError
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

#: The file that a pathless logger writes in the directory it is given.
FILE_NAME: Final = "metrics.jsonl"
_WITH_STEP: Final = frozenset(("metrics", "confusion"))
#: Keys of a metrics line that no metric can have: a reader could not tell them apart.
_CARRIERS: Final = frozenset(("type", "context", "epoch", "step"))


class JSONLogger:
    """Writes one JSON object per verb call, one per line, into one file.

    Numbers are spelled so that they read back equal; NaN and the infinities are the bare tokens that
    Python's own ``json`` reads and writes. A metric (or parameter) named like one of the line's own
    fields (``type``, ``context``, ``epoch``, ``step``; for parameters ``type``) is left out, with one
    warning per name.

    After a ``fork`` the child's copy writes nothing, begun or not, and so does a pickled copy of a logger that has
    begun to write. A logger that has not may be pickled and used elsewhere.

    Args:
        path: the file; it is appended to, and its directories are made. Without a path a driver has
            to :meth:`adopt` the logger. Nothing is opened before the first verb.
        backlog: bytes of memory for lines that the disk does not take; 0 raises ``UnwrittenError`` at
            once.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, backlog: int = BACKLOG) -> None:
        self._file = JSONFile(self, None if path is None else Path(path), backlog)
        self._owner = os.getpid()  # a fork's copy is none of its own
        self._begun = False
        self._finished = False
        self._warned: set[str] = set()
        self._last: dict[str, Any] = {}  # context, epoch and step of the last metrics line

    @property
    def path(self) -> Path | None:
        """The file; ``None`` for a logger that was given none yet."""
        return self._file.path

    @path.setter
    def path(self, path: Path) -> None:
        self._file.path = path

    def adopt(self, directory: str | os.PathLike[str]) -> None:
        """Write to ``metrics.jsonl`` in ``directory``, unless the logger has a path already."""
        if self._file.path is None:
            self._file.path = Path(directory) / FILE_NAME

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
        """Write a line of type ``metrics``; the key ``epoch`` only if there is one. Axes are ignored.

        Raises:
            StepError, MetricNameError: the step, epoch or context is none; nothing is written.
            MetricValueError: names the values that could not be written; the others were.
            UnwrittenError: the disk takes nothing, and memory is used up. The line was not kept.
        """
        if not self._may_write():
            return
        place: dict[str, Any] = {"context": check_context(context)}
        if epoch is not None:
            place["epoch"] = check_epoch(epoch)
        place["step"] = check_step(step)
        values, problems = plain(metrics)
        taken = _CARRIERS & values.keys()
        kept = {name: v for name, v in values.items() if name not in taken} if taken else values
        if values or not problems:
            self._write({"type": "metrics", **place, **kept})
        self._last = place
        for name in sorted(taken):
            self._warn_taken("metric", name)
        if problems:
            raise_for(problems, where=f"the {place['context']} line of step {place['step']}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write a line of type ``params``. A later line's values win over an earlier one's."""
        if self._may_write():
            values = plain_params(params)
            taken = values.pop("type", _CARRIERS) is not _CARRIERS
            self._write({"type": "params", **values})
            if taken:
                self._warn_taken("parameter", "type")

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Write a line of type ``tags`` with one mapping; a plain tag has the value ``true``."""
        if self._may_write():
            self._write({"type": "tags", "tags": plain_tags(tags)})

    def log_other(self, key: str, value: Any) -> None:
        """Write a line of type ``other``.

        Raises:
            MetricNameError: the key is no non-empty string.
            MetricValueError: JSON cannot hold the value.
        """
        if not self._may_write():
            return
        if not isinstance(key, str) or not key:
            raise MetricNameError(f"the key of log_other must be a non-empty string, got {key!r}")
        data, problem = plain_value(value)
        if problem is not None:
            raise MetricValueError(f"log_other {key!r} could not be logged: {problem}")
        self._write({"type": "other", "key": str.__str__(key), "value": data})

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
        """Write a line of type ``confusion``, by default at the step and epoch of the last metrics line.

        Raises:
            ConfusionError: not square, not finite numbers, or not one label per class.
        """
        if not self._may_write():
            return
        rows, classes = check_confusion(matrix, labels)
        if step is None:
            step = self._last.get("step")
            epoch = self._last.get("epoch") if epoch is None else epoch
        place: dict[str, Any] = {}
        if context is not None:
            place["context"] = check_context(context)
        if epoch is not None:
            place["epoch"] = check_epoch(epoch)
        if step is not None:
            place["step"] = check_step(step)
        if not isinstance(name, str) or not name:
            raise MetricNameError(f"the name of a confusion matrix must be a non-empty string, got {name!r}")
        self._write({"type": "confusion", **place, "name": name, "labels": classes, "matrix": rows})

    def finish(self, status: str) -> None:
        """Write the line of type ``finish`` and close the file.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: here and from every later verb, if the run has finished before.
            UnwrittenError: the disk takes nothing. The message says what is missing; ``finish`` can be
                called again.
        """
        if self._may_write():
            line = JSONLine(None, encode({"type": "finish", "status": check_status(status)}))
            with self._file.mutex:
                self._check_open()
                self._end(line, status)
                self._finished = True
        self._finished = True

    def _end(self, line: JSONLine, status: str) -> None:
        file = self._file
        missing = "all its lines but this last one are there; make room and call finish again"
        try:
            if file.backlog is None or file.backlog.retry():
                file.write(line)
                file.close()
                return
            error = file.backlog.error
            missing = f"{file.backlog.describe()}; make room and call finish again, or they are lost with this process"
        except OSError as problem:
            file.check(problem)
            error = problem
        raise UnwrittenError(
            f"the file {self.path} does not end as {status!r} ({error}): {missing}"
        ) from error

    def run_id(self) -> str | None:
        """Return ``None``: the file is the run."""
        return None

    def run_url(self) -> str | None:
        """Return ``None``: there is no page to look at."""
        return None

    def logger_state(self) -> None:
        """Return ``None``: the file is appended to, so there is nothing to reattach."""

    def reserved(self, epoch: int | None) -> tuple[str, ...]:
        """Return the names that no metric of a line has here, because the line's own fields have them."""
        return tuple(_CARRIERS)

    def hold_nothing(self) -> None:
        """Raise what the disk does not take, as with ``backlog=0``: a tee has it in the run of its primary."""
        self._file.limit = 0

    def waiting(self) -> list[tuple[int, Sequence[str]]]:
        """Return an entry for each line that waits in memory, because the disk takes nothing."""
        with self._file.mutex:
            return [(line.step or 0, ()) for line in self._file.backlog or ()]

    def logger_info(self) -> dict[str, Any]:
        """Return where the file is."""
        backlog = self._file.backlog
        return {
            "logger": "JSONLogger",
            "path": None if self.path is None else str(self.path),
            "waiting": 0 if backlog is None else len(backlog),
        }

    # --- the file -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file without finishing the run; a later verb opens it again.

        What waits for the disk is tried once more; if it takes nothing yet, it goes on waiting.
        """
        if self._owner != os.getpid():
            self._file.close()  # a fork's copy of the descriptor
            return
        with self._file.mutex:
            if self._file.backlog is not None:
                self._file.backlog.retry()
            self._file.close()

    def __enter__(self) -> Self:
        """Return the logger."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the file. Only :meth:`finish` finishes the run."""
        self.close()

    def __repr__(self) -> str:
        """Return how to build this logger again."""
        return f"JSONLogger({'' if self.path is None else repr(str(self.path))})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file behind. A copy of a logger in use belongs to no process."""
        return {**self.__dict__, "_file": (self._file.path, self._file.limit)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        path, limit = state["_file"]
        owner = -1 if state["_begun"] or state["_owner"] == -1 else os.getpid()
        self.__dict__.update(state, _file=JSONFile(self, path, limit), _owner=owner)

    def _may_write(self) -> bool:
        """Return whether this copy of the logger writes at all."""
        self._check_open()
        if self._owner == os.getpid():
            return True
        self._warn_once("copy", f"{self!r} writes nothing here: it is a copy of another process's logger")
        return False

    def _check_open(self) -> None:
        if self._finished:
            raise LoggerFinishedError(
                f"{self!r} is finished and logs nothing any more: build another one to append to the file"
            )

    def _warn_taken(self, what: str, name: str) -> None:
        self._warn_once(
            f"{what} {name}",
            f"the {what} {name!r} is left out of {self.path}, whose lines have a field of their own of that "
            "name: rename it",
        )

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, UserWarning, stacklevel=4)

    def _write(self, row: dict[str, Any]) -> None:
        self._begun = True
        line = JSONLine(row.get("step") if row["type"] in _WITH_STEP else None, encode(row))
        with self._file.mutex:
            self._check_open()  # another thread may have ended the run since it was asked the first time
            self._file.store(line)
