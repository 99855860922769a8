"""Where ours does otherwise on purpose: the reference reads the result, and loses nothing of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.interop.points import Points, points
from tests.interop.workers import Worker

OPENING = {"step": "0", "hotsize": "2", "config": "None"}
FINISHED_FOLDER = {"optimize": True, "zip": False, "config_overrides": "None"}
FINISH = ["finish", {**FINISHED_FOLDER, "zip": True}]
LEAVE = ["leave"]


def write(**values: Any) -> list[Any]:
    return ["write", {name: repr(value) for name, value in values.items()}, False]


def play(worker: Worker, run: Path, *ops: list[Any], end: list[Any] = FINISH, **opening: str) -> None:
    outcomes = worker.ask("play", root=str(run), ops=list(ops), end=end, opening={**OPENING, **opening})
    assert outcomes == [None] * (len(ops) + 2), outcomes


def seen(worker: Worker, run: Path) -> Points:
    return points(worker.ask("read", root=str(run)))


def test_a_float16_is_a_number(tmp_path: Path, ours: Worker, reference: Worker) -> None:
    """f32 holds it exactly; the reference makes a JSON column of it, which reads as objects."""
    dtypes = {}
    for name, worker in (("ours", ours), ("theirs", reference)):
        play(worker, tmp_path / name, ["write", {"a": "np.float16(0.1)"}, False], ["end_step"])
        read = reference.ask("read", root=str(tmp_path / name))
        dtypes[name] = read["metrics"]["a"]["storage"][0]
        assert points(read) == {"a": {0: "0.0999755859375"}}

    assert dtypes == {"ours": "float32", "theirs": "object"}


def test_a_row_that_is_come_back_to_is_merged(tmp_path: Path, ours: Worker, reference: Worker) -> None:
    """The reference replaces it, and the metrics that were not written again are lost."""
    ops = [write(a=1, b=2), ["end_step"], ["step", "0"], write(b=3), ["end_step"]]
    play(ours, tmp_path / "ours", *ops)
    play(reference, tmp_path / "theirs", *ops, end=LEAVE)

    assert seen(reference, tmp_path / "ours") == seen(ours, tmp_path / "ours") == {"a": {0: 1}, "b": {0: 3}}
    assert seen(reference, tmp_path / "theirs") == seen(ours, tmp_path / "theirs") == {"a": {}, "b": {0: 3}}


def test_a_value_belongs_to_the_step_at_which_it_was_written(tmp_path: Path, ours: Worker, reference: Worker) -> None:
    """The reference moves it to the step at which the row ends."""
    ops = [write(a=1), ["step", "5"], write(b=2), ["end_step"]]
    play(ours, tmp_path / "ours", *ops)
    play(reference, tmp_path / "theirs", *ops)

    assert seen(reference, tmp_path / "ours") == seen(ours, tmp_path / "ours") == {"a": {0: 1}, "b": {5: 2}}
    assert seen(reference, tmp_path / "theirs") == {"a": {5: 1}, "b": {5: 2}}


def test_a_run_with_a_metric_without_rows_can_be_finished(tmp_path: Path, ours: Worker, reference: Worker) -> None:
    """The reference fails at it, if the metric is an integer; it reads what ours makes of it."""
    for name in ("ours", "theirs"):
        ops = [write(a=1.0), ["end_step"], write(b=1, c="x")]
        died = reference.ask("play", root=str(tmp_path / name), ops=ops, end=["die"], opening=OPENING)
        assert died == [None] * 4
    play(ours, tmp_path / "ours", step="1")

    finishing = {"root": str(tmp_path / "theirs"), "ops": [], "opening": {**OPENING, "step": "1"}}
    failed = reference.ask("play", end=["finish just so"], **finishing)[1]

    assert failed["error"][0] == "FileNotFoundError"
    for worker in (ours, reference):
        assert seen(worker, tmp_path / "ours") == {"a": {0: "1.0"}, "b": {}, "c": {}}


@pytest.mark.parametrize("missing", [1, 2])
def test_values_that_are_missing_are_not_invented(
    tmp_path: Path, ours: Worker, reference: Worker, missing: int
) -> None:
    """A column shorter than its steps is cut; the reference puts zeros there."""
    found = {}
    for name, worker in (("ours", ours), ("theirs", reference)):
        run = tmp_path / name
        ops = [op for i in range(4) for op in (write(a=i + 1), ["end_step"])]
        play(reference, run, *ops, end=["finish", FINISHED_FOLDER])
        column = run / "plattli" / "a.u8"
        column.write_bytes(column.read_bytes()[:-missing])
        play(worker, run, write(a=9), ["end_step"], step="4")
        found[name] = seen(reference, run)["a"]
    kept = {step: step + 1 for step in range(4 - missing)}

    assert found["ours"] == {**kept, 4: 9}
    assert found["theirs"] == {**kept, **dict.fromkeys(range(4 - missing, 4), 0), 4: 9}


def test_lists_of_one_length_stay_lists(tmp_path: Path, ours: Worker, reference: Worker) -> None:
    """The reference's Reader makes a 2-D array of them, which holds the same."""
    play(ours, tmp_path / "run", *[op for i in range(3) for op in (write(a=[i, i]), ["end_step"])])

    expected = {"a": {i: json.dumps([i, i]) for i in range(3)}}
    assert seen(ours, tmp_path / "run") == seen(reference, tmp_path / "run") == expected


