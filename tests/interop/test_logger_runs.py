"""What PlattliLogger writes, the reference reads and continues: whole, cut short by a kill anywhere, or resumed."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from loggers import PlattliLogger
from tests.interop.points import highest_step, points
from tests.interop.readers import Readers, is_inserting
from tests.interop.workers import Worker
from tests.killing import run_killed
from tests.test_loggers.test_plattli_logger_death import killed_after

Acknowledge = Callable[[object], None]


def log_something(run: Path, acknowledge: Acknowledge, seed: int) -> None:
    """Log in all the ways there are: late, joined and repeated points, promotions, JSON, a resume, an end."""
    dice = random.Random(seed)
    floats: Literal["exact", "f32", "f64"] = dice.choice(["exact", "exact", "f32", "f64"])
    logger = PlattliLogger(run, hotsize=dice.choice([1, 3, 6]), floats=floats)
    logger.log_params({"lr": 0.1, "model": {"layers": [1, 2]}, "none": float("nan")})
    acknowledge("params")
    widened = dice.randrange(4, 12)
    for step in range(1, dice.randrange(12, 24)):
        line: dict[str, Any] = {"loss": step / 7 if step > widened else float(step), "n": step}
        if step > widened:
            line["n"] = step + 0.5
            line["big"] = 2**63 + step if floats == "exact" and seed % 2 else -step
        if dice.random() < 0.2:
            line["note"] = {"step": step, "odd": [None, float("inf"), 2**64 - 1]}
        logger.log_metrics(line, step=step, epoch=step // 5, walltime=1.5e9 + step / 3)
        acknowledge(step)
        match dice.randrange(12):
            case 0 | 1:
                logger.log_metrics({"loss": np.float32(0.1), "acc": step}, step=step, context="validate", walltime=1.0)
            case 2:
                logger.log_metrics({"late": step}, step=dice.randrange(step), context="data", walltime=2.0)
            case 3:
                logger.log_metrics({"loss": -1.0}, step=dice.randrange(step), walltime=3.0)
            case 4:
                logger.log_confusion([[1, 2], [0, 3]], ["a", "b"], epoch=1, context="validate")
            case 5:
                logger.log_other("report", "text" if dice.random() < 0.5 else {"step": [step, step]})
            case 6:
                state = logger.logger_state()
                for lost in range(step + 1, step + 4):
                    logger.log_metrics({"loss": 9.0, "lost": lost}, step=lost, walltime=4.0)
                logger = PlattliLogger(run, hotsize=2, floats=floats)
                logger.reattach(state)
            case 7:
                logger.log_tags(["even" if step % 2 else "odd"])
    logger.finish(dice.choice(["completed", "interrupted"]))
    acknowledge("finished")


@pytest.mark.parametrize("seed", range(60))
def test_a_logger_s_run_is_read_and_continued(tmp_path: Path, readers: Readers, seed: int) -> None:
    """At its end, from its middle, and with nothing of it left."""
    run = tmp_path / "run"
    log_something(run, lambda fact: None, seed)
    end = highest_step(readers.points(run)) + 1
    for step in (end, end + 7, end // 2, 0):
        copy = tmp_path / str(step) / "run"
        shutil.copytree(run, copy)
        readers.is_continued(copy, step, step)


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_logger_s_run_is_read_and_continued(
    tmp_path: Path, readers: Readers, ours: Worker, seed: int
) -> None:
    """Killed at every few file operations: what a Reader sees stays, and new rows come behind it."""
    stride = 11
    for at in itertools.count(1 + seed, stride):
        folder = tmp_path / str(at)
        run = folder / "run"
        acknowledged, done = run_killed(partial(log_something, run, seed=seed), at)
        if (run / "plattli" / "plattli.json").exists() or (run / "metrics.plattli").exists():
            seen = readers.points(run)
            steps = [int(fact) for fact in acknowledged if fact.isdigit()]
            assert set(steps) <= seen.get("train/loss", {}).keys() | {0}, at
            if (run / "metrics.plattli").exists():
                shutil.rmtree(run / "plattli", ignore_errors=True)  # the reference refuses to have both
            end = highest_step(seen) + 1
            if is_inserting(run, points(readers.read(run, exclude_hot=True))):
                opening = {"step": str(end), "hotsize": "3", "config": "None"}
                ours.ask("play", root=str(run), ops=[], end=["leave"], opening=opening)
                assert readers.points(run) == seen, at
            readers.is_continued(run, end, at)
        shutil.rmtree(folder, ignore_errors=True)
        if done:
            break
    assert at > 10 * stride


def test_what_a_kill_at_full_speed_leaves_reads_alike(tmp_path: Path, readers: Readers) -> None:
    """Killed over and over while it logs, compacts, and resumes; that it is right is for the logger's own test."""
    dice = random.Random(11)
    run = tmp_path / "run"
    state: Any = None
    read = 0
    for attempt in range(1, 151):
        lines = dice.randrange(120)
        said = killed_after(run, state, attempt, lines, dice.randrange(2_000))
        told = [fact for fact in map(json.loads, said) if isinstance(fact, dict)]
        state = dice.choice([state, *told]) if told else state
        if (run / "plattli" / "plattli.json").exists():
            readers.read(run)
            read += 1
    assert read > 100
