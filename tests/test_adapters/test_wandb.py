"""WandbLogger, through W&B's real client, read back from its files and from a stand-in server.

The client keeps threads, a service and global settings, so each scenario runs in a process of its own.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapters.backends.wandb import WandbLogger
from loggers.errors import (
    ConfusionError,
    LoggerFinishedError,
    MetricNameError,
    MetricValueError,
    RecordError,
    StatusError,
    StepError,
)
from tests.test_adapters.wandb_files import OfflineRun, find_runs, read_run
from tests.test_adapters.wandb_scripts import environment, run, series, start, sync
from tests.test_adapters.wandb_server import API_KEY, ENTITY, WandbServer


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    """One stand-in server for the tests that use its good side."""
    with WandbServer() as listening:
        yield listening


# --- offline -------------------------------------------------------------------------------------------


class Offline(NamedTuple):
    """Two attempts at one offline run: what they told, and their files."""

    told: dict[str, Any]
    told_later: dict[str, Any]
    runs: list[OfflineRun]
    requests: list[str]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """A first attempt that logs everything, and a second that reattaches to it and fails."""
    home = tmp_path_factory.mktemp("offline")
    with WandbServer() as telemetry:
        env = {"WANDB_BASE_URL": telemetry.url}
        told = run(
            home,
            """
            lgr = WandbLogger("digits", mode="offline", name="first try", group="g", tags=["early"],
                              notes="some notes", job_type="train", dir="files")
            told["unloaded"] = "wandb" not in sys.modules
            told["id"], told["url"] = lgr.run_id(), lgr.run_url()
            told["state before"] = lgr.logger_state()
            lgr.log_params({"lr": 0.1, "net": {"width": 64, "act": "relu"}, "top": float("inf"), "n": 2**70})
            lgr.log_params({"lr": 0.2})
            lgr.log_tags({"dataset": "digits", "baseline": True})
            for step in range(4):
                lgr.log_metrics({"loss": 1 / (step + 1), "schedule/lr": 0.1}, step=step, epoch=0)
            lgr.log_metrics({"loss": 0.5, "text": "ü", "list": [1, [2]]}, step=2, epoch=0, context="validate")
            lgr.log_metrics({"loss": float("nan")}, step=4, epoch=1, walltime=1700000000.25)
            lgr.log_metrics({"loss": 0.75}, step=1, epoch=0, context="validate")
            lgr.log_metrics({"rate": 3}, step=4, context="odd * name")
            try:
                lgr.log_metrics({"good": 1.5, "bad": object(), "step": 99, "\\ud800": 1}, step=5)
            except Exception as error:
                told["bad value"] = [type(error).__name__, str(error)]
            try:
                lgr.log_tags(["fits", "x" * 65])
            except Exception as error:
                told["long tag"] = [type(error).__name__, str(error)]
            lgr.log_other("note", "short")
            lgr.log_other("best", {"step": 3, "loss": 0.25})
            lgr.log_other("report", "<b>" + "long " * 300)
            lgr.log_confusion([[5, 1], [0, 4]], ["cat", "<dog>"], context="validate", epoch=0)
            lgr.log_confusion([[1]], ["only"], step=7, name="plain")
            told["state"] = lgr.logger_state()
            told["copy"] = pickle.loads(pickle.dumps(lgr)).logger_state()
            told["info"] = lgr.logger_info()
            told["backend id"] = lgr.backend().id
            lgr.finish("completed")
            try:
                lgr.log_metrics({"loss": 1}, step=6)
            except Exception as error:
                told["finished"] = [type(error).__name__, str(error)]
            """,
            **env,
        )
        later = run(
            home,
            f"""
            lgr = WandbLogger("digits")
            lgr.reattach({told["state"]!r})
            lgr = pickle.loads(pickle.dumps(lgr))
            lgr.log_tags("late")
            for step in (3, 4):
                lgr.log_metrics({{"loss": 0.125}}, step=step, epoch=1)
            told["state"], told["url"], told["info"] = lgr.logger_state(), lgr.run_url(), lgr.logger_info()
            lgr.finish("error")
            """,
            **env,
        )
        return Offline(told, later, find_runs(home), telemetry.requests)


def test_offline_rows_carry_their_context_s_step(offline: Offline) -> None:
    """Every line is a row in call order, and none is dropped for coming late."""
    rows = offline.runs[0].rows

    assert series(rows, "train/loss")[:4] == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
    assert series(rows, "train/schedule/lr") == [(step, 0.1) for step in range(4)]
    assert series(rows, "validate/loss") == [(2, 0.5), (1, 0.75)]
    assert series(rows, "train/loss", "epoch") == [
        (0, 1.0),
        (0, 0.5),
        (0, 1 / 3),
        (0, 0.25),
        (1, pytest.approx(math.nan, nan_ok=True)),
    ]
    assert [row["train/walltime"] for row in rows if row["_timestamp"] == 1700000000.25] == [1700000000.25]
    assert (rows[4]["validate/text"], rows[4]["validate/list"]) == ("ü", [1, [2]])
    assert series(rows, "odd * name/rate") == [(4, 3)]
    assert [row["_step"] for row in rows] == [*range(len(rows))]


def test_offline_axes_are_defined_once_per_context(offline: Offline) -> None:
    """Charts of a context are drawn over its own step, which has no chart itself."""
    definitions = offline.runs[0].definitions

    assert definitions["train/step"] == ("", True)
    assert definitions["train/*"] == ("train/step", False)
    assert definitions["validate/*"] == ("validate/step", False)
    assert definitions["plain"] == ("step", False)
    assert not any(name.startswith("odd") for name in definitions)


def test_offline_params_tags_and_details(offline: Offline) -> None:
    """Params keep their nesting and their last value; tags add up; details are passed on."""
    first = offline.runs[0]

    assert first.config == {"lr": 0.2, "net": {"width": 64, "act": "relu"}, "top": "inf", "n": str(2**70)}
    assert first.tags == ["early", "dataset:digits", "baseline", "fits"]
    assert (first.project, first.name, first.group) == ("digits", "first try", "g")
    assert (first.job_type, first.notes) == ("train", "some notes")


def test_offline_bad_values_cost_their_siblings_nothing(offline: Offline) -> None:
    """What can be logged is logged, then the error names the rest."""
    kind, words = offline.told["bad value"]

    assert series(offline.runs[0].rows, "train/good") == [(5, 1.5)]
    assert kind == "MetricValueError"
    assert "3 values of the train line of step 5 could not be logged, any others were" in words
    assert "'bad': got object" in words
    assert "'step': got 99, but the row's step is 5" in words
    assert "lone surrogate" in words
    assert offline.told["long tag"] == [
        "MetricValueError",
        f"1 value of the tags could not be logged, any others were: '{'x' * 65}': has 65 characters, "
        "W&B takes 1 to 64: shorten it",
    ]


def test_offline_other_is_summary_or_page(offline: Offline) -> None:
    """Short values are in the summary, a long text is a page that shows it as it is."""
    first = offline.runs[0]
    page = next(row["report"] for row in first.rows if "report" in row)
    content = (first.media / page["path"]).read_text()

    assert first.summary["note"] == "short"
    assert first.summary["best"] == {"step": 3, "loss": 0.25}
    assert page["_type"] == "html-file"
    assert "&lt;b&gt;" + "long " * 300 in content


def test_offline_confusion_is_a_page_and_numbers(offline: Offline) -> None:
    """The matrix is a coloured table to look at and a list to compute with."""
    first = offline.runs[0]
    row = next(row for row in first.rows if "validate/confusion" in row)
    content = (first.media / row["validate/confusion"]["path"]).read_text()
    plain = next(row for row in first.rows if "plain" in row)

    assert row["validate/confusion/counts"] == [[5, 1], [0, 4]]
    assert row["validate/confusion/labels"] == ["cat", "<dog>"]
    assert (row["validate/step"], row["validate/epoch"]) == (1, 0)
    assert "<th>&lt;dog&gt;</th>" in content
    assert ',0.83)">5</td>' in content
    assert (plain["plain/counts"], plain["step"]) == ([[1]], 7)


def test_offline_status_is_exit_code_and_summary(offline: Offline) -> None:
    """A completed run ends with 0, a failed one does not."""
    first, second = offline.runs

    assert (first.exit_code, first.summary["status"]) == (0, "completed")
    assert (second.exit_code, second.summary["status"]) == (1, "error")
    kind, words = offline.told["finished"]
    assert kind == "LoggerFinishedError"
    assert words.startswith("log_metrics after finish('completed')")


def test_offline_attempts_share_one_id(offline: Offline) -> None:
    """The id exists before the run does and is the same in both attempts and their files."""
    state = offline.told["state"]

    assert {attempt.run_id for attempt in offline.runs} == {offline.told["id"]}
    assert offline.told["backend id"] == offline.told["id"]
    assert [*map(Path, offline.told_later["state"]["sync_dirs"])] == [a.path.parent for a in offline.runs]
    assert offline.runs[1].tags == ["early", "dataset:digits", "baseline", "fits", "late"]
    assert series(offline.runs[1].rows, "train/loss") == [(3, 0.125), (4, 0.125)]
    assert offline.told["unloaded"]
    assert offline.told["url"] is offline.told_later["url"] is None
    assert offline.told["state before"]["id"] == state["id"] == offline.told["id"]
    assert offline.told["copy"] == state
    assert state["mode"] == "offline"
    assert (state["project"], state["base_url"]) == ("digits", None)
    assert offline.told["info"]["started"]


def test_offline_calls_nobody(offline: Offline) -> None:
    """Not even W&B's telemetry reaches for the network."""
    assert offline.requests == []


