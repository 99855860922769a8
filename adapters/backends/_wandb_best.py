"""The best value so far of the metrics that somebody said a direction for, and which checkpoints have it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from loggers.errors import MetricNameError, RecordError

#: What counts as better unless one says otherwise.
DEFAULT: Final[Mapping[str, str]] = {"validate/loss": "min"}
_DIRECTIONS: Final = ("min", "max")
#: Improvements that are remembered per metric: a cut goes back behind no more than these.
_MOST: Final = 1000


class Best:
    """Keeps, per metric, its successive improvements, so that a cut can go back to an earlier one.

    Args:
        directions: metric, or pattern with ``*``, -> ``"min"`` or ``"max"``. The first that fits counts.
    """

    def __init__(self, directions: Mapping[str, str]) -> None:
        for metric, direction in directions.items():
            if not isinstance(metric, str) or direction not in _DIRECTIONS:
                raise MetricNameError(
                    f"best maps metrics to 'min' or 'max', such as {dict(DEFAULT)}, got {metric!r}: {direction!r}"
                )
        self._directions = dict(directions)
        self._ways: dict[str, str | None] = {}  # metric -> direction, as found before
        self._found: dict[str, list[tuple[int, float]]] = {}  # metric -> step, value; each better than the one before
        self._checkpoint = -1  # the step of the latest checkpoint
        self._resumed: set[str] = set()  # metrics of which nothing came since the state was taken over

    def state(self) -> dict[str, Any]:
        """Return plain JSON data for :meth:`restore`."""
        return {"checkpoint": self._checkpoint, "found": {m: [[*one] for one in f] for m, f in self._found.items()}}

    def restore(self, state: Any) -> None:
        """Go on from where the state was taken.

        Raises:
            RecordError: it is no state.
        """
        try:
            found = {str(m): [(int(step), float(v)) for step, v in f] for m, f in state["found"].items()}
            checkpoint = int(state["checkpoint"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RecordError(f"the state of a WandbLogger has bad best: got {state!r:.200}") from error
        self._found, self._checkpoint, self._resumed = found, checkpoint, set(found)

    def add(self, step: int, values: Mapping[str, Any]) -> set[str]:
        """Look at a line; return the metrics whose best has changed.

        Args:
            step: where it is. The first line after :meth:`restore` tells where training goes on: what was best
                from there on was cut off, and does not count.
            values: full name -> value.
        """
        changed = set()
        for metric, value in values.items():
            direction = self._direction(metric)
            if direction is None or type(value) not in (int, float) or not math.isfinite(value):
                continue
            found = self._found.setdefault(metric, [])
            before = found[-1:]
            again = metric in self._resumed
            self._resumed.discard(metric)
            found[:] = [one for one in found if (one[0] < step if again else one[0] != step)]
            if not found or (value < found[-1][1] if direction == "min" else value > found[-1][1]):
                found.append((step, value))
                del found[:-_MOST]
            if found[-1:] != before:
                changed.add(metric)
        return changed

    def _direction(self, metric: str) -> str | None:
        if metric not in self._ways:
            fits = (way for pattern, way in self._directions.items() if fnmatchcase(metric, pattern))
            self._ways[metric] = self._directions.get(metric) or next(fits, None)
        return self._ways[metric]

    def summary(self, metrics: Iterable[str] | None = None) -> dict[str, Any]:
        """Return what a run's summary says of some metrics, or all: ``best/<metric>`` and ``best_step/<metric>``."""
        chosen = self._found if metrics is None else metrics
        tops = {metric: self._found[metric][-1] for metric in chosen if self._found[metric]}
        values = {f"best/{metric}": value for metric, (_, value) in tops.items()}
        return values | {f"best_step/{metric}": step for metric, (step, _) in tops.items()}

    def aliases(self, step: int) -> list[str]:
        """Return what a checkpoint is called for metrics that improved between the one before and it."""
        # a checkpoint may be told of late, when later steps have been validated already
        upto = {m: max((s for s, _ in found if s <= step), default=-1) for m, found in self._found.items()}
        since = self._checkpoint if self._checkpoint < step else -1  # else it is told again, after a cut
        improved = [metric for metric, at in upto.items() if at > since]
        first = next(iter(self._directions), "")
        aliases = ["best"] if any(fnmatchcase(metric, first) for metric in improved) else []
        # W&B keeps / and : for itself
        return aliases + [f"best-{re.sub('[/:]', '-', metric)}" for metric in improved]

    def note_checkpoint(self, step: int) -> None:
        """Take note that there is a checkpoint of this step."""
        self._checkpoint = step
