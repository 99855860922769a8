"""A CSVLogger on a disk that fails, is full, or is gone for a while: what JSONLogger promises, of a table."""

from __future__ import annotations

import errno
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from loggers import CSVLogger, logger_info
from loggers.errors import PathError, RecordError, UnwrittenError
from tests.faults import failing_disk
from tests.test_loggers.test_contract import csv_run
from tests.test_loggers.test_csv_logger import interrupted_at
from tests.test_loggers.test_json_logger_faults import largest_file, log_in_threads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "log.csv"


def log_all(logger: CSVLogger) -> None:
    """Log ten lines, of which two bring new columns."""
    logger.log_params({"lr": 0.1})
    logger.log_tags("seen")
    for step in range(1, 6):
        logger.log_metrics({"loss": step / 7, f"part {step // 3}": "é" * step}, step=step)
    logger.log_metrics({}, step=5, context="validate")
    logger.log_other("note", [1])
    logger.log_confusion([[1]], ["a"])


EXPECTED: dict[str, Any] = {
    "train/loss": [(step, step / 7) for step in range(1, 6)],
    "train/part 0": [(1, "é"), (2, "éé")],
    "train/part 1": [(3, "ééé"), (4, "éééé"), (5, "ééééé")],
}


def check(path: Path) -> None:
    found = csv_run(path)
    assert found.metrics == EXPECTED
    assert (found.params, found.tags, found.other, found.status) == (
        {"lr": 0.1}, {"seen": True}, {"note": [1]}, "completed",
    )  # fmt: skip
    assert len(found.confusions) == 1
    lines = path.read_text().splitlines()
    assert len(lines) == 7
    assert {line.count(",") for line in lines} == {6}
    assert sorted(file.name for file in path.parent.iterdir()) == ["log.csv", "log.notes.jsonl"]


@pytest.mark.parametrize(("code", "count"), [(errno.EIO, 1), (errno.EACCES, 2), (errno.ENOSPC, 3), (errno.EROFS, 40)])
def test_operations_fail_anywhere(tmp_path: Path, code: int, count: int) -> None:
    """From the n-th file operation on some fail, for each n: all is there at the end, as logged, once."""
    for first in range(1, 1000):
        path = tmp_path / str(first) / "log.csv"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with failing_disk(first, count, code) as disk:
                logger = CSVLogger(path)
                log_all(logger)
                try:
                    logger.finish("completed")
                except UnwrittenError:
                    disk.heal()
                    logger.finish("completed")
        check(path)
        if not disk.failed:
            break
    assert 15 < first < 100


def test_a_disk_that_fails_for_long_is_told_once(path: Path) -> None:
    """One warning when it begins, one when it ends, of rows and notes together; nothing torn in between."""
    logger = CSVLogger(path)
    logger.log_metrics({"loss": 0.5}, step=0)
    with failing_disk(code=errno.ENOSPC) as disk, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log_all(logger)
        assert [(str(one.message), one.filename) for one in caught] == [(
            f"run '{path}': the disk takes nothing ([Errno 28] No space left on device); lines wait in memory, up to "
            "64 MB of them, and are written when it does", __file__,
        )]  # fmt: skip
        assert logger_info(logger) == {"logger": "CSVLogger", "path": str(path), "rows": 1, "waiting": 10}
        assert csv_run(path).metrics == {"train/loss": [(0, 0.5)]}
        with pytest.raises(UnwrittenError, match=r"10 lines \(steps 1 to 5\) wait in memory; the run does not end as"):
            logger.finish("completed")
        disk.heal()
        logger.finish("completed")
        assert [str(one.message) for one in caught][1:] == [
            f"run '{path}': the disk takes lines again; the 10 that waited are written"
        ]

    assert csv_run(path).metrics == {**EXPECTED, "train/loss": [(0, 0.5), *EXPECTED["train/loss"]]}


def test_memory_is_bounded(path: Path) -> None:
    """The row for which there is none left raises and is not kept; those before it are written in the end."""
    logger = CSVLogger(path, backlog=5000)
    logged = []
    with failing_disk() as disk, pytest.warns(RuntimeWarning):
        with pytest.raises(UnwrittenError, match=r"\d lines wait in memory, .* line at step \d+ was not logged"):
            for step in range(100):
                logger.log_metrics({"loss": step / 4}, step=step)
                logged.append(step)
        with pytest.raises(UnwrittenError, match="the line without a step was not logged"):
            logger.log_params({"text": "x" * 5000})
        disk.heal()
        logger.log_metrics({"loss": 9.0}, step=100)

    assert 3 < len(logged) < 20
    assert csv_run(path).metrics["train/loss"] == [*((s, s / 4) for s in logged), (100, 9.0)]


def test_no_backlog(path: Path) -> None:
    """``backlog=0`` raises at once, and what was not logged is not there. Nothing is warned of."""
    logger = CSVLogger(path, backlog=0)
    logger.log_metrics({"loss": 1.0}, step=1)
    with failing_disk() as disk:
        for line in ({"loss": 2.0}, {"acc": 2.0}):
            with pytest.raises(UnwrittenError, match=r"takes nothing \(.*\): the line at step 2 was not logged"):
                logger.log_metrics(line, step=2)
        disk.heal()
        logger.log_metrics({"loss": 3.0}, step=3)

    assert csv_run(path).metrics == {"train/loss": [(1, 1.0), (3, 3.0)]}


