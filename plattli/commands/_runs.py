"""What the commands share: opening a run, picking metrics, and saying what is wrong."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

from plattli._format import ARCHIVE, MANIFEST, METRIC_DIR
from plattli._remote import is_url
from plattli.errors import NotARunError, PlattliError
from plattli.reader import Reader
from plattli.runs import is_run

T = TypeVar("T")

RUN_HELP: Final = "a run directory, its plattli/ folder, a .plattli file, or the URL of one"
#: What reading somebody's run can raise.
UNREADABLE: Final = (PlattliError, OSError, ImportError)
#: How many names a message lists.
_MANY: Final = 8


def complain(command: str, message: object, *, path: str | None = None) -> None:
    """Tell the user on stderr; with the path that it is about, unless the message has it."""
    where = f"{path}: " if path is not None and path not in str(message) else ""
    print(f"plattli {command}: {where}{message}", file=sys.stderr)


def give_up(command: str, message: object, path: str, *, as_json: bool) -> None:
    """Say why a run cannot be read: to people on stderr, to programs as an object like the others."""
    if as_json:
        print(json.dumps({"path": path, "error": str(message)}, ensure_ascii=False))
    else:
        complain(command, message, path=path)


def read_run(path: str, read: Callable[[Reader], T]) -> T:
    """Open the run at ``path`` and return what ``read`` makes of it.

    Raises:
        NotARunError: no run is there; the message says what is there instead.
    """
    try:
        reader = Reader(path)
    except NotARunError as error:
        if is_url(path):
            raise
        raise NotARunError(not_a_run(path)) from error
    with reader:
        return read(reader)


def not_a_run(path: str) -> str:
    """Return the message for a path that holds no run, with what is there instead."""
    folder = Path(path).expanduser()
    if not folder.exists():
        return f"{path}: no such file or directory"
    runs = sorted(child.name for child in folder.iterdir() if is_run(child)) if folder.is_dir() else []
    if runs:
        return f"{path}: not a run itself, but a folder of runs: {_listed(runs)}"
    if (folder / METRIC_DIR).is_dir():
        return f"{path}: nothing is logged yet: there is no {METRIC_DIR}/{MANIFEST}"
    return f"{path}: not a run: it has neither {METRIC_DIR}/{MANIFEST} nor a {ARCHIVE}"


def matching(names: Collection[str], pattern: str) -> list[str]:
    """Return the names that ``pattern``, a name or a glob, means. A name wins over a glob."""
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def no_such_metric(pattern: str, names: Iterable[str], where: str) -> str:
    """Return the message for a pattern that matches nothing, with the names that were perhaps meant."""
    known = sorted(names)
    wanted = pattern.strip("*")
    close = [name for name in known if wanted and wanted.lower() in name.lower()]
    close += [name for name in difflib.get_close_matches(pattern, known, _MANY, 0.5) if name not in close]
    if close:
        hint = f"close to it: {_listed(close)}"
    else:
        hint = f"there are: {_listed(known)}" if known else "it has no metrics"
    return f"no metric {pattern!r} in {where}; {hint}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return ", ".join(map(repr, names[:_MANY])) + more
