"""loggers.session: a driver's duties."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

from loggers import JSONLogger, PlattliLogger, TrainingSession
from loggers._sigterm import Terminated
from loggers.errors import (
    LoggerFinishedError,
    MetricValueError,
    MissingVerbError,
    NoPathError,
    RecordError,
    RunExistsError,
    RunLockedError,
    SessionError,
    StatusError,
    StepError,
)
from plattli import run_info


class Recorder:
    """Notes every verb call; fails where it is told to."""

    def __init__(self, failing=None, error=None):
        self.calls = []
        self.failing = failing
        self.error = error

    def _note(self, verb, *args):
        if verb == self.failing:
            raise self.error
        self.calls.append((verb, *args))

    def log_metrics(self, metrics, *, step, epoch=None, context="train", **axes):
        self._note("log_metrics", context, epoch, step, dict(metrics))

    def log_params(self, params):
        self._note("log_params", params)

    def log_tags(self, tags):
        self._note("log_tags", tags)

    def log_other(self, key, value):
        self._note("log_other", key, value)

    def log_confusion(self, matrix, labels, *, epoch=None, step=None, context=None, name="confusion"):
        self._note("log_confusion", matrix, labels)

    def finish(self, status):
        self._note("finish", status)

    @property
    def lines(self):
        return [call[1:] for call in self.calls if call[0] == "log_metrics"]

    @property
    def statuses(self):
        return [call[1] for call in self.calls if call[0] == "finish"]


class Keeper(Recorder):
    """Has state, and may hold a run already that wants to be reattached first."""

    def __init__(self, exists=False):
        super().__init__()
        self.exists = exists

    def _note(self, verb, *args):
        if self.exists:
            raise RunExistsError("there is a run here: reattach it, append to it, or replace it")
        super()._note(verb, *args)

    def logger_state(self):
        return {"at": len(self.calls)}

    def reattach(self, state):
        self.exists = False
        self.calls.append(("reattach", state))


def record_of(lgr, *, step, epoch):
    """Return the session record of a run that has come so far."""
    session = TrainingSession(lgr)
    session.step, session.epoch = step, epoch
    return json.loads(json.dumps(session.checkpoint_record()))


def run(lgr, *steps, **options):
    """Enter a session and let each step do something with it."""
    with TrainingSession(lgr, **options) as session:
        for step in steps:
            step(session)


def raiser(error):
    """Return a step that raises."""

    def step(session):
        raise error

    return step


# --- lines ---------------------------------------------------------------------------------------------


def test_a_loop_becomes_a_driver():
    """Params and tags first, then lines at steps and epochs counted from one, then one finish."""
    lgr = Recorder()
    with TrainingSession(lgr, params={"lr": 0.1}, tags=["a"]) as session:
        while session.epoch <= 2:
            for loss in (0.5, 0.25):
                session.train({"loss": loss})
            session.validate({"loss": 1.0})
            session.data({"data_wait_frac": 0.5})
            session.next_epoch()

    assert lgr.calls == [
        ("log_params", {"lr": 0.1}),
        ("log_tags", ["a"]),
        ("log_metrics", "train", 1, 1, {"loss": 0.5}),
        ("log_metrics", "train", 1, 2, {"loss": 0.25}),
        ("log_metrics", "validate", 1, 2, {"loss": 1.0}),
        ("log_metrics", "data", 1, 2, {"data_wait_frac": 0.5}),
        ("log_metrics", "train", 2, 3, {"loss": 0.5}),
        ("log_metrics", "train", 2, 4, {"loss": 0.25}),
        ("log_metrics", "validate", 2, 4, {"loss": 1.0}),
        ("log_metrics", "data", 2, 4, {"data_wait_frac": 0.5}),
        ("finish", "completed"),
    ]


def test_params_are_logged_before_anything_can_fail():
    """At the head of the block."""
    lgr, at_the_head = Recorder(), []
    with pytest.raises(ZeroDivisionError):
        run(lgr, lambda _: at_the_head.extend(lgr.calls), raiser(ZeroDivisionError()), params={"lr": 0.1}, tags="a")

    assert at_the_head == [("log_params", {"lr": 0.1}), ("log_tags", "a")]


def test_only_train_lines_are_thinned():
    """Every step counts, multiples of n are written."""
    lgr = Recorder()
    with TrainingSession(lgr, log_every_n_steps=3) as session:
        for _ in range(7):
            session.train({"loss": 1.0})
            session.validate({"loss": 2.0})

    assert [step for context, _, step, _ in lgr.lines if context == "train"] == [3, 6]
    assert [step for context, _, step, _ in lgr.lines if context == "validate"] == [1, 2, 3, 4, 5, 6, 7]


def test_a_step_that_is_not_logged_reads_nothing():
    """Not even the values, which may be on a device."""

    class Costly:
        def __float__(self):
            raise AssertionError("read a value of a line that is not written")

    with TrainingSession(Recorder(), log_every_n_steps=2) as session:
        session.train({"loss": Costly()}, schedules={"lr": Costly()})

    assert session.step == 1


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None])
def test_log_every_n_steps_is_a_positive_int(n):
    """Refused where it is given."""
    with pytest.raises(StepError, match=r"^log_every_n_steps must be a positive int, got "):
        TrainingSession(None, log_every_n_steps=n)


def test_schedules_go_on_the_train_line():
    """Under their path; what is no real number stays away."""
    lgr = Recorder()
    with TrainingSession(lgr) as session:
        session.train(
            {"loss": 0.5},
            schedules={
                "lr": np.float32(0.5),
                "backbone": {"eta": 3, "decay": {"w": 0.25}},
                "name": "cosine",
                "none": None,
                "list": [1.0],
                "bad": 1j,
            },
        )

    assert lgr.lines[0][-1] == {
        "loss": 0.5,
        "schedule/lr": 0.5,
        "schedule/backbone/eta": 3,
        "schedule/backbone/decay/w": 0.25,
    }


def test_nonfinite_values_are_left_out_of_train_and_validate_lines():
    """Counted by context and name, with one warning each; the data line is left alone."""
    lgr = Recorder()
    with TrainingSession(lgr) as session:
        with pytest.warns(RuntimeWarning, match=r"^train/loss is nan at step 1: left out of the line, ") as caught:
            session.train({"loss": math.nan, "acc": 0.5, "text": "x"}, schedules=None)
        session.train({"loss": np.float32("inf"), "acc": 0.5})
        with pytest.warns(RuntimeWarning, match="validate/loss is -inf at step 2"):
            session.validate({"loss": -math.inf})
        with pytest.warns(RuntimeWarning, match="train/schedule/lr is nan at step 3"):
            session.train({"loss": 1}, schedules={"lr": math.nan})
        session.data({"data_wait_frac": math.inf})

    assert [warning.filename for warning in caught] == [__file__]
    assert session.dropped_nonfinite == {"train/loss": 2, "validate/loss": 1, "train/schedule/lr": 1}
    assert lgr.lines == [
        ("train", 1, 1, {"acc": 0.5, "text": "x"}),
        ("train", 1, 2, {"acc": 0.5}),
        ("train", 1, 3, {"loss": 1}),
        ("data", 1, 3, {"data_wait_frac": math.inf}),
    ]


def test_the_line_is_logged_before_anybody_is_warned():
    """Where warnings are errors, the finite values are stored all the same."""
    lgr = Recorder()
    with warnings.catch_warnings(), TrainingSession(lgr) as session:
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            session.train({"loss": math.nan, "acc": 0.5})

    assert lgr.lines == [("train", 1, 1, {"acc": 0.5})]


def test_values_that_are_no_numbers_reach_the_logger(tmp_path):
    """It may know them; if not, it says so after the others are stored."""
    picture = object()
    lgr = Recorder()
    with TrainingSession(lgr) as session:
        session.train({"loss": 0.5, "picture": picture})
    with pytest.raises(MetricValueError, match=r"^1 value of the validate line of step 0 .* 'picture': got object"):
        run(JSONLogger(tmp_path / "log.jsonl"), lambda session: session.validate({"picture": picture, "loss": 0.5}))

    assert lgr.lines[0][-1] == {"loss": 0.5, "picture": picture}
    assert '"loss":0.5' in (tmp_path / "log.jsonl").read_text()


def test_no_logger_is_a_logger():
    """The counters go on counting."""
    with TrainingSession(None, params={"lr": 0.1}, tags="a") as session:
        session.resume(None)
        session.train({"loss": 1.0})
        session.next_epoch()

    assert session.checkpoint_record() == {"step": 1, "epoch": 2, "logger": None, "version": 1}


# --- how a run ends ----------------------------------------------------------------------------------------


def test_a_session_can_stop_early():
    """The loop sees it, and finish gets the status."""
    lgr = Recorder()
    with TrainingSession(lgr) as session:
        while not session.stopped:
            session.train({"loss": 1.0})
            if session.step == 3:
                session.stop("early_stop")

    assert lgr.statuses == ["early_stop"]
    assert session.step == 3


@pytest.mark.parametrize("status", ["error", "interrupted", "done", None])
def test_a_session_stops_in_two_ways(status):
    """The others have other causes."""
    session = TrainingSession(None)
    with pytest.raises(StatusError, match="a session stops as 'early_stop' or 'completed', got "):
        session.stop(status)

    assert not session.stopped


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "error"),
        (GeneratorExit(), "error"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "interrupted"),
        (SystemExit("sorry"), "interrupted"),
    ],
)
def test_an_exception_ends_the_run_and_goes_on(error, status):
    """Also after stop(); finish is called once."""
    lgr = Recorder()
    with pytest.raises(type(error)) as caught:
        run(lgr, lambda session: session.stop("completed"), raiser(error))

    assert caught.value is error
    assert lgr.statuses == [status]


def test_a_finish_that_fails_does_not_hide_why_the_run_ended():
    """It is a note on the exception; without one it is raised itself."""
    with pytest.raises(ZeroDivisionError) as caught, TrainingSession(Recorder("finish", OSError("disk full"))):
        raise ZeroDivisionError
    with pytest.raises(OSError, match=r"^disk full$"), TrainingSession(Recorder("finish", OSError("disk full"))):
        pass

    assert caught.value.__notes__ == [f"and finish('error') of {__name__}.Recorder failed: OSError('disk full')"]


def test_params_that_fail_end_the_run():
    """The block is not entered, the run is finished as an error, and SIGTERM is as it was."""
    before = signal.getsignal(signal.SIGTERM)
    lgr = Recorder("log_params", OSError("disk full"))
    with pytest.raises(OSError, match="disk full"), TrainingSession(lgr, params={}):
        raise AssertionError("the block must not be entered")

    assert lgr.statuses == ["error"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_logger_is_checked_before_training_starts():
    """A missing verb is found before params are logged, and nothing is finished."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(MissingVerbError, match="is used as a logger and lacks log_params, log_tags, "):
        TrainingSession(object(), params={}).__enter__()
    with pytest.raises(MissingVerbError):
        TrainingSession(object()).resume(None)

    assert signal.getsignal(signal.SIGTERM) is before


