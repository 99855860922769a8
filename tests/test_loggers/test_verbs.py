"""loggers.verbs: the verbs as functions."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

import loggers
from loggers import verbs
from loggers.contract import VERBS
from loggers.errors import MissingVerbError, VerbSignatureError

REQUIRED = ("log_params", "log_tags", "log_metrics", "log_other", "log_confusion", "finish")


class Recorder:
    """Has the ten verbs and notes every call."""

    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, *, step, epoch=None, context="train", **axes):
        self.calls.append(("log_metrics", metrics, step, epoch, context, axes))

    def log_params(self, params):
        self.calls.append(("log_params", params))

    def log_tags(self, tags):
        self.calls.append(("log_tags", tags))

    def log_other(self, key, value):
        self.calls.append(("log_other", key, value))

    def log_confusion(self, matrix, labels, *, epoch=None, step=None, context=None, name="confusion"):
        self.calls.append(("log_confusion", matrix, labels, epoch, step, context, name))

    def finish(self, status):
        self.calls.append(("finish", status))

    def run_id(self):
        return "id"

    def run_url(self):
        return "url"

    def logger_state(self):
        return {"at": 3}

    def reattach(self, state):
        self.calls.append(("reattach", state))

    def backend(self):
        return self.calls

    def logger_info(self):
        return {"calls": len(self.calls)}


class Bare:
    """Has the verbs that every logger must have, and no other."""

    log_metrics, log_params, log_tags = Recorder.log_metrics, Recorder.log_params, Recorder.log_tags
    log_other, log_confusion, finish = Recorder.log_other, Recorder.log_confusion, Recorder.finish


class Tracker:
    """Somebody else's object, whose ``finish`` means something else."""

    def __init__(self):
        self.sent = []

    def finish(self, exit_code: int = 0):
        raise AssertionError("this finish takes an exit code")


class SpecialTracker(Tracker):
    pass


class Unspeakable:
    """Can be called, and inspect cannot tell how."""

    __signature__ = "as in some extension modules"

    def __call__(self, status):
        pass


@pytest.fixture
def registry():
    """Undo registrations of the test."""
    yield
    for cls in (Tracker, SpecialTracker, Recorder, Bare):
        verbs._registered.pop(cls, None)


def call_all(lgr):
    loggers.log_params(lgr, {"lr": 0.1})
    loggers.log_tags(lgr, "a")
    loggers.log_metrics(lgr, {"loss": 1.0}, step=4, epoch=1, context="validate", walltime=2.0)
    loggers.log_other(lgr, "report", "fine")
    loggers.log_confusion(lgr, [[1]], ["a"], epoch=1, step=4, context="validate", name="cm")
    loggers.reattach(lgr, {"at": 3})
    loggers.finish(lgr, "completed")


def test_functions_call_the_methods():
    """Every argument arrives as it was given."""
    recorder = Recorder()
    call_all(recorder)

    assert recorder.calls == [
        ("log_params", {"lr": 0.1}),
        ("log_tags", "a"),
        ("log_metrics", {"loss": 1.0}, 4, 1, "validate", {"walltime": 2.0}),
        ("log_other", "report", "fine"),
        ("log_confusion", [[1]], ["a"], 1, 4, "validate", "cm"),
        ("reattach", {"at": 3}),
        ("finish", "completed"),
    ]
    assert loggers.run_id(recorder) == "id"
    assert loggers.run_url(recorder) == "url"
    assert loggers.logger_state(recorder) == {"at": 3}
    assert loggers.backend(recorder) is recorder.calls
    assert loggers.logger_info(recorder) == {"calls": 7}


def test_none_logs_nothing():
    """Every verb of None does nothing, and every answer is empty."""
    call_all(None)
    loggers.check_logger(None)

    assert loggers.run_id(None) is None
    assert loggers.run_url(None) is None
    assert loggers.logger_state(None) is None
    assert loggers.backend(None) is None
    assert loggers.logger_info(None) == {}


def test_verbs_without_data_default_to_nothing():
    """A logger may leave out what only answers questions."""
    bare = Bare()

    assert loggers.run_id(bare) is None
    assert loggers.run_url(bare) is None
    assert loggers.logger_state(bare) is None
    assert loggers.logger_info(bare) == {}
    assert loggers.backend(bare) is bare
    loggers.reattach(bare, None)
    with pytest.raises(MissingVerbError, match="lacks reattach"):
        loggers.reattach(bare, {"at": 3})


@pytest.mark.parametrize("verb", REQUIRED)
def test_a_missing_verb_is_an_error_at_the_call(verb):
    """Nothing is dropped unnoticed, whichever verb it is."""
    lgr = types.SimpleNamespace(**{name: getattr(Recorder(), name) for name in REQUIRED if name != verb})
    calls = {
        "log_params": lambda: loggers.log_params(lgr, {}),
        "log_tags": lambda: loggers.log_tags(lgr, "a"),
        "log_metrics": lambda: loggers.log_metrics(lgr, {}, step=1),
        "log_other": lambda: loggers.log_other(lgr, "k", 1),
        "log_confusion": lambda: loggers.log_confusion(lgr, [[1]], ["a"]),
        "finish": lambda: loggers.finish(lgr, "completed"),
    }
    with pytest.raises(MissingVerbError, match=rf"^types\.SimpleNamespace is used as a logger and lacks {verb}: "):
        calls.pop(verb)()
    for call in calls.values():
        call()


