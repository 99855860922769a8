"""What has to be known of MLflow's client to find a run, or begin one, and to bring data there."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from adapters._require import require
from adapters.backends._mlflow_data import LONGEST_TAG, pieces
from adapters.backends._queued import Operation
from loggers.errors import RecordError

try:
    import fcntl
except ImportError:  # no file locks here: the processes of a sweep should not begin a database together
    fcntl = None  # type: ignore[assignment]

#: The tag that says which logger a run belongs to. MLflow gives a run its own id when it begins, too late
#: for a process that starts again before it could note it.
ID_TAG: Final = "loggers.run_id"
#: The tag that says which points no longer count, since a resume has taken them back.
CUTS_TAG: Final = "loggers.cuts"
#: The tag with the status as drivers know it.
STATUS_TAG: Final = "loggers.status"
#: What MLflow takes in one request.
_METRICS_AT_ONCE: Final = 1000
_TEXTS_AT_ONCE: Final = 100
#: Seconds to wait for a server to answer at all. MLflow's own attempts would take minutes.
_PATIENCE_S: Final = 5.0
#: Errors that another attempt would not change.
_FINAL_CODES: Final = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST"})


def absolute(uri: str) -> str:
    """Return a tracking URI that means the same in every folder."""
    if uri.startswith("sqlite:///") and not uri.startswith(("sqlite:////", "sqlite:///:")):
        return f"sqlite:///{os.path.abspath(uri.removeprefix('sqlite:///'))}"
    return uri


def current_uri() -> str | None:
    """Return where the program has told MLflow to log, ``None`` if it has not."""
    if (mlflow := sys.modules.get("mlflow")) is not None and hasattr(mlflow, "get_tracking_uri"):
        return str(mlflow.get_tracking_uri())
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def connect(uri: str | None) -> Any:
    """Return a client of the tracking server or database at ``uri``; of MLflow's default for ``None``.

    Raises:
        ImportError: MLflow is not installed; the message names the extra.
        ConnectionError: no server answers there.
    """
    if uri is not None and urlsplit(uri).scheme in ("http", "https"):
        _check_reachable(uri)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a logger calls nobody else
    with warnings.catch_warnings():
        # what MLflow uses of other packages is for MLflow to change
        warnings.simplefilter("ignore", DeprecationWarning)
        tracking = require("mlflow.tracking", extra="mlflow", who="MLflowLogger")
        if uri is not None and not urlsplit(uri).scheme.startswith(("http", "databricks")):
            for package in ("sqlalchemy", "alembic"):
                require(package, extra="mlflow", who="MLflowLogger")
        return tracking.MlflowClient(tracking_uri=uri)


@contextlib.contextmanager
def alone(uri: str | None) -> Iterator[None]:
    """Let processes reach a database file one after the other: MLflow's first look makes its tables.

    When the processes of a sweep do that together, most of them fail, at a table that is there already.
    """
    folder = os.getcwd() if uri is None else _folder(uri)  # by default it is in the working directory
    fd = -1 if folder is None or fcntl is None else os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _folder(uri: str) -> str | None:
    """Return where a database file is, ``None`` if that is no folder here."""
    path = uri.removeprefix("sqlite:///")
    folder = os.path.dirname(path) if path != uri and path.startswith("/") else ""
    return folder if os.path.isdir(folder) else None


def _check_reachable(uri: str) -> None:
    address = urlsplit(uri)
    if getproxies().get(address.scheme) and address.hostname not in ("127.0.0.1", "localhost"):
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), _PATIENCE_S).close()
    except OSError as error:
        raise ConnectionError(
            f"no MLflow server answers at {uri} ({error}): start it, or pass tracking_uri='sqlite:////path/ml.db'"
        ) from None


def is_final(error: Exception) -> bool:
    """Return whether MLflow refused what it got, rather than failed to take it."""
    return getattr(error, "error_code", None) in _FINAL_CODES


def existing_run(client: Any, run: str) -> Any:
    """Return a run by MLflow's id, going on if it had ended.

    Raises:
        RecordError: it is not there.
    """
    mlflow = require("mlflow.exceptions", extra="mlflow", who="MLflowLogger")
    try:
        found = client.get_run(run)
    except mlflow.MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise RecordError(
            f"there is no MLflow run {run!r} at {client.tracking_uri}: pass the tracking_uri of the server "
            "or database that has it, or start without the checkpoint's record"
        ) from error
    if found.info.status != "RUNNING":
        client.update_run(run, status="RUNNING")
    return found


def own_run(client: Any, experiment: str, own_id: str, *, name: str | None, artifacts: str | None) -> Any:
    """Return the run that a logger of this id has begun, here or in another process, or begin it."""
    experiment_id = _experiment(client, experiment, artifacts)
    found = client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{own_id}'", max_results=1)
    if found:
        return existing_run(client, found[0].info.run_id)
    return client.create_run(experiment_id, run_name=name, tags={ID_TAG: own_id})


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    mlflow = require("mlflow.exceptions", extra="mlflow", who="MLflowLogger")
    if (experiment := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts or _beside(client.tracking_uri)))
        except mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        experiment = client.get_experiment_by_name(name)  # another process was faster
    return str(experiment.experiment_id)


def _beside(uri: str) -> str | None:
    """Return where the artifacts of a database file belong: beside it, not wherever the program was started."""
    path = uri.removeprefix("sqlite:///")
    return str(Path(path).with_name("mlartifacts")) if path != uri and path.startswith("/") else None


def deliver(client: Any, run: str, say: Callable[[str], None], operations: Iterable[Operation]) -> None:
    """Bring operations to a run, in few requests. To do so twice is as good as once.

    They are ``["metrics", time in ms, step, {stored name: number}]``, ``["params", {stored name: text}]``,
    ``["tags", …]`` and ``["file", artifact path, text]``.

    A file that the artifact store does not take (its package is not installed, or it can only be reached
    from the server) becomes tags, which every server takes, and ``say`` is told.
    """
    entities = require("mlflow.entities", extra="mlflow", who="MLflowLogger")
    metrics: list[Any] = []
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    for kind, *rest in operations:
        if kind == "metrics":
            when, step, values = rest
            metrics += [entities.Metric(name, float(value), when, step) for name, value in values.items()]
        elif kind == "params":
            params |= rest[0]
        elif kind == "tags":
            tags |= rest[0]
        else:
            tags |= _left_of_file(client, run, say, *rest)
    for some in _some(metrics, _METRICS_AT_ONCE):
        client.log_batch(run, metrics=some)
    for some in _some([entities.Param(name, value) for name, value in params.items()], _TEXTS_AT_ONCE):
        client.log_batch(run, params=some)
    for some in _some([entities.RunTag(name, value) for name, value in tags.items()], _TEXTS_AT_ONCE):
        client.log_batch(run, tags=some)


def _left_of_file(client: Any, run: str, say: Callable[[str], None], path: str, text: str) -> dict[str, str]:
    """Upload an artifact; return the tags to write instead if that cannot be done."""
    try:
        client.log_text(run, text, path)
    except Exception as error:  # every store has errors of its own
        say(f"MLflow's artifact store does not take {path} ({type(error).__name__}: {error}); it is in tags instead")
        return pieces(path.removesuffix(".json"), text, LONGEST_TAG)
    return {}


def _some(items: list[Any], most: int) -> Iterable[list[Any]]:
    rest = iter(items)
    while some := [*islice(rest, most)]:
        yield some


def end(client: Any, run: str, status: str) -> None:
    """End a run; also as MLflow's active one, which its exit hook would end as finished after us."""
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
    if active is not None and active.info.run_id == run:
        mlflow.end_run(status)  # type: ignore[union-attr]
    else:
        client.set_terminated(run, status=status)