def test_lines_belong_inside_the_block():
    """Outside nothing would finish the run."""
    session = TrainingSession(Recorder())
    verbs = (lambda: session.train({}), lambda: session.validate({}), lambda: session.data({}))
    for verb in verbs:
        with pytest.raises(SessionError, match=r"\(\) outside the session's block: write `with session:` around"):
            verb()
    with session:
        pass
    for verb in verbs:
        with pytest.raises(SessionError):
            verb()
    with pytest.raises(SessionError, match="a session is entered once"):
        session.__enter__()
    with pytest.raises(SessionError, match="cannot resume at step 0"):
        session.resume(None)

    assert session.step == 0
    assert session.logger.statuses == ["completed"]


def test_a_logger_that_was_finished_by_hand_is_heard():
    """The second finish is the logger's to refuse."""

    class Once(Recorder):
        def finish(self, status):
            if self.statuses:
                raise LoggerFinishedError("finished before")
            super().finish(status)

    lgr = Once()
    with pytest.raises(LoggerFinishedError), TrainingSession(lgr):
        lgr.finish("completed")


# --- directories -------------------------------------------------------------------------------------------


def test_a_pathless_logger_gets_the_directory(tmp_path):
    """Before its first verb, on every way in; loggers without a place of their own need not care."""
    with TrainingSession(JSONLogger(), params={"lr": 0.1}, directory=tmp_path / "a"):
        pass
    session = TrainingSession(JSONLogger(), params={"lr": 0.1}, directory=tmp_path / "b")
    session.resume(None)
    with session, TrainingSession(Recorder(), directory=tmp_path / "c"):
        pass

    expected = '{"type":"params","lr":0.1}\n{"type":"finish","status":"completed"}\n'
    assert [(tmp_path / run / "metrics.jsonl").read_text() for run in "ab"] == [expected, expected]
    assert not (tmp_path / "c").exists()


