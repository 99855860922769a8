"""Koochak: its hooks in, our verbs out.

::

    from adapters.drivers.koochak import make_logger_hooks

    hooks = make_logger_hooks(PlattliLogger("runs/a"))
    training_loop(model=model, dataset=dataset, step_fn=step_fn, optimizer=optimizer, train_cfg=cfg, hooks=hooks)

Train and validate lines have Koochak's own step, the zero-based index of the update, so that curves lie over
those of its other loggers. A checkpoint can be resumed exactly: see :mod:`adapters.drivers._records`.

Koochak itself is not needed, nor is PyTorch: hooks are functions.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from adapters.drivers._config import as_mapping, params_of
from adapters.drivers._records import RecordBook, load_sidecar, prune_sidecars, said, save_sidecar, sidecar_of
from loggers.errors import LoggerError, MetricValueError, RecordError, StepError
from loggers.session import TrainingSession
from loggers.values import check_epoch, check_step

#: What Koochak puts into a line for its own use, and what no metric of ours can be.
_NOT_METRICS: Final = frozenset(("step",))


def make_logger_hooks(
    logger: Any,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Any = None,
    epoch_key: str | None = None,
    name: str = "logger",
    records: str | os.PathLike[str] | None = None,
    fail_closed: bool = True,
) -> dict[str, list[Callable[..., None]]]:
    """Return the hooks with which Koochak's ``training_loop`` logs to ``logger``.

    ==========================  ====================================================================
    event                       becomes
    ==========================  ====================================================================
    first event of a step       ``log_params`` and ``log_tags``, unless the run is resumed before
    ``on_log``                  the train line: all of ``logs`` but ``step``
    ``on_eval_end``             the validate line
    ``on_checkpoint``           a sidecar beside the checkpoint, ``<file>.logger.json``, and
                                ``log_other("checkpoint", {"path", "step"})``
    ``on_resume_checkpoint``    ``reattach`` to where that checkpoint was taken
    ``on_train_end``            ``finish("completed")``, or ``"interrupted"`` if the run was evacuated
    ``on_exception``            ``finish("error")``
    KeyboardInterrupt, SIGTERM  ``finish("interrupted")`` at the end of the process, or with the next
    ``sys.exit()``              training in it, because Koochak has no event for them
    ==========================  ====================================================================

    Nothing is written before the first step is done or a checkpoint is resumed, so a run that goes on is never taken
    for a new one. With auto-resume, an attempt that died before its first checkpoint is begun again, as the same run.

    NaN and infinite metrics are left out of the lines, with one warning per metric. So is what the
    logger cannot hold. Other ranks than 0 do nothing.

    Args:
        logger: an object with the ten verbs that has not begun, or ``None`` to log nothing.
        params: more params than Koochak's config, whose keys become ``section.key``; these win.
        tags: for ``log_tags``.
        epoch_key: the key of ``logs`` that holds the epoch, an integer; by default lines have none.
        name: what the files of this logger's records are called after. Two loggers, each with hooks of its own in
            one training, need two names, unless one has nothing to reattach and therefore no records.
        records: the folder of ``logger-records.jsonl``, the records by step, which a resume needs when the process
            was killed between a checkpoint and its ``on_checkpoint``. By default ``train.out_dir`` or, if there is
            none, the logger's directory.
        fail_closed: let errors of the logger end training. Without, Koochak's emitter swallows them: for a logger
            that may lose lines.

    Returns:
        event -> callbacks of these arguments; merge them with others as Koochak does.
    """
    if logger is None:
        return {}
    bridge = _Bridge(logger, params or {}, tags, epoch_key, name, records)
    events = {name: getattr(bridge, name) for name in dir(bridge) if name.startswith("on_")}
    return {name: [_Callback(name, method, fail_closed)] for name, method in events.items()}


#: Where records are kept -> by whom
_books: Final[weakref.WeakValueDictionary[str, _Bridge]] = weakref.WeakValueDictionary()


class _Callback:
    """A hook of rank 0."""

    def __init__(self, name: str, method: Callable[..., None], fail_closed: bool) -> None:
        self.__name__ = f"{name} of make_logger_hooks"
        self._method = method
        #: Koochak's emitter looks for this, and lets an error through
        self._koochak_fail_closed = fail_closed

    def __call__(self, *args: Any) -> None:
        if not args[-1].get("rank"):
            self._method(*args)

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


class _Bridge:
    """One training after the other, on one logger."""

    def __init__(
        self,
        logger: Any,
        params: Mapping[str, Any],
        tags: Any,
        epoch_key: str | None,
        name: str,
        records: str | os.PathLike[str] | None,
    ) -> None:
        self._logger = logger
        self._params = params
        self._tags = tags
        self._epoch_key = epoch_key
        self._name = name
        self._records = records
        self._session: TrainingSession | None = None
        self._begun = False
        self._ended = False
        #: a checkpoint was chosen, and the logger has not been put back to it yet
        self._resuming = False
        self._warned: set[str] = set()

    # ---- the events -----------------------------------------------------------------------------------

    def on_train_start(self, ctx: Mapping[str, Any]) -> None:
        """Check the logger. Whether its run is a new one will be known later."""
        if self._session is not None and self._begun:
            # nobody has ended the last training: it was interrupted, and its process lives on
            interrupted = self._session
            self._over()
            _interrupt(interrupted)
        self._new_session(ctx)

    def _new_session(self, ctx: Mapping[str, Any]) -> TrainingSession:
        train_cfg = as_mapping(ctx.get("train_cfg"))
        out_dir = train_cfg.get("out_dir")
        params = {**params_of(ctx.get("config_json"), ctx.get("config"), train=train_cfg), **self._params}
        session = TrainingSession(self._logger, params, self._tags, directory=out_dir, epochs=False)
        session.prepare()
        self._session, self._begun, self._ended, self._resuming = session, False, False, False
        self._step = -1
        #: others may have logged since the last note
        self._changed = False
        self._announced: tuple[str, int] | None = None
        #: whether there is anything to put back
        self._stateful = session.checkpoint_record()["logger"] is not None
        self._book = RecordBook(self._records_path(out_dir) if self._stateful else None)
        if self._book.path is not None:
            place = os.path.abspath(self._book.path)
            other = _books.get(place, self)
            # one that has begun is of an earlier training, which nobody has ended
            if other is not self and other._session is not None and not other._begun:
                raise LoggerError(
                    f"two loggers would keep their records in {self._book.path}: give one a name of its own, "
                    "make_logger_hooks(logger, name=…)"
                )
            _books[place] = self
        return session

    def on_resume_checkpoint(self, path: Any, ckpt: Mapping[str, Any], ctx: Mapping[str, Any]) -> None:
        """Put the logger back to where the checkpoint was taken."""
        session = self._of(ctx)
        self._resuming = True  # until it is done
        following = _next_step(ckpt)
        record = self._find_record(path, following) if self._stateful else None
        if record is None and self._stateful:
            warnings.warn(
                f"no logger record beside {path}, nor in {self._book.path}: the checkpoint was taken without "
                "these hooks; logging begins a new run at its step",
                RuntimeWarning,
                stacklevel=3,
            )
            self._resuming = False
            return
        session.resume(record)
        self._resuming = False
        if record is not None:
            session.epochs = record["epoch"] is not None
            with said(f"the records of later checkpoints than {path} are still there"):
                prune_sidecars(sidecar_of(path, self._name).parent, self._name, beyond=following)
        self._begin(session, following)
        # the record is from before the checkpoint was announced
        self._announce(session, path, ckpt)

    def _find_record(self, path: Any, following: int) -> dict[str, Any] | None:
        """Return the record of a checkpoint, and see to it that the sidecar has it from now on."""
        sidecar = sidecar_of(path, self._name)
        record = load_sidecar(sidecar)
        if record is None:
            self._book.load()
            record = self._book.at(following - 1)
            if record is not None and os.path.exists(path):
                with said(f"{path} has no logger record beside it"):
                    save_sidecar(sidecar, record, following)
        return record

    def on_log(self, logs: Mapping[str, Any], ctx: Mapping[str, Any]) -> None:
        """Log the train line."""
        session = self._at(ctx)
        metrics = {name: value for name, value in logs.items() if name not in _NOT_METRICS}
        self._take_epoch(session, metrics)
        self._line(session, session.train, metrics)

    def on_step_end(self, logs: Mapping[str, Any], ctx: Mapping[str, Any]) -> None:
        """Take note that the step is done."""
        self._at(ctx)

    def on_eval_end(self, metrics: Mapping[str, Any], ctx: Mapping[str, Any]) -> None:
        """Log the validate line."""
        session = self._at(ctx)
        line = {name: value for name, value in metrics.items() if name not in _NOT_METRICS}
        self._line(session, session.validate, line)

    def on_checkpoint(self, path: Any, ckpt: Mapping[str, Any], ctx: Mapping[str, Any]) -> None:
        """Write the sidecar: the record as it was when the checkpoint was taken, however long ago that is."""
        session = self._ready(ctx)
        following = _next_step(ckpt)
        if self._announced == (str(path), following):
            return  # an evacuation's checkpoint, once more
        taken = following - 1
        record = session.checkpoint_record() if taken >= self._step else self._book.at(taken)
        if not self._stateful:
            pass
        elif record is None:
            self._warn_once("record", f"the logger's record at step {taken} is not kept any more; {path} goes without")
        elif not os.path.exists(path):
            # not on a disk of ours: the book has it
            self._warn_once("store", f"{path} is no local file, so its logger record stays in {self._book.path}")
        else:
            with said(f"{path} has no logger record beside it; {self._book.path} has one"):
                sidecar = sidecar_of(path, self._name)
                save_sidecar(sidecar, record, following)
                self._book.settle(taken)
                prune_sidecars(sidecar.parent, self._name)
        self._announce(session, path, ckpt)

    def on_evacuation(self, path: Any, ckpt: Mapping[str, Any], ctx: Mapping[str, Any]) -> None:
        """The terminal checkpoint has its sidecar by now, if it was announced as every other."""
        self.on_checkpoint(path, ckpt, ctx)

    def on_train_end(self, ctx: Mapping[str, Any]) -> None:
        """Finish the run."""
        if self._ended:
            return
        session = self._ready(ctx)
        self._over()
        if ctx.get("evacuation_requested"):
            _interrupt(session)
        else:
            session.__exit__(None, None, None)
            self._book.begin(self._step, session.checkpoint_record())

    def on_exception(self, exc: BaseException, ctx: Mapping[str, Any]) -> None:
        """Finish the run as failed, if it is known which run that is."""
        if self._ended:
            return  # and finishing it may be what failed
        if not self._begun and "step" not in ctx and ctx.get("resume_mode") == "auto":
            self._session = None  # what failed may have been the resume: the run stays as it is
            return
        try:
            session = self._ready(ctx)
        except LoggerError as error:
            if not isinstance(exc, LoggerError):  # or else that is what it says
                exc.add_note(f"and the logger could not begin its run: {error}")
            self._session = None
            return
        self._over()
        session.__exit__(type(exc), exc, None)

    # ---- between them -----------------------------------------------------------------------------------

    def _of(self, ctx: Mapping[str, Any]) -> TrainingSession:
        """Return the training's session, which may not have begun."""
        return self._session or self._new_session(ctx)

    def _ready(self, ctx: Mapping[str, Any]) -> TrainingSession:
        """Return the session, begun: if nobody has resumed it by now, it is a new run."""
        session = self._of(ctx)
        if self._resuming:
            raise RecordError(
                f"{type(self._logger).__name__} could not be put back to the checkpoint, and logs nothing"
            )
        if not self._begun:
            step = ctx.get("step", 0)
            if not self._retries(session, ctx, step):
                session.resume(None)  # raises if the logger holds another run
            self._begin(session, step)
        return session

    def _retries(self, session: TrainingSession, ctx: Mapping[str, Any], step: int) -> bool:
        """Put the logger back to the very beginning, if an attempt came to its end before its first checkpoint.

        Auto-resume starts such a run over, so that one command serves for all attempts. A run that was completed, or
        that ever had a checkpoint, has no record of its beginning any more, and is not touched.
        """
        if step or not self._stateful or ctx.get("resume_mode") != "auto" or ctx.get("auto_resume_selected"):
            return False
        self._book.load()
        record = self._book.at(-1)
        if record is None:
            return False
        try:
            session.resume(record)
        except RecordError:  # of another run; what is in the logger's place is for the logger to say
            return False
        return True

    def _begin(self, session: TrainingSession, step: int) -> None:
        session.__enter__()
        self._begun = True
        self._exit = weakref.finalize(self, _interrupt, session, os.getpid())
        self._step = step - 1
        self._book.begin(self._step, session.checkpoint_record())

    def _over(self) -> None:
        self._exit.detach()
        self._session, self._begun, self._ended = None, False, True

    def _at(self, ctx: Mapping[str, Any]) -> TrainingSession:
        """Return the session, at the step of an event."""
        session = self._ready(ctx)
        step = check_step(ctx["step"])
        if step != self._step:
            if self._changed:
                self._note(session)
                self._changed = False
            self._step = step
        return session

    def _line(self, session: TrainingSession, log: Callable[..., None], metrics: dict[str, Any]) -> None:
        try:
            log(metrics, step=self._step)
        except MetricValueError as error:
            if not error.metrics:
                raise
            for name in sorted(error.metrics):  # a step function may return anything
                self._warn_once(name, f"{name} is left out of the lines: {error}")
        self._changed = True
        self._note(session)

    def _note(self, session: TrainingSession) -> None:
        if not self._stateful:
            return
        self._book.note(self._step, session.checkpoint_record())
        if self._book.error is not None:
            self._warn_once("book", f"{self._book.path} cannot be written ({self._book.error}): sidecars have to do")

    def _announce(self, session: TrainingSession, path: Any, ckpt: Mapping[str, Any]) -> None:
        self._announced = (str(path), _next_step(ckpt))
        session.other("checkpoint", {"path": str(path), "step": int(ckpt["step"])})
        self._changed = True

    def _take_epoch(self, session: TrainingSession, metrics: dict[str, Any]) -> None:
        if self._epoch_key is None or self._epoch_key not in metrics:
            return
        try:
            epoch = check_epoch(metrics[self._epoch_key])
        except StepError as error:
            self._warn_once("epoch", f"logs[{self._epoch_key!r}] stays a metric: {error}")
            return
        if epoch is not None:
            del metrics[self._epoch_key]
            session.epoch, session.epochs = epoch, True

    def _records_path(self, out_dir: Any) -> Path | None:
        info: dict[str, Any] = getattr(self._logger, "logger_info", dict)()
        folder = self._records or out_dir or info.get("directory")
        return Path(folder) / f"{self._name}-records.jsonl" if folder else None

    def _warn_once(self, what: str, words: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(words, RuntimeWarning, stacklevel=4)


def _interrupt(session: TrainingSession, pid: int | None = None) -> None:
    """Finish a run as interrupted; with ``pid``, in that process only, not in a child that it has forked."""
    if pid in (None, os.getpid()):
        stop = SystemExit()
        session.__exit__(SystemExit, stop, None)
        for problem in getattr(stop, "__notes__", ()):
            warnings.warn(problem, RuntimeWarning, stacklevel=3)


def _next_step(ckpt: Mapping[str, Any]) -> int:
    """Return the first step that a run resumed from a checkpoint does."""
    following = ckpt.get("next_step")
    return check_step(ckpt["step"]) + 1 if following is None else check_step(following)
