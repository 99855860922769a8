"""A path where nothing can ever be written is a mistake that the first verb tells, not a disk that may come back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loggers import CSVLogger, JSONLogger, PathError, PlattliLogger, TrainingSession

LOGGERS = pytest.mark.parametrize("kind", [PlattliLogger, JSONLogger, CSVLogger])
VERBS: dict[str, Callable[[Any], None]] = {
    "log_metrics": lambda logger: logger.log_metrics({"loss": 0.5}, step=1),
    "log_params": lambda logger: logger.log_params({"lr": 0.1}),
    "log_tags": lambda logger: logger.log_tags("seen"),
    "log_other": lambda logger: logger.log_other("note", 1),
    "log_confusion": lambda logger: logger.log_confusion([[1]], ["a"], step=1),
    "finish": lambda logger: logger.finish("completed"),
}
#: below a folder with a file, a link to itself and a folder -> what the message says
WRONG = {
    "file/run": "(Not a directory: .*|file is a file, and a folder has to be there)",
    "file/deep/run": "Not a directory",
    "n" * 300: "File name too long",
    "loop/run": "Too many levels of symbolic links",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("here already")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    return tmp_path


def everything(place: Path) -> list[str]:
    return sorted(os.listdir(place)) + sorted(os.listdir(place / "folder")) + [(place / "file").read_text()]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("path", WRONG)
@LOGGERS
def test_the_first_verb_raises(place: Path, kind: Callable[[Path], Any], path: str, verb: str) -> None:
    """Whichever it is, and the next one too; nothing is written, and nothing waits."""
    before = everything(place)
    logger = kind(place / path)
    for _ in range(2):
        with pytest.raises(PathError, match=f"can never be written: .*{WRONG[path]}.*give the logger another path"):
            VERBS[verb](logger)

    assert logger.logger_info()["waiting"] == 0
    assert everything(place) == before


@pytest.mark.parametrize(
    ("kind", "path", "what"),
    [
        (PlattliLogger, "file", "file is a file, and a folder has to be there"),
        (PlattliLogger, "loop", "Too many levels"),
        (JSONLogger, "folder", "Is a directory"),
        (CSVLogger, "folder", "Is a directory"),
    ],
)
def test_something_else_is_in_the_place(place: Path, kind: Callable[[Path], Any], path: str, what: str) -> None:
    """A file where the run's folder has to be, or the other way round."""
    with pytest.raises(PathError, match=what):
        kind(place / path).log_metrics({"loss": 0.5}, step=1)


@LOGGERS
def test_it_can_be_moved_away(place: Path, kind: Callable[[Path], Any]) -> None:
    """The same logger begins then."""
    logger = kind(place / "file" / "run")
    with pytest.raises(PathError):
        logger.log_metrics({"loss": 0.5}, step=1)
    (place / "file").unlink()
    logger.log_metrics({"loss": 0.25}, step=2)
    logger.finish("completed")

    assert (place / "file" / "run").exists()


@LOGGERS
@pytest.mark.filterwarnings("ignore:.* rows are not there any more")  # they are where the folder is
def test_a_path_that_has_worked_is_waited_for(place: Path, kind: Callable[[Path], Any]) -> None:
    """A training that has come far does not end for a file in the wrong place."""
    folder = place / "folder" / "deep"
    logger = kind(folder / "run")
    logger.log_params({"lr": 0.1})
    logger.log_metrics({"loss": 0.5}, step=1)
    if hasattr(logger, "close"):
        logger.close()
    folder.rename(place / "away")
    folder.write_text("in its place")
    with pytest.warns(RuntimeWarning, match="the disk takes (nothing|lines again)"):
        for step in range(2, 1000):
            logger.log_metrics({"loss": 0.25}, step=step)
            if logger.logger_info()["waiting"]:
                break
        folder.unlink()
        (place / "away").rename(folder)
        logger.finish("completed")


@LOGGERS
def test_a_session_leaves_it_at_that(place: Path, kind: Callable[[Path], Any]) -> None:
    """One error, without a second one of the run that cannot be finished either."""
    session = TrainingSession(kind(place / "file" / "run"), params={"lr": 0.1})
    with pytest.raises(PathError) as caught, session:
        pytest.fail("the block must not be entered")

    assert not hasattr(caught.value, "__notes__")
