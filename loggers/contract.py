"""The logging contract: ten verbs on your own type.

There is nothing to subclass and nothing to register: an object that has the verbs is a logger, and
``None`` is the logger that logs nothing. This module is only types and words; the functions that
drivers call live in :mod:`loggers.verbs`.

::

    driver ──verbs──▶ logger            the driver owns step and epoch, and passes both every time
           ──logger_state()──▶ checkpoint ──reattach(state)──▶ a new process on the same run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

#: What JSON can hold: the only thing a logger's state may be made of.
JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Status: TypeAlias = Literal["completed", "early_stop", "error", "interrupted"]

#: The ten verbs, in the order in which a run meets them.
VERBS: Final = (
    "log_params",
    "log_tags",
    "log_metrics",
    "log_other",
    "log_confusion",
    "finish",
    "run_id",
    "run_url",
    "logger_state",
    "reattach",
)
#: Verbs that carry no data. A logger without them answers ``None``.
OPTIONAL_VERBS: Final = ("run_id", "run_url", "logger_state")
#: The contexts every driver uses. Any other name is a context too.
CONTEXTS: Final = ("train", "validate", "data")
#: How a run can end.
STATUSES: Final = ("completed", "early_stop", "error", "interrupted")


class Logger(Protocol):
    """The ten verbs. Don't subclass this: have methods of these names and shapes.

    A driver calls all verbs from one thread. A verb that a logger cannot serve is defined as a
    method that does nothing; a verb that is missing raises :class:`~loggers.errors.MissingVerbError`
    at the call, so that no wrapper can drop data unnoticed.
    """

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Log one line: scalars that belong to one step of one context.

        Args:
            metrics: name -> scalar (Python, NumPy, 0-d or size-1 array, torch or JAX scalar). Values
                are taken at the call; what the caller changes afterwards changes nothing.
            step: optimizer steps done so far, a non-negative integer owned by the driver.
            epoch: the running epoch, or ``None`` where there are none.
            context: ``"train"`` (one line per logged optimizer step), ``"validate"`` (one per
                validation pass), ``"data"`` (one per epoch, the host's data path), or any other name.
            **axes: further axes a driver may have, such as ``walltime`` (Unix seconds). A logger
                ignores those it does not know, so that a new axis breaks no backend.

        Raises:
            StepError: before anything is written.
            MetricValueError: after every good value of the line is stored; names the bad ones.
        """

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log hyperparameters under flat keys.

        Called once before the first step, and again when some are learnt or changed later: later
        values win and earlier ones stay recoverable.
        """

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Tag the run with a mapping, some strings, or one string. Tags add up."""

    def log_other(self, key: str, value: Any) -> None:
        """Log a free-form value, such as a report or a final number, under ``key``."""

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
        """Log a confusion matrix. Called by the user, never by a driver.

        Args:
            matrix: [K, K] counts or rates, rows true, columns predicted.
            labels: [K] class names.
            epoch, step, context: where the matrix belongs; the logger's current step by default.
            name: what to call it.

        Raises:
            ConfusionError: not square, or not one label per class.
        """

    def finish(self, status: str) -> None:
        """End the run: ``"completed"``, ``"early_stop"``, ``"error"`` or ``"interrupted"``.

        Called exactly once by the driver. Leaving a ``with`` block or dropping the logger never
        counts as ``"completed"``.
        """

    def run_id(self) -> str | None:
        """Return what the run is called by its backend, or ``None``."""

    def run_url(self) -> str | None:
        """Return where a human can look at the run, or ``None``."""

    def logger_state(self) -> dict[str, JSON] | None:
        """Return what a new process needs to go on with this run, or ``None`` for "nothing".

        Called when the driver writes a checkpoint. Plain JSON data, never a live object: it
        outlives the process. ``None`` stores nothing and attempts no reattachment.
        """

    def reattach(self, state: Any) -> None:
        """Go on with the run that ``state`` describes, cut back to where ``state`` was taken.

        Called on resume, before any metric. Required if and only if :meth:`logger_state` ever
        returns something else than ``None``. Everything that was logged after the state was taken
        is gone afterwards, so that the driver can log those steps again.
        """
