"""Verify a run: whatever lies there, live, dead or finished, as a folder or as an archive.

::

    from plattli.check import check_run

    report = check_run("runs/a")
    for finding in report.findings:
        print(finding.severity, finding.place, finding.what)

Checking writes nothing and takes no lock. Any bytes in any file give findings, never an exception. The kinds
(:attr:`Finding.code`), what they are about, and the severities they may have:

==========================  ============================================================================
``manifest``                error: ``plattli.json`` is missing, unreadable, or not what it should be
``name``, ``entry``         error: a metric's name or entry in it; no reader opens the run
``dtype``, ``segments``     error: the entry names a dtype that does not exist, or steps that break the rules
``missing-file``            error, or warning in a live run: a file of a metric is not there
``unreadable``              error: a file cannot be read
``bad-line``                error: a line of a hot log or of a JSON column, other than the last
``hot-value``               error: a hot row holds a value that its column cannot
``monotonic``               error: the flag is wrong, reads by value return wrong rows; warning: it is useless
``checksum``                error: a member of an archive does not have the bytes that were written
``archive``                 error, or warning beside a readable folder: ``metrics.plattli`` is no archive of a run
``config``                  error: not JSON; warning: missing, or a link to nowhere; note: an absolute link
``torn-tail``               warning: a file ends in half a value, step or line; note: in a blank line
``unended-line``            warning: the last line has no newline
``uncovered-values``        warning: values without steps
``missing-values``          warning: steps without values, which are not in the hot log either
``step-order``              warning: steps of one metric that do not rise
``step-range``              error: a step file with steps above the highest there is
``unannounced-step``        warning: a hot step above 2**32 - 1 of a metric that the manifest does not say has such
``buried-row``              warning: a hot row below stored rows: not shown until a writer opens the run
``ignored-hot``             warning: a hot log in a run that is finished
``run-rows``                warning: the row count of a finished run is wrong
``bytes``                   warning: the manifest has another size of a JSON column than its file, so readers count
``temporary``               warning: a temporary file
``superseded``              warning: a metric's file of another dtype or form
``orphan``                  warning: a column that no metric of the manifest owns
``staging``                 warning: a folder in which a killed writer prepared its output
``twice``                   warning: an archive and a folder, of which readers see the archive
``member``                  warning: a member of an archive whose name writers refuse, or that is there twice
``interrupted-batch``       note: rows that were on their way into the columns
``interrupted-insertion``   note: rows that a writer will show when it has opened the run
``portable``                note: a metric whose files some other system cannot store
``stray``, ``copies``       note: files that are none of the format's, and what repairs took away
``lock``                    note: who writes the run, or whose dead owner left its lock; warning: unreadable
``follower``                note: what a tracker has not received; warning: a temporary file of a follower
==========================  ============================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from plattli import _fs, _layout
from plattli._finding import Finding, Fix, Severity
from plattli.errors import NotARunError

__all__ = ["Finding", "Report", "check_run"]

State: TypeAlias = Literal["live", "unfinished", "finished", "empty", "unreadable"]
#: Called with how much is done, of how much, and what was done last.
Progress: TypeAlias = Callable[[int, int, str], None]

#: What is ordinary while somebody writes, or passes when the writer goes on.
_PASSING: Final = frozenset((
    "temporary", "superseded", "torn-tail", "unended-line", "uncovered-values", "missing-values", "missing-file",
    "run-rows", "staging", "twice", "ignored-hot",
))  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What a check has to say about one run.

    Attributes:
        path: the run root, or a folder or archive that lies without one, absolute.
        state: ``"live"`` while a writer holds its lock; ``"finished"``; ``"unfinished"`` if it can be gone on
            with; ``"empty"`` if nothing is logged yet; ``"unreadable"`` if there is no telling.
        owner: the live writer's ``{"host", "pid", "started", …}``, or ``None``.
        metrics: how many metrics there are.
        rows: how many stored rows the longest one has; hot rows do not count.
        findings: what was found, grouped by file.
    """

    path: Path
    state: State
    owner: dict[str, Any] | None
    metrics: int
    rows: int
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing but notes."""
        return not (self.count("error") or self.count("warning"))

    @property
    def fixes(self) -> list[Fix]:
        """What a repair would do."""
        return [finding.fix for finding in self.findings if finding.fix is not None]

    def count(self, severity: Severity) -> int:
        """Return how many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)


def check_run(path: str | PathLike[str], *, progress: Progress | None = None) -> Report:
    """Verify the run at ``path``.

    Args:
        path: a run root, the metric folder in it, or an archive. Of a run root everything that belongs to the run
            is looked at, beside the folder too.
        progress: called now and then with what is done, of how much, and with a name.

    Raises:
        NotARunError: there is nothing at ``path`` that could be a run, or what is left of one.
        TypeError: ``path`` is no path.
    """
    place = _layout.find(path)
    if place is None:
        raise NotARunError(f"not a plattli run: {path}")
    owner, about_lock = _lock(place.root)
    report = inspect(place, owner, progress)
    if owner is not None and not report.is_clean:
        # files changed while they were looked at: what is really wrong is still wrong at a second look
        lasting = {(f.code, f.file, f.metric) for f in inspect(place, owner, progress).findings}
        kept = [_calmed(f) for f in report.findings if (f.code, f.file, f.metric) in lasting]
        report = replace(report, findings=tuple(kept))
    return replace(report, findings=(*report.findings, *about_lock))


def inspect(place: _layout.Place, owner: dict[str, Any] | None, progress: Progress | None = None) -> Report:
    """Return what :func:`check_run` does, about everything but the lock.

    Args:
        place: where the run is.
        owner: who holds the lock.
        progress: see there.
    """
    seen = _layout.look(place, progress)
    state: State = "live" if owner is not None else seen.state
    # an OSError's text, and so a finding, may hold anything that a file name can
    order = {file: at for at, file in enumerate(dict.fromkeys(f.file for f in seen.findings))}
    findings = sorted(seen.findings, key=lambda f: (order[f.file], f.offset or 0))
    return Report(place.root or place.path, state, owner, seen.metrics, seen.rows, tuple(findings))


def describe_owner(owner: dict[str, Any]) -> str:
    """Return who holds a lock, whatever its file says."""
    try:
        return _fs.describe_owner(owner)
    except (TypeError, ValueError, OverflowError, OSError):
        return "a process that cannot be made out"


def _calmed(finding: Finding) -> Finding:
    severity = "note" if finding.severity == "warning" and finding.code in _PASSING else finding.severity
    return replace(finding, severity=severity, fix=None)


def _lock(root: Path | None) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return who writes the run, and what there is to say about it."""
    if root is None or not os.path.lexists(root / _fs.LOCK_FILE):
        return None, []

    def finding(severity: Severity, what: str) -> list[Finding]:
        return [Finding(severity, "lock", _fs.LOCK_FILE, what)]

    try:
        owner = _fs.lock_owner(root)
    except RecursionError:  # held, and full of brackets
        owner = {}
    except OSError as error:
        return None, finding("warning", f"cannot be read, so that nobody knows who writes the run: {error}")
    if owner is not None:
        return owner, finding("note", f"held by {describe_owner(owner)}")
    return None, finding("note", "its owner is gone; the next writer takes it over")
