"""Weights & Biases' own files, ``run-ID.wandb``: of offline runs, and of online ones before they are removed.

A file is one process's attempt at a run; several of one id are one run, in the order in which they were started. It
is a header, then blocks of 32 KiB in which every record lies in pieces, each with its checksum.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from adapters import _require
from adapters.importers.items import Attempt, Call, End, Item, Line, Options, Report, Source, as_epoch, split
from loggers.contract import STATUSES

WHAT: Final = "W&B files"
_MAGIC: Final = b":W&B"
_HEADER: Final = 7
_BLOCK: Final = 32 * 1024
_PIECE: Final = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: What W&B itself puts into a row.
_OWN: Final = frozenset(("_step", "_runtime", "_timestamp", "_wandb"))
#: What a shell reports for Ctrl-C, and what a WandbLogger ends an interrupted run with.
_INTERRUPTED: Final = 130


def matches(path: Path) -> bool:
    """Tell a file by its header."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def below(directory: Path) -> list[Path]:
    """Return the files in a directory, at any depth; not those behind the link ``latest-run``."""
    return [path for path in sorted(directory.rglob("run-*.wandb")) if path.is_file() and matches(path)]


def sources(files: list[Path], root: Path) -> list[Source]:
    """Return a run for each id."""
    attempts: dict[str, list[tuple[float, Path]]] = {}
    for path in files:
        run_id, started = _identity(path)
        attempts.setdefault(run_id, []).append((started, path))
    found = []
    for run_id, run in attempts.items():
        paths = tuple(path for _, path in sorted(run))
        found.append(Source("wandb", "" if len(attempts) == 1 else run_id, paths, partial(_read, paths)))
    return found


def _identity(path: Path) -> tuple[str, float]:
    """Return the id of a file's run, and when the attempt was started."""
    for record in _records(path, Report()):
        if record.WhichOneof("record_type") == "run":
            start = record.run.start_time
            return record.run.run_id, start.seconds + start.nanos / 1e9
    return path.stem.removeprefix("run-"), path.stat().st_mtime  # killed before it said so


def _read(files: tuple[Path, ...], report: Report, options: Options) -> Iterator[Item]:
    run = _Run(report, options)
    for path in files:
        yield from run.begin()
        for record in _records(path, report):
            yield from run.record(record, path)
    yield from run.rest()


