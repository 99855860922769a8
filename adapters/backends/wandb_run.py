"""The verbs of a ``wandb.Run`` that somebody has opened, so that it can be handed to a driver as it is.

Offered for the class as an entry point of ``loggers.backends``; ``WandbLogger(run)`` is the same, with arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from adapters.backends.wandb import WandbLogger
from loggers.contract import VERBS

#: Where a run keeps its logger, so that the two live as long as each other.
_LOGGER: Final = "_plattli_logger"


def verbs() -> dict[str, Callable[..., Any]]:
    """Return the verbs of a run: verb -> function whose first argument is the run."""
    return {verb: _verb(verb) for verb in (*VERBS, "logger_info")}


def _verb(verb: str) -> Callable[..., Any]:
    def function(run: Any, *args: Any, **kwargs: Any) -> Any:
        logger = vars(run).get(_LOGGER)
        if logger is None:
            logger = vars(run)[_LOGGER] = WandbLogger(run)
        return getattr(logger, verb)(*args, **kwargs)

    function.__name__ = verb
    return function
