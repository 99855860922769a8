"""TensorBoardLogger, seen through a real TensorBoard server, with both of its readers."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest

import loggers
from adapters.backends.tensorboard import TensorBoardLogger
from loggers.contract import JSON
from tests.lazy import Lazy
from tests.test_adapters.tensorboard_files import Files, Server, poll, serve

Image = Lazy("PIL.Image")
tensorboardX = Lazy("tensorboardX")
FAST = {"fast": True, "python": False}
RUNS = [
    *("after", "before", "complete", "deep/complete", "late", "resumed", "second", "slow", "texts", "texts differ"),
    "writer",
]


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


def write_before(run: Path) -> dict[str, JSON]:
    """Write all kinds of things, some behind the lines' step; return the state from before the crash."""
    logger = TensorBoardLogger(run)
    logger.log_params({"lr": 0.1})
    train(logger, range(20))
    logger.log_metrics({"loss": 19.0}, step=19, context="validate")
    log_asides(logger, 10)
    state: dict[str, JSON] = logger.logger_state()
    train(logger, range(20, 30))
    logger.log_metrics({"loss": 29.0, "gone": 1.0}, step=29, context="validate")
    logger.log_metrics({"gone": 1.0}, step=29)
    log_asides(logger, 25)
    return state


def log_asides(logger: TensorBoardLogger, step: int) -> None:
    """Log everything that is no line: nothing of it may cost a point of a line."""
    logger.log_params({f"late{step}": True})
    logger.log_tags([f"tag{step}"])
    logger.log_other("report", f"at {step}")
    logger.log_confusion([[step, 1], [2, 7]], ["yes", "no"], step=step, context="validate")
    writer = logger.backend()
    writer.add_histogram("weights", np.arange(step), step)
    writer.add_image("sample", np.full((3, 4, 5), step, np.uint8), step)
    writer.add_text("words", f"*{step}*", step)
    writer.add_scalar("mine", step, step)


def write_after(run: Path, state: dict[str, JSON]) -> None:
    """Go on from the state to the end, with a metric that joins the charts."""
    logger = TensorBoardLogger(run)
    logger.reattach(state)
    train(logger, range(20, 25), factor=10.0)
    logger.log_metrics({"loss": 24.0, "acc": 0.5}, step=24, context="validate")
    log_asides(logger, 23)
    logger.finish("completed")


def shown(server: Server, run: str) -> dict[str, Any]:
    """Return what a server shows of a run that :func:`write_before` has begun, but for its charts."""
    _, metrics, status = server.hparams()[run]
    return {
        "train/loss": server.scalars(run, "train/loss"),
        "validate/loss": server.scalars(run, "validate/loss"),
        "last": metrics["train/loss"],
        "status": status,
        "params": set(re.findall("<code>(late.*?)</code>", server.texts(run, "params")[-1][1])),
        "tags": set(re.findall("<code>(tag.*?)</code>", server.texts(run, "tags")[-1][1])),
        "report": [text for _, text in server.texts(run, "other/report")],
        "words": server.texts(run, "words"),
        "mine": server.scalars(run, "mine"),
        "weights": server.histograms(run, "weights"),
        "tables": [step for step, _ in server.texts(run, "validate/confusion/table")],
        "pictures": [step for step, _ in server.images(run, "validate/confusion")],
        "samples": [step for step, _ in server.images(run, "sample")],
    }


def shown_by_now(server: Server, run: str) -> dict[str, Any] | None:
    """Return :func:`shown`, or ``None`` as long as the server has not read that there is such a thing."""
    try:
        return shown(server, run)
    except (HTTPError, KeyError, IndexError):
        return None


def expected(losses: list[float], validated: list[int], asides: list[int], status: str) -> dict[str, Any]:
    """Return what :func:`shown` has to be, given the values of the lines and the steps of the others."""
    return {
        "train/loss": list(enumerate(losses)),
        "validate/loss": [(step, float(step)) for step in validated],
        "last": losses[-1],
        "status": f"STATUS_{status}",
        "params": {f"late{step}" for step in asides},
        "tags": {f"tag{step}" for step in asides},
        "report": [f"<p>at {step}</p>" for step in asides],
        "words": [(step, f"<p><em>{step}</em></p>") for step in asides],
        "mine": [(step, float(step)) for step in asides],
        "weights": [(step, float(step)) for step in asides],
        **dict.fromkeys(("tables", "pictures", "samples"), asides),
    }


