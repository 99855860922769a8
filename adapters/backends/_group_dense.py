"""Densifying: from lines of the log to Zarr arrays, such that a crash at any point leaves a group that reads right.

Arrays first, the catalog last. Until the catalog is replaced it speaks for the arrays as they were: readers take as
many points as it counts, and whatever is behind its watermark from the log. So points that are in an array already
do not count twice, and one that was replaced there already is replaced once more, by the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from adapters._require import require
from adapters.backends import _group_catalog
from adapters.backends._group_catalog import EVENTS, STEPS, TIMES, VALUES, Catalog
from adapters.backends._group_events import NO_STEP, Batch, CorruptGroupError, Points, points_lines, replaced
from adapters.backends._group_log import BATCH, FILE_NAME, Log, read_log
from adapters.backends._group_names import safe_name
from loggers.errors import LoggerError

#: Points of a chunk: an append writes at most one chunk anew for each array.
_CHUNK: Final = 8192
_WHO: Final = "the metrics group"


class Arrays:
    """The arrays of a group, as :mod:`zarr` gives them.

    Args:
        folder: the group's.
        own: nobody else writes them, so that an array that was opened need not be opened again.

    Raises:
        ImportError: zarr is not installed.
    """

    def __init__(self, folder: Path, *, own: bool = False) -> None:
        self._zarr = require("zarr", extra="zarr", who=_WHO)
        self._root = str(folder)
        self._own = own
        self._opened: dict[str, Any] = {}

    def open(self, name: str) -> Any | None:
        """Return an array, ``None`` if there is none of that name."""
        array = self._opened.get(name)
        if array is None:
            try:
                array = self._zarr.open_array(self._root, path=name, mode="r+" if self._own else "r", zarr_format=3)
            except FileNotFoundError:
                return None
            self._keep(name, array)
        return array

    def _keep(self, name: str, array: Any) -> None:
        if self._own:
            self._opened[name] = array

    def write(self, name: str, data: np.ndarray[Any, Any], at: int) -> None:
        """Put data at the end of an array.

        Args:
            name: of the array; it is made if it is to begin with ``data``.
            data: [n] what to put there.
            at: the first item's place; what is there goes.

        Raises:
            CorruptGroupError: the array is missing.
        """
        size = at + len(data)
        array = self.open(name) if at else None
        if at == 0:
            self._opened.pop(name, None)
            is_text = data.dtype == object
            array = self._zarr.create_array(
                self._root,
                name=name,
                shape=(size,),
                dtype=str if is_text else data.dtype,
                chunks=(_CHUNK,),
                fill_value="" if is_text else NO_STEP if data.dtype == np.int64 else 0,
                overwrite=True,
                zarr_format=3,
            )
            self._keep(name, array)
        elif array is None:
            raise self._missing(name, at, "is not there")
        elif array.shape != (size,):
            array.resize((size,))
        array[at:] = data

    def remove(self, name: str) -> None:
        """Remove an array, if it is there."""
        self._opened.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(os.path.join(self._root, name))

    def read(self, name: str, count: int) -> np.ndarray[Any, Any]:
        """Return the first ``count`` items of an array.

        Raises:
            CorruptGroupError: it has fewer.
        """
        array = self.open(name)
        if array is None:
            raise self._missing(name, count, "is not there")
        if array.shape[0] < count:
            raise self._missing(name, count, f"has {array.shape[0]}")
        data: np.ndarray[Any, Any] = array[:count]
        return data

    def item(self, name: str, at: int) -> Any:
        """Return one item of an array.

        Raises:
            CorruptGroupError: the array is missing, or shorter.
        """
        array = self.open(name)
        if array is None or array.shape[0] <= at:
            raise self._missing(name, at + 1, "is not there" if array is None else f"has {array.shape[0]}")
        return array[at : at + 1].tolist()[0]

    def _missing(self, name: str, count: int, has: str) -> CorruptGroupError:
        return CorruptGroupError(
            f"{self._root}: the catalog counts {count} items of {name}, and that array {has}; if the log is whole, "
            f"delete {_group_catalog.DOCUMENT} to have it all made anew"
        )

    def forget(self) -> None:
        """Open every array again when it is needed."""
        self._opened.clear()

    def has(self, name: str) -> bool:
        """Return whether there is anything of that name."""
        return os.path.lexists(os.path.join(self._root, name))

    def points(self, key: str, count: int) -> Points:
        """Return the first ``count`` points of a series.

        Raises:
            CorruptGroupError: there are fewer.
        """
        name = safe_name(key)
        values = self.read(f"{VALUES}/{name}", count).astype(np.float64, copy=False)
        has_times = self.open(f"{TIMES}/{name}") is not None
        times = self.read(f"{TIMES}/{name}", count) if has_times else np.full(count, "", dtype=object)
        has_steps = self.open(f"{STEPS}/{name}") is not None
        steps = self.read(f"{STEPS}/{name}", count) if has_steps else np.full(count, NO_STEP)
        return Points(values, steps.astype(np.int64, copy=False), [str(time) for time in times.tolist()])


class Densifier:
    """Writes the arrays and the catalog of a group. One of them is at work at a time.

    Attributes:
        catalog: as it is on disk.
    """

    def __init__(self, folder: Path, arrays: Arrays, catalog: Catalog) -> None:
        self.catalog = catalog
        self._folder = folder
        self._arrays = arrays
        # key -> the largest step in the arrays, so that what is behind it needs no look at them
        self._largest: dict[str, int] = {}

    def densify(self) -> None:
        """Put everything that the log has behind the watermark into the arrays.

        Raises:
            OSError: the disk refused something. Nothing is lost, and it may be tried again.
            CorruptGroupError: the log or an array is damaged.
        """
        covered = self.catalog.covers
        if covered is None:
            return
        if not self.catalog.holds_points:
            self._remove_arrays()  # leftovers of a crash
            self._largest.clear()
        try:
            for batch in read_log(self._folder / FILE_NAME, covered[1], covered[0], BATCH):
                self._take(batch)
        except BaseException:
            self._arrays.forget()  # nobody knows how far they have come
            raise

    def rewrite_log(self, log: Log) -> None:
        """Write a log that says what the arrays say: one is missing, or no part of the group.

        Raises:
            OSError: the disk refused it.
            CorruptGroupError: an array is damaged.
        """
        catalog = self.catalog.copy()
        catalog.data.pop("wal", None)
        catalog.data.setdefault("series", {})
        self.save(catalog)  # from here on the log is no part of the group, and may be anything
        if log.size:
            shutil.copyfile(log.path, log.path.with_name(f"{FILE_NAME}.old"))
        log.cut(0)
        lines = 0
        for text in self._texts():
            log.append(text)
            lines += text.count(b"\n")
        catalog = self.catalog.copy()
        catalog.cover(lines, log.size, catalog.events)
        self.save(catalog)

    def _texts(self) -> Iterator[bytes]:
        if self.catalog.events:
            events = self._arrays.read(EVENTS, self.catalog.events).tolist()
            yield "\n".join([*map(str, events), ""]).encode()
        for key, entry in self.catalog.series.items():
            if entry["count"]:
                yield points_lines(key, self._arrays.points(key, entry["count"]))

    def rewind(self, rebuild: bool) -> None:
        """Prepare for the log to be cut.

        Args:
            rebuild: the arrays hold something that is cut, so that they have to be made anew. They have to be as well
                if they may hold more than the catalog says.
        """
        if rebuild or "densifying" in self.catalog.data:
            catalog = self.catalog.copy()
            catalog.clear()
            catalog.data["densifying"] = True  # until the arrays are gone
            self.save(catalog)
            self._remove_arrays()
        self._largest.clear()

    def note_rewind(self, size: int) -> None:
        """Say that a log of ``size`` bytes is about to lose lines in its middle: older states mean nothing then."""
        catalog = self.catalog.copy()
        catalog.data["rewound"] = max(size, catalog.rewound)
        self.save(catalog)

    def _remove_arrays(self) -> None:
        self._arrays.forget()
        for node in (VALUES, STEPS, TIMES):
            self._arrays.remove(node)
        if EVENTS in self.catalog.data:  # else it is somebody else's
            self._arrays.remove(EVENTS)

    def mark_cut(self) -> None:
        """Tell readers that the log was cut, and what they have read of it may be gone. Arrays are whole by now."""
        catalog = self.catalog.copy()
        catalog.data.pop("densifying", None)
        catalog.data["cuts"] = int(catalog.data.get("cuts") or 0) + 1
        self.save(catalog)

    def save(self, catalog: Catalog) -> None:
        """Replace the catalog."""
        catalog.save()
        self.catalog = catalog

    def _take(self, batch: Batch) -> None:
        if batch.others:
            self._claim_events()
        self._announce()
        catalog = self.catalog.copy()
        largest = {}
        for key, events in batch.series():
            largest[key] = self._write_series(catalog, key, events)
        if batch.others:
            others = np.array(batch.others, dtype=object)
            self._arrays.write(EVENTS, others, catalog.events)
        lines, size = catalog.covers or (0, 0)
        catalog.cover(lines + batch.lines, size + batch.size, catalog.events + len(batch.others))
        self.save(catalog)
        self._largest |= largest

    def _claim_events(self) -> None:
        """Note in the catalog that there is going to be an array for what is no point: its name is not the format's.

        Raises:
            LoggerError: somebody else has used that name in this group.
        """
        if EVENTS in self.catalog.data:
            return
        if self._arrays.has(EVENTS):
            raise LoggerError(
                f"{self._folder} has something called {EVENTS!r} that is not of its catalog, where events that are no "
                "points of a series belong: rename it; until then the log has everything"
            )
        catalog = self.catalog.copy()
        catalog.data[EVENTS] = {"count": 0}
        self.save(catalog)

    def _write_series(self, catalog: Catalog, key: str, events: Points) -> int:
        """Write a series' arrays, and describe it in the catalog. Returns the largest step."""
        name = safe_name(key)
        count = int(catalog.series.get(key, {}).get("count", 0))
        if count and self._arrays.open(f"{TIMES}/{name}") is None:  # somebody else's, who kept none
            self._arrays.write(f"{TIMES}/{name}", np.full(count, "", dtype=object), 0)
        points = events.merged()
        lowest, highest = _range(points.steps)
        largest = self._largest_step(key, name, count)
        if highest > NO_STEP and lowest <= largest:
            points = self._replace(name, count, points)
        end = count + len(points)
        if len(points):
            self._write_steps(f"{STEPS}/{name}", count, points.steps)
            self._arrays.write(f"{VALUES}/{name}", points.values, count)
            self._arrays.write(f"{TIMES}/{name}", np.array(points.times, dtype=object), count)
            step, time = int(points.steps[-1]), points.times[-1]
        else:
            step = int(self._arrays.item(f"{STEPS}/{name}", end - 1))
            time = str(self._arrays.item(f"{TIMES}/{name}", end - 1))
        catalog.describe(key, end, None if step == NO_STEP else step, time or None)
        return max(largest, highest)

    def _write_steps(self, path: str, count: int, steps: np.ndarray[Any, Any]) -> None:
        array = self._arrays.open(path) if count else None
        if array is not None:
            self._arrays.write(path, steps, count)
        elif np.any(steps != NO_STEP):
            self._arrays.write(path, np.concatenate([np.full(count, NO_STEP), steps]), 0)
        else:
            self._arrays.remove(path)  # a crash may have left one

    def _replace(self, name: str, count: int, points: Points) -> Points:
        """Replace points that are in the arrays by later ones with the same step. Returns the others."""
        if self._arrays.open(f"{STEPS}/{name}") is None:
            return points
        steps = self._arrays.read(f"{STEPS}/{name}", count)
        first, last = replaced(np.concatenate([steps, points.steps]))
        changed = (first < count) & (last >= count)
        if np.any(changed):
            rows, events = first[changed], last[changed] - count
            low, high = int(rows.min()), int(rows.max()) + 1
            for node, data in ((VALUES, points.values), (TIMES, np.array(points.times, dtype=object))):
                array = self._arrays.open(f"{node}/{name}")
                if array is None:
                    raise CorruptGroupError(f"{self._folder}: {node}/{name} is not there, but {STEPS}/{name} is")
                part = array[low:high].astype(data.dtype)
                part[rows - low] = data[events]
                array[low:high] = part
        new = last[first >= count] - count
        return points.take(new, new)

    def _announce(self) -> None:
        """Note that the arrays may hold more than the catalog says, until it is saved the next time.

        A resume that takes lines out of the log has to know that: the arrays may hold something of them.
        """
        if "densifying" not in self.catalog.data:
            catalog = self.catalog.copy()
            catalog.data["densifying"] = True
            self.save(catalog)

    def _largest_step(self, key: str, name: str, count: int) -> int:
        if count == 0:
            return NO_STEP
        if key not in self._largest:
            array = self._arrays.open(f"{STEPS}/{name}")
            self._largest[key] = NO_STEP if array is None else int(array[:count].max())
        return self._largest[key]


def _range(steps: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the smallest and the largest step there is, ``NO_STEP`` if there is none."""
    real = steps[steps != NO_STEP]
    return (int(real.min()), int(real.max())) if len(real) else (NO_STEP, NO_STEP)
