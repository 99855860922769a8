"""``MLflowLogger``, read back with MLflow's own client: from a database file, and over HTTP."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters import targets
from adapters.backends._mlflow_client import deliver
from adapters.backends._mlflow_data import (
    LONGEST_PARAM,
    LONGEST_TAG,
    decode,
    encode,
    from_text,
    pieces,
    tag_key,
    text,
    versions,
)
from adapters.backends.mlflow import STATUSES, MLflowLogger
from loggers import PlattliLogger, checkpoint_record, resume
from loggers.errors import MetricNameError, MetricValueError, RecordError, StepError, UndeliveredError
from loggers.replay import replay
from loggers.testing import LoggerContract, Stored
from tests.test_adapters import mlflow_runs, programs
from tests.test_adapters.mlflow_server import MLflowServer, unused_port
from tests.test_adapters.replicas import wait_for
from tests.test_loggers.test_contract import plattli_run


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database for all tests: to make one takes MLflow more than a second. Each test has its experiment."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/ml.db"
    client = mlflow_runs.client(uri)
    yield uri
    client._tracking_client.store.engine.dispose()  # else SQLite's connections are found open at exit


class TestContract(LoggerContract):
    """MLflow keeps every point, and takes none back."""

    precision = "float64"
    live = False
    holds_text = False
    replaces = False
    cuts = False
    statuses: ClassVar[dict[str, str]] = STATUSES

    @pytest.fixture(autouse=True)
    def _database(self, database: str) -> None:
        self.uri = database

    def rounded(self, value: Any) -> Any:
        """Its databases keep an infinity as the largest number there is."""
        largest = np.finfo(float).max
        return float(np.clip(float(value), -largest, largest)) if isinstance(value, (int, float)) else value

    def build(self, directory: Path) -> MLflowLogger:
        return MLflowLogger(self.uri, experiment=str(directory))

    def stored(self, directory: Path) -> Stored:
        return mlflow_runs.stored(self.uri, str(directory), directory)


# ---- what is special about MLflow -------------------------------------------------------------------


def logger_on(database: str, tmp_path: Path, **recipe: Any) -> MLflowLogger:
    return MLflowLogger(database, experiment=tmp_path.name, **recipe)


def only_run(database: str, tmp_path: Path) -> Any:
    [run] = mlflow_runs.runs(database, tmp_path.name)
    return run


def test_building_one_does_no_work(tmp_path: Path) -> None:
    """Nothing is imported or written, and the pickle is a recipe of the same run."""
    program = """
        import os, pickle, sys
        from adapters import MLflowLogger
        logger = MLflowLogger("sqlite:///ml.db", experiment="e", tags=["t"])
        copy = pickle.loads(pickle.dumps(logger))
        assert copy.run_id() == logger.run_id() and copy.logger_state() == logger.logger_state()
        logger.finish("error")
        assert "mlflow" not in sys.modules and os.listdir() == []
        assert copy.logger_info()["tracking_uri"] == f"sqlite:///{os.getcwd()}/ml.db"
    """
    programs.run(program, tmp_path)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the first verb."""
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(ImportError, match=r"MLflowLogger needs the package 'mlflow'.*plattli-loggers\[mlflow\]"):
        MLflowLogger(f"sqlite:///{tmp_path}/ml.db").log_metrics({"loss": 1.0}, step=1)


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    """MLflow's client alone would try for minutes."""
    uri = f"http://127.0.0.1:{unused_port()}"
    with pytest.raises(ConnectionError, match=f"no MLflow server answers at {uri}"):
        MLflowLogger(uri).log_params({"lr": 0.1})


