"""Check what lies in a run root: the folder, the archive, and what dead writers, followers and repairs left."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NamedTuple

from plattli._columncheck import UNREADABLE
from plattli._content import Content, is_of_format
from plattli._finding import EmptyConfig, Finding, Findings, MoveAway, Publish, parse_json
from plattli._format import (
    ARCHIVE,
    CONFIG,
    DTYPES,
    HOT,
    HOT_COMPACTING,
    INDICES_FILE,
    MANIFEST,
    METRIC_DIR,
    TMP_SUFFIX,
    WIDE_INDICES_FILE,
    step_dtype,
)
from plattli._fs import is_locked
from plattli._source import Archive, Folder
from plattli.errors import MissingFileError, NotARunError

#: What the folders begin with in which repairs keep what they took away.
COPIES: Final = ".plattli-repair-"
#: What the folders begin with in which writers prepare their output.
_STAGING: Final = ".plattli-"
#: Says that the archive has taken the place of the folder, whatever that holds.
_REPLACING: Final = ".plattli-replacing"
#: Where a tee keeps the jobs of its followers.
_FOLLOWERS: Final = ".followers"
#: What unpacking damaged members raises, beside what inspecting files does.
_BAD_MEMBER: Final = (*UNREADABLE, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error)
_CHUNK: Final = 1 << 20


class Place(NamedTuple):
    """Where a run is.

    Attributes:
        path: what was named, absolute.
        root: the run root, ``None`` for a folder or archive that lies without one.
        folder: the metric folder, ``None`` if there is none.
        archive: the archive, ``None`` if there is none.
    """

    path: Path
    root: Path | None
    folder: Path | None
    archive: Path | None


class Seen:
    """What a look at a run brought.

    Attributes:
        findings: everything that is to be said.
        state: see :class:`plattli.check.Report`, as far as files tell.
        metrics, rows: how many metrics, and how many stored rows the longest one has.
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.findings: list[Finding] = []
        self.state: Literal["unfinished", "finished", "empty", "unreadable"] = "empty"
        self.metrics = 0
        self.rows = 0


def find(path: str | os.PathLike[str]) -> Place | None:
    """Return where the run at ``path`` is, ``None`` if nothing there could be one or what is left of one.

    Raises:
        TypeError: ``path`` is no path.
    """
    named = Path(path).expanduser()
    try:
        named = named.resolve()
        if named.is_file():
            if named.name == ARCHIVE:
                return _root(named.parent)
            is_archive = named.suffix == ".plattli" or zipfile.is_zipfile(named)
            return Place(named, None, None, named) if is_archive else None
        if not named.is_dir():
            return None
        has_manifest = (named / MANIFEST).is_file()
        if named.name == METRIC_DIR and not (named / METRIC_DIR).is_dir() and not (named / ARCHIVE).is_file():
            return _root(named.parent)
        return Place(named, None, named, None) if has_manifest else _root(named)
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL in the name
        return None


def _root(root: Path) -> Place | None:
    folder, archive = root / METRIC_DIR, root / ARCHIVE
    place = Place(root, root, folder if folder.is_dir() else None, archive if archive.is_file() else None)
    left = any(name.startswith(_STAGING) or name == ARCHIVE + TMP_SUFFIX for name in _names(root))
    return place if place.folder or place.archive or left else None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


# ---- the run itself -------------------------------------------------------------------------------


def look(place: Place, progress: Callable[[int, int, str], None] | None) -> Seen:
    """Check everything at ``place`` but the lock."""
    seen = Seen()
    source: Folder | Archive | None = None
    beside = Findings(place.root or place.path, "", repairable=place.root is not None)
    if place.archive is not None:
        source = _open_archive(place, beside)
    try:
        if source is not None and place.archive is not None:
            _look_into_archive(place.archive, source, seen, progress)
            if place.folder is not None:
                _check_second(place.folder, beside)
        elif place.folder is not None:
            source = _look_into_folder(place, seen, progress)
        elif place.archive is not None:
            seen.state = "unreadable"
    finally:
        if source is not None:
            source.close()
    if place.root is not None:
        _check_beside(place, beside, is_readable=source is not None)
    seen.findings += beside.all
    return seen


class _Ticks:
    """Counts what is done of a number of files."""

    def __init__(self, total: int, progress: Callable[[int, int, str], None] | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, name: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, name)


def _open_archive(place: Place, findings: Findings) -> Archive | None:
    archive: Path = place.archive  # type: ignore[assignment]  # the caller checked
    try:
        return Archive(archive)
    except NotARunError as error:
        where = "readers use the folder, but writers refuse the run" if place.folder else "nothing of it can be read"
        findings.add("warning" if place.folder else "error", "archive", archive.name, f"{error}; {where}")
        return None


