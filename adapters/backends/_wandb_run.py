"""An open W&B run of this process: what is sent to it, and what of it has to be sent again."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from adapters.backends._wandb_artifacts import Checkpoint, upload
from adapters.backends._wandb_data import merged
from adapters.backends._wandb_disk import RowsOnDisk
from adapters.backends._wandb_journal import Arrived, Attempt, Journal
from adapters.backends._wandb_server import SHORT_PATIENCE_S, Account, rows_received


class OpenRun:
    """One ``wandb.Run``, and the journal of what it was given.

    Args:
        wandb: the client.
        native: the run.
        journal: whether what it is given is kept until it has arrived. Rows of several writers, and of a run that
            somebody else logs to as well, cannot be told apart, so there is none for those.
        online: whether rows have arrived when the server has them, and not when the client's file has.
        account: whom to ask how many it has, if that can be asked.
    """

    def __init__(
        self, wandb: Any, native: Any, *, journal: bool, online: bool = True, account: Account | None = None
    ) -> None:
        self.native = native
        self.pid = os.getpid()
        self._wandb = wandb
        self._online = online
        self._account = account
        self._lock = threading.RLock()  # the client itself may be called from any thread
        self._defined: set[str] = set()
        self._arrived = Arrived(())
        self._attempt: Attempt | None = None
        self._disk: RowsOnDisk | None = None
        self._journal: Journal | None = None
        self._records: list[int] = []  # how many rows the latest records know of
        #: entries and rows of the journal that were handed over; ``None`` if there is no journal
        self.place: list[int] | None = None
        if journal:
            folder = os.path.dirname(native.settings.sync_dir)
            self._journal = Journal(os.path.join(folder, f"journal-{native.id}.jsonl"))

    # --- what was there before -----------------------------------------------------------------------

    def recover(self, place: list[int] | None) -> None:
        """Send what earlier attempts were given and the run has not got.

        Args:
            place: what ``place`` was when the logger's record was taken; ``None`` if there is no record.
        """
        journal = self._journal
        if journal is None:
            return
        entries, rows = place or (0, 0)
        self._records = [] if place is None else [rows]
        unsure = journal.read(entries)
        if place is None and unsure.later:  # no record says otherwise, so all of it counts
            unsure = journal.read(journal.entries)
        arrived = self._rows_arrived(unsure.last, rows)
        missing = [entry for number, entry in sorted(unsure.rows.items()) if number >= arrived]
        self._warn_of_lost(rows - arrived - len(missing))
        there = [entry for number, entry in unsure.later.items() if number < arrived]
        self._arrived = Arrived([*unsure.known, *there, *(unsure.rows.values() if place is None else ())])
        journal.rows = missing[0]["n"] if missing else max(arrived, rows)
        self._attempt = Attempt(
            row=journal.rows,
            step=self.native.starting_step,
            file=self.native.settings.sync_file,
            online=self._online,
            keep=entries if place is not None else journal.entries,
        )
        self._disk = RowsOnDisk(self._attempt.file)
        for entry in there:
            journal.add({"known": entry})
        journal.add({"attempt": asdict(self._attempt)})
        if unsure.config:
            self.native.config.update(unsure.config, allow_val_change=True)
        self.native.summary.update(unsure.summary)
        for entry in missing:
            self._hand_over(entry)
            journal.rows += 1
        self._send_again([Checkpoint(**known) for known in unsure.checkpoints])
        self._settle()

    def _send_again(self, checkpoints: list[Checkpoint]) -> None:
        """Upload what may not have been: the same content as a version that is there becomes that version.

        From the end back to the first that is not what it was: the client calls the last one ``latest``.
        """
        unchanged = takewhile(Checkpoint.is_unchanged, reversed(checkpoints))
        for checkpoint in reversed([*unchanged]):
            upload(self._wandb, self.native, checkpoint)

    def _rows_arrived(self, last: Attempt | None, rows: int) -> int:
        """Return how many rows of all attempts are where they cannot be lost any more.

        Args:
            last: how the attempt before began; ``None`` if it ended well, or its journal is elsewhere.
            rows: how many the record knows of.
        """
        if last is None:
            return min(rows, self.native.starting_step) if self._online else rows
        if self._online and last.online:
            return last.row + max(int(self.native.starting_step) - last.step, 0)
        return last.row + RowsOnDisk(last.file).count()

    def _warn_of_lost(self, lost: int) -> None:
        if lost > 0 and self._journal is not None:
            warnings.warn(
                f"{lost} rows of W&B run {self.native.id} never arrived, and {self._journal.path} does not have them: "
                f"send the directory of the attempt before with `wandb sync`",
                RuntimeWarning,
                stacklevel=5,
            )

    def _settle(self) -> None:
        """Take note that what the journal has now was handed over."""
        if self._journal is not None:
            self.place = [self._journal.entries, self._journal.rows]
            if self._journal.is_large:
                self._trim()

    # --- what is sent --------------------------------------------------------------------------------

    def log(self, row: Mapping[str, Any], pages: Mapping[str, str] | None = None, when: float | None = None) -> None:
        """Send one row.

        Args:
            row: key -> value, JSON data.
            pages: key -> HTML, shown as panels.
            when: Unix seconds; now by default.
        """
        with self._lock:
            row, pages = self._arrived.without(row, pages or {})
            if not row and not pages:
                return
            entry = {"row": row, "pages": pages, "time": time.time() if when is None else when}
            journal = self._journal
            if journal is None:
                self._hand_over(entry)
                return
            entry["n"] = journal.rows
            journal.add(entry)
            self._hand_over(entry)
            journal.rows += 1
            self._settle()

    def _hand_over(self, entry: Mapping[str, Any]) -> None:
        # not injected: W&B would add a style sheet from its own site
        pages = {
            key: self._wandb.Html(page, inject=False, data_is_not_path=True) for key, page in entry["pages"].items()
        }
        # W&B's own time axis; a replay is not now
        self.native.log({**entry["row"], **pages, "_timestamp": entry["time"]})

    def _trim(self) -> None:
        if self._journal is None:
            return
        arrived = self.rows_arrived()
        if arrived is None:
            self._journal.put_off()
        else:
            self._journal.trim(min(arrived, self._kept_from(arrived)))

    def record(self) -> list[int] | None:
        """Return ``place``, for a record that the next attempt may go on from: rows behind it are kept."""
        if self.place is not None and self.place[1] not in self._records:
            # two of them: the newest may not have been saved when everything ends
            self._records = [*self._records[-1:], self.place[1]]
        return self.place

    def _kept_from(self, everything: int) -> int:
        """Return the first row that an attempt may ask for which goes on from a record, if there is any record."""
        return self._records[0] if self._records else everything

    def rows_arrived(self) -> int | None:
        """Return how many rows are at the server, or offline in the file; ``None`` if the server does not say."""
        if self._attempt is None or self._disk is None:
            return None
        if not self._online:
            return self._attempt.row + self._disk.count()
        if self._account is None:
            return None
        run = self.native
        count = rows_received(self._account, run.entity, run.project, run.id, SHORT_PATIENCE_S)
        return None if count is None else self._attempt.row + max(count - self._attempt.step, 0)

    def pending(self) -> str:
        """Say how many rows have not arrived."""
        if self._journal is None:
            return "what it was given last"
        arrived = self.rows_arrived()
        if arrived is None:
            return f"up to {self._journal.rows} rows (the server does not say what it has)"
        return f"{max(self._journal.rows - arrived, 0)} of {self._journal.rows} rows, or files"

    def configure(self, config: Mapping[str, Any]) -> None:
        """Add to the run's config."""
        with self._lock:
            self._note({"config": config})
            self.native.config.update(config, allow_val_change=True)
            self._settle()

    def summarize(self, values: Mapping[str, Any]) -> None:
        """Add to the run's summary."""
        with self._lock:
            self._note({"summary": values})
            self.native.summary.update(values)
            self._settle()

    def send_checkpoint(self, checkpoint: Checkpoint) -> str | None:
        """Upload a checkpoint; return what is wrong with it, if it cannot be."""
        with self._lock:
            self._note({"checkpoint": asdict(checkpoint)})
            problem = upload(self._wandb, self.native, checkpoint)
            self._settle()
            return problem

    def _note(self, entry: Mapping[str, Any]) -> None:
        if self._journal is not None:
            self._journal.add(entry)

    def tag(self, tags: list[str]) -> list[str]:
        """Add tags to those that the run has; return all."""
        present = list(self.native.tags or ())
        tags = merged(present, tags)
        if tags != present:
            self.native.tags = tuple(tags)
        return tags

    def define(self, axis: str, *metrics: str) -> None:
        """Let charts of metrics be drawn over an axis."""
        for metric in metrics:
            # W&B allows no * but the last character; such rows are charted over its own step
            if metric not in self._defined and "*" not in axis + metric[:-1]:
                self._defined.add(metric)
                self.native.define_metric(axis, hidden=True)
                self.native.define_metric(metric, step_metric=axis)

    def finish(self, exit_code: int) -> None:
        """End the run, and keep no more than what an attempt could log again that does not know of this end.

        Raises:
            TimeoutError: not everything could be sent in time. It stays in the journal.
            ConnectionError: the service died.
        """
        self.native.finish(exit_code=exit_code)
        journal = self._journal
        if journal is None:
            return
        if self._kept_from(journal.rows) >= journal.rows:
            journal.delete()
        else:  # the end may not be saved, and then those are logged again
            journal.trim(self._kept_from(journal.rows), only_rows=True)
            journal.close()