def test_offline_run_as_w_b_s_own_reader_sees_it(offline: Offline, tmp_path: Path) -> None:
    """W&B's inspector agrees about state, tags and config."""
    seen = []
    for attempt in offline.runs:
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json", str(attempt.path)]
        env = environment(tmp_path)
        answer = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=240, check=True)
        seen.append(json.loads(answer.stdout))

    assert [one["state"] for one in seen] == ["finished", "failed"]
    assert seen[0]["tags"] == ["early", "dataset:digits", "baseline", "fits"]
    assert seen[0]["config"]["net"]["width"] == 64


def test_offline_attempts_are_sent_as_one_run(offline: Offline, server: WandbServer, tmp_path: Path) -> None:
    """The command that the logger names sends all attempts, and joins them."""
    sync(offline.told_later["info"]["sync_command"], tmp_path, **server.env())
    sent = server.run("digits", offline.told["id"])

    assert series(sent.history, "train/loss")[4:] == [
        (4, pytest.approx(math.nan, nan_ok=True)),
        (3, 0.125),
        (4, 0.125),
    ]
    assert sent.tags == ["early", "dataset:digits", "baseline", "fits", "late"]
    assert sent.exit_code == 1


# --- endings -------------------------------------------------------------------------------------------


def test_a_run_nobody_finished_is_not_completed(tmp_path: Path) -> None:
    """A process that ends without ``finish`` leaves a failed run; ``WANDB_MODE`` said where."""
    env = {"WANDB_MODE": "offline", "WANDB_API_KEY": API_KEY}
    told = run(tmp_path, "WandbLogger('p').log_metrics({'rows': [*range(20000)]}, step=0)", **env)
    [only] = find_runs(tmp_path)

    assert told == {}
    assert only.exit_code == 1
    assert series(only.rows, "train/rows") == [(0, [*range(20000)])]