def _look_into_archive(
    path: Path, source: Archive | Folder, seen: Seen, progress: Callable[[int, int, str], None] | None
) -> None:
    findings = Findings(path, f"{path.name}/", repairable=False)
    with zipfile.ZipFile(path) as bundle:
        infos = [info for info in bundle.infolist() if not info.is_dir()]
        tick = _Ticks(2 * len(infos), progress)
        names = Counter(info.filename for info in infos)
        for name, count in names.items():
            if count > 1:
                findings.add("warning", "member", name, "is there more than once; readers take the last one")
            if not _is_safe(name):
                findings.add("warning", "member", name, "would be unpacked outside the run: writers refuse it")
        for info in infos:
            try:
                with bundle.open(info) as member:
                    while member.read(_CHUNK):
                        pass
            except _BAD_MEMBER as error:
                findings.add("error", "checksum", info.filename, f"is damaged: {error}; its header is at byte "
                             f"{info.header_offset} of {path.name}")  # fmt: skip
            tick(info.filename)
    content = Content(source, names, findings, tick)
    _check_config(source, findings)
    seen.state = "unreadable" if content.finished is None else "finished"
    seen.metrics, seen.rows = content.metrics, content.rows
    seen.findings += findings.all


def _is_safe(member: str) -> bool:
    inside = not {"", ".", ".."} & set(member.split("/"))
    return inside and not PurePosixPath(member).is_absolute() and "\\" not in member and ":" not in member[:2]


def _look_into_folder(
    place: Place, seen: Seen, progress: Callable[[int, int, str], None] | None
) -> Folder | None:
    folder: Path = place.folder  # type: ignore[assignment]  # the caller checked
    findings = Findings(folder, f"{folder.name}/" if place.root is not None else "", repairable=True)
    files = list(_walk(folder))
    if not os.path.lexists(folder / MANIFEST):
        _check_empty(files, findings)
        seen.findings += findings.all
        return None
    source = Folder(folder)
    content = Content(source, files, findings, _Ticks(len(files), progress))
    _check_config(source, findings)
    seen.state = "unreadable" if content.finished is None else "finished" if content.finished else "unfinished"
    seen.metrics, seen.rows = content.metrics, content.rows
    seen.findings += findings.all
    return source


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(COPIES))
        inside = os.path.relpath(folder, root).replace(os.sep, "/")
        yield from (name if inside == "." else f"{inside}/{name}" for name in sorted(files))


def _check_empty(files: list[str], findings: Findings) -> None:
    """Check a folder without a manifest."""
    rows = [file for file in files if file != CONFIG and is_of_format(file)]
    for file in files:
        fix = MoveAway(findings.root / file)
        if file.endswith(TMP_SUFFIX) and is_of_format(file.removesuffix(TMP_SUFFIX)):
            findings.add("warning", "temporary", file, "is the temporary file of a writer that was killed", fix=fix)
    if rows and all(_is_first_row(findings.root / file) for file in rows):
        for file in rows:
            what = "is of a writer that was killed before it had announced its first row"
            findings.add("warning", "orphan", file, what, fix=MoveAway(findings.root / file))
    elif rows:
        count = "a file of rows is" if len(rows) == 1 else f"{len(rows)} files of rows are"
        findings.add("error", "manifest", MANIFEST, f"is missing, so no reader opens the run, but {count} there")
        return
    findings.add("note", "manifest", MANIFEST, "is not there: nothing is logged yet")


def _is_first_row(path: Path) -> bool:
    """Tell whether a column or step file holds one row at most."""
    suffix = path.suffix.removeprefix(".")
    try:
        if suffix in DTYPES:
            return path.stat().st_size <= DTYPES[suffix].itemsize
        if suffix in (INDICES_FILE, WIDE_INDICES_FILE):
            return path.stat().st_size <= step_dtype(suffix == WIDE_INDICES_FILE).itemsize
        return path.name not in (HOT, HOT_COMPACTING) and len(path.read_bytes().splitlines()) <= 1
    except OSError:
        return False


def _check_config(source: Folder | Archive, findings: Findings) -> None:
    path = source.root / CONFIG
    fix = EmptyConfig(path)
    target = os.readlink(path) if source.kind == "dir" and path.is_symlink() else None
    try:
        data = source.read(CONFIG)
    except MissingFileError:
        what = "is missing" if target is None else f"is a link to nowhere: {target}"
        findings.add("warning", "config", CONFIG, what, fix=fix)
        return
    except UNREADABLE as error:
        findings.add("error", "config", CONFIG, f"cannot be read: {error}")
        return
    _, wrong = parse_json(data)
    if wrong is not None:
        findings.add("error", "config", CONFIG, f"is not JSON: {wrong[0]}", line=wrong[1], offset=wrong[2])
    if target is not None and os.path.isabs(target):
        findings.add("note", "config", CONFIG, f"is an absolute link, lost when the run is moved: {target}")


