"""The rows that are not in the columns yet: in the hot log, and packed in memory; some may be on their way.

A **batch** takes all rows but the newest out of here, with their log, and moves them into the columns while the caller
goes on. Steps in here lie above the **watermark**, the highest step that is in the columns or on its way there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from plattli._batch import Background, Batch
from plattli._hotlog import HotLog
from plattli._rowform import HotRows, Row
from plattli._store import Store
from plattli.errors import RunBrokenError

#: Rows that come faster than a batch is worth its cost wait for a bigger one, until they are so many times `hotsize` …
_PATIENCE: Final = 24
#: … or the hot log has so many bytes.
_LONG: Final = 32 << 20
#: So many times `hotsize` make ``append`` wait for a batch that is still at work, so that memory stays bounded; fewer
#: where the log has so many bytes by then.
_BACKLOG: Final = 60
_LONG_BACKLOG: Final = 15
_LONGEST: Final = 64 << 20


class Hot:
    """Hot rows, for one thread.

    Attributes:
        log: the hot log; whoever appends to it puts the row into :attr:`rows` next.
        rows: the same rows in memory, without those of a batch.
        in_order: whether their steps rise.
        due: how many rows make it worth to ask for a batch.
        watermark: see above; -1 without rows.
        batch: the last one, until :meth:`settle` has seen its end.
    """

    def __init__(self, root: Path, run: str, hotsize: int) -> None:
        """Describe those of the metric folder ``root``; nothing is read or written."""
        self.log = HotLog(root)
        self._run = run
        self._hotsize = hotsize
        self._background = Background(f"plattli-compaction-{run}")
        self._store: Store
        self.forget()

    def forget(self) -> None:
        """Hold no rows: what the log has is to be read again."""
        self.batch: Batch | None = None
        self.rows = HotRows()
        self.in_order = True
        self.due = self._hotsize
        self.watermark = -1

    def begin(self, store: Store) -> None:
        """Move rows into the columns of ``store`` from now on."""
        self._store = store
        self.watermark = max((column.last for column in store.columns.values()), default=-1)

    def all_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each step and its values, of a batch too, whatever Ctrl-C may have left half done."""
        batch = self.batch
        for rows in (() if batch is None else (batch.rows,)) + (self.rows,):
            yield from rows.whole()

    def rewrite(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Have these rows, whose steps rise, in place of those of the log."""
        ordered = list(rows)
        self.log.rewrite([row.line(step) for step, row in ordered])
        self.rows, self.in_order = HotRows(ordered), True

    # ---- on their way into the columns ------------------------------------------------------------

    def make_batch(self, newest: int) -> None:
        """Hand all rows but that of step ``newest`` to the background, unless it is at work or has hardly rested."""
        batch = self.batch
        if batch is not None:
            if batch.is_alive():
                if not self._is_overdue():
                    self.due = len(self.rows) + self._hotsize // 16 + 1
                    return
                batch.join()
            if batch.error is not None:
                self._retry(batch)
                return
            few = len(self.rows) < _PATIENCE * self._hotsize and self.log.size < _LONG
            if few and time.monotonic() < batch.rested:
                self.due = len(self.rows) + self._hotsize // 16 + 1
                return
        rows = self.rows
        # the newest row stays hot, so that a second line of its step still finds it
        row = rows.get(newest)
        kept = [] if row is None else [(newest, row)]
        if len(rows) == len(kept):
            return
        self.log.rotate([row.line(step) for step, row in kept])
        for step, _ in kept:
            del rows[step]
        self.rows = HotRows(kept)
        self.in_order = True
        self.due = self._hotsize
        self.watermark = max(self.watermark, rows.highest())
        batch = Batch(rows, self._move_out)
        self._background.begin(batch)
        self.batch = batch

    def _is_overdue(self) -> bool:
        backlog = _BACKLOG if self.log.size < _LONGEST else _LONG_BACKLOG
        return len(self.rows) >= backlog * self._hotsize

    def _retry(self, batch: Batch) -> None:
        if not batch.told:
            batch.told = True
            warnings.warn(
                f"run {self._run!r}: rows could not be moved from the hot log to their columns "
                f"({batch.error}); they stay in {self.log.compacting} and the move is tried again",
                RuntimeWarning,
                stacklevel=4,
            )
        if self._is_overdue():
            # memory must stay bounded: from here on the disk has to take rows before the caller goes on
            self.settle()
            return
        again = Batch(batch.rows, self._move_out, told=True)
        self._background.begin(again)
        self.batch = again

    def _move_out(self, rows: HotRows) -> None:
        """Move the rows of the log that is being compacted; runs in the background."""
        self._store.compact(rows)
        self.log.drop_compacting()

    def settle(self) -> None:
        """Wait until no row is on its way into the columns.

        Raises:
            RunBrokenError: the disk did not take them, twice; they are still in the hot log.
        """
        batch = self.batch
        if batch is None:
            return
        batch.join()
        if batch.error is not None:
            batch.run()
        if batch.error is not None:
            raise RunBrokenError(
                f"rows of run {self._run!r} cannot be moved to their columns: {batch.error}; they are safe in "
                f"{self.log.compacting} and are moved when the disk takes them again"
            ) from batch.error
        self.batch = None

    def drain(self) -> None:
        """Move all rows into the columns, here and now; raises what :meth:`settle` does."""
        self.settle()
        rows = self.rows
        if not rows:
            return
        self._store.compact(rows)
        self.rewrite(())
        self.due = self._hotsize
        self.watermark = max(self.watermark, rows.highest())

    def let_go(self) -> None:
        """Return when no thread is at work and the log is closed; both come back when they are needed."""
        self._background.end()
        self.log.close()
