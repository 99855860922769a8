"""Programs that a test runs in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

_ROOT: Final = str(Path(__file__).parents[2])


def run(program: str, directory: Path, *, killed: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory; it has to succeed, or to kill itself if ``killed``."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=directory, env={**os.environ, "PYTHONPATH": _ROOT}, capture_output=True, text=True, check=False,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    return done