def test_params_change_and_may_be_long(database: str, tmp_path: Path) -> None:
    """MLflow refuses the one and cuts the other: every value is there all the same, across processes too."""
    logger = logger_on(database, tmp_path)
    logger.log_params({"lr": 0.1, "notes": "x" * 13_000, "like:v2": 1, "fold@2": "0.5"})
    logger.log_params({"lr": 0.1, "notes": "short"})
    state = logger.logger_state()
    logger.finish("interrupted")
    logger = logger_on(database, tmp_path)
    logger.reattach(state)
    logger.log_params({"lr": 0.2, "notes": "short"})
    logger.log_params({"lr": 0.1})
    logger.finish("completed")

    stored = only_run(database, tmp_path).data.params
    assert [stored[key] for key in ("lr", "lr:v2", "lr:v3", "notes:v2")] == ["0.1", "0.2", "0.1", "short"]
    assert [len(stored[key]) for key in ("notes", "notes:p2", "notes:p3")] == [6000, 6000, 1000]
    assert versions(stored, LONGEST_PARAM) == {
        "lr": ["0.1", "0.2", "0.1"], "notes": ["x" * 13_000, "short"], "like:v2": ["1"], "fold@2": ['"0.5"']
    }  # fmt: skip


def test_a_long_value_that_becomes_shorter(database: str, tmp_path: Path) -> None:
    """What the longer one leaves behind is not read; and no tag of a user's is taken for ours."""
    logger = logger_on(database, tmp_path, tags={"other/report": "mine"})
    logger.log_other("report", "a" * 16_000)
    logger.log_other("report", "b" * 8_000)
    logger.log_tags({"mlflow.note.content": "a note"})
    logger.finish("early_stop")

    run = only_run(database, tmp_path)
    found = mlflow_runs.stored(database, tmp_path.name, tmp_path / "files")
    assert found.other == {"report": "b" * 8_000}
    assert run.data.tags["other:2F:report"] == "mine"
    assert run.data.tags["mlflow.note.content"] == "a note"
    assert run.data.tags["loggers.status"] == "early_stop"


def test_the_newest_value_of_a_step_comes_last(database: str, tmp_path: Path) -> None:
    """Also within a millisecond, when it is the smaller one, and after a resume; walltime is the points' time."""
    logger = logger_on(database, tmp_path)
    for value in (3.0, 2.0, 1.0):
        logger.log_metrics({"loss": value}, step=1, walltime=1.7e9)
    state = logger.logger_state()
    logger.finish("error")
    logger = logger_on(database, tmp_path)
    logger.reattach(state)
    logger.log_metrics({"loss": 0.5}, step=1, walltime=1.7e9)
    logger.finish("completed")

    run = only_run(database, tmp_path)
    assert mlflow_runs.history(database, run.info.run_id, "train/loss") == [(1, 3.0), (1, 2.0), (1, 1.0), (1, 0.5)]
    assert run.data.metrics == {"train/loss": 0.5}  # what MLflow shows as the metric's value
    assert run.info.status == "FINISHED"
    [point, *_] = mlflow_runs.client(database).get_metric_history(run.info.run_id, "train/loss")
    assert point.timestamp == 1_700_000_000_000


def test_a_call_that_is_delivered_twice_is_there_once(database: str, tmp_path: Path) -> None:
    """That is what may become of one whose answer was lost."""
    logger = logger_on(database, tmp_path)
    logger.log_metrics({"loss": 0.5, "nan": math.nan}, step=1)
    run = logger.backend()
    told: list[str] = []
    twice: list[list[Any]] = [["metrics", 7, 2, {"train/loss": 0.25}], ["params", {"lr": "1"}], ["tags", {"t": "1"}]]
    for _ in range(2):
        deliver(logger._client, run.info.run_id, told.append, twice)
    logger.finish("completed")

    assert sorted(mlflow_runs.history(database, run.info.run_id, "train/loss")) == [(1, 0.5), (2, 0.25)]
    assert told == []


def test_what_mlflow_refuses_is_said_and_costs_the_rest_nothing(database: str, tmp_path: Path) -> None:
    """Another process has given the param another value meanwhile."""
    logger = logger_on(database, tmp_path)
    run = logger.backend().info.run_id
    mlflow_runs.client(database).log_param(run, "lr", "0.5")
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.log_params({"lr": 0.1, "seed": 1})
    logger.log_metrics({"loss": 0.25}, step=2)
    with pytest.warns(RuntimeWarning, match="MLflow refused .*'lr': '0.1'"):
        logger.finish("completed")

    found = mlflow_runs.stored(database, tmp_path.name, tmp_path / "files")
    assert found.metrics == {"train/loss": [(1, 0.5), (2, 0.25)]}
    assert found.params == {"lr": 0.5, "seed": 1}
    assert logger.logger_info()["refused"] == 1


