"""MetricsGroupLogger and its reader, beside what the contract asks."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import MetricsGroupLogger, TeeLogger
from adapters.backends.metrics_group import CorruptGroupError, NoGroupError, densify, open_group
from loggers import PlattliLogger
from loggers.errors import (
    LoggerError,
    LoggerFinishedError,
    MetricValueError,
    RecordError,
    RunExistsError,
    RunLockedError,
    StepError,
)
from tests.faults import failing_disk
from tests.lazy import Lazy
from tests.test_adapters.metrics_groups import ByHand

zarr = Lazy("zarr")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a group is going to be."""
    return tmp_path / "metrics"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def catalog(folder: Path) -> dict[str, Any]:
    attributes: dict[str, Any] = json.loads((folder / "zarr.json").read_text())["attributes"]
    return attributes


def write(folder: Path, *events: dict[str, Any], attributes: dict[str, Any] | None = None) -> None:
    """Write a log, and a catalog, as another program would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if attributes is not None:
        document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        (folder / "zarr.json").write_text(json.dumps(document))


def event(key: str, value: Any, step: int | None = None, second: int = 0, **more: Any) -> dict[str, Any]:
    place = {} if step is None else {"step": step}
    return {"type": "scalar", "key": key, "time": f"2026-08-04T00:00:{second:02d}+00:00", "value": value, **place,
            **more}  # fmt: skip


# ---- the log ------------------------------------------------------------------------------------------------


def test_a_line_of_the_log(folder: Path) -> None:
    """One metric is an event; several of one line are one line, which is there or not as a whole."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.25}, step=3, walltime=1785801602)
    logger.log_metrics({"loss": 0.5, "n": 2**53 + 1}, step=4, epoch=1, walltime=1785801602.25)

    assert lines(folder) == [
        {"type": "scalar", "key": "train/loss", "step": 3, "time": "2026-08-04T00:00:02+00:00", "value": 0.25},
        {
            "type": "scalar",
            "key": "train",
            "step": 4,
            "time": "2026-08-04T00:00:02.250000000+00:00",
            "values": {"loss": 0.5, "n": 2**53 + 1, "epoch": 1},
        },
    ]


def test_the_log_is_strict_json(folder: Path) -> None:
    """What is not finite is spelled as Zarr's documents spell it; null in a name is no value."""

    def refuse(token: str) -> None:
        raise AssertionError(token)

    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"null": 1.0, "a": math.nan, "b": math.inf, "c": -math.inf}, step=0)
    logger.log_metrics({"null": 1.0, "d": 2.0}, step=0)
    logger.log_metrics({"e": -math.inf}, step=0)
    first, second, third = (
        json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()
    )

    assert first["values"] == {"null": 1.0, "a": "NaN", "b": "Infinity", "c": "-Infinity"}
    assert second["values"] == {"null": 1.0, "d": 2.0}
    assert third["value"] == "-Infinity"
    logger.densify()
    for key, value in {"a": math.nan, "b": math.inf, "c": -math.inf, "e": -math.inf, "null": 1.0}.items():
        np.testing.assert_array_equal(open_group(folder)[f"train/{key}"].values, [value])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00+00:00"),
        (1785801602.5, "2026-08-04T00:00:02.500000000+00:00"),
        (1785801602.1234567, "2026-08-04T00:00:02.123456717+00:00"),
        (-0.25, "1969-12-31T23:59:59.750000000+00:00"),
        (0.9999999999, "1970-01-01T00:00:01+00:00"),
        (np.float64(253402300799), "9999-12-31T23:59:59+00:00"),
    ],
)
def test_times_are_rfc_3339(folder: Path, seconds: Any, text: str) -> None:
    """In UTC; of what float64 has of a time, nothing is lost."""
    MetricsGroupLogger(folder).log_metrics({"loss": 0.5}, step=1, walltime=seconds)
    series = open_group(folder)["train/loss"]

    assert series.wall_time == [text]
    assert series.seconds()[0] == (seconds if seconds != 0.9999999999 else 1.0)


def test_the_time_is_now_by_default(folder: Path) -> None:
    """Of the line, and so that Python reads it."""
    MetricsGroupLogger(folder).log_metrics({"a": 0.5, "b": 1.5}, step=1)
    group = open_group(folder)
    (text,) = group["train/a"].wall_time
    age = os.stat(folder / "metrics.jsonl").st_mtime - group["train/a"].seconds()[0]

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{9})?\+00:00", text)
    assert group["train/b"].wall_time == [text]
    assert abs(age) < 60


