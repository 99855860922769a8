"""PlattliLogger: what its verbs leave on disk, how it opens, how it resumes."""

from __future__ import annotations

import gc
import json
import math
import pickle
import shutil
import time
import warnings
from copy import deepcopy
from decimal import Decimal
from enum import Enum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loggers import PlattliLogger, checkpoint_record, resume
from loggers.errors import (
    ConfusionError,
    LoggerError,
    LoggerFinishedError,
    MetricNameError,
    MetricValueError,
    RecordError,
    RunExistsError,
    StatusError,
    StepError,
)
from plattli import Reader
from plattli._fs import lock_owner
from plattli.errors import RunFinishedError
from plattli.runinfo import run_info
from tests.test_loggers.plattli_runs import about, in_child, stored


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def plain_logger(run: Path, **options: Any) -> PlattliLogger:
    """A logger whose lines hold nothing but what is logged."""
    return PlattliLogger(run, walltime=False, **options)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- lines ---------------------------------------------------------------------------------------------


def test_a_line_is_metrics_of_its_context(run: Path) -> None:
    """<context>/<name>, <context>/epoch where there is one, <context>/walltime as float64."""
    lgr = PlattliLogger(run)
    before = time.time()
    lgr.log_metrics({"loss": 0.5, "acc": 0.25}, step=3, epoch=1)
    lgr.log_metrics({"loss": 0.75}, step=3, context="validate")
    after = time.time()
    lgr.finish("error")

    found = stored(run)
    times = [found.pop("train/walltime")[3], found.pop("validate/walltime")[3]]
    assert found == {"train/loss": {3: 0.5}, "train/acc": {3: 0.25}, "train/epoch": {3: 1}, "validate/loss": {3: 0.75}}
    assert before <= times[0] <= times[1] <= after
    with Reader(run) as reader:
        assert reader.metric_values("train/walltime", dtype="storage").dtype == np.float64
        assert reader.metric_values("train/epoch", dtype="storage").dtype.kind in "iu"


def test_the_walltime_axis_and_unknown_axes(run: Path) -> None:
    """An axis walltime is the walltime; axes that we don't know break nothing."""
    lgr = PlattliLogger(run)
    lgr.log_metrics({"a": 1}, step=1, walltime=1e9, rank=3)
    lgr.log_metrics({"a": 1}, step=2, walltime=np.float64(1e9 + 0.1))
    before = time.time()
    lgr.log_metrics({"a": 1}, step=3, walltime=None)
    lgr.finish("error")

    found = stored(run)
    assert found.keys() == {"train/a", "train/walltime"}
    assert found["train/walltime"][1] == 1e9
    assert found["train/walltime"][2] == 1e9 + 0.1
    assert found["train/walltime"][3] >= before


@pytest.mark.parametrize("floats", ["exact", "f32", "f64"])
def test_walltime_is_float64_whatever_the_metrics_are(run: Path, floats: Any) -> None:
    """Rounded to float32, a time would be off by a minute."""
    lgr = PlattliLogger(run, floats=floats)
    for step in range(5):
        lgr.log_metrics({"a": 0.1}, step=step, epoch=1, walltime=1764450000.25 + step)
    lgr.finish("completed")

    found = stored(run)
    assert found["train/walltime"] == {step: 1764450000.25 + step for step in range(5)}
    assert found["train/a"] == dict.fromkeys(range(5), float(np.float32(0.1)) if floats == "f32" else 0.1)


def test_without_walltime(run: Path) -> None:
    """Turned off, lines hold what was logged and nothing else."""
    lgr = plain_logger(run)
    lgr.log_metrics({"a": 1}, step=1)
    lgr.log_metrics({}, step=2)
    lgr.finish("completed")

    assert stored(run) == {"train/a": {1: 1}}


def test_an_own_epoch_or_walltime_is_said_once_and_costs_nothing_else(run: Path) -> None:
    """The line is stored even where warnings are errors."""
    lgr = PlattliLogger(run)
    with pytest.warns(RuntimeWarning, match="'epoch' of context 'train' is not stored"):
        lgr.log_metrics({"a": 1, "epoch": 7}, step=1, epoch=2)
    lgr.log_metrics({"a": 2, "epoch": 7}, step=2, epoch=3)
    lgr.log_metrics({"epoch": 8}, step=3)
    with pytest.raises(RuntimeWarning, match="walltime"):
        lgr.log_metrics({"a": 3, "walltime": 7}, step=4)
    lgr.finish("error")

    found = stored(run)
    assert found["train/a"] == {1: 1, 2: 2, 4: 3}
    assert found["train/epoch"] == {1: 2, 2: 3, 3: 8}
    assert found["train/walltime"][4] > 1e9


@pytest.mark.parametrize("hotsize", [1, 3, 500])
def test_one_metric_one_step_one_value(run: Path, hotsize: int) -> None:
    """A repeated point has the later value, hot or in the columns; another metric joins the step."""
    lgr = plain_logger(run, hotsize=hotsize)
    for step in range(10):
        lgr.log_metrics({"loss": float(step), "n": step}, step=step)
    for step in (2, 9):
        lgr.log_metrics({"loss": -1.0}, step=step)
        lgr.log_metrics({"other": 5}, step=step)
    assert stored(run)["train/loss"] == {s: -1.0 if s in (2, 9) else float(s) for s in range(10)}
    lgr.finish("completed")

    found = stored(run)
    assert found["train/loss"] == {s: -1.0 if s in (2, 9) else float(s) for s in range(10)}
    assert found["train/n"] == {s: s for s in range(10)}
    assert found["train/other"] == {2: 5, 9: 5}