def test_names_that_cannot_be_are_said_and_cost_the_others_nothing(database: str, tmp_path: Path) -> None:
    """Too long, or no text."""
    logger = logger_on(database, tmp_path)
    for call in (
        lambda: logger.log_metrics({"good": 1.0, "x" * 300: 2.0, "\ud800": 3.0}, step=1),
        lambda: logger.log_params({"good": 1.0, "x" * 300: 2.0}),
        lambda: logger.log_tags({"good": 1.0, "x" * 300: 2.0}),
    ):
        with pytest.raises(MetricValueError, match="shorten it"):
            call()
    with pytest.raises(MetricNameError, match="shorten it"):
        logger.log_other("x" * 300, 1)
    with pytest.raises(StepError, match=r"2\*\*63 - 1"):
        logger.log_metrics({"loss": 1.0}, step=2**63)
    logger.finish("completed")

    found = mlflow_runs.stored(database, tmp_path.name, tmp_path / "files")
    assert (found.metrics, found.params, found.tags) == ({"train/good": [(1, 1.0)]}, {"good": 1.0}, {"good": 1.0})


def test_an_artifact_store_out_of_reach_costs_no_matrix(database: str, tmp_path: Path) -> None:
    """It is in tags instead, and the caller is told."""
    logger = logger_on(database, tmp_path, artifact_location="nowhere://store")
    labels = [f"class {i} {'x' * 100}" for i in range(100)]
    with pytest.warns(RuntimeWarning, match="it is in tags instead"):
        logger.log_confusion(np.eye(100, dtype=int), labels, step=7, context="validate")
        logger.finish("completed")

    tags = versions(only_run(database, tmp_path).data.tags, LONGEST_TAG)
    record = json.loads(tags["confusion/validate/confusion/7"][0])
    assert (record["labels"], record["matrix"][99][99], record["step"]) == (labels, 1, 7)


@pytest.mark.parametrize("given", ["active", "id"])
def test_a_run_of_mlflow_s_own_is_taken_over(database: str, tmp_path: Path, given: str) -> None:
    """With what is in it already; finishing ends it as its program would."""
    import mlflow

    mlflow.set_tracking_uri(database)
    mlflow.set_experiment(experiment_id=mlflow.create_experiment(tmp_path.name, str(tmp_path / "files")))
    try:
        active = mlflow.start_run()
        mlflow.log_param("lr", 0.1)
        mlflow.log_metric("train/loss", 1.0, step=1)
        logger = MLflowLogger(run=active if given == "active" else active.info.run_id)
        assert logger.run_id() == active.info.run_id
        logger.log_params({"lr": 0.1, "seed": 1})
        logger.log_metrics({"loss": 0.5}, step=2)
        assert logger.backend().info.run_id == active.info.run_id
        logger.finish("error")
        assert mlflow.active_run() is None
    finally:
        mlflow.end_run()
        mlflow.set_tracking_uri(None)

    run = only_run(database, tmp_path)
    assert run.data.params == {"lr": "0.1", "seed": "1"}
    assert mlflow_runs.history(database, run.info.run_id, "train/loss") == [(1, 1.0), (2, 0.5)]
    assert (run.info.status, run.data.tags["loggers.status"]) == ("FAILED", "error")


def test_a_run_nobody_finished_has_failed(database: str, tmp_path: Path) -> None:
    """When its logger is gone; and every line is there."""
    logger = logger_on(database, tmp_path)
    for step in range(100):
        logger.log_metrics({"loss": float(step)}, step=step)
    del logger

    run = only_run(database, tmp_path)
    assert run.info.status == "FAILED"
    assert len(mlflow_runs.history(database, run.info.run_id, "train/loss")) == 100


