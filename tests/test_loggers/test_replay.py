"""Replay: the verb calls of a stored run, made again, once each."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loggers import JSONLogger, PlattliLogger, _plattli_source, _revisions, replay
from loggers.errors import MetricValueError, RecordError
from loggers.replay import Cursor, Missed, everything, lag
from plattli import CompactingWriter, Reader
from plattli.errors import CorruptRunError, NotARunError
from tests.killing import every_kill
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
    follower.join(240)

    assert not follower.is_alive()
    found = points(tmp_path / "calls")
    assert {name: len(pairs) for name, pairs in found.items()} == {n: len(p) for n, p in expected.items()}
    assert {name: dict(pairs) for name, pairs in found.items()} == expected
    assert got(tmp_path / "calls")[-1] == ["finish", ["completed"], {}]


class SlowLogger(FileLogger):
    """While it gets its first line, training goes on and ends."""

    def __init__(self, folder: Path, meanwhile: Callable[[], None]) -> None:
        super().__init__(folder)
        self._meanwhile = meanwhile

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, **axes: Any) -> None:
        """Take the line, and let the rest happen."""
        super().log_metrics(metrics, step=step, **axes)
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()


@pytest.mark.parametrize("finished", [True, False])
def test_what_comes_while_a_slow_logger_takes_its_lines_is_not_forgotten(
    tmp_path: Path, finished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then rows have moved to their columns, so that the reader has to see more than what was asked for."""
    monkeypatch.setattr(_plattli_source, "_WINDOW", 5)
    run = PlattliLogger(tmp_path / "run", hotsize=10)
    for step in range(20):
        run.log_metrics({"loss": step / 3}, step=step)

    def train_on() -> None:
        for step in range(20, 500):
            run.log_metrics({"loss": step / 3}, step=step)
        run.backend().drain()
        if finished:
            run.finish("completed")

    stop = threading.Event()
    slow = SlowLogger(tmp_path / "calls", train_on)
    looks = itertools.count()

    def progress(cursor: Cursor) -> None:
        if cursor.lines >= 500 or next(looks) > 1000:
            stop.set()

    replay(tmp_path / "run", slow, follow=True, poll=0.001, stop=stop, progress=progress)
    if not finished:
        run.finish("completed")

    assert points(tmp_path / "calls")["train/loss"] == [(step, step / 3) for step in range(500)]