def test_joining_a_step_costs_one_small_write(run: Path) -> None:
    """The hot log grows by about one line; it is not written anew."""
    lgr = plain_logger(run)
    for step in range(100):
        lgr.log_metrics({"loss": float(step)}, step=step)
    log = run / "plattli" / "hot.jsonl"
    before = log.stat()
    lgr.log_metrics({"loss": 0.25}, step=99, context="validate")

    assert log.stat().st_ino == before.st_ino
    assert 0 < log.stat().st_size - before.st_size < 100
    lgr.finish("error")
    assert stored(run)["validate/loss"] == {99: 0.25}


@pytest.mark.parametrize("hotsize", [1, 4, 500])
def test_every_metric_has_its_own_steps(run: Path, hotsize: int) -> None:
    """Validate at 3 after train at 5 is ordinary; a late point goes where it belongs."""
    lgr = plain_logger(run, hotsize=hotsize)
    for step in (1, 5, 6, 7, 8, 9, 10):
        lgr.log_metrics({"loss": float(step)}, step=step)
    lgr.log_metrics({"loss": 3.0}, step=3, context="validate")
    lgr.log_metrics({"loss": 2.5}, step=2)
    lgr.log_metrics({"loss": 8.5}, step=8)
    lgr.log_metrics({"loss": 2.0}, step=2, context="validate")
    lgr.finish("completed")

    assert stored(run) == {
        "train/loss": {1: 1.0, 2: 2.5, 5: 5.0, 6: 6.0, 7: 7.0, 8: 8.5, 9: 9.0, 10: 10.0},
        "validate/loss": {2: 2.0, 3: 3.0},
    }


# ---- values --------------------------------------------------------------------------------------------


class Level(Enum):
    LOW = 0.25


class Ctx(StrEnum):
    TEST = "test"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3), (0.1, 0.1), (True, 1), (np.bool_(False), 0), (np.int8(-3), -3), (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float16(0.1), float(np.float16(0.1))), (np.float32(0.1), float(np.float32(0.1))), (np.float64(0.1), 0.1),
        (np.array(2.5), 2.5), (np.array([[7]]), 7), (Decimal("0.1"), 0.1), (Fraction(1, 3), 1 / 3), (Level.LOW, 0.25),
        (math.inf, math.inf), (-math.inf, -math.inf), (5e-324, 5e-324), (-0.0, -0.0), (2**53 + 1, 2**53 + 1),
        (67128463.0, 67128463.0), ("text 🎉", "text 🎉"), ([1, [2.5, None]], [1, [2.5, None]]), ({"k": True},) * 2,
        (None, None),
    ],
)  # fmt: skip
def test_a_value_reads_back_exactly(run: Path, value: Any, expected: Any) -> None:
    """From the hot log and from the archive, with its sign and its type."""
    lgr = plain_logger(run)
    lgr.log_metrics({"v": value}, step=1)
    hot = stored(run)["train/v"][1]
    lgr.finish("completed")
    cold = stored(run)["train/v"][1]

    for found in (hot, cold):
        assert (repr(found), type(found)) == (repr(expected), type(expected))


def test_nan_is_kept(run: Path) -> None:
    """Alone, among numbers of every kind of column, and as the first of its column."""
    lgr = plain_logger(run, hotsize=2)
    for step in range(6):
        lgr.log_metrics({"a": math.nan if step % 2 else step / 3, "b": math.nan, "c": step}, step=step)
    lgr.finish("completed")

    found = stored(run)
    assert {s: v for s, v in found["train/a"].items() if v == v} == {0: 0.0, 2: 2 / 3, 4: 4 / 3}
    assert all(math.isnan(found["train/a"][s]) for s in (1, 3, 5))
    assert [math.isnan(v) for v in found["train/b"].values()] == [True] * 6
    assert found["train/c"] == {s: s for s in range(6)}


@pytest.mark.parametrize("hotsize", [1, 500])
def test_int_then_float_promotes(run: Path, hotsize: int) -> None:
    """0 and then 0.5 read 0, 0.5; an int joins floats; a huge int refuses to become inexact, and stays."""
    lgr = plain_logger(run, hotsize=hotsize)
    lgr.log_metrics({"a": 0, "b": 0.5, "c": 2**53 + 1}, step=1)
    lgr.log_metrics({"a": 0.5, "b": 1}, step=2)
    with pytest.raises(MetricValueError, match=r"'c': .*2\*\*53.*another name"):
        lgr.log_metrics({"a": 3, "c": 0.5}, step=3)
    lgr.finish("completed")

    assert stored(run) == {
        "train/a": {1: 0.0, 2: 0.5, 3: 3.0}, "train/b": {1: 0.5, 2: 1.0}, "train/c": {1: 2**53 + 1},
    }  # fmt: skip


def test_an_array_is_read_at_the_call(run: Path) -> None:
    """What the caller changes afterwards changes nothing."""
    lgr = plain_logger(run)
    loss, report = np.array(0.5), {"rows": [1]}
    lgr.log_metrics({"loss": loss, "report": report}, step=1)
    lgr.log_other("report", report)
    loss[()] = 9
    report["rows"].append(2)
    lgr.finish("completed")

    original = {"rows": [1]}
    assert stored(run) == {"train/loss": {1: 0.5}, "train/report": {1: original}, "other/report": {1: original}}


class Broken:
    def __float__(self) -> float:
        raise ZeroDivisionError("no number today")