def test_a_folder_that_a_kill_left_beside_its_archive_is_no_obstacle(
    tmp_path: Path, ours: Worker, reference: Worker
) -> None:
    """The reference refuses to go on; ours does, and leaves one run."""
    run = tmp_path / "run"
    play(ours, run, write(a=1), ["end_step"], end=["finish", FINISHED_FOLDER])
    shutil.copytree(run / "plattli", tmp_path / "left")
    play(ours, run, step="1")
    (tmp_path / "left").rename(run / "plattli")
    refused = reference.ask(
        "play", root=str(run), ops=[], end=LEAVE, opening={**OPENING, "step": "1", "allow_resume_finalized": "True"}
    )
    play(ours, run, write(a=2), ["end_step"], step="1", allow_resume_finalized="True")

    assert refused[0]["error"][0] == "RuntimeError"
    assert seen(reference, run) == {"a": {0: 1, 1: 2}}


def rows_at(*steps: int) -> list[list[Any]]:
    """A row at each of some steps."""
    return [op for step in steps for op in (["step", str(step)], write(a=step), ["end_step"])]


@pytest.mark.parametrize("by", ["ours", "reference"])
def test_steps_that_come_closer_survive_a_cut_between(tmp_path: Path, ours: Worker, reference: Worker, by: str) -> None:
    """The reference, cutting its own column 0, 3, 4 at 5, drops step 4; ours is spelled so that it does not."""
    run = tmp_path / "run"
    writer = {"ours": ours, "reference": reference}[by]
    play(writer, run, *rows_at(0, 3, 4), end=["finish", FINISHED_FOLDER])

    play(reference, run, end=LEAVE, step="5")

    assert list(seen(reference, run)["a"]) == {"ours": [0, 3, 4], "reference": [0, 3]}[by]


def test_steps_that_come_closer_survive_a_hot_row_between(tmp_path: Path, ours: Worker, reference: Worker) -> None:
    """The reference cuts columns at the first hot row, too, which is the newest of ours."""
    run = tmp_path / "run"
    play(ours, run, *rows_at(0, 3, 4), end=["finish", FINISHED_FOLDER])
    play(ours, run, *rows_at(5), end=LEAVE, step="5")
    columns = points(reference.ask("read", root=str(run), exclude_hot=True))

    play(reference, run, end=LEAVE, step="6")

    assert columns == {"a": {0: 0, 3: 3, 4: 4}}
    assert list(seen(reference, run)["a"]) == [0, 3, 4, 5]
