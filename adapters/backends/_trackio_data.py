"""Our data as Trackio takes it, and its database file.

Trackio's own ``Run.log`` keeps rows in memory for half a second, drops a batch that it cannot write with a
warning, and gives a row the time of its writing. The storage below it, which ``Run.log`` and Trackio's
server both write with, has none of that: it raises, takes the row's own time, and leaves out a row whose
``log_id`` it has.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing, redirect_stdout
from typing import Any, Final

from adapters._require import require
from adapters.backends._queued import Operation
from loggers.errors import LoggerError, RecordError

#: What Trackio's readers take for the row's own.
_RESERVED: Final = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})
#: What Trackio's reader takes for numbers.
_NUMBER_WORDS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
#: The key of the config under which everything is that is no hyperparameter.
OURS: Final = "loggers"


def storage(directory: str | None) -> Any:
    """Return Trackio's storage class, in the directory where the run is to be.

    Raises:
        ImportError: Trackio is not installed; the message names the extra.
        LoggerError: it was imported before, for another directory, which cannot be changed.
    """
    if directory is not None and "trackio" not in sys.modules:
        os.environ["TRACKIO_DIR"] = directory  # it is read once, by the import
    with redirect_stdout(sys.stderr):  # the terminal's output belongs to the training program
        module = require("trackio.sqlite_storage", extra="trackio", who="TrackioLogger")
        used = os.path.abspath(require("trackio.utils", extra="trackio", who="TrackioLogger").TRACKIO_DIR)
    if directory is not None and used != directory:
        raise LoggerError(
            f"this run belongs to Trackio's directory {directory}, and Trackio was imported for {used}: "
            f"set TRACKIO_DIR={directory} before the program imports it"
        )
    return module.SQLiteStorage


def row_key(name: str) -> str:
    """Return the key of a value, apart from those that are the row's own."""
    return _quoted(name) if name in _RESERVED or name.startswith(("__", "%")) else name


def config_key(name: str) -> str:
    """Return the key of a hyperparameter, apart from Trackio's own (``_…``) and ours."""
    return _quoted(name) if name == OURS or not name or name[0] in "_%" else name


def _quoted(name: str) -> str:
    return f"%{ord(name[0]):02X}{name[1:]}" if name else "%"


def name_of(key: str) -> str:
    """Return the name that :func:`row_key` or :func:`config_key` made a key of."""
    if not key.startswith("%"):
        return key
    return chr(int(key[1:3], 16)) + key[3:] if len(key) > 1 else ""


def problem(value: Any) -> str | None:
    """Return why a value would not read back as it is, ``None`` if it would."""
    if isinstance(value, str) and value in _NUMBER_WORDS:
        return f"Trackio reads the text {value!r} as a number: write it in another way"
    if isinstance(value, (list, dict)) and _has_odd_number(value):
        return "Trackio keeps NaN and infinities only where they stand alone: log them as metrics of their own"
    return None


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_odd_number, value.values()))
    if isinstance(value, list):
        return any(map(_has_odd_number, value))
    return isinstance(value, float) and not math.isfinite(value)


def deliver(storage: Any, project: str, name: str, run: str, operations: Iterable[Operation]) -> None:
    """Write operations to Trackio's database, up to a rewind in one transaction. To do so twice is as good as once.

    They are ``["row", number, time, step, {key: value}]``, ``["config", {key: value}]`` and
    ``["rewind", number, step]``, which deletes the rows before a number that are not before a step.
    """
    together: list[Operation] = []
    for operation in operations:
        if operation[0] != "rewind":
            together.append(operation)
            continue
        _write(storage, project, name, run, together)
        together = []
        _, number, step = operation
        _delete(storage, project, run, "log_id < ? AND step >= ?", log_id(run, number), step)
    _write(storage, project, name, run, together)


def _write(storage: Any, project: str, name: str, run: str, operations: list[Operation]) -> None:
    ids, times, steps, rows = [], [], [], []
    config: dict[str, Any] | None = None
    for kind, *rest in operations:
        if kind == "config":
            config = rest[0]
        else:
            number, when, step, values = rest
            ids.append(log_id(run, number))
            times.append(when)
            steps.append(step)
            rows.append({key: _revived(value) for key, value in values.items()})
    if not rows and config is not None:
        # Trackio shows no run, and no config, without a row: an empty one, the same each time
        ids, times, steps, rows = [f"{run}:config"], [config["_Created"]], [0], [{}]
    if rows:
        storage.bulk_log(project, name, rows, steps, times, config, ids, run_id=run)


def log_id(run: str, number: int) -> str:
    """Return the id of a run's row; such ids sort as their numbers do."""
    return f"{run}-{number:012d}"


def _revived(value: Any) -> Any:
    """Return a number that a state had to hold as text; real text of this kind is refused before."""
    return float(value) if isinstance(value, str) and value in _NUMBER_WORDS else value


def plain_operation(operation: Operation) -> Operation:
    """Return an operation as strict JSON."""
    if operation[0] == "rewind":
        return operation
    if operation[0] == "config":
        return ["config", {key: _worded(value) for key, value in operation[1].items()}]
    return [*operation[:4], {key: _worded(value) for key, value in operation[4].items()}]


def _worded(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def cut(storage: Any, project: str, run: str, rows: int) -> None:
    """Delete the rows of a run behind the first ``rows``."""
    _delete(storage, project, run, "log_id >= ?", log_id(run, rows))


def _delete(storage: Any, project: str, run: str, which: str, *values: Any) -> None:
    """Delete rows that are ours; Trackio's own API deletes whole runs only."""
    path = storage.get_project_db_path(project)
    if not path.exists():
        return
    with closing(sqlite3.connect(path, timeout=30.0)) as database, database:
        database.execute(
            f"DELETE FROM metrics WHERE run_id = ? AND log_id GLOB ? AND {which}", (run, f"{run}-[0-9]*", *values)
        )


def checked_state(state: Any) -> dict[str, Any]:
    """Return a copy of the state of a TrackioLogger.

    Raises:
        RecordError: it is none.
    """
    if not isinstance(state, Mapping):
        raise RecordError(f"the state of a TrackioLogger is a mapping, got {state!r} ({type(state).__name__})")
    kinds = {"project": str, "name": str, "id": str, "directory": str | None, "rows": int, "config": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(state.get(key), kind)]
    lists = ("latest", "pending")
    wrong += [key for key in lists if not _is_list_of_lists(state.get(key))]
    if wrong:
        raise RecordError(
            f"the state of a TrackioLogger has bad {', '.join(wrong)}: got "
            f"{ {key: state.get(key) for key in wrong} }; pass what logger_state() returned"
        )
    return {key: state.get(key) for key in (*kinds, *lists)}


def _is_list_of_lists(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, list) for item in value)
