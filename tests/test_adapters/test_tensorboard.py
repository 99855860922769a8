"""TensorBoardLogger, read back with TensorBoard's own accumulator."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.backends import _tfevents
from adapters.backends.tensorboard import TensorBoardLogger
from loggers.contract import VERBS
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
from tests.lazy import Lazy
from tests.test_adapters.tensorboard_files import Files, events

custom_scalars = Lazy("tensorboard.plugins.custom_scalar.metadata", "tensorboard.plugins.custom_scalar.layout_pb2")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return where a run shall be."""
    return tmp_path / "board" / "run"


def contents(run: Path) -> dict[str, bytes]:
    """Return the event files of a run and what is in them."""
    return {path.name: path.read_bytes() for path in run.iterdir()}


def newest(run: Path) -> Path:
    """Return the event file that was begun last."""
    return max(run.glob("events.out.tfevents.*"))


def again(state: Any, run: Path) -> TensorBoardLogger:
    """Return a logger that goes on from a state that has been through JSON."""
    logger = TensorBoardLogger(run)
    logger.reattach(json.loads(json.dumps(state, allow_nan=False)))
    return logger


# --- the object ---------------------------------------------------------------------------------------


def test_it_has_the_ten_verbs_and_is_called_inline(run: Path) -> None:
    """Every verb is a method, and the fan-out learns where to put the logger."""
    assert all(callable(getattr(TensorBoardLogger(run), verb)) for verb in VERBS)
    assert TensorBoardLogger.placement == "inline"


def test_building_it_does_nothing(run: Path) -> None:
    """No directory, no file; asking who it is changes that neither."""
    logger = TensorBoardLogger(run)
    assert (logger.run_id(), logger.run_url()) == ("run", None)
    assert logger.logger_info()["logdir"] == str(run)
    assert logger.logger_state()["step"] == -1
    assert not run.parent.exists()


def test_writing_needs_no_tensorboard() -> None:
    """Neither the import nor a whole run loads TensorBoard, its protos, or another tracker."""
    script = """
import sys, tempfile
from adapters.backends.tensorboard import TensorBoardLogger
assert "google_crc32c" not in sys.modules
logger = TensorBoardLogger(tempfile.mkdtemp() + "/run")
logger.log_params({"lr": 0.1}); logger.log_metrics({"loss": 1.0}, step=0); logger.finish("completed")
print(sorted({"tensorboard", "google.protobuf", "wandb", "torch", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "[]\n"


def test_a_missing_package_is_named_with_its_extra(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without google-crc32c the first verb says what to install, and makes no directory."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ImportError, match=r"TensorBoardLogger needs .*'plattli-loggers\[tensorboard\]'"):
        TensorBoardLogger(run).log_metrics({"loss": 1.0}, step=0)
    assert not run.exists()


def test_if_exists_takes_three_words(run: Path) -> None:
    """Another word is refused at once, and the three are named."""
    with pytest.raises(LoggerError, match="'refuse', 'append' or 'replace', got 'overwrite'"):
        TensorBoardLogger(run, if_exists="overwrite")  # type: ignore[arg-type]


def test_a_pickle_is_the_recipe(run: Path) -> None:
    """A logger that has not begun comes out of a pickle as it went in."""
    TensorBoardLogger(run).log_metrics({"loss": 1.0}, step=0)
    copied = pickle.loads(pickle.dumps(TensorBoardLogger(run, if_exists="replace")))
    copied.log_metrics({"loss": 2.0}, step=1)
    assert Files(run).scalars("train/loss") == [(1, 2.0)]


@pytest.mark.parametrize("duplicate", [copy.copy, lambda logger: pickle.loads(pickle.dumps(logger))])
def test_a_pickle_of_a_running_logger_cannot_harm_its_run(run: Path, duplicate: Any) -> None:
    """The copy knows the run's name and refuses to write beside the original, or to replace it."""
    logger = TensorBoardLogger(run, if_exists="replace")
    logger.log_metrics({"loss": 1.0}, step=0)
    before = contents(run)
    copied = duplicate(logger)
    assert copied.run_id() == "run"
    with pytest.raises(RunExistsError):
        copied.log_metrics({"loss": 2.0}, step=1)
    assert contents(run) == before


# --- metrics ------------------------------------------------------------------------------------------


