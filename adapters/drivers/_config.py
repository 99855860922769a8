"""A framework's config, whatever it is made of, as flat params."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


def params_of(*configs: Any, train: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training's params under dotted keys.

    Args:
        *configs: the whole config, perhaps in several forms, of which the first that has anything counts.
        train: its section of the training itself, where there is no other or it lacks that.
    """
    config = next((found for config in configs if (found := as_mapping(config))), None)
    if config is None:
        return dict(flat(train))
    params = dict(flat(config))
    for name, value in flat(train):
        if name not in params:  # else the whole config is that of the training
            params.setdefault(f"train.{name}", value)
    return params


def as_mapping(config: Any) -> dict[str, Any]:
    """Return a config, whatever it is made of, as a mapping; a value that cannot be had is text."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return {str(key): _read(config.__getitem__, key) for key in config}
    own = getattr(config, "__dict__", {})
    names = [name for name in dir(config) if not name.startswith("_")]
    values = {name: _read(getattr, config, name) for name in names}
    return {name: value for name, value in values.items() if name in own or not inspect.isroutine(value)}


def _read(get: Callable[..., Any], *args: Any) -> Any:
    try:
        return get(*args)
    except Exception as error:  # an interpolation that leads nowhere, a property that fails: never worth a training
        return f"<{type(error).__name__}: {error}>"


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a config under dotted keys, such as ``optim.lr``; lists stay whole."""
    for name, value in config.items():
        nested = as_mapping(value) if _is_section(value) else {}
        if nested:
            yield from flat(nested, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _listed(value)


def _is_section(value: Any) -> bool:
    return isinstance(value, (Mapping, SimpleNamespace, argparse.Namespace)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _listed(value: Any) -> Any:
    """Return lists of other people's classes as lists."""
    if _is_section(value):
        return {name: _listed(item) for name, item in as_mapping(value).items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [_listed(item) for item in value]
    return value
