"""The columns of a run that is being written, and the manifest that speaks of them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from plattli import _fs, _manifest
from plattli._columns import Column
from plattli._format import MANIFEST
from plattli._indices import Segment
from plattli._rowform import HotRows, Piece

#: Columns that are worth another thread.
_MANY: Final = 64


class Store:
    """Columns by name, and their manifest. One thread at a time moves rows; another one may add columns meanwhile."""

    def __init__(self, root: Path, columns: dict[str, Column]) -> None:
        """Take over columns as they are on disk; nothing is written."""
        self.columns = columns
        #: a column's steps or type changed and the manifest does not say so yet
        self.stale = False
        #: columns whose last rows would not survive a power loss
        self.unsynced: set[Column] = set()
        #: the manifest would not survive a power loss
        self.manifest_unsynced = False
        self._path = root / MANIFEST
        self._publishing = threading.RLock()
        #: how many manifests were spelled: the newest counts
        self._edition = 0
        #: the first so many columns as the manifest spells them
        self._entries = bytearray()
        self._entered = 0
        self._half_spelled = False

    # ---- the manifest -------------------------------------------------------------------------------

    def add(self, column: Column) -> None:
        """Take in a new column; the manifest does not have it yet."""
        with self._publishing:
            self.columns[column.name] = column

    @property
    def unlisted(self) -> int:
        """How many columns the manifest does not have."""
        return len(self.columns) - self._entered

    def has_many_unlisted(self) -> bool:
        """Tell whether the manifest should be written now: one that grew by a sixteenth, not one for each column."""
        return self.unlisted > self._entered // 16

    def list_all(self) -> None:
        """Have every metric in the manifest."""
        if self.unlisted:
            self.publish(sync=False, grown=True)

    def publish(self, *, sync: bool, grown: bool = False) -> None:
        """Write the manifest; ``grown`` if nothing changed but that columns joined."""
        listed = self._entered
        try:
            with self._publishing:
                self._edition = edition = self._edition + 1
                # two manifests in a row differ in size at least, which readers notice: their times may be the same,
                # and a file system gives the number of a file that is gone to a new one
                manifest = self._spelled(grown) + b" " * (edition % 8)
                if not sync:
                    self.manifest_unsynced = True
                    _fs.replace_file(self._path, manifest, sync=False)
                    return
                staged = _fs.stage_file(self._path, manifest)
            # nobody who publishes another one meanwhile has to wait for the disk
            try:
                os.fsync(staged)
            finally:
                os.close(staged)
            with self._publishing:
                newest = edition == self._edition
                if newest:
                    _fs.take_staged(self._path)
                    self.manifest_unsynced = False
            if newest:
                _fs.sync_dir(self._path.parent)
        except OSError:
            with self._publishing:
                self.stale = True
                self._entered = listed  # what was spelled is not what is there
            raise
        if not newest:  # what was published meanwhile says all this and more, but is not synced
            self.publish(sync=True, grown=True)

    def _spelled(self, grown: bool) -> bytes:
        anew = self.stale or not grown or self._half_spelled
        self._half_spelled = True  # until the end: Ctrl-C may come, and a batch that still runs publish
        if anew:
            self._entries.clear()
            self._entered = 0
        # before the specs are read: what a batch announces from now on needs another manifest
        self.stale = False
        columns = list(islice(self.columns.values(), self._entered, None))
        if not self._entered:
            columns.sort(key=lambda column: not column.wide)  # see _manifest.dump
        for column in columns:
            if self._entries:
                self._entries += b", "
            self._entries += _manifest.entry(column.name, column.spec())
        self._entered = len(self.columns)
        self._half_spelled = False
        return _manifest.assemble(self._entries)

    def abandon(self) -> None:
        """Let go of what a call of this thread held when Ctrl-C ended it half-way: a batch may be waiting for it."""
        with contextlib.suppress(RuntimeError):  # until it is not held any more
            while True:
                self._publishing.release()

    # ---- rows ---------------------------------------------------------------------------------------

    def compact(self, rows: HotRows) -> None:
        """Append rows to their columns, safe from a power loss. Runs again from where a failure stopped it."""
        self.move(rows.by_column(), sync=True)
        # the log that holds these rows goes next, and with it what could make up for anything else
        self.sync()
        self.unsynced.clear()

    def sync(self, *more: Path) -> None:
        """Make the columns, and other files, survive a power loss."""
        _fs.sync_files([*more, *(path for column in self.unsynced for path in column.files())])

    def move(self, pieces: dict[Column, Piece], *, sync: bool) -> None:
        """Append each column's part that it does not have yet."""
        todo: list[tuple[Column, np.ndarray[Any, Any], Any]] = []
        for column, (steps, values) in pieces.items():
            new = int(np.searchsorted(steps, column.last, "right")) if column.last >= 0 else 0
            if new == 0:
                todo.append((column, steps, values))
            elif new < len(steps):
                todo.append((column, steps[new:], values[new:]))
        self.announce([(column, steps) for column, steps, _ in todo], sync=sync)

        def put(part: tuple[Column, np.ndarray[Any, Any], Any]) -> None:
            column, steps, values = part
            column.put(steps, values, sync=sync)

        _fs.side_by_side(put, todo, helpers=_helpers(todo, sync))

    def announce(self, parts: Sequence[tuple[Column, np.ndarray[Any, Any]]], *, sync: bool) -> None:
        """Put the steps of coming values where they belong, and say so in the manifest if need be."""
        known: dict[Any, list[Segment]] = {}

        def announce(part: tuple[Column, np.ndarray[Any, Any]]) -> None:
            column, steps = part
            if column.announce(steps, known, sync=sync):
                self.stale = True

        _fs.side_by_side(announce, parts, helpers=_helpers(parts, sync))
        if self.stale or (sync and self.manifest_unsynced):
            self.publish(sync=sync, grown=True)


def _helpers(parts: Sized, sync: bool) -> int:
    """Return how many threads help with the disk: few, for each takes its turns at the interpreter's lock.

    A caller whose turn it is waits behind all of them. For the columns only the next batch waits.
    """
    return len(parts) // _MANY if sync else 0