def test_a_resume_while_the_end_of_a_dead_run_is_read_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that goes on has no such replica: the follower of the dead one still delivers what it finds."""
    dead, resumed = PlattliLogger(tmp_path / "run"), PlattliLogger(tmp_path / "run")
    for step in range(6):
        dead.log_metrics({"loss": step / 3}, step=step)
    state = dead.logger_state()
    for step in range(6, 10):
        dead.log_metrics({"loss": step / 3}, step=step)
    ended, taken_back = _plattli_source.PlattliSource.ended, _plattli_source.PlattliSource.taken_back

    def die_before_it(source: _plattli_source.PlattliSource) -> str | None:
        dead.backend().close()
        return ended(source)

    def cut_behind_it(source: _plattli_source.PlattliSource, cursor: Cursor) -> int | None:
        first = taken_back(source, cursor)
        if resumed.backend() is None:
            resumed.reattach(state)
        return first

    monkeypatch.setattr(_plattli_source.PlattliSource, "ended", die_before_it)
    monkeypatch.setattr(_plattli_source.PlattliSource, "taken_back", cut_behind_it)
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"), follow=True, poll=0.001)
    resumed.finish("completed")

    assert points(tmp_path / "calls")["train/loss"] == [(step, step / 3) for step in range(6)]
    assert got(tmp_path / "calls")[-1] == ["finish", ["error"], {}]


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
    """What it still has is not sent again; a logger that cannot take back what it has is named."""
    logger = PlattliLogger(tmp_path / "run", hotsize=3)
    for step in range(10):
        logger.log_metrics({"loss": 1.0}, step=step)
        if step == 4:
            state = logger.logger_state()
    cursor = everything(tmp_path / "run")
    logger.reattach(state)
    for step in range(5, 8):
        logger.log_metrics({"loss": 2.0}, step=step)
    with pytest.warns(RuntimeWarning, match="taken back steps from 5 on, and FileLogger cannot"):
        replay(tmp_path / "run", FileLogger(tmp_path / "calls"), since=cursor)
    logger.finish("completed")

    assert points(tmp_path / "calls") == {"train/loss": [(5, 2.0), (6, 2.0), (7, 2.0)]}


def test_a_point_that_was_changed_before_it_was_cut_goes(tmp_path: Path) -> None:
    """A target that can forget has the old value of it, and nothing comes in its place."""
    run, target = tmp_path / "run", Rewinding()
    logger = PlattliLogger(run)
    logger.log_metrics({"a": 1}, step=1)
    state = logger.logger_state()
    logger.log_metrics({"a": 2}, step=2)
    cursor = replay(run, target)
    logger.log_metrics({"a": 3}, step=2)
    logger.reattach(state)
    logger.finish("completed")
    replay(run, target, since=cursor)

    assert target.values == {("train/a", 1): 1}


def test_a_cursor_is_of_one_run(tmp_path: Path) -> None:
    """That another run in its place has no more to send would not be true."""
    write(PlattliLogger(tmp_path / "run"))
    cursor = replay(tmp_path / "run", FileLogger(tmp_path / "calls"))
    write(PlattliLogger(tmp_path / "run", if_exists="replace"))
    with pytest.raises(RecordError, match="what was delivered is of run"):
        replay(tmp_path / "run", FileLogger(tmp_path / "calls"), since=cursor)


def test_repeats_while_it_is_followed_come_once_with_the_last_value(tmp_path: Path) -> None:
    """Late, repeated and joined points, and compactions, behind the back of a follower that never rests."""
    logger = PlattliLogger(tmp_path / "run", hotsize=7)
    target = Target()
    follower = threading.Thread(
        target=replay, args=(tmp_path / "run", target), kwargs={"follow": True, "poll": 0.0005}
    )
    logger.log_metrics({"a": 0}, step=0)
    follower.start()
    expected: dict[tuple[str, int], Any] = {("train/a", 0): 0}
    random = np.random.default_rng(0)
    for number in range(1, 1500):
        step = number // 2 if number % 3 else int(random.integers(0, number // 2 + 1))
        name = "ab"[number % 2]
        logger.log_metrics({name: number}, step=step)
        expected[f"train/{name}", step] = number
    logger.finish("completed")
    follower.join(240)

    assert not follower.is_alive()
    assert target.values == expected
    assert len(set(target.given)) == len(target.given)
    assert target.ended == ["completed"]


def test_a_picture_ahead_of_its_contexts_lines_is_sent_at_once(tmp_path: Path) -> None:
    """It has no time of its own, and nothing may come behind it for long."""
    logger = PlattliLogger(tmp_path / "run")
    logger.log_metrics({"loss": 1.0}, step=3, context="validate")
    logger.log_metrics({"loss": 1.0}, step=9)
    logger.log_confusion([[1]], ["a"], context="validate", name="cm")
    cursor = replay(tmp_path / "run", FileLogger(tmp_path / "calls"))
    assert [call[2].get("step") for call in got(tmp_path / "calls") if call[0] == "log_confusion"] == [9]
    logger.log_metrics({"loss": 1.0}, step=9, context="validate")
    logger.finish("completed")
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"), since=cursor)

    assert [call[0] for call in got(tmp_path / "calls")].count("log_confusion") == 1
    assert points(tmp_path / "calls")["validate/loss"] == [(3, 1.0), (9, 1.0)]


def test_what_a_killed_writer_had_begun_counts_as_done(tmp_path: Path) -> None:
    """A value may be replaced without the note that it is: then it is sent once too often, not once too few."""
    run = tmp_path / "run"
    logger = PlattliLogger(run)
    for step in range(5):
        logger.log_metrics({"a": step}, step=step)
    target = Target()
    cursor = replay(run, target)
    with (run / _revisions.JOURNAL).open("a") as journal:
        journal.write('{"step":2,"names":["train/a"]}')  # and then, in the order of a writer, the value
    cursor = replay(run, target, since=cursor)
    assert len(target.given) == 5
    logger.backend().close()
    replay(run, target, since=cursor)
    assert [point[1] for point in target.given] == [0, 1, 2, 3, 4, 2]
    again = PlattliLogger(run, if_exists="append")
    again.log_metrics({"a": 9}, step=3)
    assert (run / _revisions.JOURNAL).read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    ("missed", "verb"),
    [
        (Missed("log_metrics", ["train/loss", "train/note"], 5), "log_metrics"),
        (Missed("log_other", ["other/report"], 5), "log_other"),
        (Missed("log_confusion", ["validate/cm"], 4), "log_confusion"),
        (Missed("log_params", [], 5), "log_params"),
        (Missed("log_tags", [], 5), "log_tags"),
    ],
)
def test_a_call_that_was_missed_comes_again_alone(tmp_path: Path, missed: Missed, verb: str) -> None:
    """What failed half-way in a replica is made again, and nothing else."""
    write(PlattliLogger(tmp_path / "run"))
    cursor = everything(tmp_path / "run", missed=[missed])
    replay(tmp_path / "run", FileLogger(tmp_path / "calls"), since=cursor, finish=False)

    assert [made[0] for made in got(tmp_path / "calls")] == [verb]


def test_lag_is_lines_and_seconds(tmp_path: Path) -> None:
    """Of the oldest line that is not delivered; a file of JSON Lines knows no times."""
    logger = PlattliLogger(tmp_path / "run")
    now = time.time()
    for step in range(8):
        logger.log_metrics({"a": step, "b": step}, step=step, walltime=now - 100 + step)
        logger.log_metrics({"a": step}, step=step, context="eval/hard", walltime=now - 90 + step)
    cursor = everything(tmp_path / "run", missed=[Missed("log_metrics", ["train/a", "train/walltime"], 6)])
    assert lag(tmp_path / "run", Cursor()).lines == 16
    behind = lag(tmp_path / "run", cursor)
    assert behind.lines == 1
    assert 94 <= behind.seconds < 94 + 600
    assert lag(tmp_path / "run", everything(tmp_path / "run")) == (0, 0.0)
    lines = JSONLogger(tmp_path / "a.jsonl")
    for step in range(3):
        lines.log_metrics({"a": step}, step=step)
    assert lag(tmp_path / "a.jsonl", Cursor()) == (3, 0.0)


class Target:
    """What a logger holds that was given a run in pieces: the last value per metric and step."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], Any] = {}
        self.given: list[tuple[str, int, Any]] = []
        self.ended: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def log_metrics(self, metrics: Any, *, step: int, context: str = "train", **axes: Any) -> None:
        assert axes["walltime"] > 0
        for name, value in metrics.items():
            self.values[f"{context}/{name}", step] = value
            self.given.append((f"{context}/{name}", step, value))
        self.meanwhile()

    def log_other(self, key: str, value: Any) -> None:
        self.given.append((key, -1, value))

    def log_params(self, params: Any) -> None:
        """It keeps none."""

    log_tags = log_params

    def finish(self, status: str) -> None:
        self.ended.append(status)


