"""``plattli import`` of W&B's own files, written by W&B's client offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.test_adapters.imported import Points, about, imported, points, write_run

ROOT = Path(__file__).parents[2]


def run(home: Path, script: str) -> None:
    """Run a script that logs offline, in a process of its own: the client keeps threads and a service."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "NETRC", "XDG_"))}
    env = {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "WANDB_SILENT": "true",
           "WANDB_ERROR_REPORTING": "false", "WANDB_BASE_URL": "http://127.0.0.1:9"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=home, env=env, capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 0, done.stderr


def without_about(found: Points) -> Points:
    """Return the points without what W&B calls the run."""
    ((_, named),) = found.pop("other/wandb")
    assert named["run_id"]
    return found


@pytest.mark.parametrize(
    ("end", "order"), [("completed", 1), ("interrupted", 2)]
)
def test_a_round_trip_keeps_everything(tmp_path: Path, end: str, order: int) -> None:
    """run -> WandbLogger, offline -> run: every number exactly, times, texts, confusions, params, tags, status."""
    source = write_run(tmp_path / "run", end=end)
    run(
        tmp_path,
        f"""
        from adapters import WandbLogger
        from loggers import replay
        replay({str(source)!r}, WandbLogger(project="p", run_id="id{order}", dir={str(tmp_path)!r}))
        """,
    )
    imported(tmp_path / "wandb", tmp_path / "again")

    expected, found = points(source), without_about(points(tmp_path / "again"))
    # what a WandbLogger puts into the summary by itself is there, too
    assert {name: series for name, series in found.items() if not name.startswith("other/best")} == expected
    assert about(tmp_path / "again") == about(source)


RAW = """
import wandb

def init(**more):
    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_machine_info=True)
    return wandb.init(project="p", dir=".", settings=settings, **more)
"""


def test_rows_of_a_raw_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """W&B's own step, step metrics, nested values, config, tags, the summary's own entries, and what has no place."""
    run(
        tmp_path,
        RAW + textwrap.dedent("""
        run = init(id="raw", config={"lr": 0.5, "deep": {"a": 1, "b.c": [1, 2]}}, tags=["x", "k:v"], name="nice")
        run.define_metric("val/*", step_metric="val/step")
        run.define_metric("acc", step_metric="epoch")
        run.define_metric("trainer/*", step_metric="trainer/global_step")
        for i in range(3):
            run.log({"loss": 1.0 / (i + 3), "n": i, "epoch": i})
        run.log({"nested": {"a": 2, "b": {"c": 3}}, "text": "hi", "list": [1, 2], "nan": float("nan"), "acc": 0.5})
        run.log({"val/acc": 0.5, "val/step": 70})
        run.log({"val/acc": 0.25, "val/step": 60, "n": 9})
        run.log({"trainer/lr": 0.5, "trainer/global_step": 8, "other/x": "text"})
        run.log({"histogram": wandb.Histogram([1, 2, 3]), "page": wandb.Html("<b>x</b>", inject=False,
                                                                             data_is_not_path=True)})
        run.log({"at twelve": 1}, step=12)
        run.log({"at twelve": 2, "too": 3}, step=12)
        run.config.update({"lr": 0.25}, allow_val_change=True)
        run.config["late"] = {"a": 1, "b": {"c": 2}}
        run.summary["best"] = {"step": 3}
        run.summary["best"]["value"] = 5
        run.summary["status"] = "fine, by its owner"
        run.finish(exit_code=3)
        """),
    )
    (said,) = imported(tmp_path / "wandb", tmp_path / "run", capsys=capsys)

    found = without_about(points(tmp_path / "run", without=("walltime",)))
    assert found == {
        "train/loss": [(i, 1.0 / (i + 3)) for i in range(3)],
        "train/n": [(0, 0), (1, 1), (2, 2), (5, 9)],
        "train/epoch": [(0, 0), (1, 1), (2, 2), (3, 2)],  # W&B puts the last one beside what is drawn over it
        "train/nested.a": [(3, 2)],
        "train/nested.b.c": [(3, 3)],
        "train/text": [(3, "hi")],
        "train/list": [(3, [1, 2])],
        "train/nan": [(3, "NaN")],
        "train/acc": [(3, 0.5)],
        "train/at twelve": [(12, 2)],
        "train/too": [(12, 3)],
        "val/acc": [(60, 0.25), (70, 0.5)],
        "trainer/lr": [(8, 0.5)],
        "other/x": [(6, "text")],
        "other/best": [(70, {"step": 3, "value": 5})],
        "other/status": [(70, "fine, by its owner")],
    }
    times = {name: len(s) for name, s in points(tmp_path / "run").items() if name.endswith("/walltime")}
    assert times == {"train/walltime": 6, "val/walltime": 2, "trainer/walltime": 1}
    status, params, tags = about(tmp_path / "run")
    assert (status, said["status"]) == ("error", "error")
    assert params == {"lr": 0.25, "deep": {"a": 1, "b.c": [1, 2]}, "late": {"a": 1, "b": {"c": 2}}}
    assert tags == {"x": True, "k:v": True}
    assert said["left_out"] == {"media of type histogram": 1, "media of type html-file": 1}


def test_attempts_at_one_run_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed attempt and the one that goes on; W&B's own counter goes on as well; a run beside is another one."""
    run(
        tmp_path,
        RAW + textwrap.dedent("""
        run = init(id="one")
        for step in range(5):
            run.log({"train/loss": step, "train/step": step, "beside": step})
            run.log({"plain": step})
        run.finish(exit_code=1)
        run = init(id="two")
        run.log({"loss": 1.0})
        run.finish()
        run = init(id="one", resume="allow", tags=["again"])
        for step in range(3, 4):
            run.log({"train/loss": step + 100, "train/step": step, "beside": step + 100})
            run.log({"plain": step + 100})
        run.finish()
        """),
    )
    said = imported(tmp_path / "wandb", tmp_path / "runs", capsys=capsys)

    assert [result["run"] for result in said] == [str(tmp_path / "runs/one"), str(tmp_path / "runs/two")]
    found = points(tmp_path / "runs/one", without=("walltime", "wandb"))
    assert found == {
        "train/loss": [(0, 0), (1, 1), (2, 2), (3, 103)],
        "train/beside": [(0, 0), (1, 1), (2, 2), (3, 103)],
        "train/plain": [(1, 0), (11, 103)],
    }
    assert about(tmp_path / "runs/one") == ("completed", {}, {"again": True})
    assert any("counts its steps from 0 again: they are moved behind the 10 before" in n for n in said[0]["notes"])
    assert said[0]["restarts"] == 1
    assert points(tmp_path / "runs/two")["train/loss"] == [(0, 1)]


def test_a_torn_or_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a process that was killed: all whole records; a damaged one costs its block."""
    run(
        tmp_path,
        RAW + textwrap.dedent("""
        run = init(id="long")
        for step in range(400):
            run.log({"loss": step / 4, "text": "x" * 200})
        run.finish()
        """),
    )
    (file,) = (tmp_path / "wandb").glob("offline*/*.wandb")
    whole = bytearray(file.read_bytes())
    assert len(whole) > 3 * 32768

    def loss(data: bytes | bytearray, name: str) -> tuple[list[Any], dict[str, Any]]:
        copy = tmp_path / name / "run-long.wandb"
        copy.parent.mkdir()
        copy.write_bytes(data)
        (said,) = imported(copy.parent, tmp_path / f"run-{name}", capsys=capsys)
        return points(tmp_path / f"run-{name}")["train/loss"], said

    expected = [(step, step / 4) for step in range(400)]
    found, said = loss(whole, "whole")
    assert (found, said["status"], said["notes"]) == (expected, "completed", [])
    found, said = loss(whole[: len(whole) // 2], "torn")
    assert 100 < len(found) < 300
    assert found == expected[: len(found)]
    assert said["status"] == "interrupted"
    assert "run-long.wandb ends inside a record, which is left out" in said["notes"][0]
    whole[40_000] ^= 1
    found, said = loss(whole, "damaged")
    assert 250 < len(found) < 400
    assert set(found) < set(expected)
    assert said["left_out"]["damaged records"] == 1
    assert shutil.rmtree(tmp_path / "wandb") is None  # and no other test finds it
