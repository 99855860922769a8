"""loggers.json_logger: JSON Lines."""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loggers
from loggers import JSONLogger
from loggers._json_file import encode
from loggers.errors import (
    ConfusionError,
    LoggerFinishedError,
    MetricNameError,
    MetricValueError,
    NoPathError,
    StatusError,
    StepError,
)


@pytest.fixture
def path(tmp_path):
    """Where the logger of a test writes: in a directory that is not there yet."""
    return tmp_path / "runs" / "a" / "log.jsonl"


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_file_of_a_run(path):
    """Each verb writes one line of its type, with the keys in this order."""
    lgr = JSONLogger(path)
    lgr.log_params({"seed": 42, "max_epochs": 40, "width": 128})
    lgr.log_tags("baseline")
    lgr.log_metrics({"loss": 0.31}, step=4, epoch=1)
    lgr.log_metrics({"loss": 0.29}, step=160, epoch=1, context="validate")
    lgr.log_metrics({"data_wait_frac": 0.012}, step=160, epoch=1, context="data")
    lgr.log_confusion([[5, 0], [1, 4]], ["cat", "dog"], context="validate")
    lgr.log_other("binding_report", "…")
    lgr.finish("completed")

    assert path.read_text(encoding="utf-8").splitlines() == [
        '{"type":"params","seed":42,"max_epochs":40,"width":128}',
        '{"type":"tags","tags":{"baseline":true}}',
        '{"type":"metrics","context":"train","epoch":1,"step":4,"loss":0.31}',
        '{"type":"metrics","context":"validate","epoch":1,"step":160,"loss":0.29}',
        '{"type":"metrics","context":"data","epoch":1,"step":160,"data_wait_frac":0.012}',
        '{"type":"confusion","context":"validate","epoch":1,"step":160,"name":"confusion",'
        '"labels":["cat","dog"],"matrix":[[5,0],[1,4]]}',
        '{"type":"other","key":"binding_report","value":"…"}',
        '{"type":"finish","status":"completed"}',
    ]


def test_it_is_a_logger(path):
    """It passes the driver's check, and has nothing to reattach."""
    lgr = JSONLogger(path)
    loggers.check_logger(lgr)

    assert lgr.logger_state() is None
    assert loggers.checkpoint_record(lgr) is None
    assert lgr.run_id() is None
    assert lgr.run_url() is None
    assert loggers.backend(lgr) is lgr
    assert lgr.logger_info() == {"logger": "JSONLogger", "path": str(path), "waiting": 0}


def test_building_one_does_nothing(path):
    """A logger that nothing is logged to leaves no file and no directory."""
    JSONLogger(path).close()

    assert not path.parent.exists()


def test_every_line_is_there_when_the_verb_returns(path):
    """Another process can read it at once."""
    lgr = JSONLogger(path)
    for step in range(3):
        lgr.log_metrics({"loss": step / 2}, step=step)

        assert [row["step"] for row in rows(path)] == list(range(step + 1))


