"""What a run says about itself, in every state that a run can be in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from plattli import CompactingWriter
from plattli._fs import lock_owner
from plattli.errors import NotARunError
from plattli.runinfo import run_info

ABOUT = {
    "id": "digits-1",
    "status": "running",
    "started": "2026-01-02T03:04:05Z",
    "finished": None,
    "tags": {"baseline": True, "seed": 3},
    "versions": {"python": "3.11"},
}
FINAL = ABOUT | {"status": "early_stop", "finished": "2026-01-02T04:00:00Z"}


def writer(root: Path, config: Any) -> CompactingWriter:
    """Return a writer that has logged one step."""
    run = CompactingWriter(root, hotsize=10, config=config)
    run.write(loss=0.5)
    run.end_step()
    return run


def test_live_run_names_its_owner(tmp_path: Path) -> None:
    """A run whose writer lives is running, and the owner is that process."""
    run = writer(tmp_path / "a", {"lr": 0.1, "_run": ABOUT})

    info = run_info(tmp_path / "a")

    assert info.owner is not None
    assert (info.status, info.owner["pid"]) == ("running", os.getpid())
    assert (info.id, info.params, info.tags) == ("digits-1", {"lr": 0.1}, {"baseline": True, "seed": 3})
    assert (info.started, info.finished) == ("2026-01-02T03:04:05Z", None)
    assert (info.kind, info.path, info.name) == ("dir", tmp_path / "a" / "plattli", "a")
    run.close()


def test_run_without_an_owner_has_died(tmp_path: Path) -> None:
    """A run that says running, and that nobody writes, is dead."""
    writer(tmp_path / "a", {"_run": ABOUT}).close()

    info = run_info(tmp_path / "a")

    assert (info.status, info.owner) == ("died", None)


def test_killed_process_has_died(tmp_path: Path) -> None:
    """A process that was killed leaves a dead run, not a live one."""
    program = (
        "import json, sys, time\n"
        "from plattli import CompactingWriter\n"
        "run = CompactingWriter(sys.argv[1], hotsize=10, config={'_run': json.loads(sys.argv[2])})\n"
        "run.write(loss=0.5)\n"
        "run.end_step()\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a"), json.dumps(ABOUT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        alive = run_info(tmp_path / "a")
        process.send_signal(signal.SIGKILL)
        process.wait()

    dead = run_info(tmp_path / "a")

    assert alive.owner is not None
    assert (alive.status, alive.owner["pid"]) == ("running", process.pid)
    assert (dead.status, dead.owner) == ("died", None)


def test_final_status_is_what_the_logger_said(tmp_path: Path) -> None:
    """A stored final status counts, in a folder and in an archive."""
    run = writer(tmp_path / "a", {"lr": 0.1, "_run": ABOUT})
    run.set_config({"lr": 0.1, "_run": FINAL})
    run.close()
    folder = run_info(tmp_path / "a")
    writer(tmp_path / "b", {"_run": FINAL}).finish()
    archive = run_info(tmp_path / "b")

    assert (folder.kind, folder.status, folder.finished) == ("dir", "early_stop", "2026-01-02T04:00:00Z")
    assert (archive.kind, archive.status, archive.path.name) == ("zip", "early_stop", "metrics.plattli")


def test_finalized_run_that_says_running_is_finished(tmp_path: Path) -> None:
    """Whoever finalized the run without its logger did not let it die."""
    writer(tmp_path / "a", {"_run": ABOUT}).finish()

    assert run_info(tmp_path / "a").status == "finished"


def test_plain_runs(tmp_path: Path) -> None:
    """Runs that no logger of ours wrote are described by their files and their lock."""
    live = writer(tmp_path / "live", {"lr": 1})
    writer(tmp_path / "unfinished", {"lr": 1}).close()
    writer(tmp_path / "folder", {"lr": 1}).finish(zip=False)
    writer(tmp_path / "archive", {"lr": 1}).finish()

    infos = {name: run_info(tmp_path / name) for name in ("live", "unfinished", "folder", "archive")}
    live.close()

    assert {name: info.status for name, info in infos.items()} == {
        "live": "live",
        "unfinished": "unfinished",
        "folder": "finished",
        "archive": "finished",
    }
    for info in infos.values():
        assert (info.id, info.params, info.tags, info.started) == (None, {"lr": 1}, {}, None)


def test_every_way_to_name_a_run(tmp_path: Path) -> None:
    """The run root, the metric folder and the archive lead to the same run."""
    run = writer(tmp_path / "a", {"_run": ABOUT})
    assert run_info(tmp_path / "a") == run_info(tmp_path / "a" / "plattli")
    run.finish()
    assert run_info(str(tmp_path / "a")) == run_info(tmp_path / "a" / "metrics.plattli")


def test_moved_archive_has_no_owner(tmp_path: Path) -> None:
    """An archive of another name has nothing to do with the lock of the folder it lies in."""
    run = writer(tmp_path / "a", {"lr": 1})
    writer(tmp_path / "b", {"lr": 2}).finish()
    moved = (tmp_path / "b" / "metrics.plattli").rename(tmp_path / "a" / "b.plattli")

    info = run_info(moved)
    run.close()

    assert (info.name, info.status, info.owner) == ("b", "finished", None)


@pytest.mark.parametrize("foreign", ["text", {"key": 1}, {"status": 3}, None])
def test_somebody_elses_run_key_is_a_param(tmp_path: Path, foreign: Any) -> None:
    """A key that is not our logger's stays where the user put it."""
    writer(tmp_path / "a", {"_run": foreign}).close()

    info = run_info(tmp_path / "a")

    assert (info.status, info.params) == ("unfinished", {"_run": foreign})


def test_odd_contents_of_the_run_key(tmp_path: Path) -> None:
    """What is not of the expected type is left out rather than handed on."""
    writer(tmp_path / "a", {"_run": {"status": "error", "id": 7, "tags": ["x"], "started": 5}}).close()

    info = run_info(tmp_path / "a")

    assert (info.status, info.id, info.tags, info.started) == ("error", None, {}, None)


def test_config_that_is_no_object(tmp_path: Path) -> None:
    """Any JSON may be a config; it is shown under one key."""
    writer(tmp_path / "a", [1, 2]).close()

    assert run_info(tmp_path / "a").params == {"config": [1, 2]}


def test_archive_without_a_config(tmp_path: Path) -> None:
    """An archive may lack its config; then there are no params."""
    writer(tmp_path / "a", {"lr": 1}).finish()
    bare = tmp_path / "bare.plattli"
    with zipfile.ZipFile(tmp_path / "a" / "metrics.plattli") as full, zipfile.ZipFile(bare, "w") as out:
        for name in full.namelist():
            if name != "config.json":
                out.writestr(name, full.read(name))

    info = run_info(bare)

    assert (info.params, info.status) == ({}, "finished")


def test_no_run(tmp_path: Path) -> None:
    """Where no run is, the error says so and names the place."""
    with pytest.raises(NotARunError, match=str(tmp_path)):
        run_info(tmp_path)


def test_run_that_finishes_under_our_eyes_has_not_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer ends between the look at the config and the look at the lock: the end is what counts."""
    run = writer(tmp_path / "a", {"_run": ABOUT})

    def end_then_look(run_root: Path) -> dict[str, Any] | None:
        if lock_owner(run_root) is not None:
            run.set_config({"_run": FINAL})
            run.close()
        return lock_owner(run_root)

    monkeypatch.setattr("plattli.runinfo.lock_owner", end_then_look)

    assert run_info(tmp_path / "a").status == "early_stop"