def test_bad_values_do_not_cost_their_siblings(run: Path) -> None:
    """The good ones are stored; one error names each bad one, its type and a remedy."""
    lgr = plain_logger(run)
    lgr.log_metrics({"joined": 1.0}, step=1)
    bad = {
        "bytes": b"x", "complex": 1j, "array": np.zeros(3), "broken": Broken(), "huge": 2**70, "": 1, 5: 1,
        "joined": "text", "sur\ud800": 1, "long" * 600: 1,
    }  # fmt: skip
    with pytest.raises(MetricValueError) as caught:
        lgr.log_metrics({"first": 0.5, **bad, "last": 7}, step=2)
    with pytest.raises(MetricValueError):
        lgr.log_metrics({"first": 1.5, **bad, "last": 8}, step=3)
    lgr.finish("completed")

    text = str(caught.value)
    text.encode()
    for part in (
        "10 values", "step 2", "run 'run'", "'bytes': got bytes", ".decode()", "'complex'", "'array'", ".mean()",
        "no number today", "str()", "non-empty string", "cannot mix a str into a f32 column", "another name",
        r"sur\ud800", "shorten it",
    ):  # fmt: skip
        assert part in text
    assert "first" not in text
    assert stored(run) == {"train/joined": {1: 1.0}, "train/first": {2: 0.5, 3: 1.5}, "train/last": {2: 7, 3: 8}}


NO_STEPS = [7.5, True, -1, "7", 2**63, 2**64, math.nan, math.inf, None, np.array([1, 2]), np.bool_(1)]


@pytest.mark.parametrize("step", NO_STEPS)
def test_a_step_that_is_none_is_refused_before_anything_is_written(run: Path, step: Any) -> None:
    """Not even the directory is made."""
    lgr = PlattliLogger(run)
    with pytest.raises(StepError):
        lgr.log_metrics({"a": 1}, step=step)
    assert not run.exists()
    if step is not None:
        with pytest.raises(StepError):
            lgr.log_confusion([[1]], ["a"], step=step)
    assert not run.exists()


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", True])
def test_an_epoch_that_is_none_is_refused_before_anything_is_written(run: Path, epoch: Any) -> None:
    """As steps are."""
    with pytest.raises(StepError, match="epoch"):
        PlattliLogger(run).log_metrics({"a": 1}, step=1, epoch=epoch)
    assert not run.exists()


@pytest.mark.parametrize("context", ["", None, 3, ["train"], "a\ud800", "x" * 3000])
def test_a_context_that_is_none_is_refused_before_anything_is_written(run: Path, context: Any) -> None:
    """It could never be found again."""
    lgr = PlattliLogger(run)
    with pytest.raises(MetricNameError):
        lgr.log_metrics({"a": 1}, step=1, context=context)
    if context is not None:
        with pytest.raises(MetricNameError):
            lgr.log_confusion([[1]], ["a"], context=context)
    assert not run.exists()


def test_steps_up_to_the_last(run: Path) -> None:
    """Integral floats, NumPy and 0-d integers are steps; 2**63 - 1 is the last."""
    lgr = plain_logger(run, hotsize=2)
    for step in (7.0, np.int64(8), np.array(9), np.float32(10), 2**31, 2**32 - 2, 2**32 - 1, 2**32, 1e10):
        lgr.log_metrics({"a": 1}, step=step)  # type: ignore[arg-type]
    lgr.log_metrics({"b": 1}, step=2**63 - 1, context="validate")
    lgr.finish("completed")

    found = stored(run)
    assert list(found["train/a"]) == [7, 8, 9, 10, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 10**10]
    assert found["validate/b"] == {2**63 - 1: 1}


ODD_NAMES = [
    "AR@100", "timing(s)/gen", "my.loss", "🎉", "new\nline", "x" * 300, "ä" * 300, "..", "../../up", "/abs", "a//b",
    "aux", "%41", "100%", "foo", "foo/bar", "Loss", "loss", "step", "hot", "back\\slash", "nul\0", ".", "a/", "C:x",
    "bar.f32/x", "bar.indices", "\\" * 150,
]  # fmt: skip


@pytest.mark.parametrize("end", ["live", "error", "completed"])
def test_odd_names_and_contexts_read_back(run: Path, end: str) -> None:
    """Through hot log, columns and archive; nothing escapes the run directory."""
    lgr = plain_logger(run, hotsize=2)
    contexts = ["train", "test/long tail", "..", "é\n", "%2F", "z" * 250]
    for step in range(1, 5):
        for c, context in enumerate(contexts):
            line = {name: step * 1000 + c * 100 + i for i, name in enumerate(ODD_NAMES)}
            lgr.log_metrics(line, step=step, context=context)
    state = lgr.logger_state()
    if end != "live":
        lgr.finish(end)

    expected = {
        f"{context}/{name}": {step: step * 1000 + c * 100 + i for step in range(1, 5)}
        for c, context in enumerate(contexts)
        for i, name in enumerate(ODD_NAMES)
    }
    assert stored(run) == expected
    assert [p.name for p in run.parent.iterdir()] == ["run"]
    if end == "live":
        lgr.finish("error")

    again = plain_logger(run, if_exists="append")
    again.log_tags("look")
    assert again.logger_state()["steps"] == state["steps"] == dict.fromkeys(contexts, 4)
    again.finish("error")
    third = plain_logger(run)
    last = dict(zip(contexts, [1, 2, 3, 4, 0, 2], strict=True))
    third.reattach({**state, "steps": last})
    kept = {}
    for context, step in last.items():
        names = [name for name in expected if name.startswith(f"{context}/")]
        kept |= {name: {s: v for s, v in expected[name].items() if s <= step} for name in names if step}
    assert stored(run) == kept
    third.finish("completed")