def test_a_line_is_one_event(run: Path) -> None:
    """One record holds the whole row, with the driver's step and the epoch as a tag of its own."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 0.1, "schedule/lr": 3}, step=7, epoch=2)
    version, start, row = events(next(run.iterdir()))
    assert version.file_version == "brain.Event:2"
    assert start.session_log.status == start.session_log.START
    assert start.step == 0
    assert row.step == 7
    assert [(value.tag, value.simple_value) for value in row.summary.value] == [
        ("train/loss", float(np.float32(0.1))),
        ("train/schedule/lr", 3.0),
        ("train/epoch", 2.0),
    ]


def test_the_epoch_of_the_line_wins_over_a_metric_of_that_name(run: Path) -> None:
    """A metric called epoch gives way to the axis, and is a metric where there is no axis."""
    logger = TensorBoardLogger(run)
    with pytest.warns(RuntimeWarning, match="the metric 'epoch' of context 'train' is left out") as caught:
        logger.log_metrics({"epoch": 99, "loss": 1.0}, step=0, epoch=3)
        logger.log_metrics({"epoch": 99, "loss": 2.0}, step=1, epoch=3)
    assert len(caught) == 1
    logger.log_metrics({"epoch": 99}, step=2)
    assert Files(run).scalars("train/epoch") == [(0, 3.0), (1, 3.0), (2, 99.0)]
    assert Files(run).scalars("train/loss") == [(0, 1.0), (1, 2.0)]


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (1e300, math.inf),
        (-1e300, -math.inf),
        (math.inf, math.inf),
        (2**64 - 1, 2.0**64),
        (16_777_217, 16_777_216.0),
        (True, 1.0),
        (np.float16(0.5), 0.5),
        (np.array([3]), 3.0),
    ],
)
def test_values_become_float32(run: Path, value: Any, drawn: float) -> None:
    """What float32 cannot hold is rounded, or infinite; scalars of any kind are taken."""
    TensorBoardLogger(run).log_metrics({"x": value, "y": 1.0}, step=0)
    assert Files(run).scalars("train/x") == [(0, drawn)]
    assert Files(run).scalars("train/y") == [(0, 1.0)]


def test_nan_is_kept(run: Path) -> None:
    """NaN is a value."""
    TensorBoardLogger(run).log_metrics({"x": math.nan}, step=0)
    ((step, value),) = Files(run).scalars("train/x")
    assert step == 0
    assert math.isnan(value)


@pytest.mark.parametrize("bad", ["high", None, [1, 2], {"a": 1}, np.zeros(3), 1j])
def test_a_bad_value_is_named_and_costs_no_sibling(run: Path, bad: Any) -> None:
    """The good ones are written, then the error says which one was not, and where."""
    logger = TensorBoardLogger(run)
    with pytest.raises(MetricValueError, match=r"1 value of the validate line of step 4.*'note'"):
        logger.log_metrics({"loss": 1.0, "note": bad, "acc": 2.0}, step=4, context="validate")
    assert Files(run).tags() == ["validate/acc", "validate/loss"]


@pytest.mark.parametrize("name", ["", 3, None])
@pytest.mark.parametrize("known", [True, False])
def test_a_bad_name_costs_no_sibling(run: Path, name: Any, known: bool) -> None:
    """Also where all values are floats, and whether or not a line of the good names came before."""
    logger = TensorBoardLogger(run)
    if known:
        logger.log_metrics({"loss": 0.5}, step=0, epoch=7)
    with pytest.raises(MetricValueError, match=r"1 value of the train line of step 1.*name must be"):
        logger.log_metrics({"loss": 1.0, name: 2.0}, step=1, epoch=8)
    assert Files(run).scalars("train/loss")[known:] == [(1, 1.0)]
    assert Files(run).scalars("train/epoch")[known:] == [(1, 8.0)]
    assert Files(run).tags() == ["train/epoch", "train/loss"]


def test_a_name_of_another_class_is_text(run: Path) -> None:
    """Its text is the tag, whatever the class says of itself."""

    class Name(str):
        def __str__(self) -> str:
            return "another"

    logger = TensorBoardLogger(run)
    for step in (1, 2):
        logger.log_metrics({Name("loss"): float(step)}, step=step)
    assert Files(run).scalars("train/loss") == [(1, 1.0), (2, 2.0)]


def test_a_string_says_where_text_goes(run: Path) -> None:
    """The error for a value that is no number names the verb and the method that take it."""
    with pytest.raises(MetricValueError, match=r"got str 'high'.*log_other\(\).*backend\(logger\)\.add_text"):
        TensorBoardLogger(run).log_metrics({"note": "high"}, step=0)


@pytest.mark.parametrize("step", [7.5, True, -1, "7", None, 2**63])
def test_a_bad_step_is_refused_before_anything_is_written(run: Path, step: Any) -> None:
    """Neither a file nor a directory comes of it."""
    with pytest.raises(StepError, match="step must be"):
        TensorBoardLogger(run).log_metrics({"loss": 1.0}, step=step)
    assert not run.exists()


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (StepError, {"epoch": 1.5}),
        (MetricNameError, {"context": ""}),
        (MetricNameError, {"context": ["train"]}),
        (MetricValueError, {"walltime": "noon"}),
    ],
)
def test_other_bad_arguments_write_nothing(run: Path, error: type[Exception], arguments: Any) -> None:
    """Epoch, context and wall time are looked at first."""
    with pytest.raises(error):
        TensorBoardLogger(run).log_metrics({"loss": 1.0}, step=0, **arguments)
    assert not run.exists()


def test_large_steps_and_odd_names_arrive(run: Path) -> None:
    """Names in any script, with any sign, and steps beyond 32 bits."""
    names = ["ü/日本 %", "a b", "x.y", "/lead", "q?"]
    TensorBoardLogger(run).log_metrics(dict.fromkeys(names, 1.0), step=2**40, context="é")
    assert Files(run).tags() == sorted(f"é/{name}" for name in names)
    assert Files(run).scalars("é/a b") == [(2**40, 1.0)]


def test_a_line_has_the_time_it_is_given(run: Path) -> None:
    """The axis walltime is the event's time, now is the default, and other axes do no harm."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=0, walltime=12.5, tokens=100)
    before = time.time()
    logger.log_metrics({"loss": 1.0}, step=1, walltime=None)
    first, second = Files(run).wall_times("train/loss")
    assert first == 12.5
    assert before <= second <= time.time()


def test_values_are_taken_at_the_call(run: Path) -> None:
    """What the caller does with the dict afterwards changes neither the file nor what is known of it."""
    logger = TensorBoardLogger(run)
    row = {"loss": 1.0}
    logger.log_metrics(row, step=1)
    row["loss"] = 2.0
    logger.log_metrics(row, step=1)
    assert Files(run).scalars("train/loss") == [(1, 1.0), (1, 2.0)]


