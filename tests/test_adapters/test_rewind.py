"""A replay whose run was cut by a resume: the logger forgets what was taken back, and gets the rest once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters import MetricsGroupLogger, TensorBoardLogger, TrackioLogger
from adapters.backends.metrics_group import open_group
from loggers import CSVLogger, PlattliLogger, checkpoint_record, resume
from loggers.replay import Cursor, replay
from loggers.testing import Stored
from tests.faults import failing_disk
from tests.killing import every_kill
from tests.test_adapters import trackio_runs
from tests.test_adapters.metrics_groups import ByHand
from tests.test_adapters.test_contract import tensorboard_run
from tests.test_loggers.test_contract import csv_run, plattli_run


@pytest.fixture(scope="module")
def trackio_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trackio_runs.home(tmp_path_factory.mktemp("trackio"))


def project(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


#: kind -> how to build its logger, and how to read what that has written
KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Stored]]] = {
    "plattli": (PlattliLogger, plattli_run),
    "csv": (lambda path: CSVLogger(path / "log.csv"), lambda path: csv_run(path / "log.csv")),
    "group": (MetricsGroupLogger, lambda path: ByHand(path).stored()),
    "dense": (lambda path: MetricsGroupLogger(path, densify_every=3), lambda path: ByHand(path).stored()),
    "trackio": (lambda path: TrackioLogger(project(path)), lambda path: trackio_runs.stored(project(path))),
}


def first_attempt(logger: PlattliLogger) -> dict[str, Any]:
    """Log 12 steps in two contexts, some late, and return the state of step 6."""
    logger.log_params({"lr": 0.1, "net": {"width": 8}})
    logger.log_tags(["a"])
    state: dict[str, Any] = {}
    for step in range(1, 13):
        logger.log_metrics({"loss": step / 8}, step=step, epoch=step // 4)
        if step % 3 == 0:
            logger.log_metrics({"loss": step / 16, "acc": 1.0}, step=step, context="validate")
            logger.log_confusion([[step, 0], [1, 2]], ["x", "y"], step=step, context="validate")
            logger.log_other(f"report {step}", {"at": step})
        if step == 6:
            state = logger.logger_state()
    logger.log_metrics({"late": 1.0}, step=2)
    logger.log_tags(["b"])
    return state


def second_attempt(logger: PlattliLogger) -> None:
    for step in range(7, 10):
        logger.log_metrics({"loss": -step / 8, "new": 2.0}, step=step, epoch=step // 4)
    logger.log_other("report 9", "again")
    logger.log_confusion([[0, 9], [1, 2]], ["x", "y"], step=9, context="validate")


def comparable(found: Stored) -> Stored:
    """Return it without the order in which points came, and the time at which nobody logged."""
    metrics = found.metrics
    found.metrics = {n: sorted(points) for n, points in metrics.items() if "walltime" not in n and points}
    found.confusions = {name: sorted(points) for name, points in found.confusions.items() if points}
    return found


@pytest.mark.usefixtures("trackio_home")
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_run_reads_as_if_it_had_not_gone_on(tmp_path: Path, kind: str, ended: bool) -> None:
    """Delivered to step 12, cut back to 6 and gone on to 9: as a whole replay of what is there in the end.

    Each look is another process's, which has the logger's record and the cursor.
    """
    build, read = KINDS[kind]
    run = tmp_path / "run"
    primary = PlattliLogger(run)
    state = first_attempt(primary)
    if ended:
        primary.finish("interrupted")
        primary = PlattliLogger(run)
    logger = build(tmp_path / "target")
    cursor = replay(run, logger, finish=ended)
    noted = json.dumps([checkpoint_record(logger), cursor.to_json()])
    if hasattr(logger, "close"):
        logger.close()
    primary.reattach(state)
    second_attempt(primary)
    primary.finish("completed")

    logger, (record, cursor_data) = build(tmp_path / "target"), json.loads(noted)
    resume(logger, record)
    replay(run, logger, since=Cursor.from_json(cursor_data))
    replay(run, build(tmp_path / "whole"))
    found, expected = comparable(read(tmp_path / "target")), comparable(read(tmp_path / "whole"))

    assert found == expected
    assert [step for step, _ in found.metrics["train/loss"]] == list(range(1, 10))
    assert found.other == {"report 3": {"at": 3}, "report 6": {"at": 6}, "report 9": "again"}
    assert found.tags == {"a": True, "b": True}


class Interrupted(Exception):
    pass


def cut_after_delivery(run: Path, logger: Any, *, finish: bool = True) -> str:
    """Deliver a run's first attempt, cut it and go on; return record and cursor of before as text."""
    primary = PlattliLogger(run)
    state = first_attempt(primary)
    primary.finish("error")
    cursor = replay(run, logger, finish=finish)
    noted = json.dumps([checkpoint_record(logger), cursor.to_json()])
    primary = PlattliLogger(run)
    primary.reattach(state)
    second_attempt(primary)
    primary.finish("completed")
    return noted