def test_a_param_that_waits_is_not_forgotten(database: str, tmp_path: Path) -> None:
    """A checkpoint of an outage has its first value, which has not reached MLflow: the next one is the second."""
    logger = logger_on(database, tmp_path)
    logger.log_metrics({"loss": 0.5}, step=1)
    state = logger.logger_state()
    logger.finish("interrupted")
    state["pending"] = [["params", {"lr": "0.1"}]]
    second = logger_on(database, tmp_path)
    second.reattach(json.loads(json.dumps(state)))
    second.log_params({"lr": 0.01})
    second.finish("completed")

    assert only_run(database, tmp_path).data.params == {"lr": "0.1", "lr:v2": "0.01"}


SWEEP = """
import sys
from adapters import MLflowLogger
uri, number = sys.argv[1:]
logger = MLflowLogger(uri, experiment="sweep", name=number)
logger.log_metrics({"n": float(number)}, step=1)
logger.finish("completed")
"""


def test_the_processes_of_a_sweep_make_one_database(tmp_path: Path) -> None:
    """All at the same time: MLflow's own making of the tables fails when two do it together."""
    uri = f"sqlite:///{tmp_path}/ml.db"
    command = [sys.executable, "-W", "ignore", "-c", SWEEP, uri]
    root = Path(__file__).parents[2]
    sweep = [subprocess.Popen([*command, str(n)], cwd=root, stderr=subprocess.PIPE, text=True) for n in range(3)]
    said = [process.communicate()[1] for process in sweep]

    assert [process.returncode for process in sweep] == [0, 0, 0], said
    assert {run.info.run_name: run.data.metrics for run in mlflow_runs.runs(uri, "sweep")} == {
        str(n): {"train/n": float(n)} for n in range(3)
    }
    mlflow_runs.client(uri)._tracking_client.store.engine.dispose()


