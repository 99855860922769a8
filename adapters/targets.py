"""Where a run can be sent to, by a word on the command line: ``tensorboard:DIR``, ``wandb:PROJECT``, …"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from adapters.backends._mlflow_client import absolute as absolute_uri
from loggers.contract import JSON
from loggers.errors import LoggerError, RecordError
from loggers.json_logger import JSONLogger


class _Kind(NamedTuple):
    """A kind of target: where its class is, what stands behind the colon, and what the class is called with."""

    module: str
    name: str
    wants: str
    arguments: Callable[[str], dict[str, Any]]
    #: whether it refuses a place that holds a run, unless told otherwise
    asks: bool = False


def _project(value: str) -> dict[str, Any]:
    entity, slash, project = value.rpartition("/")
    return {"project": project, "entity": entity} if slash else {"project": value}


def _experiment(value: str) -> dict[str, Any]:
    uri, mark, experiment = value.partition("#")
    return {"tracking_uri": uri, "experiment": experiment} if mark and experiment else {"tracking_uri": uri}


#: Kinds that are no path.
_NO_PATH: Final = ("wandb", "mlflow", "trackio", "stdout")
_KINDS: Final = {
    "tensorboard": _Kind(
        "adapters.backends.tensorboard", "TensorBoardLogger", "DIR", lambda value: {"logdir": value}, True
    ),
    "wandb": _Kind("adapters.backends.wandb", "WandbLogger", "[ENTITY/]PROJECT", _project),
    "mlflow": _Kind("adapters.backends.mlflow", "MLflowLogger", "URI[#EXPERIMENT]", _experiment),
    "trackio": _Kind("adapters.backends.trackio", "TrackioLogger", "PROJECT", lambda value: {"project": value}),
    "zarr": _Kind(
        "adapters.backends.metrics_group", "MetricsGroupLogger", "DIR", lambda value: {"path": value}, True
    ),
    # these two without a backlog: what is noted as sent has to be in the file
    "jsonl": _Kind("adapters.targets", "JSONLinesFile", "FILE", lambda value: {"path": value, "backlog": 0}),
    "csv": _Kind("loggers.csv_logger", "CSVLogger", "FILE", lambda value: {"path": value, "backlog": 0}),
    "stdout": _Kind("loggers.stdout_logger", "StdoutLogger", "", lambda value: {}),
    "plattli": _Kind("loggers.plattli_logger", "PlattliLogger", "DIR", lambda value: {"directory": value}, True),
}

#: What people may write, for help and errors.
SPELLINGS: Final = ", ".join(f"{name}:{kind.wants}" for name, kind in _KINDS.items())


def absolute(spec: str) -> str:
    """Return a target by its absolute path, if it is a path: a job may be worked off from another folder."""
    name, colon, value = spec.partition(":")
    if name == "mlflow":
        return f"{name}{colon}{absolute_uri(value)}"
    return spec if name in _NO_PATH or not value else f"{name}{colon}{os.path.abspath(value)}"


def place(spec: str) -> Path | None:
    """Return the file or folder that a target is, ``None`` if it is not on this machine."""
    name, _, value = spec.partition(":")
    return None if name in _NO_PATH else Path(value)


class JSONLinesFile(JSONLogger):
    """A JSON Lines file that a replay writes: one that was killed goes on behind what it had noted.

    A :class:`~loggers.json_logger.JSONLogger` never takes a line back, so lines would be there twice.
    """

    def logger_state(self) -> dict[str, JSON]:  # type: ignore[override]
        """Return how long the file is, in bytes."""
        return {"size": self._size()}

    def reattach(self, state: Any) -> None:
        """Cut the file to the length that it had.

        Raises:
            RecordError: no such state, or the file is shorter.
        """
        size = state.get("size") if isinstance(state, Mapping) else None
        if type(size) is not int:
            raise RecordError(f"expected how much of {self.path} has been written, got {state!r:.200}")
        if (there := self._size()) < size:
            raise RecordError(
                f"{self.path} has {there} bytes, and {size} were written: somebody has cut it; send all of the run "
                "again with --force"
            )
        if self.path is not None and there > size:
            os.truncate(self.path, size)

    def _size(self) -> int:
        return self.path.stat().st_size if self.path is not None and self.path.exists() else 0


class Recipe:
    """Makes the logger of a target when it is unpickled: a pickled logger itself may be a copy that writes nothing."""

    def __init__(self, spec: str, *, replace: bool) -> None:
        self._arguments = spec, replace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, bool]]:
        return open_target, self._arguments


def open_target(spec: str, replace: bool = False) -> Any:
    """Return the logger that ``kind:value`` names. It does nothing before its first verb.

    Args:
        spec: the target.
        replace: whether a run that is there goes.

    Raises:
        LoggerError: no such kind, or nothing behind the colon where something has to be.
        ModuleNotFoundError: the kind needs a package that is not installed; the message names the extra.
    """
    name, _, value = spec.partition(":")
    kind = _KINDS.get(name)
    if kind is None or bool(value) != bool(kind.wants):
        raise LoggerError(f"expected one of {SPELLINGS}, got {spec!r}")
    arguments = kind.arguments(value)
    if replace and kind.asks:
        arguments["if_exists"] = "replace"
    return getattr(importlib.import_module(kind.module), kind.name)(**arguments)