@pytest.mark.parametrize("walltime", [math.nan, math.inf, 1e12, "now", [1]])
def test_a_time_that_is_none_is_refused(folder: Path, walltime: Any) -> None:
    """Before anything is written."""
    with pytest.raises(MetricValueError, match="walltime must be Unix seconds"):
        MetricsGroupLogger(folder).log_metrics({"loss": 0.5}, step=1, walltime=walltime)

    assert not folder.exists()


def test_times_of_others_are_understood(folder: Path) -> None:
    """Any zone, any number of digits; what is no time is NaN, and stays as it is."""
    texts = ["2026-08-04T02:00:02.5+02:00", "2026-08-04t00:00:02z", "2026-08-03T19:00:02-05:00", "yesterday"]
    write(folder, *({**event("a", 1.0), "time": text} for text in texts))
    series = open_group(folder)["a"]

    assert series.wall_time == texts
    np.testing.assert_array_equal(series.seconds(), [1785801602.5, 1785801602, 1785801602, math.nan])


def test_names_that_cannot_be_stored_are_named(folder: Path) -> None:
    """Their siblings are stored, and the next line's as well."""
    longest = "x" * (255 - len("train%2F"))
    logger = MetricsGroupLogger(folder)
    for step in (1, 2):
        with pytest.raises(MetricValueError, match="256 bytes as the name of a Zarr array") as raised:
            logger.log_metrics({"a": 1.0, longest: 2.0, longest + "y": 3.0, "\ud800": 4.0}, step=step)
        assert raised.value.metrics == {longest + "y", "\ud800"}
    logger.finish("completed")

    assert open_group(folder).names() == ["train/a", f"train/{longest}"]
    assert ByHand(folder, log=False).stored().metrics[f"train/{longest}"] == [(1, 2.0), (2, 2.0)]


def test_a_step_is_at_most_what_int64_holds(folder: Path) -> None:
    """It never wraps around."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=2**63 - 1)
    with pytest.raises(StepError, match="below 2\\*\\*63"):
        logger.log_metrics({"loss": 0.5}, step=2**63)
    logger.finish("completed")

    assert zarr.open_group(folder, mode="r")["steps/train%2Floss"][:].tolist() == [2**63 - 1]


def test_strings_of_a_class_of_their_own_are_names(folder: Path) -> None:
    """Also when the same name has been seen as a plain string."""

    class Name(str):
        __slots__ = ()

    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"a": 1.0, "b": 2.0}, step=1)
    logger.log_metrics({Name("a"): 3.0, Name("b"): 4.0}, step=2)

    assert open_group(folder)["train/b"].values.tolist() == [2.0, 4.0]


# ---- the arrays ---------------------------------------------------------------------------------------------


def test_the_arrays_are_those_of_the_specification(folder: Path) -> None:
    """Opened with zarr alone: types, shapes, values, and the catalog."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1, walltime=1785801601)
    logger.log_metrics({"loss": 0.4}, step=2, walltime=1785801602)
    logger.log_metrics({"loss": 0.3}, step=1, walltime=1785801603)
    logger.densify()
    group = zarr.open_group(folder, mode="r", zarr_format=3)
    values, steps, times = (group[f"{node}/train%2Floss"] for node in ("series", "steps", "wall_time"))

    assert (values.dtype, steps.dtype) == (np.float64, np.int64)
    assert times.metadata.to_dict()["data_type"] == "string"
    assert (values[:].tolist(), steps[:].tolist()) == ([0.3, 0.4], [1, 2])
    assert times[:].tolist() == ["2026-08-04T00:00:03+00:00", "2026-08-04T00:00:02+00:00"]
    size = (folder / "metrics.jsonl").stat().st_size
    assert group.attrs["wal"] == {"lines": 3, "bytes": size}
    assert group.attrs["series"] == {
        "train/loss": {
            "type": "scalar", "count": 2, "latest_step": 2, "latest_timestamp": "2026-08-04T00:00:02+00:00",
        }
    }  # fmt: skip
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["series", "steps", "wall_time"]


def test_events_without_a_step_never_merge(folder: Path) -> None:
    """A series without steps has no array of them; one in which some have them says which."""
    write(folder, event("a", 1.0), event("a", 1.0), event("b", 2.0), event("b", 3.0, 5), event("b", 4.0, 5),
          event("b", 5.0))  # fmt: skip
    before = ByHand(folder).points
    densify(folder)
    group = zarr.open_group(folder, mode="r")

    assert ByHand(folder, log=False).points == before
    assert group["series/a"][:].tolist() == [1.0, 1.0]
    assert group["series/b"][:].tolist() == [2.0, 4.0, 5.0]
    assert "a" not in group["steps"]
    assert group["steps/b"][:].tolist() == [-(2**63), 5, -(2**63)]
    assert catalog(folder)["series"]["a"]["latest_step"] is None
    assert open_group(folder)["a"].steps is None


