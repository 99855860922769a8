"""The file of a JSONLogger as the verb calls that made it, again and again while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from loggers._cursor import Call, Cursor, Lag
from plattli.errors import CorruptRunError, NotARunError

#: Bytes that a finish line has at the most.
_LONGEST_FINISH: Final = 256
#: Lines delivered between two saves of the cursor.
_WINDOW: Final = 2000


class JSONLinesSource:
    """The file of a :class:`~loggers.JSONLogger` as verb calls."""

    complete = True

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotARunError(f"there is no JSON Lines file at {path}")
        self._path = path

    def ended(self) -> str | None:
        """See :class:`Source`: such a file tells its end only by a ``finish`` line behind which nothing comes."""
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - _LONGEST_FINISH, 0))
            *_, last, torn = (b"\n" + file.read()).split(b"\n")
        if torn or not last.startswith(b'{"type":"finish"'):
            return None
        status: str = json.loads(last)["status"]
        return status

    def taken_back(self, cursor: Cursor) -> None:
        """See :class:`Source`: in such a file nothing is ever taken back."""

    def lag(self, cursor: Cursor) -> Lag:
        """See :class:`Source`. Such a file holds no times."""
        with self._path.open("rb") as file:
            file.seek(cursor.offset)
            return Lag(sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")), 0.0)

    def everything(self) -> Cursor:
        """See :class:`Source`."""
        cursor = Cursor()
        for batch in self.calls(cursor):
            self.took(cursor, batch)
        return cursor

    def calls(self, cursor: Cursor) -> Iterator[list[Call]]:
        """See :class:`Source`. A torn last line waits for its rest."""
        with self._path.open("rb") as file:
            file.seek(cursor.offset)
            calls: list[Call] = []
            offset, skip = cursor.offset, cursor.skip
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                if skip:
                    skip -= 1
                elif line.strip() and (call := self._call(line)) is not None:
                    calls.append(Call(*call, (offset, skip)))
                if len(calls) >= _WINDOW:
                    yield calls
                    calls = []
            if calls:
                yield calls
            cursor.offset, cursor.skip = offset, skip

    def took(self, cursor: Cursor, calls: list[Call]) -> None:
        """See :class:`Source`."""
        if calls:
            cursor.offset, cursor.skip = calls[-1].mark

    def _call(self, line: bytes) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
        try:
            row = json.loads(line)
            return _verb_call(row.pop("type"), row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptRunError(f"{self._path} holds a line that is no verb call: {line[:80]!r}") from error


def _verb_call(kind: Any, row: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    """Return verb and arguments of a line without its type; raise what a line that is none comes to."""
    if kind == "metrics":
        axes: dict[str, Any] = {key: row.pop(key) for key in ("context", "epoch", "step") if key in row}
        return ("log_metrics", (row,), axes) if row else None
    if kind == "params":
        return "log_params", (row,), {}
    if kind == "tags":
        return "log_tags", (row["tags"],), {}
    if kind == "other":
        return "log_other", (row["key"], row["value"]), {}
    if kind == "confusion":
        return "log_confusion", (row.pop("matrix"), row.pop("labels")), row
    if kind == "finish":
        return None  # it ends an attempt; ended() tells whether it is the last one
    raise ValueError(f"unknown type {kind!r}")
