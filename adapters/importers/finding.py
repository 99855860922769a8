"""What kind of source a path is, told by its content, and which runs are in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from adapters.importers import group, json_lines, koochak, table, tensorboard, wandb
from adapters.importers.items import ImportingError, Source
from plattli.runs import is_run


class Importer(Protocol):
    """What each module of an importer has."""

    @property
    def WHAT(self) -> str:
        """What it imports, for people."""

    def matches(self, path: Path) -> bool:
        """Return whether a file is one."""

    def below(self, directory: Path) -> list[Path]:
        """Return the files in a directory that are."""

    def sources(self, files: list[Path], root: Path) -> list[Source]:
        """Return the runs in some files; their names are relative to ``root``."""


#: The kinds, those first that are told for certain.
KINDS: Final[Mapping[str, Importer]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "group": group,
    "jsonl": json_lines,
    "koochak": koochak,
    "csv": table,
}
#: First bytes of what is met instead, and what to do about it.
_OTHERS: Final = (
    (b"SQLite format 3", "an SQLite database (MLflow and Trackio keep runs in one): there is no importer for it"),
    (b"PK\x03\x04", "a zip archive: unpack it, and name what is in it"),
    (b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (b"\x89HDF\r\n", "an HDF5 file: there is no importer for it"),
    (b"PAR1", "a Parquet file: there is no importer for it, but write it as CSV"),
    (b"[", "one JSON document: write its rows as JSON Lines, one object a line"),
)


def find_sources(path: Path, kind: str | None = None) -> list[Source]:
    """Return the runs at a path.

    Args:
        path: a file, or a directory with one or more runs in it.
        kind: one of :data:`KINDS`; by default what the content looks like.

    Raises:
        ImportingError: there are none; says what is there instead.
        ImportError: the package that reads it is not installed.
    """
    if not path.exists():
        raise ImportingError(f"{path}: no such file or directory")
    if kind is None and is_run(path):
        raise ImportingError(
            f"{path} is a Plättli run already, which `plattli replay` copies; to import other files that lie in it, "
            f"name them, or say their kind with --from"
        )
    if path.is_dir():
        return _in_directory(path, kind)
    found = kind or next((name for name, each in KINDS.items() if each.matches(path)), None)
    if found is None:
        raise ImportingError(f"{path} is {_looks_like(path)}; {_known()}")
    if kind is not None and not KINDS[kind].matches(path):
        raise ImportingError(f"{path} is no file of {KINDS[kind].WHAT}, but {_looks_like(path)}")
    return KINDS[found].sources([path], path.parent)


def _in_directory(path: Path, kind: str | None) -> list[Source]:
    wanted = KINDS if kind is None else {kind: KINDS[kind]}
    found = {name: files for name, each in wanted.items() if (files := each.below(path))}
    if len(found) > 1:
        each_kind = "; ".join(f"{name}: {len(files)}, such as {files[0]}" for name, files in found.items())
        raise ImportingError(f"{path} holds files of several kinds ({each_kind}): say which with --from, or name one")
    if not found:
        names = sorted(child.name for child in path.iterdir())
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        has = (", ".join(map(repr, names[:8])) or "nothing") + more
        what = "anything" if kind is None else KINDS[kind].WHAT
        raise ImportingError(f"{path} is a directory without {what} to import: it has {has}; {_known()}")
    ((name, files),) = found.items()
    return KINDS[name].sources(files, path)


def _known() -> str:
    return "there are importers of " + ", ".join(f"{each.WHAT} ({name})" for name, each in KINDS.items())


def _looks_like(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        return "empty"
    for magic, what in _OTHERS:
        if head.startswith(magic):
            return what
    kind = "a binary file" if any(byte < 9 for byte in head) else "a text"
    return f"{kind} that begins with {head[:24]!r}"
