"""What the three writers have in common: their arguments, and the loop of those that stream."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from plattli import _config, _planning
from plattli._dtypes import Promote
from plattli._format import ARCHIVE, MAX_STEP, METRIC_DIR
from plattli.errors import ArgumentError, DuplicateError, RunExistsError, StepError
from plattli.rows import RowWriter, exists

Start: TypeAlias = int | Literal["auto"] | None


class StreamingWriter(ABC):
    """A writer whose rows go to a run step by step, through an engine that keeps them safe."""

    def __init__(
        self,
        outdir: str | Path,
        step: Start,
        *,
        engine: type[RowWriter],
        hotsize: int,
        config: Any,
        allow_resume_finalized: bool,
        promote: Promote,
    ) -> None:
        """Check everything, then open or create the run; the subclasses document the arguments."""
        self.run_root = Path(outdir)
        run = check_run_root(self.run_root)
        start = step if step is None or (isinstance(step, str) and step == "auto") else check_step(step, run)
        _config.check(config, self.run_root, run)
        archive = self.run_root / ARCHIVE
        if archive.exists() and not allow_resume_finalized:
            raise RunExistsError(
                f"found the finished run {run!r} at {archive}; pass "
                f"allow_resume_finalized=True to go on with it, or move it away"
            )
        if start is None and exists(self.run_root):
            raise RunExistsError(
                f"found a run in {self.run_root}; pass step=N to keep the rows before step N, "
                f"step='auto' to go on after the last one, or step=0 to remove them all"
            )
        first = None if isinstance(start, str) else start or 0
        self._rows = engine(
            self.run_root,
            hotsize=hotsize,
            floats="f32",
            promote=promote,
            config=config,
            if_exists="append",
            cut=lambda name: first,
        )
        self.root = self._rows.root
        #: the step that :meth:`write` writes to; may be assigned
        self.step: int = self._rows.newest + 1 if first is None else first
        self._promote: Promote = promote
        self._written: set[str] = set()

    # ---- what the subclasses choose -----------------------------------------------------------------

    @abstractmethod
    def _put(self, step: int, row: dict[str, Any]) -> None:
        """Take in checked values of a step."""

    def _flush(self) -> None:  # noqa: B027 - nothing is held back by a writer that does not say so
        """Put on disk what :meth:`_put` has held back."""

    # ---- the loop ---------------------------------------------------------------------------------

    def _write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._rows.lost is not None:
            self._rows.refuse()
        metrics = merge_arguments(args, kwargs)
        if not metrics:
            return
        step = check_step(self.step, self._rows.run)
        check_unwritten(metrics, self._written, step, self._rows.run)
        plan, unfit = self._rows.plan(tuple(metrics), tuple(metrics.values()), floats="f32", promote=self._promote)
        if unfit:
            raise _planning.first_error(unfit)
        self._rows.adopt(plan)
        self._put(step, {name: value for name, (_, value) in plan.items()})
        self._written.update(plan)

    def end_step(self) -> None:
        """Put the row of the current step on disk and go to the next step."""
        if self._rows.lost is not None:
            self._rows.refuse()
        self._flush()
        self._written.clear()
        self.step = next_step(self.step, self._rows.run)

    def set_config(self, config: Any) -> None:
        """Replace ``config.json``, atomically; the rules are those of the constructor's ``config``."""
        self._rows.set_config(config)

    def finish(
        self, optimize: bool = True, zip: bool = True, config_overrides: dict[str, Any] | None = None
    ) -> None:
        """End the run: all rows into columns, columns as small as they go, all of it in one archive.

        Args:
            optimize: narrow integer columns and write regular steps as segments.
            zip: end as ``<outdir>/metrics.plattli``; else stay a folder.
            config_overrides: shallowly merged into the final config.
        """
        if self._rows.lost is not None:
            self._rows.refuse()
        self._flush()
        self._rows.finish(optimize, zip, config_overrides)

    def close(self) -> None:
        """Put the row in progress on disk and let go of the run, which stays resumable."""
        if self._rows.lost is None:
            self._flush()
            self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rows.lost is None:
            self._flush()
            self._rows.settle()


# ---- arguments ------------------------------------------------------------------------------------


def check_run_root(run_root: Path) -> str:
    """Return the run's name."""
    if run_root.name == METRIC_DIR:
        raise ArgumentError(
            f"outdir {run_root} ends in {METRIC_DIR!r}: pass the run root, the folder above it"
        )
    return run_root.name


def check_step(step: Any, run: str) -> int:
    """Return a step as a Python integer.

    Raises:
        StepError: it is no integer in 0 … 2**63 - 1.
    """
    number = _integer(step, run)
    if not 0 <= number <= MAX_STEP:
        raise StepError(f"step must be in 0 … {MAX_STEP} (2**63 - 1), got {number} (run {run!r})")
    return number


def next_step(step: Any, run: str) -> int:
    """Return the step after ``step``, which the last valid step has too: it may be ended, not written."""
    return _integer(step, run) + 1


def _integer(step: Any, run: str) -> int:
    if isinstance(step, bool | np.bool_):
        raise StepError(f"step must be an integer, got the bool {step} (run {run!r})")
    try:
        return operator.index(step)
    except TypeError:
        raise StepError(
            f"step must be an integer, got {type(step).__name__} {step!r} (run {run!r})"
        ) from None


def merge_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a ``write(*args, **kwargs)``: one dict, keywords, or both."""
    if len(args) > 1:
        raise TypeError(f"write() takes at most one dict, got {len(args)} positional arguments")
    metrics = args[0] if args else None
    if metrics is None:
        return kwargs
    if not isinstance(metrics, dict):
        raise TypeError(f"write() takes a dict of metrics, got {type(metrics).__name__}")
    if both := metrics.keys() & kwargs.keys():
        raise ArgumentError(f"metrics given twice in one write(): {sorted(both)}")
    return metrics | kwargs


def check_unwritten(metrics: dict[str, Any], written: set[str], step: int, run: str) -> None:
    """Refuse a metric that this step has already.

    Raises:
        DuplicateError: it has.
    """
    if not written.isdisjoint(metrics):
        name = next(name for name in metrics if name in written)
        raise DuplicateError(f"metric {name!r} of run {run!r} was already written in step {step}")
