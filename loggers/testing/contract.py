"""The contract as tests: what :mod:`loggers.contract` says, asked of a logger and of what it stored."""

from __future__ import annotations

from loggers.testing._lines import LineTests
from loggers.testing._programs import ProgramTests
from loggers.testing._resuming import ResumeTests
from loggers.testing._runs import RunTests


class LoggerContract(LineTests, RunTests, ResumeTests, ProgramTests):
    """What every logger promises, as tests to inherit.

    ::

        class TestMyLogger(LoggerContract):
            precision = "float32"                       # what the backend cannot hold is said …

            def build(self, directory):                 # … how to build a logger …
                return MyLogger(directory)

            def stored(self, directory):                # … and how to read its files without it
                return Stored(metrics=…, params=…, tags=…, status=…)

    What is declared to be lacking is tested as well: a backend that holds no text has to refuse it.

    Attributes:
        precision: ``"exact"`` keeps every number; ``"float64"`` rounds large integers and may take
            -0.0 for 0.0; ``"float32"`` rounds everything to that.
        live: what a verb has returned from can be read while the logger goes on. Without it the tests
            read only after ``finish``.
        holds_text: strings, ``None``, lists and mappings are metrics too. Else they are refused.
        holds_late: a point before the last one of its metric is stored. Else it is left out, and a
            RuntimeWarning names the metric.
        holds_epochs: there is a metric ``<context>/epoch``.
        replaces: the same (metric, step) again replaces the value. Else both are there, in order.
        holds_params, holds_tags, holds_other, holds_confusions: the verb stores something that can be
            read back. Else it does nothing.
        holds_nested_params: params keep lists, mappings, bools and ``None``.
        statuses: what each finish status reads back as; empty if none does.
        resumes: ``logger_state`` is not ``None``.
        cuts: ``reattach`` takes away what was logged after the state was taken. Else the old points
            stay, and the new ones come after them.
    """
