"""CompactingWriter: the API of 0.19.0, step by step, and what it refuses."""

from __future__ import annotations

import enum
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plattli import CompactingWriter, Reader
from plattli.check import check_run
from plattli.errors import PlattliError, RunBrokenError


def points(run: Path, name: str) -> list[tuple[int, Any]]:
    with Reader(run) as reader:
        steps, values = reader.metric(name, dtype="storage")
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def dtype(run: Path, name: str) -> str:
    with Reader(run) as reader:
        return str(reader.manifest()[name]["dtype"])


def test_the_loop_of_the_format_s_own_readme(tmp_path: Path) -> None:
    """Write, end the step, die, go on at a step, finish."""
    writer = CompactingWriter(tmp_path, hotsize=200, config={"lr": 3e-4, "depth": 32})
    writer.write(loss=1.2)
    writer.write(note="ok")
    writer.end_step()
    writer.write(loss=1.3)
    writer.write(accuracy=0.73)
    writer.end_step()
    del writer
    writer = CompactingWriter(tmp_path, step=1, hotsize=200, config={"lr": 3e-4, "depth": 32})
    writer.write(loss=1.1)
    writer.write(prediction={"qid": "42096", "answer": "Yes"})
    writer.end_step()
    writer.finish()

    assert [p.name for p in tmp_path.iterdir()] == ["metrics.plattli"]
    assert points(tmp_path, "loss") == [(0, np.float32(1.2)), (1, np.float32(1.1))]
    assert points(tmp_path, "note") == [(0, "ok")]
    assert points(tmp_path, "accuracy") == []
    assert points(tmp_path, "prediction") == [(1, {"qid": "42096", "answer": "Yes"})]


class Color(enum.IntEnum):
    RED = 7


@pytest.mark.parametrize(
    ("value", "code", "read"),
    [
        (1, "i64", 1),
        (Color.RED, "i64", 7),
        (True, "jsonl", True),
        (0.1, "f32", float(np.float32(0.1))),
        (np.float64(0.1), "f64", 0.1),
        (np.float32(0.1), "f32", float(np.float32(0.1))),
        (np.float16(0.1), "f32", float(np.float16(0.1))),
        (np.uint8(3), "u8", 3),
        (np.array(4, ">i2"), "i16", 4),
        (np.uint64(2**64 - 1), "u64", 2**64 - 1),
        (None, "jsonl", None),
        ((1, [2]), "jsonl", [1, [2]]),
        ({"a": {1: None}}, "jsonl", {"a": {"1": None}}),
        (float("nan"), "f32", None),
        (float("-inf"), "f32", float("-inf")),
    ],
)
def test_the_first_value_chooses_the_column(tmp_path: Path, value: Any, code: str, read: Any) -> None:
    """And reads back as what the column holds."""
    writer = CompactingWriter(tmp_path, hotsize=1)
    writer.write(x=value)
    writer.end_step()
    writer.drain()
    writer.close()

    assert dtype(tmp_path, "x") == code
    ((step, got),) = points(tmp_path, "x")
    assert step == 0
    assert got == read or (read is None and (got is None or got != got))


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([np.uint8(1), 2], "i64"),
        ([1.5, np.float64(0.1)], "f64"),
        ([1.5, 2**24 + 1], "f64"),
        ([np.uint8(1), np.int8(-1)], "i16"),
        ([np.uint32(1), np.int8(-1)], "i64"),
        ([np.uint64(5), 3], "i64"),
        ([1, np.uint64(2**63)], "u64"),
        ([np.float64(1.5), 0.5], "f64"),
        (["a", 1], "jsonl"),
    ],
)
def test_a_later_value_widens_the_column(tmp_path: Path, values: list[Any], code: str) -> None:
    """In hot rows and in columns alike; nothing that was stored changes."""
    for drain in (False, True):
        run = tmp_path / str(drain)
        writer = CompactingWriter(run, hotsize=100)
        for value in values:
            writer.write(x=value)
            writer.end_step()
            if drain:
                writer.drain()
        writer.close()

        assert dtype(run, "x") == code
        assert [v for _, v in points(run, "x")] == [v.item() if isinstance(v, np.generic) else v for v in values]


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (1, 0.5, TypeError),
        (1, "a", TypeError),
        (1.0, None, TypeError),
        (1.0, [1.0], ValueError),
        (1.0, np.zeros(2), ValueError),
        (1.5, 2**1100, OverflowError),
        (-1, np.uint64(2**63), OverflowError),
        (1, 2**63, OverflowError),
        (1.5, 1e39, OverflowError),
        (1.0, object(), TypeError),
        (1.0, 1j, TypeError),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(tmp_path: Path, first: Any, second: Any, error: type) -> None:
    """The whole call is unapplied, the writer goes on, and the error is ours and the builtin's."""
    writer = CompactingWriter(tmp_path / "run", hotsize=1)
    writer.write(x=first)
    writer.end_step()
    with pytest.raises(error, match=r"'x'.*'run'") as caught:
        writer.write({"new": 1, "x": second})
    assert isinstance(caught.value, PlattliError)
    writer.write(y=1)
    writer.end_step()
    writer.close()

    assert [v for _, v in points(tmp_path / "run", "x")] == [first]
    assert points(tmp_path / "run", "y") == [(1, 1)]
    with Reader(tmp_path / "run") as reader:
        assert reader.metrics() == ["x", "y"]


