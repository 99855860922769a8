"""Metric names are file paths: which new names fit beside those that are there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Iterable
from typing import Final

from plattli._columns import SUFFIXES
from plattli._format import CONFIG, HOT, HOT_COMPACTING, MANIFEST, TMP_SUFFIX, check_name
from plattli.errors import MetricNameError

#: Longest file name that common file systems take, less the longest suffix of ours.
MAX_PART: Final = 255 - len(".indices.tmp")
#: Files of the folder that a metric must not turn into a directory.
_OWN_FILES: Final = frozenset(
    name + end for name in (MANIFEST, CONFIG, HOT, HOT_COMPACTING) for end in ("", TMP_SUFFIX)
)
_ENDINGS: Final = tuple(f".{suffix}{end}" for suffix in SUFFIXES for end in ("", TMP_SUFFIX))


#: Characters, device names and endings that Windows and the shares it serves cannot store.
_UNPORTABLE: Final = re.compile(
    r'[<>:"|?*\x00-\x1f]|[. ](?:/|$)|(?:^|/)(?:con|prn|aux|nul|com\d|lpt\d)(?:[./]|$)', re.IGNORECASE
)


class PathNames:
    """The names of a run's metrics, and the folders that their files need."""

    def __init__(self, names: Iterable[str] = (), *, folds: Callable[[], bool] = lambda: False) -> None:
        """Take names in.

        Args:
            names: those that are there.
            folds: tells whether the file system takes names that differ in case, or in how Unicode
                composes a letter, for one; asked once, and only when two names do.
        """
        self._folds = folds
        self._twins: dict[str, str] = {}
        self._names: set[str] = set()
        self._folders: set[str] = set()
        for name in names:
            self.add(name)

    def beside(self) -> PathNames:
        """Return an empty set of names for the same file system."""
        return PathNames(folds=self._folds)

    def add(self, name: str) -> None:
        """Take a checked name in."""
        self._names.add(name)
        self._folders.update(_folders(name))
        self._twins.setdefault(folded(name), name)

    def check(self, name: object, run: str) -> None:
        """Refuse a new name whose files could not be made beside the others.

        Raises:
            MetricNameError: the format forbids it, a part is too long, or a path would have to be
                both a file and a folder.
        """
        checked = check_name(name, run)
        if any(len(part.encode()) > MAX_PART for part in checked.split("/")):
            raise MetricNameError(
                f"metric name {checked[:60]!r}… has a part of more than {MAX_PART} bytes, which file systems "
                f"cannot store (run {run!r})"
            )
        twin = self._twins.get(folded(checked), checked)
        if twin != checked and self._folds():
            raise MetricNameError(
                f"metric names {checked!r} and {twin!r} are one file on this file system (run {run!r}): "
                f"choose names that differ in more than case"
            )
        if (clash := self._clash(checked)) is not None:
            raise MetricNameError(
                f"metric name {checked!r} needs {clash!r} to be both a file and a folder (run {run!r}): "
                f"choose another one"
            )

    def _clash(self, name: str) -> str | None:
        for folder in _folders(name):
            if folder in _OWN_FILES or _is_file_of(folder, self._names):
                return folder
        return next((name + ending for ending in _ENDINGS if name + ending in self._folders), None)


def folded(name: str) -> str:
    """Return what a name and its twins on a file system that folds case and Unicode forms have in common."""
    return name if name.isascii() and name.islower() else unicodedata.normalize("NFC", name).casefold()


def unportable(name: str) -> bool:
    """Tell a name that some other system could not store."""
    return _UNPORTABLE.search(name) is not None


def _is_file_of(path: str, names: Container[str]) -> bool:
    return any(path.endswith(ending) and path.removesuffix(ending) in names for ending in _ENDINGS)


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
