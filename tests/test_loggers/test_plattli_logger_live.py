"""A reader beside a PlattliLogger at full speed, through everything that can happen to a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loggers import PlattliLogger
from plattli import Reader
from plattli.errors import NotARunError, UnstableRunError
from plattli.runinfo import run_info
from plattli.runs import resolve_run_dir
from tests.test_loggers.plattli_runs import fork, stored

STEPS = 100_000
BACK, AT, ENDED = 8_000, 10_000, 14_000


def value_of(name: str, steps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Every metric's value is a function of its step, so a wrong point shows."""
    if name == "train/n":
        return steps + np.where(steps >= 7_000, 0.5, 0)
    if name == "train/tenth":
        return steps / 10
    return steps * 0.5


def write(run: Path, say: Callable[[str], None]) -> None:
    def log(lgr: PlattliLogger, first: int, last: int) -> None:
        for step in range(first, last + 1):
            line: dict[str, Any] = {"loss": step * 0.5, "n": step + 0.5 if step >= 7_000 else step}
            if step % 7 == 0:
                line["tenth"] = step / 10
            if step % 3 == 0:
                line["holes"] = step * 0.5
            if step % 1_000 > 900:
                line[f"new{step // 2_000}"] = step * 0.5
            lgr.log_metrics(line, step=step)
            if step % 50 == 0:
                lgr.log_metrics({"loss": step * 0.5}, step=step, context="validate")
                lgr.log_metrics({"loss": (step - 20) * 0.5}, step=step - 20, context="late")
                if step % 1_000 == 0:
                    lgr.log_metrics({"holes": (step - 500) * 0.5}, step=step - 500)
                say(str(step))

    lgr = PlattliLogger(run, walltime=False, hotsize=100)
    log(lgr, 1, BACK)
    state = lgr.logger_state()
    log(lgr, BACK + 1, AT)
    say("cutting")
    lgr.reattach(state)
    say(str(BACK))
    log(lgr, BACK + 1, ENDED)
    state = lgr.logger_state()
    lgr.finish("interrupted")
    lgr = PlattliLogger(run, walltime=False, hotsize=100)
    lgr.reattach(json.loads(json.dumps(state)))
    log(lgr, ENDED + 1, STEPS)
    lgr.finish("completed")
    say("completed")


class Progress:
    """What the writer has acknowledged, without waiting for it."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._text = b""
        #: the last step that is surely there; 0 while a cut is going on
        self.step = 0
        self.cuts = 0
        self.completed = False
        self.ended = False

    def look(self) -> None:
        while True:
            try:
                data = os.read(self._pipe, 65536)
            except BlockingIOError:
                return
            if not data:
                self.ended = True
                return
            *lines, self._text = (self._text + data).split(b"\n")
            for line in lines:
                assert not line.startswith(b"failed"), line.decode()
                if line == b"completed":
                    self.completed = True
                elif line == b"cutting":
                    self.step, self.cuts = 0, self.cuts + 1
                else:
                    self.step = int(line)


def check(reader: Reader, sure: int) -> None:
    """Look at every point of a run; at least those up to step ``sure`` are there."""
    for name in reader.metrics():
        steps, values = reader.metric(name)
        assert (np.diff(steps.astype(np.int64)) > 0).all(), f"{name}: a point is doubled or out of order"
        wrong = np.flatnonzero(values != value_of(name, steps.astype(np.int64)))
        assert not len(wrong), (name, steps[wrong[:5]], values[wrong[:5]])
        if name == "train/loss":
            assert steps[:sure].tolist() == list(range(1, sure + 1))
        elif name == "train/holes":
            late = range(500, sure - 499, 1_000)
            assert {*range(3, sure + 1, 3), *late} <= set(steps.tolist())
        elif name == "validate/loss":
            assert len(steps) >= sure // 50


def test_a_reader_beside_a_live_run(tmp_path: Path) -> None:
    """100,000 steps with compaction, promotion, new metrics, late points, two reattachs and finish.

    No read ever raises, unless a reader says that the run changed too often to be read; none ever misses a point
    that was acknowledged before it began, or shows one twice or with another value.
    """
    run = tmp_path / "run"
    pid, pipe = fork(lambda say: write(run, say))
    progress = Progress(pipe)
    kept: Reader | None = None
    reads = {"kept": 0, "fresh": 0, "info": 0}
    unstable = 0
    while not progress.ended:
        progress.look()
        sure, cuts = progress.step, progress.cuts
        for kind in reads:
            try:
                if kind == "info":
                    assert run_info(run).status in ("running", "interrupted", "completed")
                elif kind == "fresh":
                    with Reader(run) as fresh:
                        look(fresh, sure, cuts, progress)
                elif kept is None:
                    kept = Reader(run)
                else:
                    kept.refresh()
                    look(kept, sure, cuts, progress)
                reads[kind] += 1
            except NotARunError:
                assert sure == 0, "a run that was there has gone"
                assert kept is None
            except UnstableRunError:
                unstable += 1
    os.close(pipe)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert progress.completed
    assert min(reads.values()) > 5, reads
    assert unstable < sum(reads.values()) / 10
    assert kept is not None
    kept.refresh()
    assert kept.kind == "zip"
    check(kept, STEPS)
    assert kept.rows("train/loss") == STEPS
    kept.close()
    assert list(stored(run)["late/loss"]) == list(range(30, STEPS, 50))


def look(reader: Reader, sure: int, cuts: int, progress: Progress) -> None:
    """Check a run; if a cut began meanwhile, what was sure is so no longer."""
    try:
        check(reader, sure)
    except AssertionError:
        progress.look()
        if progress.cuts == cuts:
            raise
        check(reader, 0)


def test_a_run_that_is_archived_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds no archive, and then no folder any more, looks for the archive again."""
    run = tmp_path / "run"
    lgr = PlattliLogger(run, walltime=False)
    lgr.log_metrics({"loss": 0.5}, step=1)

    def overtaken(root: Path) -> Path | None:
        lgr.finish("completed")
        return resolve_run_dir(root)

    monkeypatch.setattr("plattli.runs.resolve_run_dir", overtaken)
    with Reader(run) as reader:
        assert reader.kind == "zip"
        assert reader.metric_values("train/loss").tolist() == [0.5]
