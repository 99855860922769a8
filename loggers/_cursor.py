"""How far a logger has come in a stored run, and what such a run is read as."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from loggers.contract import JSON
from loggers.errors import RecordError


class Call(NamedTuple):
    """One verb call to make, and what the cursor has to note once it is made."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mark: Any


@dataclass
class Cursor:
    """What a logger has received of a run.

    Attributes:
        run_id: the run, so that a cursor is never used for another one.
        params, tags: those delivered.
        delivered: stored metric name -> ``[start, stop, step]`` segments of delivered steps.
        offset: bytes delivered, of a run that is a JSON Lines file.
        lines: verb calls made so far.
        finished: the logger has been finished.
        revision: bytes read of the journal of what was taken back in the run.
        skip: lines still to come in a JSON Lines file that were delivered ahead of it.
    """

    run_id: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    delivered: dict[str, list[list[int]]] = field(default_factory=dict)
    offset: int = 0
    lines: int = 0
    finished: bool = False
    revision: int = 0
    skip: int = 0

    def to_json(self) -> dict[str, JSON]:
        """Return plain JSON data for :meth:`from_json`."""
        return json.loads(json.dumps(self.__dict__))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cursor:
        """Return the cursor that :meth:`to_json` described.

        Raises:
            RecordError: it is none.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise RecordError(f"expected a replay cursor, got {data!r:.200}: {error}") from error


class Lag(NamedTuple):
    """How far a logger is behind a run: lines that it has not had, and seconds since the oldest of them was logged."""

    lines: int
    seconds: float


class Source(Protocol):
    """A stored run that can be read again and again while it grows.

    Attributes:
        complete: whether the last :meth:`calls` gave all that was there when it was asked; ``False`` if the run was
            being changed meanwhile.
    """

    complete: bool

    def taken_back(self, cursor: Cursor) -> int | None:
        """Take out of the cursor what has another value by now; return the first step of what a resume cut, if any."""

    def calls(self, cursor: Cursor) -> Iterator[list[Call]]:
        """Yield what the cursor has not seen, in batches."""

    def took(self, cursor: Cursor, calls: list[Call]) -> None:
        """Move the cursor behind calls that were made."""

    def lag(self, cursor: Cursor) -> Lag:
        """Return how far a cursor is behind what is there now."""

    def everything(self) -> Cursor:
        """Return the cursor of a logger that has all that is there now."""

    def ended(self) -> str | None:
        """Return the status to finish with if nobody writes the run any more, else ``None``."""
