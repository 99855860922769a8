"""Standard output: a line per line, or a live table on a terminal.

::

    step 400    loss 0.3103    lr 0.001    acc 0.875              tab-separated
    step 400    validate/loss 0.2914    validate/acc 0.89
    finish completed

``step``, ``loss`` and ``lr`` come first, the rest is sorted, floats have four significant digits. Metrics of the train
lines go by their names, those of other contexts by ``<context>/<name>``.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from loggers._cells import name_cell, quoted, short
from loggers.errors import LoggerError, LoggerFinishedError, MetricNameError, MetricValueError
from loggers.values import (
    check_confusion,
    check_context,
    check_epoch,
    check_status,
    check_step,
    plain,
    plain_params,
    plain_tags,
    plain_value,
    raise_for,
)

if TYPE_CHECKING:
    from loggers._live import LiveTable

_FIRST: Final = ("loss", "lr")
#: Begins a line, so that no metric of the train context can be told from it.
_RESERVED: Final = frozenset(("step", "epoch"))


class StdoutLogger:
    """Prints what is logged. Keeps nothing, and never stops training.

    On a terminal, with the package ``rich`` (extra ``console``), it is a table of the newest values that stays in
    place, under a bar with the time that is left. Everywhere else it is lines. When nobody reads any more (the pipe
    was closed, the terminal is gone), one warning says so, and nothing is printed from then on.

    After a ``fork`` the child's copy prints nothing, and neither does a pickled copy of a logger that has begun.

    Args:
        total: how many steps training has, for the bar and the time that is left.
        live: ``True`` for the table, ``False`` for lines; by default what stdout is decides.
        file: a text stream; by default what ``sys.stdout`` is when a line is printed.

    Raises:
        LoggerError: ``total`` is no positive integer.
        ImportError: ``live=True`` without ``rich``.
    """

    #: A few microseconds: the fan-out calls this logger in turn.
    placement: Final = "inline"

    def __init__(self, *, total: int | None = None, live: bool | None = None, file: TextIO | None = None) -> None:
        if total is not None and (type(total) is not int or total < 1):
            raise LoggerError(f"total must be a positive number of steps, or None, got {total!r}")
        if live and importlib.util.find_spec("rich") is None:
            raise ImportError(
                "StdoutLogger(live=True) needs the package 'rich', which is not installed: "
                "pip install 'plattli-loggers[console]'"
            )
        self._total = total
        self._live = live
        self._file = file
        self._table: LiveTable | None = None
        self._pid: int | None = None  # the process that printed first
        self._finished = False
        self._gone = False  # nobody reads any more
        self._warned: set[str] = set()

    # --- the verbs ------------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Print one line, or show its values in the table.

        Raises:
            StepError, MetricNameError: the step, epoch or context is none; nothing is printed.
            MetricValueError: names the values that could not be printed; the others were.
        """
        if not self._may_print():
            return
        step, epoch, context = check_step(step), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        table = self._begin()
        if table is not None:
            self._show(table, context, step, epoch, values)
        elif values or not problems:
            cells = [(name, f"{self._name(context, name)} {short(value)}") for name, value in values.items()]
            if epoch is not None:
                cells.append(("epoch", f"epoch {epoch}"))
            self._print("\t".join([f"step {step}", *(text for _, text in sorted(cells, key=_place))]))
        if problems:
            raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Print hyperparameters as one line of JSON."""
        if self._may_print():
            self._say("params", plain_params(params))

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Print tags as one line of JSON."""
        if self._may_print():
            self._say("tags", plain_tags(tags))

    def log_other(self, key: str, value: Any) -> None:
        """Print a free-form value.

        Raises:
            MetricNameError, MetricValueError: the key is no non-empty string, the value no JSON data.
        """
        if not self._may_print():
            return
        if not isinstance(key, str) or not key:
            raise MetricNameError(f"the key of log_other must be a non-empty string, got {key!r}")
        data, problem = plain_value(value)
        if problem is not None:
            raise MetricValueError(f"log_other {key!r} could not be logged: {problem}")
        self._say("other", {str.__str__(key): data})

    def log_confusion(
        self,
        matrix: Sequence[Sequence[float]],
        labels: Sequence[str],
        *,
        epoch: int | None = None,
        step: int | None = None,
        context: str | None = None,
        name: str = "confusion",
    ) -> None:
        """Check a confusion matrix, and print none: a line is no place for it."""
        if self._may_print():
            check_confusion(matrix, labels)
            check_epoch(epoch)
            if step is not None:
                check_step(step)

    def finish(self, status: str) -> None:
        """Print the status, and leave the table as it is.

        Raises:
            StatusError: not one of the four.
            LoggerFinishedError: here and from every later verb, if the run has finished before.
        """
        check_status(status)
        if self._may_print():
            if self._table is not None:
                table, self._table = self._table, None
                self._guard(lambda: table.stop(completed=status == "completed"))
            self._print(f"finish {status}")
        self._finished = True

    def run_id(self) -> str | None:
        """Return ``None``: what is printed has no name."""
        return None

    def run_url(self) -> str | None:
        """Return ``None``: there is no page to look at."""
        return None

    def logger_state(self) -> None:
        """Return ``None``: what is printed is printed."""

    def logger_info(self) -> dict[str, Any]:
        """Return whether the table is shown."""
        return {"logger": "StdoutLogger", "live": self._table is not None}

    # --- private --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return how to build this logger again."""
        return f"StdoutLogger(total={self._total!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave stream and table behind."""
        inert = {} if self._pid is None else {"_pid": -1}
        return {**self.__dict__, "_file": None, "_table": None, **inert}

    def _may_print(self) -> bool:
        if self._finished:
            raise LoggerFinishedError(f"{self!r} is finished and prints nothing any more: build another one")
        return self._pid in (None, os.getpid())

    def _begin(self) -> LiveTable | None:
        """Return the table if that is what is printed, begun if need be."""
        if self._pid is None:
            self._pid = os.getpid()
            stream = self._stream()
            live = self._live
            if live is None:
                live = _is_terminal(stream) and importlib.util.find_spec("rich") is not None
            if live:
                from loggers._live import LiveTable  # noqa: PLC0415 - brings rich along, which only a terminal needs

                self._table = LiveTable(self._total, stream)
        return self._table

    def _stream(self) -> TextIO | None:
        return sys.stdout if self._file is None else self._file

    @staticmethod
    def _name(context: str, name: str) -> str:
        if context != "train" or name in _RESERVED or "/" in name:
            name = f"{context}/{name}"
        text = name_cell(name)
        return quoted(name) if text == name and " " in name else text

    def _show(self, table: LiveTable, context: str, step: int, epoch: int | None, values: Mapping[str, Any]) -> None:
        shown = {name: short(value) for name, value in sorted(values.items(), key=_place)}
        self._guard(lambda: table.update(context, step, epoch, shown))

    def _say(self, what: str, data: Mapping[str, Any]) -> None:
        table, text = self._begin(), f"{what} {json.dumps(data)}"
        if table is not None:
            self._guard(lambda: table.print(text))
        else:
            self._print(text)

    def _print(self, text: str) -> None:
        self._pid = os.getpid()
        self._guard(lambda: _write(self._stream(), text + "\n"))

    def _guard(self, print_it: Any) -> None:
        """Print; what stands in the way of it is said once, and training goes on."""
        if self._gone:
            return
        try:
            print_it()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            # a full disk may have room again, a reader that is gone does not come back
            self._gone = isinstance(error, (BrokenPipeError, ValueError))
            if type(error).__name__ not in self._warned:
                self._warned.add(type(error).__name__)
                message = f"StdoutLogger cannot print ({type(error).__name__}: {error}); training goes on without"
                warnings.warn(message, RuntimeWarning, stacklevel=4)


def _place(cell: tuple[str, Any]) -> tuple[int, str]:
    """Return where a metric stands in its line: loss and lr, then the rest by name."""
    name = cell[0]
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream leads to a screen on which something can stay in its place."""
    try:
        return bool(stream and stream.isatty()) and os.environ.get("TERM") != "dumb"
    except ValueError:  # it is closed, which the first line will say
        return False


def _write(stream: TextIO | None, text: str) -> None:
    """Write to a stream so that nothing of it stays in a buffer, where it would fail once more at exit."""
    if stream is None:  # a program without a console
        return
    stream.flush()
    if not _is_plain_file(stream):
        stream.write(text)
        stream.flush()
        return
    fd = stream.fileno()
    data = text.encode(stream.encoding or "utf-8", errors="backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


def _is_plain_file(stream: TextIO) -> bool:
    """Return whether a stream does nothing but to hand its text to a file of the system.

    One that is in memory has no such file. One that also writes a copy, shows the text in a notebook or compresses it
    may well name a file, which is not where its text has to go.
    """
    if not isinstance(stream, io.TextIOWrapper) or type(stream).write is not io.TextIOWrapper.write:
        return False
    return type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO
