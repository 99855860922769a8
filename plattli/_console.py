"""What a command-line program needs of its terminal: any name printable, quiet ends, a progress bar."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

#: What a shell reports for a program that a closed pipe, or Ctrl-C, ended.
_CLOSED_PIPE: Final = 141
_INTERRUPTED: Final = 130
#: Quick work shows no bar.
_BAR_AFTER_S: Final = 1.0
_BAR_WIDTH: Final = 30


def run_program(program: Callable[[], int]) -> int:
    """Run ``program`` the way a shell user expects, and return its exit code.

    Characters that the terminal cannot show are printed as escapes instead of ending the program. A
    reader that closes the pipe (``| head``), a full disk behind stdout and Ctrl-C end it without a
    traceback.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the program was started without one; this stays open as long as it runs
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = program()
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return _CLOSED_PIPE
    except OSError as error:
        print(error, file=sys.stderr)
        _discard_output()
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _discard_output() -> None:
    # the interpreter flushes stdout once more at its end, and would complain
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal_width(stream: TextIO) -> int | None:
    """Return how many columns ``stream`` shows, ``None`` if it is no terminal and nobody said.

    The environment variable ``COLUMNS`` wins, as everywhere.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wants_colour(stream: TextIO) -> bool:
    """Tell whether ``stream`` is a terminal that takes colours, and its user has not said no."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def can_show(stream: TextIO, text: str) -> bool:
    """Tell whether the encoding of ``stream`` has all characters of ``text``."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Progress:
    """A bar on a terminal, once the work has taken a second; nothing anywhere else."""

    def __init__(self, stream: TextIO, *, total: int, unit: str) -> None:
        """Start the clock.

        Args:
            stream: where to draw; only a terminal is drawn on.
            total: how much there is to do, in any measure.
            unit: what to call what :meth:`update` counts in words, such as ``"runs"``.
        """
        self._stream = stream
        self._total = max(total, 1)
        self._unit = unit
        self._start = time.monotonic()
        self._drawn = False

    def update(self, done: int, words: str) -> None:
        """Redraw the bar.

        Args:
            done: how much is done of the total.
            words: what stands behind the bar, before the unit: ``"3 of 12"``.
        """
        elapsed = time.monotonic() - self._start
        if not self._stream.isatty() or elapsed < _BAR_AFTER_S:
            return
        share = min(done / self._total, 1.0)
        full = round(share * _BAR_WIDTH)
        left = f", {elapsed * (1 - share) / share:.0f} s left" if share > 0.02 else ""
        bar = "#" * full + "." * (_BAR_WIDTH - full)
        self._stream.write(f"\r\x1b[K[{bar}] {share:4.0%}  {words} {self._unit}{left}")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the bar away, so that a line can be printed."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
