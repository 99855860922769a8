"""What one Reader has counted and the next one in the process goes on from, while either implementation writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plattli import Reader
from tests.interop.points import points
from tests.interop.workers import Worker


@pytest.mark.parametrize("by", ["ours", "reference"])
def test_a_column_that_is_cut_and_written_on_is_counted_anew(
    tmp_path: Path, ours: Worker, reference: Worker, by: str
) -> None:
    """Even where its lines look as before, and end where others ended."""
    writer, run = {"ours": ours, "reference": reference}[by], str(tmp_path / "run")
    same, rows = ["x" * 50], 0
    for first, values in ((0, same * 60), (1, ["two lines".ljust(103), *same * 300]), (1, same * 900)):
        ops = [op for value in values for op in (["write", {"json": repr(value)}, False], ["end_step"])]
        outcomes = writer.ask(
            "play", root=run, ops=ops, end=["leave"], opening={"step": str(first), "hotsize": "1", "config": "None"}
        )
        assert outcomes == [None] * (len(ops) + 2)
        stored = None
        while stored != (stored := points(reference.ask("read", root=run, exclude_hot=True))["json"]):
            # what is in the columns; the reference may still be moving rows there
            with Reader(run, exclude_hot=True) as reader:
                step, value = reader.metric("json", idx=-1)

        assert (int(step), json.dumps(value)) == list(stored.items())[-1]
        assert len(stored) > rows > 0 or first == 0  # there are lines where the last count ended
        rows = len(stored)
