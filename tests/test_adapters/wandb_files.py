"""Reads W&B's offline files without W&B: the log blocks, the protobuf wire format, the records.

A ``run-ID.wandb`` file is a header of seven bytes, then blocks of 32 KiB in the manner of a LevelDB
log: pieces of checksum, length, kind and payload, where a record too long for a block is cut in
several pieces. Each record is a protobuf message. Only the fields that tests ask for are named here.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK = 32 * 1024
_PIECE = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """One attempt at one run: one file."""

    path: Path
    run_id: str = ""
    entity: str = ""
    project: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    notes: str = ""
    started: float = 0.0
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, tuple[str, bool]] = field(default_factory=dict)  # metric -> its axis, hidden
    exit_code: int | None = None  # None: the run never ended

    @property
    def media(self) -> Path:
        """The directory that ``path`` entries of media values are relative to."""
        return self.path.parent / "files"


def find_runs(directory: Path) -> list[OfflineRun]:
    """Read every attempt under ``directory``, in the order they were started."""
    found = map(read_run, directory.rglob("offline-run-*/run-*.wandb"))
    return sorted(found, key=lambda run: run.started)


def read_run(path: Path) -> OfflineRun:
    """Read one file, which may still be written to, or end in the middle of a record."""
    run = OfflineRun(path)
    for record in _records(path.read_bytes()):
        _take(run, record)
    run.config.pop("_wandb", None)
    return run


def _take(run: OfflineRun, record: bytes) -> None:
    for number, message in _fields(record):
        if number == 2:
            run.rows.append(_items(message, field=1))
        elif number == 3:
            run.summary |= _items(message, field=1)
        elif number == 5:
            run.config |= _items(message, field=1)
        elif number == 12:
            metric = dict(_fields(message))
            options = dict(_fields(metric.get(6, b"")))
            metric_name = _text(metric.get(1) or metric[2])
            run.definitions[metric_name] = (_text(metric.get(4, b"")), bool(options.get(2)))
        elif number == 17:
            _take_details(run, message)
        elif number == 18:
            run.exit_code = dict(_fields(message)).get(1, 0)


def _take_details(run: OfflineRun, message: bytes) -> None:
    names = {1: "run_id", 2: "entity", 3: "project", 6: "group", 7: "job_type", 8: "name", 9: "notes"}
    run.tags = []  # a later record of this kind replaces them all
    for number, value in _fields(message):
        if number in names:
            setattr(run, names[number], _text(value))
        elif number == 10:
            run.tags.append(_text(value))
        elif number == 4:
            run.config |= _items(value, field=1)
        elif number == 17:
            seconds = dict(_fields(value))
            run.started = seconds.get(1, 0) + seconds.get(2, 0) / 1e9


def _items(message: bytes, field: int) -> dict[str, Any]:
    """Return the key-value pairs that a history, summary or config message holds in ``field``."""
    pairs: dict[str, Any] = {}
    for number, item in _fields(message):
        if number == field:
            # one plain key, or a path into nested dicts
            *outer, last = [_text(value) for kind, value in _fields(item) if kind in (1, 2)]
            inner = pairs
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = json.loads(next(value for kind, value in _fields(item) if kind == 16))
    return pairs


def _text(value: bytes) -> str:
    return value.decode()


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: ``int`` for varints, ``bytes`` for everything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _varint(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _records(content: bytes) -> Iterator[bytes]:
    if not content:
        return  # created, and nothing written yet
    if content[:4] != b":W&B":
        raise ValueError(f"not an offline file of W&B: it begins with {content[:7]!r}")
    at, pending = 7, b""
    while at + _PIECE.size <= len(content):
        left = _BLOCK - at % _BLOCK
        checksum, size, kind = _PIECE.unpack_from(content, at)
        if left < _PIECE.size or kind == 0:
            at += left  # the rest of a block is padding
            continue
        piece = content[at + _PIECE.size : at + _PIECE.size + size]
        if len(piece) < size:
            return  # torn, or not all written yet
        if zlib.crc32(bytes((kind,)) + piece) != checksum:
            raise ValueError(f"wrong checksum at byte {at}")
        at += _PIECE.size + size
        pending = piece if kind in (_WHOLE, _FIRST) else pending + piece
        if kind in (_WHOLE, _LAST):
            yield pending