class Rewinding(Target):
    """One that can forget what it has from a step on."""

    def rewind(self, step: int) -> None:
        self.values = {place: value for place, value in self.values.items() if place[1] < step}
        self.given = [point for point in self.given if point[1] < step]


LINES = st.tuples(st.integers(0, 30), st.sampled_from(["train", "validate"]), st.sampled_from(["a", "b", "ab"]))
DEEDS = st.one_of(LINES, LINES, LINES, st.just("look"), st.just("look"), st.sampled_from(["keep", "resume", "drain"]))


class Training:
    """A run to which something is done after the other, and what it has to hold then."""

    def __init__(self, run: Path, deeds: list[Any]) -> None:
        self.logger = PlattliLogger(run, hotsize=4)
        self.logger.log_params({"lr": 0.1})
        self.stored: dict[tuple[str, int], Any] = {}
        self.over = False
        self._deeds = list(enumerate(deeds))
        self._kept = self.logger.logger_state(), dict(self.stored)

    def go_on(self, *_: object) -> None:
        """Train up to the next look, or to the end."""
        while self._deeds:
            number, deed = self._deeds.pop(0)
            if deed == "look":
                return
            self._do(number, deed)
        if not self.over:
            self.over = True
            self.logger.finish("completed")

    def _do(self, number: int, deed: Any) -> None:
        if deed == "keep":
            self._kept = self.logger.logger_state(), dict(self.stored)
        elif deed == "drain":
            self.logger.backend().drain()
        elif deed == "resume":
            # what was replaced before the checkpoint's step stays replaced
            state = self._kept[0] or {}
            self.logger.reattach(state)
            steps = state["steps"]
            self.stored = {(n, s): v for (n, s), v in self.stored.items() if s <= steps.get(n.partition("/")[0], -1)}
        else:
            step, context, names = deed
            self.logger.log_metrics(dict.fromkeys(names, number), step=step, context=context)
            self.stored.update({(f"{context}/{name}", step): number for name in names})


