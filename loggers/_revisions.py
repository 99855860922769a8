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

    {"base":8000000,"bytes":150}                                   what was up to this offset is now so many bytes
    {"names":["train/loss"],"steps":[[5,901,1]],"until":5999990}   where the last of these lines began
    {"names":["train/loss"],"each":[[901,6000012],[902,6000034]]}  steps of the newest lines, and where each began

Offsets go on behind that as if nothing had been replaced. Who was further behind than those may read something for the
second time, and so get a value twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from plattli import _fs, _indices

JOURNAL: Final = ".revisions"
#: Bytes from which on the journal is replaced by what it says.
LARGEST: Final = 8_000_000


class Revision(NamedTuple):
    """Some changes of what had been logged.

    Attributes:
        names: the stored names of metrics whose values were replaced, or came late.
        steps: where, in increasing order.
        after: of a cut, which has neither: context -> last step that stays.
    """

    names: tuple[str, ...] = ()
    steps: Sequence[int] = ()
    after: Mapping[str, int] | None = None


class Journal:
    """Writes down what is taken back in a run."""

    def __init__(self, run: Path) -> None:
        """Write nothing yet."""
        self._run = run
        #: names -> offset of a line that has them
        self._written: dict[tuple[str, ...], int] = {}
        self._fd = -1
        #: bytes that offsets are ahead of the file
        self._ahead = 0
        #: there is half a line at its end
        self._torn = False
        self._limit = LARGEST
        self._closing: Callable[[], object] | None = None

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
        size = self._open()
        names = tuple(what.get("names", ()))
        like = self._written.get(names) if names else None
        line = _line(what) if like is None else b'{"step":%d,"like":%d}' % (what["step"], like)
        if torn := self._torn:
            line = b"\n" + line
        self._torn = True
        _fs.write_all(self._fd, memoryview(line))
        if names and like is None:
            if len(self._written) >= 4096:  # names that never repeat
                self._written.clear()
            self._written[names] = size + torn + self._ahead
        try:
            yield
        finally:
            # also if it failed: then the change may have been made or not, and a value is told twice at worst
            os.write(self._fd, b"\n")
            self._torn = False

    def _open(self) -> int:
        """Open what is not open, or is gone; return how long it is."""
        path = self._run / JOURNAL
        if self._fd >= 0:
            size, removed = os.fstat(self._fd).st_size, _fs.is_removed(self._fd, path)
            if size <= self._limit and not removed:
                return size
            self.close()
            if not removed:
                self._shorten()
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._fd, self._closing = fd, weakref.finalize(self, os.close, fd)
        size = os.fstat(fd).st_size
        self._torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        with path.open("rb") as file:
            base, begin = _head(file)
        self._ahead = base - begin
        return size

    def close(self) -> None:
        """Let go of the file; the next note opens it again."""
        if self._closing is not None:
            self._closing()
        self._fd, self._closing = -1, None
        self._written.clear()

    def _shorten(self) -> None:
        """Replace the journal by what it says; put that off if the disk does not take it now."""
        found, end = _read(self._run, 0, begun=True)
        lines = found.said(end - self._limit // 4)
        said = b"".join(_line(line) + b"\n" for line in lines)
        said = _line({"base": end, "bytes": len(said)}) + b"\n" + said
        self._limit *= 2
        with contextlib.suppress(OSError):
            _fs.replace_file(self._run / JOURNAL, said)
            self._limit = max(LARGEST, 2 * len(said))

    def end(self) -> None:
        """End the line that a dead writer began: what it was about has been carried out or not by now.

        Raises:
            OSError: the disk does not take it.
        """
        if (self._run / JOURNAL).exists():
            self._open()
            if self._torn:
                os.write(self._fd, b"\n")
                self._torn = False


def read(run: Path, offset: int, *, begun: bool) -> tuple[list[Revision], int]:
    """Return the changes of a run behind an offset of its journal, by what they are of, and where they end.

    Args:
        run: the run root, or an archive, which has no journal.
        offset: 0, or that of an earlier answer.
        begun: whether a change counts that has begun and not ended.
    """
    found, end = _read(run, offset, begun=begun)
    return found.revisions(), end


def newest(run: Path) -> Revision | None:
    """Return the last change that was noted, ``None`` if that is a cut, or there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), (run / JOURNAL).open("rb") as file:
        base, begin = _head(file)
        file.seek(begin)
        before, _, last = file.read().rstrip(b"\n").rpartition(b"\n")
        found = _Found()
        found.add(last, base + len(before) + bool(before), 0, file, base - begin)
        return next((revision for revision in found.revisions() if revision.after is None), None)
    return None


def _read(run: Path, offset: int, *, begun: bool) -> tuple[_Found, int]:
    found = _Found()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), (run / JOURNAL).open("rb") as file:
        base, begin = _head(file)
        ahead = base - begin
        if offset - ahead > os.fstat(file.fileno()).st_size:
            offset = 0  # another journal
        if offset < base:
            for line in file.read(begin - file.tell()).splitlines():
                found.add(line, 0, offset, file, ahead)
        at = max(offset, base)
        file.seek(at - ahead)
        data = file.read()
        whole = len(data) if begun else data.rfind(b"\n") + 1
        for line in data[:whole].splitlines(keepends=True):
            found.add(line, at, offset, file, ahead)
            at += len(line)
        return found, at
    return found, 0


class _Found:
    """Changes by what they are of."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, ...]] = {}
        #: what is cut, and where that is said
        self._cuts: list[tuple[Mapping[str, int], int]] = []
        #: names -> steps, and where they are said
        self._points: dict[tuple[str, ...], list[tuple[int, int]]] = {}

    def add(self, line: bytes, at: int, offset: int, file: BinaryIO, ahead: int) -> None:
        """Take a line that begins at an offset, but for what whoever has read up to another offset knows."""
        # a note that the disk, or a kill, has cut short is of a change that was not made
        with contextlib.suppress(ValueError, TypeError, KeyError):
            what = json.loads(line)
            until = what.get("until", at)
            if "after" in what:
                if until >= offset:
                    self._cuts.append((what["after"], until))
                return
            if "names" in what:
                names = self._names[at] = tuple(what["names"])
            else:
                names = self._like(what["like"], file, ahead)
            points = self._points.setdefault(names, [])
            if "each" in what:
                points += [(step, said) for step, said in what["each"] if said >= offset]
            elif until >= offset:
                segments = what["steps"] if "steps" in what else [[what["step"], what["step"] + 1]]
                points += [(step, until) for segment in segments for step in range(*segment)]

    def _like(self, at: int, file: BinaryIO, ahead: int) -> tuple[str, ...]:
        if at not in self._names:
            file.seek(at - ahead)
            self._names[at] = tuple(json.loads(file.readline())["names"])
        return self._names[at]

    def revisions(self) -> list[Revision]:
        """Return them, cuts first."""
        points = [(names, sorted({step for step, _ in said})) for names, said in self._points.items()]
        cuts = [Revision(after=after) for after, _ in self._cuts]
        return [*cuts, *(Revision(names, steps) for names, steps in points if steps)]

    def said(self, since: int) -> list[dict[str, Any]]:
        """Return lines that say the same, those from an offset on one by one."""
        lines: list[dict[str, Any]] = [{"after": after, "until": until} for after, until in self._cuts]
        for names, points in self._points.items():
            if old := {step: until for step, until in points if until < since}:
                lines.append({"names": names, "steps": _packed(sorted(old)), "until": max(old.values())})
            if new := {step: until for step, until in points if until >= since}:
                lines.append({"names": names, "each": [*new.items()]})
        return lines


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
