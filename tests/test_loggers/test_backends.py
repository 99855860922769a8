"""Raw objects of other packages become loggers by what packages declare."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import loggers
from loggers.errors import MissingVerbError

ROOT = Path(__file__).parents[2]

#: A tracker whose object has verbs of its own kind, and no idea of ours.
TRACKER = """
class Run:
    __slots__ = ("rows",)                # neither attributes nor weak references

    def __init__(self):
        self.rows = []

    def __eq__(self, other):
        return NotImplemented            # and so no hash

    def finish(self, exit_code=0):
        raise AssertionError("this finish takes an exit code")

class SpecialRun(Run):
    pass
"""
#: What somebody wrote so that it is a logger.
BRIDGE = """
class {name}:
    made = 0

    def __init__(self, run):
        type(self).made += 1
        self.run = run

    def log_metrics(self, metrics, *, step, epoch=None, context="train", **axes):
        self.run.rows.append((dict(metrics), step, context))
    def log_params(self, params): self.run.rows.append(params)
    def log_tags(self, tags): self.run.rows.append(tags)
    def log_other(self, key, value): pass
    def log_confusion(self, matrix, labels, *, epoch=None, step=None, context=None, name="confusion"): pass
    def finish(self, status): self.run.rows.append(status)
    def logger_state(self): return {{"by": "{name}"}}
    def reattach(self, state): self.run.rows.append(state)
    def backend(self): return self.run
"""


def install(site: Path, name: str, entries: dict[str, str], **modules: str) -> None:
    """Put a package with entry points of the group into a folder, as an installer would."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
    (info / "entry_points.txt").write_text(f"[loggers.backends]\n{lines}")
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)


def run(site: Path, code: str) -> str:
    """Run code with a site folder before all others."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=site)

    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a tracker, and with a stranger's bridge to it that says it knows better than ours."""
    install(tmp_path, "tracker", {}, tracker=TRACKER)
    install(
        tmp_path, "plattli-loggers", {"tracker.Run": "our_bridge:Ours"}, our_bridge="raise AssertionError('loaded')"
    )
    install(tmp_path, "stranger", {"tracker.Run": "bridge:Bridge"}, bridge=BRIDGE.format(name="Bridge"))
    return tmp_path


def test_a_raw_object_is_a_logger_everywhere(site: Path) -> None:
    """For the verbs, a session and a record; it has one logger, and nothing else that is declared is loaded."""
    out = run(
        site,
        """
        import sys, tracker, loggers
        raw = tracker.SpecialRun()
        loggers.log_metrics(raw, {"loss": 1.0}, step=1)
        with loggers.TrainingSession(raw, params={"lr": 0.1}) as session:
            session.step = 1
            session.train({"loss": 0.5})
        record = loggers.checkpoint_record(raw)
        loggers.resume(raw, record)
        import bridge
        logger = loggers.as_logger(raw)
        assert loggers.as_logger(raw) is logger and loggers.as_logger(logger) is logger
        assert loggers.backend(raw) is raw and bridge.Bridge.made == 1
        assert loggers.as_logger(tracker.Run()) is not logger
        print(raw.rows, record)
        """,
    )

    assert out == (
        "[({'loss': 1.0}, 1, 'train'), {'lr': 0.1}, ({'loss': 0.5}, 2, 'train'), 'completed', {'by': 'Bridge'}] "
        "{'logger': 'bridge.Bridge', 'state': {'by': 'Bridge'}, 'version': 1}\n"
    )


def test_the_trackers_own_package_wins(site: Path) -> None:
    """Over strangers, whatever they are called; an entry for a nearer base over all of them."""
    install(site, "a-bridge", {"tracker.Run": "tracker_bridge:Run"}, tracker_bridge="raise AssertionError('loaded')")
    install(site, "tracker-own", {"tracker.Run": "tracker.own:Own"})
    (site / "tracker").mkdir()
    (site / "tracker.py").rename(site / "tracker" / "__init__.py")
    (site / "tracker" / "own.py").write_text(BRIDGE.format(name="Own"))
    code = "import tracker, loggers; print(type(loggers.as_logger(tracker.SpecialRun())).__name__)"

    assert run(site, code) == "Own\n"

    install(site, "b-bridge", {"tracker.SpecialRun": "special:Special"}, special=BRIDGE.format(name="Special"))
    assert run(site, code) == "Special\n"


def test_verbs_that_were_registered_win(site: Path) -> None:
    """Whoever registers verbs for a type in the program itself means it; the others are those that are declared."""
    code = """
        import tracker, loggers
        loggers.register_verbs(tracker.Run, log_params=lambda run, params: run.rows.append("registered"))
        raw = tracker.SpecialRun()
        assert loggers.as_logger(raw) is raw
        loggers.log_params(raw, {})
        loggers.log_tags(raw, ["declared"])
        record = loggers.checkpoint_record(raw)
        for verb in ("log_tags", "log_metrics", "log_other", "log_confusion", "finish"):
            loggers.register_verbs(tracker.Run, **{verb: lambda run, *args, **kwargs: run.rows.append("mine")})
        loggers.finish(raw, "completed")
        print(raw.rows, record["state"], loggers.logger_state(raw))
        """

    assert run(site, code) == "['registered', ['declared'], 'mine'] {'by': 'Bridge'} None\n"


def test_loggers_look_for_no_declarations(site: Path) -> None:
    """Only an object without verbs of its own makes us read what is installed."""
    code = """
        import loggers, loggers.backends
        logger = loggers.JSONLogger("x.jsonl")
        loggers.log_params(logger, {"a": 1})
        loggers.log_params(None, {"a": 1})
        assert loggers.as_logger(logger) is logger
        print(loggers.backends._declared)
        """

    assert run(site, code) == "None\n"


def test_what_is_no_logger_is_said() -> None:
    """None is one; a class, and an object that nobody declared, are none."""
    assert loggers.as_logger(None) is None
    with pytest.raises(MissingVerbError, match=r"builtins\.object is used as a logger and lacks log_params, log_tags"):
        loggers.as_logger(object())
    with pytest.raises(MissingVerbError, match=r"is the class loggers\.json_logger\.JSONLogger itself: pass"):
        loggers.as_logger(loggers.JSONLogger)