# ---- beside it ------------------------------------------------------------------------------------


def _check_second(folder: Path, findings: Findings) -> None:
    """Check a folder beside a readable archive: a leftover, or a run of its own."""
    try:
        manifest, _ = parse_json((folder / MANIFEST).read_bytes())
        is_own = not isinstance(manifest, dict) or manifest.get("run_rows") is None
    except FileNotFoundError:
        is_own = False
    except OSError:
        is_own = True
    root = folder.parent
    is_replaced = (root / _REPLACING).exists() and not (root / (ARCHIVE + TMP_SUFFIX)).exists()
    if not is_replaced and (is_own or any((folder / log).exists() for log in (HOT, HOT_COMPACTING))):
        what = f"readers see {ARCHIVE} only, but this folder has rows of its own; writers refuse to choose"
        findings.add("warning", "twice", folder.name, what)
    else:
        what = f"is what a killed writer left when {ARCHIVE} took its place; readers see that only"
        findings.add("warning", "twice", folder.name, what, fix=MoveAway(folder))


def _check_beside(place: Place, findings: Findings, *, is_readable: bool) -> None:
    root: Path = place.root  # type: ignore[assignment]  # the caller checked
    for name in _names(root):
        path = root / name
        if name == ARCHIVE + TMP_SUFFIX:
            what = "is an archive that a killed writer did not get to publish"
            findings.add("warning", "temporary", name, what, fix=MoveAway(path))
        elif name == _REPLACING:
            # behind the folder that it speaks of, so that this goes first
            what = "is the mark of a writer that was killed while it replaced the run"
            findings.add("warning", "temporary", name, what, fix=MoveAway(path))
        elif name.startswith(COPIES):
            findings.add("note", "copies", name, "holds what a repair took away; remove it when nobody misses that")
        elif name.startswith(_STAGING) and path.is_dir():
            _check_staging(place, path, findings, is_readable=is_readable)
        elif name == _FOLLOWERS and path.is_dir():
            _check_followers(path, findings)


def _check_staging(place: Place, path: Path, findings: Findings, *, is_readable: bool) -> None:
    if is_readable:
        what = "is where a killed writer prepared its output"
        findings.add("warning", "staging", path.name, what, fix=MoveAway(path))
        return
    what = "is where a killed writer prepared its output, and there is no readable run beside it"
    for prepared, name in _prepared(path):
        target = path.parent / name
        inside = os.path.relpath(prepared, path.parent)
        if not os.path.lexists(target):
            what += f"; {inside} is whole"
            findings.add("error", "staging", path.name, what, fix=Publish(prepared, target))
            return
    findings.add("error", "staging", path.name, f"{what}; nothing in it is whole")


def _prepared(staging: Path) -> Iterator[tuple[Path, str]]:
    """Yield whole runs that a writer had prepared or put aside, with the names under which readers look for them."""
    # what was to come, before what was there
    names = sorted(_names(staging), key=lambda name: name.startswith("previous"))
    for path in (*(staging / name for name in names), staging):
        place = Place(path, None, path, None) if path.is_dir() else Place(path, None, None, path)
        if place.folder is not None and not (path / MANIFEST).is_file():
            continue
        seen = look(place, None)
        is_whole = seen.state == "finished" or path.name.startswith("previous")
        if is_whole and not any(finding.severity == "error" for finding in seen.findings):
            yield path, METRIC_DIR if place.folder is not None else ARCHIVE


def _check_followers(folder: Path, findings: Findings) -> None:
    for name in _names(folder):
        key, _, suffix = name.partition(".")
        lock = folder / f"{key}.lock"
        file = f"{folder.name}/{name}"
        if suffix == "job":
            state = _follower_state(folder / f"{key}.json")
            delivered = state.get("delivered") if isinstance(state.get("delivered"), int) else 0
            error = f"; the last error was {state['error']!r:.200}" if state.get("error") else ""
            doing = "a follower is at work on it" if is_locked(lock) else "plattli send delivers the rest"
            what = f"{key.partition('-')[2] or key} has received {delivered} lines, and is not done: {doing}{error}"
            findings.add("note", "follower", file, what)
        elif name.endswith(TMP_SUFFIX) and not is_locked(lock):
            findings.add(
                "warning", "follower", file, "is the temporary file of a follower that was killed",
                fix=MoveAway(folder / name),
            )  # fmt: skip


def _follower_state(path: Path) -> dict[str, Any]:
    try:
        state, _ = parse_json(path.read_bytes())
    except OSError:
        return {}
    return state if isinstance(state, dict) else {}
