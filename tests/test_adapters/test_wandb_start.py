"""How WandbLogger gets its run: a question at the start, a run that is open already, one that several share."""

from __future__ import annotations

import json
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

from adapters import TeeLogger, WandbLogger
from adapters.backends._wandb_server import PATIENCE_S, Account, check, rows_received
from loggers import PlattliLogger
from loggers.errors import RefusedError, UnreachableError
from tests.test_adapters.wandb_files import find_runs
from tests.test_adapters.wandb_scripts import environment, run, series, start
from tests.test_adapters.wandb_server import API_KEY, WandbServer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the account of whoever runs the tests."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(tmp_path, WANDB_ERROR_REPORTING="false").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- before training -----------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_said_before_anything_is_written(home: Path) -> None:
    """With ``unreachable="raise"`` a tee asks once, at its first verb; otherwise training begins all the same."""
    arguments: dict[str, Any] = {"base_url": "http://127.0.0.1:9", "settings": {"api_key": API_KEY}}
    tee = TeeLogger(PlattliLogger(home / "run"), WandbLogger("p", unreachable="raise", **arguments))
    with pytest.raises(UnreachableError) as raised:
        tee.log_params({"lr": 0.1})
    WandbLogger("p", **arguments).preflight()

    assert str(raised.value).startswith("the W&B server http://127.0.0.1:9 cannot be reached (")
    assert str(raised.value).endswith(
        "): is the address right, and the network up? mode='offline' needs no server, "
        "and unreachable='wait' waits for it"
    )
    assert not (home / "run").exists()


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    """The question has a limit, whatever hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"the W&B server {url} cannot be reached"):
            check(Account(url, API_KEY, {}), 0.5)

    assert PATIENCE_S < 5


@pytest.mark.parametrize(
    ("key", "behaviour", "words"),
    [
        (API_KEY, "unauthorized", "the W&B server {url} refuses the API key (HTTP 401): check WANDB_API_KEY, "),
        (None, "ok", "there is no API key for the W&B server {url}: run `wandb login --host {url}`, set WANDB_API_KEY"),
    ],
)
def test_bad_credentials_are_said_before_anything_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, behaviour: str, words: str
) -> None:
    """Whatever ``unreachable`` says: they do not get better."""
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    with WandbServer() as strict:
        strict.behave(graphql=behaviour)
        tee = TeeLogger(PlattliLogger(home / "run"), WandbLogger("p", mode="online", base_url=strict.url))
        with pytest.raises(RefusedError) as raised:
            tee.log_metrics({"loss": 0.5}, step=1)

    assert str(raised.value).startswith(words.format(url=strict.url))
    assert not (home / "run").exists()


def test_a_server_that_knows_nobody_by_the_key() -> None:
    """It answers, but with no viewer; or not in the way of a W&B server."""

    class Forgetful(WandbServer):
        def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
            return {"viewer": None}

    with Forgetful() as server:
        who = Account(server.url, API_KEY, {})
        with pytest.raises(RefusedError, match="knows nobody by this API key"):
            check(who, 5.0)
        server.behave(graphql="error")
        with pytest.raises(UnreachableError, match="HTTP Error 500"):
            check(who, 5.0)
        assert rows_received(who, "e", "p", "r", 5.0) is None


def test_a_key_that_is_none_is_not_sent(home: Path) -> None:
    """What the client would refuse is said in its words."""
    with pytest.raises(RefusedError, match=r"the API key for the W&B server http://127\.0\.0\.1:9 is none \(API key"):
        WandbLogger("p", mode="online", settings={"api_key": "short"}).check_account()


def test_an_offline_run_asks_nobody(home: Path) -> None:
    """Nothing is started for it, either."""
    logger = WandbLogger("p", mode="offline", base_url="http://127.0.0.1:9", unreachable="raise")
    logger.preflight()

    assert pickle.loads(pickle.dumps(logger)).run_id() == logger.run_id()


# --- a run that is open already ------------------------------------------------------------------------


def test_an_open_run_is_logged_to_and_left_to_its_owner(home: Path) -> None:
    """The owner's rows, tags and end are its own; a driver takes the run itself, too."""
    with WandbServer() as server:
        told = run(
            home,
            """
            import warnings, wandb
            own = wandb.init(project="p", id="open", tags=["mine"], settings={"quiet": True, "console": "off"})
            own.log({"own": 1})
            lgr = WandbLogger(own)
            told["id"], told["url"], told["placement"] = lgr.run_id(), lgr.run_url(), lgr.placement
            told["same"] = lgr.backend() is own
            lgr.log_params({"lr": 0.1})
            lgr.log_tags("ours")
            lgr.log_metrics({"loss": 0.5}, step=7, context="validate")
            lgr.log_other("note", "short")
            lgr.log_confusion([[1]], ["a"], context="validate")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pickle.loads(pickle.dumps(lgr)).log_metrics({"loss": 9.0}, step=9)
            told["copy"] = [str(one.message) for one in caught]
            told["state"] = lgr.logger_state()
            lgr.finish("early_stop")
            other = WandbLogger(run=own)
            try:
                other.reattach(dict(told["state"], id="another"))
            except Exception as error:
                told["another"] = str(error)
            other.reattach(told["state"])
            own.log({"own": 2})
            own.finish(exit_code=3)
            told["pid"] = os.getpid()
            from loggers import TrainingSession
            raw = wandb.init(project="p", id="raw", settings={"quiet": True, "console": "off"})
            with TrainingSession(raw, params={"lr": 0.2}, tags="raw") as session:
                session.train({"loss": 0.25})
            raw.finish()
            """,
            **server.env(),
            WANDB_ERROR_REPORTING="false",
        )
        stored, raw = server.run("p", "open"), server.run("p", "raw")

    assert (told["id"], told["placement"], told["same"]) == ("open", "thread", True)
    assert told["url"] == f"{server.url}/someone/p/runs/open"
    assert series(stored.history, "validate/loss") == [(7, 0.5)]
    assert [row["own"] for row in stored.history if "own" in row] == [1, 2]
    assert stored.tags == ["mine", "ours"]
    assert stored.params == {"lr": 0.1}
    assert stored.exit_code == 3
    assert (stored.summary["note"], stored.summary["status"]) == ("short", "early_stop")
    assert stored.summary["best/validate/loss"] == 0.5
    assert told["copy"] == [f"W&B run open belongs to process {told['pid']}; this copy of it logs nothing"]
    assert told["another"] == (
        "the checkpoint belongs to W&B run 'another', the open run is 'open': open it with "
        "wandb.init(id='another', resume='must'), or start without the checkpoint's record"
    )
    assert (series(raw.history, "train/loss"), raw.params, raw.tags) == ([(1, 0.25)], {"lr": 0.2}, ["raw"])
    assert raw.summary["status"] == "completed"