def test_the_message_says_what_to_define():
    """With the arguments that drivers pass, ready to be copied."""
    with pytest.raises(MissingVerbError) as caught:
        loggers.log_metrics(object(), {}, step=1)

    assert str(caught.value) == (
        "builtins.object is used as a logger and lacks log_metrics: "
        "define log_metrics(self, metrics, *, step, epoch=None, context='train', **axes) as a method "
        "(one that does nothing, if there is nothing to do), or register_verbs() for the type"
    )


@pytest.mark.parametrize("path", ["runs/a", Path("runs/a")])
def test_a_path_is_told_which_logger_it_wants(path):
    """The first thing that somebody tries."""
    with pytest.raises(MissingVerbError) as caught, loggers.TrainingSession(path):
        raise AssertionError("the block must not be entered")

    assert str(caught.value) == "got 'runs/a', a path, for a logger: pass PlattliLogger('runs/a'), or another one"


def test_an_attribute_that_cannot_be_called_is_no_verb():
    """A tracker's ``run_id`` string is not the verb of that name."""
    assert loggers.run_id(types.SimpleNamespace(run_id="abc")) is None


def test_a_foreign_type_can_be_given_verbs(registry):
    """Its subclasses have them too, and its own method of a verb's name stays out of it."""
    loggers.register_verbs(
        Tracker,
        log_metrics=lambda lgr, metrics, *, step, **axes: lgr.sent.append((metrics, step, axes["context"])),
        finish=lambda lgr, status: lgr.sent.append(status),
        run_id=lambda lgr: "tracker-1",
    )
    loggers.register_verbs(SpecialTracker, run_id=lambda lgr: "special-1")
    tracker = SpecialTracker()

    loggers.log_metrics(tracker, {"loss": 1.0}, step=2)
    loggers.finish(tracker, "completed")

    assert tracker.sent == [({"loss": 1.0}, 2, "train"), "completed"]
    assert loggers.run_id(Tracker()) == "tracker-1"
    assert loggers.run_id(tracker) == "special-1"
    with pytest.raises(MissingVerbError, match="lacks log_params"):
        loggers.log_params(tracker, {})


def test_a_type_with_verbs_of_its_own_keeps_them(registry):
    """What its own package defines wins over what is registered for it, base classes included."""

    def never(lgr, *args, **kwargs):
        raise AssertionError("the type's own verb must win")

    loggers.register_verbs(Recorder, log_params=never, run_id=never)
    recorder = Recorder()
    loggers.log_params(recorder, {"lr": 0.1})

    assert recorder.calls == [("log_params", {"lr": 0.1})]
    assert loggers.run_id(recorder) == "id"


def test_only_verbs_can_be_registered():
    """A misspelt verb would never be called."""
    with pytest.raises(MissingVerbError, match=r"cannot register 'log_metric' for .*Tracker: the verbs are log_params"):
        loggers.register_verbs(Tracker, log_metric=print)


# --- check_logger -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lgr", [Recorder(), Bare(), loggers.JSONLogger("never-written.jsonl")])
def test_check_logger_accepts_loggers(lgr):
    """And calls none of their verbs."""
    loggers.check_logger(lgr)

    assert getattr(lgr, "calls", []) == []


def test_check_logger_names_every_missing_verb():
    """Before training starts, not one by one during it."""
    with pytest.raises(MissingVerbError) as caught:
        loggers.check_logger(types.SimpleNamespace(log_metrics=Recorder().log_metrics, log_tags=print))

    assert "lacks log_params, log_other, log_confusion, finish: define log_params(self, params); " in str(caught.value)


def test_check_logger_wants_an_instance():
    """The class has all the verbs, and none of them works."""
    with pytest.raises(MissingVerbError, match=r"is the class loggers\..*JSONLogger itself: pass an instance"):
        loggers.check_logger(loggers.JSONLogger)


@pytest.mark.parametrize(
    ("verb", "method", "expected"),
    [
        ("log_metrics", lambda self, metrics, step: None, "(got an )?unexpected keyword argument 'epoch'"),
        (
            "log_metrics",
            lambda self, metrics, *, step, epoch=None, context="train": None,
            "(got an )?unexpected keyword argument 'walltime'",
        ),
        ("log_metrics", lambda self, metrics, *, step, run, **axes: None, "missing a required.* argument: 'run'"),
        ("log_confusion", lambda self, matrix, labels: None, "(got an )?unexpected keyword argument 'epoch'"),
        ("log_other", lambda self, value: None, "too many positional arguments"),
        ("finish", lambda self: None, "too many positional arguments"),
        ("reattach", lambda self: None, "too many positional arguments"),
        ("run_id", lambda self, x: None, "missing a required argument: 'x'"),
    ],
)
def test_check_logger_tries_the_arguments(verb, method, expected):
    """A verb that a driver could not call is found at once, and the message has the right signature."""
    lgr = type("Odd", (Recorder,), {verb: method})()
    with pytest.raises(VerbSignatureError, match=rf"Odd\.{verb}\(.*\) cannot be called as drivers do \({expected}\): "):
        loggers.check_logger(lgr)


def test_check_logger_lets_free_signatures_pass():
    """A wrapper that takes anything is a logger, and so are functions that do not say what they take."""
    wrapper = types.SimpleNamespace(**dict.fromkeys(VERBS, lambda *args, **kwargs: None))
    loggers.check_logger(wrapper)
    wrapper.finish = Unspeakable()
    loggers.check_logger(wrapper)


def test_check_logger_sees_registered_verbs(registry):
    """A foreign object with the missing verbs registered is a logger."""
    tracker = Tracker()
    with pytest.raises(MissingVerbError):
        loggers.check_logger(tracker)
    loggers.register_verbs(Tracker, **{verb: getattr(Recorder, verb) for verb in REQUIRED})

    loggers.check_logger(tracker)