def go_on(run: Path, logger: Any, noted: str, **options: Any) -> None:
    """Deliver the rest with a new process's logger."""
    record, cursor = json.loads(noted)
    resume(logger, record)
    replay(run, logger, since=Cursor.from_json(cursor), **options)


@pytest.mark.usefixtures("trackio_home")
@pytest.mark.filterwarnings("ignore:TensorBoardLogger")  # what it cannot show is told once
@pytest.mark.parametrize("kind", [*KINDS, "tensorboard"])
def test_a_follower_dies_before_it_has_noted_the_rewind(tmp_path: Path, kind: str) -> None:
    """Twice: what is there is less than its record says, and it goes on all the same."""
    build, read = {**KINDS, "tensorboard": (TensorBoardLogger, tensorboard_run)}[kind]
    run = tmp_path / "run"
    noted = cut_after_delivery(run, build(tmp_path / "target"))

    def die(cursor: Cursor) -> None:
        raise Interrupted

    for _ in range(2):
        logger = build(tmp_path / "target")
        with pytest.raises(Interrupted):
            go_on(run, logger, noted, progress=die)
        checkpoint_record(logger)  # waits for what a thread writes
    go_on(run, build(tmp_path / "target"), noted)
    replay(run, build(tmp_path / "whole"))

    assert comparable(read(tmp_path / "target")) == comparable(read(tmp_path / "whole"))


@pytest.mark.parametrize("kind", ["csv", "group"])
def test_a_follower_is_killed_anywhere_in_a_rewind(tmp_path: Path, kind: str) -> None:
    """At each file operation, its notes' own among them; the next one goes on from the last note.

    Nothing is finished, as that makes a group's arrays, and so a hundred operations more.
    """
    build, read = KINDS[kind]
    before = tmp_path / "before"
    before.mkdir()
    noted = cut_after_delivery(before / "run", build(before / "target"), finish=False)
    (before / "note").write_text(noted)
    replay(before / "run", build(tmp_path / "whole"), finish=False)
    expected = comparable(read(tmp_path / "whole"))

    def follow(root: Path, acknowledge: Callable[[object], None]) -> None:
        logger = build(root / "target")

        def note(cursor: Cursor) -> None:
            (root / "new").write_text(json.dumps([checkpoint_record(logger), cursor.to_json()]))
            os.replace(root / "new", root / "note")
            acknowledge("noted")

        go_on(root / "run", logger, (root / "note").read_text(), progress=note, finish=False)

    for number, root, noted_then in every_kill(follow, tmp_path, before):
        follow(root, lambda fact: None)
        assert comparable(read(root / "target")) == expected, number
        if noted_then:  # the rest is as ever
            break
    assert number > 5


@pytest.mark.usefixtures("trackio_home")
@pytest.mark.parametrize("kind", KINDS)
def test_late_points_of_earlier_steps_stay(tmp_path: Path, kind: str) -> None:
    """They lie behind what is taken away, and are not logged again."""
    build, read = KINDS[kind]
    logger = build(tmp_path / "target")
    for step in (1, 2, 5, 6, 3, 4):
        logger.log_metrics({"a": step / 2}, step=step)
    logger.log_params({"lr": 0.1})
    logger.rewind(4)
    logger.log_params({"lr": 0.2})
    logger.log_metrics({"a": 9.0}, step=4)
    logger.log_other("note", 1)
    logger.rewind(100)
    logger.rewind(5)
    logger.log_metrics({"a": 10.0}, step=5)
    logger.finish("completed")
    found = comparable(read(tmp_path / "target"))

    assert found.metrics == {"train/a": [(1, 0.5), (2, 1.0), (3, 1.5), (4, 9.0), (5, 10.0)]}
    assert found.other == {"note": 1}
    assert found.status == "completed"