def test_an_open_run_is_followed_by_a_thread(home: Path) -> None:
    """It cannot leave its process, so what it costs is not paid by whoever logs to the tee."""
    with WandbServer() as server:
        told = run(
            home,
            """
            import wandb
            from adapters import TeeLogger
            from loggers import PlattliLogger
            own = wandb.init(project="p", id="teed", settings={"quiet": True, "console": "off"})
            tee = TeeLogger(PlattliLogger("run"), WandbLogger(run=own), poll=0.05)
            for step in range(100):
                tee.log_metrics({"loss": step / 3}, step=step)
            tee.finish("completed")
            told["report"] = tee.report()[0]
            own.finish()
            """,
            **server.env(),
            WANDB_ERROR_REPORTING="false",
        )
        stored = server.run("p", "teed")

    assert series(stored.history, "train/loss") == [(step, step / 3) for step in range(100)]
    assert (told["report"]["placement"], told["report"]["error"]) == ("thread", None)
    assert stored.summary["status"] == "completed"


def test_what_is_no_run_and_what_comes_too_late_is_refused() -> None:
    """An open run has its name already."""

    class Run:
        def define_metric(self) -> None: ...
        def log_artifact(self) -> None: ...

    with pytest.raises(TypeError, match=r"run must be an open wandb\.Run, as wandb\.init\(\) returns it, got 'p'"):
        WandbLogger(run="p")
    with pytest.raises(ValueError, match="the run is open already, so its mode, name cannot be chosen any more"):
        WandbLogger(Run(), name="n", mode="offline")
    with pytest.raises(ValueError, match="unreachable must be 'wait' or 'raise', got 'never'"):
        WandbLogger(unreachable="never")  # type: ignore[arg-type]


# --- a run that several share --------------------------------------------------------------------------


def test_processes_share_a_run(home: Path) -> None:
    """Rows of both are in one run, and only the one that may ends it."""
    with WandbServer() as server:
        second = """
            quiet = {"x_primary": False, "x_label": "rank 1", "x_update_finish_state": False}
            lgr = WandbLogger("p", run_id="both", mode="shared", settings=quiet)
            for step in range(20):
                lgr.log_metrics({"loss": step / 7}, step=step, context="rank1")
            print("logged", flush=True)
            sys.stdin.readline()
            lgr.finish("completed")
            """
        first = """
            lgr = WandbLogger("p", run_id="both", mode="shared", settings={"x_primary": True, "x_label": "rank 0"})
            lgr.log_params({"lr": 0.1})
            print("begun", flush=True)
            sys.stdin.readline()
            for step in range(20):
                lgr.log_metrics({"loss": step / 3}, step=step, context="rank0")
            told["journal"] = lgr.logger_state()["journal"]
            lgr.finish("early_stop")
            """
        env = {**server.env(), "WANDB_ERROR_REPORTING": "false"}
        with start(home, first, **env) as one:
            assert one.stdout is not None
            assert one.stdout.readline() == "begun\n"
            with start(home, second, **env) as two:
                assert two.stdout is not None
                assert two.stdout.readline() == "logged\n"
                _, err = two.communicate("\n", timeout=240)
                assert two.returncode == 0, err
            out, err = one.communicate("\n", timeout=240)
        assert one.returncode == 0, err
        stored = server.run("p", "both")

    assert json.loads(out.rpartition("TOLD ")[2].splitlines()[0]) == {"journal": None}
    assert series(stored.history, "rank0/loss") == [(step, step / 3) for step in range(20)]
    assert series(stored.history, "rank1/loss") == [(step, step / 7) for step in range(20)]
    assert stored.params == {"lr": 0.1}
    assert find_runs(home) == []