@pytest.mark.parametrize("more", [1, 20, 38])
def test_a_write_that_breaks_off_leaves_nothing(path: Path, more: int) -> None:
    """The kernel takes a part of a row, or of the table that is written anew for a new column."""
    logger = CSVLogger(path)
    logger.log_metrics({"loss": 1.0}, step=1)
    with pytest.warns(RuntimeWarning):
        with largest_file(path.stat().st_size + more):
            logger.log_metrics({"loss": 2.0, "much": "x" * 40}, step=2)
            assert csv_run(path).metrics == {"train/loss": [(1, 1.0)]}
            assert path.read_bytes().endswith(b"\n")
        logger.log_metrics({"loss": 3.0}, step=3)
        logger.close()

    assert csv_run(path).metrics == {"train/loss": [(1, 1.0), (2, 2.0), (3, 3.0)], "train/much": [(2, "x" * 40)]}
    assert [file.name for file in path.parent.iterdir()] == ["log.csv"]


def test_a_directory_that_is_gone_for_a_while(tmp_path: Path) -> None:
    """Moved away and put back, with new columns meanwhile, for which a file has to be made."""
    run, away = tmp_path / "run", tmp_path / "away"
    logger = CSVLogger(run / "log.csv")
    logger.log_metrics({"loss": 1.0}, step=1)
    run.rename(away)
    with pytest.warns(RuntimeWarning):
        logger.log_metrics({"acc": 2.0}, step=2)
        logger.close()
        away.rename(run)
        logger.close()

    assert csv_run(run / "log.csv").metrics == {"train/loss": [(1, 1.0)], "train/acc": [(2, 2.0)]}


def test_a_directory_that_cannot_be_made_yet(tmp_path: Path) -> None:
    """One warning at the first verb, and all is there once the directory can be made."""
    logger = CSVLogger(tmp_path / "disk" / "log.csv")
    with pytest.warns(RuntimeWarning) as caught, failing_disk(code=errno.EACCES) as disk:
        log_all(logger)
        disk.heal()
        logger.finish("completed")

    assert len(caught) == 2
    assert {one.filename for one in caught} == {__file__}
    check(tmp_path / "disk" / "log.csv")


def test_notes_whose_path_is_a_directory_are_refused(tmp_path: Path) -> None:
    """The table's path works, and theirs never will."""
    (tmp_path / "log.notes.jsonl").mkdir()
    logger = CSVLogger(tmp_path / "log.csv")
    logger.log_metrics({"loss": 0.5}, step=1)
    with pytest.raises(PathError, match=r"Is a directory: '.*log\.notes\.jsonl'"):
        logger.log_params({"lr": 0.1})
    logger.log_metrics({"loss": 0.25}, step=2)

    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.rpartition(",")[2] for row in rows] == ["loss", "0.5", "0.25"]


def test_threads_during_an_outage(path: Path) -> None:
    """Four log while the disk comes and goes: each thread's rows are there once and in order."""
    log_in_threads(CSVLogger(path))

    assert csv_run(path).metrics == {f"train/m{number}": [(step, step) for step in range(200)] for number in range(4)}


def test_a_checkpoint_in_an_outage(tmp_path: Path) -> None:
    """It counts what waits: all of it is cut back to, if it was written later, and what was not is told."""
    run, died = tmp_path / "run", tmp_path / "died"
    logger = CSVLogger(run / "log.csv")
    logger.log_metrics({"loss": 1.0}, step=1)
    with failing_disk(below=run) as disk, pytest.warns(RuntimeWarning):
        logger.log_metrics({"loss": 2.0}, step=2)
        logger.log_other("note", "x")
        state = json.loads(json.dumps(logger.logger_state()))
        shutil.copytree(run, died)
        with pytest.raises(UnwrittenError, match="call reattach when it does"):
            logger.reattach(state)
        logger.log_metrics({"loss": 9.0}, step=3)
        disk.heal()
        logger.reattach(state)
    logger.log_metrics({"loss": 3.0}, step=3)
    other = CSVLogger(died / "log.csv")
    with pytest.warns(RuntimeWarning, match=r"1 rows and 51 bytes of notes, which waited for the disk when"):
        other.reattach(state)
    other.log_metrics({"loss": 3.0}, step=3)

    assert (state["rows"], state["waiting"]) == (2, 1)
    assert csv_run(run / "log.csv").metrics == {"train/loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}
    assert csv_run(run / "log.csv").other == {"note": "x"}
    assert csv_run(died / "log.csv").metrics == {"train/loss": [(1, 1.0), (3, 3.0)]}
    (died / "log.csv").unlink()
    with pytest.raises(RecordError, match="has 0 rows"):
        CSVLogger(died / "log.csv").reattach(state)


@pytest.mark.filterwarnings("ignore:run ", "ignore:unclosed file:ResourceWarning")
def test_ctrl_c_anywhere_when_the_disk_is_back(tmp_path: Path) -> None:
    """Each row that waited is written once, also the one that was just there when the interrupt came."""
    for n in range(1, 10_000):
        path = tmp_path / str(n) / "log.csv"
        logger = CSVLogger(path)
        logger.log_metrics({"loss": 0.0}, step=0)
        with failing_disk():
            for step in range(1, 4):
                logger.log_metrics({"loss": step / 8, f"new {step // 2}": step}, step=step)
        hit = interrupted_at(n, logger.close)
        logger.finish("completed")

        found = csv_run(path).metrics
        assert found["train/loss"] == [(step, step / 8) for step in range(4)], n
        assert found["train/new 1"] == [(2, 2), (3, 3)]
        if not hit:
            break
    assert n > 50
