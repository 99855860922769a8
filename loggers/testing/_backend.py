"""What the contract's tests have to be told about a logger, and the run that each of them works on."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, ParamSpec

import numpy as np
import pytest

from loggers.contract import STATUSES
from loggers.errors import LoggerFinishedError
from loggers.testing.stored import Stored

#: What a logger may add to the metrics of a context of its own accord.
_CARRIERS = frozenset(("epoch", "walltime", "step"))


class Run:
    """One run directory of a test, the logger on it, and what is stored there."""

    def __init__(self, contract: Backend, directory: Path) -> None:
        self._contract = contract
        self._directory = directory
        self._loggers: list[Any] = []
        self._others: list[Run] = []

    def beside(self) -> Run:
        """Return another run, in a directory of its own. It is closed with this one."""
        name = f"{self._directory.name}-{len(self._others) + 1}"
        self._others.append(Run(self._contract, self._directory.with_name(name)))
        return self._others[-1]

    def open(self) -> Any:
        """Return a new logger on the directory, as a new process would build it."""
        self._loggers.append(self._contract.build(self._directory))
        return self._loggers[-1]

    @property
    def logger(self) -> Any:
        """The newest logger that was opened and not ended."""
        return self._loggers[-1]

    def end(self, status: str = "interrupted") -> None:
        """Finish the logger, and let go of it."""
        self._loggers.pop().finish(status)

    def close(self) -> None:
        """End every logger that is still there."""
        while self._loggers:
            with suppress(LoggerFinishedError):
                self._loggers.pop().finish("interrupted")
        for other in self._others:
            other.close()

    def read(self) -> Stored:
        """Return what is stored. A logger that is not ``live`` is ended before."""
        if not self._contract.live:
            self.close()
        return self._contract.stored(self._directory)

    def holds(self, expected: Mapping[str, list[tuple[int, Any]]], *, newest: bool = False) -> None:
        """Check that the run holds exactly these points, as precisely as the backend can.

        Args:
            expected: as in :attr:`Stored.metrics`, without epochs.
            newest: compare the last value of each step, by step, instead of all points in order.
        """
        found = {
            name: points
            for name, points in self.read().metrics.items()
            if points and name.rpartition("/")[2] not in _CARRIERS
        }

        assert self._shown(found, newest) == self._shown(expected, newest)

    def _shown(self, metrics: Mapping[str, list[tuple[int, Any]]], newest: bool) -> Any:
        shown = {name: [(step, self._plain(value)) for step, value in points] for name, points in metrics.items()}
        return {name: sorted(dict(points).items()) for name, points in shown.items()} if newest else shown

    def _plain(self, value: Any) -> Any:
        """Return ``value`` such that ``==`` tells what differs: NaN is itself, and -0.0 is not 0.0."""
        value = self._contract.rounded(value)
        if isinstance(value, float) and math.isnan(value):
            return "NaN"
        if self._contract.precision == "exact" and value == 0 and math.copysign(1, value) < 0:
            return "-0.0"
        return value


_P = ParamSpec("_P")


def promise(call: str, *declarations: str) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Have a test that fails say what was called, and what of it a backend may declare not to do.

    Args:
        call: the verbs that the test is about, as code.
        declarations: attributes of :class:`Backend`.
    """

    def decorate(test: Callable[_P, None]) -> Callable[_P, None]:
        @functools.wraps(test)
        def noted(*args: _P.args, **kwargs: _P.kwargs) -> None:
            try:
                test(*args, **kwargs)
            except (Exception, pytest.fail.Exception) as error:
                contract: Any = args[0]
                says = ", ".join(f"{name} = {getattr(contract, name)!r}" for name in declarations)
                other = " or ".join(_otherwise(name, getattr(contract, name)) for name in declarations)
                error.add_note(
                    f"This is about {call}, and {type(contract).__name__} says {says}. If the backend does otherwise, "
                    f"say {other} there; else the logger breaks its promise."
                )
                raise

        return noted

    return decorate


def _otherwise(name: str, value: Any) -> str:
    """Return what else could be declared."""
    if name == "precision":
        return " or ".join(f'precision = "{other}"' for other in ("exact", "float64", "float32") if other != value)
    if name == "statuses":
        return "statuses = {…} with what each status reads back as"
    return f"{name} = {not value}"


class Backend:
    """How to build a logger and to read what it stored, and what of it to expect.

    The attributes are explained at :class:`~loggers.testing.LoggerContract`.
    """

    precision: ClassVar[Literal["exact", "float64", "float32"]] = "exact"
    live: ClassVar[bool] = True
    holds_text: ClassVar[bool] = True
    holds_late: ClassVar[bool] = True
    holds_epochs: ClassVar[bool] = True
    replaces: ClassVar[bool] = True
    holds_params: ClassVar[bool] = True
    holds_nested_params: ClassVar[bool] = True
    holds_tags: ClassVar[bool] = True
    holds_other: ClassVar[bool] = True
    holds_confusions: ClassVar[bool] = True
    statuses: ClassVar[Mapping[str, str]] = {status: status for status in STATUSES}
    resumes: ClassVar[bool] = True
    cuts: ClassVar[bool] = True

    def build(self, directory: Path) -> Any:
        """Return a new logger that writes in ``directory``, which may hold a run already, or not exist."""
        raise NotImplementedError

    def stored(self, directory: Path) -> Stored:
        """Return what is in ``directory``, read without the logger. ``Stored()`` if there is nothing."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, tmp_path: Path) -> Iterator[Run]:
        """A run that has not begun. Its loggers end with the test."""
        run = Run(self, tmp_path / "run")
        yield run
        run.close()

    def rounded(self, value: Any) -> Any:
        """Return a metric's value as precisely as the backend keeps it at least."""
        if self.precision == "exact" or not isinstance(value, (int, float)):
            return value
        with np.errstate(over="ignore"):
            return float(np.float32(value)) if self.precision == "float32" else float(value)
