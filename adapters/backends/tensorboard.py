"""TensorBoard: a run as an event file that TensorBoard can follow while it is written.

::

    logdir/
        events.out.tfevents.0000000000.hparams            params and status, replaced as a whole
        events.out.tfevents.<seconds>.<host>.<pid>        everything else; one file per process

A row of metrics is one record and one ``write``. Nothing is queued, and what a verb wrote survives
``kill -9``. TensorBoard itself is not needed for writing, only for looking.

On resume what an earlier process wrote after the cut is hidden in its files, one byte of each record changed
in place, and its checksum. It has to be so: TensorBoard has a word for the cut, and each of its readers heeds
it for some kinds of data only, so points would stay that are gone, and texts would be there twice.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

from adapters._require import check
from adapters.backends import _markdown, _tfevents, _tfproto
from adapters.backends._picture import confusion_picture
from adapters.backends._tfrun import Run
from adapters.backends._tfstate import RunState, json_tag
from adapters.backends._tfvalues import hparam, not_numbers, showable
from adapters.backends._tfvalues import wall_time as to_seconds
from adapters.backends._tfwriter import RunWriter
from loggers.contract import JSON
from loggers.errors import LoggerError, LoggerFinishedError
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

_WHO: Final = "TensorBoardLogger"
_FLOATS: Final = {float}
_NONE: Final[Mapping[str, str]] = {}


class TensorBoardLogger:
    """The ten verbs, written to a directory that TensorBoard shows as one run.

    Tags are ``<context>/<name>``, with the driver's step as the x axis in every context, and the epoch
    as ``<context>/epoch``. TensorBoard keeps scalars as float32: numbers lose what is behind the
    seventh digit, and what is too large becomes an infinity. Whoever needs the exact values keeps them
    in another logger beside this one.

    Each tag is an increasing series. A value for an older step than the tag's last one is left out,
    counted in :meth:`logger_info`, and said once: TensorBoard's fast reader would take it for a
    restart and forget every newer point. The same step again replaces the point there.

    A metric that is logged in two contexts gets a chart in the Custom Scalars tab, with all of them.

    Building the object does no work, so it can be pickled and sent to where it shall run. The first
    verb makes the directory. The pickle of a logger that has begun leads to its run and holds nothing
    of it. After ``fork`` the child's copy does nothing.

    Args:
        logdir: the run's own directory; its name is the run's name. ``tensorboard --logdir`` takes
            the directory above.
        if_exists: what to do when the directory has event files and :meth:`reattach` is not called:
            ``"refuse"`` raises at the first verb, ``"append"`` keeps their points and goes on behind
            them, ``"replace"`` deletes these files.

    Raises:
        LoggerError: ``if_exists`` is something else, or ``logdir`` is a ``SummaryWriter``.
    """

    #: A few microseconds and a local file: the fan-out calls this logger in turn.
    placement: ClassVar[str] = "inline"

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        *,
        if_exists: Literal["refuse", "append", "replace"] = "refuse",
    ) -> None:
        if hasattr(logdir, "add_scalar"):
            raise LoggerError(
                f"{_WHO} writes a directory of its own, got a {type(logdir).__name__}: hand the writer itself to the "
                "driver or the tee, they take it as a logger, or use SummaryWriterLogger(writer)"
            )
        if if_exists not in ("refuse", "append", "replace"):
            raise LoggerError(f"if_exists must be 'refuse', 'append' or 'replace', got {if_exists!r}")
        self._logdir = os.path.abspath(os.fsdecode(logdir))
        self._if_exists: Literal["refuse", "append", "replace"] = if_exists
        self._run: Run | None = None
        self._pid: int | None = None  # the process that writes: None before the first verb and after finish
        self._home: int | None = None  # the same process, from the moment that its first verb begins
        self._finished = False
        self._lock = threading.RLock()
        self._late = 0
        self._warned: set[str] = set()

    def __reduce__(self) -> tuple[Callable[..., TensorBoardLogger], tuple[str]]:
        # "replace" in the copy of a logger that has begun would delete its run
        if_exists = self._if_exists if self._run is None else "refuse"
        return partial(type(self), if_exists=if_exists), (self._logdir,)

    def __repr__(self) -> str:
        return f"{_WHO}({self._logdir!r})"

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
        """Write one line as one event.

        Args:
            metrics: name -> scalar, kept as float32.
            step: the x axis.
            epoch: becomes ``<context>/epoch``, also in place of a metric of that name, which is said once.
            context: what the tags begin with.
            **axes: ``walltime`` in Unix seconds is the event's time, now by default. Others are
                ignored.

        Raises:
            StepError: ``step`` or ``epoch`` is no integer that fits; nothing was written.
            MetricValueError: some values are no real numbers; the others were written.
            RunExistsError: the directory holds a run already; nothing was written.
            LoggerFinishedError: after :meth:`finish`.
            OSError: the disk refused the line. The next one is tried again, in a new file.
        """
        if type(step) is not int or not 0 <= step <= _tfproto.LAST_STEP:
            step = showable(check_step(step))
        if epoch is not None:
            epoch = check_epoch(epoch)
        if type(context) is not str or not context:
            context = check_context(context)
        if "walltime" not in axes:
            wall_time = time.time()
        elif type(wall_time := axes["walltime"]) is not float:
            wall_time = to_seconds(wall_time)
        values, problems = metrics, _NONE
        if not (floats := type(metrics) is dict and {*map(type, metrics.values())} == _FLOATS):
            values, problems = plain(metrics)
        if self._pid != _process.pid and not self._begin():
            return
        with self._lock:
            run = self._current()
            row = {**values} if epoch is None else {**values, "epoch": epoch}
            try:
                late = run.add_row(context, row, step, wall_time)
            except (TypeError, struct.error):  # the encoder is who notices, so that good rows pay for no check
                if floats:
                    values, problems = plain(row)
                    row = dict(values)
                problems = {**problems, **not_numbers(row)}
                row = {name: value for name, value in row.items() if name not in problems}
                late = run.add_row(context, row, step, wall_time)
        if late:
            self._say_late(late, step)
        if epoch is not None and "epoch" in metrics:
            self._say_clash(context)
        if problems:
            raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write hyperparameters as a table in the Text tab, and as the run's row in the HParams table.

        Later calls add to earlier ones. TensorBoard shows late params when it is started anew; one
        that is running keeps the row that it has seen.

        Raises:
            MetricValueError: ``params`` is no mapping.
            RunExistsError: the directory holds a run already.
            LoggerFinishedError: after :meth:`finish`.
            OSError: the disk refused it.
        """
        self._add(Run.add_params, {name: hparam(value) for name, value in plain_params(params).items()})

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Write tags as a list in the Text tab. They add up.

        Raises:
            MetricValueError: no tags.
            RunExistsError: the directory holds a run already.
            LoggerFinishedError: after :meth:`finish`.
            OSError: the disk refused it.
        """
        self._add(Run.add_tags, {tag: json_tag(value) for tag, value in plain_tags(tags).items()})

    def log_other(self, key: str, value: Any) -> None:
        """Write a free-form value to the Text tab, as ``other/<key>`` at the current step.

        Strings are markdown there, as everywhere in TensorBoard; lists and mappings become a block of
        JSON.

        Raises:
            MetricValueError: neither a number, nor text, nor JSON data.
            RunExistsError: the directory holds a run already.
            LoggerFinishedError: after :meth:`finish`.
            OSError: the disk refused it.
        """
        data, problem = plain_value(value)
        if problem is not None:
            raise_for({key: problem}, where="log_other")
        self._add(Run.add_text, f"other/{key}", _markdown.free_form(data))

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
        """Write a confusion matrix as a picture, and as a table in the Text tab.

        The picture's tag is ``<context>/<name>``, or ``<name>`` without a context; the table's has
        ``/table`` behind that. With more than 50 classes the table lists the most frequent mistakes.

        Args:
            matrix: [K, K] counts or rates, rows true, columns predicted.
            labels: [K] class names.
            epoch: said above the table.
            step: the current one by default.
            context: what the tag begins with.
            name: what it ends with.

        Raises:
            ConfusionError: not square, or not one label per class.
            StepError: ``step`` or ``epoch`` is no non-negative integer.
            RunExistsError: the directory holds a run already.
            LoggerFinishedError: after :meth:`finish`.
            OSError: the disk refused it.
        """
        rows, names = check_confusion(matrix, labels)
        step = None if step is None else check_step(step)
        table = _markdown.confusion_table(rows, names, epoch=check_epoch(epoch))
        tag = f"{name}" if context is None else f"{check_context(context)}/{name}"
        if self._pid != os.getpid() and not self._begin():
            return
        picture = confusion_picture(rows, names)
        with self._lock:
            late = self._current().add_picture(tag, picture, table, step)
        if late:
            self._say_late(late, step)

    def finish(self, status: str) -> None:
        """Write the status to the run's row in the HParams table, and close the file.

        A run that is there already, and that this logger has not gone on with, stays as it is.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: called before.
            OSError: the disk refused it. Finishing may be tried again.
        """
        status = check_status(status)
        foreign = self._run is None and self._if_exists == "refuse" and _tfevents.event_files(self._logdir)
        if self._finished or not foreign:
            if self._pid != os.getpid() and not self._begin():
                return
            with self._lock:
                self._current().finish(status)
        self._finished, self._pid, self._home = True, None, None

    def run_id(self) -> str:
        """Return the name of the run's directory."""
        return os.path.basename(self._logdir)

    def run_url(self) -> None:
        """Return ``None``: a directory has no address."""

    def logger_state(self) -> dict[str, JSON]:
        """Return what :meth:`reattach` needs.

        Returns:
            ``logdir`` and ``run_id``; ``step``, the highest step so far, -1 before the first;
            ``steps``, the last step of each context, and ``pictures``, that of each confusion matrix;
            ``tail``, the pieces of event files that hold the records of that highest step, as [name,
            first byte, last byte]; ``params``, ``tags``, and ``started`` in Unix seconds.
        """
        # in a forked child a thread that is not there may hold the lock
        forked = self._home not in (None, os.getpid())
        with contextlib.nullcontext() if forked else self._lock:
            state = RunState(logdir=self._logdir) if self._run is None else self._run.state()
        return state.plain()

    def reattach(self, state: Any) -> None:
        """Go on with the run in a new event file, cut back to where ``state`` was taken.

        What was written after the state is hidden in the old files, in every context. The new file begins with
        the record by which TensorBoard drops everything from the state's last step on, followed by what had
        been written of that step when the state was taken. A server that is running already has seen the
        lines; it drops those of a tag when later ones are written, and params when it is started anew. An old
        file that cannot be written is said in a warning.

        Args:
            state: what :meth:`logger_state` returned, here or in another process.

        Raises:
            RecordError: not such a state, or one of another directory.
            OSError: the disk refused it.
        """
        run_state = RunState.of(state, self._logdir, _WHO)
        if self._forked():
            return
        self._home = os.getpid()
        with self._lock:
            run = Run.resume(self._logdir, run_state, who=_WHO)
            if self._run is not None:
                self._run.writer.close()
            self._run, self._pid, self._finished = run, os.getpid(), False

    # --- beside the verbs -------------------------------------------------------------------------------

    def rewind(self, step: int) -> None:
        """Go on, in a new event file, as if nothing had been written from ``step`` on, nor params and tags.

        A replay asks for it when its run was cut by a resume; it then makes all of these calls again.

        Raises:
            OSError: the disk refused it.
        """
        state = self.logger_state()
        before: dict[str, JSON] = {"step": step, "tail": [], "params": {}, "tags": {}}
        for kind in ("steps", "pictures"):
            before[kind] = {name: last if last < step else step - 1 for name, last in state[kind].items()}  # type: ignore[union-attr, operator]
        if self._run is not None or step:  # else there is nothing to forget
            self.reattach({**state, **before})

    def backend(self) -> RunWriter:
        """Return a writer for pictures, histograms, texts and numbers of one's own, in this run.

        It is called as PyTorch's ``SummaryWriter`` is: ``backend(logger).add_histogram("weights", w, step)``.
        Asking for it does nothing yet.
        """
        return RunWriter(
            self._logdir,
            add_value=partial(self._add, Run.add_value),
            add_event=partial(self._add, Run.add_event),
        )

    def logger_info(self) -> dict[str, JSON]:
        """Return a few facts for people and tools, among them the command that shows the run."""
        return {
            "logger": _WHO,
            "run_id": self.run_id(),
            "logdir": self._logdir,
            "step": -1 if self._run is None else self._run.step,
            "late": self._late,
            "view": f"tensorboard --logdir {shlex.quote(os.path.dirname(self._logdir))}",
        }

    # --- private ----------------------------------------------------------------------------------------

    def _add(self, add: Callable[..., object], *what: Any) -> None:
        if self._pid == os.getpid() or self._begin():
            with self._lock:
                add(self._current(), *what)

    def preflight(self) -> None:
        """Raise ``ImportError`` if a package that it needs is not installed: a tee asks before training begins."""
        check("google_crc32c", extra="tensorboard", who=_WHO)

    def _begin(self) -> bool:
        """Open the run. Returns ``False`` in a forked child, which has none."""
        if self._forked():
            return False
        self._home = os.getpid()  # before the lock: a child that is forked while we hold it must not wait for it
        with self._lock:
            if self._finished:
                raise self._finished_error()
            if self._run is None:
                self._run = Run.begin(self._logdir, if_exists=self._if_exists, who=_WHO)
                self._pid = os.getpid()
        return True

    def _current(self) -> Run:
        if self._run is None or self._finished:  # another thread has finished it meanwhile
            raise self._finished_error()
        return self._run

    def _finished_error(self) -> LoggerFinishedError:
        return LoggerFinishedError(
            f"{_WHO}({self.run_id()}) is finished: to go on with the run, reattach a state"
        )

    def _forked(self) -> bool:
        if self._home in (None, os.getpid()):
            return False
        self._warn_once(
            "forked",
            f"{_WHO}({self.run_id()}) was opened by process {self._home}, its copy in the forked process "
            f"{os.getpid()} writes nothing: log in the process that opened it, or build another logger here",
        )
        return True

    def _say_late(self, tags: list[str], step: int | None) -> None:
        self._late += len(tags)
        self._warn_once(
            "late",
            f"{_WHO}({self.run_id()}): step {step} of {', '.join(tags)} came after a later step and was left "
            "out, or TensorBoard would forget the newer points; logger_info()['late'] counts any more",
        )

    def _say_clash(self, context: str) -> None:
        self._warn_once(
            f"clash {context}",
            f"{_WHO}({self.run_id()}): the metric 'epoch' of context {context!r} is left out, because the line's "
            f"own epoch is {context}/epoch: log the metric under another name",
        )

    def _warn_once(self, what: str, words: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(words, RuntimeWarning, stacklevel=4)


class _Process:
    """This process. Every line asks which it is, and the system takes as long for the answer as for a small row."""

    def __init__(self) -> None:
        self.note()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.note)

    def note(self) -> None:
        self.pid = os.getpid()


_process: Final = _Process()