def test_promotion_of_integers_by_a_float_is_asked_for(tmp_path: Path) -> None:
    """promote='float' turns the column into floats; the default refuses."""
    writer = CompactingWriter(tmp_path, hotsize=1, promote="float")
    for value in (0, 2, 0.5):
        writer.write(x=value)
        writer.end_step()
    writer.finish()

    assert points(tmp_path, "x") == [(0, 0.0), (1, 2.0), (2, 0.5)]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (True, TypeError),
        (np.True_, TypeError),
        (1.0, TypeError),
        ("1", TypeError),
        (-1, ValueError),
        (2**63, ValueError),
    ],
)
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any, error: type) -> None:
    """By the constructor before anything exists, and by write()."""
    with pytest.raises(error, match="step"):
        CompactingWriter(tmp_path / "run", step=step, hotsize=1)
    assert not (tmp_path / "run").exists()
    with CompactingWriter(tmp_path / "run", hotsize=1) as writer:
        writer.step = step
        with pytest.raises(error, match="step"):
            writer.write(a=1)


@pytest.mark.parametrize("step", [np.int32(3), np.array(3), 3])
def test_integers_of_any_make_are_steps(tmp_path: Path, step: Any) -> None:
    """They become Python's, so that counting cannot wrap."""
    writer = CompactingWriter(tmp_path, step=step, hotsize=1)
    writer.write(a=1)
    writer.end_step()
    assert type(writer.step) is int
    writer.finish()

    assert points(tmp_path, "a") == [(3, 1)]


def test_arguments_of_write(tmp_path: Path) -> None:
    """One dict, keywords, both; not twice the same metric, not another mapping."""
    writer = CompactingWriter(tmp_path, hotsize=1)
    writer.write({"a/b": 1}, c=2)
    writer.write(None)
    writer.write()
    with pytest.raises(RuntimeError, match="already written"):
        writer.write(c=3)
    with pytest.raises(ValueError, match=r"twice.*'d'"):
        writer.write({"d": 1}, d=2)
    with pytest.raises(TypeError, match="at most one dict"):
        writer.write({"d": 1}, {"e": 1})
    with pytest.raises(TypeError, match="dict"):
        writer.write([("d", 1)])
    writer.end_step()
    writer.finish()

    assert points(tmp_path, "a/b") == [(0, 1)]
    assert points(tmp_path, "c") == [(0, 2)]


def test_an_existing_run_is_not_emptied_by_default(tmp_path: Path) -> None:
    """The error names the three ways on; each of them does what it says."""
    for step, kept in ((None, None), ("auto", [0, 1, 2]), (1, [0]), (0, [])):
        run = tmp_path / str(step)
        writer = CompactingWriter(run, hotsize=1)
        for value in range(3):
            writer.write(a=value)
            writer.end_step()
        writer.close()
        if kept is None:
            with pytest.raises(RuntimeError, match=r"step=N.*step='auto'.*step=0"):
                CompactingWriter(run, hotsize=1)
            continue
        writer = CompactingWriter(run, step=step, hotsize=1)  # type: ignore[arg-type]
        assert writer.step == len(kept)
        writer.write(a=9)
        writer.end_step()
        writer.finish()

        assert points(run, "a") == [*((s, s) for s in kept), (len(kept), 9)]


