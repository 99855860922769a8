"""What is in a run's row-wise log, made to survive a power loss: in a thread of its own, every so many seconds."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import Final

from plattli import _fs
from plattli._format import CONFIG, HOT, HOT_COMPACTING, MANIFEST

#: In this order: a log that is rotated in between is looked at under both names.
_FILES: Final = (HOT, HOT_COMPACTING, MANIFEST, CONFIG)


class Syncer:
    """Syncs the files of a metric folder that writers leave to the operating system.

    Columns are none of them: a writer syncs those before it lets go of the log that holds their rows.
    """

    def __init__(self, root: Path, every: float) -> None:
        """Start the thread.

        Args:
            root: the metric folder.
            every: seconds between two looks; a look at files that have not changed costs a few ``stat``.
        """
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_keep_syncing, args=(root, every, self._stop), name=f"plattli-sync-{root.parent.name}", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._stop.set)

    def stop(self) -> None:
        """End the thread, once everything that is there now is synced."""
        self._stop.set()
        self._thread.join()


def _keep_syncing(root: Path, every: float, stop: threading.Event) -> None:
    synced: list[tuple[int, ...]] = []
    told = False
    is_last = False
    while not is_last:
        is_last = stop.wait(every)
        try:
            if (now := _look(root)) != synced:
                _sync(root)
                synced = now
            told = False
        except OSError as error:
            # a filter that makes errors of warnings must not end this thread
            with contextlib.suppress(RuntimeWarning):
                if not told:
                    told = True
                    warnings.warn(
                        f"run {root.parent.name!r}: its lines survive a kill, but for now not a power loss: {error}",
                        RuntimeWarning,
                        stacklevel=1,
                    )


def _look(root: Path) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(root / name)
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _sync(root: Path) -> None:
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            _fs.sync_file(root / name)
    with contextlib.suppress(FileNotFoundError):  # the run is an archive by now, which was synced
        _fs.sync_dir(root)
        _fs.sync_dir(root.parent)