def test_steps_that_come_late_to_a_series_without(folder: Path) -> None:
    """Points that are in the arrays already get no step by it."""
    write(folder, event("a", 1.0), event("a", 2.0))
    densify(folder)
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(event("a", 3.0, 7)) + "\n" + json.dumps(event("a", 4.0)) + "\n")
    densify(folder)

    assert [(step, value) for step, value, _ in ByHand(folder, log=False).points["a"]] == [
        (None, 1.0), (None, 2.0), (7, 3.0), (None, 4.0),
    ]  # fmt: skip


def test_it_is_densified_at_the_end_on_demand_and_every_so_many_lines(folder: Path) -> None:
    """The catalog says how far."""

    def covered() -> int:
        return int(catalog(folder)["wal"]["lines"])

    logger = MetricsGroupLogger(folder, densify_every=3)
    seen = []
    for step in range(7):
        logger.log_metrics({"loss": 0.5, "acc": 0.5}, step=step)
        seen.append(covered())
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    logger.densify()
    assert covered() == 7
    logger.log_metrics({"loss": 0.5}, step=7)
    logger.finish("completed")
    assert covered() == 9


def test_many_points_and_many_appends(folder: Path) -> None:
    """More than a chunk of them, replaced anywhere."""
    logger = MetricsGroupLogger(folder)
    model = {}
    for begin in range(0, 40_000, 13_000):
        for step in [*range(begin, begin + 14_000), begin // 2, 7]:
            logger.log_metrics({"loss": step + begin / 1e6}, step=step, walltime=step)
            model[step] = step + begin / 1e6
        logger.densify()
    series = open_group(folder)["train/loss"]

    assert series.steps is not None
    assert dict(zip(series.steps.tolist(), series.values.tolist(), strict=True)) == model
    assert zarr.open_array(folder, path="series/train%2Floss", mode="r").shape == (len(model),)
    assert series.by_step().values.tolist() == [model[step] for step in sorted(model)]


def test_a_disk_that_fails_while_it_densifies_costs_no_line(folder: Path) -> None:
    """The line that it fell to is logged; one warning says what was wrong."""
    logger = MetricsGroupLogger(folder, densify_every=2)
    logger.log_metrics({"loss": 0.5}, step=1)
    with failing_disk(2), pytest.warns(RuntimeWarning, match="could not bring its arrays up to date"):
        logger.log_metrics({"loss": 0.25}, step=2)
    logger.log_metrics({"loss": 0.125}, step=3)
    logger.finish("completed")

    assert ByHand(folder, log=False).stored().metrics["train/loss"] == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_a_line_that_the_disk_refuses_leaves_nothing_behind(folder: Path) -> None:
    """Not half of it either; the next one is written."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    with failing_disk(), pytest.raises(OSError, match="Input/output error"):
        logger.log_metrics({"loss": 0.25}, step=2)
    logger.log_metrics({"loss": 0.125}, step=3)

    assert [line["step"] for line in lines(folder)] == [1, 3]


# ---- what others have put there -----------------------------------------------------------------------------


def test_other_keys_and_nodes_are_kept(folder: Path) -> None:
    """In the catalog, of a series, in the events; beside the arrays; and by a resume that makes all anew."""
    group = zarr.open_group(folder, mode="w", zarr_format=3, attributes={"units": {"loss": "nat"}, "answer": 42})
    group.create_array("extra", data=np.arange(3))
    logger = MetricsGroupLogger(folder)
    state = logger.logger_state()
    logger.log_metrics({"loss": 0.5}, step=1)
    state = logger.logger_state()
    logger.densify()
    document = json.loads((folder / "zarr.json").read_text())
    document["attributes"]["series"]["train/loss"]["color"] = "red"
    document["attributes"]["wal"]["host"] = "here"
    (folder / "zarr.json").write_text(json.dumps(document))
    logger._run.log.close()  # type: ignore[union-attr]

    logger = MetricsGroupLogger(folder)
    logger.reattach(state)
    logger.log_metrics({"loss": 0.25}, step=2)
    logger.densify()
    again = MetricsGroupLogger(folder)
    logger.finish("error")
    again.reattach(state)
    again.finish("completed")
    found = catalog(folder)

    assert (found["units"], found["answer"]) == ({"loss": "nat"}, 42)
    assert (found["series"]["train/loss"]["color"], found["series"]["train/loss"]["count"]) == ("red", 1)
    assert found["wal"]["host"] == "here"
    assert zarr.open_group(folder, mode="r")["extra"][:].tolist() == [0, 1, 2]
    assert ByHand(folder, log=False).stored().metrics["train/loss"] == [(1, 0.5)]


def test_an_array_of_somebody_else_is_not_overwritten(folder: Path) -> None:
    """Whose name we would use. What is logged is in the log."""
    zarr.open_group(folder, mode="w", zarr_format=3).create_array("events", data=np.arange(3))
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.densify()
    logger.log_params({"lr": 0.5})
    with pytest.raises(LoggerError, match="has something called 'events' that is not of its catalog"):
        logger.finish("completed")

    assert zarr.open_array(folder, path="events", mode="r")[:].tolist() == [0, 1, 2]
    assert open_group(folder).run().params == {"lr": 0.5}
    (folder / "events").rename(folder / "theirs")
    logger.finish("completed")
    assert ByHand(folder, log=False).stored().params == {"lr": 0.5}


def test_events_that_are_no_points_are_kept_as_they_are(folder: Path) -> None:
    """Of unknown types, with unknown fields, or with a value that no array can hold."""
    text = event("note", "hello")
    alien = {"type": "histogram", "key": "w", "time": "2026-08-04T00:00:00Z", "value": [1, 2], "bins": 2, "huge": 2**70}
    mixed = {**event("train", 0, 3), "values": {"a": 1.5, "b": "text"}}
    del mixed["value"]
    known = event("a", 1.0, 1, unit="m", tags={"k": "v"})
    write(folder, text, known, alien, mixed, event("", 1.0), event("s", 1.0, 2.5))
    before = open_group(folder).events()
    points = open_group(folder)["train/a"].values.tolist()
    densify(folder)
    group = open_group(folder)

    assert before == group.events() == [text, alien, mixed, event("", 1.0), event("s", 1.0, 2.5)]
    assert group.names() == ["a", "train/a"]
    assert points == group["train/a"].values.tolist() == [1.5]
    assert [json.loads(line) for line in zarr.open_array(folder, path="events", mode="r")[:]] == before
    assert lines(folder)[1]["unit"] == "m"


def test_a_catalog_without_wal_covers_no_log(folder: Path) -> None:
    """The arrays are the whole record; a log beside them is none of it."""
    write(folder, event("a", 1.0, 1), event("a", 2.0, 2))
    densify(folder)
    attributes = catalog(folder)
    del attributes["wal"]
    write(folder, event("a", 3.0, 3), event("b", 1.0), attributes=attributes)

    assert open_group(folder).names() == ["a"]
    assert open_group(folder)["a"].values.tolist() == [1.0, 2.0]
    densify(folder)
    assert open_group(folder)["a"].values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("lost", ["log", "half", "wal"])
def test_a_group_whose_log_is_gone_can_be_gone_on_with(folder: Path, lost: str) -> None:
    """The arrays are authoritative: the log is written anew from them, and what was there is set aside."""
    first = MetricsGroupLogger(folder)
    first.log_params({"lr": 0.5})
    first.log_metrics({"loss": 0.5, "nan": math.nan}, step=1)
    first.log_metrics({"loss": 0.25}, step=2)
    first.finish("error")
    log = folder / "metrics.jsonl"
    if lost == "log":
        log.unlink()
    elif lost == "half":
        os.truncate(log, 150)
    else:
        attributes = catalog(folder)
        del attributes["wal"]
        write(folder, event("stray", 1.0), attributes=attributes)
    assert open_group(folder)["train/loss"].values.tolist() == [0.5, 0.25]

    second = MetricsGroupLogger(folder, if_exists="append")
    second.log_metrics({"loss": 0.125}, step=3)
    state = second.logger_state()
    second.log_metrics({"loss": 9.0}, step=1)
    second.finish("completed")
    third = MetricsGroupLogger(folder)
    third.reattach(state)
    third.finish("completed")
    found = ByHand(folder, log=False).stored()

    assert found.metrics["train/loss"] == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert math.isnan(found.metrics["train/nan"][0][1])
    assert (found.params, found.status) == ({"lr": 0.5}, "completed")
    assert (folder / "metrics.jsonl.old").exists() == (lost != "log")


def test_arrays_of_somebody_else_may_have_no_times(folder: Path) -> None:
    """Nor steps, nor a log: what is there is read, and can be gone on with."""
    series = {
        key: {"type": "scalar", "count": 2, "latest_step": step, "latest_timestamp": None}
        for key, step in (("train/a", 5), ("b", None))
    }
    group = zarr.open_group(folder, mode="w", zarr_format=3, attributes={"series": series})
    for name in ("train%2Fa", "b"):
        group.create_array(f"series/{name}", data=np.array([1.0, 2.0]))
    group.create_array("steps/train%2Fa", data=np.array([3, 5]))
    read = open_group(folder)
    assert (read["train/a"].wall_time, read["b"].steps) == (["", ""], None)
    assert read["train/a"].steps.tolist() == [3, 5]  # type: ignore[union-attr]

    logger = MetricsGroupLogger(folder, if_exists="append")
    logger.log_metrics({"a": 4.0}, step=3, walltime=0)
    logger.log_metrics({"a": 8.0}, step=7, walltime=1)
    logger.densify()
    logger.log_metrics({"a": 16.0}, step=3, walltime=2)
    logger.finish("completed")
    points = ByHand(folder, log=False).points

    assert points["train/a"] == [
        (3, 16.0, "1970-01-01T00:00:02+00:00"), (5, 2.0, ""), (7, 8.0, "1970-01-01T00:00:01+00:00"),
    ]  # fmt: skip
    assert points["b"] == [(None, 1.0, ""), (None, 2.0, "")]


def test_a_log_alone_is_a_group(folder: Path) -> None:
    """Whose catalog nobody has written yet, or somebody has deleted to have it all made anew."""
    write(folder, event("a", 1.0, 1))
    assert open_group(folder)["a"].values.tolist() == [1.0]
    densify(folder)
    assert ByHand(folder, log=False).points == ByHand(folder).points
    (folder / "zarr.json").unlink()
    densify(folder)

    assert ByHand(folder, log=False).points["a"] == [(1, 1.0, "2026-08-04T00:00:00+00:00")]


# ---- damage -------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_ignored_and_cut(folder: Path) -> None:
    """By readers, and by who goes on."""
    write(folder, event("a", 1.0, 1))
    with (folder / "metrics.jsonl").open("a") as log:
        log.write('{"type":"scalar","key":"a","st')
    reader = open_group(folder)
    assert reader["a"].values.tolist() == [1.0]
    logger = MetricsGroupLogger(folder, if_exists="append")
    logger.log_metrics({"b": 2.0}, step=1)

    assert reader["train/b"].values.tolist() == [2.0]
    assert [line["key"] for line in lines(folder)] == ["a", "train/b"]


@pytest.mark.parametrize("broken", ["{", "5", '{"a":1} {"b":2}', '"\\ud800'])
def test_a_broken_line_is_named(folder: Path, broken: str) -> None:
    """With its number; nothing is densified then."""
    write(folder, event("a", 1.0))
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(f"\n{broken}\n" + json.dumps(event("a", 2.0)) + "\n")
    where = re.escape(f"{folder / 'metrics.jsonl'}:3 is no event")
    with pytest.raises(CorruptGroupError, match=where):
        open_group(folder).names()
    with pytest.raises(CorruptGroupError, match=where):
        densify(folder)

    assert not (folder / "series").exists()


def test_what_is_no_group_is_said(folder: Path) -> None:
    """Nothing there, another node, a watermark inside a line, an array that is too short."""
    with pytest.raises(NoGroupError, match="no metrics group at"):
        open_group(folder)
    with pytest.raises(NoGroupError, match="no metrics group at"):
        densify(folder)
    assert not folder.exists()
    write(folder, event("a", 1.0), attributes={"wal": {"lines": 1, "bytes": 5}, "series": {}})
    with pytest.raises(CorruptGroupError, match=r"byte 5, .* is inside a line"):
        open_group(folder).names()
    write(folder, attributes={"wal": {"lines": 0, "bytes": 0}, "series": {"a": {"type": "scalar", "count": 1}}})
    with pytest.raises(CorruptGroupError, match="counts 1 items of series/a, and that array is not there"):
        open_group(folder)["a"]
    write(folder, attributes={"wal": {"lines": -1, "bytes": 0}})
    with pytest.raises(CorruptGroupError, match=r"zarr\.json is no document"):
        open_group(folder)
    zarr.open_array(folder, mode="w", shape=(1,), dtype="f8", zarr_format=3)
    with pytest.raises(CorruptGroupError, match=r"zarr\.json is no document"):
        MetricsGroupLogger(folder, if_exists="append").log_metrics({"a": 1.0}, step=1)
    with pytest.raises(KeyError, match="no series 'x'"):
        write(folder, event("a", 1.0), attributes={})
        open_group(folder)["x"]


# ---- processes ----------------------------------------------------------------------------------------------


def test_a_run_that_is_there_can_be_gone_on_with_or_replaced(folder: Path) -> None:
    """If it is said; what else is in the group stays."""
    first = MetricsGroupLogger(folder)
    first.log_metrics({"loss": 0.5}, step=1)
    first.finish("completed")
    with pytest.raises(RunExistsError, match="holds a metrics group already"):
        MetricsGroupLogger(folder).log_metrics({"loss": 0.25}, step=2)
    MetricsGroupLogger(folder).finish("error")  # of a run that has not begun; the one that is there stays as it is
    second = MetricsGroupLogger(folder, if_exists="append")
    assert second.run_id() == first.run_id()
    second.log_metrics({"loss": 0.25}, step=2)
    second.finish("completed")
    assert ByHand(folder).stored().metrics["train/loss"] == [(1, 0.5), (2, 0.25)]

    document = json.loads((folder / "zarr.json").read_text())
    document["attributes"]["mine"] = 1
    (folder / "zarr.json").write_text(json.dumps(document))
    third = MetricsGroupLogger(folder, if_exists="replace")
    third.log_metrics({"acc": 0.125}, step=1)
    assert third.run_id() != first.run_id()
    third.finish("completed")
    assert ByHand(folder, log=False).stored().metrics == {"train/acc": [(1, 0.125)]}
    assert catalog(folder)["mine"] == 1


def test_there_is_one_process_that_writes(folder: Path) -> None:
    """Another is refused by name, and so is densifying from outside; until the first one ends."""
    program = (
        "import sys\nfrom adapters import MetricsGroupLogger\nlogger = MetricsGroupLogger(sys.argv[1])\n"
        "logger.log_metrics({'loss': 0.5}, step=1)\nprint(1, flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        logger = MetricsGroupLogger(folder, if_exists="append")
        with pytest.raises(RunLockedError, match="is being written by another logger"):
            logger.log_metrics({"loss": 1.0}, step=1)
        with pytest.raises(RunLockedError):
            densify(folder)
        process.kill()
    logger.log_metrics({"loss": 0.25}, step=2)

    assert [line["step"] for line in lines(folder)] == [1, 2]


def test_a_newer_logger_of_the_process_takes_over(folder: Path) -> None:
    """As after an exception that left the older one behind. That one says so, and its end touches nothing."""
    older = MetricsGroupLogger(folder)
    older.log_metrics({"loss": 0.5}, step=1)
    state = older.logger_state()
    older.log_metrics({"loss": 9.0}, step=2)
    with pytest.raises(RunLockedError):
        densify(folder)
    newer = MetricsGroupLogger(folder)
    newer.reattach(state)
    newer.log_metrics({"loss": 0.25}, step=2)
    for use in (lambda: older.log_metrics({"loss": 9.0}, step=3), lambda: older.finish("error"), older.densify):
        with pytest.raises(RunLockedError, match="a newer logger in this process has taken"):
            use()
    newer.log_metrics({"loss": 0.125}, step=3)
    newer.finish("completed")

    assert ByHand(folder, log=False).stored().metrics["train/loss"] == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_a_group_that_is_taken_away_is_noticed(folder: Path) -> None:
    """When it is densified: what is logged meanwhile goes where the log went, and can be finished there again."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    moved = folder.rename(folder.with_name("elsewhere"))
    logger.log_metrics({"loss": 0.25}, step=2)
    with pytest.raises(FileNotFoundError, match="was moved or deleted"):
        logger.finish("completed")
    moved.rename(folder)
    logger.finish("completed")

    assert ByHand(folder, log=False).stored().metrics["train/loss"] == [(1, 0.5), (2, 0.25)]


def test_a_reattach_that_fails_changes_nothing(folder: Path) -> None:
    """A foreign state leaves a run that is being logged as it is; after damage one has to decide anew."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    state: Any = logger.logger_state()
    with pytest.raises(RecordError):
        logger.reattach({**state, "run_id": "other"})
    with pytest.raises(RecordError, match="got a state that its"):
        logger.reattach({**state, "wal": {"bytes": -1}})
    logger.log_metrics({"loss": 0.25}, step=2)
    with pytest.raises(RecordError, match="no line ends at byte 7"):
        logger.reattach({**state, "wal": {"bytes": 7}})
    with pytest.raises(RunExistsError):
        logger.log_metrics({"loss": 9.0}, step=3)
    logger.reattach(state)
    logger.log_metrics({"loss": 0.125}, step=2)
    logger.finish("completed")

    assert ByHand(folder, log=False).stored().metrics["train/loss"] == [(1, 0.5), (2, 0.125)]


def test_a_moved_group_is_gone_on_with(folder: Path) -> None:
    """It is its identity that counts; another group is refused, and so is one that has lost something."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    state = logger.logger_state()
    logger.finish("error")
    moved = folder.rename(folder.with_name("elsewhere"))
    second = MetricsGroupLogger(moved)
    second.reattach(state)
    second.log_metrics({"loss": 0.25}, step=2)
    later = second.logger_state()
    second.finish("completed")
    assert ByHand(moved).stored().metrics["train/loss"] == [(1, 0.5), (2, 0.25)]

    MetricsGroupLogger(folder).log_metrics({"other": 1.0}, step=1)
    with pytest.raises(RecordError, match="is there; build MetricsGroupLogger with the path of the run"):
        MetricsGroupLogger(folder).reattach(state)
    os.truncate(moved / "metrics.jsonl", 20)
    with pytest.raises(RecordError, match="has 20 bytes"):
        MetricsGroupLogger(moved).reattach(later)
    (moved / "metrics.jsonl").write_bytes(b"x" * 5000)
    with pytest.raises(RecordError, match="no line ends at byte"):
        MetricsGroupLogger(moved).reattach(later)


def test_a_forked_copy_writes_nothing(folder: Path) -> None:
    """It says so once, does not hold the lock, and the parent goes on."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.warns(RuntimeWarning, match="its copy in the forked process"):
                logger.log_metrics({"loss": 9.0}, step=2)
            logger.log_metrics({"loss": 9.0}, step=3)
            logger.log_params({"a": 1})
            logger.reattach(logger.logger_state())
            logger.finish("error")
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    logger.log_metrics({"loss": 0.25}, step=2)

    assert [line["step"] for line in lines(folder)] == [1, 2]


def test_threads_may_share_a_logger(folder: Path) -> None:
    """Every line is there, whole, with its own time, while the arrays follow."""
    logger = MetricsGroupLogger(folder, densify_every=50)

    def log(thread: int) -> None:
        for step in range(100):
            logger.log_metrics({"a": step, "b": -step}, step=step, context=f"c{thread}", walltime=thread * 1e9 + step)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(log, range(4)))
    logger.finish("completed")
    group = open_group(folder)

    for thread in range(4):
        for name, sign in (("a", 1), ("b", -1)):
            series = group[f"c{thread}/{name}"]
            assert series.values.tolist() == [sign * step for step in range(100)]
            assert series.seconds().tolist() == [thread * 1e9 + step for step in range(100)]


def test_a_pickle_leads_to_the_run(folder: Path) -> None:
    """One that has not begun is the same again; one that has must not replace what it has written."""
    recipe = pickle.loads(pickle.dumps(MetricsGroupLogger(folder, if_exists="replace", densify_every=2)))
    recipe.log_metrics({"loss": 0.5}, step=1)
    recipe.log_metrics({"loss": 0.5}, step=2)
    assert catalog(folder)["wal"]["lines"] == 2
    copy = pickle.loads(pickle.dumps(recipe))
    with pytest.raises(RunExistsError):
        copy.log_metrics({"loss": 0.25}, step=2)


def test_options_that_are_none_are_refused(folder: Path) -> None:
    """When the logger is built."""
    with pytest.raises(LoggerError, match="if_exists must be"):
        MetricsGroupLogger(folder, if_exists="maybe")  # type: ignore[arg-type]
    for every in (0, -1, True, 2.5):
        with pytest.raises(LoggerError, match="densify_every must be"):
            MetricsGroupLogger(folder, densify_every=every)  # type: ignore[arg-type]


def test_the_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written. A log alone can be read without."""
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'plattli-loggers[zarr]'")):
        MetricsGroupLogger(folder).log_metrics({"loss": 0.5}, step=1)
    assert not folder.exists()
    write(folder, event("a", 1.0, 1))

    assert open_group(folder)["a"].values.tolist() == [1.0]


def test_finishing_may_be_tried_again(folder: Path) -> None:
    """When the disk has refused it."""
    logger = MetricsGroupLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=1)
    with failing_disk(3), pytest.raises(OSError, match="Input/output error"):
        logger.finish("completed")
    logger.finish("completed")
    with pytest.raises(LoggerFinishedError, match="is finished"):
        logger.densify()

    assert ByHand(folder, log=False).stored().status == "completed"


