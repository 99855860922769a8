"""The catalog of a metrics group: the attributes in its ``zarr.json``, replaced as a whole.

::

    {"wal": {"lines": 3, "bytes": 233},
     "series": {"train/loss": {"type": "scalar", "count": 2, "latest_step": 2, "latest_timestamp": "…"}},
     "events": {"count": 1}, "run_id": "…", "cuts": 0, "rewound": 0}

Written by hand: Zarr writes the document as well, but gives no way to keep members that it does not know.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from pathlib import Path
from typing import Any, Final

from adapters.backends._group_events import SCALAR, CorruptGroupError
from loggers.errors import LoggerError

DOCUMENT: Final = "zarr.json"
#: The nodes with what the catalog speaks of.
VALUES, STEPS, TIMES, EVENTS = "series", "steps", "wall_time", "events"
#: The keys of the catalog that are ours, beside the format's own ``wal`` and ``series``.
_OURS: Final = ("wal", "series", "events", "run_id", "cuts", "rewound", "densifying")


class NoGroupError(LoggerError, FileNotFoundError):
    """There is no metrics group at the path."""


class Catalog:
    """What a group says of itself.

    Attributes:
        data: the attributes, all of them; keys that nobody here knows stay as they are.
    """

    def __init__(self, document: dict[str, Any], where: Path) -> None:
        self._document = document
        self._where = where
        self.data: dict[str, Any] = document.setdefault("attributes", {})

    @classmethod
    def load(cls, folder: Path) -> Catalog | None:
        """Return the catalog of the group in ``folder``, ``None`` if there is no group.

        Raises:
            CorruptGroupError: the document is none of a Zarr v3 group, or its catalog none of a metrics group.
        """
        text = cls.read(folder)
        return None if text is None else cls.parse(text, folder)

    @classmethod
    def read(cls, folder: Path) -> bytes | None:
        """Return the document of the group in ``folder``, ``None`` if there is none."""
        try:
            return (folder / DOCUMENT).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    @classmethod
    def parse(cls, text: bytes, folder: Path) -> Catalog:
        """Return the catalog in a document; see :meth:`load`."""
        path = folder / DOCUMENT
        try:
            document = json.loads(text)
            if document["node_type"] != "group" or document["zarr_format"] != 3:
                raise ValueError("it is the document of another node")
            catalog = cls(document, path)
            catalog._check()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptGroupError(
                f"{path} is no document of a Zarr v3 group with metrics ({type(error).__name__}: {error}); "
                "restore it, or delete it to have it made anew from the log"
            ) from None
        return catalog

    @classmethod
    def new(cls, folder: Path) -> Catalog:
        """Return the catalog of a group that is not there yet."""
        return cls({"zarr_format": 3, "node_type": "group", "attributes": {}}, folder / DOCUMENT)

    def copy(self) -> Catalog:
        """Return a catalog to be changed."""
        return Catalog(copy.deepcopy(self._document), self._where)

    def _check(self) -> None:
        numbers = [entry["count"] for entry in self.series.values()]
        if (wal := self.data.get("wal")) is not None:
            numbers += [wal["lines"], wal["bytes"]]
        numbers.append(self.events)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a count is no natural number")

    def save(self) -> None:
        """Replace the document; whoever reads it sees the old one or the new one.

        Raises:
            OSError: the disk refused it; the old one is still there.
        """
        # what Zarr's consolidated metadata says of the arrays is wrong as soon as they grow
        self._document.pop("consolidated_metadata", None)
        temporary = self._where.with_name(f"{DOCUMENT}.partial")
        try:
            temporary.write_bytes(json.dumps(self._document, indent=2).encode())
            os.replace(temporary, self._where)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    # --- what it says -----------------------------------------------------------------------------------

    @property
    def series(self) -> dict[str, dict[str, Any]]:
        """Key -> what is said of each densified series."""
        found: dict[str, dict[str, Any]] = self.data.get("series") or {}
        return found

    @property
    def covers(self) -> tuple[int, int] | None:
        """The lines and bytes of the log that are in the arrays; ``None`` if the log is no part of the group."""
        wal = self.data.get("wal")
        if wal is None:
            # attributes of somebody who has never heard of series are no catalog
            return None if "series" in self.data else (0, 0)
        return wal["lines"], wal["bytes"]

    @property
    def events(self) -> int:
        """How many of the strings in ``events`` count."""
        return int((self.data.get("events") or {}).get("count", 0))

    @property
    def run_id(self) -> str | None:
        """What the run is called."""
        return self.data.get("run_id")

    @property
    def rewound(self) -> int:
        """How many bytes the log had when steps were taken away, wherever they were; 0 if none ever were."""
        return int(self.data.get("rewound") or 0)

    @property
    def holds_points(self) -> bool:
        """Whether anything is in the arrays."""
        return any(entry["count"] for entry in self.series.values()) or self.events > 0

    def describe(self, key: str, count: int, step: int | None, time: str | None) -> None:
        """Say of a series how many points there are, and where the last one is."""
        entry = self.data.setdefault("series", {}).setdefault(key, {})
        entry.update(type=SCALAR, count=count, latest_step=step, latest_timestamp=time)

    def cover(self, lines: int, size: int, events: int) -> None:
        """Set the watermark: so much of the log is in the arrays, which are whole."""
        self.data["wal"] = {**(self.data.get("wal") or {}), "lines": lines, "bytes": size}
        if events or "events" in self.data:
            self.data["events"] = {**(self.data.get("events") or {}), "count": events}
        self.data.pop("densifying", None)

    def clear(self) -> None:
        """Say that nothing of the log is in the arrays. What others have said of a series is kept."""
        entries = {
            key: {**entry, "count": 0, "latest_step": None, "latest_timestamp": None}
            for key, entry in self.series.items()
            if entry.keys() - {"type", "count", "latest_step", "latest_timestamp"}
        }
        self.data["series"] = entries
        self.cover(0, 0, 0)

    def forget(self) -> None:
        """Remove everything of ours."""
        for key in _OURS:
            self.data.pop(key, None)