def test_the_same_point_again_is_written_once(run: Path) -> None:
    """A repeated value is left out, a corrected one is written, and a new metric joins its step."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0, "nan": math.nan}, step=5, epoch=0)
    logger.log_metrics({"loss": 1.0, "nan": math.nan, "acc": 3.0}, step=5, epoch=0)
    logger.log_metrics({"loss": 2.0}, step=5, epoch=0)
    files = Files(run)
    assert files.scalars("train/loss") == [(5, 1.0), (5, 2.0)]
    assert len(files.scalars("train/nan")) == 1
    assert files.scalars("train/acc") == [(5, 3.0)]
    assert files.scalars("train/epoch") == [(5, 0.0)]


def test_late_values_are_left_out_counted_and_said_once(run: Path) -> None:
    """Only the tags that are ahead miss the step, and there is one warning for all of them."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 5.0}, step=5)
    with pytest.warns(RuntimeWarning, match=r"step 3 of train/loss came after a later step"):
        logger.log_metrics({"loss": 3.0, "acc": 3.0}, step=3)
    logger.log_metrics({"loss": 2.0}, step=2)  # a second warning would be an error here
    logger.log_metrics({"loss": 3.0}, step=3, context="validate")
    assert Files(run).scalars("train/loss") == [(5, 5.0)]
    assert Files(run).scalars("train/acc") == [(3, 3.0)]
    assert Files(run).scalars("validate/loss") == [(3, 3.0)]
    assert logger.logger_info()["late"] == 2


def test_threads_share_a_logger(run: Path) -> None:
    """Lines of several threads are all there, whole, in one file."""
    logger = TensorBoardLogger(run)

    def log(context: str) -> None:
        for step in range(300):
            logger.log_metrics({"a": step, "b": -step}, step=step, context=context)

    threads = [threading.Thread(target=log, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(run.iterdir())) == 1
    for number in range(4):
        assert Files(run).scalars(f"t{number}/a") == [(step, float(step)) for step in range(300)]
        assert Files(run).scalars(f"t{number}/b") == [(step, -float(step)) for step in range(300)]


# --- params, tags, other, confusion -------------------------------------------------------------------


def test_params_are_text_and_hparams_at_once(run: Path) -> None:
    """Both are there before the first step, and what no double holds exactly is text."""
    params = {"lr": 0.1, "n": 3, "amp": True, "opt": "sgd", "none": None, "sizes": [1, 2], "big": 2**60 + 1}
    TensorBoardLogger(run).log_params({**params, "nan": math.nan, "cls": dict})
    shown = {"none": "None", "sizes": "[1, 2]", "big": str(2**60 + 1), "nan": "nan", "cls": "builtins.dict"}
    assert Files(run).params() == params | shown
    ((step, table),) = Files(run).texts("params")
    assert step == 0
    assert "| `lr` | `0.1` |" in table
    assert "| `big` | `1152921504606846977` |" in table


def test_late_params_add_up(run: Path) -> None:
    """A second call keeps the earlier params, and the same call again writes nothing."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1, "seed": 1})
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.log_params({"lr": 0.2, "found": "x"})
    before = contents(run)
    logger.log_params({"found": "x"})
    assert contents(run) == before
    assert Files(run).params() == {"lr": 0.2, "seed": 1.0, "found": "x"}
    assert len(Files(run).texts("params")) == 2


@pytest.mark.parametrize(
    ("tags", "shown"),
    [("one", "- `one`"), (["a", "b"], "- `a`\n- `b`"), ({"k": 3, "x": [1]}, "- `k`: `3`\n- `x`: `[1]`")],
)
def test_tags_are_a_list(run: Path, tags: Any, shown: str) -> None:
    """One string, several, or a mapping."""
    TensorBoardLogger(run).log_tags(tags)
    assert Files(run).texts("tags") == [(0, shown)]


def test_tags_add_up(run: Path) -> None:
    """A later call shows the earlier tags too."""
    logger = TensorBoardLogger(run)
    logger.log_tags("a")
    logger.log_tags(["b", "a"])
    assert Files(run).texts("tags")[-1] == (0, "- `a`\n- `b`")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("# T\n|a|", "# T\n|a|"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        (np.float32(2), "2.0"),
        ([1, "ü"], '```json\n[\n  1,\n  "ü"\n]\n```'),
    ],
)
def test_other_values_are_text(run: Path, value: Any, shown: str) -> None:
    """Text as it is, numbers as text, the rest as a block, at the current step."""
    logger = TensorBoardLogger(run)
    logger.log_other("k", value)
    logger.log_metrics({"loss": 1.0}, step=4)
    logger.log_other("k", value)
    assert Files(run).texts("other/k") == [(0, shown), (4, shown)]


def test_a_value_that_is_no_data_is_refused(run: Path) -> None:
    """The error names the key."""
    with pytest.raises(MetricValueError, match="'blob'"):
        TensorBoardLogger(run).log_other("blob", b"x")


def test_a_confusion_matrix_is_a_picture_and_a_table(run: Path) -> None:
    """Both are at the current step unless told otherwise, and the tag has a context if given one."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=3)
    logger.log_confusion(np.array([[5, 1], [2, 7]]), ["yes", "no"], epoch=2, context="validate")
    logger.log_confusion([[1]], ["all"], step=8, name="cm")
    (image,) = Files(run).images("validate/confusion")
    assert image.step == 3
    assert image.encoded_image_string.startswith(b"\x89PNG")
    ((step, table),) = Files(run).texts("validate/confusion/table")
    assert step == 3
    assert table.startswith("epoch 2\n\n| true \\\\ predicted | `yes` | `no` |")
    assert "| `no` | 2 | 7 |" in table
    assert [image.step for image in Files(run).images("cm")] == [8]


def test_a_late_picture_is_left_out(run: Path) -> None:
    """Pictures keep to increasing steps as scalars do."""
    logger = TensorBoardLogger(run)
    logger.log_confusion([[1]], ["a"], step=8)
    with pytest.warns(RuntimeWarning, match="step 7 of confusion"):
        logger.log_confusion([[2]], ["a"], step=7)
    assert [image.step for image in Files(run).images("confusion")] == [8]


def test_a_bad_confusion_matrix_writes_nothing(run: Path) -> None:
    """It is looked at first."""
    with pytest.raises(ConfusionError):
        TensorBoardLogger(run).log_confusion([[1, 2]], ["a"])
    assert not run.exists()


# --- the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("completed", "STATUS_SUCCESS"),
        ("early_stop", "STATUS_SUCCESS"),
        ("error", "STATUS_FAILURE"),
        ("interrupted", "STATUS_FAILURE"),
    ],
)
def test_finish_records_the_status(run: Path, status: str, shown: str) -> None:
    """Until then there is none."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    assert Files(run).status() == "STATUS_UNKNOWN"
    logger.finish(status)
    assert Files(run).status() == shown
    assert Files(run).params() == {"lr": 0.1}


def test_a_foreign_status_ends_nothing(run: Path) -> None:
    """After the error, the run can still be finished."""
    logger = TensorBoardLogger(run)
    with pytest.raises(StatusError):
        logger.finish("done")
    logger.finish("completed")


def test_no_verb_after_finish(run: Path) -> None:
    """Whatever writes raises, says what to do, and writes nothing; what tells goes on telling."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=4)
    logger.finish("completed")
    before = contents(run)
    for call in (
        lambda: logger.log_metrics({"loss": 1.0}, step=5),
        lambda: logger.log_params({"a": 1}),
        lambda: logger.log_tags("a"),
        lambda: logger.log_other("a", 1),
        lambda: logger.log_confusion([[1]], ["a"]),
        lambda: logger.finish("completed"),
        lambda: logger.backend().add_scalar("a", 1.0),
    ):
        with pytest.raises(LoggerFinishedError, match=r"run\) is finished.*reattach"):
            call()
    assert contents(run) == before
    assert logger.run_id() == "run"
    assert logger.logger_state()["step"] == 4