@pytest.mark.parametrize("kind", ["csv", "group", "dense"])
def test_a_rewind_that_the_disk_refuses_takes_nothing_away(tmp_path: Path, kind: str) -> None:
    """At any of its file operations: what is there is whole, and it can be done again."""
    build, read = KINDS[kind]
    for first in range(1, 100):
        path = tmp_path / str(first)
        logger = build(path)
        for step in (1, 2, 5, 6, 3):
            logger.log_metrics({"a": step / 2}, step=step)
            logger.log_other(f"at {step}", step)
        with failing_disk(first, 1) as disk:
            try:
                logger.rewind(4)
            except OSError:
                assert set(read(path).metrics["train/a"]) >= {(1, 0.5), (2, 1.0), (3, 1.5)}
                logger.rewind(4)
        logger.log_metrics({"a": 9.0}, step=4)
        logger.finish("completed")
        found = comparable(read(path))

        assert found.metrics == {"train/a": [(1, 0.5), (2, 1.0), (3, 1.5), (4, 9.0)]}, first
        assert found.other == {"at 1": 1, "at 2": 2, "at 3": 3}
        assert not [name for name in os.listdir(path) if "tmp" in name or "partial" in name]
        if not disk.failed:
            break
    assert first > 2


def test_who_reads_a_group_meanwhile_sees_the_rewind(tmp_path: Path) -> None:
    """Also in the moment at which the log is another one, and the catalog does not say so yet."""
    logger = MetricsGroupLogger(tmp_path)
    for step in (1, 2, 5):
        logger.log_metrics({"a": 1.0}, step=step)
    group = open_group(tmp_path)
    assert group["train/a"].steps.tolist() == [1, 2, 5]
    logger.log_metrics({"a": 1.0}, step=6)
    logger.log_metrics({"a": 1 / 3}, step=3)  # longer than the line of step 5
    before = (tmp_path / "zarr.json").read_bytes()
    logger.rewind(5)
    after = (tmp_path / "zarr.json").read_bytes()
    for document in (before, after):
        (tmp_path / "zarr.json").write_bytes(document)
        assert group["train/a"].steps.tolist() == [1, 2, 3]


TRAINING = """
import json, os, signal, sys
from pathlib import Path
from adapters import TeeLogger, TrackioLogger
from loggers import PlattliLogger, TrainingSession
from tests.test_adapters.replicas import wait_for

directory, record = Path(sys.argv[1]), json.loads(sys.argv[2])
replica = TrackioLogger("killed", directory=directory / "trackio")
tee = TeeLogger(PlattliLogger(directory / "run"), replica, poll=0.02)
session = TrainingSession(tee, params={"lr": 0.1})
session.resume(record)
with session:
    while session.step < 40:
        session.train({"loss": session.step / 2 + 100 * (record is not None)})
        if session.step == 20:
            print(json.dumps(session.checkpoint_record()), flush=True)
        if session.step == 30 and record is None:
            wait_for(lambda: tee.report()[0]["delivered"] >= 30)
            os.kill(os.getpid(), signal.SIGKILL)
from tests.test_adapters.trackio_runs import stored
print(json.dumps([sorted(stored("killed").metrics["train/loss"]), stored("killed").status]))
"""


def test_a_killed_tees_tracker_has_each_step_once(tmp_path: Path) -> None:
    """kill -9 at 30, all of it delivered, and resumed at 20: the follower's tracker is cut there, too."""

    def attempt(record: str) -> subprocess.CompletedProcess[str]:
        root = {"PYTHONPATH": str(Path(__file__).parents[2]), "TRACKIO_DIR": str(tmp_path / "trackio")}
        command = [sys.executable, "-c", TRAINING, str(tmp_path), record]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **root})

    first = attempt("null")
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = attempt(first.stdout)
    assert second.returncode == 0, second.stderr
    found, status = json.loads(second.stdout.splitlines()[-1])

    assert found == [[step, (step - 1) / 2 + 100 * (step > 20)] for step in range(1, 41)]
    assert status == "completed"
