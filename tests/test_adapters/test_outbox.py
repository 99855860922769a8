"""The queue before a client that waits: order, failures, refusals, bounds, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from adapters.backends._outbox import Full, Outbox


class Receiver:
    """Takes items unless told otherwise."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.attempts = 0
        self.fails = False
        self.refuses: set[int] = set()
        self.open = threading.Event()
        self.open.set()

    def send(self, items: list[int]) -> None:
        self.attempts += 1
        self.open.wait()
        if self.fails:
            raise OSError("away")
        if bad := self.refuses & {*items}:
            raise ValueError(f"no {bad}")
        self.got += items


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def outbox_of(receiver: Receiver, limit: int = 1000, most: int = 64, patience: float = 240.0) -> Outbox[int]:
    refusal: Callable[[Exception], bool] = lambda error: isinstance(error, ValueError)  # noqa: E731
    return Outbox(receiver.send, is_final=refusal, limit=limit, most=most, name="test", patience=patience)


def test_items_go_out_in_order_and_together(receiver: Receiver) -> None:
    """While the first attempt hangs the others gather."""
    receiver.open.clear()
    outbox = outbox_of(receiver)
    for item in range(100):
        outbox.put(item)
    receiver.open.set()

    assert outbox.close(None)
    assert receiver.got == [*range(100)]
    assert receiver.attempts <= 4
    assert (len(outbox), outbox.error, outbox.refused) == (0, None, [])


def test_a_failure_keeps_everything_and_a_flush_tries_at_once(receiver: Receiver) -> None:
    """Nothing is lost, nothing overtakes."""
    receiver.fails = True
    outbox = outbox_of(receiver)
    for item in range(10):
        outbox.put(item)

    assert not outbox.flush(0.05)
    assert isinstance(outbox.error, OSError)
    assert outbox.pending() == [*range(10)]
    receiver.fails = False
    assert outbox.flush(None)
    assert (receiver.got, outbox.error) == ([*range(10)], None)
    outbox.close(None)


def test_what_is_refused_costs_the_others_nothing(receiver: Receiver) -> None:
    """It is found, put aside and told."""
    receiver.open.clear()
    receiver.refuses = {7, 30}
    outbox = outbox_of(receiver)
    for item in range(50):
        outbox.put(item)
    receiver.open.set()

    assert outbox.close(None)
    assert receiver.got == [item for item in range(50) if item not in (7, 30)]
    assert [(item, str(error)) for item, error in outbox.refused] == [(7, "no {7}"), (30, "no {30}")]
    assert outbox.error is None


def test_a_full_queue_says_so_when_its_receiver_fails(receiver: Receiver) -> None:
    """The item is not taken, and what was taken before stays."""
    receiver.fails = True
    outbox = outbox_of(receiver, limit=3)
    for item in range(3):
        outbox.put(item)
    outbox.flush(0.05)
    with pytest.raises(Full):
        outbox.put(3)
    receiver.fails = False

    assert outbox.close(None)
    assert receiver.got == [0, 1, 2]


def test_a_full_queue_waits_for_a_receiver_that_is_slow(receiver: Receiver) -> None:
    """And says so when it hangs."""
    receiver.open.clear()
    outbox = outbox_of(receiver, limit=2, patience=0.01)
    outbox.put(0)
    outbox.put(1)
    with pytest.raises(Full):
        outbox.put(2)
    outbox._patience = 240.0
    threading.Timer(0.01, receiver.open.set).start()
    outbox.put(2)

    assert outbox.close(None)
    assert receiver.got == [0, 1, 2]


def test_an_outage_is_waited_for_once(receiver: Receiver) -> None:
    """A checkpoint in an outage costs training one wait, and not one each; what is delivered ends the outage."""
    receiver.open.clear()
    outbox = outbox_of(receiver)
    outbox.put(0)
    assert not outbox.flush(0.01, again=False)
    assert not outbox.flush(None, again=False)  # which would hang
    assert not outbox.flush(0.01)
    receiver.open.set()
    assert outbox.flush(None)
    outbox.put(1)

    assert outbox.flush(None, again=False)
    assert receiver.got == [0, 1]
    outbox.close(None)


def test_closing_gives_up_after_a_while(receiver: Receiver) -> None:
    """The thread ends, although nothing was delivered."""
    receiver.fails = True
    outbox = outbox_of(receiver)
    outbox.put(1)

    assert not outbox.close(0.05)
    outbox._thread.join(60)
    assert not outbox._thread.is_alive()
    assert outbox.pending() == [1]


def test_it_may_be_closed_from_its_own_thread() -> None:
    """Garbage is collected in any thread: waiting for itself would be for ever."""
    closed: list[bool] = []
    outbox: Outbox[int] = Outbox(
        lambda items: closed.append(outbox.close(None)), is_final=lambda error: True, limit=9, most=1, name="test"
    )
    outbox.put(1)
    outbox._thread.join(60)

    assert not outbox._thread.is_alive()
    assert closed == [False]
