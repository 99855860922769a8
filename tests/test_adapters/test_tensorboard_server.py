"""TensorBoardLogger, seen through a real TensorBoard server, with both of its readers."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adapters.backends.tensorboard import TensorBoardLogger
from tests.test_adapters.tensorboard_files import Files, Server, poll, serve

FAST = {"fast": True, "python": False}


def train(logger: TensorBoardLogger, steps: range, factor: float = 1.0) -> None:
    """Log a train line per step."""
    for step in steps:
        logger.log_metrics({"loss": factor * step, "acc": 0.1}, step=step, epoch=step // 5)


def newest(run: Path) -> Path:
    """Return the event file that was begun last."""
    return max(run.glob("events.out.tfevents.*"))


def write_complete(run: Path) -> None:
    """Write a run with everything in it."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1, "opt": "a|b", "amp": False, "layers": [64, 10]})
    logger.log_tags(["digits", "mlp"])
    train(logger, range(10))
    logger.log_metrics({"loss": 1e300, "n": 2**60}, step=9, epoch=1, context="validate")
    logger.log_metrics({"data_wait_frac": float("nan")}, step=9, epoch=1, context="data")
    logger.log_other("report", "# Good\n\n- *very*")
    logger.log_other("best", {"loss": 0.5})
    logger.log_confusion([[5, 1], [2, 7]], ["yes", "no"], epoch=1, context="validate")
    logger.log_params({"late": "yes"})
    logger.finish("completed")


def write_resumed(run: Path) -> None:
    """Write a run that died after its checkpoint in the middle of a record, and was resumed."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.2})
    train(logger, range(6))
    state = logger.logger_state()
    # at the checkpoint's own step, but after it
    logger.log_metrics({"loss": 55.0}, step=5, epoch=1, context="validate")
    train(logger, range(6, 12))
    with newest(run).open("ab") as file:
        file.write(newest(run).read_bytes()[-50:-20])
    again = TensorBoardLogger(run)
    again.reattach(state)
    again.log_params({"lr": 0.2})
    again.log_metrics({"loss": 77.0}, step=5, epoch=1, context="validate")
    train(again, range(6, 9), factor=10.0)
    again.finish("early_stop")


def write_texts(run: Path, note: str = "") -> None:
    """Write a run that was killed, resumed twice from one checkpoint, and logged its texts each time."""

    def log(logger: TensorBoardLogger, steps: range, note: str = "") -> None:
        for step in steps:
            logger.log_metrics({"loss": step}, step=step)
            if step % 5 == 0:
                logger.log_confusion([[step, 1], [2, 3]], ["a", "b"], context="validate")
                logger.log_other("report", f"at {step}{note}")
            if step == 12:
                logger.log_params({"late": 1})

    logger = TensorBoardLogger(run)
    log(logger, range(11))
    state = logger.logger_state()
    log(logger, range(11, 24))
    for _ in range(2):
        again = TensorBoardLogger(run)
        again.reattach(state)
        log(again, range(11, 24), note)


def write_second_wind(run: Path) -> None:
    """Write a run that failed at its first step, was resumed, and is running."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.3})
    logger.log_other("machine", "old one")
    train(logger, range(1))
    state = logger.logger_state()
    train(logger, range(1, 3))
    logger.finish("error")
    again = TensorBoardLogger(run)
    again.reattach(state)
    train(again, range(1, 5))


def write_slow_context(run: Path) -> None:
    """Write a run whose validation lags behind its training, resumed from the same checkpoint twice."""
    logger = TensorBoardLogger(run)
    train(logger, range(11))
    logger.log_metrics({"loss": 4.0}, step=4, context="validate")
    state = logger.logger_state()
    logger.log_metrics({"loss": 7.0, "gone": 1.0}, step=7, context="validate")
    for factor in (10.0, 100.0):
        logger = TensorBoardLogger(run)
        logger.reattach(state)
        train(logger, range(11, 13), factor)
        logger.log_metrics({"loss": factor}, step=8, context="validate")


