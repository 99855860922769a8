"""Which lines a restarted run has logged again.

A run that goes on from a checkpoint logs the steps behind it once more. A resume of ours cuts the old ones first; a
file that was only appended to still has them, those included that the new attempt has not come to. Some sources say
where an attempt begins. In the others it is told from two steps of the same kind of line (context and names): one
that was there before, and behind it one that is not beyond the newest. A single line of an earlier step is a late
one, or a correction, and takes nothing away.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

#: ``auto``: as above. ``cut``: every step back is a restart. ``keep``: none is, the later value counts.
MODES: Final = ("auto", "cut", "keep")


#: Context and names.
_Kind: TypeAlias = tuple[str, frozenset[str]]


class Cut(NamedTuple):
    """What goes.

    Attributes:
        step: the first step that goes.
        context: the only one to cut; ``None`` for all.
        lines: how many go.
    """

    step: int
    context: str | None
    lines: int


class Overlaps:
    """Keeps the steps of every kind of line, 8 bytes each."""

    def __init__(self, mode: str, main: str) -> None:
        """Begin with no lines.

        Args:
            mode: one of :data:`MODES`.
            main: the context that a training loop logs its steps in: if that goes back, all of the run does.
        """
        self._mode = mode
        self._main = main
        self._steps: dict[_Kind, array[int]] = {}
        #: kind -> a step that was there before, if its last line was one
        self._again: dict[_Kind, int] = {}
        #: contexts in which a new attempt has logged nothing that was there before, nor behind it
        self._new: set[str] = set()
        self._alone = False

    def attempt(self, step: int | None, *, alone: bool = False) -> Cut | None:
        """Note that another process goes on; return what that takes away at once.

        Args:
            step: where it does; ``None`` if that shows only with its lines.
            alone: whether it shows in every context by itself.
        """
        if self._mode == "keep":
            return None
        if step is None:
            self._new = {context for context, _ in self._steps}
            self._alone = alone
            return None
        return self._cut(step, None)

    def line(self, step: int, context: str, names: Iterable[str]) -> Cut | None:
        """Note a line; return what it takes away before it is logged."""
        kind = (context, frozenset(names))
        steps = self._steps.get(kind)
        if steps is None:
            steps = self._steps[kind] = array("q")
        cut: Cut | None = None
        if not steps or step > steps[-1]:
            if self._again:
                self._again.pop(kind, None)
            if steps and self._new:
                self._settle(context)  # it goes on behind what there is
            steps.append(step)
            return None
        at = bisect_left(steps, step)
        known = steps[at] == step
        first = self._first_to_go(kind, step, steps[-1], known=known)
        if first is not None:
            is_new = self._is_new(context)
            everywhere = not self._alone if is_new else context == self._main
            cut = self._cut(first, None if everywhere else context)
            self._settle(context)
            at = bisect_left(steps, step)
            known = at < len(steps) and steps[at] == step
        elif known and step < steps[-1]:
            self._again[kind] = step
        if not known:
            steps.insert(at, step)
        return cut

    def _first_to_go(self, kind: _Kind, step: int, newest: int, *, known: bool) -> int | None:
        """Return the first step that a line at or below the newest of its kind takes away."""
        if self._mode == "keep" or step == newest:
            return None
        if self._mode == "cut" or self._is_new(kind[0]):
            return step
        again = self._again.get(kind)
        return again + 1 if again is not None and step > again else None

    def _is_new(self, context: str) -> bool:
        return context in self._new or (bool(self._new) and not self._alone)

    def _settle(self, context: str) -> None:
        if self._alone:
            self._new.discard(context)
        else:
            self._new.clear()

    def _cut(self, step: int, context: str | None) -> Cut | None:
        lines = 0
        for kind, steps in self._steps.items():
            if context is None or kind[0] == context:
                at = bisect_left(steps, step)
                lines += len(steps) - at
                del steps[at:]
                self._again.pop(kind, None)
        return Cut(step, context, lines) if lines else None
