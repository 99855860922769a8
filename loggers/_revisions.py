"""What is taken back in a run: a journal beside it, for those who have read the run already.

::

    <run>/.revisions
    {"step":5,"names":["train/loss"]}        these get another value at that step, or come late
    {"step":6,"like":0}                      the same names as the line at offset 0 has
    {"after":{"train":30,"validate":28}}     a resume cuts what is behind these steps, by context

A line is begun before the run's files change, and ended, with its newline, once they have. So whoever reads the
files after a whole line sees the change; a line without an end names what may be changing just now; and the line
that a dead writer began may have been carried out or not.

From some size on, the journal is replaced by what it says altogether, behind a line of its own::

    {"base":16000000,"bytes":150}                                    that was up to this offset; now so many bytes
    {"steps":[[5,901,1]],"names":["train/loss"],"until":15999990}    the last such line began there

Offsets go on behind that as if nothing had been replaced. Who had not read all of it by then may read some of it for
the second time, and so get a value twice.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from plattli import _fs, _indices

JOURNAL: Final = ".revisions"
#: Bytes from which on the journal is replaced by what it says.
LARGEST: Final = 16_000_000


class Revision(NamedTuple):
    """Some changes of what had been logged.

    Attributes:
        names: the stored names of metrics whose values were replaced, or came late.
        steps: where, in increasing order.
        after: of a cut, which has neither: context -> last step that stays.
        until: offset of the last of these changes in the journal.
    """

    names: tuple[str, ...] = ()
    steps: Sequence[int] = ()
    after: Mapping[str, int] | None = None
    until: int = 0


class Journal:
    """Writes down what is taken back in a run."""

    def __init__(self, run: Path) -> None:
        """Write nothing yet."""
        self._run = run
        #: names -> offset of a line that has them
        self._written: dict[tuple[str, ...], int] = {}
        #: the file that these offsets are of, and how many bytes they are ahead of its own
        self._file, self._ahead = -1, 0
        self._limit = LARGEST

    def point(self, step: int, names: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """Note that metrics get another value at a step, or a late one, while they do.

        Raises:
            OSError: the disk does not take the note. Nothing was changed.
        """
        return self._noting({"step": step, "names": names})

    def cut(self, after: Mapping[str, int]) -> contextlib.AbstractContextManager[None]:
        """Note that the run is cut behind some steps, by context, while it is.

        Raises:
            OSError: the disk does not take the note. Nothing was changed.
        """
        return self._noting({"after": after})

    @contextlib.contextmanager
    def _noting(self, what: dict[str, Any]) -> Iterator[None]:
        fd = self._open()
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            names = tuple(what.get("names", ()))
            like = self._written.get(names) if names else None
            if like is not None:
                what = {"step": what["step"], "like": like}
            _fs.write_all(fd, memoryview((b"\n" if torn else b"") + _line(what)))
            if names and like is None:
                if len(self._written) >= 4096:  # names that never repeat
                    self._written.clear()
                self._written[names] = size + torn + self._ahead
            try:
                yield
            finally:
                # also if it failed: then the change may have been made or not, and a value is told twice at worst
                os.write(fd, b"\n")
        finally:
            os.close(fd)

    def _open(self) -> int:
        path = self._run / JOURNAL
        while True:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            about = os.fstat(fd)
            if about.st_ino != self._file or not about.st_size:  # the folder is another one, or it has just begun
                self._written.clear()
                with path.open("rb") as file:
                    base, begin = _head(file)
                self._file, self._ahead = about.st_ino, base - begin
            if about.st_size <= self._limit:
                return fd
            os.close(fd)
            self._shorten(path)

    def _shorten(self, path: Path) -> None:
        """Replace the journal by what it says; put that off if the disk does not take it now."""
        revisions, end = read(self._run, 0, begun=True)
        said = b"".join(
            _line({"after": r.after, "until": r.until} if r.after is not None else
                  {"steps": _packed(r.steps), "names": r.names, "until": r.until}) + b"\n"
            for r in revisions
        )  # fmt: skip
        said = _line({"base": end, "bytes": len(said)}) + b"\n" + said
        self._limit *= 2
        with contextlib.suppress(OSError):
            _fs.replace_file(path, said)
            self._file, self._limit = -1, max(LARGEST, 2 * len(said))

    def end(self) -> None:
        """End the line that a dead writer began: what it was about has been carried out or not by now.

        Raises:
            OSError: the disk does not take it.
        """
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self._run / JOURNAL, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                if (size := os.fstat(fd).st_size) and os.pread(fd, 1, size - 1) != b"\n":
                    os.write(fd, b"\n")
            finally:
                os.close(fd)


def read(run: Path, offset: int, *, begun: bool) -> tuple[list[Revision], int]:
    """Return the changes of a run behind an offset of its journal, by what they are of, and where they end.

    Args:
        run: the run root, or an archive, which has no journal.
        offset: 0, or that of an earlier answer.
        begun: whether a change counts that has begun and not ended.
    """
    try:
        with (run / JOURNAL).open("rb") as file:
            base, begin = _head(file)
            ahead = base - begin
            if offset - ahead > os.fstat(file.fileno()).st_size:
                offset = 0  # another journal
            said = []
            if offset < base:
                said = file.read(begin - file.tell()).splitlines()
            start = max(offset, base)
            file.seek(start - ahead)
            data = file.read()
            whole = len(data) if begun else data.rfind(b"\n") + 1
            found = _Found(file, ahead)
            for line in said:
                found.add(line, 0, offset)
            at = start
            for line in data[:whole].splitlines(keepends=True):
                found.add(line, at, offset)
                at += len(line)
            return found.revisions(), at
    except (FileNotFoundError, NotADirectoryError):
        return [], 0


class _Found:
    """Changes by what they are of."""

    def __init__(self, file: BinaryIO, ahead: int) -> None:
        self._file = file
        self._ahead = ahead
        self._names: dict[int, tuple[str, ...]] = {}
        self._cuts: list[Revision] = []
        self._steps: dict[tuple[str, ...], list[int]] = {}
        self._until: dict[tuple[str, ...], int] = {}

    def add(self, line: bytes, at: int, offset: int) -> None:
        """Take a line that begins at an offset, unless it says what whoever has read up to another one knows."""
        # a note that the disk, or a kill, has cut short is of a change that was not made
        with contextlib.suppress(ValueError, TypeError, KeyError):
            what = json.loads(line)
            until = what.get("until", at)
            if until < offset:
                return
            if "after" in what:
                self._cuts.append(Revision(after=what["after"], until=until))
                return
            names = tuple(what["names"]) if "names" in what else self._like(what["like"])
            if "names" in what:
                self._names[at] = names
            steps = self._steps.setdefault(names, [])
            if "steps" in what:
                for segment in what["steps"]:
                    steps.extend(range(*segment))
            else:
                steps.append(what["step"])
            self._until[names] = until

    def _like(self, at: int) -> tuple[str, ...]:
        if at not in self._names:
            before = self._file.tell()
            self._file.seek(at - self._ahead)
            self._names[at] = tuple(json.loads(self._file.readline())["names"])
            self._file.seek(before)
        return self._names[at]

    def revisions(self) -> list[Revision]:
        points = self._steps.items()
        return [*self._cuts, *(Revision(n, sorted({*steps}), until=self._until[n]) for n, steps in points)]


def _head(file: BinaryIO) -> tuple[int, int]:
    """Return the offset from which on a journal is as it was written, and where in its file that is."""
    first = file.readline()
    if not first.startswith(b'{"base":'):
        file.seek(0)
        return 0, 0
    head = json.loads(first)
    return head["base"], len(first) + head["bytes"]


def _packed(steps: Sequence[int]) -> list[list[int]]:
    segments = _indices.close(_indices.extend([], 0, np.array(steps)), len(steps))
    return [[segment.start, segment.stop or 0, segment.step] for segment in segments]


def _line(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what, separators=(",", ":")).encode()