def test_an_epoch_among_the_metrics_is_said(folder: Path) -> None:
    """The line's own counts."""
    logger = MetricsGroupLogger(folder)
    with pytest.warns(RuntimeWarning, match="the metric 'epoch' of context 'train' is left out"):
        logger.log_metrics({"epoch": 0.5, "loss": 0.25}, step=1, epoch=3)

    assert open_group(folder)["train/epoch"].values.tolist() == [3.0]


def test_a_reader_follows_a_run(folder: Path) -> None:
    """It sees every line when its verb has returned, through densifying, resumes and the end."""
    logger = MetricsGroupLogger(folder)
    logger.log_params({"lr": 0.5})
    logger.log_metrics({"loss": 0.5}, step=1)
    reader = open_group(folder)
    assert (len(reader), "train/loss" in reader, reader.run().params) == (1, True, {"lr": 0.5})
    state = logger.logger_state()
    logger.log_metrics({"loss": 0.25, "new": 1.0}, step=2)
    assert reader["train/loss"].values.tolist() == [0.5, 0.25]
    logger.densify()
    logger.log_metrics({"loss": 0.75}, step=1)
    assert reader["train/loss"].values.tolist() == [0.75, 0.25]
    logger.finish("error")
    assert reader.run().status == "error"
    logger.reattach(state)
    assert reader.names() == ["train/loss"]
    logger.log_metrics({"loss": 0.125}, step=2)

    assert reader["train/loss"].values.tolist() == [0.5, 0.125]
    assert (reader.run().status, logger.backend().names()) == (None, reader.names())


