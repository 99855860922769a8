"""Runs scripts that log to W&B, each in a process of its own: the client keeps threads, a service and settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"  # nothing listens there


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment without a W&B account, and without a way to the internet's W&B."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "NETRC", "XDG_"))
    }
    ours = {"HOME": str(home), "PYTHONPATH": str(ROOT), "WANDB_BASE_URL": NOWHERE, "NO_PROXY": "127.0.0.1"}
    return {**kept, **ours, **more}


@contextmanager
def start(home: Path, script: str, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script that has WandbLogger, and tells its parent what it puts into ``told``."""
    lines = (
        "import json, os, pickle, sys, time",
        "from adapters.backends.wandb import WandbLogger",
        "told = {}",
        textwrap.dedent(script),
        "print('TOLD ' + json.dumps(told), flush=True)",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines), *arguments],
        cwd=home,
        env=environment(home, **env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(home: Path, script: str, **env: str) -> dict[str, Any]:
    """Run a script to its end and return what it told."""
    with start(home, script, **env) as process:
        out, err = process.communicate(timeout=240)

    assert process.returncode == 0, err
    # the service may have its say on the same stdout, after the script
    told: dict[str, Any] = json.loads(out.rpartition("TOLD ")[2].splitlines()[0])
    return told


def sync(command: str, home: Path, **env: str) -> None:
    """Run a command line as a user would, with this interpreter's ``wandb`` in the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = environment(home, PATH=path, WANDB_ERROR_REPORTING="false", **env)
    line = f"exec env {command}"  # no shell in between that would be killed in its stead
    subprocess.run(line, shell=True, cwd=home, env=env, capture_output=True, timeout=240, check=True)


def series(rows: list[dict[str, Any]], name: str, axis: str = "step") -> list[tuple[Any, Any]]:
    """Return one metric's points as (step, value)."""
    context = name.split("/")[0]
    return [(row[f"{context}/{axis}"], row[name]) for row in rows if name in row]