# --- a directory that is not empty ----------------------------------------------------------------------


def test_an_existing_run_is_refused(run: Path) -> None:
    """The first verb names the ways on and writes nothing, and finishing leaves the run alone."""
    TensorBoardLogger(run).log_metrics({"loss": 1.0}, step=0)
    before = contents(run)
    logger = TensorBoardLogger(run)
    for call in (
        lambda: logger.log_params({"lr": 0.1}),
        lambda: logger.log_metrics({"loss": 2.0}, step=0),
        lambda: logger.backend().add_scalar("a", 1.0),
    ):
        with pytest.raises(RunExistsError, match=r"reattach\(state\).*'append' or 'replace'"):
            call()
    logger.finish("error")
    assert contents(run) == before
    with pytest.raises(LoggerFinishedError):
        logger.finish("error")


def test_append_keeps_every_point(run: Path) -> None:
    """The old points stay, whatever their step, and the new ones follow."""
    first = TensorBoardLogger(run)
    first.log_metrics({"loss": 1.0}, step=0)
    first.log_metrics({"loss": 1.5}, step=1)
    second = TensorBoardLogger(run, if_exists="append")
    second.log_metrics({"loss": 2.0}, step=2)
    assert Files(run).scalars("train/loss") == [(0, 1.0), (1, 1.5), (2, 2.0)]


def test_replace_removes_the_old_files_only(run: Path) -> None:
    """What is no event file stays."""
    TensorBoardLogger(run).log_params({"old": 1})
    (run / "notes.txt").write_text("keep")
    logger = TensorBoardLogger(run, if_exists="replace")
    logger.log_metrics({"loss": 2.0}, step=2)
    logger.finish("completed")
    assert Files(run).params() == {}
    assert Files(run).scalars("train/loss") == [(2, 2.0)]
    assert (run / "notes.txt").read_text() == "keep"


# --- resume ---------------------------------------------------------------------------------------------


