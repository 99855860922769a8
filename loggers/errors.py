"""Everything the loggers raise on purpose.

::

    LoggerError
    ├── MissingVerbError     (AttributeError)         a logger lacks one of the ten verbs
    ├── VerbSignatureError   (TypeError)              a verb that cannot take the contract's arguments
    ├── StepError            (ValueError, TypeError)  a step that is no non-negative integer
    ├── MetricNameError      (ValueError, TypeError)  a metric or context name nothing could store
    ├── MetricValueError     (ValueError, TypeError)  values that no column can hold; names each one
    ├── ConfusionError       (ValueError)             a confusion matrix that is not square, or its labels
    ├── StatusError          (ValueError)             a finish status outside the four
    ├── RecordError          (ValueError, TypeError)  logger state that is not plain JSON data, or foreign
    ├── RunExistsError       (FileExistsError)        a run is there and nobody said what to do with it
    ├── RunLockedError       (BlockingIOError)        another live process writes the run
    ├── LoggerFinishedError  (RuntimeError)           a verb after ``finish``
    ├── UnwrittenError       (OSError)                the disk takes nothing, and memory no more, or the run ends
    ├── NoPathError          (ValueError)             a logger that nobody told where to write
    ├── PathError            (ValueError)             a path where nothing can ever be written
    ├── SessionError         (RuntimeError)           a training session used out of order
    ├── RankError            (ValueError)             an environment whose process rank is no number
    ├── UndeliveredError     (RuntimeError)           a replica did not get everything in time
    ├── UnreachableError     (ConnectionError)        a tracker's server is not there; later it may be
    └── RefusedError         (ValueError)             a tracker refuses account or run; trying again is no help

Each class is also the builtin that a caller would catch.
"""

from __future__ import annotations

from collections.abc import Iterable


class LoggerError(Exception):
    """Base of every error raised by the loggers."""


class MissingVerbError(LoggerError, AttributeError):
    """The object handed over as a logger lacks a verb that was called."""


class VerbSignatureError(LoggerError, TypeError):
    """A verb is there, but calling it as drivers do would be a ``TypeError``."""


class StepError(LoggerError, ValueError, TypeError):
    """The step is not a non-negative integer that the logger can store."""


class MetricNameError(LoggerError, ValueError, TypeError):
    """A metric or context name that no backend could store."""


class MetricValueError(LoggerError, ValueError, TypeError):
    """One or more values could not be logged; their siblings were.

    Args:
        message: names each of them.
        metrics: their names alone; a name that is no text, or empty, stands here as its ``repr``.
    """

    def __init__(self, message: str = "", *, metrics: Iterable[str] = ()) -> None:
        super().__init__(message)
        #: The names of the metrics that were not logged, none if the error is about something else.
        self.metrics = frozenset(metrics)


class ConfusionError(LoggerError, ValueError):
    """The confusion matrix is not square, or does not fit its labels."""


class StatusError(LoggerError, ValueError):
    """The finish status is not one of the four that drivers use."""


class RecordError(LoggerError, ValueError, TypeError):
    """Logger state that JSON cannot hold, or a record that belongs to another logger."""


class RunExistsError(LoggerError, FileExistsError):
    """The directory already holds a run, and neither ``reattach`` nor ``if_exists=`` was used."""


class RunLockedError(LoggerError, BlockingIOError):
    """Another live process writes the run; the message names it."""


class LoggerFinishedError(LoggerError, RuntimeError):
    """A verb was called after ``finish``."""


class UnwrittenError(LoggerError, OSError):
    """The disk takes nothing, and lines cannot wait any longer; the message counts them."""


class NoPathError(LoggerError, ValueError):
    """The logger was built without a path, and no driver has given it a directory."""


class PathError(LoggerError, ValueError):
    """Nothing can ever be written to the path: a file is where a folder has to be, or a name is too long."""


class SessionError(LoggerError, RuntimeError):
    """A training session was used outside its ``with`` block, twice, or in the wrong order."""


class RankError(LoggerError, ValueError):
    """The launcher's environment variable for the process rank does not hold a number."""


class UndeliveredError(LoggerError, RuntimeError):
    """A replica had not received everything when its finish timeout ended."""


class UnreachableError(LoggerError, ConnectionError):
    """A tracker's server cannot be reached; trying again later may help."""


class RefusedError(LoggerError, ValueError):
    """A tracker refuses the account or the run it was given; trying again does not help."""