def test_it_is_a_replica_of_a_tee(tmp_path: Path) -> None:
    """Called in turn, and cut with its primary."""

    def build() -> TeeLogger:
        return TeeLogger(PlattliLogger(tmp_path / "run"), MetricsGroupLogger(tmp_path / "metrics"))

    first = build()
    first.log_params({"lr": 0.5})
    first.log_metrics({"loss": 0.5}, step=1, epoch=0)
    state = first.logger_state()
    first.log_metrics({"loss": 0.25}, step=2, epoch=0)
    first.finish("interrupted")
    second = build()
    second.reattach(state)
    second.log_metrics({"loss": 0.125}, step=2, epoch=0)
    second.finish("completed")
    found = ByHand(tmp_path / "metrics", log=False).stored()

    assert found.metrics == {"train/loss": [(1, 0.5), (2, 0.125)], "train/epoch": [(1, 0), (2, 0)]}
    assert (found.params, found.status) == ({"lr": 0.5}, "completed")


# ---- kill -9 ------------------------------------------------------------------------------------------------

_VICTIM = """
import sys
from adapters import MetricsGroupLogger
logger = MetricsGroupLogger(sys.argv[1], if_exists="append", densify_every=11)
first = int(sys.argv[2])
for step in range(first, 10**9):
    logger.log_metrics({"loss": step / 7, "n": step}, step=step)
    if step % 5 == 0:
        logger.log_metrics({"loss": -step}, step=step // 2)
    print(step, flush=True)
"""


def test_what_a_verb_has_returned_from_survives_kill_9(folder: Path) -> None:
    """However often the process dies at whatever moment, densifying every few lines."""
    first, model = 1, {}
    for length in (3, 30, 7, 60, 12):
        command = [sys.executable, "-c", _VICTIM, str(folder), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            said = [int(process.stdout.readline()) for _ in range(length)]
            process.send_signal(signal.SIGKILL)
            said += [int(line) for line in process.stdout if line.endswith("\n")]
        for step in range(first, said[-1] + 1):
            model[step] = step / 7
            if step % 5 == 0:
                model[step // 2] = -step
        found = dict(ByHand(folder).stored().metrics["train/loss"])
        after = said[-1] + 1
        rest = {after: after / 7, **({after // 2: -after} if after % 5 == 0 else {})}

        # the line after the last one said may be there as well, and a part of it has no right to be
        assert found in (model, {**model, after: after / 7}, {**model, **rest})
        assert dict(zip(*_by_step(folder), strict=True)) == found
        model, first = found, after


def _by_step(folder: Path) -> tuple[list[int], list[float]]:
    series = open_group(folder)["train/loss"]
    assert series.steps is not None
    return series.steps.tolist(), series.values.tolist()