def test_the_state_is_small_plain_data(run: Path) -> None:
    """It survives strict JSON and knows the step of each context, not of each metric, and what shares a chart."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": math.inf})
    logger.log_tags({"score": math.nan})
    logger.log_metrics({f"m{number}": 1.0 for number in range(50)}, step=5)
    logger.log_metrics({"loss": 1.0}, step=3, context="validate")
    logger.log_confusion([[1]], ["a"], step=4)
    logger.log_metrics({"m1": 1.0}, step=4, context="test")
    state = logger.logger_state()
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert state["logdir"] == str(run)
    assert state["run_id"] == "run"
    assert state["step"] == 5
    assert state["steps"] == {"train": 5, "validate": 3, "test": 4}
    assert state["charts"] == {"m1": ["test", "train"]}
    assert state["pictures"] == {"confusion": 4}
    assert len(json.dumps(state)) < 600


def test_reattach_cuts_what_came_after(run: Path) -> None:
    """Later steps go, and of the last step what was written after the state; the old numbers stay in the file."""
    logger = TensorBoardLogger(run)
    for step in range(6):
        logger.log_metrics({"loss": step}, step=step, epoch=0)
    logger.log_other("at", "the checkpoint")
    state = logger.logger_state()
    logger.log_metrics({"loss": 100.0}, step=5, context="validate")
    logger.log_metrics({"loss": 6.0, "gone": 1.0}, step=6, epoch=0)
    before = contents(run)
    resumed = again(state, run)
    assert resumed.logger_state() | {"tail": []} == state | {"tail": []}
    files = Files(run)
    assert files.scalars("train/loss") == [(step, float(step)) for step in range(6)]
    assert files.tags() == ["train/epoch", "train/loss"]
    resumed.log_metrics({"loss": 60.0}, step=6)
    assert Files(run).scalars("train/loss")[-2:] == [(5, 5.0), (6, 60.0)]
    assert files.texts("other/at") == [(5, "the checkpoint")]
    for name, data in before.items():
        changed = sum(old != new for old, new in zip(data, contents(run)[name], strict=True))
        # a key and a checksum each, of the text that is in the new file, and of layout and two lines that came later
        assert changed <= 4 * (1 + 4)


def log_texts(logger: TensorBoardLogger, steps: range, note: str = "") -> None:
    """Log a line per step, with a table and a text at every fourth."""
    for step in steps:
        logger.log_metrics({"loss": step}, step=step)
        if step % 4 == 0:
            logger.log_confusion([[step, 1], [2, 3]], ["a", "b"], context="validate")
            logger.log_other("report", f"at {step}{note}")
        if step == 13:
            logger.log_params({"late": 1})


def all_texts(run: Path) -> dict[str, list[tuple[int, str]]]:
    """Return the texts of a run that :func:`log_texts` wrote, but for their markup."""
    files = Files(run)
    tags = ("other/report", "validate/confusion/table", "params")
    return {tag: [(step, text[-20:]) for step, text in files.texts(tag)] for tag in tags}


@pytest.mark.parametrize("cut", [8, 10])
def test_texts_that_are_logged_again_are_there_once(run: Path, tmp_path: Path, cut: int) -> None:
    """A resume, and one more from the same state, look like a run that was never killed."""
    straight = tmp_path / "straight"
    logger = TensorBoardLogger(straight)
    logger.log_params({"lr": 0.1})
    log_texts(logger, range(18))
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    log_texts(logger, range(cut + 1))
    state = logger.logger_state()
    log_texts(logger, range(cut + 1, 18))
    assert [step for step, _ in all_texts(run)["other/report"]] == [0, 4, 8, 12, 16]
    for _ in range(3):
        resumed = again(state, run)
        assert [step for step, _ in all_texts(run)["other/report"]] == [0, 4, 8]
        log_texts(resumed, range(cut + 1, 18))
        assert all_texts(run) == all_texts(straight)


def test_texts_are_there_once_after_a_chain_of_resumes(run: Path) -> None:
    """Each from a state of the process before it, the last ones back to the first process."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    log_texts(logger, range(5))
    first = state = logger.logger_state()
    log_texts(logger, range(5, 10))
    for step in range(5, 15):
        logger = again(state, run)
        log_texts(logger, range(step, step + 1))
        state = logger.logger_state()
        log_texts(logger, range(step + 1, step + 6), note=" of a process that was killed")
    logger = again(state, run)
    assert [text for _, text in all_texts(run)["other/report"]] == ["at 0", "at 4", "at 8", "at 12"]
    logger = again(first, run)
    assert [text for _, text in all_texts(run)["other/report"]] == ["at 0", "at 4"]


def test_texts_after_going_back_and_forth(run: Path) -> None:
    """Back to an old state, then to a newer one of the same process: texts have the steps that numbers have."""
    logger = TensorBoardLogger(run)
    log_texts(logger, range(9))
    back = logger.logger_state()
    log_texts(logger, range(9, 17))
    forth = logger.logger_state()
    log_texts(logger, range(17, 30))
    log_texts(again(back, run), range(9, 25))
    log_texts(again(forth, run), range(17, 21))
    files = Files(run)
    assert files.scalars("train/loss") == [(step, float(step)) for step in range(21)]
    assert files.texts("other/report") == [(step, f"at {step}") for step in range(0, 21, 4)]


def test_another_text_at_the_step_replaces_the_old_one(run: Path) -> None:
    """What the resumed run says counts, and what it does not say again is gone."""
    logger = TensorBoardLogger(run)
    log_texts(logger, range(11))
    state = logger.logger_state()
    logger.log_other("gone", "x")
    log_texts(logger, range(11, 18))
    log_texts(again(state, run), range(11, 14), note=" again")
    assert [text for _, text in all_texts(run)["other/report"]] == ["at 0", "at 4", "at 8", "at 12 again"]
    with pytest.raises(KeyError, match="other/gone"):
        Files(run).texts("other/gone")


def test_a_state_from_before_the_first_verb_leaves_no_text(run: Path) -> None:
    """Everything is logged again then, and is there once."""
    logger = TensorBoardLogger(run)
    state = logger.logger_state()
    log_texts(logger, range(14))
    log_texts(again(state, run), range(14))
    assert {tag: [step for step, _ in texts] for tag, texts in all_texts(run).items()} == {
        "other/report": [0, 4, 8, 12],
        "validate/confusion/table": [0, 4, 8, 12],
        "params": [0],
    }