def test_names_that_need_one_path_are_refused_by_name(run: Path) -> None:
    """foo.f32 cannot be a file and a folder: the second of the two is refused, siblings are stored."""
    lgr = plain_logger(run)
    with pytest.raises(MetricValueError, match=r"'foo.f32/x'.*choose another"):
        lgr.log_metrics({"foo": 0.5, "foo.f32/x": 1.0, "ok": 2.0}, step=1)
    lgr.finish("completed")

    assert stored(run) == {"train/foo": {1: 0.5}, "train/ok": {1: 2.0}}


def test_names_beside_each_other(run: Path) -> None:
    """As long as no metric needs the path of another one's files, dots and slashes are nothing special."""
    lgr = plain_logger(run, hotsize=2)
    names = ["foo.f32", "foo.f32/x", "Loss", "loss", "bar", "bar/x", "baz.json", "baz"]
    for step in range(5):
        lgr.log_metrics({name: step + i / 4 for i, name in enumerate(names)}, step=step)
    lgr.finish("completed")

    assert stored(run) == {f"train/{n}": {s: s + i / 4 for s in range(5)} for i, n in enumerate(names)}


def test_a_context_may_be_an_enum_of_strings(run: Path) -> None:
    """It is stored under its value."""
    lgr = plain_logger(run)
    lgr.log_metrics({"a": 1}, step=1, context=Ctx.TEST)
    lgr.finish("error")

    assert stored(run) == {"test/a": {1: 1}}


# ---- params, tags, free-form values ----------------------------------------------------------------------


def test_params_are_the_flat_keys_and_run_is_ours(run: Path) -> None:
    """What JSON cannot hold is text, nested values stay nested; id, tags, status, times and versions are in _run."""
    lgr = PlattliLogger(run, run_id="r1")
    lgr.log_params({"lr": 0.1, "opt": {"name": "adam", "betas": (0.9, 0.99)}, "path": Path("/data"), 3: 1})
    lgr.log_params({"nan": math.nan})
    lgr.log_tags(["a", "b"])
    lgr.log_tags({"team": "x"})
    lgr.log_tags("c")
    lgr.log_metrics({"a": 1}, step=1)
    running = about(run)
    lgr.finish("completed")

    with Reader(run) as reader:
        config = reader.config()
    ours = config.pop("_run")
    assert math.isnan(config.pop("nan"))
    assert config == {"lr": 0.1, "opt": {"name": "adam", "betas": [0.9, 0.99]}, "path": "/data", "3": 1}
    assert (running["status"], running["finished"]) == ("running", None)
    assert (ours["id"], ours["status"], ours["params_history"]) == ("r1", "completed", [])
    assert ours["tags"] == {"a": True, "b": True, "team": "x", "c": True}
    assert ours["started"] == running["started"] <= ours["finished"]
    assert ours["versions"].keys() == {"plattli-loggers", "python"}


def test_earlier_values_of_params_stay_recoverable(run: Path) -> None:
    """Changed ones only: the same again, NaN included, is no change, and True is not 1."""
    lgr = PlattliLogger(run)
    lgr.log_params({"lr": 0.1, "n": 1, "x": math.nan, "same": [1]})
    lgr.log_params({"lr": 0.2, "n": True, "x": math.nan, "same": (1,)})
    lgr.log_params({"lr": 0.3, "new": 1})
    lgr.log_metrics({"a": 1}, step=1)
    lgr.finish("error")

    info = run_info(run)
    assert {k: v for k, v in info.params.items() if k != "x"} == {"lr": 0.3, "n": True, "same": [1], "new": 1}
    assert info.params["n"] is True
    assert [entry["params"] for entry in about(run)["params_history"]] == [{"lr": 0.1, "n": 1}, {"lr": 0.2}]


def test_the_reserved_param_is_refused_and_its_siblings_are_stored(run: Path) -> None:
    """_run is ours."""
    lgr = PlattliLogger(run)
    with pytest.raises(MetricValueError, match="'_run' is the logger's own"):
        lgr.log_params({"lr": 0.1, "_run": 1})
    lgr.log_metrics({"a": 1}, step=1)
    lgr.finish("error")

    assert run_info(run).params == {"lr": 0.1}


def test_free_form_values_and_confusions(run: Path) -> None:
    """other/<key> at the current step, <context>/<name> or <name> with epoch, labels and matrix."""
    lgr = plain_logger(run)
    lgr.log_other("early", {"a": [1]})
    lgr.log_metrics({"loss": 1.0}, step=4)
    lgr.log_metrics({"loss": 1.0}, step=3, context="validate")
    lgr.log_other("report", "done")
    lgr.log_other("report", "done twice")
    lgr.log_other("number", 0.1)
    lgr.log_confusion(np.array([[3, 1], [0, 4]]), ["cat", "dog"], epoch=2)
    lgr.log_confusion([[0.5]], [1], step=9, context="validate", name="cm")
    lgr.log_confusion([[1]], ["x"], name="step")
    lgr.finish("completed")

    found = stored(run)
    assert found.pop("train/loss") == {4: 1.0}
    assert found.pop("validate/loss") == {3: 1.0}
    assert found == {
        "other/early": {0: {"a": [1]}},
        "other/report": {4: "done twice"},
        "other/number": {4: 0.1},
        "confusion": {4: {"epoch": 2, "labels": ["cat", "dog"], "matrix": [[3, 1], [0, 4]]}},
        "validate/cm": {9: {"epoch": None, "labels": ["1"], "matrix": [[0.5]]}},
        "step": {9: {"epoch": None, "labels": ["x"], "matrix": [[1]]}},
    }
    with Reader(run) as reader:
        assert {reader.manifest()[name]["dtype"] for name in ("other/number", "confusion", "validate/cm")} == {"jsonl"}


