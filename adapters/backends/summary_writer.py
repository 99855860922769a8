"""An existing ``SummaryWriter``, of PyTorch or tensorboardX, as a logger.

A driver or a tee takes the writer itself: ``pyproject.toml`` declares :class:`SummaryWriterLogger` for both classes,
and ``loggers`` makes one when it meets a writer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from adapters.backends._tfrun import Run
from adapters.backends._tfstate import RunState
from adapters.backends.tensorboard import TensorBoardLogger
from loggers.contract import JSON
from loggers.errors import LoggerError, RecordError

_WHO: Final = "SummaryWriterLogger"


class SummaryWriterLogger(TensorBoardLogger):
    """The ten verbs, through a ``SummaryWriter`` that somebody else has made and goes on using.

    What becomes of each verb is what :class:`~adapters.backends.tensorboard.TensorBoardLogger` makes of it,
    handed to the writer as events, so in its order and its file; only the row of the HParams table has a small
    file of its own beside it. ``finish`` flushes the writer and does not close it: it is not ours. Events wait in
    the writer's queue; with tensorboardX, whose ``flush`` does not wait for that, until its owner closes it.

    There is no state to reattach: where a resumed run goes is the writer's to say, and so is what is cut, with
    ``SummaryWriter(log_dir, purge_step=step + 1)``.

    Each line costs the caller what the writer's queue costs, ten to twenty times as much as a ``TensorBoardLogger``.
    The logger cannot be pickled, because the writer cannot. After ``fork`` the child's copy does nothing.

    Args:
        writer: the writer.

    Raises:
        LoggerError: it is none.
    """

    def __init__(self, writer: Any) -> None:
        logdir = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
        if not isinstance(logdir, (str, os.PathLike)) or not hasattr(writer, "_get_file_writer"):
            raise LoggerError(
                f"{_WHO} needs a SummaryWriter of torch.utils.tensorboard or tensorboardX, got "
                f"{type(writer).__name__}: pass TensorBoardLogger(logdir) to write a directory of one's own"
            )
        super().__init__(logdir)
        self._writer = writer
        self._run = _WriterRun(writer, self._logdir)
        self._pid = self._home = os.getpid()

    def __reduce__(self) -> NoReturn:
        raise LoggerError(
            f"{self!r} holds a live {type(self._writer).__name__}, which cannot be pickled or copied: use "
            "TensorBoardLogger(logdir) for a logger that moves to another process"
        )

    def __repr__(self) -> str:
        return f"{_WHO}({self._logdir!r})"

    def logger_state(self) -> None:  # type: ignore[override]
        """Return ``None``: the writer says where a resumed run goes on."""

    def reattach(self, state: Any) -> NoReturn:
        """Refuse: there is nothing to reattach.

        Raises:
            RecordError: always.
        """
        raise RecordError(
            f"{self!r} cannot cut what is there: hand over SummaryWriter(log_dir, purge_step=step + 1), or use "
            "TensorBoardLogger(log_dir), which resumes from a checkpoint by itself"
        )

    def backend(self) -> Any:
        """Return the writer."""
        return self._writer

    def logger_info(self) -> dict[str, JSON]:
        """Return a few facts for people and tools, among them the command that shows the run."""
        return {**super().logger_info(), "logger": _WHO}


class _WriterRun(Run):
    """A run whose events go through a ``SummaryWriter``."""

    def __init__(self, writer: Any, logdir: str) -> None:
        state = RunState(logdir=logdir, started=time.time())
        super().__init__(logdir, _Events(writer), state, ended=False, who=_WHO)

    def _write_first(self, values: Sequence[bytes]) -> None:
        if os.path.isdir(self._logdir):
            super()._write_first(values)
        else:  # a bucket, or no files at all; then it is the first row that TensorBoard goes by
            for value in values:
                self._write(value, 0)


class _Events:
    """A ``SummaryWriter`` as a place for encoded events."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        # each package's file writer takes events of its own class only
        home = "tensorboardX.proto" if _package(writer) == "tensorboardX" else "tensorboard.compat.proto"
        self._parse: Callable[[bytes], Any] = import_module(f"{home}.event_pb2").Event.FromString

    def write(self, event: bytes) -> tuple[int, int]:
        message = self._parse(event)
        self._writer._get_file_writer().add_event(message, message.step, message.wall_time)
        return 0, 0

    def spans(self, since: tuple[int, int]) -> list[tuple[str, int, int]]:
        return []

    def close(self) -> None:
        self._writer.flush()


def _package(writer: Any) -> str:
    """Return the package of the ``SummaryWriter`` that ``writer`` is, or is derived from."""
    names = (cls.__module__.split(".")[0] for cls in type(writer).__mro__ if cls.__name__ == "SummaryWriter")
    return next((name for name in names if name in ("torch", "tensorboardX")), "torch")
