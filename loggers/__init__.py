"""The logging contract, the loggers that need nobody else's package, and a driver's session.

::

    from loggers import PlattliLogger, TrainingSession

    with TrainingSession(PlattliLogger("runs/a"), params={"lr": 0.1}) as session:
        for batch in batches:
            session.train({"loss": step(batch)})
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from loggers.contract import CONTEXTS, STATUSES, VERBS, Logger
from loggers.csv_logger import CSVLogger
from loggers.errors import (
    ConfusionError,
    LoggerError,
    LoggerFinishedError,
    MetricNameError,
    MetricValueError,
    MissingVerbError,
    NoPathError,
    PathError,
    RankError,
    RecordError,
    RunExistsError,
    RunLockedError,
    SessionError,
    StatusError,
    StepError,
    UndeliveredError,
    UnwrittenError,
    VerbSignatureError,
)
from loggers.events_logger import EventsLogger
from loggers.json_logger import JSONLogger
from loggers.ranks import InertLogger, rank, rank_zero
from loggers.records import checkpoint_record, resume
from loggers.session import TrainingSession
from loggers.stdout_logger import StdoutLogger
from loggers.thinned import Thinned
from loggers.verbs import (
    as_logger,
    backend,
    check_logger,
    finish,
    log_confusion,
    log_metrics,
    log_other,
    log_params,
    log_tags,
    logger_info,
    logger_state,
    reattach,
    register_verbs,
    run_id,
    run_url,
)

if TYPE_CHECKING:
    from loggers.plattli_logger import PlattliLogger
    from loggers.replay import replay

__all__ = [
    "CONTEXTS",
    "STATUSES",
    "VERBS",
    "CSVLogger",
    "ConfusionError",
    "EventsLogger",
    "InertLogger",
    "JSONLogger",
    "Logger",
    "LoggerError",
    "LoggerFinishedError",
    "MetricNameError",
    "MetricValueError",
    "MissingVerbError",
    "NoPathError",
    "PathError",
    "PlattliLogger",
    "RankError",
    "RecordError",
    "RunExistsError",
    "RunLockedError",
    "SessionError",
    "StatusError",
    "StdoutLogger",
    "StepError",
    "Thinned",
    "TrainingSession",
    "UndeliveredError",
    "UnwrittenError",
    "VerbSignatureError",
    "as_logger",
    "backend",
    "check_logger",
    "checkpoint_record",
    "finish",
    "log_confusion",
    "log_metrics",
    "log_other",
    "log_params",
    "log_tags",
    "logger_info",
    "logger_state",
    "rank",
    "rank_zero",
    "reattach",
    "register_verbs",
    "replay",
    "resume",
    "run_id",
    "run_url",
]


def __getattr__(name: str) -> Any:
    if name == "PlattliLogger":  # brings plattli along, which nothing else here needs
        return importlib.import_module("loggers.plattli_logger").PlattliLogger
    raise AttributeError(f"module 'loggers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``loggers.replay`` a function, also once the module of that name has been imported."""

    @property
    def replay(self) -> Any:
        """The function; its module brings plattli along, so it is imported when asked for."""
        return importlib.import_module("loggers.replay").replay

    @replay.setter
    def replay(self, module: ModuleType) -> None:
        """Take no notice of the import system, which puts every submodule on its package."""


sys.modules[__name__].__class__ = _Package
