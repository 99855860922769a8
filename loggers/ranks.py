"""Which of several training processes this one is, and a logger for one of them only."""

from __future__ import annotations

import os
from typing import Final, TypeVar

from loggers.errors import RankError

#: Where launchers put the global rank: torchrun, Slurm's srun, Open MPI, other MPIs.
_VARIABLES: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

L = TypeVar("L")


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


def rank_zero(logger: L) -> L | None:
    """Return ``logger`` in the process of rank 0, and elsewhere ``None``, which logs nothing.

    A logger does nothing before its first verb, so it may be built in every process.
    """
    return logger if rank() == 0 else None
