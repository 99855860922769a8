"""Everything this package raises on purpose.

::

    PlattliError
    ├── NotARunError           (FileNotFoundError)   nothing readable at that path
    │   └── MissingFileError   (KeyError)            the run lacks a file that it should have
    ├── UnknownMetricError     (KeyError)            the run has no metric of that name
    ├── CorruptRunError        (RuntimeError, ValueError)  the files contradict the format
    ├── MetricNameError        (ValueError, TypeError)     a name the format cannot store
    ├── StepError              (ValueError, TypeError)     a step that is no integer in 0 .. 2**63 - 1
    ├── DtypeError             (TypeError)           a value that cannot join its metric's column
    ├── ValueRangeError        (OverflowError)       a value its metric's column cannot hold
    ├── ShapeError             (ValueError)          an array where a scalar belongs
    ├── DuplicateError         (RuntimeError)        a metric written twice in one step
    ├── ConfigError            (TypeError, ValueError)     a config JSON cannot hold
    ├── ArgumentError          (ValueError)          an argument that makes no sense
    ├── RunExistsError         (RuntimeError, FileExistsError)  a finished run in the way
    │   └── ExtraFileError     (ValueError)          a file of unknown origin in the way
    ├── RunLockedError         (RuntimeError, BlockingIOError)  another live writer owns the run
    ├── RunFinishedError       (RuntimeError)        a writer used after ``finish``
    ├── RunBrokenError         (RuntimeError)        a writer used after its disk failed
    ├── LogLineError           (ValueError, TypeError)     a line of a JSONL log that is no row
    ├── RowIndexError          (IndexError)          a row that the metric does not have
    ├── ConversionError        (ValueError)          values that the requested dtype cannot hold
    ├── UnstableRunError       (RuntimeError)        a live run that changes faster than it can be read
    ├── RemoteError            (ConnectionError)     a server that did not give what was asked for
    └── ReaderClosedError      (RuntimeError)        a reader of an archive used after ``close``

Each class is also the builtin that a caller would catch, so ``except ValueError`` keeps working.
"""

from __future__ import annotations


class PlattliError(Exception):
    """Base of every error of the format, its writers and its reader."""


class NotARunError(PlattliError, FileNotFoundError):
    """The path holds no run: no ``plattli.json``, no readable archive, or a file of it is gone."""


class MissingFileError(NotARunError, KeyError):
    """A file that the manifest promises is not there."""


class UnknownMetricError(PlattliError, KeyError):
    """The run has no metric of that name."""

    # KeyError prints the repr of its argument; a message should print as it is
    __str__ = Exception.__str__


class CorruptRunError(PlattliError, RuntimeError, ValueError):
    """A file of the run holds something that the format does not allow."""


class MetricNameError(PlattliError, ValueError, TypeError):
    """A metric name that the format cannot store."""


class StepError(PlattliError, ValueError, TypeError):
    """A step that is not an integer in ``0 .. 2**63 - 1``."""


class DtypeError(PlattliError, TypeError):
    """A value whose type cannot join the metric's column."""


class ValueRangeError(PlattliError, OverflowError):
    """A value that the metric's column cannot hold, at any width."""


class ShapeError(PlattliError, ValueError):
    """An array where one scalar belongs."""


class DuplicateError(PlattliError, RuntimeError):
    """A metric written twice within one step."""


class ConfigError(PlattliError, TypeError, ValueError):
    """A config, or config override, that cannot be written as JSON."""


class ArgumentError(PlattliError, ValueError):
    """An argument of the right type that makes no sense."""


class RunExistsError(PlattliError, RuntimeError, FileExistsError):
    """A run is there already and the call would have replaced it."""


class ExtraFileError(RunExistsError, ValueError):
    """A file that is none of the run's own lies where the output has to go."""


class RunLockedError(PlattliError, RuntimeError, BlockingIOError):
    """Another live writer owns the run directory."""


class RunFinishedError(PlattliError, RuntimeError):
    """The writer has finished, or a newer writer took the run over."""


class RunBrokenError(PlattliError, RuntimeError):
    """An earlier disk failure stopped the writer; the cause is chained."""


class RowIndexError(PlattliError, IndexError):
    """The metric has no row of that number."""


class ConversionError(PlattliError, ValueError):
    """Stored values that the requested dtype cannot hold exactly."""


class UnstableRunError(PlattliError, RuntimeError):
    """A writer changed the run again and again while it was being read: try once more."""


class RemoteError(PlattliError, ConnectionError):
    """A server could not be reached, or did not give the bytes that it was asked for."""


class ReaderClosedError(PlattliError, RuntimeError):
    """The reader of an archive was closed before this read."""


class LogLineError(PlattliError, ValueError, TypeError):
    """A line of a JSONL training log is not a row, or its step is out of order."""
