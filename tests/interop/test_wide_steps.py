"""What the reference makes of runs with steps above 2**32 - 1: it refuses those metrics, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from plattli.rows import RowWriter
from tests.interop.points import points
from tests.interop.workers import Worker
from tests.killing import every_kill
from tests.test_plattli.test_wide_steps import MODEL, WRITERS, files, stored, write_model

FIRST = 2**32
STATES = ["hot", "compacted", "direct", "folder", "zip", "folder as it is", "zip as it is"]


def make(run: Path, state: str) -> None:
    """Make a run with the metrics ``a`` and ``j``, which have wide steps, and ``low``, which has none."""
    kind = {"hot": "compacting, hot", "compacted": "compacting, compacted", "direct": "direct"}.get(state, "bulk")
    writer = WRITERS[kind](run)
    write_model(writer)
    if kind == "bulk":
        writer.finish(zip=state.startswith("zip"), optimize="as it is" not in state)
    writer.close()


@pytest.mark.parametrize("state", STATES)
def test_the_reference_refuses_the_metrics_and_reads_the_others(tmp_path: Path, reference: Worker, state: str) -> None:
    """Every read of theirs is an error, whether it looks at hot rows or not; none returns data."""
    make(tmp_path / "run", state)
    if state == "compacted":
        assert (tmp_path / "run" / "plattli" / "hot.jsonl").exists()

    for exclude_hot in (False, True):
        seen = reference.ask("read", root=str(tmp_path / "run"), exclude_hot=exclude_hot)

        for name in ("a", "j"):
            assert seen["metrics"][name]["error"], seen["metrics"][name]
        others = points({"metrics": {"low": seen["metrics"]["low"]}})["low"]
        whole = {step: repr(value) for step, value in MODEL["low"].items()}
        if not exclude_hot or state not in ("hot", "compacted"):
            assert others == whole
        else:
            assert others.items() <= whole.items()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("writer", ["CompactingWriter", "DirectWriter"])
def test_the_writers_of_the_reference_refuse_the_run(
    tmp_path: Path, reference: Worker, state: str, writer: str
) -> None:
    """Wherever they are to go on, they change no file; an archive they unpack first, and nothing is lost of it."""
    make(tmp_path / "made", state)
    for step in (0, 3, FIRST - 1):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(tmp_path / "made", run)
        opening: dict[str, Any] = {"writer": writer, "step": str(step), "config": "None"}
        opening |= {"allow_resume_finalized": "True"} | ({"hotsize": "2"} if writer == "CompactingWriter" else {})

        outcomes = reference.ask("play", root=str(run), ops=[], end=["leave"], opening=opening)

        assert len(outcomes) == 1, outcomes
        assert outcomes[0]["error"], outcomes
        if state.startswith("zip"):
            assert stored(run) == MODEL
        else:
            assert files(run) == files(tmp_path / "made")
            assert stored(run) == MODEL


@pytest.mark.parametrize("irregular", [False, True])
def test_the_reference_misreads_nothing_that_a_kill_leaves(
    tmp_path: Path, reference: Worker, irregular: bool
) -> None:
    """At each file operation on the way over the boundary: rows as they were logged, or an error."""
    early = [i * i for i in range(9)] if irregular else list(range(4))
    rows = [*early, FIRST - 1, FIRST, FIRST + 1, FIRST + 5]

    def write_rows(run: Path, acknowledge: Any) -> None:
        writer = RowWriter(run, hotsize=2)
        for step in rows:
            writer.append(step, ("a",), (step,))
            writer.settle()
            acknowledge(step)
        writer.finish(zip=False)

    errors = 0
    for n, run, acknowledged in every_kill(write_rows, tmp_path):
        done = [int(step) for step in acknowledged]
        if not done:
            continue
        seen = reference.ask("read", root=str(run))["metrics"]["a"]
        if "error" in seen:
            errors += 1
            assert rows[: len(done) + 1][-1] >= FIRST, (n, done, seen)
            continue
        found = points({"metrics": {"a": seen}})["a"]
        assert list(found) == list(found.values()), n
        assert list(found) in (done, rows[: len(done) + 1]), n
        assert max(found) < FIRST
    assert errors > 20