def test_a_finished_run_is_resumed_only_if_asked(tmp_path: Path) -> None:
    """allow_resume_finalized unpacks it; until then the archive stays."""
    for value in (1, 2):
        writer = CompactingWriter(tmp_path, step=value, hotsize=1, allow_resume_finalized=value == 2)
        writer.write(a=value)
        writer.end_step()
        writer.finish()
        with pytest.raises(RuntimeError, match="allow_resume_finalized"):
            CompactingWriter(tmp_path, step=3, hotsize=1)
        with pytest.raises(RuntimeError, match="finished"):
            writer.write(a=1)
        with pytest.raises(RuntimeError, match="finished"):
            writer.finish()

    assert points(tmp_path, "a") == [(1, 1), (2, 2)]


def test_going_back_to_a_step_adds_to_it(tmp_path: Path) -> None:
    """What the step had stays; a value belongs to the step at which it was written."""
    writer = CompactingWriter(tmp_path, hotsize=100)
    writer.write(a=1, b=2)
    writer.end_step()
    writer.step = 0
    writer.write(c=7)
    writer.step = 5
    writer.write(a=3)
    writer.end_step()
    writer.finish()

    assert {n: points(tmp_path, n) for n in "abc"} == {"a": [(0, 1), (5, 3)], "b": [(0, 2)], "c": [(0, 7)]}


def test_a_flush_puts_the_unfinished_row_on_disk(tmp_path: Path) -> None:
    """The rest of the step joins it."""
    writer = CompactingWriter(tmp_path, hotsize=100)
    writer.write(a=1, flush=True)
    assert points(tmp_path, "a") == [(0, 1)]
    writer.write(b=2)
    writer.end_step()
    with writer:
        writer.write(a=3)
    assert points(tmp_path, "a") == [(0, 1), (1, 3)]
    writer.close()

    assert points(tmp_path, "b") == [(0, 2)]


