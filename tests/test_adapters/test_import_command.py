"""``plattli import``: once, whatever happens in between, and in words."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.importers.finding import KINDS, find_sources
from adapters.importers.importing import NOTE, import_run
from adapters.importers.items import Options
from loggers import JSONLogger, PlattliLogger
from plattli.cli import main as plattli
from tests.faults import failing_disk
from tests.test_adapters.imported import about, imported, points

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a file of some lines."""
    file = tmp_path / "metrics.jsonl"
    logger = JSONLogger(file)
    for step in range(3):
        logger.log_metrics({"loss": step / 4}, step=step)
    logger.finish("completed")
    return file


def test_what_people_read(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence for a run, and one for each thing that was unusual; a second call says that all is there."""
    with log.open("a") as file:
        file.write('{"type":"metrics","context":"train","step":1,"loss":9}\n"x"\n')
    run = tmp_path / "run"
    assert plattli(["import", str(log), str(run)]) == 0
    assert capsys.readouterr().out == (
        f"{run}: 4 lines (4 values, steps 0 to 2) from {log} (a JSONLogger's JSON Lines); completed\n"
        "  was restarted once, which took back 2 lines\n"
        "  left out: lines that are no JSON object (1)\n"
        "  metrics.jsonl:6 is no JSON object: '\"x\"\\n'\n"
    )
    assert plattli(["import", str(log), str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: has all of {log} already; --force imports it again\n"
    assert points(run) == {"train/loss": [(0, 0), (1, 9)]}
    assert plattli(["import", str(log), str(run), "--quiet", "--force"]) == 0
    assert capsys.readouterr().out == ""
    assert points(run) == {"train/loss": [(0, 0), (1, 9)]}


def test_twice_never_doubles(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files, other options, a source that has grown, a run of somebody else: refused, and replaced on demand."""
    run = tmp_path / "run"
    imported(log, run)
    before = points(run)
    other = tmp_path / "other.jsonl"
    other.write_bytes(log.read_bytes())

    (said,) = imported(other, run, code=1, capsys=capsys)
    ways = "name another place, or replace it with --force"
    assert said["error"] == f"{run} was imported from something else ({log}): {ways}"
    (said,) = imported(log, run, "--overlaps", "cut", code=1, capsys=capsys)
    assert said["error"] == f"{run} was imported from the same files with other options, or before they changed: {ways}"
    JSONLogger(log).log_metrics({"loss": 1.0}, step=3)
    (said,) = imported(log, run, code=1, capsys=capsys)
    assert "before they changed" in said["error"]
    assert points(run) == before
    imported(log, run, "--force")
    assert points(run)["train/loss"][-1] == (3, 1.0)

    mine = PlattliLogger(tmp_path / "mine")
    mine.log_metrics({"loss": 5.0}, step=7)
    (said,) = imported(log, tmp_path / "mine", "--force", code=1, capsys=capsys)
    assert "is being written by another process" in said["error"]
    mine.finish("completed")
    (said,) = imported(log, tmp_path / "mine", code=1, capsys=capsys)
    assert said["error"] == f"there is a run already in {tmp_path / 'mine'}: {ways}"
    assert points(tmp_path / "mine")["train/loss"] == [(7, 5.0)]
    imported(log, tmp_path / "mine", "--force")
    assert [step for step, _ in points(tmp_path / "mine")["train/loss"]] == [0, 1, 2, 3]


def test_an_import_that_was_killed_begins_again(tmp_path: Path, log: Path) -> None:
    """Killed in the middle: the next one replaces what there is of it, and says nothing of --force."""
    program = f"""
import os, sys
from adapters.importers import writing
from plattli.cli import main
take = writing.Writer._take
def take_one_and_die(self, item):
    take(self, item)
    if self._report.lines == 2:
        os.kill(os.getpid(), 9)
writing.Writer._take = take_one_and_die
main(["import", {str(log)!r}, {str(tmp_path / "run")!r}])
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path).returncode == -9
    assert len(points(tmp_path / "run")["train/loss"]) == 2
    assert json.loads((tmp_path / "run" / NOTE).read_text())["complete"] is False
    imported(log, tmp_path / "run")

    assert points(tmp_path / "run") == {"train/loss": [(0, 0), (1, 0.25), (2, 0.5)]}
    assert about(tmp_path / "run")[0] == "completed"
    assert {path.name for path in (tmp_path / "run").iterdir()} - {".revisions"} == {NOTE, "metrics.plattli"}


def test_what_it_looks_like_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it is, and what to do; nothing is written."""
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b\x08rest")
    sqlite3.connect(tmp_path / "mlflow.db").execute("create table a (b)").connection.close()
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x00")
    (tmp_path / "all.json").write_text('[{"step": 1}]')
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "weights.pt").write_bytes(b"x")
    run = tmp_path / "run"
    for name, message in {
        "log.gz": "is compressed with gzip: unpack it first",
        "mlflow.db": "is an SQLite database (MLflow and Trackio keep runs in one): there is no importer for it",
        "pickle": "is a binary file that begins with",
        "all.json": "is one JSON document: write its rows as JSON Lines",
        "empty": "is a directory without anything to import: it has nothing; there are importers of",
        "folder": "is a directory without anything to import: it has 'weights.pt'; there are importers of",
        "missing": "missing: no such file or directory",
    }.items():
        assert plattli(["import", str(tmp_path / name), str(run)]) == 1
        assert message in capsys.readouterr().err
    assert not run.exists()