@settings(max_examples=120, deadline=None)
@given(st.lists(DEEDS, max_size=50), st.sampled_from([Target, Rewinding]))
@pytest.mark.filterwarnings("ignore:a resume has taken back", "ignore:run 'run' was resumed at")
def test_whatever_becomes_of_a_run_its_last_values_arrive_once(
    tmp_path_factory: pytest.TempPathFactory, deeds: list[Any], kind: type[Target]
) -> None:
    """Late, repeated and joined points, resumes that cut and log again, and looks between any two of these."""
    run = tmp_path_factory.mktemp("run") / "run"
    training, target, cursor = Training(run, deeds), kind(), Cursor()
    while not training.over:
        training.go_on()
        cursor = replay(run, target, since=Cursor.from_json(json.loads(json.dumps(cursor.to_json()))))

    check(target, training.stored)


@example([(0, "train", "a"), *["look"] * 4, "resume", (0, "validate", "a"), "look", (0, "validate", "a")], Target)
@settings(max_examples=250, deadline=None)
@given(st.lists(DEEDS, max_size=80), st.sampled_from([Target, Rewinding]))
@pytest.mark.filterwarnings("ignore:a resume has taken back", "ignore:run 'run' was resumed at")
def test_whatever_becomes_of_a_run_while_a_line_is_delivered_its_last_values_arrive_once(
    tmp_path_factory: pytest.TempPathFactory, deeds: list[Any], kind: type[Target]
) -> None:
    """The same while a follower is in the middle of a look, since its tracker is slow."""
    run = tmp_path_factory.mktemp("run") / "run"
    training, target = Training(run, deeds), kind()
    target.meanwhile = training.go_on
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plattli_source, "_WINDOW", 3)
        cursor = Cursor()
        while target.ended[-1:] != ["completed"]:  # a resume begins another follower
            cursor = Cursor.from_json(json.loads(json.dumps(cursor.to_json())) | {"finished": False})
            cursor = replay(run, target, since=cursor, follow=True, poll=0.0, progress=training.go_on)

    check(target, training.stored)


def check(target: Target, stored: dict[tuple[str, int], Any]) -> None:
    """Check that a logger has the last value of each point, was given none of them twice, and was finished once."""
    assert {place: target.values.get(place) for place in stored} == stored
    assert len(set(target.given)) == len(target.given)
    assert target.ended[-1] == "completed"
    assert {*target.ended[:-1]} <= {"error"}
    if isinstance(target, Rewinding):
        assert target.values.keys() == stored.keys()