def test_a_killed_run_has_lost_nothing(path):
    """SIGKILL after the verb returned, and everything is in the file."""
    code = (
        "import sys, loggers\n"
        "lgr = loggers.JSONLogger(sys.argv[1])\n"
        "for step in range(10**6):\n"
        "    lgr.log_metrics({'loss': step / 3}, step=step)\n"
        "    print(step, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) >= 50:
                break
        child.kill()
        said = [int(line), *map(int, child.stdout.read().split())]

    assert [row["step"] for row in rows(path)][: said[-1] + 1] == list(range(said[-1] + 1))


def test_a_resumed_run_extends_the_file(path):
    """The second logger appends."""
    with JSONLogger(path) as lgr:
        lgr.log_metrics({"loss": 1.0}, step=1)
    with JSONLogger(path) as lgr:
        lgr.log_metrics({"loss": 0.5}, step=2)

    assert [row["step"] for row in rows(path)] == [1, 2]


def test_leaving_the_block_does_not_finish(path):
    """Only ``finish`` does; afterwards the logger goes on in the same file."""
    with JSONLogger(path) as lgr:
        lgr.log_other("a", 1)
    lgr.log_other("a", 2)

    assert [row["type"] for row in rows(path)] == ["other", "other"]


LINE = b'{"type":"other","key":"a","value":1}\n'


@pytest.mark.parametrize("torn", [b"{", b'{"type":"metr', b'{"type":"other","key":"' + b"x" * 200_000])
@pytest.mark.parametrize("before", [b"", LINE])
def test_half_a_line_of_a_crash_goes(path, before, torn):
    """No verb has returned from it, and a reader would stumble over it."""
    path.parent.mkdir(parents=True)
    path.write_bytes(before + torn)
    JSONLogger(path).log_other("b", 2)

    assert path.read_bytes() == before + b'{"type":"other","key":"b","value":2}\n'


@pytest.mark.parametrize("end", [LINE.strip(), b"# not ours", b'{"type":"a"}\n{"step":1,"lo'])
def test_an_end_that_is_not_half_a_line_of_ours_stays(path, end):
    """A line that lacks nothing but its newline, and what somebody else wrote there."""
    path.parent.mkdir(parents=True)
    path.write_bytes(LINE + end)
    JSONLogger(path).log_other("b", 2)

    assert path.read_bytes() == LINE + end + b'\n{"type":"other","key":"b","value":2}\n'


def test_each_line_is_one_write(path, monkeypatch):
    """So that two processes that append to one file do not mix their lines."""
    written = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(bytes(data)) or write(fd, data))
    lgr = JSONLogger(path)
    lgr.log_params({"note": "x" * 100_000})
    lgr.log_metrics({"a": 1, "b": math.nan}, step=1)

    assert b"".join(written) == path.read_bytes()
    assert [data.count(b"\n") for data in written] == [1, 1]


# --- metrics lines -------------------------------------------------------------------------------------


def test_the_epoch_is_written_only_if_there_is_one(path):
    """And the line's own fields take whatever holds an integer."""
    lgr = JSONLogger(path)
    lgr.log_metrics({"loss": 1}, step=np.int64(3))
    lgr.log_metrics({"loss": 1}, step=4.0, epoch=np.array(2), walltime=1.0, other_axis="x")

    assert path.read_text().splitlines() == [
        '{"type":"metrics","context":"train","step":3,"loss":1}',
        '{"type":"metrics","context":"train","epoch":2,"step":4,"loss":1}',
    ]


def test_the_lines_own_fields_win_over_metrics_of_their_name(path):
    """The metric is left out, with one warning per name, and its siblings are written."""
    lgr = JSONLogger(path)
    line = {"type": 1.0, "loss": 0.5, "step": 99}
    with pytest.warns(UserWarning, match=r"^the metric '(step|type)' is left out of .*: rename it$") as caught:
        lgr.log_metrics(line, step=1, epoch=2)
    lgr.log_metrics(line, step=2, epoch=2)
    with pytest.warns(UserWarning, match="the metric 'epoch' is left out"):
        lgr.log_metrics({"epoch": 0.5}, step=3)

    assert len(caught) == 2
    assert {warning.filename for warning in caught} == {__file__}
    assert rows(path) == [
        {"type": "metrics", "context": "train", "epoch": 2, "step": 1, "loss": 0.5},
        {"type": "metrics", "context": "train", "epoch": 2, "step": 2, "loss": 0.5},
        {"type": "metrics", "context": "train", "step": 3},
    ]


def test_the_line_is_written_before_anybody_is_warned(path):
    """Where warnings are errors, the siblings are stored all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            JSONLogger(path).log_metrics({"type": 1.0, "loss": 0.5}, step=1)

    assert rows(path)[0]["loss"] == 0.5


def test_nan_and_infinities_are_bare_tokens(path):
    """As Python's own json has them, also deep inside, and null is still null."""
    JSONLogger(path).log_metrics(
        {"a": math.nan, "b": math.inf, "c": -math.inf, "d": None, "e": [math.nan, None], "ä": np.float32("nan")},
        step=1,
    )

    assert path.read_text(encoding="utf-8") == (
        '{"type":"metrics","context":"train","step":1,"a":NaN,"b":Infinity,"c":-Infinity,"d":null,'
        '"e":[NaN,null],"ä":NaN}\n'
    )


