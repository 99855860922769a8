"""``CompactingWriter``: log step by step; rows become columns in the background."""

from __future__ import annotations

import operator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from plattli._dtypes import Promote
from plattli._format import MAX_STEP
from plattli.errors import ArgumentError, DuplicateError, RunExistsError, StepError
from plattli.rows import RowWriter, exists


class CompactingWriter:
    """Write a run one step after another, from one thread.

    ::

        w = CompactingWriter("runs/a", hotsize=200, config={"lr": 3e-4})
        w.write(loss=1.2)
        w.end_step()
        w.finish()

    A row is in the operating system when :meth:`end_step` returns. Every ``hotsize`` rows, those so
    far move to one file per metric, in a background thread.
    """

    def __init__(
        self,
        outdir: str | Path,
        step: int | Literal["auto"] | None = None,
        *,
        hotsize: int,
        config: Any = "config.json",
        allow_resume_finalized: bool = False,
        promote: Promote = None,
    ) -> None:
        """Open or create the run in ``outdir``.

        Args:
            outdir: the run root; the run goes to ``outdir/plattli`` and ends as
                ``outdir/metrics.plattli``.
            step: where to go on. On a run that has rows an integer keeps those before it and removes
                the rest (0 starts over), ``"auto"`` goes on after the last one, and ``None`` is refused.
            hotsize: rows in the hot log that start a compaction; at least 1.
            config: JSON data for ``config.json``; or the path of a file, relative to ``outdir``, to
                link to (if it exists); or ``None`` to keep what is there.
            allow_resume_finalized: go on with a run that has been finished into an archive.
            promote: ``"float"`` lets a float join an integer metric, which then becomes floats;
                ``None`` refuses it.

        Raises:
            StepError: the step is no integer in 0 … 2**32 - 1.
            ValueError: ``hotsize`` is not positive.
            RunExistsError: rows would be lost and ``step`` does not say so, or the run is archived.
            RunLockedError: another live process writes this run.
        """
        self.run_root = Path(outdir)
        start = _check_start(step, self.run_root.name)
        hotsize = operator.index(hotsize) if not isinstance(hotsize, bool) else 0
        if hotsize <= 0:
            raise ArgumentError(f"hotsize must be a positive number of rows, got {hotsize}")
        archive = self.run_root / "metrics.plattli"
        if archive.exists() and not allow_resume_finalized:
            raise RunExistsError(
                f"found the finished run {self.run_root.name!r} at {archive}; pass "
                f"allow_resume_finalized=True to go on with it, or move it away"
            )
        if start is None and exists(self.run_root):
            raise RunExistsError(
                f"found a run in {self.run_root}; pass step=N to keep the rows before step N, "
                f"step='auto' to go on after the last one, or step=0 to remove them all"
            )
        first = None if isinstance(start, str) else start or 0
        self._rows = RowWriter(
            self.run_root,
            hotsize=hotsize,
            floats="f32",
            promote=promote,
            config=config,
            if_exists="append",
            cut=lambda name: first,
        )
        self.root = self._rows.root
        self.hotsize = hotsize
        #: the step that :meth:`write` writes to; may be assigned
        self.step: int = self._rows.newest + 1 if first is None else first
        self._promote: Promote = promote
        self._pending: dict[str, Any] = {}
        self._pending_step = self.step
        self._written: set[str] = set()

    def write(self, *args: dict[str, Any] | None, flush: bool = False, **kwargs: Any) -> None:
        """Add metrics to the current step: one dict, keywords, or both.

        All values are checked before anything changes, and are taken at once.

        Args:
            *args: at most one dict, for names that are no identifiers.
            flush: put the row on disk now instead of at :meth:`end_step`.
            **kwargs: more metrics.

        Raises:
            TypeError, ValueError, OverflowError: from :mod:`plattli.errors`; nothing of the call was
                applied.
            DuplicateError: a metric has been written in this step already.
        """
        metrics = self._arguments(args, kwargs)
        if metrics:
            step = _check_step(self.step, self._rows.run)
            if self._pending and step != self._pending_step:
                self._flush()  # a value belongs to the step at which it was written
            for name in metrics:
                if name in self._written:
                    raise DuplicateError(
                        f"metric {name!r} of run {self._rows.run!r} was already written in step {step}"
                    )
            plan, unfit = self._rows.plan(
                tuple(metrics), tuple(metrics.values()), floats="f32", promote=self._promote
            )
            if unfit:
                raise next(iter(unfit.values()))
            self._rows.adopt(plan)
            self._pending.update((name, value) for name, (_, value) in plan.items())
            self._pending_step = step
            self._written.update(plan)
        if flush:
            self._flush()

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._rows.lost is not None:
            self._rows.refuse()
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

    def _flush(self) -> None:
        if not self._pending:
            return
        self._rows.commit(self._pending_step, self._pending)
        self._pending = {}

    def end_step(self) -> None:
        """Put the row of the current step on disk and go to the next step."""
        if self._rows.lost is not None:
            self._rows.refuse()
        self._flush()
        self._written.clear()
        self.step += 1

    def set_config(self, config: Any) -> None:
        """Replace ``config.json``, atomically; the rules are those of the constructor's ``config``."""
        self._rows.set_config(config)

    def drain(self) -> None:
        """Return when every row that ended so far is in the columns."""
        self._rows.drain()

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
        """Flush the row in progress and let go of the run, which stays resumable."""
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


def _check_start(step: Any, run: str) -> int | Literal["auto"] | None:
    if step is None or (isinstance(step, str) and step == "auto"):
        return step  # type: ignore[return-value]
    return _check_step(step, run)


def _check_step(step: Any, run: str) -> int:
    if isinstance(step, bool | np.bool_):
        raise StepError(f"step must be an integer, got the bool {step} (run {run!r})")
    try:
        number = operator.index(step)
    except TypeError:
        raise StepError(
            f"step must be an integer, got {type(step).__name__} {step!r} (run {run!r})"
        ) from None
    if not 0 <= number <= MAX_STEP:
        raise StepError(f"step must be in 0 … {MAX_STEP} (uint32), got {number} (run {run!r})")
    return number