def test_a_copy_goes_on_with_the_same_run(database: str, tmp_path: Path) -> None:
    """Whether it was pickled before or after the run began: that is how a follower is started again."""
    logger = logger_on(database, tmp_path)
    early = pickle.loads(pickle.dumps(logger))
    logger.log_metrics({"loss": 1.0}, step=1)
    late = pickle.loads(pickle.dumps(logger))
    logger.finish("interrupted")
    for step, copy in enumerate((early, late), 2):
        copy.log_metrics({"loss": 1.0 * step}, step=step)
        copy.finish("completed")

    run = only_run(database, tmp_path)
    assert mlflow_runs.history(database, run.info.run_id, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert run.info.status == "FINISHED"


def test_a_fork_logs_nothing(database: str, tmp_path: Path) -> None:
    """It says so once, and does not wait for a lock that a thread held which it has not got."""
    logger = logger_on(database, tmp_path)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger._pid += 1  # what a fork sees
    with pytest.warns(RuntimeWarning, match="this fork of it logs nothing") as warned:
        logger.log_metrics({"loss": 2.0}, step=2)
        logger.log_params({"lr": 1})
        logger.log_confusion([[1]], ["a"])
        logger.logger_state()
        logger.finish("error")
    logger._pid -= 1
    logger.finish("completed")

    run = only_run(database, tmp_path)
    assert len(warned) == 1
    assert mlflow_runs.history(database, run.info.run_id, "train/loss") == [(1, 1.0)]
    assert (run.info.status, run.data.params) == ("FINISHED", {})


def test_a_run_that_is_not_there_is_not_begun_anew(database: str, tmp_path: Path) -> None:
    """A state leads to its run or to an error."""
    logger = logger_on(database, tmp_path)
    logger.log_metrics({"loss": 1.0}, step=1)
    state = logger.logger_state()
    logger.finish("completed")
    for change, words in (({"run": "0" * 32}, "there is no MLflow run"), ({"experiment": "another"}, "built with")):
        with pytest.raises(RecordError, match=words):
            resumed = logger_on(database, tmp_path)
            resumed.reattach({**state, **change})
            resumed.log_metrics({"loss": 2.0}, step=2)

    assert len(mlflow_runs.runs(database, tmp_path.name)) == 1


# ---- a server ---------------------------------------------------------------------------------------


@pytest.fixture
def server(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MLflowServer]:
    """A server on a copy of the database. MLflow's own client gives up after one attempt."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(database.removeprefix("sqlite:///"), tmp_path / "server.db")
    server = MLflowServer(tmp_path, f"sqlite:///{tmp_path}/server.db")
    yield server
    server.stop()


def test_a_server_goes_away_and_comes_back(server: MLflowServer, tmp_path: Path) -> None:
    """Everything is there in the end: what waited in memory, and what a state took to another process."""
    many = {f"m{i}": i for i in range(1500)}
    large = MLflowLogger(server.uri, experiment="more than a server takes at once", finish_timeout=240.0)
    large.log_metrics(many, step=1)
    large.log_params(dict(islice(many.items(), 150)))
    large.log_tags(dict(islice(many.items(), 150)))
    large.finish("completed")
    [run] = mlflow_runs.runs(server.uri, "more than a server takes at once")
    assert run.data.metrics == {f"train/{name}": value for name, value in many.items()}
    assert run.data.params == {f"m{i}": str(i) for i in range(150)}
    assert run.data.tags.items() >= run.data.params.items()
    logger = MLflowLogger(server.uri, experiment="http", tags=["café"], finish_timeout=240.0)
    logger.log_params({"lr": 0.1, "net": {"width": 64}})
    logger.log_metrics({"loss": math.inf, "top@5 (%)": 0.1}, step=1, epoch=1)
    logger.log_confusion([[1, 2], [3, 4]], ["a", "b"], epoch=1, context="validate")
    logger.logger_state()
    url = logger.run_url()
    server.stop()

    logger._finish_timeout = 0.2
    logger.log_metrics({"loss": math.nan}, step=2)
    wait_for(lambda: logger.logger_info()["error"] is not None)
    state = json.loads(json.dumps(logger.logger_state(), allow_nan=False))
    with pytest.warns(RuntimeWarning, match="they wait in memory") as warned:
        logger.log_metrics({"loss": 0.5}, step=3)
        logger.log_metrics({"loss": 0.25}, step=4)
    with pytest.raises(UndeliveredError, match="call finish again"):
        logger.finish("completed")
    assert len(warned) == 1
    assert logger.logger_info()["pending"] == 4  # three lines and the status
    assert [operation[0] for operation in state["pending"]] == ["metrics"]

    server.start()
    copy = MLflowLogger(server.uri, finish_timeout=240.0)
    copy.reattach(state)
    copy.logger_state()
    copy.log_metrics({"loss": -1.0}, step=9)
    copy.logger_state()
    logger._finish_timeout = 240.0
    logger.finish("interrupted")
    del copy

    run = only_run(server.uri, Path("http"))
    found = mlflow_runs.stored(server.uri, "http", tmp_path / "files")
    losses = dict(mlflow_runs.history(server.uri, run.info.run_id, "train/loss"))
    assert math.isnan(losses.pop(2))
    assert losses == {1: sys.float_info.max, 3: 0.5, 4: 0.25, 9: -1.0}
    assert found.metrics["train/top@5 (%)"] == [(1, 0.1)]
    assert found.params == {"lr": 0.1, "net": {"width": 64}}
    assert found.tags == {"café": True}
    assert found.confusions == {"validate/confusion": [(1, ["a", "b"], [[1, 2], [3, 4]])]}
    assert url == f"{server.uri}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


# ---- kills ------------------------------------------------------------------------------------------


def test_what_kill_9_costs(database: str, tmp_path: Path) -> None:
    """Nothing that a state covers, alone; nothing at all in a fan-out."""
    program = f"""
        import os, signal
        from pathlib import Path
        from adapters import MLflowLogger, TeeLogger
        from loggers import PlattliLogger
        alone = MLflowLogger({database!r}, experiment="alone {tmp_path.name}")
        beside = MLflowLogger({database!r}, experiment="beside {tmp_path.name}")
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

    [alone] = mlflow_runs.runs(database, f"alone {tmp_path.name}")
    found = mlflow_runs.history(database, alone.info.run_id, "train/loss")
    assert found[:100] == losses
    assert found[100:] in ([], [(101, 0.0)])
    assert (alone.info.status, alone.data.params) == ("RUNNING", {"lr": "0.1"})
    wait_for(lambda: not any((tmp_path / "run" / ".followers").glob("*.job")))  # the follower is done
    [beside] = mlflow_runs.runs(database, f"beside {tmp_path.name}")
    assert beside.info.status == "FAILED"
    assert mlflow_runs.history(database, beside.info.run_id, "train/loss") == [*losses, (101, 0.0)]
    assert beside.data.params == {"lr": "0.1"}


# ---- names and texts --------------------------------------------------------------------------------

_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40) | st.from_regex(
    r"\A[a:.v/p24A@]{1,12}\Z"
)


