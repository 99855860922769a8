"""An existing SummaryWriter as a logger, of tensorboardX and, where it is installed, of PyTorch."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import loggers
from adapters import SummaryWriterLogger, TeeLogger, TensorBoardLogger
from loggers import JSONLogger, PlattliLogger, TrainingSession
from loggers.errors import LoggerError, LoggerFinishedError, MetricValueError, RecordError
from loggers.testing import LoggerContract, Stored
from tests.lazy import Lazy
from tests.test_adapters.tensorboard_files import Files
from tests.test_adapters.test_contract import tensorboard_run

tensorboardX = Lazy("tensorboardX")
ROOT = Path(__file__).parents[2]
#: A writer calls its file by the second in which it began, and overwrites another of the same second.
_numbers = itertools.count()


def suffix() -> str:
    """Return what makes the name of the next event file its own, behind those before it."""
    return f".{next(_numbers):06d}"


def tensorboardx_writer(path: Path, **options: Any) -> Any:
    """Return tensorboardX's writer."""
    return tensorboardX.SummaryWriter(str(path), filename_suffix=suffix(), **options)


MAKERS: dict[str, Callable[..., Any]] = {"tensorboardX": tensorboardx_writer}
if importlib.util.find_spec("torch") is not None:

    def torch_writer(path: Path, **options: Any) -> Any:
        """Return PyTorch's writer."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(path), filename_suffix=suffix(), **options)

    MAKERS["torch"] = torch_writer


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Return what makes a writer in a directory. It is closed in the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *a, **k: stack.enter_context(contextlib.closing(MAKERS[request.param](*a, **k)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return where a run shall be."""
    return tmp_path / "board" / "run"


class TestSummaryWriterLogger(LoggerContract):
    """What goes through a writer. Its files are complete when it is closed: its flush waits for nothing."""

    precision = "float32"
    live = False
    holds_text = False
    holds_late = False
    replaces = False
    holds_nested_params = False
    resumes = False
    statuses: ClassVar[dict[str, str]] = {
        "completed": "STATUS_SUCCESS",
        "early_stop": "STATUS_SUCCESS",
        "error": "STATUS_FAILURE",
        "interrupted": "STATUS_FAILURE",
    }

    @pytest.fixture(autouse=True)
    def writers(self) -> Iterator[None]:
        """Close every writer of a test."""
        self._writers: list[Any] = []
        with contextlib.ExitStack() as self._stack:
            yield

    def build(self, directory: Path) -> SummaryWriterLogger:
        self._writers.append(self._stack.enter_context(contextlib.closing(tensorboardx_writer(directory))))
        return SummaryWriterLogger(self._writers[-1])

    def stored(self, directory: Path) -> Stored:
        for writer in self._writers:
            if writer.logdir == str(directory):
                writer.close()
        return tensorboard_run(directory)


def test_a_driver_takes_the_writer_itself(run: Path, make: Any) -> None:
    """It is checked, logged to, and finished; its owner goes on with it in the same run."""
    writer = make(run)
    with TrainingSession(writer, params={"lr": 0.1}) as session:
        for _ in range(3):
            session.train({"loss": 0.5})
            writer.add_scalar("mine", 1.0, session.step)
        session.validate({"loss": 0.25})
    writer.add_scalar("mine", 2.0, 9)
    writer.close()
    files = Files(run)

    assert loggers.backend(writer) is writer
    assert loggers.run_id(writer) == "run"
    assert loggers.logger_info(writer)["logdir"] == str(run)
    assert loggers.checkpoint_record(writer) is None
    assert files.scalars("train/loss") == [(step, 0.5) for step in (1, 2, 3)]
    assert files.scalars("validate/loss") == [(3, 0.25)]
    assert files.scalars("mine") == [(1, 1.0), (2, 1.0), (3, 1.0), (9, 2.0)]
    assert files.params() == {"lr": 0.1}
    assert files.status() == "STATUS_SUCCESS"
    with pytest.raises(LoggerFinishedError, match="is finished"):
        loggers.log_metrics(writer, {"loss": 1.0}, step=10)