def test_configs(tmp_path: Path) -> None:
    """Data is written, a file is linked so that both can move, None keeps, overrides win at the end."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"from": "file"}')
    with CompactingWriter(run, hotsize=1) as writer:
        assert os.readlink(run / "plattli" / "config.json") == "../config.json"
        writer.write(a=1)
    writer.close()
    run.rename(tmp_path / "moved")
    run = tmp_path / "moved"
    with Reader(run) as reader:
        assert reader.config() == {"from": "file"}
    writer = CompactingWriter(run, step="auto", hotsize=1, config=None)
    writer.set_config({"x": 1, "y": 2})
    assert json.loads((run / "config.json").read_text()) == {"from": "file"}
    with pytest.raises(TypeError, match="config"):
        writer.set_config({"x": object()})
    with pytest.raises(TypeError, match="config_overrides"):
        writer.finish(config_overrides=[1])  # type: ignore[arg-type]
    writer.finish(config_overrides={"y": 3})
    with Reader(run) as reader:
        assert reader.config() == {"x": 1, "y": 3}


@pytest.mark.parametrize("hotsize", [0, -1, True])
def test_hotsize_is_a_number_of_rows(tmp_path: Path, hotsize: int) -> None:
    """And refused before anything exists."""
    with pytest.raises(ValueError, match="hotsize"):
        CompactingWriter(tmp_path / "run", hotsize=hotsize)
    assert not (tmp_path / "run").exists()


def test_a_run_root_called_plattli_is_refused(tmp_path: Path) -> None:
    """It is the folder inside one."""
    with pytest.raises(ValueError, match="run root"):
        CompactingWriter(tmp_path / "plattli", hotsize=1)
    assert not (tmp_path / "plattli").exists()


def test_finish_without_a_metric(tmp_path: Path) -> None:
    """Gives an archive of a run without metrics."""
    CompactingWriter(tmp_path, hotsize=1, config={"a": 1}).finish()
    with Reader(tmp_path) as reader:
        assert (reader.metrics(), reader.config(), reader.approx_max_rows()) == ([], {"a": 1}, 0)


def test_a_metric_that_lost_its_rows_does_not_stop_finish(tmp_path: Path) -> None:
    """A resume before its only row leaves it in the manifest, without a file."""
    writer = CompactingWriter(tmp_path, hotsize=100)
    writer.write(a=1)
    writer.end_step()
    writer.write(b=2)
    writer.end_step()
    writer.close()
    writer = CompactingWriter(tmp_path, step=1, hotsize=100)
    writer.finish()

    assert points(tmp_path, "a") == [(0, 1)]
    assert points(tmp_path, "b") == []


def test_finish_makes_columns_small(tmp_path: Path) -> None:
    """Integers narrow, regular steps become segments, the result reads the same."""
    writer = CompactingWriter(tmp_path, hotsize=10)
    for step in range(0, 500, 5):
        writer.step = step
        writer.write(n=step, x=step * 0.5)
        if step % 3 == 0:
            writer.write(odd=-step)
        writer.end_step()
    writer.finish(zip=False)
    with Reader(tmp_path) as reader:
        manifest = reader.manifest()
        assert reader.approx_max_rows() == 100

    assert manifest["n"] == {"indices": [{"start": 0, "stop": 500, "step": 5}], "dtype": "u16", "monotonic": "inc"}
    assert manifest["odd"]["dtype"] == "i16"
    assert manifest["odd"]["monotonic"] == "dec"
    assert points(tmp_path, "n") == [(s, s) for s in range(0, 500, 5)]
    assert sorted(p.name for p in (tmp_path / "plattli").iterdir()) == [
        "config.json", "n.u16", "odd.i16", "plattli.json", "x.f32",
    ]  # fmt: skip


def test_a_disk_that_refuses_columns_keeps_the_rows(tmp_path: Path) -> None:
    """They stay in the hot log, one warning says so, and they move when the disk takes them again."""
    writer = CompactingWriter(tmp_path, hotsize=2)
    writer.write({"d/a": 0})
    writer.end_step()
    (tmp_path / "plattli" / "d").touch()  # no column can be made in here
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in range(1, 15):
            writer.write({"d/a": value})
            writer.end_step()
            if (batch := writer._rows._hot.batch) is not None:
                batch.join()
    assert len(caught) == 1
    assert "move is tried again" in str(caught[0].message)
    with pytest.raises(RunBrokenError, match=r"safe in .*hot\.compacting\.jsonl"):
        writer.drain()
    assert points(tmp_path, "d/a") == [(v, v) for v in range(15)]
    (tmp_path / "plattli" / "d").unlink()
    writer.drain()
    writer.finish()

    assert points(tmp_path, "d/a") == [(v, v) for v in range(15)]


@pytest.mark.parametrize("hotsize", [2, 100])
@pytest.mark.parametrize("zip", [True, False])
def test_a_finished_column_of_json_says_how_long_it_is(tmp_path: Path, hotsize: int, zip: bool) -> None:
    """Readers need not count its lines then; a run that goes on does not say so, and says it anew at its end."""

    def log(steps: range) -> CompactingWriter:
        writer = CompactingWriter(tmp_path, step=steps[0], hotsize=hotsize, allow_resume_finalized=True)
        for step in steps:
            writer.write(j=["ü" * step], a=step)
            writer.end_step()
        return writer

    def spec() -> dict[str, object]:
        with Reader(tmp_path) as reader:
            assert "bytes" not in reader.manifest()["a"]
            return reader.manifest()["j"]

    log(range(5)).finish(zip=zip)
    assert spec()["bytes"] == len("".join(f'["{"ü" * step}"]\n' for step in range(5)).encode())

    writer = log(range(3, 9))
    writer.close()
    assert "bytes" not in spec()
    log(range(9, 10)).finish(zip=zip)

    assert spec()["bytes"] == len("".join(f'["{"ü" * step}"]\n' for step in range(10)).encode())
    assert points(tmp_path, "j") == [(step, ["ü" * step]) for step in range(10)]
    assert check_run(tmp_path).is_clean
