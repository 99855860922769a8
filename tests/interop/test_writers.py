"""Random programs for all three writers in turn, as :mod:`tests.interop.test_programs` has them for one.

What the implementations do differently on purpose does not occur: once a CompactingWriter has left a run or was
killed, no DirectWriter comes, which in the reference does not see hot rows.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interop import programs as parts
from tests.interop.programs import Lifetime, Program
from tests.interop.test_programs import Bench
from tests.interop.workers import Worker


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program; each lifetime has a writer of its own kind."""
    lifetimes: list[Lifetime] = []
    step = draw(st.sampled_from([0, 0, 0, 0, 9, parts.MAX_STEP - 10_000]))
    hot = False
    for number in range(draw(st.integers(1, 4))):
        kinds = ["BulkWriter", "CompactingWriter"] if hot else ["BulkWriter", "CompactingWriter", *["DirectWriter"] * 4]
        kind = draw(st.sampled_from(kinds))
        if number:
            step = min(draw(st.just(step) | st.integers(0, step) | st.integers(step, step + 30)), parts.MAX_STEP)
        opening = {"writer": kind, "step": str(step), "config": draw(parts.CONFIGS)}
        if kind == "BulkWriter":
            opening["overwrite"] = str(draw(st.integers(0, 3)) > 0)
        else:
            opening["allow_resume_finalized"] = str(draw(st.integers(0, 9)) > 0)
        if kind == "CompactingWriter":
            opening["hotsize"] = str(draw(st.integers(1, 8)))
        elif kind == "DirectWriter":
            opening["write_threads"] = "0"
        ops, step = parts._with_steps(draw(st.lists(parts.OPS, max_size=12)), step)
        if kind != "CompactingWriter":
            ops = [["write", op[1], False] if op[0] == "write" else op for op in ops]
        ends = st.just(["die"]) | st.just(["leave"]) | parts.FINISH.map(lambda arguments: ["finish", arguments])
        end = draw(ends)
        hot = hot or (kind == "CompactingWriter" and end[0] != "finish")
        looked = None if end == ["die"] else draw(st.none() | st.integers(0, len(ops)))
        lifetimes.append(Lifetime(draw(st.sampled_from(["ours", "reference"])), opening, ops, end, looked))
    return Program(lifetimes, {"config.json": '{"from": "config.json"}'} if draw(st.booleans()) else {})


@pytest.mark.timeout(0)  # takes a quarter of what --programs asks for
def test_random_programs_of_all_writers(
    tmp_path: Path, ours: Worker, reference: Worker, request: pytest.FixtureRequest
) -> None:
    """Same outcome of every call, same metrics, steps, values to the bit, dtypes and config."""
    numbers = itertools.count()

    def play(program: Program) -> None:
        folder = tmp_path / str(next(numbers))
        bench = Bench(folder, ours, reference, program)
        for lifetime in program.lifetimes:
            bench.play(lifetime)
        shutil.rmtree(folder)

    checks: Any = HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much
    # the other suite has the most of them: what is new here is who writes, not what
    amount = settings(
        max_examples=request.config.getoption("--programs") // 4, deadline=None, suppress_health_check=checks
    )
    amount(given(programs())(play))()
