"""The two implementations, each in a process of its own; and what counts as a difference between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

REFERENCE_VERSION: Final = "0.19.0"
ROOT: Final = Path(__file__).parents[2]
_WORKER: Final = Path(__file__).with_name("reference_worker.py")
_COMPLETE: Final = "complete.json"

Command = tuple[str, dict[str, Any]]


def reference_interpreter() -> Path:
    """Return the interpreter of an environment with the reference package, made if there is none yet.

    It is made under another name and renamed when it is complete, so two runs at once, or one that was
    stopped, never leave a half-made one behind.
    """
    cache = ROOT / ".cache"
    home = cache / f"reference-{REFERENCE_VERSION}"
    interpreter = home / "bin" / "python"
    if not (home / _COMPLETE).exists():
        shutil.rmtree(home, ignore_errors=True)
        cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="reference-making-") as making:
            new = Path(making) / "env"
            packages = [f"plattli=={REFERENCE_VERSION}", "numpy"]
            _run(sys.executable, "-m", "venv", str(new))
            _run(str(new / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages)
            (new / _COMPLETE).write_text(json.dumps(packages))
            try:
                os.rename(new, home)
            except OSError:
                if not (home / _COMPLETE).exists():  # else another run was faster
                    raise
    return interpreter


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")


class Worker:
    """A process that plays programs and reads runs, see :mod:`tests.interop.reference_worker`."""

    def __init__(self, interpreter: Path, *package_root: Path) -> None:
        # -I: neither the environment's variables nor the current folder decide what is imported
        self._process = subprocess.Popen(
            [str(interpreter), "-I", str(_WORKER), *map(str, package_root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version, self.location = self._receive()

    def send(self, commands: list[Command]) -> None:
        """Ask for commands to be done, without waiting for the answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(commands) + "\n")
        self._process.stdin.flush()

    def answers(self) -> Any:
        """Wait for the answers, one for each command."""
        answers = self._receive()
        if isinstance(answers, dict):
            raise RuntimeError(f"the worker with plattli {self.version} failed:\n{answers['crash']}")
        return answers

    def ask(self, command: str, **arguments: Any) -> Any:
        """Do one command."""
        self.send([(command, arguments)])
        return self.answers()[0]

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def differences(ours: Any, theirs: Any, *ignored: str, where: str = "") -> Iterator[str]:
    """Yield where two answers differ. Errors agree if ours is (also) the builtin error that theirs is."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if "error" in theirs and "error" in ours:
            if theirs["error"][:1] != ours["error"][:1] and not set(theirs["error"][:1]) & set(ours["error"]):
                yield f"{where}: ours raises {ours['text']}, the reference {theirs['text']}"
            return
        for key in {**ours, **theirs}:
            if key in ignored:
                continue
            if key in ours and key in theirs:
                yield from differences(ours[key], theirs[key], *ignored, where=f"{where}/{key}")
            else:
                yield f"{where}/{key}: only {'ours' if key in ours else 'the reference'} has it"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, *ignored, where=f"{where}[{number}]")
    elif ours != theirs:
        yield f"{where}: ours {ours!r}, the reference {theirs!r}"
