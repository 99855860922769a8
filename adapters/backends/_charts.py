"""Which metrics TensorBoard's Custom Scalars tab draws with all their contexts in one chart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from adapters.backends._tfproto import text_bytes

#: The one category of the layout. TensorBoard merges what several runs say of a category, but gets those wrong
#: that the first run does not have.
TITLE: Final = "all contexts"
#: A tab of more charts is only scrolled, and a loop that makes up names would write them all, again and again.
MOST_CHARTS: Final = 200


class Charts:
    """A chart for each metric that is logged in two contexts or more, as ``train`` and ``validate`` loss.

    Equal charts of several runs are shown as one. So the pattern by which a chart finds its curves names no
    context, and two runs have equal charts for a metric though one of them was tested too.

    Args:
        contexts: metric -> its contexts, for metrics that have a chart already.
    """

    def __init__(self, contexts: Mapping[str, Iterable[str]]) -> None:
        self._contexts: dict[str, set[str]] = {name: {*known} for name, known in contexts.items()}
        self._patterns: dict[str, list[str]] = {}
        for name in self._contexts:
            self._draw(name)

    def add(self, context: str, names: Iterable[str]) -> bool:
        """Take note that ``context`` has these metrics, and return whether that is news for :meth:`layout`."""
        changed = False
        for name in names:
            contexts = self._contexts.setdefault(name, set())
            if context not in contexts:
                contexts.add(context)
                changed |= self._draw(name)
        return changed

    def layout(self) -> dict[str, list[str]]:
        """Return title -> patterns of its curves' tags, for each chart."""
        return self._patterns

    def contexts(self) -> dict[str, list[str]]:
        """Return metric -> contexts of those that have a chart: what a later process has to be told."""
        return {name: sorted(self._contexts[name]) for name in self._patterns}

    def _draw(self, name: str) -> bool:
        contexts = self._contexts[name]
        known = name in self._patterns
        if len(contexts) < 2 or name == "epoch" or (not known and len(self._patterns) >= MOST_CHARTS):
            return False
        patterns = [rf"[^/]+/{_literal(name)}$"] if any("/" not in context for context in contexts) else []
        patterns += [f"{_literal(f'{context}/{name}')}$" for context in sorted(contexts) if "/" in context]
        changed = self._patterns.get(name) != patterns
        self._patterns[name] = patterns
        return changed


def _literal(text: str) -> str:
    return re.escape(text_bytes(text).decode())
