"""Make the verb calls of a source on a :class:`~loggers.PlattliLogger`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from adapters.importers.items import Attempt, Call, Item, Line, Options, Report
from adapters.importers.overlaps import Cut, Overlaps
from loggers.errors import MetricNameError, MetricValueError, StepError
from loggers.plattli_logger import PlattliLogger

_LAST_STEP: Final = 2**63 - 1
#: Items between two looks at the progress.
_EVERY: Final = 500


class Writer:
    """Makes the calls, and keeps the books."""

    def __init__(self, logger: PlattliLogger, report: Report, options: Options) -> None:
        """Take a logger that has logged nothing, made with ``walltime=False``: a time is the source's, or none."""
        self._logger = logger
        self._report = report
        self._options = options
        self._overlaps = Overlaps(options.overlaps, options.context)
        self._status: str | None = None

    def write(self, items: Iterable[Item], progress: Callable[[], None]) -> None:
        """Write everything, and finish the run.

        Raises:
            OSError: the disk takes no more, or a file could not be read.
            RunExistsError, RunLockedError: as for the logger.
        """
        with warnings.catch_warnings():
            # what a source says about the past may well be older than its newest restart
            warnings.filterwarnings("ignore", message="run .* was resumed at", category=RuntimeWarning)
            for number, item in enumerate(items):
                self._take(item)
                if number % _EVERY == 0:
                    progress()
        self._report.status = self._status or self._options.status
        if self._logger.backend() is not None:
            self._logger.finish(self._report.status)

    def _take(self, item: Item) -> None:
        if isinstance(item, Line):
            self._line(item)
        elif isinstance(item, Call):
            self._call(item)
        elif isinstance(item, Attempt):
            self._status = None
            self._cut(self._overlaps.attempt(item.step, alone=item.alone))
        else:
            self._status = item.status
            self._overlaps.attempt(None)

    def _line(self, line: Line) -> None:
        step = line.step
        if type(step) is not int:
            step = int(step) if isinstance(step, float) and step == step // 1 else -1
        if not 0 <= step <= _LAST_STEP:
            self._leave_out("lines whose step is no integer from 0 on", MetricValueError(f"step {line.step!r}"))
            return
        self._cut(self._overlaps.line(step, line.context, line.metrics))
        metrics, epoch = line.metrics, line.epoch
        if line.context == "other":
            epoch = None  # as of values of log_other, which these are
        elif line.walltime is not None:
            metrics = {**metrics, "walltime": np.float64(line.walltime)}
        stored = len(line.metrics)
        try:
            self._logger.log_metrics(metrics, step=step, epoch=epoch, context=line.context)
        except MetricValueError as error:
            stored -= len(error.metrics)
            self._leave_out("values that a run cannot hold", error, len(error.metrics))
        except (StepError, MetricNameError) as error:
            self._leave_out("lines that a run cannot hold", error)
            return
        report = self._report
        report.lines += 1
        report.values += stored
        report.first = step if report.first is None or step < report.first else report.first
        report.last = step if report.last is None or step > report.last else report.last

    def _call(self, call: Call) -> None:
        try:
            getattr(self._logger, call.verb)(*call.args, **call.kwargs)
        except (MetricValueError, MetricNameError, StepError) as error:
            self._leave_out(f"calls of {call.verb} that a run cannot hold", error)

    def _cut(self, cut: Cut | None) -> None:
        if cut is None:
            return
        self._report.restarts += 1
        self._report.replaced += cut.lines
        state: dict[str, Any] = dict(self._logger.logger_state())
        state["steps"] = {
            context: min(last, cut.step - 1) if cut.context in (None, context) else last
            for context, last in state["steps"].items()
        }
        self._logger.reattach(state)

    def _leave_out(self, what: str, error: Exception, count: int = 1) -> None:
        if what not in self._report.left_out:
            self._report.note(f"{what}, the first: {error}")
        self._report.leave_out(what, count)
