"""Import one run, once.

What was imported, and from what, is noted beside the run, in ``.imported.json``. So a second import of the same files
finds that there is nothing to do, one that was killed is begun again, and nothing is ever there twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Final

from adapters.importers.items import Call, ImportingError, Line, Options, Report, Source
from adapters.importers.writing import Writer
from loggers.errors import RunExistsError, RunLockedError
from loggers.plattli_logger import PlattliLogger
from loggers.replay import is_written
from plattli.rows import exists

NOTE: Final = ".imported.json"


def import_run(
    source: Source,
    run: Path,
    options: Options,
    *,
    force: bool = False,
    progress: Callable[[Report], None] | None = None,
) -> Report | None:
    """Import a run into the directory ``run``.

    Args:
        source: one of :func:`adapters.importers.finding.find_sources`.
        run: the run root.
        options: what names and steps mean.
        force: replace the run that is there.
        progress: called now and then.

    Returns:
        What was imported; ``None`` if ``run`` has all of it already.

    Raises:
        ImportingError: the source holds nothing that could be imported, or has no step. Nothing was written.
        RunExistsError: there is a run already that is not this one, or the source has changed since.
        RunLockedError: somebody is writing the run.
        OSError: a disk failed.
    """
    if is_written(run):
        raise RunLockedError(f"{run} is being written by another process: name another place, or wait for its end")
    about = _about(source, options)
    replaces = force
    if exists(run) and not force:
        note = _noted(run)
        if note is None or not _is_same(note, about):
            raise RunExistsError(_why_not(run, source, note))
        if note["complete"]:
            return None
        replaces = True  # an import that was killed
    report = Report()
    items = source.read(report, options)
    # whatever is wrong with the source as a whole shows with its first line
    first = next((item for item in items if isinstance(item, Line | Call)), None)
    if first is None:
        left = ", ".join(f"{count} {what}" for what, count in report.left_out.items())
        raise ImportingError(
            f"{source.files[0]} holds nothing that a run can hold{f' ({left})' if left else ''}"
            + "".join(f"; {note}" for note in report.notes)
        )
    run.mkdir(parents=True, exist_ok=True)
    _note(run, {"about": about, "complete": False})
    logger = PlattliLogger(run, if_exists="replace" if replaces else "refuse", walltime=False, backlog=0)
    Writer(logger, report, options).write(
        chain((first,), items), lambda: progress(report) if progress is not None else None
    )
    _note(run, {"about": about, "complete": True, "report": asdict(report)})
    return report


def _about(source: Source, options: Options) -> dict[str, Any]:
    """Return what makes two imports the same."""
    files = []
    for path in source.files:
        stat = path.stat()
        files.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    return {"kind": source.kind, "files": files, "options": options._asdict()}


def _is_same(note: dict[str, Any], about: dict[str, Any]) -> bool:
    """Tell whether a note is about the same import; what was killed half-way may begin again with other options."""
    return bool(note["about"] == about if note["complete"] else _paths(note["about"]) == _paths(about))


def _paths(about: dict[str, Any]) -> list[str]:
    return [path for path, *_ in about["files"]]


def _why_not(run: Path, source: Source, note: dict[str, Any] | None) -> str:
    ways = "name another place, or replace it with --force"
    if note is None:
        return f"there is a run already in {run}: {ways}"
    theirs, ours = _paths(note["about"]), [str(path.resolve()) for path in source.files]
    if {*theirs}.isdisjoint(ours):
        return f"{run} was imported from something else ({theirs[0]}): {ways}"
    return f"{run} was imported from the same files with other options, or before they changed: {ways}"


def _noted(run: Path) -> dict[str, Any] | None:
    try:
        note = json.loads((run / NOTE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return note if isinstance(note, dict) and {"about", "complete"} <= note.keys() else None


def _note(run: Path, note: dict[str, Any]) -> None:
    draft = run / f"{NOTE}.{os.getpid()}"
    draft.write_text(json.dumps(note, indent=1, ensure_ascii=False), encoding="utf-8", errors="backslashreplace")
    draft.replace(run / NOTE)