def test_rows_survive_kill_9(tmp_path: Path) -> None:
    """Rows reach the file well before the client's usual 15 s, and a killed run has no end."""
    script = """
        lgr = WandbLogger("p", mode="offline")
        for step in range(50):
            lgr.log_metrics({"loss": step}, step=step)
        print("logged", flush=True)
        time.sleep(600)
        """
    with start(tmp_path, script) as process:
        assert process.stdout is not None
        logged = process.stdout.readline()
        deadline = time.monotonic() + 240
        rows: list[dict[str, Any]] = []
        while len(rows) < 50 and time.monotonic() < deadline:
            time.sleep(0.05)
            rows = [row for path in tmp_path.rglob("run-*.wandb") for row in read_run(path).rows]
        process.kill()

    assert logged == "logged\n"
    assert series(rows, "train/loss") == [(step, step) for step in range(50)]
    assert find_runs(tmp_path)[0].exit_code is None


def test_a_fork_logs_nothing(tmp_path: Path) -> None:
    """The child's copy is silent after one warning, and the parent goes on."""
    told = run(
        tmp_path,
        """
        import warnings
        lgr = WandbLogger("p", mode="offline")
        lgr.log_metrics({"loss": 0}, step=0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                lgr.log_metrics({"loss": 1}, step=1)
                lgr.log_tags("child")
                lgr.finish("error")
            os.write(writer, json.dumps([str(one.message) for one in caught]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        told["warned"] = json.loads(os.read(reader, 10000))
        told["pid"] = os.getpid()
        lgr.log_metrics({"loss": 2}, step=2)
        lgr.finish("completed")
        """,
    )
    [only] = find_runs(tmp_path)

    assert series(only.rows, "train/loss") == [(0, 0), (2, 2)]
    assert (only.exit_code, only.tags) == (0, [])
    assert told["warned"] == [
        f"W&B run {only.run_id} belongs to process {told['pid']}; this fork of it logs nothing"
    ]


