"""``plattli import`` of JSON Lines: of a JSONLogger, and rows as Koochak appends them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.importers.finding import find_sources
from adapters.importers.importing import import_run
from adapters.importers.items import Options
from loggers import JSONLogger, TrainingSession, replay
from tests.test_adapters.imported import about, imported, points, write_run


@pytest.mark.parametrize("end", ["completed", "early_stop", "error", "interrupted"])
def test_a_round_trip_keeps_all_but_the_times(tmp_path: Path, end: str) -> None:
    """run -> JSONLogger -> run: every metric, confusion, other value, param, tag and the status."""
    run = write_run(tmp_path / "run", end=end)
    replay(run, JSONLogger(tmp_path / "metrics.jsonl"))
    imported(tmp_path / "metrics.jsonl", tmp_path / "again")

    expected = points(run, without=("walltime",))
    assert points(tmp_path / "again") == expected
    assert len(expected["train/loss"]) == 60
    assert about(tmp_path / "again") == about(run)


NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats())
VALUES = st.one_of(NUMBERS, st.text(max_size=5), st.none(), st.lists(st.integers(0, 9), max_size=3))
OWN = ("type", "context", "epoch", "step", "walltime")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), NAMES, st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)), max_size=8)
)
def test_any_lines_come_back(tmp_path_factory: pytest.TempPathFactory, lines: list[Any]) -> None:
    """Whatever a JSONLogger takes is in the run, the later value where a metric has two at a step.

    Names that are a line's own fields are not in the file; types that meet in one metric are another test's matter.
    """
    folder = tmp_path_factory.mktemp("any")
    logger = JSONLogger(folder / "metrics.jsonl")
    expected: dict[str, dict[int, Any]] = {}
    kinds: dict[str, bool] = {}
    logger.log_params({})
    for step, context, metrics in lines:
        row = {}
        for name, value in metrics.items():
            is_number = isinstance(value, int | float)
            full = f"{context}/{name}"
            if name in OWN or kinds.setdefault(full, is_number) != is_number:
                continue
            row[name] = float(value) if is_number else value
        if row:
            logger.log_metrics(row, step=step, context=context)
            for name, value in row.items():
                expected.setdefault(f"{context}/{name}", {})[step] = "NaN" if value != value else value
    logger.finish("completed")
    (source,) = find_sources(folder / "metrics.jsonl")
    report = import_run(source, folder / "run", Options(overlaps="keep"))

    assert report is not None
    assert report.left_out == {}
    if expected:
        from loggers import names

        found = {names.decode(name): dict(series) for name, series in points(folder / "run").items()}
        assert found == expected


def log(file: Path, steps: range, *, validate: int = 10, start: int = 0) -> None:
    """Log as a training does, killed at the end: no finish."""
    logger = JSONLogger(file)
    logger.log_params({"lr": 0.1})
    for step in steps:
        logger.log_metrics({"loss": start + step / 100}, step=step)
        if step % validate == 0:
            logger.log_metrics({"loss": start + step}, step=step, context="validate")


def test_a_restart_is_cut_as_a_resume_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The old attempt got to step 80, the new one goes on from 51 and dies at 70: nothing is left of 71 to 80."""
    file = tmp_path / "metrics.jsonl"
    log(file, range(81))
    log(file, range(51, 71), start=1)
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    found = points(tmp_path / "run")
    assert found["train/loss"] == [(s, s / 100) for s in range(51)] + [(s, 1 + s / 100) for s in range(51, 71)]
    assert found["validate/loss"] == [(s, s) for s in range(0, 51, 10)] + [(60, 61), (70, 71)]
    # step 51 itself was replaced, which needs no cut
    assert (said["restarts"], said["replaced"], said["status"]) == (1, 29 + 3, "interrupted")

    imported(file, tmp_path / "kept", "--overlaps", "keep")
    assert [step for step, _ in points(tmp_path / "kept")["train/loss"]] == list(range(81))


