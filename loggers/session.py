"""A driver's duties, so that any training loop is a driver.

::

    session = TrainingSession(PlattliLogger("runs/a"), params={"lr": 0.1}, tags=["baseline"])
    session.resume(record)                      # from a checkpoint; None is a fresh start
    with session:
        while session.epoch <= 40:
            for batch in batches:
                …                               # one optimizer step
                session.train({"loss": loss}, schedules={"lr": lr})
            session.validate({"loss": val_loss})
            session.next_epoch()
            save(weights, session.checkpoint_record())
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from loggers import records, verbs
from loggers._sigterm import SigtermWatch
from loggers.contract import JSON
from loggers.errors import (
    LoggerError,
    PathError,
    RecordError,
    RunExistsError,
    RunLockedError,
    SessionError,
    StatusError,
    StepError,
)
from loggers.values import check_epoch, check_step, plain

#: The version of the session's record that this release writes. It reads this one and all below.
SESSION_VERSION: Final = 1
#: What a logger says that cannot begin: the run there is another's, or its path is none. It has nothing to finish.
_REFUSALS: Final = (RunExistsError, RunLockedError, PathError)


class TrainingSession:
    """Owns step and epoch, and calls the verbs of a logger when and as a driver has to.

    The session is a context manager. Entering it checks the logger and logs params and tags; leaving
    it calls ``finish`` once: ``"completed"`` (or what :meth:`stop` said) at the end of the block,
    ``"interrupted"`` on KeyboardInterrupt, ``sys.exit()`` with any code, and SIGTERM, ``"error"`` on
    everything else. The exception goes on in every case; if ``finish`` fails as well, that is a note
    on it.

    Call :meth:`resume` before the block where you can: then a logger that has to be told which run to
    go on with is told before it is given anything. Inside the block it works too; a logger that
    refuses params with :class:`~loggers.errors.RunExistsError` until it is reattached gets them after.

    SIGTERM is only watched when the block is entered in the main thread. A handler that was there
    before is called first: if it returns, it has chosen to go on, and only the status is
    ``"interrupted"``.

    Args:
        logger: an object with the ten verbs, or ``None`` to log nothing.
        params: hyperparameters, logged before the first step.
        tags: a mapping, some strings, or one string.
        log_every_n_steps: the train line is written on steps that are multiples of it. Every call
            counts its step all the same; the other lines are not thinned.
        directory: the run's directory, for a logger that was built without a path (one with an
            ``adopt`` method).
        epochs: whether the loop has epochs; without, lines and the record say ``None``.

    Attributes:
        step: optimizer steps done. 0 before the first, which is step 1.
        epoch: the running epoch. The first is 1.
        epochs: whether lines carry the epoch.
        stopped: whether :meth:`stop` was called.
        dropped_nonfinite: ``<context>/<name>`` -> how many NaN or infinite values were left out of the
            train and validate lines. The first of each warns.
    """

    def __init__(
        self,
        logger: Any,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | Iterable[str] | str | None = None,
        *,
        log_every_n_steps: int = 1,
        directory: str | os.PathLike[str] | None = None,
        epochs: bool = True,
    ) -> None:
        if type(log_every_n_steps) is not int or log_every_n_steps < 1:
            raise StepError(f"log_every_n_steps must be a positive int, got {log_every_n_steps!r}")
        self.logger = logger
        self.step = 0
        self.epoch = 1
        self.epochs = epochs
        self.stopped = False
        self.dropped_nonfinite: dict[str, int] = {}
        self._warned: set[str] = set()
        self._params = params
        self._tags = tags
        self._every = log_every_n_steps
        self._directory = directory
        self._stop_status = "completed"
        self._ready = False  # the logger is checked and has its directory
        self._announced = False  # the logger has params and tags
        self._logged = False  # a line was logged
        self._refused = False  # see _REFUSALS; the logger has taken nothing from this session
        self._phase = "new"  # then "running", then "over"
        self._sigterm = SigtermWatch()

    # --- one line each ---------------------------------------------------------------------------------

    def train(
        self, metrics: Mapping[str, Any], schedules: Mapping[str, Any] | None = None, *, step: int | None = None
    ) -> None:
        """Count one optimizer step as done, and log its train line if it is one of every n.

        Args:
            metrics: name -> scalar. NaN and infinite values are left out and counted.
            schedules: name -> scalar, nested as one likes; logged as ``schedule/<path>``. Values that
                are no real numbers are left out.
            step: the step's own number, for a loop that counts and need not tell of every one.

        Raises:
            StepError: ``step`` is no non-negative integer; nothing was logged or counted.
        """
        self._check_running("train")
        self.step = self.step + 1 if step is None else check_step(step)
        if self.step % self._every:
            return
        self._log_finite("train", metrics, _scheduled(schedules) if schedules else {})

    def validate(self, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        """Log the line of one validation pass at the current step. Leaves out what ``train`` does.

        Args:
            metrics: name -> scalar.
            step: as in :meth:`train`; it is the current step from then on.
        """
        self._check_running("validate")
        if step is not None:
            self.step = check_step(step)
        self._log_finite("validate", metrics)

    def data(self, metrics: Mapping[str, Any]) -> None:
        """Log the epoch's line about the host's data path, such as ``data_wait_frac`` (0 to 1)."""
        self._check_running("data")
        self._log("data", metrics)

    def other(self, key: str, value: Any) -> None:
        """Log a free-form value, such as a report, at the logger's current step."""
        self._check_running("other")
        self._announce()
        with self._sigterm:
            verbs.log_other(self.logger, key, value)

    def next_epoch(self) -> int:
        """End the running epoch and return the number of the next. Call it when an epoch is done."""
        self.epoch += 1
        return self.epoch

    def stop(self, status: str = "early_stop") -> None:
        """Note that training ends by itself, and how. The loop should look at ``stopped`` and leave.

        Args:
            status: ``"early_stop"`` or ``"completed"``: what ``finish`` will be called with, unless
                an exception ends the block after all.

        Raises:
            StatusError: another status; those have other causes.
        """
        if status not in ("early_stop", "completed"):
            raise StatusError(f"a session stops as 'early_stop' or 'completed', got {status!r}")
        self._stop_status = status
        self.stopped = True

    # --- checkpoints -------------------------------------------------------------------------------------

    def checkpoint_record(self) -> dict[str, JSON]:
        """Return what a checkpoint has to hold for :meth:`resume`: plain JSON data.

        Returns:
            ``{"step", "epoch", "logger", "version"}``, where ``logger`` is the
            :func:`~loggers.records.checkpoint_record` of the logger.

        Raises:
            RecordError: the logger's state is not plain JSON data.
        """
        return {
            "step": self.step,
            "epoch": self.epoch if self.epochs else None,
            "logger": records.checkpoint_record(self.logger),
            "version": SESSION_VERSION,
        }

    def resume(self, record: Mapping[str, Any] | None) -> None:
        """Go on where a checkpoint was taken: step, epoch and the logger's run. Then log the params.

        Args:
            record: what :meth:`checkpoint_record` returned, perhaps through JSON; ``None`` for a
                fresh start.

        Raises:
            RecordError: no record, a newer version's, or one of another type of logger. Nothing has
                changed then.
            SessionError: a line has been logged already.
        """
        if self._logged or self.step or self._phase == "over":
            raise SessionError(f"cannot resume at step {self.step}: resume once, before the first step")
        self.prepare()
        if record is not None:
            step, epoch = _place(record, epochs=self.epochs)
            with self._sigterm:
                records.resume(self.logger, record["logger"])
            self.step = step
            if epoch is not None:
                self.epoch = epoch
            # a reattached logger has cut what it was told before
            self._announced = self._announced and record["logger"] is None
        self._announce()

    # --- the block ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Check the logger, watch SIGTERM, log params and tags."""
        if self._phase != "new":
            raise SessionError("a session is entered once: build another one")
        self.prepare()
        self._phase = "running"
        try:
            self._sigterm.start()
            self._announce()
        except RunExistsError:
            pass  # held back until resume(); the first line without it raises the same again
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the logger's run, once, with the status that tells how the block ended."""
        self._sigterm.finishing = True
        if exc is None:
            try:
                self._announce()  # nothing was logged and nobody resumed: then this raises
            except BaseException as error:
                self._end(error)
                raise
        self._end(exc)

    def prepare(self) -> None:
        """Check the logger, and hand it the run's directory; entering the block does it otherwise.

        Raises:
            MissingVerbError, VerbSignatureError: the logger cannot be used to the end.
        """
        if not self._ready:
            verbs.check_logger(self.logger)
            self.logger = verbs.as_logger(self.logger)
            adopt = getattr(self.logger, "adopt", None)
            if self._directory is not None and callable(adopt):
                adopt(self._directory)
            self._ready = True

    def _announce(self) -> None:
        if self._announced:
            return
        try:
            with self._sigterm:
                if self._params is not None:
                    verbs.log_params(self.logger, self._params)
                if self._tags is not None:
                    verbs.log_tags(self.logger, self._tags)
        except _REFUSALS:
            self._refused = True
            raise
        self._announced, self._refused = True, False

    def _end(self, error: BaseException | None) -> None:
        self._phase = "over"
        self._sigterm.finishing = True
        try:
            if not self._refused:  # or else there is no run of ours to finish
                self._finish(error)
        finally:
            self._sigterm.stop()

    def _finish(self, error: BaseException | None) -> None:
        if error is None:
            status = "interrupted" if self._sigterm.seen and not self.stopped else self._stop_status
            verbs.finish(self.logger, status)
            return
        status = "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "error"
        try:
            verbs.finish(self.logger, status)
        except Exception as second:
            error.add_note(f"and finish({status!r}) of {records.type_name(self.logger)} failed: {second!r}")

    # --- logging -----------------------------------------------------------------------------------------

    def _check_running(self, verb: str) -> None:
        if self._phase != "running":
            raise SessionError(
                f"{verb}() outside the session's block: write `with session:` around the loop, "
                "so that the run is finished however it ends"
            )

    def _log(self, context: str, metrics: Mapping[str, Any]) -> None:
        self._announce()
        try:
            with self._sigterm:
                epoch = self.epoch if self.epochs else None
                verbs.log_metrics(self.logger, metrics, step=self.step, epoch=epoch, context=context)
        except _REFUSALS:
            self._refused = not self._logged
            raise
        self._logged, self._refused = True, False

    def _log_finite(
        self, context: str, metrics: Mapping[str, Any], schedules: Mapping[str, float] | None = None
    ) -> None:
        values, problems = plain(metrics)
        if schedules:
            values = {**values, **schedules}
        line, dropped = _finite(values)
        if problems:  # the logger says what is wrong with these, and may know them
            line = {**line, **{name: value for name, value in metrics.items() if name not in values}}
        for name in dropped:
            key = f"{context}/{name}"
            self.dropped_nonfinite[key] = self.dropped_nonfinite.get(key, 0) + 1
        try:
            if line or not dropped:
                self._log(context, line)
        finally:  # said last: where warnings are errors, the line is stored all the same
            for name in dropped:
                self._warn_dropped(f"{context}/{name}", values[name])

    def _warn_dropped(self, key: str, value: Any) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(
                f"{key} is {value} at step {self.step}: left out of the line, as are later "
                "NaN and infinite values; session.dropped_nonfinite counts them",
                RuntimeWarning,
                stacklevel=4,
            )


def _place(record: Mapping[str, Any], *, epochs: bool) -> tuple[int, int | None]:
    records.check_version(record, "session record", ("step", "epoch", "logger"), SESSION_VERSION)
    try:
        step, epoch = check_step(record["step"]), check_epoch(record["epoch"])
    except LoggerError as error:
        raise RecordError(f"the session record is damaged: {error}") from None
    if epoch is None and epochs:
        raise RecordError("the session record is damaged: its epoch is None")
    return step, epoch


def _finite(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    try:
        if all(map(math.isfinite, values.values())):
            return values, []
    except TypeError:
        pass  # not only numbers
    dropped = [name for name, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
    return {name: value for name, value in values.items() if name not in dropped}, dropped


def _scheduled(schedules: Mapping[str, Any]) -> dict[str, float]:
    values, _ = plain(dict(_flat(schedules, "schedule")))
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


def _flat(schedules: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in schedules.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}/{name}")
        else:
            yield f"{path}/{name}", value
