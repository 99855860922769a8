"""What was handed to W&B and may not have arrived yet: a file of lines, beside the client's own.

The client's service keeps what it is given in memory for seconds before it writes or sends it. When the service is
killed, or the process whose child it is, that is gone, and nobody was told. So each row stands here first. The
next attempt asks how many rows have arrived, and sends the others; of those that arrived although its record does
not know of them, it remembers what they hold, so that they are not sent a second time.

Each line is one entry: ``{"n": number of the row, "row": …, "pages": …}``, ``{"config": …}``, ``{"summary": …}``,
``{"checkpoint": …}``, ``{"attempt": …}``, with which an attempt begins, or ``{"known": a row that arrived}``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: From this size on, what has arrived is taken out.
LARGEST: Final = 16 * 1024 * 1024
#: What a row's keys are called, behind their context, that say where it belongs.
AXES: Final = ("step", "epoch", "walltime", "_timestamp")


@dataclass
class Attempt:
    """How one process began to write a run.

    Attributes:
        row: the number of its first row, counted over all attempts.
        step: W&B's own step of that row.
        file: the client's file, in which its rows are.
        online: whether W&B's step is the server's.
        keep: entries from this one to the attempt's own are void: the attempt went on from before them.
    """

    row: int
    step: int
    file: str
    online: bool
    keep: int


@dataclass
class Unsure:
    """What a new attempt finds of those before it.

    Attributes:
        last: how the last one began, ``None`` if none is known.
        rows: number -> entry, of rows that its record knows.
        later: the same of rows that came after its record.
        known: entries of rows that arrived after a record of before.
        config, summary: what its record knows, later values over earlier ones.
        checkpoints: those its record knows.
    """

    last: Attempt | None = None
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    later: dict[int, dict[str, Any]] = field(default_factory=dict)
    known: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


class Journal:
    """Writes the entries of one run, one process at a time.

    Args:
        path: the file; it is made with the first entry.

    Attributes:
        entries: how many there have been, over all attempts: a place in the journal.
        rows: the number of the next row.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries = 0
        self.rows = 0
        self._file: int | None = None
        self._whole = 0  # bytes of whole lines
        self._limit = LARGEST

    def read(self, place: int) -> Unsure:
        """Return what the record of ``place`` entries leaves unsure, and go on behind all there are."""
        found = Unsure()
        entries: dict[int, dict[str, Any]] = {}
        for entry in self._lines():
            at = entry.pop("at")
            if "attempt" in entry:
                found.last = Attempt(**entry["attempt"])
                for void in [at for at, old in entries.items() if at >= found.last.keep and "known" not in old]:
                    del entries[void]
            entries[at] = entry
        self.entries = max(place, max(entries, default=-1) + 1)
        for at, entry in entries.items():
            if "known" in entry:
                found.known.append(entry["known"])
            elif "n" in entry:
                (found.rows if at < place else found.later)[entry["n"]] = entry
            elif at < place:
                found.config |= entry.get("config", {})
                found.summary |= entry.get("summary", {})
                found.checkpoints += [entry["checkpoint"]] if "checkpoint" in entry else []
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the entries. What ends in the middle was cut short, and its verb never returned."""
        self._whole = 0
        with contextlib.suppress(FileNotFoundError, ValueError), open(self.path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
                    self._whole += len(line)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write one entry, so that it outlives this process."""
        if self._file is None:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, self._whole)
        line = _line({"at": self.entries, **entry})
        if os.write(self._file, line) < len(line):  # a full disk takes a part
            os.ftruncate(self._file, self._whole)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._whole += len(line)
        self.entries += 1

    @property
    def is_large(self) -> bool:
        """Tell whether it is time to :meth:`trim`."""
        return self._whole > self._limit

    def put_off(self) -> None:
        """Let the file become twice as large before it :attr:`is_large` again: nobody knows what has arrived."""
        self._limit = 2 * self._whole

    def trim(self, before: int, *, only_rows: bool = False) -> None:
        """Take out the rows before a number: nobody will ask for them again.

        Args:
            before: the number of the first row that stays.
            only_rows: take out what is no row, too.
        """
        entries = [*self._lines()]
        last = next((entry for entry in reversed(entries) if "attempt" in entry), None)
        kept = []
        for entry in entries:
            is_row = "n" in entry or "known" in entry
            if entry.get("known", entry)["n"] >= before if is_row else entry is last or not only_rows:
                kept.append(entry)
        self.close()
        temporary = f"{self.path}.tmp"
        with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            self._whole = sum(file.write(_line(entry)) for entry in kept)
        os.replace(temporary, self.path)
        self._limit = max(LARGEST, 2 * self._whole)  # what has not arrived stays, however much it is

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def delete(self) -> None:
        """Remove the file: everything has arrived."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class Arrived:
    """Values that arrived although the record does not know: not to be sent a second time.

    Args:
        rows: the entries of their rows.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._lines: dict[str, dict[str, Any]] = {}
        for entry in rows:
            axes, values = _apart(entry["row"], entry.get("pages", {}))
            self._lines.setdefault(_key(axes), {}).update(values)

    def without(self, row: Mapping[str, Any], pages: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what of a row is new, and of its pages; axes alone are nothing."""
        if not self._lines:
            return dict(row), dict(pages)
        axes, values = _apart(row, pages)
        known = self._lines.get(_key(axes), {})
        # by its JSON, since NaN is not equal to itself
        new = {key: value for key, value in values.items() if key not in known or _key(known[key]) != _key(value)}
        if not new:
            return {}, {}
        return {**axes, **{k: v for k, v in new.items() if k in row}}, {k: v for k, v in new.items() if k in pages}


def _apart(row: Mapping[str, Any], pages: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a row into its axes and its values."""
    axes = {key: value for key, value in row.items() if key.rpartition("/")[2] in AXES}
    return axes, {**{key: value for key, value in row.items() if key not in axes}, **pages}


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
