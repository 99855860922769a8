"""``CompactingWriter``: log step by step; rows become columns in the background."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any, Literal

from plattli._dtypes import Promote
from plattli._writing import StreamingWriter
from plattli.errors import ArgumentError
from plattli.rows import RowWriter


class CompactingWriter(StreamingWriter):
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
            StepError: the step is no integer in 0 … 2**63 - 1.
            ValueError: ``hotsize`` is not positive.
            RunExistsError: rows would be lost and ``step`` does not say so, or the run is archived.
            RunLockedError: another live process writes this run.
        """
        hotsize = operator.index(hotsize) if not isinstance(hotsize, bool) else 0
        if hotsize <= 0:
            raise ArgumentError(f"hotsize must be a positive number of rows, got {hotsize}")
        self.hotsize = hotsize
        self._pending: dict[str, Any] = {}
        self._pending_step = 0
        super().__init__(
            outdir,
            step,
            engine=RowWriter,
            hotsize=hotsize,
            config=config,
            allow_resume_finalized=allow_resume_finalized,
            promote=promote,
        )

    def write(self, /, *args: dict[str, Any] | None, flush: bool = False, **kwargs: Any) -> None:
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
        self._write(args, kwargs)
        if flush:
            self._flush()

    def _put(self, step: int, row: dict[str, Any]) -> None:
        if self._pending and step != self._pending_step:
            self._flush()  # a value belongs to the step at which it was written
        self._pending.update(row)
        self._pending_step = step

    def _flush(self) -> None:
        if self._pending:
            self._rows.commit(self._pending_step, self._pending)
            self._pending = {}

    def drain(self) -> None:
        """Return when every row that ended so far is in the columns."""
        self._rows.drain()
