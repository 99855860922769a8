"""A Reader at every moment of a late point: its neighbours are always there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plattli import Reader
from plattli import reader as reader_module
from plattli._hotreader import HotReader
from plattli.rows import RowWriter
from tests.stepping import stepping

#: The points that are there before the late one comes, 8 of them in columns and the others hot.
STEPS = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
LATE = 5


def values_of(step: int) -> dict[str, Any]:
    return {"loss": step / 2, "n": step, "note": [step]}


def writer_of(run: Path) -> RowWriter:
    writer = RowWriter(run, hotsize=100)
    for step in STEPS:
        if step == 16:
            writer.drain()
        row = values_of(step)
        writer.append(step, tuple(row), tuple(row.values()))
    return writer


def check(reader: Reader, *, late: bool | None) -> None:
    """All points are there with their values, the late one as it is said (``None``: it may be)."""
    for name in ("loss", "n", "note"):
        steps, values = reader.metric(name, dtype="storage")
        found = dict(zip(steps.tolist(), values.tolist(), strict=True))
        assert len(found) == len(steps), f"{name} has a point twice: {steps.tolist()}"
        expected = {step: values_of(step)[name] for step in (*STEPS, LATE)}
        assert set(STEPS) <= found.keys(), f"{name} lacks {sorted(set(STEPS) - found.keys())}"
        assert list(found) == sorted(found)
        assert found.items() <= expected.items()
        if late is not None:
            assert (LATE in found) == late


def late_point(writer: RowWriter, row: dict[str, Any]) -> Callable[[], object]:
    return lambda: writer.append(LATE, tuple(row), tuple(row.values()))


def test_a_look_at_every_moment_of_a_late_point(tmp_path: Path) -> None:
    """One reader that stays, and one that is new each time."""
    writer = writer_of(tmp_path)
    with Reader(tmp_path) as kept, stepping(late_point(writer, values_of(LATE))) as stepper:
        check(kept, late=False)
        while not stepper.is_over:
            kept.refresh()
            check(kept, late=None)
            with Reader(tmp_path) as fresh:
                check(fresh, late=None)
            stepper.advance(1)
        kept.refresh()
        check(kept, late=True)
    assert stepper.operations > 30
    writer.close()


def between(monkeypatch: pytest.MonkeyPatch, moment: str, act: Callable[[], None]) -> None:
    """Have ``act`` called once, in the middle of the next read: the writer overtakes the reader there."""
    acts = iter([act])

    def overtake() -> None:
        for once in acts:
            once()

    def wrap(owner: Any, name: str, *, after: bool) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not after:
                overtake()
            result = real(*args, **kwargs)
            if after:
                overtake()
            return result

        monkeypatch.setattr(owner, name, wrapped)

    if moment == "before the hot log":
        wrap(HotReader, "look", after=False)
    elif moment == "after the hot log":
        wrap(HotReader, "look", after=True)
    elif moment == "after the manifest":
        wrap(reader_module, "load", after=True)
    else:
        wrap(reader_module, "open_stored", after=moment == "after the columns were opened")


@pytest.mark.parametrize(
    ("moment", "is_kept", "name"),
    [
        ("before the hot log", True, "loss"),
        ("after the hot log", True, "loss"),
        ("after the hot log", False, "note"),
        ("after the manifest", False, "loss"),
        ("before the columns were opened", True, "note"),
        ("after the columns were opened", False, "note"),
    ],
)
def test_a_late_point_that_comes_in_the_middle_of_a_look(
    tmp_path: Path, moment: str, is_kept: bool, name: str
) -> None:
    """The writer does its first n operations between two of the reader's, for each n, and then stands still."""
    for n in itertools.count(1):
        run = tmp_path / str(n)
        writer = writer_of(run)
        row = {name: values_of(LATE)[name]}
        with pytest.MonkeyPatch.context() as monkeypatch, stepping(late_point(writer, row)) as stepper:
            reader = Reader(run)
            if is_kept:
                check(reader, late=False)
                reader.refresh()
            between(monkeypatch, moment, lambda: stepper.advance(n))  # noqa: B023 - called in this turn
            check(reader, late=None)
            assert stepper.operations == n or stepper.is_over
            over = stepper.is_over
            reader.close()
        writer.close()
        if over:
            break
    assert n > 5
