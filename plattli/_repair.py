"""Put a run in order, without losing anything that a reader can read.

Nothing is destroyed: what is cut off or taken away goes to ``.plattli-repair-<time>/`` beside the run first, with
an account of what was done. Every change by itself leaves a run that reads as before, so a repair may be killed
anywhere and started again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from plattli import _fs, _layout
from plattli._finding import Amend, Cut, EmptyConfig, EndLine, Fix, MakeEmpty, MoveAway, Publish
from plattli.check import Progress, Report, check_run, describe_owner, inspect
from plattli.errors import NotARunError, RunLockedError, UnstableRunError

#: A repair may bring to light what was hidden: a published run has findings of its own.
_ROUNDS: Final = 4
_ACCOUNT: Final = "repair.txt"


@dataclass(frozen=True)
class Repaired:
    """What a repair did.

    Attributes:
        before, after: what a check says about the run.
        done: what was changed, a sentence each.
        copies: the folder with what was taken away, ``None`` if nothing was.
    """

    before: Report
    after: Report
    done: tuple[str, ...]
    copies: Path | None


def repair_run(path: str | PathLike[str], *, progress: Progress | None = None) -> Repaired:
    """Repair the run at ``path``, as far as that loses nothing readable.

    Writers that take no lock, such as those of plattli 0.19.0, cannot be noticed: make sure that there are none.

    Args:
        path: see :func:`~plattli.check.check_run`.
        progress: see there.

    Raises:
        NotARunError: no run is there.
        RunLockedError: a live writer holds the run; the message names it.
        UnstableRunError: somebody changes the run in spite of the lock; it was left alone from there on.
        OSError: a file cannot be written.
    """
    before = check_run(path, progress=progress)
    place = _layout.find(path)
    if place is None:
        raise NotARunError(f"the run at {path} vanished while it was checked")
    if before.owner is not None:
        raise RunLockedError(
            f"run {before.path} is being written by {describe_owner(before.owner)}; repair it when that has ended"
        )
    if not before.fixes:
        return Repaired(before, before, (), None)
    lock = _fs.RunLock(place.root) if place.root is not None else None
    try:
        repair = _Repair(before.path)
        for _ in range(_ROUNDS):
            fixes = inspect(place, None).fixes
            if not fixes:
                break
            repair.apply(fixes)
            place = _layout.find(path) or place
    finally:
        if lock is not None:
            lock.release()
    after = check_run(path, progress=progress)
    return Repaired(before, after, tuple(repair.done), repair.copies)


class _Repair:
    def __init__(self, root: Path) -> None:
        self.done: list[str] = []
        self.copies: Path | None = None
        self._root = root

    def apply(self, fixes: Iterable[Fix]) -> None:
        """Make all changes; what lies under a temporary name goes first, since changes write through such names."""
        cuts: dict[Path, Cut] = {}
        amends: dict[Path, list[Amend]] = {}
        ends: list[EndLine] = []
        rest: list[EmptyConfig | MakeEmpty] = []
        for fix in fixes:
            match fix:
                case Publish():
                    self._publish(fix)
                case MoveAway(path):
                    self._move(path)
                case EmptyConfig() | MakeEmpty():
                    rest.append(fix)
                case Cut(path, size, _):
                    if path not in cuts or size < cuts[path].size:
                        cuts[path] = fix
                case Amend(path):
                    amends.setdefault(path, []).append(fix)
                case EndLine():
                    ends.append(fix)
        for one in rest:
            self._make(one)
        for end in ends:
            if end.path not in cuts:
                self._end_line(end)
        for cut in cuts.values():
            self._cut(cut)
        for path, changes in amends.items():
            self._amend(path, changes)

    # ---- copies

    def _say(self, what: str) -> None:
        self.done.append(what)
        if self.copies is not None:
            with (self.copies / _ACCOUNT).open("a", encoding="utf-8", errors="backslashreplace") as account:
                account.write(what + "\n")

    def _shown(self, path: Path) -> str:
        return os.path.relpath(path, self._root)

    def _place_for(self, path: Path, suffix: str = "") -> Path:
        """Return where the copy of ``path`` goes; its folder exists, it does not."""
        if self.copies is None:
            stem = self._root / (_layout.COPIES + time.strftime("%Y%m%d-%H%M%S"))
            copies, number = stem, 1
            while True:
                try:
                    copies.mkdir()
                    break
                except FileExistsError:
                    number += 1
                    copies = stem.with_name(f"{stem.name}-{number}")
            self.copies = copies
            earlier, self.done = self.done, []
            for sentence in earlier:
                self._say(sentence)
        target = self.copies / (self._shown(path) + suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        while os.path.lexists(target):
            target = target.with_name(target.name + "+")
        return target

    # ---- changes

    def _check_size(self, path: Path, seen: int) -> None:
        size = path.stat().st_size
        if size != seen:
            raise UnstableRunError(
                f"{path} had {seen} bytes a moment ago and has {size} now: somebody writes it without taking the "
                f"lock; stop that writer, then repair again"
            )

    def _cut(self, cut: Cut) -> None:
        self._check_size(cut.path, cut.seen)
        copy = self._place_for(cut.path, f"@{cut.size}")
        with cut.path.open("rb") as source, copy.open("wb") as sink:
            source.seek(cut.size)
            shutil.copyfileobj(source, sink)
            sink.flush()
            os.fsync(sink.fileno())
        _fs.sync_dir(copy.parent)
        _fs.truncate(cut.path, cut.size)
        _fs.sync_file(cut.path)
        self._say(f"cut {self._shown(cut.path)} at byte {cut.size}; the {cut.seen - cut.size} bytes behind are in "
                  f"{self._shown(copy)}")  # fmt: skip

    def _end_line(self, end: EndLine) -> None:
        self._check_size(end.path, end.seen)
        _fs.append_at(end.path, end.seen, b"\n")
        _fs.sync_file(end.path)
        self._say(f"ended the last line of {self._shown(end.path)}")

    def _amend(self, path: Path, changes: list[Amend]) -> None:
        data = path.read_bytes()
        manifest: dict[str, Any] = json.loads(data)
        copy = self._place_for(path)
        _fs.replace_file(copy, data)
        for change in changes:
            entry = manifest if change.metric is None else manifest[change.metric]
            if change.value is None:
                entry.pop(change.key, None)
            else:
                entry[change.key] = change.value
        # everything else stays as it is, whoever wrote it
        _fs.replace_file(path, json.dumps(manifest, ensure_ascii=False).encode())
        for change in changes:
            of = "" if change.metric is None else f" of metric {change.metric!r}"
            verb = "removed" if change.value is None else "corrected"
            self._say(f"{verb} {change.key}{of} in {self._shown(path)}")

    def _make(self, fix: EmptyConfig | MakeEmpty) -> None:
        path = fix.path
        if isinstance(fix, MakeEmpty):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._say(f"made the empty file {self._shown(path)}")
            return
        if path.is_symlink():
            os.symlink(os.readlink(path), self._place_for(path))
        _fs.replace_file(path, b"{}")
        self._say(f"wrote {{}} to {self._shown(path)}")

    def _move(self, path: Path) -> None:
        target = self._place_for(path)
        os.rename(path, target)
        _fs.sync_dir(path.parent)
        self._say(f"moved {self._shown(path)} to {self._shown(target)}")

    def _publish(self, publish: Publish) -> None:
        os.rename(publish.path, publish.target)
        _fs.sync_dir(publish.target.parent)
        self._say(f"renamed {self._shown(publish.path)} to {self._shown(publish.target)}")