def test_values_that_are_no_numbers_go_as_they_are(path):
    """Text, lists and mappings."""
    JSONLogger(path).log_metrics({"text": "a\nb", "list": (1, "x"), "map": {"k": np.int8(1)}}, step=1)

    assert rows(path)[0] == {
        "type": "metrics",
        "context": "train",
        "step": 1,
        "text": "a\nb",
        "list": [1, "x"],
        "map": {"k": 1},
    }


def test_a_bad_value_does_not_cost_its_siblings_theirs(path):
    """They are written, then the error names the bad one and where."""
    lgr = JSONLogger(path)
    with pytest.raises(MetricValueError) as caught:
        lgr.log_metrics({"a": 1.0, "bad": b"", "b": np.float32(2)}, step=5, context="validate")
    with pytest.raises(MetricValueError):
        lgr.log_metrics({"bad": b""}, step=6)

    assert str(caught.value).startswith("1 value of the validate line of step 5 could not be logged, any others were: ")
    assert rows(path) == [{"type": "metrics", "context": "validate", "step": 5, "a": 1.0, "b": 2.0}]


@pytest.mark.parametrize("step", [7.5, True, -1, "7"])
def test_a_bad_step_writes_nothing(path, step):
    """Not even the file."""
    lgr = JSONLogger(path)
    with pytest.raises(StepError):
        lgr.log_metrics({"loss": 1.0}, step=step)
    with pytest.raises(StepError):
        lgr.log_metrics({"loss": 1.0}, step=1, epoch=step)
    with pytest.raises(MetricNameError):
        lgr.log_metrics({"loss": 1.0}, step=1, context="")

    assert not path.exists()


names = st.text() | st.characters(categories=["Cs"])  # the latter: a lone surrogate, which only names may have
numbers = st.floats() | st.integers(-(2**70), 2**70)


@given(st.dictionaries(names, numbers | st.text() | st.none()))
def test_every_row_reads_back_equal(row):
    """Python's json gets each name and each value as it was, whatever spelled it, on one line."""
    line = encode(row)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert repr(json.loads(line)) == repr(row)


# --- the other verbs ------------------------------------------------------------------------------------


def test_params_may_come_again(path):
    """Each call is a line, so earlier values stay recoverable; ints of any size are kept."""
    lgr = JSONLogger(path)
    lgr.log_params({"lr": np.float32(0.5), "big": 2**70})
    with pytest.warns(UserWarning, match="the parameter 'type' is left out"):
        lgr.log_params({"lr": 0.25, "type": "adam"})

    assert rows(path) == [
        {"type": "params", "lr": 0.5, "big": 2**70},
        {"type": "params", "lr": 0.25},
    ]


def test_other_takes_any_json_data(path):
    """And says so when it is none."""
    lgr = JSONLogger(path)
    lgr.log_other("report", {"a": [True, None, np.float32(0.5)]})
    with pytest.raises(MetricValueError, match=r"^log_other 'blob' could not be logged: got bytes: "):
        lgr.log_other("blob", b"")
    with pytest.raises(MetricNameError, match="the key of log_other must be a non-empty string, got ''"):
        lgr.log_other("", 1)

    assert rows(path) == [{"type": "other", "key": "report", "value": {"a": [True, None, 0.5]}}]


def test_a_confusion_matrix_says_where_it_belongs(path):
    """Given fields are written, the step and epoch of the last line stand in for missing ones."""
    lgr = JSONLogger(path)
    lgr.log_confusion(np.eye(2, dtype=int), ["a", "b"])
    lgr.log_metrics({"loss": 1.0}, step=9, epoch=2)
    lgr.log_confusion([[0.5]], ["a"])
    lgr.log_confusion([[1]], ["a"], step=7, context="test", name="cm")
    with pytest.raises(ConfusionError):
        lgr.log_confusion([[1, 2]], ["a"])
    with pytest.raises(MetricNameError, match="the name of a confusion matrix"):
        lgr.log_confusion([[1]], ["a"], name="")

    assert [row for row in rows(path) if row["type"] == "confusion"] == [
        {"type": "confusion", "name": "confusion", "labels": ["a", "b"], "matrix": [[1, 0], [0, 1]]},
        {"type": "confusion", "epoch": 2, "step": 9, "name": "confusion", "labels": ["a"], "matrix": [[0.5]]},
        {"type": "confusion", "context": "test", "step": 7, "name": "cm", "labels": ["a"], "matrix": [[1]]},
    ]


