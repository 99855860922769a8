"""Lines that survive a power loss: which files are synced, by whom, and when."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from loggers import PlattliLogger
from loggers.errors import LoggerError
from plattli import Reader


class Syncs:
    """Notes what is synced and in which thread, and lets a test wait for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, tuple[int, str]] = {}
        self.failure: OSError | None = None
        self._changed = threading.Condition()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, fd: int) -> None:
        if self.failure is not None:
            raise self.failure
        self._fsync(fd)
        with self._changed:
            path = os.readlink(f"/proc/self/fd/{fd}") if os.path.exists("/proc/self/fd") else str(fd)
            self.files[os.path.basename(path)] = (os.fstat(fd).st_size, threading.current_thread().name)
            self._changed.notify_all()

    def wait_for(self, file: str, size: int) -> str:
        """Return in which thread a file of (at least) that size was synced."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.files.get(file, (-1, ""))[0] >= size, timeout=240)
            return self.files[file][1]


pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="platform: needs Linux's /proc")


def test_every_line_is_synced_soon_and_never_by_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log, the manifest and the config, also behind a rotation; at the end all of it."""
    syncs = Syncs(monkeypatch)
    run = tmp_path / "run"
    logger = PlattliLogger(run, durability="fsync", sync_every=0.01, hotsize=3)
    logger.log_params({"lr": 0.1})
    syncs.files.clear()
    for step in range(40):
        logger.log_metrics({"loss": step / 3}, step=step)
        assert threading.current_thread().name not in {thread for _, thread in syncs.files.values()}
    log = run / "plattli" / "hot.jsonl"
    for file in (log, run / "plattli" / "plattli.json"):
        assert syncs.wait_for(file.name, file.stat().st_size) == "plattli-sync-run"
    logger.finish("interrupted")
    assert syncs.files[log.name][0] == log.stat().st_size
    assert not [thread for thread in threading.enumerate() if thread.name == "plattli-sync-run"]

    with Reader(run) as reader:
        assert reader.rows("train/loss") == 40


def test_without_it_no_thread(tmp_path: Path) -> None:
    """The default leaves the disk to the operating system."""
    logger = PlattliLogger(tmp_path / "run")
    logger.log_metrics({"loss": 0.5}, step=1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("plattli-sync")]
    logger.finish("completed")


def test_a_disk_that_does_not_sync_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on, and it is tried again."""
    syncs = Syncs(monkeypatch)
    told: list[str] = []
    both = threading.Event()

    def warn(message: str, *args: Any, **kwargs: Any) -> None:
        told.append(message)
        both.set()

    monkeypatch.setattr("plattli._syncing.warnings.warn", warn)
    logger = PlattliLogger(tmp_path / "run", durability="fsync", sync_every=0.001)
    logger.log_metrics({"loss": 0.5}, step=1)
    syncs.failure = OSError(5, "Input/output error")
    logger.log_metrics({"loss": 0.5}, step=2)
    assert both.wait(240)
    syncs.failure = None
    syncs.wait_for("hot.jsonl", (tmp_path / "run" / "plattli" / "hot.jsonl").stat().st_size)
    logger.finish("completed")

    assert told == ["run 'run': its lines survive a kill, but for now not a power loss: [Errno 5] Input/output error"]


@pytest.mark.parametrize("options", [{"durability": "disk"}, {"sync_every": 0}, {"sync_every": float("nan")}])
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Before anything is written."""
    with pytest.raises(LoggerError, match=next(iter(options))):
        PlattliLogger(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
