"""Everything that talks to somebody else's package.

The names below are loaded when they are used: importing ``adapters`` loads no third-party package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapters.backends.metrics_group import MetricsGroupLogger as MetricsGroupLogger
    from adapters.backends.mlflow import MLflowLogger as MLflowLogger
    from adapters.backends.summary_writer import SummaryWriterLogger as SummaryWriterLogger
    from adapters.backends.tensorboard import TensorBoardLogger as TensorBoardLogger
    from adapters.backends.trackio import TrackioLogger as TrackioLogger
    from adapters.backends.wandb import WandbLogger as WandbLogger
    from adapters.fanout import TeeLogger as TeeLogger

_HOMES = {
    "MLflowLogger": "adapters.backends.mlflow",
    "MetricsGroupLogger": "adapters.backends.metrics_group",
    "SummaryWriterLogger": "adapters.backends.summary_writer",
    "TeeLogger": "adapters.fanout",
    "TensorBoardLogger": "adapters.backends.tensorboard",
    "TrackioLogger": "adapters.backends.trackio",
    "WandbLogger": "adapters.backends.wandb",
}

__all__ = [
    "MLflowLogger",
    "MetricsGroupLogger",
    "SummaryWriterLogger",
    "TeeLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