def write_late(run: Path) -> None:
    """Write a run whose loss comes too late once, and which is interrupted."""
    logger = TensorBoardLogger(run)
    train(logger, range(6))
    with pytest.warns(RuntimeWarning, match="came after a later step"):
        logger.log_metrics({"loss": 9.0, "extra": 1.0}, step=3)
    logger.finish("interrupted")


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with all the runs."""
    root = tmp_path_factory.mktemp("logdir")
    write_complete(root / "complete")
    write_resumed(root / "resumed")
    write_second_wind(root / "second")
    write_late(root / "late")
    write_slow_context(root / "slow")
    write_texts(root / "texts")
    write_texts(root / "texts differ", note=" again")
    TensorBoardLogger(root / "deep" / "complete").log_params({"lr": 0.9})
    return root


@pytest.fixture(scope="module", params=FAST)
def server(
    request: pytest.FixtureRequest, logdir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Return a server that shows the runs, once per reader."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serve(logdir, log, fast=FAST[request.param]) as running:
        yield running


def test_there_is_one_run_per_directory(server: Server) -> None:
    """Neither hparams nor a resume makes a run of its own."""
    assert server.runs() == ["complete", "deep/complete", "late", "resumed", "second", "slow", "texts", "texts differ"]


def test_scalars_are_the_float32_of_what_was_logged(server: Server) -> None:
    """Steps and values arrive in every context, the epoch beside them."""
    assert server.scalars("complete", "train/loss") == [(step, float(step)) for step in range(10)]
    assert server.scalars("complete", "train/acc")[0] == (0, float(np.float32(0.1)))
    assert server.scalars("complete", "train/epoch")[5:] == [(step, 1.0) for step in range(5, 10)]
    assert server.scalars("complete", "validate/loss") == [(9, "Infinity")]
    assert server.scalars("complete", "validate/n") == [(9, 2.0**60)]
    assert server.scalars("complete", "data/data_wait_frac") == [(9, "NaN")]


def test_a_resumed_run_has_every_step_once(server: Server) -> None:
    """A torn record and a cut leave one point per step: the old ones to the cut, then the new ones."""
    old = [(step, float(step)) for step in range(6)]
    assert server.scalars("resumed", "train/loss") == old + [(step, 10.0 * step) for step in range(6, 9)]
    assert server.scalars("resumed", "validate/loss") == [(5, 77.0)]
    assert server.scalars("second", "train/loss") == [(step, float(step)) for step in range(5)]


def test_a_context_behind_the_others_is_cut_at_its_own_step(server: Server) -> None:
    """What it logged after the checkpoint is gone, though others were further at the checkpoint."""
    assert server.scalars("slow", "validate/loss") == [(4, 4.0), (8, 100.0)]
    assert server.scalars("slow", "train/loss") == [(s, float(s)) for s in range(11)] + [(11, 1100.0), (12, 1200.0)]
    assert "validate/gone" not in server.tags("slow")


def test_texts_are_rendered(server: Server) -> None:
    """Params, tags, free-form values and the confusion table show up as what they are."""
    step, params = server.texts("complete", "params")[-1]
    assert step == 0
    assert "<code>opt</code>" in params
    assert "<code>a|b</code>" in params
    assert "<code>late</code>" in params
    assert "<li><code>digits</code></li>" in server.texts("complete", "tags")[0][1]
    (step, report), = server.texts("complete", "other/report")
    assert step == 9
    assert "<h1>Good</h1>" in report
    assert "<em>very</em>" in report
    assert "&quot;loss&quot;: 0.5" in server.texts("complete", "other/best")[0][1]
    table = server.texts("complete", "validate/confusion/table")[0][1]
    assert "epoch 1" in table
    assert "<td>7</td>" in table


def test_texts_survive_a_resume(server: Server) -> None:
    """What was written before the cut, also at the step of the cut, is there once."""
    assert len(server.texts("resumed", "params")) == 1
    assert len(server.texts("second", "params")) == 1
    assert [text for _, text in server.texts("second", "other/machine")] == ["<p>old one</p>"]


@pytest.mark.parametrize(("run", "note"), [("texts", ""), ("texts differ", " again")])
def test_texts_that_are_logged_again_are_there_once(server: Server, run: str, note: str) -> None:
    """None is lost and none is doubled, and what the resumed run said is what is shown."""
    reports = [(step, f"<p>at {step}{note if step > 10 else ''}</p>") for step in range(0, 24, 5)]
    assert server.texts(run, "other/report") == reports
    assert [step for step, _ in server.texts(run, "validate/confusion/table")] == [0, 5, 10, 15, 20]
    assert [step for step, _ in server.images(run, "validate/confusion")] == [0, 5, 10, 15, 20]
    assert [step for step, _ in server.texts(run, "params")] == [0]


def test_a_confusion_matrix_is_a_picture(server: Server) -> None:
    """The Images tab gets a PNG that another library can decode."""
    ((step, png),) = server.images("complete", "validate/confusion")
    assert step == 9
    picture = Image.open(io.BytesIO(png))
    assert picture.format == "PNG"
    assert min(picture.size) > 50


def test_hparams_are_one_row_per_run(server: Server) -> None:
    """A row has all params, the last metrics, and how the run ended; equal names stay two rows."""
    rows = server.hparams()
    assert sorted(rows) == ["complete", "deep/complete", "late", "resumed", "second", "slow", "texts", "texts differ"]
    params, metrics, status = rows["complete"]
    assert params == {"lr": 0.1, "opt": "a|b", "amp": False, "layers": "[64, 10]", "late": "yes"}
    assert metrics["train/loss"] == 9.0
    assert status == "STATUS_SUCCESS"
    assert rows["deep/complete"][0] == {"lr": 0.9}
    assert rows["deep/complete"][2] == "STATUS_UNKNOWN"
    assert rows["resumed"][2] == "STATUS_SUCCESS"
    assert rows["second"][2] == "STATUS_UNKNOWN"
    assert rows["late"][2] == "STATUS_FAILURE"


def test_a_late_value_costs_no_newer_point(server: Server) -> None:
    """The late point is missing, what came after it in time is there, and so are its siblings."""
    assert server.scalars("late", "train/loss") == [(step, float(step)) for step in range(6)]
    assert server.scalars("late", "train/extra") == [(3, 1.0)]


@pytest.mark.parametrize("fast", FAST.values(), ids=FAST)
def test_a_running_server_follows(tmp_path: Path, fast: bool) -> None:
    """Lines, a resume in a new file, and the status arrive at a server that was there first."""
    run = tmp_path / "logdir" / "run"
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    train(logger, range(3))
    state = logger.logger_state()
    train(logger, range(3, 6))
    with serve(run.parent, tmp_path / "log", fast=fast) as server:
        poll(lambda: len(server.scalars("run", "train/loss")) == 6)
        assert server.hparams()["run"][2] == "STATUS_UNKNOWN"
        again = TensorBoardLogger(run)
        again.reattach(state)
        train(again, range(3, 5), factor=10.0)
        expected = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
        poll(lambda: server.scalars("run", "train/loss") == expected)
        again.finish("completed")
        poll(lambda: server.hparams()["run"][2] == "STATUS_SUCCESS")


def test_the_accumulator_reads_the_same(logdir: Path) -> None:
    """The third reader, which other tools are built on, agrees with the servers."""
    run = Files(logdir / "resumed")
    old = [(step, float(step)) for step in range(6)]
    assert run.scalars("train/loss") == old + [(step, 10.0 * step) for step in range(6, 9)]
    assert run.scalars("validate/loss") == [(5, 77.0)]
    assert run.params() == {"lr": 0.2}
    assert run.status() == "STATUS_SUCCESS"
    assert Files(logdir / "slow").scalars("validate/loss") == [(4, 4.0), (8, 100.0)]
    assert "validate/gone" not in Files(logdir / "slow").tags()
    assert Files(logdir / "second").scalars("train/loss") == [(step, float(step)) for step in range(5)]
    assert len(os.listdir(logdir / "second")) == 3
    for name, note in {"texts": "", "texts differ": " again"}.items():
        reports = [(step, f"at {step}{note if step > 10 else ''}") for step in range(0, 24, 5)]
        assert Files(logdir / name).texts("other/report") == reports
        assert [step for step, _ in Files(logdir / name).texts("validate/confusion/table")] == [0, 5, 10, 15, 20]