def test_what_cannot_be_stored_is_refused_before_anything_is_written(run: Path) -> None:
    """A matrix that is not square, a value that JSON cannot hold, a name that is none."""
    lgr = PlattliLogger(run)
    with pytest.raises(ConfusionError):
        lgr.log_confusion([[1, 2]], ["a"])
    for name in ("", None, 5):
        with pytest.raises(MetricNameError):
            lgr.log_confusion([[1]], ["a"], name=name)  # type: ignore[arg-type]
    with pytest.raises(MetricValueError, match=r"'x'.*bytes"):
        lgr.log_other("x", b"1")
    with pytest.raises(MetricNameError):
        lgr.log_other("\ud800", 1)
    with pytest.raises(MetricValueError):
        lgr.log_params([1])  # type: ignore[arg-type]
    with pytest.raises(MetricValueError):
        lgr.log_tags([""])
    with pytest.raises(StatusError):
        lgr.finish("done")
    assert not run.exists()


@pytest.mark.parametrize("options", [{"if_exists": "maybe"}, {"floats": "f16"}, {"run_id": ""}, {"run_id": 5}])
def test_bad_options_are_refused(run: Path, options: Any) -> None:
    """At once, with what was got."""
    with pytest.raises(LoggerError, match=repr(next(iter(options.values())))):
        PlattliLogger(run, **options)


def test_a_runs_inner_folder_is_no_place_for_a_run(tmp_path: Path) -> None:
    """Said at once, not by the first verb in the middle of somebody's set-up."""
    with pytest.raises(LoggerError, match="name the run root"):
        PlattliLogger(tmp_path / "runs" / "plattli")
    assert not list(tmp_path.iterdir())


# ---- the end of a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "early_stop"])
def test_a_final_status_archives(run: Path, status: str) -> None:
    """metrics.plattli is all that is left."""
    lgr = PlattliLogger(run)
    lgr.log_metrics({"a": 1}, step=1)
    lgr.finish(status)

    assert [p.name for p in run.iterdir()] == ["metrics.plattli"]
    info = run_info(run)
    assert (info.kind, info.status, info.owner, info.id) == ("zip", status, None, lgr.run_id())
    assert lgr.logger_info()["status"] == status


@pytest.mark.parametrize("status", ["error", "interrupted"])
def test_any_other_status_leaves_the_run_resumable(run: Path, status: str) -> None:
    """It is recorded; the next logger goes on where it ended."""
    lgr = PlattliLogger(run)
    lgr.log_metrics({"a": 1}, step=1)
    state = lgr.logger_state()
    lgr.finish(status)

    info = run_info(run)
    assert (info.kind, info.status, info.owner) == ("dir", status, None)
    assert info.finished is not None
    again = PlattliLogger(run)
    again.reattach(state)
    again.log_metrics({"a": 2}, step=2)
    resumed = run_info(run)
    assert (resumed.status, resumed.finished, resumed.started) == ("running", None, info.started)
    again.finish("completed")
    assert stored(run)["train/a"] == {1: 1, 2: 2}


def test_a_live_run_is_running_and_names_its_owner(run: Path) -> None:
    """Host, pid and start time are with the lock, which lies outside plattli/."""
    import os
    import socket

    lgr = PlattliLogger(run)
    lgr.log_metrics({"a": 1}, step=1)
    info = run_info(run)

    assert info.status == "running"
    assert info.owner is not None
    assert (info.owner["pid"], info.owner["host"]) == (os.getpid(), socket.gethostname())
    assert info.owner["started"] <= time.time()
    assert lgr.backend().newest == 1  # type: ignore[union-attr]
    lgr.finish("error")


def test_verbs_after_finish_say_so(run: Path) -> None:
    """Each of them, and what was stored does not change."""
    for status in ("completed", "error"):
        lgr = PlattliLogger(run / status)
        lgr.log_metrics({"a": 1}, step=1)
        lgr.finish(status)
        before = files(run / status)
        verbs = [
            lambda lgr=lgr: lgr.log_metrics({"a": 1}, step=2),
            lambda lgr=lgr: lgr.log_params({"a": 1}),
            lambda lgr=lgr: lgr.log_tags("a"),
            lambda lgr=lgr: lgr.log_other("a", 1),
            lambda lgr=lgr: lgr.log_confusion([[1]], ["a"]),
            lambda lgr=lgr: lgr.finish("error"),
        ]
        for verb in verbs:
            with pytest.raises(LoggerFinishedError, match=status):
                verb()
        assert files(run / status) == before
        assert lgr.logger_state()["steps"] == {"train": 1}


def test_a_run_without_a_line_can_be_finished(run: Path) -> None:
    """Its params are there."""
    lgr = PlattliLogger(run)
    lgr.log_params({"lr": 0.1})
    lgr.finish("completed")

    assert run_info(run).params == {"lr": 0.1}
    assert stored(run) == {}


# ---- opening what exists ---------------------------------------------------------------------------------


def existing(run: Path, end: str) -> PlattliLogger:
    lgr = plain_logger(run, hotsize=2)
    lgr.log_params({"lr": 0.1})
    for step in range(1, 6):
        lgr.log_metrics({"a": step}, step=step)
    lgr.finish(end)
    return lgr


