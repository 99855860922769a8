"""``TrackioLogger``, read back with Trackio's own readers."""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import targets
from adapters.backends._trackio_data import config_key, deliver, name_of, row_key, storage
from adapters.backends.trackio import TrackioLogger
from loggers.errors import LoggerError, MetricValueError, RecordError, StepError
from loggers.testing import LoggerContract, Stored
from tests.test_adapters import programs, trackio_runs
from tests.test_adapters.replicas import wait_for


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trackio's directory. It is one for a whole process, so each test has a project of its own."""
    return trackio_runs.home(tmp_path_factory.mktemp("trackio"))


def project_of(directory: Path) -> str:
    return "-".join(directory.parts[-3:])


class TestContract(LoggerContract):
    """Trackio keeps every row; the logger takes those back that are behind a checkpoint."""

    live = False
    replaces = False

    def build(self, directory: Path) -> TrackioLogger:
        return TrackioLogger(project_of(directory))

    def stored(self, directory: Path) -> Stored:
        return trackio_runs.stored(project_of(directory))


# ---- what is special about Trackio ------------------------------------------------------------------


def only_run(directory: Path) -> Any:
    [run] = trackio_runs.runs(project_of(directory))
    return run


def test_building_one_does_no_work(tmp_path: Path) -> None:
    """Nothing is imported or written, the pickle is a recipe of the same run, and nothing is ever printed.

    A run that nobody finished is there when its process has ended, as failed.
    """
    program = """
        import os, pickle, sys
        from adapters import TrackioLogger
        logger = TrackioLogger("p", tags=["t"], directory="here")
        copy = pickle.loads(pickle.dumps(logger))
        assert copy.run_id() == logger.run_id() and copy.logger_state() == logger.logger_state()
        logger.finish("error")
        assert "trackio" not in sys.modules and os.listdir() == []
        copy.log_metrics({"loss": 0.5}, step=1)
        copy.finish("completed")
        assert sorted(os.listdir()) == ["here"] and copy.logger_info()["directory"] == os.path.abspath("here")
        nobody_s = TrackioLogger("p", name="unfinished", directory="here")
        for step in range(500):
            nobody_s.log_metrics({"loss": float(step)}, step=step)
    """
    done = programs.run(program, tmp_path)

    assert (done.stdout, done.stderr) == ("", "")
    with closing(sqlite3.connect(tmp_path / "here" / "p.db")) as database:
        rows = database.execute("SELECT metrics FROM metrics WHERE run_name = 'unfinished'").fetchall()
        [(config,)] = database.execute("SELECT config FROM configs WHERE run_name = 'unfinished'")
    losses = [row["train/loss"] for row in (json.loads(text) for (text,) in rows) if row]
    assert losses == [*map(float, range(500))]
    assert json.loads(config)["loggers"]["status"] == "error"


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first verb."""
    monkeypatch.setitem(sys.modules, "trackio.sqlite_storage", None)
    with pytest.raises(ImportError, match=r"TrackioLogger needs the package 'trackio'.*plattli-loggers\[trackio\]"):
        TrackioLogger("p").log_metrics({"loss": 1.0}, step=1)


def test_a_directory_that_cannot_be_had_any_more_is_refused(tmp_path: Path) -> None:
    """Trackio has settled for another one: better no run than one that nobody finds."""
    with pytest.raises(LoggerError, match="set TRACKIO_DIR"):
        TrackioLogger("p", directory=tmp_path).log_metrics({"loss": 1.0}, step=1)

    assert not any(tmp_path.iterdir())


def test_rows_and_config_as_trackio_shows_them(tmp_path: Path) -> None:
    """A row has its line's time; the config has the params, and the rest where no param can be."""
    logger = TrackioLogger(project_of(tmp_path), name="first", group="sweep")
    logger.log_params({"lr": 0.1, "net": {"widths": [64, 32]}, "_secret": 1, "loggers": 2, "top": math.inf})
    logger.log_tags({"dataset": "digits"})
    logger.log_metrics({"loss": math.nan, "n": 2**63 + 5}, step=3, epoch=1, walltime=1.7e9)
    logger.finish("early_stop")

    run = only_run(tmp_path)
    row, first = trackio_runs.rows(project_of(tmp_path), run)
    assert first == {"step": 0, "timestamp": run.config["_Created"]}  # what makes a run visible before its first line
    assert math.isnan(row.pop("train/loss"))
    assert row == {"train/n": 2**63 + 5, "train/epoch": 1, "step": 3, "timestamp": "2023-11-14T22:13:20+00:00"}
    assert (run.name, run.id, run.config["_Group"]) == ("first", logger.run_id(), "sweep")
    assert {key: run.config[key] for key in ("lr", "net", "%5Fsecret", "%6Coggers", "top")} == {
        "lr": 0.1, "net": {"widths": [64, 32]}, "%5Fsecret": 1, "%6Coggers": 2, "top": "inf"
    }  # fmt: skip
    assert run.config["loggers"] == {
        "run_id": logger.run_id(), "tags": {"dataset": "digits"}, "status": "early_stop"
    }  # fmt: skip


