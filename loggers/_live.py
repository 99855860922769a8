"""A table of the newest values that stays in its place on a terminal, and a bar with the time that is left.

Needs the package ``rich`` (extra ``console``).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

#: Seconds between two pictures: nobody reads faster, and each costs some milliseconds.
_EVERY: Final = 0.25
#: Rows that a terminal may have room for.
_MOST: Final = 30


class LiveTable:
    """Shows one column per context and one row per metric.

    Args:
        total: steps of the whole training, ``None`` if unknown.
        file: where to; the terminal by default.
        clock: seconds, for tests.
    """

    def __init__(
        self, total: int | None, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._due = clock()
        self._console = Console(file=file)
        self._progress = Progress(
            TextColumn("step"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            auto_refresh=False,
            get_time=clock,
            console=self._console,
        )
        self._task = self._progress.add_task("train", total=total)
        self._first: int | None = None
        self._epoch: int | None = None
        #: metric -> context -> text
        self._values: dict[str, dict[str, str]] = {}
        self._steps: dict[str, int] = {}
        # redrawn by us, so that no thread runs beside training
        self._live = Live(self._picture(), console=self._console, auto_refresh=False)
        self._live.start()
        self._stop = weakref.finalize(self, self._live.stop)  # a terminal gets its cursor back in any case

    def update(self, context: str, step: int, epoch: int | None, values: Mapping[str, str]) -> None:
        """Take a line's values, and draw them if the last picture is old enough."""
        for name, text in values.items():
            self._values.setdefault(name, {})[context] = text
        self._steps[context] = step
        self._epoch = self._epoch if epoch is None else epoch
        if self._first is None:
            # a resumed training begins here: what others did says nothing about our speed
            self._first = step
            self._progress.reset(self._task, completed=step)
        newest = max(self._steps.values())
        self._progress.update(self._task, completed=newest)
        if self._clock() >= self._due:
            self._draw()

    def print(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(Text(text))

    def stop(self, *, completed: bool = False) -> None:
        """Draw the last picture, and leave it there; with a full bar if training was completed."""
        task = self._progress.tasks[0]
        if completed and task.total is not None:
            # the last line may be some steps old
            self._progress.update(self._task, completed=task.total)
        self._draw()
        self._stop()

    def _draw(self) -> None:
        self._due = self._clock() + _EVERY
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        table = Table(expand=False)
        table.add_column("" if self._epoch is None else f"epoch {self._epoch}")
        for context, step in self._steps.items():
            table.add_column(Text(f"{context}\nstep {step}"), justify="right")
        for name in list(self._values)[:_MOST]:
            table.add_row(Text(name), *(Text(self._values[name].get(context, "")) for context in self._steps))
        more = len(self._values) - _MOST
        return Group(table, self._progress, *([Text(f"and {more} more metrics")] if more > 0 else []))