@pytest.mark.parametrize("end", ["error", "completed"])
def test_an_existing_run_is_refused_and_left_alone(run: Path, end: str) -> None:
    """Every verb names the three ways on, nothing is written, and finish does not touch the other's run."""
    existing(run, end)
    before = files(run)
    lgr = PlattliLogger(run)
    for verb in (
        lambda: lgr.log_metrics({"a": 1}, step=1),
        lambda: lgr.log_params({"lr": 9}),
        lambda: lgr.log_tags("x"),
        lambda: lgr.log_other("a", 1),
        lambda: lgr.log_confusion([[1]], ["a"]),
    ):
        with pytest.raises(RunExistsError, match=r"reattach\(state\).*if_exists='append'.*if_exists='replace'"):
            verb()
    lgr.finish("completed")

    assert files(run) == before


@pytest.mark.parametrize("end", ["error", "completed"])
def test_append_goes_on(run: Path, end: str) -> None:
    """Same id, same params, later steps; also earlier ones."""
    first = existing(run, end)
    lgr = plain_logger(run, if_exists="append")
    lgr.log_params({"lr": 0.2})
    lgr.log_other("at", "the current step")
    lgr.log_metrics({"a": 60}, step=6)
    lgr.log_metrics({"a": 20}, step=2)
    lgr.finish("completed")

    assert stored(run) == {"train/a": {1: 1, 2: 20, 3: 3, 4: 4, 5: 5, 6: 60}, "other/at": {5: "the current step"}}
    assert lgr.run_id() == first.run_id() == run_info(run).id
    assert about(run)["params_history"][0]["params"] == {"lr": 0.1}


@pytest.mark.parametrize("end", ["error", "completed"])
def test_replace_removes_the_old_run(run: Path, end: str) -> None:
    """Its metrics, its params and its id."""
    first = existing(run, end)
    lgr = plain_logger(run, if_exists="replace")
    lgr.log_metrics({"b": 1}, step=1)
    lgr.finish("completed")

    info = run_info(run)
    assert stored(run) == {"train/b": {1: 1}}
    assert info.params == {}
    assert info.id == lgr.run_id() != first.run_id()


def test_a_newer_logger_in_the_process_fences_the_older_one(run: Path) -> None:
    """The older one's verbs raise and change nothing."""
    older = plain_logger(run)
    older.log_metrics({"a": 1}, step=1)
    newer = plain_logger(run, if_exists="append")
    newer.log_metrics({"a": 2}, step=2)
    with pytest.raises(RunFinishedError, match="newer writer"):
        older.log_metrics({"a": 3}, step=3)
    with pytest.raises(RunFinishedError, match="newer writer"):
        older.finish("completed")
    newer.finish("completed")

    assert stored(run) == {"train/a": {1: 1, 2: 2}}


# ---- resume --------------------------------------------------------------------------------------------


CUTS = {"train": 10, "validate": 8, "data": 3, "test/a": 9}


