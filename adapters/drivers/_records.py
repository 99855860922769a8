"""The logger's record for every checkpoint that a loop may still announce, and the files that hold it.

A checkpoint is resumed with the logger's record as it was when the checkpoint was *taken*. Loops that write
checkpoints in the background announce them later, when the logger is further on; and a process may be
killed between the two, so that its checkpoint is never announced. Therefore the record is noted after
every line, under the line's step::

    logger-records.jsonl              RecordBook: one line per note, {"step": 40, "record": {…}}
    step000000041.pt.logger.json      the sidecar of one announced checkpoint: goes where it goes
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from loggers.errors import RecordError

#: Bytes of notes that are kept for checkpoints to come; then the older half goes.
_MOST: Final = 32_000_000


class RecordBook:
    """The records by step, in memory and, if there is a path, in a file.

    A note that has returned survives ``kill -9``. The disk failing costs the file, not the notes in memory.

    Args:
        path: the file; its directories are made. ``None`` keeps the notes in memory only.
        most: bytes of notes that are kept.
    """

    def __init__(self, path: Path | None, most: int = _MOST) -> None:
        self.path = path
        #: what the disk said, if the file lacks notes
        self.error: OSError | None = None
        self._most = most
        self._size = 0
        self._notes: list[tuple[int, str]] = []

    def note(self, step: int, record: dict[str, Any]) -> None:
        """Take down the record after the last line so far, which was at ``step``. A later note for it replaces it."""
        line = json.dumps({"step": step, "record": record}, allow_nan=False) + "\n"
        if self._notes and self._notes[-1][0] == step:
            if self._notes[-1][1] == line:
                return
            self._size -= len(self._notes.pop()[1])
        self._notes.append((step, line))
        self._size += len(line)
        if self._size > self._most:
            self._keep(self._notes[len(self._notes) // 2 :])
        elif self.error is not None:
            self._keep(self._notes)  # the file lacks some, or ends with half a line
        elif self.path is not None:
            try:
                _append(self.path, line)
            except OSError as error:
                self.error = error

    def at(self, step: int) -> dict[str, Any] | None:
        """Return the newest record of ``step`` or before; ``None`` if there is none any more."""
        line = next((line for noted, line in reversed(self._notes) if noted <= step), None)
        record: dict[str, Any] | None = None if line is None else json.loads(line)["record"]
        return record

    def settle(self, step: int) -> None:
        """Forget what no checkpoint of ``step`` or later needs."""
        first = max((i for i, (noted, _) in enumerate(self._notes) if noted <= step), default=0)
        if first:
            self._keep(self._notes[first:])

    def begin(self, step: int, record: dict[str, Any]) -> None:
        """Forget everything, and note the record of a run that begins, or goes on, behind ``step``."""
        line = json.dumps({"step": step, "record": record}, allow_nan=False) + "\n"
        self._keep([(step, line)])

    def load(self) -> None:
        """Read the file of an earlier process. A last line that is torn is none."""
        if self.path is not None and self.path.exists():
            self._notes = list(_complete_notes(self.path))
            self._size = sum(len(line) for _, line in self._notes)

    def _keep(self, notes: list[tuple[int, str]]) -> None:
        self._notes = notes
        self._size = sum(len(line) for _, line in notes)
        if self.path is not None:
            try:
                replace_file(self.path, "".join(line for _, line in notes))
                self.error = None
            except OSError as error:
                self.error = error


def _append(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        rest = line.encode()
        while rest:
            rest = rest[os.write(fd, rest) :]  # one call, except on a full disk
    finally:
        os.close(fd)


def _complete_notes(path: Path) -> Iterator[tuple[int, str]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            note = json.loads(line)
            step, _ = int(note["step"]), note["record"]
        except (ValueError, TypeError, KeyError):
            continue
        if line.endswith("\n"):
            yield step, line


def replace_file(path: Path, text: str) -> None:
    """Write a file so that whoever looks finds the old text or the new one, also after a power loss.

    Raises:
        OSError: the disk refused it; the old file is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # SIGTERM, too
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


# ---- sidecars ---------------------------------------------------------------------------------------


def sidecar_of(checkpoint: str | os.PathLike[str], name: str) -> Path:
    """Return where the record of a checkpoint file is; of the file itself, where ``checkpoint`` is a link to it."""
    real = Path(os.path.realpath(checkpoint))
    return real.with_name(f"{real.name}.{name}.json")


def load_sidecar(path: Path) -> dict[str, Any] | None:
    """Return the record in a sidecar, ``None`` if there is none.

    Raises:
        RecordError: there is a file, and it holds no record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RecordError(f"{path} is no logger record ({error}): restore it, or remove it to do without") from None
    if not isinstance(record, dict):
        raise RecordError(f"{path} is no logger record, but a {type(record).__name__}: restore or remove it")
    return record


def save_sidecar(path: Path, record: Mapping[str, Any], next_step: int) -> None:
    """Write the record of the checkpoint from which ``next_step`` is the first step to do.

    Raises:
        OSError: the disk refused it.
    """
    replace_file(path, json.dumps({**record, "next_step": next_step}, allow_nan=False))


def prune_sidecars(folder: Path, name: str, *, beyond: int | None = None) -> None:
    """Remove sidecars whose checkpoint is gone.

    Args:
        folder: where checkpoints and sidecars are.
        name: whose sidecars.
        beyond: remove those of later checkpoints as well, whose steps the run has no more.
    """
    suffix = f".{name}.json"
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.endswith(suffix):
            continue
        gone = not path.with_name(path.name.removesuffix(suffix)).exists()
        if not gone and beyond is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                gone = json.loads(path.read_text(encoding="utf-8"))["next_step"] > beyond
        if gone:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def said(consequence: str) -> Iterator[None]:
    """Turn what the disk refuses into a warning: the checkpoint is worth more than what is beside it."""
    try:
        yield
    except OSError as error:
        warnings.warn(f"{consequence}: {error}", RuntimeWarning, stacklevel=4)
