"""What one context of a run has written to TensorBoard: enough to notice late and repeated values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat

from adapters.backends._tfproto import ScalarRow

#: Row shapes whose encoders are kept. A loop has a handful; names that change every step would pile up.
_MOST_ENCODERS = 128


class Series:
    """The tags ``<context>/<name>`` of one context.

    TensorBoard's fast reader takes a step that goes back within a tag for a restart, and forgets the
    newer points; its other reader shows a repeated step as two points. So each tag has to be written
    in the order of its steps, and a value that is there already has to be left out.

    Args:
        context: what the tags begin with.
        floor: the last step of the process before this one, or -1.
        on_names: called with the context and the names of a row whose like has not been seen yet, before the
            row is written. When it raises, it is called again with the next such row.
    """

    __slots__ = ("_encoders", "_floor", "_latest", "_older", "_on_names", "_row", "context", "step")

    def __init__(
        self, context: str, floor: int = -1, *, on_names: Callable[[str, Iterable[str]], None] | None = None
    ) -> None:
        self.context = context
        self._on_names = on_names
        self._encoders: dict[tuple[str, ...], ScalarRow] = {}
        self._floor = floor
        #: The highest step written.
        self.step = floor
        self._row: dict[str, float] = {}  # what was written at that step
        self._latest: ScalarRow | None = None  # the encoder of all of _row, if it was one row
        #: The last step and value of the names that are not in _row.
        self._older: dict[str, tuple[int, float | None]] = {}

    def encoder(self, row: Mapping[str, float]) -> ScalarRow:
        """Return the encoder for rows with these names in this order.

        Raises:
            TypeError: a name is no text, or empty. Names that have an encoder are not looked at again.
        """
        names = (*row,)
        encoder = self._encoders.get(names)
        if encoder is None:
            if not all(type(name) is str and name for name in names):
                raise TypeError(f"a row's names must be non-empty text, got {names}")
            if len(self._encoders) >= _MOST_ENCODERS:
                self._encoders.clear()
            if self._on_names is not None:
                self._on_names(self.context, names)
            encoder = ScalarRow(f"{self.context}/{name}" for name in names)
            self._encoders[names] = encoder
        return encoder

    def news(self, row: Mapping[str, float], step: int) -> tuple[dict[str, float], list[str]]:
        """Return what of a row can be written at ``step``, and the names for which it is too late.

        What is in neither is there already, with the same value. Only needed where ``step`` is not
        above :attr:`step`.
        """
        new, late = {}, []
        for name, value in row.items():
            here = name in self._row
            last, there = (self.step, self._row[name]) if here else self._older.get(name, (self._floor, None))
            if step < last:
                late.append(name)
            elif step > last or not (value == there or (value != value and there != there)):
                new[name] = value
        return new, late

    def wrote(self, row: dict[str, float], step: int, encoder: ScalarRow) -> None:
        """Take note that ``row`` was written at ``step``. The row belongs to this object from now on."""
        if step > self.step:
            if encoder is not self._latest:
                self._older.update(zip(self._row, zip(repeat(self.step), self._row.values()), strict=False))
                self._latest = encoder
            self._row, self.step = row, step
        elif step == self.step:
            self._row.update(row)
            self._latest = None
        else:
            self._older.update(zip(row, zip(repeat(step), row.values()), strict=False))