def log_until(lgr: PlattliLogger, last: int, factor: float = 1.0, after: int = 0) -> None:
    """Log steps up to ``last``: each context has an axis of its own."""
    for step in range(after + 1, last + 1):
        lgr.log_metrics({"loss": step * factor, "n": step}, step=step, epoch=step // 4)
        if step % 4 == 0:
            lgr.log_metrics({"loss": step * factor}, step=step, epoch=step // 4, context="validate")
            lgr.log_metrics({"wait": 0.5}, step=step // 4 + 1, context="data")
        if step % 3 == 0:
            lgr.log_metrics({"loss": step * factor}, step=step, context="test/a")
            lgr.log_other("note", f"at {step}")
            lgr.log_confusion([[step]], ["x"], context="validate", name="cm")


def until(last: int, factor: float = 1.0) -> dict[str, dict[int, Any]]:
    steps = range(1, last + 1)
    fours, threes = [s for s in steps if s % 4 == 0], [s for s in steps if s % 3 == 0]
    return {
        "train/loss": {s: s * factor for s in steps},
        "train/n": {s: s for s in steps},
        "train/epoch": {s: s // 4 for s in steps},
        "validate/loss": {s: s * factor for s in fours},
        "validate/epoch": {s: s // 4 for s in fours},
        "data/wait": {s // 4 + 1: 0.5 for s in fours},
        "test/a/loss": {s: s * factor for s in threes},
        "other/note": {s: f"at {s}" for s in threes},
        "validate/cm": {s: {"epoch": None, "labels": ["x"], "matrix": [[s]]} for s in threes},
    }


@pytest.mark.parametrize("hotsize", [2, 500])
@pytest.mark.parametrize("end", ["same logger", "error", "completed", "moved"])
def test_reattach_cuts_every_context_and_goes_on(run: Path, hotsize: int, end: str) -> None:
    """At 10 after 15: live, ended, archived or moved; from then on as if nothing had been logged after 10."""
    lgr = plain_logger(run, hotsize=hotsize)
    log_until(lgr, 10)
    state = json.loads(json.dumps(lgr.logger_state()))
    log_until(lgr, 15, factor=-1.0, after=10)
    lgr.log_metrics({"later": 1.0}, step=1, context="train/extra")  # newer than the state, for all its name
    if end != "same logger":
        lgr.finish("completed" if end == "moved" else end)
        if end == "moved":
            run = run.rename(run.parent / "elsewhere")
        lgr = plain_logger(run, hotsize=hotsize)
    lgr.reattach(state)

    assert stored(run) == until(10)
    assert lgr.logger_state() == {**state, "directory": str(run)}
    assert run_info(run).status == "running"
    log_until(lgr, 20, after=10)
    lgr.finish("completed")
    assert stored(run) == until(20)
    assert run_info(run).id == state["run_id"]


def test_reattach_three_times_in_a_row(run: Path) -> None:
    """Forward and back again: each time what the state says, and never more than the run holds."""
    lgr = plain_logger(run, hotsize=3)
    states = {}
    for step in range(1, 16):
        log_until(lgr, step, after=step - 1)
        states[step] = lgr.logger_state()
    for step in (12, 10, 5):
        lgr.reattach(states[step])
        assert stored(run) == until(step)
    log_until(lgr, 7, after=5)
    lgr.finish("completed")

    assert stored(run) == until(7)


def test_a_loop_that_begins_far_below_its_checkpoint_is_told(run: Path) -> None:
    """Its step was not restored: it is said of the first line, and the lines are logged as they are."""
    lgr = plain_logger(run)
    for step in range(101):
        lgr.log_metrics({"a": float(step)}, step=step)
    lgr.log_metrics({"a": 1.0}, step=100, context="validate")
    state = lgr.logger_state()
    lgr.finish("interrupted")
    lgr = plain_logger(run)
    lgr.reattach(state)
    with pytest.warns(RuntimeWarning, match=r"resumed at train step 100, and its first train line is of step 1: "):
        lgr.log_metrics({"a": 9.0}, step=1)
    lgr.log_metrics({"a": 9.0}, step=2)
    lgr.log_metrics({"a": 2.0}, step=100, context="validate")
    lgr.log_metrics({"a": 3.0}, step=99, context="validate")
    lgr.finish("completed")

    found = stored(run)
    assert [found["train/a"][step] for step in (0, 1, 2, 3, 100)] == [0.0, 9.0, 9.0, 3.0, 100.0]
    assert found["validate/a"] == {99: 3.0, 100: 2.0}


def test_a_state_that_an_older_version_wrote(run: Path) -> None:
    """These words are in checkpoints that exist; they mean the same for good."""
    lgr = plain_logger(run, run_id="20261129-101500-0f0f0f0f")
    for step in range(5):
        lgr.log_metrics({"a": float(step)}, step=step)
    lgr.log_other("note", "x")
    lgr.finish("interrupted")
    written_by_0_1_0 = (
        '{"run_id": "20261129-101500-0f0f0f0f", "directory": "/elsewhere/run", "step": 2, "steps": {"train": 2, "": 2}}'
    )
    lgr = plain_logger(run)
    lgr.reattach(json.loads(written_by_0_1_0))
    lgr.log_metrics({"a": 9.0}, step=3)
    lgr.finish("completed")

    assert stored(run) == {"train/a": {0: 0.0, 1: 1.0, 2: 2.0, 3: 9.0}}


def test_a_state_from_before_anything_was_logged(run: Path) -> None:
    """Everything that came later goes; params that were there stay."""
    lgr = plain_logger(run)
    lgr.log_params({"lr": 0.1})
    lgr.log_tags("kept")
    state = lgr.logger_state()
    started = json.loads((run / "plattli" / "config.json").read_text())["_run"]["started"]
    assert (state["step"], state["steps"]) == (-1, {})
    log_until(lgr, 6)
    lgr.finish("error")
    again = plain_logger(run)
    again.reattach(state)

    assert stored(run) == {}
    assert again.logger_state()["steps"] == {}
    log_until(again, 3)
    again.finish("completed")
    assert stored(run) == {name: points for name, points in until(3).items() if points}
    info = run_info(run)
    assert (info.params, info.tags, info.started) == ({"lr": 0.1}, {"kept": True}, started)


def test_a_state_from_before_anything_was_logged_of_a_run_that_never_began(run: Path) -> None:
    """There is nothing to cut; what the dead process had said of the run stays, and the id."""
    lgr = plain_logger(run)
    lgr.log_params({"lr": 0.1})
    state = lgr.logger_state()
    del lgr  # its process dies
    gc.collect()
    again = plain_logger(run)
    again.reattach(state)
    again.log_metrics({"a": 1}, step=1)
    again.finish("completed")

    info = run_info(run)
    assert (info.id, info.params) == (state["run_id"], {"lr": 0.1})


def test_values_of_the_whole_run_are_cut_at_their_own_step(run: Path) -> None:
    """What log_other and nameless contexts stored before the state stays, even where no metric was logged yet."""
    lgr = plain_logger(run)
    lgr.log_other("before", 1)
    lgr.log_confusion([[1]], ["x"], step=5)
    lgr.log_confusion([[1]], ["x"], step=2, name="by/hand")
    state = lgr.logger_state()
    lgr.log_confusion([[2]], ["x"], step=6)
    lgr.log_confusion([[2]], ["x"], step=3, name="by/hand")
    lgr.log_metrics({"a": 1}, step=9)
    lgr.log_other("after", 1)
    lgr.finish("error")
    again = plain_logger(run)
    again.reattach(state)
    again.finish("error")

    steps = {name: list(points) for name, points in stored(run).items()}
    assert steps == {"other/before": [0], "confusion": [5], "by/hand": [2]}


def test_params_changed_on_resume(run: Path) -> None:
    """Current and earlier values are readable."""
    lgr = existing(run, "completed")
    again = plain_logger(run)
    again.reattach(lgr.logger_state())
    again.log_params({"lr": 0.05, "warmup": 3})
    again.finish("completed")

    assert run_info(run).params == {"lr": 0.05, "warmup": 3}
    assert [entry["params"] for entry in about(run)["params_history"]] == [{"lr": 0.1}]


def test_the_id_decides_which_run_it_is(run: Path, tmp_path: Path) -> None:
    """Another run, or none, in the directory is refused by name; nothing is cut or written."""
    lgr = existing(run, "error")
    other = existing(tmp_path / "other", "error")
    before = files(run)
    with pytest.raises(RecordError, match=f"holds run '{lgr.run_id()}'.*of run '{other.run_id()}'"):
        PlattliLogger(run).reattach(other.logger_state())
    with pytest.raises(RecordError, match=r"there is no run in .*missing.*which was in .*run"):
        PlattliLogger(tmp_path / "missing").reattach(lgr.logger_state())
    assert files(run) == before
    assert not (tmp_path / "missing").exists()
    begun = PlattliLogger(tmp_path / "begun")
    begun.log_metrics({"a": 1}, step=1)
    with pytest.raises(RecordError, match="has begun run"):
        begun.reattach(lgr.logger_state())
    begun.log_metrics({"a": 2}, step=2)
    begun.finish("completed")
    assert stored(tmp_path / "begun")["train/a"] == {1: 1, 2: 2}


NO_STATES = [None, 5, "x", [], {}, {"run_id": "x"}, {"run_id": 5, "steps": {}}, {"run_id": "x", "steps": {"a": 1.5}}]


@pytest.mark.parametrize("state", NO_STATES)
def test_what_is_no_state_is_refused(run: Path, state: Any) -> None:
    """With what was got, before anything is written."""
    with pytest.raises(RecordError, match="expected the state of a PlattliLogger"):
        PlattliLogger(run).reattach(state)
    assert not run.exists()


class Keeper:
    """Another logger with a state."""

    def __init__(self) -> None:
        self.attached: list[Any] = []

    def logger_state(self) -> dict[str, Any]:
        return {"run_id": "k", "steps": {}}

    def reattach(self, state: Any) -> None:
        self.attached.append(state)


def test_records_know_the_type_of_logger(run: Path) -> None:
    """A record of another logger is refused by both names; its own resumes."""
    lgr = plain_logger(run)
    lgr.log_metrics({"a": 1}, step=1)
    record = json.loads(json.dumps(checkpoint_record(lgr)))
    lgr.log_metrics({"a": 2}, step=2)
    lgr.finish("error")
    keeper = Keeper()

    with pytest.raises(RecordError, match=r"of .*Keeper.*PlattliLogger"):
        resume(PlattliLogger(run), checkpoint_record(keeper))
    with pytest.raises(RecordError, match=r"of .*PlattliLogger.*Keeper"):
        resume(keeper, record)
    assert keeper.attached == []
    again = plain_logger(run)
    resume(again, record)
    assert stored(run) == {"train/a": {1: 1}}
    again.finish("error")


def test_two_processes_with_one_state(run: Path) -> None:
    """The second is refused by the first's name while that lives, and never interleaves."""
    import os

    lgr = plain_logger(run)
    log_until(lgr, 5)
    state = lgr.logger_state()
    log_until(lgr, 8, after=5)

    def second() -> None:
        plain_logger(run).reattach(state)

    refused = in_child(second)
    assert refused.startswith("RunLockedError")
    assert f"process {os.getpid()}" in refused
    assert stored(run) == until(8)
    lgr.finish("error")
    assert in_child(second) == "None"
    assert stored(run) == until(5)


def test_a_copied_run_resumes_where_the_copy_is(run: Path, tmp_path: Path) -> None:
    """A run directory can be copied while it is live, and the copy goes on by itself."""
    lgr = plain_logger(run, hotsize=3)
    log_until(lgr, 9)
    state = lgr.logger_state()
    lgr.backend().settle()  # type: ignore[union-attr]
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    log_until(lgr, 12, factor=-1.0, after=9)
    second = plain_logger(copy)
    second.reattach(state)
    log_until(second, 15, after=9)
    second.finish("completed")
    lgr.finish("completed")

    assert stored(copy) == until(15)
    assert stored(run)["train/loss"][12] == -12.0


# ---- copies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [lambda lgr: pickle.loads(pickle.dumps(lgr)), deepcopy])
@pytest.mark.parametrize("begun", [False, True])
def test_a_copy_has_the_identity_and_writes_nothing(run: Path, copy: Any, begun: bool) -> None:
    """It warns once; the state it gives is the original's, so that no checkpoint of it could cut the run."""
    lgr = plain_logger(run)
    if begun:
        log_until(lgr, 5)
    before = files(run.parent)
    twin = copy(lgr)
    with pytest.warns(RuntimeWarning, match="writes nothing: it is a copy"):
        twin.log_metrics({"a": 1}, step=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twin.log_metrics({"a": 1}, step=9)
        twin.log_params({"a": 1})
        twin.log_confusion([[1]], ["a"], context="x/y")
        twin.reattach(lgr.logger_state())
        twin.finish("completed")

    assert files(run.parent) == before
    assert twin.run_id() == lgr.run_id()
    assert twin.run_dir == run
    assert twin.logger_state() == lgr.logger_state()
    log_until(lgr, 8, after=5 if begun else 0)
    lgr.finish("error")
    assert stored(run) == until(8)


def test_a_logger_that_is_dropped_leaves_a_readable_run_and_a_free_lock(run: Path) -> None:
    """Without finish: nothing is lost, the status is not 'completed', and the next one may go on."""
    lgr = plain_logger(run, hotsize=3)
    log_until(lgr, 10)
    lgr.backend().settle()  # type: ignore[union-attr]
    state = lgr.logger_state()
    assert lock_owner(run) is not None
    del lgr
    gc.collect()

    assert lock_owner(run) is None
    assert run_info(run).status == "died"
    assert stored(run) == until(10)
    again = plain_logger(run)
    again.reattach(state)
    again.finish("completed")
    assert stored(run) == until(10)
