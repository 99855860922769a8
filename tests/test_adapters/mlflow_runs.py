"""What MLflow's own client finds in a run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from adapters.backends._mlflow_data import LONGEST_PARAM, LONGEST_TAG, decode, from_text, versions
from loggers.testing import Stored


def client(uri: str) -> Any:
    """Return MLflow's client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what MLflow uses of SQLAlchemy
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri)


def runs(uri: str, experiment: str) -> list[Any]:
    """Return the runs of an experiment, the oldest first."""
    mlflow = client(uri)
    found = mlflow.get_experiment_by_name(experiment)
    if found is None:
        return []
    return sorted(mlflow.search_runs([found.experiment_id]), key=lambda run: run.info.start_time)


def history(uri: str, run: str, key: str) -> list[tuple[int, float]]:
    """Return the points of a metric, in the order in which MLflow's readers see them."""
    return [(metric.step, metric.value) for metric in client(uri).get_metric_history(run, key)]


def artifacts(uri: str, run: str, directory: Path, path: str = "") -> dict[str, str]:
    """Return the text of every artifact below ``path``, downloaded to ``directory``."""
    found: dict[str, str] = {}
    for item in client(uri).list_artifacts(run, path):
        if item.is_dir:
            found |= artifacts(uri, run, directory, item.path)
        else:
            found[item.path] = Path(client(uri).download_artifacts(run, item.path, str(directory))).read_text()
    return found


def stored(uri: str, experiment: str, directory: Path) -> Stored:
    """Read an experiment as one run that went on in others."""
    found = Stored()
    for run in runs(uri, experiment):
        for key in run.data.metrics:
            found.metrics.setdefault(decode(key), []).extend(history(uri, run.info.run_id, key))
        params = versions(run.data.params, LONGEST_PARAM)
        found.params |= {name: from_text(values[-1]) for name, values in params.items()}
        for name, [text] in versions(run.data.tags, LONGEST_TAG).items():
            if name.startswith("other/"):
                found.other[name.removeprefix("other/")] = from_text(text)
            elif not name.startswith(("mlflow.", "loggers.", "confusion/")):
                found.tags[name] = from_text(text)
        directory.mkdir(exist_ok=True)
        for text in artifacts(uri, run.info.run_id, directory, "confusion").values():
            record = json.loads(text)
            key = "/".join(part for part in (record["context"], record["name"]) if part)
            found.confusions.setdefault(key, []).append((record["step"], record["labels"], record["matrix"]))
        found.status = run.info.status
    return found
