"""What a check finds, and what a repair would do about it: descriptions only, nothing is touched here."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from plattli._format import MANIFEST

#: ``error``: a reader raises there, or returns something wrong. ``warning``: readers cope, but it is not as it
#: should be. ``note``: worth knowing; nothing is wrong.
Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Cut:
    """Cut a file that has ``seen`` bytes to ``size``."""

    path: Path
    size: int
    seen: int

    def __str__(self) -> str:
        count = self.seen - self.size
        return f"cut the last {count} byte{'s' * (count != 1)}, keeping a copy"


@dataclass(frozen=True)
class EndLine:
    """Append a newline to a file that has ``seen`` bytes."""

    path: Path
    seen: int

    def __str__(self) -> str:
        return "add the newline"


@dataclass(frozen=True)
class MoveAway:
    """Move a file or folder into the folder of copies."""

    path: Path

    def __str__(self) -> str:
        return "move it away"


@dataclass(frozen=True)
class MakeEmpty:
    """Make a file without rows."""

    path: Path

    def __str__(self) -> str:
        return "make the empty file"


@dataclass(frozen=True)
class EmptyConfig:
    """Write ``{}`` as the config, where there is none or only a link to nowhere."""

    path: Path

    def __str__(self) -> str:
        return "write {}, keeping a copy of the link if there is one"


@dataclass(frozen=True)
class Amend:
    """Change one value of the manifest, or, with ``value=None``, remove its key."""

    path: Path
    metric: str | None  # None for the manifest's own keys
    key: str
    value: Any

    def __str__(self) -> str:
        return f"remove {self.key}" if self.value is None else f"correct {self.key}"


@dataclass(frozen=True)
class Publish:
    """Give the output of a killed writer the name under which readers look for it."""

    path: Path
    target: Path

    def __str__(self) -> str:
        return f"rename it to {self.target.name}"


Fix: TypeAlias = Cut | EndLine | MoveAway | MakeEmpty | EmptyConfig | Amend | Publish


@dataclass(frozen=True)
class Finding:
    """One thing that a check has to say.

    Attributes:
        severity: ``"error"``: a reader raises there or returns something wrong; ``"warning"``: readers cope, but
            it is not as it should be; ``"note"``: worth knowing, nothing is wrong.
        code: the kind, for programs; see :mod:`plattli.check`.
        file: relative to the run; members of an archive are written as if it were a folder.
        what: what is wrong, one sentence.
        metric: the metric that it is about, if it is about one.
        line: where in the file, counted from 1, for files that have lines.
        offset: where in the file, in bytes from its beginning.
        fix: what a repair does about it, ``None`` if it leaves it alone.
    """

    severity: Severity
    code: str
    file: str
    what: str
    metric: str | None = None
    line: int | None = None
    offset: int | None = None
    fix: Fix | None = None

    @property
    def place(self) -> str:
        """Where it is: ``plattli/hot.jsonl:3, byte 120``."""
        line = "" if self.line is None else f":{self.line}"
        offset = "" if self.offset is None else f", byte {self.offset}"
        return f"{self.file}{line}{offset}"

    @property
    def repair(self) -> str | None:
        """What a repair would do about it, ``None`` for nothing."""
        return None if self.fix is None else str(self.fix)


class Findings:
    """Collects what is found in one folder or archive."""

    def __init__(self, root: Path, prefix: str, *, repairable: bool) -> None:
        """Start without findings.

        Args:
            root: the folder or archive.
            prefix: what stands before the names of its files in findings.
            repairable: whether fixes are kept; an archive is never edited.
        """
        self.root = root
        self.all: list[Finding] = []
        self._prefix = prefix
        self._repairable = repairable

    def add(
        self,
        severity: Severity,
        code: str,
        file: str,
        what: str,
        *,
        metric: str | None = None,
        line: int | None = None,
        offset: int | None = None,
        fix: Fix | None = None,
    ) -> None:
        """Add a finding; ``file`` is relative to the root. The rest is as in :class:`Finding`."""
        shown = os.fsencode(self._prefix + file).decode(errors="backslashreplace")
        self.all.append(Finding(severity, code, shown, what, metric, line, offset, fix if self._repairable else None))

    def cut(self, file: str, size: int, seen: int) -> Cut:
        """Return the fix that cuts a file of ``seen`` bytes."""
        return Cut(self.root / file, size, seen)

    def amend(self, metric: str | None, key: str, value: Any) -> Amend:
        """Return the fix that changes one value of the manifest."""
        return Amend(self.root / MANIFEST, metric, key, value)

    def has_error_since(self, count: int) -> bool:
        """Tell whether there is an error among the findings behind the first ``count``."""
        return any(finding.severity == "error" for finding in self.all[count:])

    def drop_fixes_beside_errors(self, count: int) -> bool:
        """Leave alone what the findings behind the first ``count`` are about, if one is an error beyond repair.

        Returns:
            Whether there is such an error.
        """
        is_beyond = any(finding.severity == "error" and finding.fix is None for finding in self.all[count:])
        if is_beyond:
            self.all[count:] = [replace(finding, fix=None) for finding in self.all[count:]]
        return is_beyond

    # ---- what both hot logs and columns of JSON can have at their end

    def torn_line(self, file: str, tail: bytes, number: int, at: int, size: int, metric: str | None = None) -> None:
        """Say that a file of lines ends in ``tail``, which is no line; it begins at byte ``at`` of ``size``."""
        blank = not tail.strip()
        what = "the last line is blank" if blank else f"the last line is torn: {tail[:40]!r}"
        severity: Severity = "note" if blank else "warning"
        fix = self.cut(file, at, size)
        self.add(severity, "torn-tail", file, what, metric=metric, line=number, offset=at, fix=fix)

    def unended_line(self, file: str, size: int, number: int, metric: str | None = None) -> None:
        """Say that the last line of a file of ``size`` bytes has no newline."""
        what = "the last line is whole, but has no newline: some writers would glue the next one to it"
        fix = EndLine(self.root / file, size)
        self.add("warning", "unended-line", file, what, metric=metric, line=number, offset=size, fix=fix)


def parse_json(data: bytes) -> tuple[Any, tuple[str, int | None, int | None] | None]:
    """Return the value of a JSON file, and what is wrong with it: message, line, byte offset."""
    try:
        text = data.decode()
        return json.loads(text), None
    except UnicodeDecodeError as error:
        return None, (f"{error.reason} (UTF-8)", data.count(b"\n", 0, error.start) + 1, error.start)
    except json.JSONDecodeError as error:
        return None, (error.msg, error.lineno, len(text[: error.pos].encode()))
    except ValueError as error:  # an integer of thousands of digits
        return None, (str(error), None, None)
    except RecursionError:
        return None, ("nested too deeply", None, None)