@given(_names, st.integers(1, 3), st.integers(1, 3))
def test_every_name_is_taken_and_reads_back(name: str, version: int, piece: int) -> None:
    """MLflow's own check is asked; and what stands behind a name is never taken for a part of it."""
    from mlflow.utils.validation import _validate_metric_name

    stored = encode(name)
    _validate_metric_name(stored)
    assert decode(stored) == name
    full = stored + (f":v{version}" if version > 1 else "") + (f":p{piece}" if piece > 1 else "")
    _validate_metric_name(full)
    assert [*versions({full: "x"}, 1)] == [name]
    _validate_metric_name(tag_key(name))
    assert decode(tag_key(name)) == name


@settings(max_examples=50)
@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                                lambda data: st.lists(data) | st.dictionaries(st.text(), data)))  # fmt: skip
def test_every_text_reads_back(data: Any) -> None:
    """Texts that look like numbers, too."""
    assert from_text(text(data)) == data
    assert type(from_text(text(data))) is type(data)


@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_pieces_make_the_whole(first: str, second: str) -> None:
    """Also where an older value of the tag was longer."""
    assert versions(pieces("t", first, 4) | pieces("t", second, 4), 4) == {"t": [second]}


def test_targets_name_a_database_and_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As people write them on a command line; a relative file means the same from everywhere."""
    monkeypatch.chdir(tmp_path)
    assert targets.absolute("mlflow:sqlite:///ml.db#digits") == f"mlflow:sqlite:///{tmp_path}/ml.db#digits"
    assert targets.place("mlflow:sqlite:///ml.db") is None
    info = targets.open_target("mlflow:sqlite:////data/ml.db#digits").logger_info()
    assert (info["tracking_uri"], info["experiment"]) == ("sqlite:////data/ml.db", "digits")
    assert targets.open_target("mlflow:http://host:5000").logger_info()["experiment"] == "Default"


def test_a_tag_says_which_points_a_resume_has_taken_back(tmp_path: Path, database: str) -> None:
    """MLflow keeps them all, and the newest of a step counts; but nothing comes at the steps behind the new end."""
    run = tmp_path / "run"
    primary = PlattliLogger(run)
    state: Any = None
    for step in range(1, 13):
        primary.log_metrics({"loss": step / 2}, step=step)
        primary.log_metrics({"loss": -step}, step=step // 2, context="validate")
        if step == 6:
            state = primary.logger_state()
    logger = MLflowLogger(database, experiment="cuts")
    cursor = replay(run, logger)
    for end in (9, 8):
        record = json.loads(json.dumps(checkpoint_record(logger)))
        primary.reattach(state)
        for step in range(7, end):
            primary.log_metrics({"loss": step * 100.0 + end}, step=step)
        logger = MLflowLogger(database, experiment="cuts")
        resume(logger, record)
        with pytest.warns(RuntimeWarning, match="MLflow keeps their points: where the run"):
            cursor = replay(run, logger, since=cursor)
    primary.finish("completed")
    replay(run, logger, since=cursor)

    (found,) = mlflow_runs.runs(database, "cuts")
    cuts = json.loads(found.data.tags["loggers.cuts"])
    assert [{context: cut[:2] for context, cut in entry.items()} for entry in cuts] == [
        {"train": [4, 12], "validate": [4, 6]}, {"train": [7, 12]},
    ]  # fmt: skip
    for context in ("train", "validate"):
        history = mlflow_runs.client(database).get_metric_history(found.info.run_id, f"{context}/loss")
        counting = {
            point.step: point.value for point in history
            if not any(first <= point.step <= last and point.timestamp <= until
                       for first, last, until in (entry[context] for entry in cuts if context in entry))
        }  # fmt: skip
        assert counting == dict(plattli_run(run).metrics[f"{context}/loss"])