def test_a_dead_service_is_an_error_and_a_copy_goes_on(tmp_path: Path) -> None:
    """When wandb-core is killed every verb says so; a copy of the logger starts a new one."""
    told = run(
        tmp_path,
        """
        import pathlib, signal
        def attempt(call):
            try:
                call()
            except Exception as error:
                return [kind.__name__ for kind in type(error).__mro__]
        lgr = WandbLogger("p", mode="offline")
        lgr.log_metrics({"loss": 0}, step=0)
        children = " ".join(path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/children"))
        for child in map(int, children.split()):
            if pathlib.Path(f"/proc/{child}/comm").read_text().startswith("wandb-core"):
                os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + 200
        told["log"] = None
        told["accepted"] = -1
        while told["log"] is None and time.monotonic() < deadline:
            told["log"] = attempt(lambda: lgr.log_metrics({"loss": 1}, step=1))
            told["accepted"] += 1
        told["again"] = attempt(lambda: lgr.log_metrics({"loss": 1}, step=1))
        copy = pickle.loads(pickle.dumps(lgr))
        told["finish"] = attempt(lambda: lgr.finish("completed"))
        copy.log_metrics({"loss": 2}, step=2)
        copy.finish("completed")
        """,
    )
    first, last = find_runs(tmp_path)

    assert "ConnectionError" in told["log"]
    assert "ConnectionError" in told["again"]
    assert "ConnectionError" in told["finish"]
    accepted = [(1, 1)] * told["accepted"]  # before anybody noticed
    assert series([*first.rows, *last.rows], "train/loss") == [(0, 0), *accepted, (2, 2)]
    assert last.exit_code == 0


