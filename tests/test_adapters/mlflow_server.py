"""MLflow's own tracking server on 127.0.0.1: its Flask application, which the client's package has as well."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

_PROGRAM: Final = """
import socket, sys
from mlflow.server import app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


class MLflowServer:
    """A server on a database, which can go away and come back at the same address."""

    def __init__(self, directory: Path, database: str) -> None:
        self._environment = {
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "_MLFLOW_SERVER_FILE_STORE": database,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(directory / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        }
        self._log = directory / "server.log"
        self._port = 0
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(self._port)],
                env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        assert port, self._log.read_text()
        self._port = int(port)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def unused_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