@pytest.mark.parametrize("harm", ["torn", "cut off", "removed", "another's"])
def test_texts_after_harm_to_the_old_file(run: Path, harm: str) -> None:
    """Whatever is left of it, what is logged again is there once."""
    logger = TensorBoardLogger(run)
    log_texts(logger, range(11))
    state = logger.logger_state()
    log_texts(logger, range(11, 18))
    file = max(run.iterdir())
    data = file.read_bytes()
    if harm == "torn":
        file.write_bytes(data + data[-50:-20])
    elif harm == "cut off":
        file.write_bytes(data[:-30])
    elif harm == "removed":
        file.unlink()
    else:
        (run / "events.out.tfevents.9999999998.other").write_bytes(b"no event file")
    log_texts(again(state, run), range(11, 18))
    kept = [] if harm == "removed" else ["at 0", "at 4", "at 8"]
    assert [text for _, text in all_texts(run)["other/report"]] == [*kept, "at 12", "at 16"]


def test_old_texts_that_cannot_be_hidden_are_said(run: Path) -> None:
    """The run goes on all the same, and the next resume makes it good."""
    logger = TensorBoardLogger(run)
    log_texts(logger, range(101))
    state = logger.logger_state()
    log_texts(logger, range(101, 105))
    with largest_file(3000), pytest.warns(RuntimeWarning, match=r"cannot take old texts and .*too large.*twice"):
        resumed = again(state, run)
    log_texts(resumed, range(101, 105))
    assert [step for step, _ in all_texts(run)["other/report"]][-4:] == [100, 104, 100, 104]
    log_texts(again(state, run), range(101, 105))
    assert [step for step, _ in all_texts(run)["other/report"]] == [*range(0, 105, 4)]


def test_reattach_to_the_time_before_the_first_step(run: Path) -> None:
    """Params and texts stay, every metric goes."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    logger.log_other("machine", "x")
    state = logger.logger_state()
    logger.log_metrics({"loss": 1.0}, step=0)
    resumed = again(state, run)
    resumed.log_params({"lr": 0.1})
    assert Files(run).tags() == []
    resumed.log_metrics({"loss": 2.0}, step=0)
    assert Files(run).scalars("train/loss") == [(0, 2.0)]
    assert Files(run).params() == {"lr": 0.1}


def test_the_state_of_an_earlier_version(run: Path) -> None:
    """Checkpoints from before there were charts are taken, too."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=0)
    state = dict(logger.logger_state())
    del state["charts"]
    logger.log_metrics({"loss": 2.0}, step=1)
    again(state, run).log_metrics({"loss": 3.0}, step=1)
    assert Files(run).scalars("train/loss") == [(0, 1.0), (1, 3.0)]


def test_reattach_any_number_of_times(run: Path) -> None:
    """Cut after cut, in the same object and in new ones, forth and back."""
    logger = TensorBoardLogger(run)
    states = []
    for step in range(4):
        logger.log_metrics({"loss": step}, step=step)
        states.append(logger.logger_state())
    logger.reattach(states[2])
    logger.log_metrics({"loss": 30.0}, step=3)
    other = again(logger.logger_state(), run)
    other.log_metrics({"loss": 40.0}, step=4)
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    last = again(states[1], run)
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0)]
    last.log_metrics({"loss": 2.0}, step=2)
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("taken", ["before", "after"])
@pytest.mark.parametrize("step", [0, 3])
def test_reattach_after_the_end(run: Path, taken: str, step: int) -> None:
    """A finished run goes on, and nothing says how it ended before; a server would show that for good."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    logger.log_metrics({"loss": 1.0}, step=step)
    states = [logger.logger_state()]
    logger.finish("error")
    states.append(logger.logger_state())
    logger.reattach(states[taken == "after"])
    assert Files(run).status() == "STATUS_UNKNOWN"
    assert Files(run).params() == {"lr": 0.1}
    logger.log_metrics({"loss": 2.0}, step=4)
    logger.finish("completed")
    assert Files(run).status() == "STATUS_SUCCESS"
    assert Files(run).scalars("train/loss") == [(step, 1.0), (4, 2.0)]


def test_an_end_that_cannot_be_hidden_is_covered(run: Path) -> None:
    """Where an older file may still say how the run ended, the first file says that it is running."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=3)
    state = logger.logger_state()
    logger.finish("error")
    file = newest(run)
    harmed = bytearray(file.read_bytes())
    harmed[harmed.index(b"train/loss") + 12] ^= 1
    file.write_bytes(harmed)
    logger = again(state, run)
    assert Files(run).status() == "STATUS_RUNNING"
    logger.log_metrics({"loss": 2.0}, step=4)
    logger.finish("completed")
    assert Files(run).status() == "STATUS_SUCCESS"

    after = TensorBoardLogger(run, if_exists="append")
    after.log_params({"lr": 0.1})
    assert Files(run).status() == "STATUS_RUNNING"


def test_params_and_tags_go_on_adding_up(run: Path) -> None:
    """What the run had before the resume is in the tables after it."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    logger.log_tags("a")
    logger.log_metrics({"loss": 1.0}, step=3)
    resumed = again(logger.logger_state(), run)
    resumed.log_params({"late": 2})
    resumed.log_tags("b")
    assert Files(run).params() == {"lr": 0.1, "late": 2.0}
    assert Files(run).texts("tags")[-1] == (0, "- `a`\n- `b`")


def test_the_last_steps_are_known_after_a_resume(run: Path) -> None:
    """A value from before the cut is late for the new process too."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=5)
    logger.log_metrics({"loss": 1.0}, step=3, context="validate")
    resumed = again(logger.logger_state(), run)
    resumed.log_metrics({"loss": 2.0}, step=4, context="validate")
    with pytest.warns(RuntimeWarning, match="step 4 of train/loss"):
        resumed.log_metrics({"loss": 2.0}, step=4)
    assert Files(run).scalars("train/loss") == [(5, 1.0)]
    assert Files(run).scalars("validate/loss") == [(3, 1.0), (4, 2.0)]


