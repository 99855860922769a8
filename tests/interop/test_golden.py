"""Runs that the reference wrote, some of them damaged: continued and finished by ours, read by the reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.interop.points import Points, added, before, highest_step, points
from tests.interop.workers import ROOT, Worker, differences

GOLDEN = ROOT / "tests" / "golden"
MAX_STEP = 2**32 - 1
#: Nothing to go on with, and why.
UNREADABLE = {
    "bad_manifest_name": "a name that leads out of the folder",
    "hot_corrupt_middle": "a hot row that is none",
    "config_only_not_a_run": "no run yet",
}
#: Steps that go back, which have no middle.
UNSORTED = {"steps_backwards_direct"}
#: A finished run's hot rows, which Readers ignore, come back to life in a resume behind them: the reference's too.
REVIVED = {"hot_with_run_rows_ignored": (9, {"a": 9.0})}
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))
CONTINUED = [
    (case, where)
    for case in CASES
    for where in ("end", "gap", "middle")
    if case not in UNREADABLE and not (where == "middle" and case in UNSORTED)
]


def placed(case: str, folder: Path) -> Path:
    """Copy a golden run; return its root."""
    source = GOLDEN / case / json.loads((GOLDEN / case / "expected.json").read_text())["path"]
    root = folder / "run"
    if source.is_dir():
        shutil.copytree(source, root, symlinks=True)
    else:
        root.mkdir()
        shutil.copy(source, root / "metrics.plattli")
    return root


def readable(description: Any, damaged: set[str]) -> Points:
    """Return the points of all metrics but some."""
    metrics = {name: metric for name, metric in description["metrics"].items() if name not in damaged}
    return points({"metrics": metrics})


@pytest.mark.parametrize(("case", "where"), CONTINUED)
def test_a_golden_run_is_continued(tmp_path: Path, ours: Worker, reference: Worker, case: str, where: str) -> None:
    """The reference reads what it read before, up to the step of the resume, and what was added."""
    root = placed(case, tmp_path)
    seen = reference.ask("read", root=str(root))
    # a metric that cannot be read stays that way, or is without rows from now on
    damaged = {name for name, metric in seen["metrics"].items() if "error" in metric}
    old = readable(seen, damaged)
    end = highest_step(old) + 1
    step = min({"end": end, "gap": end + 50, "middle": end // 2}[where], MAX_STEP)
    if case in REVIVED and where == "gap":
        old = added(old, [REVIVED[case]])
    old = before(old, step)
    rows = [(step + i, {"added/a": i, "added/b": i / 2}) for i in range(7) if step + i <= MAX_STEP]
    ops: list[list[Any]] = []
    for _, row in rows:
        ops += [["write", {name: repr(value) for name, value in row.items()}, False], ["end_step"]]
    opening = {"step": str(step), "hotsize": "3", "config": "None", "allow_resume_finalized": "True"}
    finish = ["finish", {"optimize": True, "zip": where != "gap", "config_overrides": "None"}]

    outcomes = ours.ask("play", root=str(root), ops=ops, end=finish, opening=opening)

    assert outcomes == [None] * (len(ops) + 2)
    theirs = reference.ask("read", root=str(root))
    assert readable(theirs, damaged) == added(old, rows)
    assert theirs["config"] == seen["config"]
    assert not list(differences(ours.ask("read", root=str(root)), theirs))


@pytest.mark.parametrize("case", sorted(UNREADABLE))
def test_what_cannot_be_read_is_not_continued_in_silence(tmp_path: Path, ours: Worker, case: str) -> None:
    """Opening it says so, or (where nothing is there yet) begins a run."""
    root = placed(case, tmp_path)
    opening = {"step": "1000", "hotsize": "3", "config": "None", "allow_resume_finalized": "True"}

    outcomes = ours.ask("play", root=str(root), ops=[], end=["leave"], opening=opening)

    assert (outcomes[0] is None) == (case == "config_only_not_a_run"), outcomes


def test_the_cases_are_there() -> None:
    """No golden run went missing."""
    assert len(CASES) == 60
    assert set(CASES) >= UNREADABLE.keys() | UNSORTED
