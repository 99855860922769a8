"""What Trackio's own readers find in a project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adapters.backends._trackio_data import OURS, name_of
from loggers.testing import Stored


def home(directory: Path) -> Path:
    """Return Trackio's directory in this process: ``directory``, if nobody has imported Trackio yet."""
    if "trackio" not in sys.modules:
        os.environ["TRACKIO_DIR"] = str(directory)
    import trackio.utils

    return Path(trackio.utils.TRACKIO_DIR)


def runs(project: str) -> Iterator[Any]:
    """Yield the runs of a project, the oldest first."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    if not SQLiteStorage.get_project_db_path(project).exists():
        return
    yield from sorted(trackio.Api().runs(project), key=lambda run: run.config["_Created"])


def rows(project: str, run: Any) -> list[dict[str, Any]]:
    """Return a run's rows, as Trackio's dashboard gets them."""
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs(project, run.name, run_id=run.id)


def stored(project: str) -> Stored:
    """Read a project as one run that went on in others."""
    found = Stored()
    for run in runs(project):
        for row in rows(project, run):
            step = row.pop("step")
            del row["timestamp"]
            for key, value in row.items():
                name = name_of(key)
                if name.startswith("other/"):
                    found.other[name.removeprefix("other/")] = value
                elif isinstance(value, dict) and value.keys() == {"epoch", "labels", "matrix"}:
                    found.confusions.setdefault(name, []).append((step, value["labels"], value["matrix"]))
                else:
                    found.metrics.setdefault(name, []).append((step, value))
        found.params |= {name_of(k): v for k, v in run.config.items() if k != OURS and not k.startswith("_")}
        found.tags |= run.config[OURS]["tags"]
        found.status = run.config[OURS]["status"]
    return found
