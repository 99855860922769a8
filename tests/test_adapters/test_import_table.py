"""``plattli import`` of CSV."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.importers.finding import find_sources
from adapters.importers.importing import import_run
from adapters.importers.items import Options
from loggers import CSVLogger, names, replay
from tests.test_adapters.imported import about, imported, points, write_run


def test_a_table_as_lightning_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty cell was not logged; train and validation rows of one step join."""
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,train_loss,val/acc,note\n0,49,0.25,,\n0,49,,0.5,\n1,99,1e-3,,\"a, b\"\n\n1,99,,NaN,\n")
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    assert points(tmp_path / "run") == {
        "train/train_loss": [(49, 0.25), (99, 0.001)],
        "train/epoch": [(49, 0), (99, 1)],
        "train/note": [(99, "a, b")],
        "val/acc": [(49, 0.5), (99, "NaN")],
        "val/epoch": [(49, 0), (99, 1)],
    }
    assert (said["kind"], said["lines"], said["left_out"]) == ("csv", 4, {})


@pytest.mark.parametrize("end", ["completed", "early_stop", "error", "interrupted"])
def test_a_round_trip_keeps_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str) -> None:
    """run -> CSVLogger -> run: all metrics exactly, contexts, epochs, times, and from the notes all the rest."""
    run = write_run(tmp_path / "run", end=end)
    replay(run, CSVLogger(tmp_path / "csv" / "metrics.csv"))
    (said,) = imported(tmp_path / "csv", tmp_path / "again", capsys=capsys)

    assert said["kind"] == "csv"
    assert points(tmp_path / "again") == points(run)
    assert about(tmp_path / "again") == about(run)


def test_a_table_of_which_steps_were_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it notes of that itself is no part of the run, and nothing that is left out."""
    run = write_run(tmp_path / "run")
    logger = CSVLogger(tmp_path / "csv" / "metrics.csv")
    replay(run, logger)
    logger.rewind(0)
    replay(run, logger)
    (said,) = imported(tmp_path / "csv", tmp_path / "again", capsys=capsys)

    assert points(tmp_path / "again") == points(run)
    assert (about(tmp_path / "again"), said["left_out"]) == (about(run), {})


@pytest.mark.parametrize(("delimiter", "ending"), [(";", "\n"), ("\t", "\r\n")])
def test_other_delimiters_times_and_integers(tmp_path: Path, delimiter: str, ending: str) -> None:
    """An integer stays one, whatever its size; a time of the day becomes the walltime."""
    file = tmp_path / "log.csv"
    rows = [["iter", "n", "big", "timestamp"], ["0", "-5", "9007199254740993", "2023-11-14T22:13:20+00:00"],
            ["2", "007", "2", "1700000001.5"]]  # fmt: skip
    file.write_bytes(("\ufeff" + "".join(delimiter.join(row) + ending for row in rows)).encode())
    imported(file, tmp_path / "run", "--context", "fit")

    assert points(tmp_path / "run") == {
        "fit/n": [(0, -5), (2, 7)],
        "fit/big": [(0, 9007199254740993), (2, 2)],
        "fit/walltime": [(0, 1.7e9), (2, 1.7e9 + 1.5)],
    }


def test_a_table_that_was_appended_to_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step goes back, and on from there: what was behind it is gone."""
    file = tmp_path / "log.csv"
    steps = [*range(0, 80, 10), *range(30, 60, 10)]
    file.write_text("step,loss\n" + "".join(f"{step},{number / 4}\n" for number, step in enumerate(steps)))
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    assert points(tmp_path / "run")["train/loss"] == [(0, 0), (10, 0.25), (20, 0.5), (30, 2), (40, 2.25), (50, 2.5)]
    assert (said["restarts"], said["replaced"]) == (1, 4)


def test_damage_is_tolerated_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A last row that may be cut short is left out: half a number is another number."""
    file = tmp_path / "log.csv"
    file.write_text("step,loss\n1,0.5\n2,0.5,7\n,0.25\nx,1\n3\n4,0.1")
    (said,) = imported(file, tmp_path / "run", capsys=capsys)

    assert points(tmp_path / "run") == {"train/loss": [(1, 0.5)]}
    assert said["left_out"] == {
        "rows with more cells than the header has names": 1,
        "rows without 'step'": 1,
        "lines whose step is no integer from 0 on": 1,
    }
    assert said["notes"][-1].startswith("log.csv ends without a line end: its last row may be cut short")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has no step: looked for 'step', '_step'"),
        ("step,a,a\n1,2,3\n", "is a text that begins with b'step,a,a"),
        ("1,2\n3,4\n", "is a text that begins with b'1,2"),
        ("", "is empty; there are importers of TensorBoard event files (tensorboard), W&B files (wandb)"),
        ("step,loss\n", "holds nothing that a run can hold"),
        ("step,loss\n1,0.5", "holds nothing that a run can hold; log.csv ends without a line end"),
    ],
)
def test_what_is_no_such_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    """Said before anything is written."""
    (tmp_path / "log.csv").write_text(text)
    (said,) = imported(tmp_path / "log.csv", tmp_path / "run", code=1, capsys=capsys)

    assert message in said["error"]
    assert not (tmp_path / "run").exists()


HEADERS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=6).filter(
    lambda name: name.lower() not in ("step", "epoch", "time", "timestamp", "nan", "inf", "infinity")
    and not name[0].isdigit() and name[0] not in "+-.\ufeff"
)  # fmt: skip
CELLS = st.one_of(st.integers(-(2**63), 2**63), st.floats(allow_nan=False), st.none())


@settings(max_examples=30, deadline=None)
@given(st.lists(HEADERS, min_size=1, max_size=4, unique=True), st.data())
def test_any_table_comes_back(tmp_path_factory: pytest.TempPathFactory, header: list[str], data: st.DataObject) -> None:
    """Names and numbers, as Python's own writer spells them."""
    rows = data.draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), min_size=1, max_size=5))
    folder = tmp_path_factory.mktemp("table")
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["step", *header])
    expected: dict[str, dict[int, Any]] = {}
    for step, cells in enumerate(rows):
        as_floats = [None if cell is None else float(cell) for cell in cells]
        writer.writerow([step, *("" if cell is None else repr(cell) for cell in as_floats)])
        for name, cell in zip(header, as_floats, strict=True):
            before, _, after = name.partition("/")
            full = name if before and after else f"train/{name}"
            if cell is not None:
                expected.setdefault(full, {})[step] = cell
    (folder / "log.csv").write_text(out.getvalue(), encoding="utf-8", newline="")
    if not expected:
        return
    (source,) = find_sources(folder / "log.csv", "csv")
    report = import_run(source, folder / "run", Options())

    assert report is not None
    assert not any(math.isnan(v) for series in expected.values() for v in series.values())
    assert {names.decode(name): dict(series) for name, series in points(folder / "run").items()} == expected
