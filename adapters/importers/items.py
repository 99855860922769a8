"""What a source says, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from loggers.errors import LoggerError


class ImportingError(LoggerError, ValueError):
    """What should be imported cannot be; nothing was written."""


class Line(NamedTuple):
    """One line of metrics.

    Attributes:
        step: as it was found; one that is no step is counted and left out.
        context, metrics, epoch: as for ``log_metrics``.
        walltime: Unix seconds, ``None`` if the source has none.
    """

    step: Any
    context: str
    metrics: Mapping[str, Any]
    epoch: int | None = None
    walltime: float | None = None


class Call(NamedTuple):
    """Another verb call."""

    verb: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = {}


class Attempt(NamedTuple):
    """Another process goes on with the run.

    Attributes:
        step: everything from here on is gone; ``None`` if the source does not say where it goes on: then what
            its lines overlap is.
        alone: whether every context has steps of its own, so that one that goes back says nothing of the others.
    """

    step: int | None = None
    alone: bool = False


class End(NamedTuple):
    """The run has ended with this status. More may come: then it was resumed."""

    status: str


Item: TypeAlias = "Line | Call | Attempt | End"


@dataclass
class Report:
    """What became of a source.

    Attributes:
        lines, values: those logged; what a restart took back is among them.
        first, last: lowest and highest step.
        restarts: how often the run went on from an earlier step.
        replaced: lines that a restart took back.
        status: what the run was finished with.
        left_out: what was not imported -> how often.
        notes: what else is worth knowing, such as a torn end.
        bytes_read: of all files of the source.
    """

    lines: int = 0
    values: int = 0
    first: int | None = None
    last: int | None = None
    restarts: int = 0
    replaced: int = 0
    status: str = ""
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bytes_read: int = 0

    def leave_out(self, what: str, count: int = 1) -> None:
        """Count something that was not imported."""
        self.left_out[what] = self.left_out.get(what, 0) + count

    def note(self, sentence: str) -> None:
        """Say something, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


class Options(NamedTuple):
    """What the user said about names and steps.

    Attributes:
        context: of names that have none.
        step_column: the column or key that is the step; ``None`` looks for the usual ones.
        overlaps: see :class:`adapters.importers.overlaps.Overlaps`.
        status: of a run whose source does not say how it ended.
    """

    context: str = "train"
    step_column: str | None = None
    overlaps: str = "auto"
    status: str = "interrupted"


@dataclass(frozen=True)
class Source:
    """One run of somebody else's.

    Attributes:
        kind: the importer's word for it.
        name: where it lies in what was named: ``""``, or a relative path if there are several.
        files: what is read, in order.
        read: returns the items, and keeps the books.
    """

    kind: str
    name: str
    files: tuple[Path, ...]
    read: Callable[[Report, Options], Iterator[Item]]


def named(files: Iterable[Path], root: Path) -> list[tuple[Path, str]]:
    """Return each file with what to call the run in it: nothing if it is the only one, else where it lies."""
    paths = list(files)
    if len(paths) == 1:
        return [(paths[0], "")]
    inner = [path.relative_to(root) for path in paths]
    # logs are mostly called the same, each in the folder of its run
    alike = len({path.name for path in inner}) == 1
    return [(path, str(i.parent if alike else i.with_suffix(""))) for path, i in zip(paths, inner, strict=True)]


def split(name: str, context: str) -> tuple[str, str]:
    """Return context and metric of a name: what is before its first slash, or ``context`` if there is nothing."""
    before, _, after = name.partition("/")
    return (before, after) if before and after else (context, name)


def by_context(names: Mapping[str, Any], context: str) -> dict[str, dict[str, Any]]:
    """Return the values of one row by context, then by metric."""
    rows: dict[str, dict[str, Any]] = {}
    for name, value in names.items():
        where, metric = split(name, context)
        rows.setdefault(where, {})[metric] = value
    return rows


def as_epoch(value: Any) -> int | None:
    """Return an epoch, ``None`` if it is none; some count in fractions of one, which is an ordinary metric."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53 and value == int(value):
        return int(value)
    return None
