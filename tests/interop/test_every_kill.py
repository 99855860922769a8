"""Writers killed at every file operation they make: both Readers find every row whose ``end_step()`` returned."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import plattli
from tests.interop.points import Points, added, before, highest_step, points
from tests.interop.readers import Readers, is_inserting
from tests.killing import every_kill

Rows = list[tuple[int, dict[str, Any]]]
#: the reference takes so long to go on with a run that it does so after every so many operations only
_CONTINUED_EVERY: Final = 1


def rows_of(first: int, count: int) -> Rows:
    """Return rows with all that a column can go through: wider integers, JSON, gaps, and metrics that come later."""
    rows: Rows = []
    for number in range(count):
        step = first + number + number // 4
        row = {"train/loss": step / 8, "n": 7 ** (step + 2), "small": step % 3}
        if number % 3 == 1:
            row["note"] = {"step": step, "odd": [None, "ä"]}
        if number > count // 2:
            row[f"late/{number // 3}"] = -step
        rows.append((step, row))
    return rows


@dataclass(frozen=True)
class Scenario:
    """A writer's lifetime: what was there, how it is opened, what it writes, how it ends."""

    rows: Rows
    writer: str = "CompactingWriter"
    #: rows of an earlier lifetime
    origin: Rows = field(default_factory=list)
    #: how that ended: ``None`` is a kill
    origin_end: str | None = None
    step: int = 0
    end: Callable[[Any], None] = lambda writer: writer.close()

    def open(self, run: Path, step: int | str) -> Any:
        options = {"hotsize": 3} if self.writer == "CompactingWriter" else {}
        return getattr(plattli, self.writer)(run, step=step, config={"a": 1}, allow_resume_finalized=True, **options)

    def prepare(self, run: Path) -> None:
        writer = self.open(run, 0)
        write(writer, self.origin, lambda fact: None)
        if self.origin_end == "finish":
            writer.finish()
        else:
            writer._rows.settle()  # files that a batch moves meanwhile cannot be copied
            shutil.copytree(run, run.with_name("dead"))
            writer.close()
            shutil.rmtree(run)
            run.with_name("dead").rename(run)

    def play(self, run: Path, acknowledge: Callable[[object], None]) -> None:
        writer = self.open(run, self.step)
        acknowledge("opened")
        write(writer, self.rows, acknowledge)
        self.end(writer)
        acknowledge("ended")


def write(writer: Any, rows: Rows, acknowledge: Callable[[object], None]) -> None:
    for step, row in rows:
        writer.step = step
        writer.write(row)
        writer.end_step()
        acknowledge(step)
        if hasattr(writer, "drain") and step % 5 == 4:
            writer.drain()  # a compaction that is over, so that the numbers of its operations are the same each time


SCENARIOS: Final = {
    "rotation, compaction, promotion": Scenario(rows_of(0, 14)),
    "steps visited again": Scenario(
        [(0, {"a": 1}), (1, {"a": 2}), (1, {"b": 2.5}), (0, {"b": 1.5}), (2, {"a": 300}), (2, {"b": 0.5})]
    ),
    "finish as a folder": Scenario(rows_of(0, 8), end=lambda writer: writer.finish(zip=False)),
    "finish as an archive": Scenario(rows_of(0, 8), end=lambda writer: writer.finish()),
    "resume at a step": Scenario(rows_of(7, 5), origin=rows_of(0, 12), step=7),
    "resume an archive": Scenario(rows_of(6, 4), origin=rows_of(0, 9), origin_end="finish", step=6),
    "resume an archive, finish again": Scenario(
        rows_of(6, 4), origin=rows_of(0, 9), origin_end="finish", step=6, end=lambda writer: writer.finish()
    ),
    "direct": Scenario(rows_of(0, 4), writer="DirectWriter", end=lambda writer: writer.finish()),
    "direct, resumed": Scenario(rows_of(5, 3), writer="DirectWriter", origin=rows_of(0, 8), step=5),
}


def check(found: Points, scenario: Scenario, acknowledged: list[str], where: object) -> None:
    """All that was acknowledged is there, as it was; beyond it only what was under way, or not yet cut."""
    opened = "opened" in acknowledged
    done = sum(fact.isdigit() for fact in acknowledged)
    old = added({}, scenario.origin)
    must = added(before(old, scenario.step), scenario.rows[:done])
    # a row is there as a whole or, while it is on its way into the columns, by metric
    may = added(must, scenario.rows[done : done + 1] if opened else [])
    if not opened:
        may = {name: {**column, **may[name]} for name, column in old.items()}
    for name in must.keys() | found.keys():
        column, least, most = (points_of.get(name, {}) for points_of in (found, must, may))
        missing = {step: value for step, value in least.items() if column.get(step) not in (value, most[step])}
        foreign = {step: value for step, value in column.items() if value not in (least.get(step), most.get(step))}
        assert not missing, (where, name, missing)
        assert not foreign, (where, name, foreign)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_at_every_file_operation(tmp_path: Path, readers: Readers, name: str) -> None:
    """Read as the kill left it, then as our writer reopens it, and (often) as the reference goes on with it."""
    scenario = SCENARIOS[name]
    origin = None
    if scenario.origin:
        origin = tmp_path / "origin" / "run"
        scenario.prepare(origin)
    kills = 0
    for n, run, acknowledged in every_kill(scenario.play, tmp_path, prepare=origin):
        exists = plattli.is_run(run) if run.exists() else False
        if not exists:
            assert not acknowledged or acknowledged == ["opened"], n
            continue
        kills += 1
        found = readers.points(run)
        check(found, scenario, acknowledged, n)

        reopened = tmp_path / "reopened" / "run"
        shutil.rmtree(reopened, ignore_errors=True)
        shutil.copytree(run, reopened, symlinks=True)
        writer = scenario.open(reopened, "auto")
        assert writer.step == highest_step(readers.points(reopened)) + 1
        writer.close()
        after = readers.points(reopened)
        check(after, scenario, acknowledged, n)
        if n % _CONTINUED_EVERY == 0:
            hazard = is_inserting(run, points(readers.read(run, exclude_hot=True)))
            going_on = reopened if hazard or (run / "metrics.plattli").exists() else run
            readers.is_continued(going_on, highest_step(found) + 1, n)
    assert kills > 10
