"""Environments of their own for the trackers that this project does not depend on."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.interop.workers import ROOT, reference_interpreter

#: What to install for a subject of :mod:`tests.benchmarks._hot_subjects`.
PACKAGES: Final = {"TensorboardX": ["tensorboardX"]}
#: What a subject imports from our own environment.
_OURS: Final = {"TensorBoard": "tensorboard", "SummaryWriter": "tensorboard", "EventFileWriter": "tensorboard",
                "Wandb": "wandb", "Tee": "wandb", "WandbBackend": "wandb", "MlflowBackend": "mlflow",
                "TrackioBackend": "trackio", "GroupBackend": "zarr", "Mlflow": "mlflow",
                "Trackio": "trackio"}  # fmt: skip
#: Seconds that an installation may take.
_PATIENCE: Final = 180.0
_COMPLETE: Final = "complete.json"


class NotInstalled(Exception):
    """There is no environment for a subject; says why."""


class Environments:
    """Finds, or makes, the interpreter that runs a subject."""

    def __init__(self, *, install: bool) -> None:
        """Look for environments; make missing ones if they may be installed."""
        self._install = install
        self._missing: dict[str, str] = {}

    def interpreter(self, subject: str) -> Path | None:
        """Return the interpreter for a subject, ``None`` for our own.

        Raises:
            NotInstalled: what it needs is not here and cannot be had.
        """
        if subject.startswith("Reference"):
            return reference_interpreter()
        if (module := _OURS.get(subject)) is not None and importlib.util.find_spec(module) is None:
            raise NotInstalled(f"{module} is not installed")
        if subject not in PACKAGES:
            return None
        if subject in self._missing:
            raise NotInstalled(self._missing[subject])
        home = ROOT / ".cache" / f"peer-{subject.lower()}"
        try:
            if not _complete(home, PACKAGES[subject]):
                if not self._install:
                    raise NotInstalled("not installed: a run without --quick does that")
                _make(home, PACKAGES[subject])
        except NotInstalled as error:
            self._missing[subject] = str(error)
            raise
        return home / "bin" / "python"


def _complete(home: Path, packages: list[str]) -> bool:
    try:
        installed: object = json.loads((home / _COMPLETE).read_text())
    except (OSError, ValueError):
        return False
    return installed == packages


def _make(home: Path, packages: list[str]) -> None:
    """Make it under another name, and rename it when it is complete: half of one is never found."""
    home.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="peer-making-") as making:
        new = Path(making) / "env"
        install = [str(new / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
        for command in ([sys.executable, "-m", "venv", str(new)], install):
            try:
                subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                raise NotInstalled(f"not installed within {_PATIENCE:g} s") from None
            except subprocess.CalledProcessError as error:
                lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or [""]
                raise NotInstalled(f"not installed: {lines[-1] or f'code {error.returncode}'}") from None
        (new / _COMPLETE).write_text(json.dumps(packages))
        shutil.rmtree(home, ignore_errors=True)
        os.rename(new, home)
