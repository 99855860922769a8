"""Which of several training processes this one is, and a logger for one of them only.

Launchers (torchrun, srun, mpirun) run the same script in every process. A run has one writer::

    logger = rank_zero(TeeLogger(PlattliLogger("runs/a"), …))   # the same line on every rank
    with TrainingSession(logger, …) as session: …               # and the same loop

Elsewhere than on rank 0 that is an :class:`InertLogger`: it takes every verb, touches no disk, and lets a checkpoint
of rank 0 be resumed everywhere. Nothing is gated behind anybody's back: a logger that is not wrapped writes on whatever
rank it is built, because the tasks of one launch may as well be runs of their own (a sweep), each in its own directory.
Ranks that share a directory by mistake are found by its lock: the second is refused, and told of ``rank_zero``.

A logger that is handed to a process which this one starts (``spawn``, ``fork``, a data loader's worker) is inert there
by itself: the process that built it goes on with the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from loggers.errors import RankError

#: Where launchers put the global rank: torchrun, Slurm's srun, Open MPI, other MPIs.
_VARIABLES: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

L = TypeVar("L")


class InertLogger:
    """Takes all ten verbs and does nothing: the logger of a process that is not to log.

    Like ``None``, it has no run and no state, and any record may be resumed with it. Unlike ``None``, its verbs can be
    called as methods, too.
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
        """Do nothing."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Do nothing."""

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Do nothing."""

    def log_other(self, key: str, value: Any) -> None:
        """Do nothing."""

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
        """Do nothing."""

    def finish(self, status: str) -> None:
        """Do nothing."""

    def run_id(self) -> None:
        """Return ``None``: there is no run."""

    def run_url(self) -> None:
        """Return ``None``: there is no run."""

    def logger_state(self) -> None:
        """Return ``None``: there is nothing to reattach."""

    def reattach(self, state: Any) -> None:
        """Do nothing: the state is another process's."""

    def __repr__(self) -> str:
        return "InertLogger()"


def rank() -> int:
    """Return this process's rank from the launcher's environment; 0 if there is none.

    Raises:
        RankError: the variable is set and holds no non-negative integer.
    """
    for variable in _VARIABLES:
        value = os.environ.get(variable)
        if value:
            if value.isdecimal():
                return int(value)
            raise RankError(f"environment variable {variable} is {value!r}: set it to a rank, or unset it")
    return 0


def rank_zero(logger: L) -> L | InertLogger:
    """Return ``logger`` in the process of rank 0, and elsewhere an :class:`InertLogger`.

    A logger does nothing before its first verb, so it may be built in every process.

    Raises:
        RankError: see :func:`rank`.
    """
    return logger if rank() == 0 else InertLogger()


def rank_hint() -> str:
    """Return what to tell somebody who finds another process at work where there is to be one; may be empty."""
    launched = next((variable for variable in _VARIABLES if os.environ.get(variable)), None)
    if launched is None or os.environ[launched] == "0":
        return ""
    return (
        f" (this process has {launched}={os.environ[launched]}: of several ranks one writes a run, so wrap the logger "
        f"as rank_zero(logger), or give each rank a directory of its own)"
    )