def test_a_pathless_logger_without_a_directory_is_an_error():
    """Before the first step."""
    with pytest.raises(NoPathError), TrainingSession(JSONLogger(), params={}):
        raise AssertionError("the block must not be entered")


# --- resuming ----------------------------------------------------------------------------------------------


def test_a_record_is_plain_json():
    """Step, epoch and the logger's own record."""
    with TrainingSession(Keeper()) as session:
        session.train({"loss": 1.0})
        session.next_epoch()

        assert session.checkpoint_record() == {
            "step": 1,
            "epoch": 2,
            "logger": {"logger": f"{__name__}.Keeper", "state": {"at": 1}, "version": 1},
            "version": 1,
        }


@pytest.mark.parametrize("where", ["before", "inside"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_session_goes_on_where_the_record_was_taken(where, exists):
    """Reattach, then the params, then lines; before the block or inside it."""
    lgr = Keeper(exists)
    session = TrainingSession(lgr, params={"lr": 0.1}, tags="a")
    record = record_of(Keeper(), step=40, epoch=3)
    if where == "before":
        session.resume(record)
    with session:
        if where == "inside":
            session.resume(record)
        session.train({"loss": 1.0})

    assert lgr.calls[-5:] == [
        ("reattach", {"at": 0}),
        ("log_params", {"lr": 0.1}),
        ("log_tags", "a"),
        ("log_metrics", "train", 3, 41, {"loss": 1.0}),
        ("finish", "completed"),
    ]
    assert len(lgr.calls) == (7 if where == "inside" and not exists else 5)


def test_without_a_record_a_session_starts_afresh():
    """The params are logged once, before the block or inside it."""
    before, inside = Recorder(), Recorder()
    session = TrainingSession(before, params={"lr": 0.1})
    session.resume(None)
    with session:
        session.train({})
    with TrainingSession(inside, params={"lr": 0.1}) as session:
        session.resume(None)
        session.train({})

    assert (
        before.calls
        == inside.calls
        == [("log_params", {"lr": 0.1}), ("log_metrics", "train", 1, 1, {}), ("finish", "completed")]
    )


def test_a_logger_without_state_goes_on_with_step_and_epoch(tmp_path):
    """The file is appended to, and the params are not repeated within one process."""
    path = tmp_path / "log.jsonl"
    with TrainingSession(JSONLogger(path), params={"lr": 0.1}) as session:
        session.resume(record_of(JSONLogger(path), step=40, epoch=3))
        session.train({"loss": 1.0})

    assert path.read_text().splitlines() == [
        '{"type":"params","lr":0.1}',
        '{"type":"metrics","context":"train","epoch":3,"step":41,"loss":1.0}',
        '{"type":"finish","status":"completed"}',
    ]


@pytest.mark.parametrize("params", [{"lr": 0.1}, None])
def test_an_existing_run_that_nobody_resumes_is_an_error_at_the_first_line(params):
    """It is left alone: nothing is written into it, and it is not finished."""
    lgr = Keeper(exists=True)
    lgr.finish = lgr.calls.append
    with pytest.raises(RunExistsError, match="reattach it"), TrainingSession(lgr, params=params) as session:
        session.train({"loss": 1.0})

    assert lgr.calls == []


def test_an_existing_run_is_an_error_in_a_fresh_start():
    """resume(None) says that there is nothing to go on with."""
    with pytest.raises(RunExistsError):
        TrainingSession(Keeper(exists=True), params={}).resume(None)


def test_an_existing_run_is_an_error_at_the_end_of_an_empty_block():
    """The params were never taken, and that is not kept quiet."""
    lgr = Keeper(exists=True)
    lgr.finish = lgr.calls.append
    with pytest.raises(RunExistsError), TrainingSession(lgr, params={}):
        pass

    assert lgr.calls == []


@pytest.mark.parametrize("params", [None, {"lr": 1}])
def test_a_run_that_another_writes_is_not_finished_by_who_was_refused(tmp_path, params):
    """Not even if the other process ends its run in between, so that it is free."""
    run = tmp_path / "run"
    program = (
        "import sys; from loggers import PlattliLogger; logger = PlattliLogger(sys.argv[1]); "
        "logger.log_metrics({'loss': 1.0}, step=1); print('ready', flush=True); input(); logger.finish('completed')"
    )
    command = [sys.executable, "-c", program, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

        class Late(PlattliLogger):
            def log_params(self, params):
                self._try(super().log_params, params)

            def log_metrics(self, metrics, **axes):
                self._try(super().log_metrics, metrics, **axes)

            def _try(self, verb, *args, **kwargs):
                try:
                    verb(*args, **kwargs)
                except RunLockedError:
                    other.communicate("go\n")
                    raise

        assert other.stdout.readline() == "ready\n"
        session = TrainingSession(Late(run, if_exists="append"), params=params)
        with pytest.raises(RunLockedError), session:
            session.train({"loss": 2.0})
        assert other.returncode == 0

    assert run_info(run).status == "completed"
    assert (run / "metrics.plattli").exists()


def test_an_error_before_resume_leaves_an_existing_run_alone():
    """Loading the checkpoint failed; the run there is not ours to mark."""
    lgr = Keeper(exists=True)
    lgr.finish = lgr.calls.append
    with pytest.raises(ZeroDivisionError), TrainingSession(lgr, params={}):
        raise ZeroDivisionError

    assert lgr.calls == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 2}, "the session record has version 2, and this release reads up to 1"),
        ({"step": -1}, "the session record is damaged: step must be a non-negative integer, got -1 (int)"),
        ({"epoch": 1.5}, "the session record is damaged: epoch must be"),
        ({"epoch": None}, "the session record is damaged: its epoch is None"),
        ({"logger": {"logger": "a.B", "state": 1, "version": 1}}, "logger record is of a.B, and this run's logger is"),
    ],
)
def test_bad_records_change_nothing(change, expected):
    """Neither the counters nor the logger; the right record can follow."""
    lgr = Keeper()
    session = TrainingSession(lgr, params={})
    record = record_of(Keeper(), step=40, epoch=3)
    with pytest.raises(RecordError) as caught:
        session.resume({**record, **change})

    assert expected in str(caught.value)
    assert (session.step, session.epoch, lgr.calls) == (0, 1, [])
    session.resume(record)
    assert session.step == 40


