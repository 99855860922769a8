"""What is taken back in a run: a journal beside it, for those who have read the run already.

::

    <run>/.revisions
    {"step":5,"names":["train/loss"]}        these get another value at that step, or come late
    {"after":{"train":30,"validate":28}}     a resume cuts what is behind these steps, by context

A line is begun before the run's files change, and ended, with its newline, once they have. So whoever reads the
files after a whole line sees the change; a line without an end names what may be changing just now; and the line
that a dead writer began may have been carried out or not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from plattli import _fs

JOURNAL: Final = ".revisions"


class Revision(NamedTuple):
    """One change of what had been logged.

    Attributes:
        step: where values were replaced or came late, of a change that is no cut.
        names: the stored names of these metrics.
        after: of a cut: context -> last step that stays.
    """

    step: int = 0
    names: Sequence[str] = ()
    after: Mapping[str, int] | None = None


@contextlib.contextmanager
def noting(run: Path, **what: Any) -> Iterator[None]:
    """Note a change of a run while it is made: the fields of a :class:`Revision`.

    Raises:
        OSError: the disk does not take the note. Nothing was changed.
    """
    fd = os.open(run / JOURNAL, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        _fs.write_all(fd, memoryview((b"\n" if torn else b"") + json.dumps(what, separators=(",", ":")).encode()))
        try:
            yield
        finally:
            # also if it failed: then the change may have been made or not, and a value is told twice at worst
            os.write(fd, b"\n")
    finally:
        os.close(fd)


def end(run: Path) -> None:
    """End the line that a dead writer began: what it was about has been carried out or not by now.

    Raises:
        OSError: the disk does not take it.
    """
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(run / JOURNAL, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            if (size := os.fstat(fd).st_size) and os.pread(fd, 1, size - 1) != b"\n":
                os.write(fd, b"\n")
        finally:
            os.close(fd)


def read(run: Path, offset: int, *, begun: bool) -> tuple[list[Revision], int]:
    """Return the changes of a run behind an offset of its journal, and where they end.

    Args:
        run: the run root, or an archive, which has no journal.
        offset: 0, or that of an earlier answer.
        begun: whether a change counts that has begun and not ended.
    """
    try:
        with (run / JOURNAL).open("rb") as file:
            if offset > os.fstat(file.fileno()).st_size:
                offset = 0  # another journal
            file.seek(offset)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    whole = len(data) if begun else data.rfind(b"\n") + 1
    revisions = []
    for line in data[:whole].splitlines():
        # a note that the disk, or a kill, has cut short is of a change that was not made
        with contextlib.suppress(ValueError, TypeError):
            revisions.append(Revision(**json.loads(line)))
    return revisions, offset + whole