def test_kinds_that_lie_side_by_side(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user says which; a Plättli run is none of them."""
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n")
    assert plattli(["import", str(tmp_path), str(tmp_path / "run")]) == 1
    assert "holds files of several kinds (jsonl: 1, such as " in capsys.readouterr().err
    assert plattli(["import", str(tmp_path), str(tmp_path / "run"), "--from", "csv"]) == 0
    assert points(tmp_path / "run") == {"train/loss": [(1, 0.5)]}
    capsys.readouterr()
    assert plattli(["import", str(tmp_path / "run"), str(tmp_path / "again")]) == 1
    assert "is a Plättli run already, which `plattli replay` copies" in capsys.readouterr().err
    assert plattli(["import", str(log), str(tmp_path / "again"), "--from", "wandb"]) == 1
    assert "is no file of W&B files, but a text that begins with" in capsys.readouterr().err


def test_help_and_wrong_usage(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every kind."""
    with pytest.raises(SystemExit) as ended:
        plattli(["import", "--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(kind.WHAT in out for kind in KINDS.values())
    with pytest.raises(SystemExit) as ended:
        plattli(["import", str(log)])
    assert ended.value.code == 2
    assert plattli(["import", str(log), str(tmp_path / "run"), "--context", ""]) == 2


@pytest.mark.filterwarnings("ignore:run 'run':RuntimeWarning")
@pytest.mark.parametrize("first", [1, 4, 12, 30, 60])
def test_a_disk_that_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str], first: int) -> None:
    """Said with exit code 1; when there is room, the same command begins again and gets all of it."""
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(f'{{"type":"metrics","context":"train","step":{s},"loss":{s}}}\n' for s in range(50)))
    with failing_disk(first, code=errno.ENOSPC) as disk:
        code = plattli(["import", str(log), str(tmp_path / "run")])

    assert disk.failed
    assert code == 1
    assert "No space left on device" in capsys.readouterr().err
    imported(log, tmp_path / "run")
    assert points(tmp_path / "run") == {"train/loss": [(step, step) for step in range(50)]}


def test_a_killed_import_may_begin_with_other_options(tmp_path: Path, log: Path) -> None:
    """What there is of it is the import's own, so the source may even have grown."""
    run = tmp_path / "run"
    imported(log, run)
    note = json.loads((run / NOTE).read_text())
    (run / NOTE).write_text(json.dumps({**note, "complete": False}))
    JSONLogger(log).log_metrics({"loss": 1.0}, step=3)
    imported(log, run, "--overlaps", "keep")

    assert points(run) == {"train/loss": [(0, 0), (1, 0.25), (2, 0.5), (3, 1)]}


def test_progress_is_told(tmp_path: Path) -> None:
    """By the bytes that are read, up to all of them."""
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step":{s},"loss":{s}}}\n' for s in range(2000)))
    (source,) = find_sources(log)
    told: list[int] = []
    report = import_run(source, tmp_path / "run", Options(), progress=lambda report: told.append(report.bytes_read))

    assert told == sorted(told)
    assert len({*told}) >= 4
    assert report is not None
    assert report.bytes_read == log.stat().st_size


def test_into_the_folder_of_the_source(tmp_path: Path, log: Path) -> None:
    """Next to it, and --force replaces the run alone."""
    imported(log, tmp_path)
    imported(log, tmp_path, "--force")

    assert points(tmp_path)["train/loss"] == [(0, 0), (1, 0.25), (2, 0.5)]
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {".revisions"} == {NOTE, "metrics.jsonl", "metrics.plattli"}
