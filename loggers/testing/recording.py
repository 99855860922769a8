"""A logger for the tests of drivers: it keeps the calls it got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from loggers.contract import JSON
from loggers.errors import LoggerFinishedError, MetricNameError, RecordError
from loggers.testing.stored import Stored
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


class Call(NamedTuple):
    """One call of a verb that carries data.

    Attributes:
        verb: its name.
        args, kwargs: what it was called with, as plain Python data. ``log_metrics`` and
            ``log_confusion`` have all of the contract's keyword arguments, defaults included.
    """

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RecordingLogger:
    """Keeps the calls of the verbs that carry data; answers the others.

    ::

        logger = RecordingLogger()
        train(logger)                                        # the driver under test
        assert logger.verbs == ["log_params", "log_metrics", "finish"]
        assert logger.calls[1].kwargs["step"] == 1
        assert logger.stored().metrics["train/loss"] == [(1, 0.5)]

    A resume is another logger on the same calls: ``RecordingLogger(first.calls)``. Its ``reattach``
    takes away the calls that were made after the state was taken, and is a call itself.

    Args:
        calls: the list to append to; a new one by default.
        run_id: what the run is called.
    """

    def __init__(self, calls: list[Call] | None = None, *, run_id: str = "recording") -> None:
        self.calls: list[Call] = [] if calls is None else calls
        self._run_id = run_id
        self._status: str | None = None

    @property
    def verbs(self) -> list[str]:
        """The verbs that were called, in order."""
        return [call.verb for call in self.calls]

    def stored(self) -> Stored:
        """Return what a logger that keeps everything would hold after these calls."""
        return stored_by(self.calls)

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
        """Keep the good values of the line, and its axes as they are. Raises as the contract says."""
        self._check_open("log_metrics")
        place = {"step": check_step(step), "epoch": check_epoch(epoch), "context": check_context(context)}
        values, problems = plain(metrics)
        if values or not problems:
            self._keep("log_metrics", dict(values), **axes, **place)
        raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Keep the hyperparameters."""
        self._check_open("log_params")
        self._keep("log_params", plain_params(params))

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Keep the tags, as a mapping."""
        self._check_open("log_tags")
        self._keep("log_tags", plain_tags(tags))

    def log_other(self, key: str, value: Any) -> None:
        """Keep the value. Raises MetricNameError or MetricValueError for what is no key or no data."""
        self._check_open("log_other")
        if not isinstance(key, str) or not key:
            raise MetricNameError(f"the key of log_other must be a non-empty string, got {key!r}")
        data, problem = plain_value(value)
        raise_for({} if problem is None else {key: problem}, where="log_other")
        self._keep("log_other", key, data)

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
        """Keep the matrix, as lists. Raises as the contract says."""
        self._check_open("log_confusion")
        place = {
            "epoch": check_epoch(epoch),
            "step": None if step is None else check_step(step),
            "context": None if context is None else check_context(context),
        }
        self._keep("log_confusion", *check_confusion(matrix, labels), **place, name=name)

    def finish(self, status: str) -> None:
        """Keep the status; from now on every verb that carries data raises LoggerFinishedError."""
        status = check_status(status)
        self._check_open("finish")
        self._keep("finish", status)
        self._status = status

    def run_id(self) -> str:
        """Return the id that was given."""
        return self._run_id

    def run_url(self) -> None:
        """Return ``None``: there is nothing to look at."""

    def logger_state(self) -> dict[str, JSON]:
        """Return the run's id and how many calls it has had."""
        return {"run_id": self._run_id, "calls": len(self.calls)}

    def reattach(self, state: Any) -> None:
        """Take away the calls that were made after the state was taken.

        Raises:
            RecordError: no state of this class, or of more calls than there are.
        """
        made = state.get("calls") if isinstance(state, Mapping) else None
        if type(made) is not int or not isinstance(state["run_id"], str):
            raise RecordError(f"expected the state of a RecordingLogger (run_id, calls), got {state!r:.200}")
        if made > len(self.calls):
            raise RecordError(
                f"the state was taken after {made} calls, and there are {len(self.calls)} here: build the logger "
                "on the calls of the first one, RecordingLogger(first.calls)"
            )
        del self.calls[made:]
        self._run_id, self._status = state["run_id"], None
        self._keep("reattach", dict(state))

    def __repr__(self) -> str:
        return f"RecordingLogger(<{len(self.calls)} calls>, run_id={self._run_id!r})"

    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        self.calls.append(Call(verb, args, kwargs))

    def _check_open(self, verb: str) -> None:
        if self._status is not None:
            raise LoggerFinishedError(f"{verb} after finish({self._status!r}): build another RecordingLogger")


def stored_by(calls: Iterable[Call]) -> Stored:
    """Return what a logger that keeps everything would hold after ``calls``."""
    found = Stored()
    current = 0
    for verb, args, kwargs in calls:
        if verb == "log_metrics":
            current = kwargs["step"]
            epoch = {} if kwargs["epoch"] is None else {"epoch": kwargs["epoch"]}
            for name, value in {**epoch, **args[0]}.items():
                found.metrics.setdefault(f"{kwargs['context']}/{name}", []).append((current, value))
        elif verb == "log_params":
            found.params.update(args[0])
        elif verb == "log_tags":
            found.tags.update(args[0])
        elif verb == "log_other":
            found.other[args[0]] = args[1]
        elif verb == "log_confusion":
            name = kwargs["name"] if kwargs["context"] is None else f"{kwargs['context']}/{kwargs['name']}"
            step = current if kwargs["step"] is None else kwargs["step"]
            found.confusions.setdefault(name, []).append((step, args[1], args[0]))
        elif verb == "finish":
            found.status = args[0]
        else:  # reattach: the run goes on
            found.status = None
    return found