def test_a_record_that_is_none_is_refused():
    """A checkpoint's other parts, handed over by mistake."""
    with pytest.raises(RecordError, match="not a session record: it lacks epoch, logger, version and has 'step'"):
        TrainingSession(None).resume({"step": 3})


def test_a_running_session_cannot_be_resumed():
    """Steps that are logged would be cut from under it."""
    with TrainingSession(Keeper()) as session:
        session.validate({"loss": 1.0})
        with pytest.raises(SessionError, match="cannot resume at step 0: resume once, before the first step"):
            session.resume(None)


# --- SIGTERM -------------------------------------------------------------------------------------------------


@pytest.fixture
def sigterm():
    """Put SIGTERM back as it was, whatever the test does to it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_interrupts_the_run(sigterm):
    """As an exception that ends the process with 143, and the handler is gone afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    lgr = Recorder()
    with pytest.raises(Terminated) as caught:
        run(
            lgr,
            lambda session: session.train({"loss": 1.0}),
            lambda session: signal.raise_signal(signal.SIGTERM),
            raiser(AssertionError("SIGTERM must end the block")),
        )

    assert caught.value.code == 143
    assert lgr.statuses == ["interrupted"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_terminated_process_says_so_in_its_log(tmp_path):
    """Killed from outside: the last line is there, and the shell sees 143."""
    code = (
        "import sys, loggers\n"
        "with loggers.TrainingSession(loggers.JSONLogger(), directory=sys.argv[1]) as session:\n"
        "    while True:\n"
        "        session.train({'loss': 1.0})\n"
        "        print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        child.terminate()
        child.stdout.read()
        returned = child.wait()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    assert returned == 143
    assert lines[-1] == {"type": "finish", "status": "interrupted"}
    assert [line["step"] for line in lines[:-1]] == list(range(1, len(lines)))


def test_sigterm_inside_a_verb_waits_for_its_end(sigterm):
    """No logger is torn out of half a line."""

    class Signalled(Recorder):
        def log_metrics(self, metrics, **place):
            signal.raise_signal(signal.SIGTERM)
            super().log_metrics(metrics, **place)

    lgr = Signalled()
    with pytest.raises(Terminated), TrainingSession(lgr) as session:
        session.train({"loss": 1.0})

    assert [call[0] for call in lgr.calls] == ["log_metrics", "finish"]
    assert lgr.statuses == ["interrupted"]


def test_a_session_that_ended_beneath_another_is_out_of_its_way(sigterm):
    """Sessions need not end in the order in which they began; the handler of before them comes back in any case."""
    first, lgr = TrainingSession(None), Recorder()
    first.__enter__()
    with pytest.raises(Terminated), TrainingSession(lgr):
        first.__exit__(None, None, None)
        signal.raise_signal(signal.SIGTERM)

    assert lgr.statuses == ["interrupted"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_sigterm_does_not_wait(sigterm):
    """A verb that hangs must not keep the process alive."""

    class Hanging(Recorder):
        def log_metrics(self, metrics, **place):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the second must get through")

    lgr = Hanging()
    with pytest.raises(Terminated), TrainingSession(lgr) as session:
        session.train({"loss": 1.0})

    assert lgr.statuses == ["interrupted"]


def test_sigterm_while_finishing_waits_for_the_end_too(sigterm):
    """The run is finished with its own status, then the signal does what it would have done."""
    got = []

    class Signalled(Recorder):
        def finish(self, status):
            signal.raise_signal(signal.SIGTERM)
            super().finish(status)

    code = (
        "import signal, loggers\n"
        "class Slow(loggers.JSONLogger):\n"
        "    def finish(self, status):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "        super().finish(status)\n"
        "with loggers.TrainingSession(Slow('/dev/stdout')):\n"
        "    pass\n"
        "print('not reached', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    lgr = Signalled()
    with TrainingSession(lgr):
        pass

    assert done.returncode == -signal.SIGTERM
    assert done.stdout == '{"type":"finish","status":"completed"}\n'
    assert got == [signal.SIGTERM]
    assert lgr.statuses == ["completed"]


def test_a_handler_that_was_there_decides(sigterm):
    """It is called; if it returns, the loop goes on, and only the status tells."""
    got = []
    theirs = lambda number, frame: got.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, theirs)
    lgr, stopped = Recorder(), Recorder()
    with TrainingSession(lgr) as session:
        signal.raise_signal(signal.SIGTERM)
        session.train({"loss": 1.0})
    with TrainingSession(stopped) as session:
        signal.raise_signal(signal.SIGTERM)
        session.stop("early_stop")

    assert got == [signal.SIGTERM] * 2
    assert len(lgr.lines) == 1
    assert lgr.statuses == ["interrupted"]
    assert stopped.statuses == ["early_stop"]
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_sessions_inside_each_other_are_both_interrupted(sigterm):
    """The inner one asks the outer one's handler, which raises."""
    outer, inner = Recorder(), Recorder()
    with pytest.raises(Terminated), TrainingSession(outer), TrainingSession(inner):
        signal.raise_signal(signal.SIGTERM)

    assert outer.statuses == inner.statuses == ["interrupted"]


def test_an_ignored_sigterm_stays_ignored(sigterm):
    """Somebody wanted it so."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with TrainingSession(Recorder()):
        signal.raise_signal(signal.SIGTERM)

        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_handler_put_on_top_stays(sigterm):
    """Leaving the session does not remove what somebody installed inside it, nor break what it calls."""
    code = (
        "import signal, loggers\n"
        "with loggers.TrainingSession(None):\n"
        "    ours = signal.getsignal(signal.SIGTERM)\n"
        "    signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))\n"
        "print('left', flush=True)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('not reached', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "left\n"
    assert done.returncode == -signal.SIGTERM


def test_another_thread_leaves_sigterm_alone():
    """Only the main thread can watch it; the session works all the same."""
    before = signal.getsignal(signal.SIGTERM)
    lgr = Recorder()
    seen = []

    def loop():
        with TrainingSession(lgr) as session:
            session.train({"loss": 1.0})
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()

    assert seen == [before]
    assert lgr.statuses == ["completed"]


def test_a_loop_may_count_its_own_steps_and_have_no_epochs():
    """The numbers are as it says, the record has them, and the next process goes on from it."""
    logger = Recorder()
    with TrainingSession(logger, epochs=False) as session:
        session.train({"loss": 1.0}, step=0)
        session.train({"loss": 0.5}, step=10)
        session.validate({"loss": 0.25}, step=12)
        session.other("report", "good")
        record = json.loads(json.dumps(session.checkpoint_record()))
        for step in (-1, 0.5, "7"):
            with pytest.raises(StepError):
                session.train({"loss": 1.0}, step=step)
        assert session.step == 12
    again = TrainingSession(Recorder(), epochs=False)
    again.resume(record)

    assert logger.calls == [
        ("log_metrics", "train", None, 0, {"loss": 1.0}),
        ("log_metrics", "train", None, 10, {"loss": 0.5}),
        ("log_metrics", "validate", None, 12, {"loss": 0.25}),
        ("log_other", "report", "good"),
        ("finish", "completed"),
    ]
    assert (record["step"], record["epoch"], again.step) == (12, None, 12)
    with pytest.raises(RecordError, match="epoch is None"):
        TrainingSession(Recorder()).resume(record)


def test_a_line_with_a_value_that_is_refused_still_tells_of_nan():
    """Both are said: the one as an error, the other as a warning."""
    with (
        TrainingSession(JSONLogger("/dev/null")) as session,
        pytest.warns(RuntimeWarning, match="train/bad is nan"),
        pytest.raises(MetricValueError, match="model"),
    ):
        session.train({"loss": 1.0, "bad": math.nan, "model": object()})