def test_what_was_refused_is_known_after_a_pickle() -> None:
    """A tee or a driver in another process asks the error which metrics it is about."""
    error = pickle.loads(pickle.dumps(MetricValueError("no", metrics=["a", "b"])))

    assert error.metrics == {"a", "b"}
    assert str(error) == "no"


@pytest.mark.filterwarnings("ignore:a resume has taken back", "ignore:run 'run' was resumed at")
def test_a_kill_anywhere_hides_no_change_from_a_replay(tmp_path: Path) -> None:
    """A resume that cuts, late and repeated points, columns and the end: killed at each of their file operations."""
    logger = PlattliLogger(tmp_path / "before", hotsize=3)
    state: Any = None
    for step in range(9):
        logger.log_metrics({"a": step}, step=step)
        logger.log_metrics({"a": step}, step=step, context="validate")
        if step == 5:
            state = logger.logger_state()
    first = Target()
    noted = json.dumps(replay(tmp_path / "before", first).to_json())
    logger.backend().close()

    def program(run: Path, acknowledge: Any) -> None:
        again = PlattliLogger(run, hotsize=3)
        again.reattach(state)
        for step, value in ((6, 16), (2, 12), (7, 17), (7, 27), (3, 13), (8, 18), (9, 19)):
            again.log_metrics({"a": value}, step=step)
        again.finish("completed")

    killed = 0
    for n, run, _ in every_kill(program, tmp_path, prepare=tmp_path / "before"):
        killed += 1
        targets = Target(), Rewinding()
        cursors = Cursor.from_json(json.loads(noted)), Cursor.from_json(json.loads(noted))
        for target, cursor in zip(targets, cursors, strict=True):
            target.values, target.given = dict(first.values), list(first.given)
            replay(run, target, since=cursor)
            check_target(target, run, n)
        later = PlattliLogger(run, if_exists="append", hotsize=3)
        later.log_metrics({"a": -1}, step=4)
        later.finish("completed")
        for target, cursor in zip(targets, cursors, strict=True):
            replay(run, target, since=cursor)
            check_target(target, run, n)
    assert killed > 40


def check_target(target: Target, run: Path, n: int) -> None:
    """Each point of the run is in the target, and if it can forget, nothing else is."""
    stored: dict[tuple[str, int], Any] = {}
    with Reader(run) as reader:
        for name in ("train/a", "validate/a"):
            for step, value in zip(*reader.metric(name), strict=True):
                stored[name, int(step)] = value
    assert {place: target.values.get(place) for place in stored} == stored, n
    if isinstance(target, Rewinding):
        assert target.values.keys() == stored.keys(), n


@pytest.mark.parametrize("odd", [{"epoch": 2.5}, {"epoch": math.nan}, {"epoch": "first"}, {"epoch": -1, "loss": 0}])
def test_a_metric_may_be_called_like_an_axis(tmp_path: Path, odd: dict[str, Any]) -> None:
    """Epochs that are no integers, as some loops have them, are values like any other."""
    logger = PlattliLogger(tmp_path / "run")
    logger.log_metrics({"loss": 1.0, **odd}, step=1)
    logger.log_metrics(odd, step=2)
    replay(tmp_path / "run", PlattliLogger(tmp_path / "again"))
    for name in odd:
        with Reader(tmp_path / "run") as run, Reader(tmp_path / "again") as again:
            steps, values = run.metric(f"train/{name}", dtype="storage")
            found, same = again.metric(f"train/{name}", dtype="storage")
        assert found.tolist() == steps.tolist() == [1, 2]
        assert repr(same.tolist()) == repr(values.tolist())