def test_params_without_a_line_are_there(tmp_path: Path) -> None:
    """Trackio itself would keep them to itself until there is one."""
    logger = TrackioLogger(project_of(tmp_path))
    logger.log_params({"lr": 0.1})
    logger.log_params({"lr": 0.2})
    logger.finish("error")

    found = trackio_runs.stored(project_of(tmp_path))
    assert (found.params, found.metrics, found.status) == ({"lr": 0.2}, {}, "error")


def test_what_trackio_would_read_as_something_else_is_refused(tmp_path: Path) -> None:
    """And costs its siblings nothing."""
    logger = TrackioLogger(project_of(tmp_path))
    with pytest.raises(MetricValueError) as raised:
        logger.log_metrics({"good": 1.0, "word": "NaN", "list": [1.0, math.inf], "\ud800": 1.0}, step=1)
    with pytest.raises(MetricValueError):
        logger.log_other("folds", {"best": [math.nan]})
    with pytest.raises(StepError, match=r"2\*\*63 - 1"):
        logger.log_metrics({"good": 1.0}, step=2**63)
    logger.log_metrics({"good": 2.0}, step=2)
    logger.finish("completed")

    assert raised.value.metrics == {"word", "list", repr("\ud800")}
    assert trackio_runs.stored(project_of(tmp_path)).metrics == {"train/good": [(1, 1.0), (2, 2.0)]}


@given(st.text(max_size=20) | st.sampled_from(["step", "time", "__x", "%", "%2", "loggers", "_x", "%5Fx", "%%"]))
def test_every_name_reads_back(name: str) -> None:
    """And none is taken for one of Trackio's own."""
    assert name_of(row_key(name)) == name
    assert name_of(config_key(name)) == name
    assert row_key(name) not in ("project", "run", "timestamp", "step", "time", "metrics")
    assert not row_key(name).startswith("__")
    assert not config_key(name).startswith("_")
    assert config_key(name) != "loggers"


def test_a_call_that_is_written_twice_is_there_once(tmp_path: Path) -> None:
    """That is what may become of one when the disk fails in its middle."""
    logger = TrackioLogger(project_of(tmp_path))
    run = logger.backend()
    project = project_of(tmp_path)
    rows: list[list[Any]] = [["row", number, f"2026-01-0{number + 1}", number, {"x": number}] for number in range(3)]
    for some in (rows[:2], rows, rows[1:]):
        deliver(storage(None), project, run.name, run.id, some)
    logger.finish("completed")

    assert trackio_runs.stored(project).metrics == {"x": [(0, 0), (1, 1), (2, 2)]}