BEFORE = expected([float(step) for step in range(30)], [19, 29], [10, 25], "UNKNOWN")
AFTER = expected([*map(float, range(20)), *(10.0 * step for step in range(20, 25))], [19, 24], [10, 23], "SUCCESS")


def write_through_a_writer(run: Path) -> None:
    """Write a run through a SummaryWriter that its owner uses as well."""
    with contextlib.closing(tensorboardX.SummaryWriter(str(run))) as writer:
        loggers.log_params(writer, {"lr": 0.4})
        for step in range(5):
            loggers.log_metrics(writer, {"loss": float(step)}, step=step)
            writer.add_scalar("mine", 2.0, step)
        loggers.log_metrics(writer, {"loss": 4.0}, step=4, context="validate")
        loggers.log_confusion(writer, [[5, 1], [2, 7]], ["yes", "no"], context="validate")
        loggers.finish(writer, "completed")


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
    write_through_a_writer(root / "writer")
    write_before(root / "before")
    write_after(root / "after", write_before(root / "after"))
    return root


@pytest.fixture(scope="module", params=FAST)
def server(
    request: pytest.FixtureRequest, logdir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Return a server that shows the runs, once per reader."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serve(logdir, log, fast=FAST[request.param]) as running:
        # it says which runs there are before it has read them; one of them has params only
        poll(lambda: sum(map(bool, running.get("/data/plugin/scalars/tags").values())) == len(RUNS) - 1)
        yield running


def test_there_is_one_run_per_directory(server: Server) -> None:
    """Neither hparams nor a resume makes a run of its own."""
    assert server.runs() == RUNS


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
    assert sorted(rows) == RUNS
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


def test_everything_is_there_before_and_after_a_resume(server: Server) -> None:
    """Lines, texts, pictures, histograms, the row of params and the charts; nothing costs another its points."""
    assert shown(server, "before") == BEFORE
    assert shown(server, "after") == AFTER
    assert server.hparams()["after"][0] == {"lr": 0.1, "late10": True, "late23": True}
    assert server.charts("before")["gone"].keys() == {"train/gone", "validate/gone"}
    assert server.charts("after")["gone"] == {}
    assert server.charts("after")["acc"] == {
        tag: server.scalars("after", tag) for tag in ("train/acc", "validate/acc")
    }


def test_equal_charts_of_several_runs_are_one(server: Server) -> None:
    """Though one of the runs has more contexts, and each has written a layout of its own."""
    titles = server.chart_titles()
    assert titles.count("loss") == 1
    assert sorted(titles) == ["acc", "gone", "loss"]
    assert server.charts("slow")["loss"].keys() == {"train/loss", "validate/loss"}


def test_a_writer_of_ones_own_makes_the_same_run(server: Server) -> None:
    """With what its owner has written beside the lines."""
    assert server.scalars("writer", "train/loss") == [(step, float(step)) for step in range(5)]
    assert server.scalars("writer", "mine") == [(step, 2.0) for step in range(5)]
    assert server.charts("writer")["loss"].keys() == {"train/loss", "validate/loss"}
    assert [step for step, _ in server.images("writer", "validate/confusion")] == [4]
    params, metrics, status = server.hparams()["writer"]
    assert (params, metrics["validate/loss"], status) == ({"lr": 0.4}, 4.0, "STATUS_SUCCESS")


@pytest.mark.parametrize("fast", FAST.values(), ids=FAST)
def test_a_running_server_follows(tmp_path: Path, fast: bool) -> None:
    """Everything arrives at a server that was there first, a resume in a new file included; it stays one run."""
    run = tmp_path / "logdir" / "run"
    state = write_before(run)
    with serve(run.parent, tmp_path / "log", fast=fast) as server:
        poll(lambda: shown_by_now(server, "run") == BEFORE)
        assert server.chart_titles() == ["loss", "gone"]
        write_after(run, state)
        poll(lambda: shown_by_now(server, "run") == AFTER)
        assert server.chart_titles() == ["loss", "acc"]
        assert server.runs() == ["run"]


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
