"""Both Readers, which must say the same; and a run that the reference goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.points import Points, added, before, points
from tests.interop.respelling import respell
from tests.interop.workers import Worker, differences


class Readers:
    """Both, which must say the same."""

    def __init__(self, ours: Worker, reference: Worker) -> None:
        self.ours, self.reference = ours, reference

    def read(self, run: Path, *, exclude_hot: bool = False) -> Any:
        arguments = {"root": str(run), "exclude_hot": exclude_hot}
        mine, theirs = (worker.ask("read", **arguments) for worker in (self.ours, self.reference))
        found = list(differences(mine, theirs))
        assert not found, "\n".join(found)
        return mine

    def points(self, run: Path) -> Points:
        self.read(run, exclude_hot=True)
        return points(self.read(run))

    def is_continued(self, run: Path, step: int, what: Any) -> None:
        """Let the reference open a run at a step, write some rows, be killed, open it again and finish."""
        description = self.read(run)
        old = before(points(description), step)
        opening = {"step": str(step), "hotsize": "2", "config": "None", "allow_resume_finalized": "True"}
        # the reference takes no float into an integer column
        whole = "int" in description["metrics"].get("train/n", {"storage": ["int"]})["storage"][0]
        n = int if whole else float
        rows = [(step + i, {"train/loss": 0.25 * i, "train/n": n(i), "new/x": i}) for i in range(5)]
        ops = []
        for _, row in rows:
            ops += [["write", {name: repr(value) for name, value in row.items()}, False], ["end_step"]]
        outcomes = self.reference.ask("play", root=str(run), ops=ops, end=["die"], opening=opening)
        assert outcomes == [None] * (1 + len(ops)), (what, outcomes)
        expected = added(old, rows)
        assert self.points(run) == expected, what
        respell(run)
        finish = ["finish", {"optimize": True, "zip": True, "config_overrides": "None"}]
        opening["step"] = str(step + len(rows))
        outcomes = self.reference.ask("play", root=str(run), ops=[], end=finish, opening=opening)
        assert outcomes == [None, None], (what, outcomes)
        assert self.points(run) == expected, what


def is_inserting(run: Path, columns: Points) -> bool:
    """Tell whether a late point was on its way between stored ones when its writer was killed.

    One column's rows from there on are in the hot log then, and the rows of others above them are not. Every
    Reader and our writers know what to do; the reference, on opening such a run, cuts all columns at the first hot
    step. So ours has to open the run first, once.
    """
    logs = [run / "plattli" / name for name in ("hot.compacting.jsonl", "hot.jsonl")]
    lines = [line for log in logs if log.exists() for line in log.read_text().splitlines(keepends=True)]
    hot = {row["step"]: row for row in (json.loads(line) for line in lines if line.endswith("\n"))}
    first = min(hot, default=2**32)
    return any(
        step >= first and name not in hot.get(step, {}) for name, column in columns.items() for step in column
    )
