"""Ask W&B at the start of training whether it takes a run, without loading its client into the training process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any, Final

from adapters.backends._wandb_server import PATIENCE_S
from loggers.errors import LoggerError

#: Seconds beside those of the question: a new interpreter, and the client's import.
_STARTUP_S: Final = 30.0


def ask_elsewhere(logger: Any) -> None:
    """Let another process call ``logger.check_account()``, and raise here what it raises on purpose.

    Raises:
        RefusedError, UnreachableError, ImportError: what stands in the way.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-P", "-m", __name__]
    try:
        answer = subprocess.run(
            command,
            input=pickle.dumps(logger),
            capture_output=True,
            timeout=PATIENCE_S + _STARTUP_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # a machine under load; whoever starts the run finds out
    # the client may have had its say before
    _, found, error = answer.stdout.partition(_MARK)
    if found:
        raise pickle.loads(error)


_MARK: Final = b"\0WandbLogger\0"


def main() -> None:
    """Read a pickled logger from stdin; write what stands in the way of its run to stdout."""
    logger = pickle.load(sys.stdin.buffer)
    try:
        logger.check_account()
    except (LoggerError, ImportError) as error:
        sys.stdout.buffer.write(_MARK + pickle.dumps(type(error)(*error.args)))


if __name__ == "__main__":
    main()