def test_after_finish_every_verb_raises(path):
    """A second finish too, and the file stays as it was."""
    lgr = JSONLogger(path)
    with pytest.raises(StatusError):
        lgr.finish("done")
    lgr.finish("early_stop")
    content = path.read_bytes()
    for verb in (
        lambda: lgr.log_metrics({"loss": 1.0}, step=1),
        lambda: lgr.log_params({}),
        lambda: lgr.log_tags("a"),
        lambda: lgr.log_other("a", 1),
        lambda: lgr.log_confusion([[1]], ["a"]),
        lambda: lgr.finish("early_stop"),
    ):
        with pytest.raises(LoggerFinishedError, match=re.escape(f"JSONLogger({str(path)!r}) is finished")):
            verb()

    assert path.read_bytes() == content == b'{"type":"finish","status":"early_stop"}\n'


# --- where it writes, and who ---------------------------------------------------------------------------


def test_a_pathless_logger_is_adopted(tmp_path):
    """By a driver that has a directory; a path of its own stays."""
    pathless, own = JSONLogger(), JSONLogger(tmp_path / "own.jsonl")
    for lgr in (pathless, own):
        lgr.adopt(tmp_path / "run")
        lgr.log_other("a", 1)

    assert pathless.path == tmp_path / "run" / "metrics.jsonl"
    assert rows(pathless.path) == rows(tmp_path / "own.jsonl") == [{"type": "other", "key": "a", "value": 1}]


def test_a_pathless_logger_that_nobody_adopts_says_so():
    """At the first verb."""
    with pytest.raises(NoPathError) as caught:
        JSONLogger().log_metrics({"loss": 1.0}, step=1)

    assert str(caught.value) == (
        "JSONLogger() has no file yet: give it a path, or hand it to a driver with a run directory"
    )


def test_a_logger_that_has_not_begun_is_its_own_recipe(path):
    """It may be pickled to where it is wanted."""
    copy = pickle.loads(pickle.dumps(JSONLogger(path)))
    copy.log_other("a", 1)

    assert len(rows(path)) == 1


@pytest.mark.parametrize("copied", [lambda lgr: pickle.loads(pickle.dumps(lgr)), deepcopy])
def test_a_copy_of_a_logger_in_use_writes_nothing(path, copied):
    """It warns once; the original goes on."""
    lgr = JSONLogger(path)
    lgr.log_other("a", 1)
    copy = copied(lgr)
    with pytest.warns(UserWarning, match="writes nothing here: it is a copy of another process's logger"):
        copy.log_metrics({"loss": 1.0}, step=1)
    copy.log_params({})
    copy.finish("completed")
    lgr.log_other("a", 2)

    assert [row["value"] for row in rows(path)] == [1, 2]


def test_a_forked_child_writes_nothing(path):
    """Its copy of the logger is inert, and closing it does not close the parent's file."""
    lgr = JSONLogger(path)
    lgr.log_other("a", 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.warns(UserWarning, match="writes nothing here"):
                lgr.log_other("child", 1)
            lgr.finish("completed")
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 240
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
    lgr.log_other("a", 2)

    assert done == (child, 0)
    assert [row["value"] for row in rows(path)] == [1, 2]


def test_a_forgotten_logger_closes_its_file(path):
    """Nothing keeps the descriptor open once the logger is gone."""
    lgr = JSONLogger(path)
    lgr.log_other("a", 1)
    fd = lgr._file.fd
    del lgr
    gc.collect()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_pipe_can_be_logged_to(tmp_path):
    """There is no last line to look at."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with JSONLogger(fifo) as lgr:
            lgr.log_other("a", 1)
            got = os.read(reader, 1000)
    finally:
        os.close(reader)

    assert got == b'{"type":"other","key":"a","value":1}\n'
