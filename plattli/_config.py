"""``config.json``: what the user says about a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from plattli import _fs
from plattli._format import CONFIG, TMP_SUFFIX, dumps
from plattli.errors import ConfigError, NotARunError


def check(config: Any, run_root: Path, run: str) -> str | Path | None:
    """Return what is to be written: JSON text, a file to link to, or ``None`` to keep what exists.

    Args:
        config: JSON data; or a string, the path of a file relative to ``run_root``; or ``None``.

    Raises:
        ConfigError: JSON cannot hold it.
        NotARunError: the path is not a file.
    """
    if config is None:
        return None
    if isinstance(config, str):
        target = run_root / config
        if target.name == CONFIG + TMP_SUFFIX:
            raise ConfigError(f"config {config!r} of run {run!r} has a name that the writer needs for itself")
        if target.exists() and not target.is_file():
            raise NotARunError(f"config target {target} of run {run!r} is not a file")
        return target if target.exists() else None
    try:
        text = dumps(config)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"config of run {run!r} cannot be written as JSON: {error}") from error
    return text


def write(checked: str | Path | None, root: Path) -> None:
    """Put what :func:`check` returned into the metric folder ``root``."""
    path = root / CONFIG
    if isinstance(checked, str):
        _fs.replace_file(path, checked.encode())
    elif checked is not None:
        if os.path.lexists(path) and os.path.realpath(path) == os.path.realpath(checked):
            return
        # relative, so that a run and its config can be moved together
        temporary = root / (CONFIG + TMP_SUFFIX)
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(os.path.realpath(checked), os.path.realpath(root)))
        os.replace(temporary, path)
    elif not os.path.lexists(path):
        _fs.replace_file(path, b"{}")


def merged(config: bytes, overrides: Any, run: str) -> bytes:
    """Return a config with ``overrides`` on top, both as the bytes of a file.

    Raises:
        ConfigError: the overrides are no JSON object, or the config is none.
    """
    if not isinstance(overrides, dict):
        raise ConfigError(f"config_overrides of run {run!r} must be a dict, got {type(overrides).__name__}")
    try:
        base = json.loads(config)
    except ValueError as error:
        raise ConfigError(f"config_overrides of run {run!r} need a config that is JSON: {error}") from error
    if not isinstance(base, dict):
        raise ConfigError(
            f"config_overrides of run {run!r} need a config that is an object, got {type(base).__name__}"
        )
    try:
        return dumps(base | overrides).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"config_overrides of run {run!r} cannot be written as JSON: {error}") from error
