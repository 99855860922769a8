"""Runs that were cut again and again: TensorBoard's servers and its accumulator show what is left, and nothing else.

There are ``PLATTLI_TENSORBOARD_RUNS`` runs, 20 unless the environment says otherwise.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters import TensorBoardLogger
from tests.test_adapters.tensorboard_files import Files, Server, poll, serve

FAST = {"fast": True, "python": False}
RUNS = int(os.environ.get("PLATTLI_TENSORBOARD_RUNS", "20"))

Points = dict[str, dict[int, Any]]


class Story:
    """A run that is logged, killed, finished and resumed at random, and what of it has to be left.

    Lines of two contexts come in the order of their steps within a context, texts at the current step. A resume
    is from any state of what is left, as from a checkpoint, which may be far behind.
    """

    def __init__(self, run: Path, seed: int) -> None:
        self._run, self._random = run, random.Random(seed)
        self._logger = TensorBoardLogger(run)
        self._values = iter(range(1, 10_000))
        self._steps = {"train": -1, "validate": -1}
        self._states: list[Any] = []
        self.scalars: Points = {}
        self.texts: Points = {}
        for _ in range(self._random.randrange(5, 60)):
            self._random.choices((self._line, self._text, self._save, self._resume), (6, 2, 1, 2))[0]()
        self._line()

    def _line(self) -> None:
        context = self._random.choice(("train", "train", "validate"))
        step = max(self._steps[context] + self._random.randrange(1, 4), 0)
        if context == "validate":  # as drivers do, at a step that was trained before
            step = max(min(step, self._steps["train"]), self._steps[context], 0)
        row = {name: float(next(self._values)) for name in self._random.sample("abcd", 2)}
        self._logger.log_metrics(row, step=step, context=context)
        for name, value in row.items():
            self.scalars.setdefault(f"{context}/{name}", {})[step] = value
        self._steps[context] = step

    def _text(self) -> None:
        tag, words = f"other/{self._random.choice('xy')}", f"v{next(self._values)}"
        self._logger.log_other(tag.removeprefix("other/"), words)
        self.texts.setdefault(tag, {})[max(0, *self._steps.values())] = words

    def _save(self) -> None:
        self._states.append((self._logger.logger_state(), copy.deepcopy((self.scalars, self.texts, self._steps))))

    def _resume(self) -> None:
        if not self._states:
            return
        if self._random.random() < 0.3:
            self._logger.finish(self._random.choice(("completed", "error")))
        chosen = self._random.randrange(len(self._states))
        state, before = self._states[chosen]
        del self._states[chosen + 1 :]  # what came after is gone, and so are its states
        self._logger = TensorBoardLogger(self._run)
        self._logger.reattach(state)
        self.scalars, self.texts, self._steps = copy.deepcopy(before)


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Story]:
    """Return the runs, by their directories."""
    root = tmp_path_factory.mktemp("stories")
    return {root / f"{seed}": Story(root / f"{seed}", seed) for seed in range(RUNS)}


@pytest.fixture(params=FAST)
def server(request: pytest.FixtureRequest, stories: dict[Path, Story], tmp_path: Path) -> Iterator[Server]:
    """Return a server that shows the runs."""
    with serve(next(iter(stories)).parent, tmp_path / "log", fast=FAST[request.param]) as running:
        yield running


def test_servers_show_what_is_left(server: Server, stories: dict[Path, Story]) -> None:
    """Every point that was kept, and no other."""
    for run, story in stories.items():
        scalars: Points = {}
        with contextlib.suppress(TimeoutError):  # a server says which runs there are before it has read them
            poll(lambda run=run, story=story, found=scalars: read(server, run.name, found) == story.scalars, 10)
        assert scalars == story.scalars, run
        for tag, texts in story.texts.items():
            html = {step: f"<p>{words}</p>" for step, words in texts.items()}
            assert dict(server.texts(run.name, tag)) == html, (run, tag)


def read(server: Server, run: str, found: Points) -> Points:
    """Put the points that a server shows into ``found``, and return it."""
    found.clear()
    found.update({tag: dict(server.scalars(run, tag)) for tag in server.tags(run)})
    return found


def test_the_accumulator_shows_what_is_left(stories: dict[Path, Story]) -> None:
    """Tools that read event files agree."""
    for run, story in stories.items():
        files = Files(run)
        assert {tag: dict(files.scalars(tag)) for tag in files.tags()} == story.scalars, run
        assert {tag: dict(files.texts(tag)) for tag in story.texts} == story.texts, run