class _Run:
    """What is known of the run while its records go by."""

    def __init__(self, report: Report, options: Options) -> None:
        self._report = report
        self._context = options.context
        self._axes: dict[str, str] = {}  # metric, or what a glob begins with and a star -> its step metric
        self._params: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._logged: set[str] = set()
        self._about: dict[str, Any] = {}
        self._exit: int | None = None
        self._last_step = -1  # of W&B's own counter
        self._offset: int | None = None

    def begin(self) -> Iterator[Item]:
        """Begin a file."""
        self._exit = self._offset = None
        self._summary.pop("status", None)  # it was that of the attempt before
        yield Attempt(alone=True)

    def record(self, record: Any, path: Path) -> Iterator[Item]:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            yield from self._row(_tree(record.history.item, {}), path)
        elif kind == "run":
            yield from self._details(record.run)
        elif kind == "config":
            yield from self._config(record.config)
        elif kind == "summary":
            _tree(record.summary.update, self._summary)
            for item in record.summary.remove:
                self._summary.pop(item.key or item.nested_key[0], None)
        elif kind == "metric":
            metric = record.metric
            if metric.step_metric:
                self._axes[metric.name or metric.glob_name] = metric.step_metric
        elif kind == "exit":
            self._exit = record.exit.exit_code
        elif kind in _UNSUPPORTED:
            self._report.leave_out(_UNSUPPORTED[kind])

    def rest(self) -> Iterator[Item]:
        """Yield what is known only at the end: the summary's own entries, what the run is called, its end."""
        said = self._summary.get("status")
        if said in STATUSES:
            del self._summary["status"]
        for key, value in self._summary.items():
            if key not in self._logged and key not in _OWN:
                yield Call("log_other", (key, value))
        if self._about:
            yield Call("log_other", ("wandb", self._about))
        if self._exit is not None:
            by_code = {0: "completed", _INTERRUPTED: "interrupted"}.get(self._exit, "error")
            yield End(said if said in STATUSES else by_code)

    def _details(self, run: Any) -> Iterator[Item]:
        yield from self._config(run.config)
        if run.tags:
            yield Call("log_tags", (list(run.tags),))
        names = ("run_id", "display_name", "project", "entity", "run_group", "job_type", "notes", "sweep_id")
        self._about |= {name: value for name in names if (value := getattr(run, name))}

    def _config(self, config: Any) -> Iterator[Item]:
        _tree(config.update, self._params)
        self._params.pop("_wandb", None)
        changed = {item.nested_key[0] if item.nested_key else item.key for item in config.update}
        if params := {key: value for key, value in self._params.items() if key in changed}:
            yield Call("log_params", (params,))

    def _row(self, row: dict[str, Any], path: Path) -> Iterator[Item]:
        own_step, time = self._own_step(row.get("_step")), row.get("_timestamp")
        row = {key: row[key] for key in sorted(row.keys() - _OWN)}
        yield from self._confusions(row)
        self._logged |= row.keys()
        values = dict(self._flat(row))
        used: set[str] = set()
        lines: dict[tuple[str, Any], dict[str, Any]] = {}
        for name, value in values.items():
            context, metric = split(name, self._context)
            axis = self._axis(name, context, values)
            if axis is not None:
                used.add(axis)
            if name != axis:
                if axis is None and self._offset:
                    self._report.note(
                        f"{path.name} counts its steps from 0 again: they are moved behind the {self._offset} before, "
                        f"as `wandb sync` does"
                    )
                step = own_step if axis is None else values[axis]
                lines.setdefault((context, step), {})[metric] = value
        for (context, step), metrics in lines.items():
            for axis in used:
                where, metric = split(axis, self._context)
                if where == context:
                    metrics.pop(metric, None)
            epoch = as_epoch(metrics.get("epoch"))
            if epoch is not None:
                del metrics["epoch"]
            walltime = metrics.pop("walltime") if isinstance(metrics.get("walltime"), int | float) else time
            if metrics:
                yield Line(step, context, metrics, epoch, walltime)

    def _axis(self, name: str, context: str, row: Mapping[str, Any]) -> str | None:
        """Return the metric that is the step of another one in a row, ``None`` for W&B's own counter."""
        globs = [glob for glob in self._axes if glob.endswith("*") and name.startswith(glob[:-1])]
        defined = self._axes.get(name) or self._axes.get(max(globs, key=len, default=""))
        # one that counts epochs has many rows to a number, and would lose them
        candidates = [defined] if defined is not None and defined.lower().endswith("step") else []
        for axis in (*candidates, f"{context}/step"):
            if as_epoch(row.get(axis)) is not None:
                return axis
        return None

    def _own_step(self, step: Any) -> Any:
        """Return a step of W&B's counter, moved behind the attempts before if it began again at 0."""
        if type(step) is not int:
            return step
        if self._offset is None:
            self._offset = self._last_step + 1 if step == 0 else 0
        self._last_step = max(self._last_step, step + self._offset)
        return step + self._offset

    def _confusions(self, row: dict[str, Any]) -> Iterator[Item]:
        """Take the confusion matrices of a WandbLogger out of a row."""
        for counts in [key for key in row if key.endswith("/counts") and f"{key[:-7]}/labels" in row]:
            key = counts.removesuffix("/counts")
            context, slash, name = key.partition("/")
            prefix = f"{context}/" if slash else ""
            place = {"step": row.pop(f"{prefix}step", None), "epoch": row.pop(f"{prefix}epoch", None)}
            row.pop(key, None)  # the page that shows it
            self._logged |= {key, counts, f"{key}/labels", f"{prefix}step", f"{prefix}epoch"}
            args = row.pop(counts), row.pop(f"{key}/labels")
            yield Call("log_confusion", args, {**place, "context": context if slash else None, "name": name or key})

    def _flat(self, row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield names and values; what is nested has dots in its name, as on W&B's pages."""
        for name, value in row.items():
            if not isinstance(value, dict):
                yield name, value
            elif "_type" in value:
                self._report.leave_out(f"media of type {value['_type']}")
            else:
                yield from self._flat({f"{name}.{key}": inner for key, inner in value.items()})


#: Records with something in them that a run has no place for.
_UNSUPPORTED: Final = {
    "stats": "system metrics",
    "output": "console lines",
    "output_raw": "console lines",
    "artifact": "artifacts",
    "alert": "alerts",
    "tbrecord": "TensorBoard records",
}


def _tree(items: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """Put items, which have a key or a path of keys, into nested data, and return it."""
    for item in items:
        *outer, last = list(item.nested_key) or [item.key]
        inner = tree
        for key in outer:
            deeper = inner.get(key)
            if not isinstance(deeper, dict):
                deeper = inner[key] = {}
            inner = deeper
        inner[last] = json.loads(item.value_json)
    return tree


def _records(path: Path, report: Report) -> Iterator[Any]:
    """Yield the records of a file; a torn end is left out, and so is a record with a damaged piece."""
    who = f"importing {path.name}"
    record_type = _require.require("wandb.proto.wandb_internal_pb2", extra="wandb", who=who).Record
    parts: list[bytes] = []
    with path.open("rb") as file:
        report.bytes_read += len(file.read(_HEADER))
        while True:
            at = file.tell()
            left = _BLOCK - at % _BLOCK
            if left < _PIECE.size:
                report.bytes_read += len(file.read(left))
                left, at = _BLOCK, at + left
            head = file.read(_PIECE.size)
            if len(head) < _PIECE.size:
                break
            check, size, kind = _PIECE.unpack(head)
            if kind == 0:  # the rest of a block is padding
                report.bytes_read += len(head) + len(file.read(left - _PIECE.size))
                continue
            piece = file.read(size)
            if len(piece) < size:
                head += piece
                break
            report.bytes_read += len(head) + size
            if zlib.crc32(bytes((kind,)) + piece) != check or kind > _LAST:
                report.leave_out("damaged records")
                report.note(f"{path.name} has a damaged record at byte {at}")
                parts = []
                # lengths can be trusted no more; the next block begins with a piece
                report.bytes_read += len(file.read((-file.tell()) % _BLOCK))
                continue
            parts = [piece] if kind in (_WHOLE, _FIRST) else [*parts, piece] if parts else []
            if kind in (_WHOLE, _LAST) and parts:
                yield record_type.FromString(b"".join(parts))
                parts = []
    if head or parts:
        lost = len(head) + sum(map(len, parts))
        report.note(f"{path.name} ends inside a record, which is left out: {lost} bytes")
