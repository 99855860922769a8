"""loggers.records: the logger's part of a checkpoint."""

from __future__ import annotations

import enum
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loggers import JSONLogger, checkpoint_record, resume
from loggers.errors import MissingVerbError, RecordError
from loggers.records import plain_json, type_name


class Keeper:
    """A logger with state."""

    def __init__(self, state=None):
        self.state = state
        self.attached = []

    def logger_state(self):
        return self.state

    def reattach(self, state):
        self.attached.append(state)


class OtherKeeper(Keeper):
    pass


class OneWay:
    def logger_state(self):
        return {"id": 1}


class Word(str):
    pass


class Level(enum.IntEnum):
    HIGH = 9


def test_a_record_names_the_logger_and_its_version():
    """It says whose state it is and in which layout."""
    assert checkpoint_record(Keeper({"run_id": "a", "steps": [1, 2.5, None, True]})) == {
        "logger": f"{__name__}.Keeper",
        "state": {"run_id": "a", "steps": [1, 2.5, None, True]},
        "version": 1,
    }


@pytest.mark.parametrize("lgr", [None, Keeper(None), JSONLogger("never-written.jsonl"), object()])
def test_nothing_to_reattach_is_no_record(lgr):
    """No logger, no state, or no such verb."""
    assert checkpoint_record(lgr) is None


def test_a_record_survives_json_and_reattaches():
    """The state arrives in the new process as it was given."""
    state = {"run_id": "ä", "steps": [1, 2.5, None, True], "big": 2**70}
    record = json.loads(json.dumps(checkpoint_record(Keeper(state))))
    new = Keeper()
    resume(new, record)

    assert new.attached == [state]


def test_a_record_shares_nothing_with_the_logger():
    """What the logger does to its state afterwards is not in the checkpoint, nor the other way round."""
    keeper = Keeper({"steps": [1]})
    record = checkpoint_record(keeper)
    keeper.state["steps"].append(2)
    resume(keeper, record)
    keeper.attached[0]["steps"].append(3)

    assert record["state"] == {"steps": [1]}


def test_without_a_record_or_a_logger_nothing_is_done():
    """A fresh start, and a resume with logging turned off."""
    keeper = Keeper()
    resume(keeper, None)
    resume(None, checkpoint_record(Keeper({"id": 1})))

    assert keeper.attached == []


def test_a_record_of_another_logger_is_refused():
    """Both names are in the message."""
    other = OtherKeeper()
    with pytest.raises(RecordError) as caught:
        resume(other, checkpoint_record(Keeper({"id": 1})))

    assert str(caught.value) == (
        f"the checkpoint's logger record is of {__name__}.Keeper, and this run's logger is {__name__}.OtherKeeper: "
        "resume with the same type of logger, or pass no record to start a new run"
    )
    assert other.attached == []


def test_a_logger_of_the_script_itself_keeps_its_record():
    """Run as a script its module is called ``__main__``, imported it is not."""
    keeper = Keeper()
    resume(keeper, {"logger": "__main__.Keeper", "state": {"id": 1}, "version": 1})
    with pytest.raises(RecordError, match=r"is of __main__\.OtherKeeper, and"):
        resume(keeper, {"logger": "__main__.OtherKeeper", "state": {"id": 1}, "version": 1})

    assert keeper.attached == [{"id": 1}]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 2}, "the logger record has version 2, and this release reads up to 1: resume with the release"),
        ({"version": "1"}, "the logger record's version must be a positive int, got '1'"),
        ({"version": True}, "must be a positive int, got True"),
        ({"version": 0}, "must be a positive int, got 0"),
        ({"logger": 3}, "the checkpoint's logger record is of 3, and"),
        ({"state": {"a": (1,)}}, r"$.state.a is a builtins.tuple"),
    ],
)
def test_bad_records_are_refused(change, expected):
    """Before the logger is touched."""
    keeper = Keeper()
    with pytest.raises(RecordError) as caught:
        resume(keeper, {**checkpoint_record(Keeper({"id": 1})), **change})

    assert expected in str(caught.value)
    assert keeper.attached == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, "not a logger record: it lacks logger, state, version and has nothing"),
        ({"logger": "a", "id": 1}, "it lacks state, version and has 'logger', 'id'"),
        ([], "a logger record is a mapping, got list: pass it as it was saved"),
    ],
)
def test_what_is_no_record_is_refused(record, expected):
    """A checkpoint's other parts, handed over by mistake."""
    with pytest.raises(RecordError) as caught:
        resume(Keeper(), record)

    assert expected in str(caught.value)


def test_state_without_reattach_is_found_at_the_first_checkpoint():
    """Not when a crashed run should be resumed."""
    with pytest.raises(MissingVerbError, match=r"OneWay has a logger_state and lacks reattach: define reattach"):
        checkpoint_record(OneWay())
    with pytest.raises(MissingVerbError, match="lacks reattach"):
        resume(OneWay(), {"logger": type_name(OneWay()), "state": {"id": 1}, "version": 1})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"a": [0, 1, Path("x")]}, "$.state.a[2] is a pathlib."),
        ({"a b": {"c": {1, 2}}}, "$.state['a b'].c is a builtins.set, not plain JSON data: make it None, bool, int"),
        ({"a": (1, 2)}, "$.state.a is a builtins.tuple"),
        ({"a": np.float64(1)}, "$.state.a is a numpy.float64"),
        ({"a": np.int64(1)}, "$.state.a is a numpy.int64"),
        ({"a": Word("x")}, "Word, not plain JSON data"),
        ({"a": Level.HIGH}, "Level, not plain JSON data"),
        ({"a": math.nan}, "$.state.a is nan, which JSON cannot hold: use None or a string for it"),
        ({"a": -math.inf}, "$.state.a is -inf, which JSON cannot hold"),
        ({"a": "\ud800"}, "$.state.a is a string with a lone surrogate"),
        ({1: 2}, "$.state has the key 1 (int): make its keys strings"),
        ({"\ud800": 2}, "$.state has the key '\\ud800' (str)"),
        (b"", "$.state is a builtins.bytes"),
        (object(), "$.state is a builtins.object"),
    ],
)
def test_state_that_is_not_json_is_refused_with_its_path(state, expected):
    """A live object in a checkpoint would not outlive the process."""
    with pytest.raises(RecordError) as caught:
        checkpoint_record(Keeper(state))

    assert expected in str(caught.value)


def test_cycles_and_bottomless_state_are_refused():
    """Neither hangs nor ends in a RecursionError."""
    cycle: dict[str, object] = {}
    cycle["again"] = [cycle]
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]

    with pytest.raises(RecordError, match=r"^\$\.state\.again\[0\] contains itself$"):
        checkpoint_record(Keeper(cycle))
    with pytest.raises(RecordError, match="is nested deeper than 100 levels: flatten the state"):
        checkpoint_record(Keeper(deep))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_what_is_accepted_survives_a_json_file(data):
    """The same data comes back, of the same types."""
    copy = plain_json(data)

    assert repr(json.loads(json.dumps(copy, allow_nan=False).encode())) == repr(copy) == repr(data)