def test_late_and_corrected_lines_cut_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value for an earlier step is put there, or replaces the one there; the newer ones stay."""
    file = tmp_path / "metrics.jsonl"
    logger = JSONLogger(file)
    for step, value in [(1, 1.5), (2, 2.5), (5, 5.5), (3, 3.5), (4, 4.5), (6, 6.5), (2, 0.5), (7, 7.5)]:
        logger.log_metrics({"loss": value}, step=step)
    for step in (10, 30, 10, 20, 40):  # an evaluation that was done once more belongs to itself
        logger.log_metrics({"score": step / 4}, step=step, context="exam")
    logger.log_metrics({"bleu": 0.5}, step=10, context="exam")
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    found = points(tmp_path / "run")
    assert found["train/loss"] == [(1, 1.5), (2, 0.5), (3, 3.5), (4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5)]
    assert found["exam/score"] == [(10, 2.5), (20, 5.0), (40, 10.0)]
    assert found["exam/bleu"] == [(10, 0.5)]
    assert (said["restarts"], said["replaced"]) == (1, 1)


def test_a_finished_run_that_was_resumed(tmp_path: Path) -> None:
    """Behind a line of its end, the first step back is where the resume was; the newest end counts."""
    file = tmp_path / "metrics.jsonl"
    for steps, end in ((range(5), "error"), (range(3, 4), "early_stop")):
        logger = JSONLogger(file)
        for step in steps:
            logger.log_metrics({"loss": step + len(steps)}, step=step)
        logger.finish(end)
    imported(file, tmp_path / "run")

    assert points(tmp_path / "run")["train/loss"] == [(0, 5), (1, 6), (2, 7), (3, 4)]
    assert about(tmp_path / "run")[0] == "early_stop"


def test_damage_is_tolerated_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A torn end, lines that are none, and values that no run can hold: counted, and the first shown."""
    file = tmp_path / "metrics.jsonl"
    lines = [
        '{"type":"metrics","context":"train","step":1,"loss":1.5}',
        "garbage",
        "[1]",
        '{"type":"picture","data":"x"}',
        '{"type":"metrics","context":"train","loss":1.5}',
        '{"type":"metrics","context":"train","step":-1,"loss":1.5}',
        '{"type":"metrics","context":"train","step":99999999999999999999,"loss":1.5}',
        '{"type":"metrics","context":"train","step":1.5,"loss":1.5}',
        '{"type":"metrics","context":"","step":2,"loss":1.5}',
        '{"type":"metrics","context":"train","step":2,"loss":2.5,"huge":' + "9" * 30 + "}",
        "",
        '{"type":"metrics","context":"train","step":3,"lo',
    ]
    file.write_text("\n".join(lines))
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    assert points(tmp_path / "run") == {"train/loss": [(1, 1.5), (2, 2.5)]}
    assert said["left_out"] == {
        "lines that are no JSON object": 2,
        "lines that are no verb call": 2,
        "lines whose step is no integer from 0 on": 3,
        "lines that a run cannot hold": 1,
        "values that a run cannot hold": 1,
    }
    assert any("ends inside line 12" in note for note in said["notes"])
    assert any("metrics.jsonl:2 is no JSON object: 'garbage\\n'" in note for note in said["notes"])


def test_a_whole_last_line_needs_no_line_end(tmp_path: Path) -> None:
    """An object ends with its brace."""
    (tmp_path / "a.jsonl").write_text('{"type":"metrics","context":"train","step":1,"loss":1.5}')
    imported(tmp_path / "a.jsonl", tmp_path / "run")

    assert points(tmp_path / "run") == {"train/loss": [(1, 1.5)]}


# --- rows -------------------------------------------------------------------------------------------------


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_rows_of_steps_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names without a context go to train, times become the walltime, and a null is nothing."""
    rows = [
        {"step": 0, "loss": 1.5, "lr": 0.1, "time": 1.7e9, "epoch": 0},
        {"step": 1, "loss": math.nan, "val/acc": 1, "time": 1.7e9 + 1, "epoch": 0, "gone": None},
        {"step": 2, "loss": 0.5, "note": "text", "epoch": 0.5, "time": 12.5},
        {"loss": 1},
    ]
    file = write_rows(tmp_path / "log.jsonl", rows)
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    assert said["kind"] == "koochak"
    assert points(tmp_path / "run") == {
        "train/loss": [(0, 1.5), (1, "NaN"), (2, 0.5)],
        "train/lr": [(0, 0.1)],
        "train/epoch": [(0, 0), (1, 0), (2, 0.5)],
        "train/walltime": [(0, 1.7e9), (1, 1.7e9 + 1)],
        "train/note": [(2, "text")],
        "train/time": [(2, 12.5)],  # no Unix time
        "val/acc": [(1, 1)],
        "val/epoch": [(1, 0)],
        "val/walltime": [(1, 1.7e9 + 1)],
    }
    assert said["left_out"] == {"null values": 1, "rows without 'step'": 1}
    assert about(tmp_path / "run")[0] == "interrupted"

    imported(file, tmp_path / "other", "--context", "fit", "--status", "completed")
    assert points(tmp_path / "other")["fit/lr"] == [(0, 0.1)]
    assert about(tmp_path / "other")[0] == "completed"


def test_another_column_is_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its usual names, or as the user says; without one, nothing is written."""
    file = write_rows(tmp_path / "log.jsonl", [{"batches": 3, "loss": 0.5}])
    (said,) = imported(file, tmp_path / "run", code=1, capsys=capsys)

    assert said["error"] == (
        f"{file}:1 has no step: looked for 'step', '_step', 'global_step', 'trainer/global_step', 'train/global_step', "
        "'iteration', 'iter'; say with --step-column what the step is called; it has 'batches', 'loss'"
    )
    assert not (tmp_path / "run").exists()

    imported(file, tmp_path / "run", "--step-column", "batches")
    assert points(tmp_path / "run") == {"train/loss": [(3, 0.5)]}


def test_several_logs_are_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is called by its folder; a session's file is in one of them."""
    for name, loss in (("a", 0.25), ("b/c", 0.5)):
        (tmp_path / "logs" / name).mkdir(parents=True)
        with TrainingSession(JSONLogger(tmp_path / "logs" / name / "metrics.jsonl")) as session:
            session.train({"loss": loss})
    said = imported(tmp_path / "logs", tmp_path / "runs", capsys=capsys)

    assert [result["run"] for result in said] == [str(tmp_path / "runs/a"), str(tmp_path / "runs/b/c")]
    assert points(tmp_path / "runs/b/c")["train/loss"] == [(1, 0.5)]
