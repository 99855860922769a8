"""Replay: the verb calls of a stored run, made again, once each."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loggers import JSONLogger, PlattliLogger, replay
from loggers.errors import RecordError
from loggers.replay import Cursor, clip, everything, forget
from plattli import CompactingWriter
from plattli.errors import CorruptRunError, NotARunError
from tests.test_adapters.replicas import FailingLogger, FileLogger, calls, points


def write(logger: Any, steps: range = range(1, 6), status: str | None = "completed") -> None:
    logger.log_params({"lr": 0.1, "deep": {"a": [1]}})
    logger.log_tags({"host": "x", "baseline": True})
    for step in steps:
        logger.log_metrics({"loss": step / 2, "note": f"s{step}"}, step=step, epoch=1, walltime=1000.0 + step)
        if step % 2 == 0:
            logger.log_metrics({"loss": 9.0}, step=step, epoch=1, context="validate", walltime=1000.5 + step)
    logger.log_confusion([[1, 0], [2, 3]], ["x", "y"], step=4, epoch=1, context="validate", name="cm")
    logger.log_other("report", {"text": "fine"})
    if status is not None:
        logger.finish(status)


EXPECTED = [
    ["log_params", [{"lr": 0.1, "deep": {"a": [1]}}], {}],
    ["log_tags", [{"host": "x", "baseline": True}], {}],
    ["log_metrics", [{"loss": 0.5, "note": "s1"}], {"step": 1, "context": "train", "epoch": 1, "walltime": 1001.0}],
    ["log_metrics", [{"loss": 1.0, "note": "s2"}], {"step": 2, "context": "train", "epoch": 1, "walltime": 1002.0}],
    ["log_metrics", [{"loss": 9.0}], {"step": 2, "context": "validate", "epoch": 1, "walltime": 1002.5}],
    ["log_metrics", [{"loss": 1.5, "note": "s3"}], {"step": 3, "context": "train", "epoch": 1, "walltime": 1003.0}],
    ["log_metrics", [{"loss": 2.0, "note": "s4"}], {"step": 4, "context": "train", "epoch": 1, "walltime": 1004.0}],
    ["log_metrics", [{"loss": 9.0}], {"step": 4, "context": "validate", "epoch": 1, "walltime": 1004.5}],
    [
        "log_confusion",
        [[[1, 0], [2, 3]], ["x", "y"]],
        {"step": 4, "epoch": 1, "context": "validate", "name": "cm"},
    ],
    ["log_metrics", [{"loss": 2.5, "note": "s5"}], {"step": 5, "context": "train", "epoch": 1, "walltime": 1005.0}],
    ["log_other", ["report", {"text": "fine"}], {}],
    ["finish", ["completed"], {}],
]


def got(path: Path) -> list[list[Any]]:
    return [list(call) for call in calls(path)]


@pytest.mark.parametrize("form", ["finished", "live", "dead"])
def test_a_run_comes_back_as_the_calls_that_made_it(tmp_path: Path, form: str) -> None:
    """In order: by step, and within a step as they were logged; the original walltime goes along."""
    logger = PlattliLogger(tmp_path / "run", hotsize=2)
    write(logger, status="completed" if form == "finished" else None)
    if form == "dead":
        logger.backend().close()
    cursor = replay(tmp_path / "run", FileLogger(tmp_path / "calls"))
    end = {"finished": [EXPECTED[-1]], "live": [], "dead": [["finish", ["error"], {}]]}[form]

    assert got(tmp_path / "calls") == [*EXPECTED[:-1], *end]
    assert cursor.finished == (form != "live")


def test_going_on_from_a_cursor_sends_nothing_twice(tmp_path: Path) -> None:
    """The cursor is plain JSON data; late points and new metrics count as new."""
    logger = PlattliLogger(tmp_path / "run", hotsize=3)
    replica = FileLogger(tmp_path / "calls")
    cursor = Cursor()
    for step in (1, 2, 3, 7, 8):
        logger.log_metrics({"loss": float(step)}, step=step)
        cursor = Cursor.from_json(json.loads(json.dumps(cursor.to_json())))
        cursor = replay(tmp_path / "run", replica, since=cursor)
    for step in (5, 4, 6):
        logger.log_metrics({"loss": float(step), "new": 1}, step=step)
    cursor = replay(tmp_path / "run", replica, since=cursor)
    cursor = replay(tmp_path / "run", replica, since=cursor)
    logger.finish("completed")

    found = points(tmp_path / "calls")
    assert found["train/loss"] == [(s, float(s)) for s in (1, 2, 3, 7, 8, 4, 5, 6)]
    assert found["train/new"] == [(4, 1), (5, 1), (6, 1)]


def test_a_logger_that_fails_goes_on_with_the_call_that_failed(tmp_path: Path) -> None:
    """The cursor stands before that call, in the middle of a batch too."""
    write(PlattliLogger(tmp_path / "run"))
    repaired = tmp_path / "repaired"
    replica = FailingLogger(tmp_path / "calls", ("log_confusion",), until=repaired)
    cursor = Cursor()
    with pytest.raises(RuntimeError, match="no log_confusion today"):
        replay(tmp_path / "run", replica, since=cursor)
    repaired.touch()
    replay(tmp_path / "run", replica, since=cursor)

    assert got(tmp_path / "calls") == EXPECTED


def test_json_lines_come_back_as_the_calls_that_made_them(tmp_path: Path) -> None:
    """A torn last line waits for its rest; another run's end does not end a file that goes on."""
    path = tmp_path / "metrics.jsonl"
    write(JSONLogger(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    cursor = replay(path, FileLogger(tmp_path / "calls"))
    assert not cursor.finished
    path.write_bytes(whole)
    cursor = replay(path, FileLogger(tmp_path / "calls"), since=cursor)

    assert cursor.finished
    verbs = [call[0] for call in got(tmp_path / "calls")]
    assert verbs == ["log_params", "log_tags", *["log_metrics"] * 7, "log_confusion", "log_other", "finish"]
    assert points(tmp_path / "calls")["train/loss"] == [(s, s / 2) for s in range(1, 6)]


def test_a_line_that_is_no_verb_call_is_named(tmp_path: Path) -> None:
    """With the file."""
    (tmp_path / "a.jsonl").write_text('{"no": "type"}\n')
    with pytest.raises(CorruptRunError, match=r"a\.jsonl holds a line that is no verb call"):
        replay(tmp_path / "a.jsonl", None)
    with pytest.raises(NotARunError):
        replay(tmp_path / "missing.jsonl", None)
    with pytest.raises(NotARunError):
        replay(tmp_path / "missing", None)
    with pytest.raises(RecordError, match="replay cursor"):
        Cursor.from_json({"unknown": 1})


def test_following_sees_every_line_once_and_ends_with_the_run(tmp_path: Path) -> None:
    """While rows become columns, metrics appear and widen, points come late, and the folder becomes an archive."""
    logger = PlattliLogger(tmp_path / "run", hotsize=7)
    logger.log_metrics({"loss": 0.0}, step=0)
    follower = threading.Thread(
        target=replay,
        args=(tmp_path / "run", FileLogger(tmp_path / "calls")),
        kwargs={"follow": True, "poll": 0.001},
    )
    follower.start()
    expected: dict[str, dict[int, Any]] = {"train/loss": {0: 0.0}}
    for step in range(1, 1500):
        row: dict[str, Any] = {"loss": step / 3 if step > 100 else float(step), "n": step}
        if step > 700:
            row["late/metric"] = f"text {step}"
        logger.log_metrics(row, step=step)
        for name, value in row.items():
            expected.setdefault(f"train/{name}", {})[step] = value
        if step % 50 == 49:
            logger.log_metrics({"loss": 1.0}, step=step - 40, context="validate")
            expected.setdefault("validate/loss", {})[step - 40] = 1.0
    logger.finish("completed")
    follower.join(60)

    assert not follower.is_alive()
    found = points(tmp_path / "calls")
    assert {name: len(pairs) for name, pairs in found.items()} == {n: len(p) for n, p in expected.items()}
    assert {name: dict(pairs) for name, pairs in found.items()} == expected
    assert got(tmp_path / "calls")[-1] == ["finish", ["completed"], {}]


def test_a_follower_can_be_stopped(tmp_path: Path) -> None:
    """It delivers what is there, and does not finish the logger of a run that goes on."""
    logger = PlattliLogger(tmp_path / "run")
    logger.log_metrics({"loss": 1.0}, step=1)
    stop = threading.Event()
    stop.set()
    cursor = replay(tmp_path / "run", FileLogger(tmp_path / "calls"), follow=True, stop=stop)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": [(1, 1.0)]}
    assert not cursor.finished


def test_a_run_of_the_plain_writer_can_be_replayed(tmp_path: Path) -> None:
    """Names without a context are of the context train; a finished archive ends as completed."""
    writer = CompactingWriter(tmp_path / "run", hotsize=5, config={"lr": 1})
    for _ in range(3):
        writer.write({"loss": 0.5, "eval/acc": 1.0})
        writer.end_step()
    writer.finish()
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"))

    assert points(tmp_path / "calls") == {
        "train/loss": [(0, 0.5), (1, 0.5), (2, 0.5)],
        "eval/acc": [(0, 1.0), (1, 1.0), (2, 1.0)],
    }
    assert got(tmp_path / "calls")[-1] == ["finish", ["completed"], {}]


def test_a_context_with_a_slash_stays_one(tmp_path: Path) -> None:
    """Its epoch and walltime are axes again, not metrics."""
    logger = PlattliLogger(tmp_path / "run")
    logger.log_metrics({"loss": 1.0}, step=3, epoch=2, context="eval/hard", walltime=5.0)
    logger.finish("completed")
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"))

    line = ["log_metrics", [{"loss": 1.0}], {"step": 3, "context": "eval/hard", "epoch": 2, "walltime": 5.0}]
    assert got(tmp_path / "calls") == [line, ["finish", ["completed"], {}]]


def test_a_cut_run_is_sent_again_from_the_cut(tmp_path: Path) -> None:
    """clip() forgets what the run no longer has; what it still has is not sent again."""
    logger = PlattliLogger(tmp_path / "run", hotsize=3)
    for step in range(10):
        logger.log_metrics({"loss": 1.0}, step=step)
        if step == 4:
            state = logger.logger_state()
    cursor = everything(tmp_path / "run")
    logger.reattach(state)
    clip(cursor, tmp_path / "run")
    for step in range(5, 8):
        logger.log_metrics({"loss": 2.0}, step=step)
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"), since=cursor)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": [(5, 2.0), (6, 2.0), (7, 2.0)]}


@pytest.mark.parametrize(
    "call",
    [
        ("log_metrics", ({"loss": 2.5, "note": "s5"},), {"step": 5, "context": "train", "epoch": 1}),
        ("log_other", ("report", None), {}),
        ("log_confusion", ([], []), {"name": "cm", "context": "validate"}),
        ("log_params", ({},), {}),
        ("log_tags", ({},), {}),
    ],
)
def test_a_call_that_is_forgotten_comes_again_alone(tmp_path: Path, call: tuple[str, Any, Any]) -> None:
    """What failed half-way in a replica is made again, and nothing else."""
    write(PlattliLogger(tmp_path / "run"))
    cursor = everything(tmp_path / "run")
    forget(cursor, tmp_path / "run", *call)
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"), since=cursor, finish=False)

    assert [made[0] for made in got(tmp_path / "calls")] == [call[0]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["train", "validate"])), max_size=60), st.integers(1, 9))
def test_in_pieces_or_at_once_each_point_comes_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, str]], pieces: int
) -> None:
    """Whatever the steps, and wherever a replay stops and goes on."""
    directory = tmp_path_factory.mktemp("run")
    logger = PlattliLogger(directory / "run", hotsize=4)
    cursor = Cursor()
    expected: dict[str, set[int]] = {}
    for number, (step, context) in enumerate(lines):
        logger.log_metrics({"loss": 1.0}, step=step, context=context)
        expected.setdefault(f"{context}/loss", set()).add(step)
        if number % pieces == 0:
            cursor = replay(directory / "run", FileLogger(directory / "calls"), since=cursor)
    if lines:
        replay(directory / "run", FileLogger(directory / "calls"), since=cursor)
    logger.finish("completed")

    found = points(directory / "calls")
    assert {n: sorted(step for step, _ in pairs) for n, pairs in found.items()} == {
        n: sorted(steps) for n, steps in expected.items()
    }