def test_a_state_can_carry_what_the_disk_did_not_take(tmp_path: Path) -> None:
    """A file of another's stands in the place of the database: nothing is lost, and one warning says so."""
    logger = TrackioLogger(project_of(tmp_path), finish_timeout=240.0)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.logger_state()
    database = storage(None).get_project_db_path(project_of(tmp_path))
    database.rename(database.with_suffix(".away"))
    database.mkdir()

    logger._finish_timeout = 0.1
    logger.log_metrics({"loss": math.nan, "text": "two"}, step=2)
    wait_for(lambda: logger.logger_info()["error"] is not None)
    state = json.loads(json.dumps(logger.logger_state(), allow_nan=False))
    with pytest.warns(RuntimeWarning, match="they wait in memory") as warned:
        logger.log_params({"lr": 0.1})
        logger.log_params({"lr": 0.2})
    assert len(warned) == 1
    assert [operation[0] for operation in state["pending"]] == ["row"]

    database.rmdir()
    database.with_suffix(".away").rename(database)
    logger._finish_timeout = 240.0
    logger.finish("interrupted")
    copy = TrackioLogger(project_of(tmp_path), finish_timeout=240.0)
    copy.reattach(state)
    copy.finish("completed")
    found = trackio_runs.stored(project_of(tmp_path))
    assert [step for step, _ in found.metrics["train/loss"]] == [1, 2]
    assert math.isnan(found.metrics["train/loss"][1][1])
    assert (found.metrics["train/text"], found.params, found.status) == ([(2, "two")], {}, "completed")


def test_a_run_nobody_finished_has_failed(tmp_path: Path) -> None:
    """When its logger is gone; and every line is there, and the newest params."""
    logger = TrackioLogger(project_of(tmp_path))
    for step in range(100):
        logger.log_metrics({"loss": float(step)}, step=step)
    logger.log_params({"lr": 0.1})
    del logger

    found = trackio_runs.stored(project_of(tmp_path))
    assert (found.status, found.params, len(found.metrics["train/loss"])) == ("error", {"lr": 0.1}, 100)


def test_what_kill_9_costs(tmp_path: Path, home: Path) -> None:
    """Nothing that a state covers, alone; nothing at all in a fan-out."""
    program = f"""
        import os, signal
        from adapters import TeeLogger, TrackioLogger
        from loggers import PlattliLogger
        alone, beside = (TrackioLogger({project_of(tmp_path)!r} + end, directory={str(home)!r}) for end in "12")
        tee = TeeLogger(PlattliLogger("run"), beside, poll=0.02)
        for logger in (alone, tee):
            logger.log_params({{"lr": 0.1}})
            for step in range(1, 101):
                logger.log_metrics({{"loss": step / 7}}, step=step, epoch=1)
        alone.logger_state()
        alone.log_metrics({{"loss": 0.0}}, step=101)
        tee.log_metrics({{"loss": 0.0}}, step=101)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    programs.run(program, tmp_path, killed=True)
    losses = [(step, step / 7) for step in range(1, 101)]

    found = trackio_runs.stored(project_of(tmp_path) + "1")
    assert found.metrics["train/loss"] in (losses, [*losses, (101, 0.0)])
    assert (found.status, found.params) == (None, {"lr": 0.1})
    wait_for(lambda: not any((tmp_path / "run" / ".followers").glob("*.job")))  # the follower is done
    found = trackio_runs.stored(project_of(tmp_path) + "2")
    assert found.metrics["train/loss"] == [*losses, (101, 0.0)]
    assert (found.status, found.params) == ("error", {"lr": 0.1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"project": "another"}, "belongs to Trackio project 'another'"),
        ({"rows": None}, "bad rows"),
        ({"pending": 7, "id": 7}, "bad id, pending"),
    ],
)
def test_reattach_refuses_another_run(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Before anything is written."""
    logger = TrackioLogger(project_of(tmp_path))
    with pytest.raises(RecordError, match=words):
        logger.reattach({**logger.logger_state(), **change})

    assert [*trackio_runs.runs(project_of(tmp_path))] == []


def test_a_target_names_a_project() -> None:
    """As people write it on a command line."""
    assert targets.open_target("trackio:digits").logger_info()["project"] == "digits"
    assert targets.absolute("trackio:digits") == "trackio:digits"
    assert targets.place("trackio:digits") is None
