"""Checkpoints become versions of one artifact at the server, with their files, aliases and metadata."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from adapters import TeeLogger, WandbLogger
from loggers import PlattliLogger
from loggers.errors import StepError
from tests.test_adapters.replicas import wait_for
from tests.test_adapters.wandb_artifacts import ArtifactServer
from tests.test_adapters.wandb_scripts import environment, run, start


def test_versions_aliases_and_what_cannot_be_uploaded(tmp_path: Path) -> None:
    """A file, a directory, the best so far; one that is gone, or another by now, is said and fails nothing.

    Without ``checkpoints=`` none is uploaded; what was said of it is in the summary all the same.
    """
    (tmp_path / "1.pt").write_bytes(b"one")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "weights").write_bytes(b"two")
    (tmp_path / "2" / "optimizer").write_bytes(b"opt")
    (tmp_path / "3.pt").write_bytes(b"three")
    digest = hashlib.sha256(b"other").hexdigest()
    with ArtifactServer() as server:
        told = run(
            tmp_path,
            f"""
            import warnings
            lgr = WandbLogger("p", run_id="run 7", best={{"validate/loss": "min", "validate/acc": "max"}})
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                lgr.log_metrics({{"loss": 0.5, "acc": 0.5}}, step=1, context="validate")
                lgr.log_other("checkpoint", {{"path": "1.pt", "step": 1, "size": 3, "kind": "full"}})
                lgr.log_metrics({{"loss": 0.75, "acc": 0.25}}, step=2, context="validate")
                lgr.log_other("checkpoint", {{"path": "2"}})
                lgr.log_other("checkpoint", {{"path": "gone.pt", "step": 3}})
                lgr.log_other("checkpoint", {{"path": "3.pt", "step": 3, "size": 4}})
                lgr.log_other("checkpoint", {{"path": "3.pt", "step": 3, "sha256": {digest!r}}})
                lgr.log_metrics({{"loss": 0.25, "acc": 0.25}}, step=4, context="validate")
                lgr.log_other("checkpoint", {{"path": "3.pt", "step": 4}})
                lgr.log_other("checkpoint", "just a word")
            told["warned"] = [str(one.message) for one in caught]
            told["info"] = lgr.logger_info()["not_uploaded"]
            try:
                lgr.log_other("checkpoint", {{"path": "3.pt", "step": -1}})
            except Exception as error:
                told["bad step"] = type(error).__name__
            lgr.finish("completed")
            lgr = WandbLogger("p", run_id="none", checkpoints=None)
            lgr.log_other("checkpoint", {{"path": "1.pt", "step": 1}})
            lgr.finish("completed")
            """,
            **server.env(),
            WANDB_ERROR_REPORTING="false",
        )
        one, two, three = server.committed("checkpoint-run-7")
        unknown = [entry for entry in server.unknown if "/sdk/otel/" not in entry]

        assert [version.kind for version in (one, two, three)] == ["model"] * 3
        assert server.content(one, "1.pt") == b"one"
        assert server.content(two, "weights") + server.content(two, "optimizer") == b"twoopt"
        assert server.content(three, "3.pt") == b"three"
    assert (one.metadata, two.metadata) == ({"step": 1, "size": 3, "kind": "full"}, {"step": 2})
    assert server.aliases == {
        "checkpoint-run-7:step-1": "v0",
        "checkpoint-run-7:step-2": "v1",
        "checkpoint-run-7:step-4": "v2",
        "checkpoint-run-7:latest": "v2",
        "checkpoint-run-7:best": "v2",
        "checkpoint-run-7:best-validate-loss": "v2",
        "checkpoint-run-7:best-validate-acc": "v0",
    }
    assert told["info"] == [
        f"{tmp_path / 'gone.pt'} is not there any more: no checkpoint to upload",
        f"{tmp_path / '3.pt'} has 5 bytes, not 4: it was replaced since it was logged",
        f"{tmp_path / '3.pt'} has not the logged sha256: it was replaced since it was logged",
    ]
    assert told["warned"] == [f"W&B run run 7: {problem}" for problem in told["info"]]
    assert told["bad step"] == StepError.__name__
    assert unknown == []
    assert {version.name for version in server.artifacts} == {"checkpoint-run-7"}
    assert server.run("p", "none").summary["checkpoint"] == {"path": "1.pt", "step": 1}


def test_a_follower_uploads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its own process, in the order of training; the run's owner does nothing for it."""
    with ArtifactServer() as server:
        for name, value in environment(tmp_path, **server.env(), WANDB_ERROR_REPORTING="false").items():
            monkeypatch.setenv(name, value)
        tracker = WandbLogger("p", run_id="teed", dir=tmp_path, mode="online")
        tee = TeeLogger(PlattliLogger(tmp_path / "run"), tracker, finish_timeout=240.0, poll=0.05)
        for step, loss in ((10, 0.5), (20, 0.25), (30, 0.75)):
            tee.log_metrics({"loss": loss}, step=step, context="validate")
            path = tmp_path / f"{step}.pt"
            path.write_bytes(os.urandom(1000))
            tee.log_other("checkpoint", {"path": str(path), "step": step})
        tee.finish("completed")
        versions = server.committed("checkpoint-teed")

        assert [version.metadata for version in versions] == [{"step": 10}, {"step": 20}, {"step": 30}]
        assert server.content(versions[1], "20.pt") == (tmp_path / "20.pt").read_bytes()
    assert server.aliases["checkpoint-teed:best"] == "v1"
    assert server.aliases["checkpoint-teed:latest"] == "v2"


def test_a_checkpoint_that_was_on_its_way_is_sent_again(tmp_path: Path) -> None:
    """By the next attempt, with its aliases, if it still is what was logged."""
    for name in ("same", "changed"):
        (tmp_path / name).write_bytes(name.encode())
    with ArtifactServer() as server:
        script = """
            lgr = WandbLogger("p", run_id="again")
            lgr.log_other("checkpoint", {"path": "changed", "step": 1})
            lgr.log_other("checkpoint", {"path": "same", "step": 2})
            print(json.dumps(lgr.logger_state()), flush=True)
            sys.stdin.readline()
            """
        with start(tmp_path, script, **server.env(), WANDB_ERROR_REPORTING="false") as process:
            assert process.stdout is not None
            state: Any = process.stdout.readline()
            wait_for(lambda: len(server.committed("checkpoint-again")) == 2)
        (tmp_path / "changed").write_bytes(b"another")
        server.artifacts.clear()  # as if they had not got that far
        run(
            tmp_path,
            f"""
            lgr = WandbLogger()
            lgr.reattach(json.loads({state!r}))
            lgr.finish("completed")
            """,
            **server.env(),
            WANDB_ERROR_REPORTING="false",
        )
        (only,) = server.committed("checkpoint-again")

        assert server.content(only, "same") == b"same"
    assert only.metadata == {"step": 2}