@pytest.mark.parametrize("harm", ["removed", "cut off", "damaged"])
def test_reattach_without_the_old_file(run: Path, harm: str) -> None:
    """If the old file cannot give the last step back, what is there of it is not touched."""
    logger = TensorBoardLogger(run)
    for step in range(3):
        logger.log_metrics({"loss": step}, step=step)
    state = logger.logger_state()
    (file,) = run.iterdir()
    data = file.read_bytes()
    if harm == "removed":
        file.unlink()
    elif harm == "cut off":
        file.write_bytes(data[:-5])
    else:
        file.write_bytes(data[:-10] + b"\0\0\0\0\0\0" + data[-4:])
    resumed = again(state, run)
    resumed.log_metrics({"loss": 3.0}, step=3)
    resumed.finish("completed")
    assert Files(run).scalars("train/loss")[-1] == (3, 3.0)
    assert sum(step == 3 for step, _ in Files(run).scalars("train/loss")) == 1


def test_another_directory_is_refused(run: Path, tmp_path: Path) -> None:
    """The error names both directories and the remedy, and nothing is written."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=0)
    other = tmp_path / "other"
    with pytest.raises(RecordError) as caught:
        TensorBoardLogger(other).reattach(logger.logger_state())
    assert f"on {other} " in str(caught.value)
    assert f"build TensorBoardLogger({str(run)!r})" in str(caught.value)
    assert not other.exists()


def test_another_way_to_the_same_directory_is_fine(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths and links lead to the same run."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=0)
    link = tmp_path / "link"
    link.symlink_to(run.parent)
    monkeypatch.chdir(link)
    resumed = TensorBoardLogger("run")
    resumed.reattach(logger.logger_state())
    monkeypatch.chdir(tmp_path)
    resumed.log_metrics({"loss": 2.0}, step=1)
    assert Files(run).scalars("train/loss") == [(0, 1.0), (1, 2.0)]


@pytest.mark.parametrize(
    "state", [None, "x", [], {}, {"logdir": "x"}, {"step": "x"}, {"tail": [["f"]]}, {"steps": 3}]
)
def test_a_foreign_state_is_refused(run: Path, state: Any) -> None:
    """What logger_state() never returns is named as that."""
    logger = TensorBoardLogger(run)
    good = logger.logger_state()
    bad = {**good, **state} if isinstance(state, dict) and len(state) and "logdir" not in state else state
    with pytest.raises(RecordError, match=r"logger_state\(\) never returns"):
        logger.reattach(bad)
    assert not run.exists()


# --- processes and disks --------------------------------------------------------------------------------


def test_everything_is_in_the_file_when_a_verb_returns(run: Path) -> None:
    """A process that dies by SIGKILL has lost nothing."""
    script = f"""
import os, signal
from adapters.backends.tensorboard import TensorBoardLogger
logger = TensorBoardLogger({str(run)!r})
logger.log_params({{"lr": 0.1}})
for step in range(100):
    logger.log_metrics({{"loss": step}}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=240)
    assert done.returncode == -9
    assert Files(run).scalars("train/loss") == [(step, float(step)) for step in range(100)]
    assert Files(run).params() == {"lr": 0.1}


def test_a_forked_copy_writes_nothing(run: Path) -> None:
    """The child's verbs return, with one warning; the parent goes on."""
    script = f"""
import os, warnings
from adapters.backends.tensorboard import TensorBoardLogger
logger = TensorBoardLogger({str(run)!r})
logger.log_metrics({{"loss": 0.0}}, step=0)
writer, state = logger.backend(), logger.logger_state()
logger._lock.acquire()  # as a thread of the parent may hold it at the fork
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logger.log_metrics({{"loss": 9.0}}, step=9)
        logger.log_params({{"a": 1}})
        logger.log_tags("a")
        logger.log_other("a", 1)
        logger.log_confusion([[1]], ["a"])
        logger.reattach(state)
        logger.finish("completed")
        writer.add_scalar("x", 1.0, 1)
        writer.add_text("x", "1", 1)
        writer.add_event(b"")
    right = logger.logger_state() == state and len(caught) == 1 and "forked" in str(caught[0].message)
    os._exit(0 if right else 1)
logger._lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
logger.log_metrics({{"loss": 1.0}}, step=1)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=240, check=True)
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0)]
    assert len(list(run.iterdir())) == 1


def test_a_child_may_have_a_run_of_its_own(run: Path) -> None:
    """A logger that had not begun before the fork begins in the child."""
    script = f"""
import os
from adapters.backends.tensorboard import TensorBoardLogger
logger = TensorBoardLogger({str(run)!r})
child = os.fork()
if child == 0:
    logger.log_metrics({{"loss": 1.0}}, step=0)
else:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=240, check=True)
    assert Files(run).scalars("train/loss") == [(0, 1.0)]


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the operating system refuse every byte of a file beyond ``size``, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_the_disk_refused_can_be_logged_again(run: Path) -> None:
    """Half a line on a full disk raises, poisons nothing, and counts as not written."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 0.0}, step=0)
    (file,) = run.iterdir()
    size = file.stat().st_size
    with largest_file(size + 20), pytest.raises(OSError, match="File too large"):
        logger.log_metrics({"loss": 1.0}, step=1)
    assert file.stat().st_size == size + 20
    with largest_file(30), pytest.raises(OSError, match="File too large"):
        logger.log_metrics({"loss": 1.0}, step=1)
    assert list(run.iterdir()) == [file]
    logger.log_metrics({"loss": 1.0}, step=1)
    state = logger.logger_state()
    logger.log_metrics({"loss": 2.0}, step=2)
    logger.finish("completed")
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    again(state, run)
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0)]


def test_a_run_that_is_removed_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new file, and it is said: nothing goes to a file that nobody can see."""
    monkeypatch.setattr(_tfevents, "_LOOK", 0.0)
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=1)
    shutil.rmtree(run)
    with pytest.warns(RuntimeWarning, match="has been removed, and what it held is gone"):
        logger.log_metrics({"loss": 2.0}, step=2)
    state = logger.logger_state()
    logger.log_metrics({"loss": 9.0}, step=3)
    logger = TensorBoardLogger(run)
    logger.reattach(json.loads(json.dumps(state)))
    logger.log_metrics({"loss": 3.0}, step=3)
    logger.finish("completed")
    assert Files(run).scalars("train/loss") == [(2, 2.0), (3, 3.0)]
    assert Files(run).status() == "STATUS_SUCCESS"


def test_a_run_that_is_removed_can_be_finished(run: Path) -> None:
    """Also if nothing more is logged."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=1)
    shutil.rmtree(run)
    logger.finish("completed")
    assert [path.name for path in run.iterdir()] == ["events.out.tfevents.0000000000.hparams"]


def test_a_disk_that_refuses_the_hparams_leaves_the_old_ones(run: Path) -> None:
    """They are replaced as a whole or not at all, and no draft stays behind."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    names = sorted(contents(run))
    with largest_file(100), pytest.raises(OSError, match="File too large"):
        logger.log_params({"text": "x" * 200})
    assert Files(run).params() == {"lr": 0.1}
    assert sorted(contents(run)) == names
    logger.finish("completed")
    assert Files(run).params() == {"lr": 0.1, "text": "x" * 200}


def test_a_run_that_cannot_begin_can_begin_later(run: Path) -> None:
    """A file in the way of the directory is an OSError, and no reason to give up."""
    run.parent.mkdir()
    run.write_text("in the way")
    logger = TensorBoardLogger(run)
    with pytest.raises(OSError, match="run"):
        logger.log_metrics({"loss": 0.0}, step=0)
    run.unlink()
    logger.log_metrics({"loss": 0.0}, step=0)
    assert Files(run).scalars("train/loss") == [(0, 0.0)]


# --- charts of several contexts ---------------------------------------------------------------------------


def charts(run: Path) -> list[list[str]]:
    """Return the titles of each layout that is in the files, oldest first."""
    files = Accumulator(run)
    layouts = [custom_scalars.Layout.FromString(text) for text in files.strings(custom_scalars.CONFIG_SUMMARY_TAG)]
    return [[chart.title for category in layout.category for chart in category.chart] for layout in layouts]


class Accumulator(Files):
    """A run directory, with what is in a tensor whatever it is."""

    def strings(self, tag: str) -> list[bytes]:
        return [e.tensor_proto.string_val[0] for e in self._read.Tensors(tag)] if self.has(tag) else []

    def has(self, tag: str) -> bool:
        return tag in self._read.Tags()["tensors"]


def test_the_layout_is_written_when_a_name_joins(run: Path) -> None:
    """Once per news, whatever the number of lines; a resumed run has the charts that it had, and no more."""
    logger = TensorBoardLogger(run)
    for step in range(20):
        logger.log_metrics({"loss": 1.0, "lr": 0.1}, step=step, epoch=0)
        if step % 5 == 4:
            logger.log_metrics({"loss": 2.0, **({"acc": 1.0} if step > 9 else {})}, step=step, epoch=0, context="test")
    assert charts(run) == [["loss"]]
    logger.log_metrics({"acc": 0.5}, step=20)
    assert charts(run) == [["loss"], ["loss", "acc"]]
    state = logger.logger_state()
    logger.log_metrics({"lr": 0.5}, step=21, context="test")
    assert charts(run)[-1] == ["loss", "acc", "lr"]
    resumed = again(state, run)
    assert charts(run)[-1] == ["loss", "acc"]
    resumed.log_metrics({"loss": 1.0, "new": 1.0}, step=21)
    assert charts(run)[-1] == ["loss", "acc"]
    resumed.log_metrics({"loss": 1.0, "new": 1.0}, step=21, context="validate/day")
    assert charts(run)[-1] == ["loss", "acc", "new"]
    assert Files(run).scalars("train/loss") == [(step, 1.0) for step in [*range(20), 21]]


def test_charts_survive_the_loss_of_the_old_file(run: Path) -> None:
    """The resumed run says what it was told."""
    logger = TensorBoardLogger(run)
    for context in ("train", "validate"):
        logger.log_metrics({"loss": 1.0}, step=1, context=context)
    state = logger.logger_state()
    newest(run).unlink()
    again(state, run).log_metrics({"loss": 2.0}, step=2)
    assert charts(run) == [["loss"]]


def test_a_layout_that_the_disk_refused_is_written_with_the_next_line(run: Path) -> None:
    """The line that brought it is not written either, so it can be logged again."""
    logger = TensorBoardLogger(run)
    logger.log_metrics({"loss": 1.0}, step=1)
    size = newest(run).stat().st_size
    with largest_file(size), pytest.raises(OSError, match="File too large"):
        logger.log_metrics({"loss": 2.0}, step=1, context="validate")
    assert Files(run).tags() == ["train/loss"]
    logger.log_metrics({"loss": 2.0}, step=1, context="validate")
    assert charts(run) == [["loss"]]
    assert Files(run).scalars("validate/loss") == [(1, 2.0)]