def test_the_reader_of_these_tests_notices_damage(offline: Offline, tmp_path: Path) -> None:
    """A torn file reads up to its last whole record, and a changed byte is an error."""
    content = offline.runs[0].path.read_bytes()
    torn, changed = tmp_path / "torn.wandb", tmp_path / "changed.wandb"
    torn.write_bytes(content[: len(content) // 2])
    changed.write_bytes(content[:500] + bytes((content[500] ^ 1,)) + content[501:])
    rows = read_run(torn).rows

    assert 0 < len(rows) < len(offline.runs[0].rows)
    assert [row["_step"] for row in rows] == [*range(len(rows))]
    with pytest.raises(ValueError, match="wrong checksum at byte"):
        read_run(changed)


# --- online --------------------------------------------------------------------------------------------


def test_online_run_and_its_resumption(server: WandbServer, tmp_path: Path) -> None:
    """Rows, params and tags arrive; later attempts, with or without a state, add to them and replace none."""
    told = run(
        tmp_path,
        """
        lgr = WandbLogger("online", tags="first", name="n")
        lgr.log_params({"lr": 0.1, "width": 64})
        for step in range(3):
            lgr.log_metrics({"loss": float(step)}, step=step, epoch=0)
        lgr.log_confusion([[5, 1], [0, 4]], ["cat", "dog"], context="validate", step=2)
        told["state"], told["url"] = lgr.logger_state(), lgr.run_url()
        lgr.finish("completed")
        """,
        **server.env(),
    )
    stored = server.run("online", told["state"]["id"])

    assert told["url"] == f"{server.url}/{ENTITY}/online/runs/{stored.name}"
    assert {key: told["state"][key] for key in ("mode", "project", "entity", "base_url")} == {
        "mode": "online",
        "project": "online",
        "entity": ENTITY,
        "base_url": server.url,
    }
    assert series(stored.history, "train/loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert stored.history[-1]["validate/confusion/counts"] == [[5, 1], [0, 4]]
    assert b"predicted class" in stored.files[stored.history[-1]["validate/confusion"]["path"]]
    assert {definition.get("2") for definition in stored.metric_definitions} >= {"train/*", "validate/*"}
    assert (stored.exit_code, stored.complete, stored.summary["status"]) == (0, True, "completed")
    assert stored.params == {"lr": 0.1, "width": 64}
    assert stored.tags == ["first"]

    gone = dict(told["state"], id="gone")
    again = run(
        tmp_path,
        f"""
        lgr = WandbLogger(tags=["second"])
        lgr.reattach({told["state"]!r})
        lgr.log_params({{"lr": 0.2}})
        for step in (2, 3):
            lgr.log_metrics({{"loss": 10.0 * step}}, step=step, epoch=1)
        told["resumed"] = lgr.backend().resumed
        lgr.finish("interrupted")
        lgr = WandbLogger("online", run_id=lgr.run_id(), tags="third")
        lgr.log_metrics({{"loss": 40.0}}, step=4)
        lgr.finish("early_stop")
        lost = WandbLogger()
        lost.reattach({gone!r})
        try:
            lost.log_metrics({{"loss": 1.0}}, step=0)
        except Exception as error:
            told["gone"] = [type(error).__name__, str(error)]
        """,
        **server.env(),
    )

    assert again["resumed"]
    assert series(stored.history, "train/loss") == [
        (0, 0.0),
        (1, 1.0),
        (2, 2.0),
        (2, 20.0),
        (3, 30.0),
        (4, 40.0),
    ]
    assert stored.tags == ["first", "second", "third"]
    assert stored.params == {"lr": 0.2, "width": 64}
    assert (stored.exit_code, stored.summary["status"]) == (0, "early_stop")
    assert again["gone"][0] == "RefusedError"
    assert again["gone"][1].startswith(f"W&B does not start run gone at {server.url}: ")
    assert "does not exist" in again["gone"][1]
    assert f"{ENTITY}/online/gone" not in server.runs
    assert [entry for entry in server.unknown if "/sdk/otel/" not in entry] == []


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    """The start fails within ``init_timeout``, says what to do, and locks nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, for want of an accept, for ever
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        told = run(
            tmp_path,
            """
            lgr = WandbLogger("p", run_id="one", settings={"init_timeout": 1.0})
            for attempt in "first", "second":
                try:
                    lgr.log_metrics({"loss": 1}, step=0)
                except Exception as error:
                    told[attempt] = [type(error).__name__, *error.__notes__]
            lgr = WandbLogger("p", run_id="one", mode="offline")
            lgr.log_metrics({"loss": 1}, step=0)
            lgr.finish("completed")
            """,
            WANDB_BASE_URL=url,
            WANDB_API_KEY=API_KEY,
            WANDB_ERROR_REPORTING="false",
        )

    assert told["first"] == told["second"]
    assert told["first"] == [
        "CommError",
        f"while starting W&B run one at {url}; settings={{'init_timeout': seconds}} bounds the wait, "
        "mode='offline' needs no server",
    ]
    assert series(find_runs(tmp_path)[0].rows, "train/loss") == [(0, 1)]


def test_runs_of_one_process_leave_each_other_alone(tmp_path: Path) -> None:
    """Two loggers are two runs, and one that cannot start does not end the others."""
    run(
        tmp_path,
        """
        a, b = WandbLogger("p", run_id="a", mode="offline"), WandbLogger("p", run_id="b", mode="offline")
        c = WandbLogger("p", mode="online", settings={"init_timeout": 0.5, "api_key": "k" * 40})
        for step in range(2):
            a.log_metrics({"loss": 10 + step}, step=step)
            b.log_metrics({"loss": 20 + step}, step=step)
            try:
                c.log_metrics({"loss": 30}, step=step)
            except Exception as error:
                told[step] = str(error)
        a.finish("completed")
        b.finish("error")
        """,
    )
    a, b = sorted(find_runs(tmp_path), key=lambda found: found.run_id)

    assert series(a.rows, "train/loss") == [(0, 10), (1, 11)]
    assert series(b.rows, "train/loss") == [(0, 20), (1, 21)]
    assert (a.exit_code, b.exit_code) == (0, 1)


def test_bad_credentials_are_told_at_once(tmp_path: Path) -> None:
    """A server that refuses the key ends the start, with the default timeout of 90 s."""
    with WandbServer() as strict:
        strict.behave(graphql="unauthorized")
        told = run(
            tmp_path,
            """
            try:
                WandbLogger("p").log_params({"lr": 1})
            except Exception as error:
                told["refused"] = [type(error).__name__, str(error)]
            """,
            **strict.env(),
            WANDB_ERROR_REPORTING="false",
        )

    assert told["refused"] == [
        "RefusedError",
        f"the W&B server {strict.url} refuses the API key (HTTP 401): check WANDB_API_KEY, or log in with "
        f"`wandb login --relogin --host {strict.url}`; mode='offline' needs no account",
    ]


def test_an_interrupted_start_can_be_repeated(tmp_path: Path) -> None:
    """Ctrl-C while W&B waits for a server gets through, and leaves nothing locked."""
    script = """
        try:
            WandbLogger("p", run_id="one").log_metrics({"loss": 1}, step=0)
        except KeyboardInterrupt:
            told["interrupted"] = True
        lgr = WandbLogger("p", run_id="one", mode="offline")
        lgr.log_metrics({"loss": 1}, step=0)
        lgr.finish("interrupted")
        """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(240)
        env = {"WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "WANDB_API_KEY": API_KEY}
        with start(tmp_path, script, **env, WANDB_ERROR_REPORTING="false") as process:
            connection, _ = silent.accept()  # the client has asked, and gets no answer
            with connection:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=240)

    assert process.returncode == 0, err
    assert 'TOLD {"interrupted": true}' in out
    assert [attempt.exit_code for attempt in find_runs(tmp_path)] == [130]


def test_an_outage_at_the_end_names_the_command_that_sends_the_rest(tmp_path: Path) -> None:
    """``finish`` gives up after its timeout, and what it advises brings every row to the server."""
    with WandbServer() as weak:
        weak.behave(file_stream="error")
        told = run(
            tmp_path,
            f"""
            lgr = WandbLogger("p", run_id="late", finish_timeout=1.0, base_url={weak.url!r})
            lgr.log_metrics({{"loss": 0.5}}, step=3)
            told["online"] = lgr.logger_info()["sync_command"]
            try:
                lgr.finish("completed")
            except Exception as error:
                told["error"] = [type(error).__name__, str(error)]
            """,
            WANDB_API_KEY=API_KEY,
            WANDB_ERROR_REPORTING="false",
        )
        weak.behave(file_stream="ok")
        kind, words = told["error"]
        before = len(weak.run("p", "late").history)
        sync(words.partition("send the run again with: ")[2], tmp_path, WANDB_API_KEY=API_KEY)

        assert kind == "UndeliveredError"
        assert words.startswith(
            "W&B run late was not uploaded within finish_timeout = 1.0 s, pending: 1 of 1 rows, or files; "
            "nothing is lost, send the run again with: "
        )
        assert told["online"] is None
        assert (before, series(weak.run("p", "late").history, "train/loss")) == (0, [(3, 0.5)])


# --- which mode ----------------------------------------------------------------------------------------


def test_mode_is_decided_without_asking(server: WandbServer, tmp_path: Path) -> None:
    """Settings file, key and netrc decide as for W&B's client, and the constructor wins over all."""
    netrc = tmp_path / "with netrc"
    netrc.mkdir()
    (netrc / ".netrc").write_text(
        f"machine {server.url.removeprefix('http://')} login user password {API_KEY}\n"
    )
    switched = tmp_path / "switched off"
    (switched / "wandb").mkdir(parents=True)
    (switched / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    told = run(
        tmp_path,
        f"""
        from adapters.backends._wandb_client import load
        told["no key"] = load(None, None, None)[1]
        told["given key"] = load(None, None, "k" * 40)[1]
        told["old word"] = load("dryrun", None, None)[1]
        os.environ["NETRC"] = {str(netrc / ".netrc")!r}
        told["netrc of another server"] = load(None, None, None)[1]
        told["netrc"] = load(None, {server.url!r}, None)[1]
        os.environ["WANDB_API_KEY"] = {API_KEY!r}
        told["key"] = load(None, None, None)[1]
        os.chdir({str(switched)!r})
        told["wandb offline"] = load(None, None, None)[1]
        lgr = WandbLogger("p", mode="disabled")
        lgr.log_params({{"lr": 1}})
        lgr.log_metrics({{"loss": 1}}, step=0)
        lgr.log_confusion([[1]], ["a"])
        lgr.finish("completed")
        told["disabled"] = lgr.logger_state()["mode"]
        """,
    )

    assert told == {
        "no key": "offline",
        "given key": "online",
        "old word": "offline",
        "netrc of another server": "offline",
        "netrc": "online",
        "key": "online",
        "wandb offline": "offline",
        "disabled": "disabled",
    }
    assert not (tmp_path / "wandb").exists()


# --- without starting ----------------------------------------------------------------------------------


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> WandbLogger:
    """A logger that must not get as far as importing W&B."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", None)
    return WandbLogger("p", mode="offline")


def test_the_missing_package_is_named(unstarted: WandbLogger) -> None:
    """Without W&B the first verb says how to install it."""
    with pytest.raises(ImportError) as raised:
        unstarted.log_metrics({"loss": 1}, step=0)

    assert str(raised.value) == (
        "WandbLogger needs the package 'wandb', which is not installed: pip install 'plattli-loggers[wandb]'"
    )


def test_ids_are_unique_and_stable(unstarted: WandbLogger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each logger has its own id, whatever its name; a pickle has the same; the launcher's is respected."""
    other = WandbLogger("p", mode="offline", name="n")
    copy = pickle.loads(pickle.dumps(unstarted))
    monkeypatch.setenv("WANDB_RUN_ID", "from-launcher")

    assert unstarted.run_id() != other.run_id() != WandbLogger("p", mode="offline", name="n").run_id()
    assert copy.run_id() == unstarted.run_id()
    assert copy.logger_state() == unstarted.logger_state()
    assert WandbLogger("p").run_id() == "from-launcher"
    assert WandbLogger("p", run_id="mine").run_id() == "mine"


def test_state_before_the_start_is_plain_json(unstarted: WandbLogger, tmp_path: Path) -> None:
    """A driver can write a checkpoint before anything was logged."""
    lgr = WandbLogger("p", entity="e", run_id="i", mode="offline", dir=tmp_path, tags={"a": 1})
    expected = {
        "entity": "e",
        "project": "p",
        "mode": "offline",
        "dir": str(tmp_path),
        "base_url": None,
        "url": None,
        "id": "i",
        "tags": ["a:1"],
        "sync_dirs": [],
        "latest": [],
        "best": {"checkpoint": -1, "found": {}},
        "journal": None,
        "unended": False,
    }

    assert json.loads(json.dumps(lgr.logger_state())) == expected
    assert lgr.logger_info() == {
        **expected,
        "started": False,
        "status": None,
        "sync_command": None,
        "not_uploaded": [],
    }
    assert repr(lgr) == "WandbLogger(project='p', run_id='i')"
    assert WandbLogger.placement == "process"


def test_bad_calls_start_nothing(unstarted: WandbLogger) -> None:
    """What is wrong with a call is said before a run exists, and W&B is not even imported."""
    with pytest.raises(StepError):
        unstarted.log_metrics({"loss": 1}, step=7.5)  # type: ignore[arg-type]
    with pytest.raises(MetricNameError):
        unstarted.log_metrics({"loss": 1}, step=7, context="")
    with pytest.raises(MetricValueError, match="a metric name must be a non-empty string"):
        unstarted.log_metrics({"": 1}, step=7)
    with pytest.raises(ConfusionError):
        unstarted.log_confusion([[1, 2]], ["a"])
    with pytest.raises(MetricNameError, match="name of the confusion matrix"):
        unstarted.log_confusion([[1]], ["a"], name="")
    with pytest.raises(MetricNameError, match="key of log_other"):
        unstarted.log_other("", 1)
    with pytest.raises(MetricValueError):
        unstarted.log_other("key", object())
    with pytest.raises(StatusError):
        unstarted.finish("done")


def test_finishing_a_run_that_never_began(unstarted: WandbLogger) -> None:
    """There is nothing to end, and nothing to log afterwards."""
    unstarted.finish("error")

    with pytest.raises(LoggerFinishedError, match=r"finish after finish\('error'\)"):
        unstarted.finish("completed")
    with pytest.raises(LoggerFinishedError, match=r"log_other after finish\('error'\)"):
        unstarted.log_other("key", 1)
    with pytest.raises(RecordError, match="before anything is logged"):
        unstarted.reattach(WandbLogger("p").logger_state())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"mode": "dark"},
            "mode must be one of 'online', 'offline', 'disabled', 'shared' or None, got 'dark'",
        ),
        ({"finish_timeout": 0}, "finish_timeout must be seconds above 0, or None, got 0"),
        ({"run_id": "a/b"}, "run_id must not have / in it, got 'a/b': W&B refuses that"),
        ({"run_id": " "}, "run_id must be non-empty text without spaces around it, got ' '"),
        ({"project": "a#b:c"}, "project must not have # or : in it, got 'a#b:c': W&B refuses that"),
        ({"project": "p" * 129}, f"project must be text of 1 to 128 characters, got '{'p' * 129}'"),
        ({"tags": [""]}, "tags must be a non-empty string, several, or a mapping, got [''] (list)"),
        (
            {"tags": {"": True}},
            "1 value of the tags could not be logged, any others were: '': has 0 characters, "
            "W&B takes 1 to 64: shorten it",
        ),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    """A recipe that cannot work fails where it is written, not in another process."""
    with pytest.raises(ValueError, match=re.escape(words) + "$"):
        WandbLogger(**arguments)


@pytest.mark.parametrize(
    ("key", "argument", "value"),
    [
        ("project", "project", "q"),
        ("entity", "entity", "f"),
        ("id", "run_id", "j"),
        ("base_url", "base_url", "http://b"),
    ],
)
def test_reattach_refuses_another_run(key: str, argument: str, value: str) -> None:
    """A checkpoint of one run is not continued as another; both are named."""
    state = {"id": "i", "project": "p", "entity": "e", "base_url": "http://a"}
    arguments: dict[str, Any] = {argument: value}
    lgr = WandbLogger(**arguments)

    with pytest.raises(RecordError) as raised:
        lgr.reattach(state)

    assert str(raised.value) == (
        f"the checkpoint belongs to W&B {key} {state[key]!r}, this logger was built with {value!r}: "
        f"build it with {state[key]!r}, or start without the checkpoint's record"
    )
    assert lgr.logger_state()["url"] is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("run-7", "the state of a WandbLogger is a mapping, got 'run-7' (str)"),
        ({"project": "p"}, "the state of a WandbLogger has bad id: got {'id': None}; pass what"),
        ({"id": "i", "url": 3, "tags": "t"}, "has bad url, tags: got {'url': 3, 'tags': 't'}; pass what"),
        ({"id": "i", "latest": [["train", "1", None]]}, "has bad latest: got {'latest': [['train', '1', None]]}"),
        ({"id": "i", "latest": [["train", 1]]}, "has bad latest: got"),
    ],
)
def test_reattach_refuses_a_foreign_state(state: Any, words: str) -> None:
    """What no WandbLogger returned is refused with what was got."""
    with pytest.raises(RecordError) as raised:
        WandbLogger("p").reattach(state)

    assert words in str(raised.value)


def test_reattach_takes_over_what_was_not_given(tmp_path: Path) -> None:
    """Id, project, entity, place and tags come from the state; mode and dir of the constructor stay."""
    first = WandbLogger("p", entity="e", mode="offline", base_url="http://a/", dir="/one", tags="t")
    second = WandbLogger(base_url="http://a", mode="online", dir=tmp_path, tags="u")
    second.reattach(first.logger_state())
    state = second.logger_state()

    assert second.run_id() == first.run_id()
    assert (state["project"], state["entity"], state["tags"]) == ("p", "e", ["t", "u"])
    assert (state["mode"], state["dir"]) == ("online", str(tmp_path))
    assert pickle.loads(pickle.dumps(second)).logger_state() == state