def test_a_tee_takes_the_writer_itself(tmp_path: Path, run: Path, make: Any) -> None:
    """Each line arrives once with the tee's time, and so does the rest."""
    writer = make(run)
    tee = TeeLogger(JSONLogger(tmp_path / "run.jsonl"), writer)
    for step in range(3):
        tee.log_metrics({"loss": step}, step=step, walltime=100.0 + step)
    with pytest.warns(RuntimeWarning, match="'name': got str 'a', and TensorBoard draws numbers only"):
        tee.log_metrics({"acc": 0.5, "name": "a"}, step=2, walltime=103.0)
    tee.log_other("report", "good")
    tee.log_confusion([[5, 1], [2, 7]], ["yes", "no"], context="validate")
    tee.finish("completed")
    writer.close()
    files = Files(run)

    assert tee.replicas == [loggers.as_logger(writer)]
    assert files.scalars("train/loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert files.wall_times("train/loss") == [100.0, 101.0, 102.0]
    assert files.scalars("train/acc") == [(2, 0.5)]
    assert files.texts("other/report") == [(2, "good")]
    assert [image.step for image in files.images("validate/confusion")] == [2]
    assert files.status() == "STATUS_SUCCESS"


def test_bad_values_cost_no_sibling(run: Path, make: Any) -> None:
    """The error names the key, and everything else of the line is written."""
    writer = make(run)
    with pytest.raises(MetricValueError, match=r"2 values of the train line.*'z': got complex.*'note': got str"):
        loggers.log_metrics(writer, {"loss": 1.0, "note": "high", "acc": 2.0, "z": 1j}, step=4)
    writer.close()

    assert Files(run).tags() == ["train/acc", "train/loss"]


def test_a_derived_writer_is_one_too(run: Path) -> None:
    """Programs like to add a method of their own."""

    class Mine(tensorboardX.SummaryWriter):  # type: ignore[misc]
        pass

    with contextlib.closing(Mine(str(run))) as writer:
        loggers.log_metrics(writer, {"loss": 1.0}, step=4)
    assert Files(run).scalars("train/loss") == [(4, 1.0)]


def test_a_writer_without_files_is_fed_and_leaves_none(run: Path) -> None:
    """As tensorboardX has them for the ranks that log nothing."""
    with contextlib.closing(tensorboardX.SummaryWriter(str(run), write_to_disk=False)) as writer:
        loggers.log_params(writer, {"lr": 0.1})
        loggers.log_metrics(writer, {"loss": 1.0}, step=4)
        loggers.finish(writer, "completed")
    assert not run.exists()


def test_a_resume_is_the_writers(run: Path, make: Any) -> None:
    """A new writer that purges goes on in the old one's directory: every step is there once."""
    for purge_step in (None, 3):
        writer = make(run, purge_step=purge_step)
        for step in range(purge_step or 0, 5):
            loggers.log_metrics(writer, {"loss": step + 10.0 * (purge_step or 0)}, step=step)
        writer.close()
    with pytest.raises(RecordError, match=r"purge_step=step \+ 1"):
        SummaryWriterLogger(make(run)).reattach({})

    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 33.0), (4, 34.0)]


def test_it_cannot_leave_its_process(run: Path, make: Any) -> None:
    """No pickle and no copy; the error says which logger can."""
    logger = SummaryWriterLogger(make(run))
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LoggerError, match=r"live SummaryWriter.*TensorBoardLogger\(logdir\)"):
            move(logger)


def test_a_forked_copy_writes_nothing(run: Path) -> None:
    """The thread that would empty the writer's queue is not there, so the child would hang at the eleventh line."""
    script = f"""
import os, warnings
import loggers, tensorboardX
writer = tensorboardX.SummaryWriter({str(run)!r})
loggers.log_metrics(writer, {{"loss": 0.0}}, step=0)
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 50):
            loggers.log_metrics(writer, {{"loss": 9.0}}, step=step)
        loggers.finish(writer, "completed")
    os._exit(0 if len(caught) == 1 and "forked" in str(caught[0].message) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
loggers.log_metrics(writer, {{"loss": 1.0}}, step=1)
writer.close()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=240, check=True)
    assert Files(run).scalars("train/loss") == [(0, 0.0), (1, 1.0)]


def test_what_is_no_writer_is_refused(run: Path, make: Any) -> None:
    """And so is a writer where a directory belongs; both errors name the other class."""
    with pytest.raises(LoggerError, match=r"got str: pass TensorBoardLogger\(logdir\)"):
        SummaryWriterLogger(str(run))
    with pytest.raises(LoggerError, match=r"got a SummaryWriter: hand the writer itself.*SummaryWriterLogger"):
        TensorBoardLogger(make(run))


def test_nothing_is_loaded_for_loggers_of_our_own() -> None:
    """The packages' offers are read when an object comes that was not written as a logger, not before."""
    script = """
import sys, tempfile
import loggers
loggers.log_metrics(loggers.JSONLogger(tempfile.mkdtemp() + "/a.jsonl"), {"a": 1.0}, step=1)
assert not {"adapters", "tensorboard", "tensorboardX", "torch"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=240, check=True)


def test_a_primary_comes_first_as_ever(tmp_path: Path, run: Path, make: Any) -> None:
    """The writer cannot be one, because it cannot be read back."""
    with pytest.raises(TypeError, match="read back"):
        TeeLogger(make(run), PlattliLogger(tmp_path / "run"))
    assert os.listdir(tmp_path) == ["board"]
