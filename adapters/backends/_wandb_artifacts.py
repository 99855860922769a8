"""Checkpoints as versions of one artifact."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Checkpoint:
    """A checkpoint to upload.

    Attributes:
        name: the artifact's.
        path: a file or a directory.
        aliases: what this version is called.
        metadata: what the driver said of it.
        seen: size in bytes and time of change in ns when it was logged; ``None``: it was not there.
    """

    name: str
    path: str
    aliases: list[str]
    metadata: dict[str, Any] = field(default_factory=dict)
    seen: list[int] | None = None

    def is_unchanged(self) -> bool:
        """Tell whether it is still what was logged."""
        return self.seen is not None and self.seen == _look(self.path)


def is_checkpoint(key: str, value: Any) -> bool:
    """Tell whether a ``log_other`` is about a checkpoint: ``("checkpoint", {"path": …, "step": …})``."""
    return key == "checkpoint" and isinstance(value, Mapping) and isinstance(value.get("path"), str)


def checkpoint(name: str, value: Mapping[str, Any], step: int, best: Sequence[str]) -> Checkpoint:
    """Return what to upload.

    Args:
        name: the artifact's; what W&B does not take is replaced.
        value: what was logged: ``path``, and perhaps ``size``, ``sha256`` and more.
        step: whose checkpoint it is.
        best: aliases for what it has the best values of.
    """
    path = os.path.abspath(value["path"])
    metadata = {**{key: item for key, item in value.items() if key != "path"}, "step": step}
    aliases = ["latest", f"step-{step}", *best]
    return Checkpoint(re.sub(r"[^\w.-]", "-", name), path, aliases, metadata, _look(path))


def upload(wandb: Any, run: Any, checkpoint: Checkpoint) -> str | None:
    """Hand a checkpoint to W&B, which sends it in the background; return what is wrong with it, if it cannot be.

    The same content as an earlier version becomes that version, with more aliases.
    """
    path, said = Path(checkpoint.path), checkpoint.metadata
    if checkpoint.seen is None or not path.exists():
        return f"{path} is not there any more: no checkpoint to upload"
    if said.get("size") not in (None, checkpoint.seen[0]):
        return f"{path} has {checkpoint.seen[0]} bytes, not {said['size']}: it was replaced since it was logged"
    if said.get("sha256") is not None and path.is_file() and said["sha256"] != _sha256(path):
        return f"{path} has not the logged sha256: it was replaced since it was logged"
    artifact = wandb.Artifact(checkpoint.name, type="model", metadata=said)
    try:
        if path.is_dir():
            artifact.add_dir(str(path))
        else:
            artifact.add_file(str(path))  # a copy: what is written to the file later does not count
    except OSError as error:
        return f"{path} cannot be read ({error}): the checkpoint is not uploaded"
    if not checkpoint.is_unchanged():
        return f"{path} was written to while it was read: the checkpoint is not uploaded"
    run.log_artifact(artifact, aliases=checkpoint.aliases)
    return None


def _look(path: str) -> list[int] | None:
    """Return size in bytes and time of the last change in ns, of a file or of all files below a directory."""
    try:
        files = [file for file in Path(path).rglob("*") if file.is_file()] if os.path.isdir(path) else [Path(path)]
        stats = [file.stat() for file in files]
    except OSError:
        return None
    return [sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