def test_a_metric_called_like_an_axis_gets_another_value(tmp_path: Path) -> None:
    """That is told to those who have read it, whereas a second line of a step has its own time, and tells nothing."""
    logger = PlattliLogger(tmp_path / "run")
    for name in "loss", "acc":
        logger.log_metrics({name: 1.0}, step=1, epoch=3, context="validate")
    assert not (tmp_path / "run/.revisions").exists()
    logger.log_metrics({"loss": 1.0, "epoch": 3, "load/walltime": 5, "best/epoch": 2}, step=1)
    cursor = replay(tmp_path / "run", FileLogger(tmp_path / "calls"), finish=False)
    logger.log_metrics({"epoch": 4}, step=1, walltime=8.0)
    logger.log_metrics({"load/walltime": 6, "best/epoch": 1}, step=1, walltime=9.0)
    replay(tmp_path / "run", FileLogger(tmp_path / "after"), since=cursor, finish=False)
    (_, (row,), place), *more = calls(tmp_path / "after")
    assert not more
    assert (row, place["epoch"]) == ({"load/walltime": 6, "best/epoch": 1}, 4)
    logger.log_metrics({"epoch": 5}, step=1, walltime=10.0)
    replay(tmp_path / "run", FileLogger(tmp_path / "last"), since=cursor, finish=False)
    ((_, (row,), _),) = calls(tmp_path / "last")
    assert row == {"epoch": 5}


@pytest.mark.parametrize("largest", [300, 10**9])
def test_a_journal_that_is_replaced_by_what_it_says_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    """Who keeps up gets each value once, whoever looks rarely gets all last values, and it stays small."""
    monkeypatch.setattr(_revisions, "LARGEST", largest)
    run = tmp_path / "run"
    chance = random.Random(7)
    logger = PlattliLogger(run, hotsize=4)
    cursors = {"often": Cursor(), "rarely": Cursor(), "late": Cursor()}
    targets = {name: FileLogger(tmp_path / name) for name in cursors}
    warnings.filterwarnings("ignore", ".* cannot: it keeps what it has")
    state = logger.logger_state()
    for turn in range(400):
        names = chance.choice([("a",), ("b",), ("a", "b"), ("b", "a", "c")])
        step = turn // 3 if chance.random() < 0.7 else chance.randrange(60)
        logger.log_metrics(dict.fromkeys(names, turn), step=step)
        if turn == 200:
            state = logger.logger_state()
        if turn == 250:  # a resume, and what is cut comes again with other values
            logger.finish("error")
            logger = PlattliLogger(run, hotsize=4)
            logger.reattach(state)
        for name, cursor in cursors.items():
            if name == "often" or (name == "rarely" and turn % 40 == 0):
                replay(run, targets[name], since=cursor, finish=False)
    size = (run / _revisions.JOURNAL).stat().st_size
    logger.finish("completed")
    for name, cursor in cursors.items():
        replay(run, targets[name], since=Cursor.from_json(cursor.to_json()))
    with Reader(run) as reader:
        for metric in ("train/a", "train/b", "train/c"):
            steps, values = reader.metric(metric)
            stored = dict(zip(steps.tolist(), values.tolist(), strict=True))
            for name in cursors:
                received = points(tmp_path / name)[metric]
                assert {step: v for step, v in dict(received).items() if step in stored} == stored
                if name == "often":
                    assert len({*received}) == len(received)
    if largest == 300:
        assert size < 3000
    else:
        assert size > 5000


def test_a_journal_says_names_once(tmp_path: Path) -> None:
    """A program that logs a step again and again has no file that grows by all its names."""
    logger = PlattliLogger(tmp_path / "run")
    metrics = {f"a_metric_with_a_long_name_{number}": 1.0 for number in range(100)}
    for _ in range(1001):
        logger.log_metrics(metrics, step=5)
    assert (tmp_path / "run" / _revisions.JOURNAL).stat().st_size < 30_000
    found, end = _revisions.read(tmp_path / "run", 0, begun=False)
    assert [(len(r.names), list(r.steps)) for r in found] == [(100, [5])]
    half = _revisions.read(tmp_path / "run", end - 23, begun=False)
    assert [(len(r.names), list(r.steps)) for r in half[0]] == [(100, [5])]
    assert half[1] == end
