"""How rows wait in memory: packed as they will lie in the columns, so that a batch moves in a few steps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from plattli import _dtypes, _hotlog
from plattli._columns import Column
from plattli._format import DTYPES, JSONL, MAX_NARROW_STEP

#: the steps of a column's part of a batch, int64 [n], and its values, [n]
Piece: TypeAlias = "tuple[np.ndarray[Any, Any], Any]"

#: How many rows of a layout make it worth a function of its own, and how many metrics are too many: compiling takes
#: 5 us for each, in one call.
_UNTRIED: Final = 50
_WIDEST: Final = 300


class Layout:
    """The metrics of one kind of row: how its numbers are packed, how its line is spelled."""

    __slots__ = ("_spell", "_untried", "columns", "exact", "folded", "highest", "keys", "last", "names", "numbers",
                 "numeric", "others", "pack", "table", "unpack")  # fmt: skip

    def __init__(self, names: tuple[str, ...], columns: list[Column]) -> None:
        self.names = names
        #: what a line of the hot log is made of
        self.keys = ("step", *names)
        self.columns = columns
        #: positions of the numeric and of the JSON values
        self.numbers = [i for i, column in enumerate(columns) if column.code != JSONL]
        self.others = [i for i, column in enumerate(columns) if column.code == JSONL]
        self.numeric = not self.others
        codes = [columns[i].code for i in self.numbers]
        #: no column rounds a Python float
        self.exact = self.numeric and "f32" not in codes
        row = struct.Struct("<" + "".join(_dtypes.PACK[code] for code in codes))
        self.pack = row.pack
        self.unpack = row.unpack
        self.table = np.dtype([(f"f{i}", DTYPES[code]) for i, code in enumerate(codes)])
        #: highest step that the manifest is ready for in all of its columns
        self.highest = MAX_NARROW_STEP
        #: highest step of a row of this layout, and how much of that its columns know
        self.last = self.folded = -1
        self._spell: Callable[..., dict[str, Any]] = self._spell_first
        self._untried = _UNTRIED

    def line(self, step: int, numbers: tuple[Any, ...]) -> bytes:
        """Return the line of a row that has only numbers, as they are stored."""
        row = self._spell(step, *numbers)
        total = sum(numbers)
        # NaN and the infinities leave their mark on the sum; without them there is nothing to look for
        return _hotlog.encode_finite(row) if total - total == 0 else _hotlog.encode(row)

    def _spell_first(self, *values: Any) -> dict[str, Any]:
        self._untried -= 1
        if not self._untried and len(values) <= _WIDEST:
            self._spell = _speller(self.keys)
        return dict(zip(self.keys, values, strict=True))


def _speller(keys: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """Return a function that makes a dict with these keys of as many values.

    Keys that are constants of a function cost half of what they do coming from a tuple, and making a dict is the
    dearest part of a line. Compiling it pays for layouts that many rows have.
    """
    values = [f"_{i}" for i in range(len(keys))]
    pairs = ",".join(f"{key!r}:{value}" for key, value in zip(keys, values, strict=True))
    spell: Callable[..., dict[str, Any]] = eval(f"lambda {','.join(values)}:{{{pairs}}}", {"__builtins__": {}})
    return spell


class Row:
    """One row: its numbers packed as in the columns, its JSON values as they are."""

    __slots__ = ("layout", "others", "packed")

    def __init__(self, layout: Layout, packed: bytes, others: Sequence[Any]) -> None:
        self.layout = layout
        self.packed = packed
        self.others = others

    def values(self) -> dict[str, Any]:
        layout = self.layout
        if layout.numeric:
            return dict(zip(layout.names, layout.unpack(self.packed), strict=True))
        row = dict(zip((layout.names[i] for i in layout.numbers), layout.unpack(self.packed), strict=True))
        row.update(zip((layout.names[i] for i in layout.others), self.others, strict=True))
        return row

    def line(self, step: int) -> bytes:
        if self.layout.numeric:
            return self.layout.line(step, self.layout.unpack(self.packed))
        return _hotlog.encode({"step": step, **self.values()})


class HotRows:
    """The rows that are not in the columns yet, in the order in which their steps came.

    A row of numbers is an integer and some bytes in here, nothing that the cycle collector counts or visits: thousands
    of waiting :class:`Row` would set off collections of all that the program has, inside its calls of the logger.
    """

    __slots__ = ("_layouts", "_others", "_packed")

    def __init__(self, rows: Iterable[tuple[int, Row]] = ()) -> None:
        self._layouts: dict[int, Layout] = {}
        self._packed: dict[Layout, dict[int, bytes]] = {}
        self._others: dict[int, Sequence[Any]] = {}
        for step, row in rows:
            self[step] = row

    def __len__(self) -> int:
        return len(self._layouts)

    def __contains__(self, step: int) -> bool:
        return step in self._layouts

    def __setitem__(self, step: int, row: Row) -> None:
        layout = row.layout
        old = self._layouts.get(step)
        if old is not None and old is not layout:
            del self._packed[old][step]
        self.add(step, layout, row.packed, row.others)

    def add(self, step: int, layout: Layout, packed: bytes, others: Sequence[Any]) -> None:
        """Put in a row of a step that has none yet, or one of the same layout; see :class:`Row`."""
        self._layouts[step] = layout
        try:
            self._packed[layout][step] = packed
        except KeyError:
            self._packed[layout] = {step: packed}
        if others:
            self._others[step] = others

    def __delitem__(self, step: int) -> None:
        del self._packed[self._layouts.pop(step)][step]
        self._others.pop(step, None)

    def get(self, step: int) -> Row | None:
        """Return the row of a step, if there is one."""
        return self._row(step) if step in self._layouts else None

    def items(self) -> Iterator[tuple[int, Row]]:
        """Yield each step and its row."""
        return zip(self._layouts, self.values(), strict=True)

    def values(self) -> Iterator[Row]:
        """Yield each row."""
        return map(self._row, self._layouts)

    def whole(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each step and what its row holds, but for a row that Ctrl-C has left half in here."""
        for step in list(self._layouts):
            try:
                yield step, self._row(step).values()
            except (KeyError, ValueError):
                continue

    def _row(self, step: int) -> Row:
        layout = self._layouts[step]
        return Row(layout, self._packed[layout][step], self._others.get(step, ()))

    def highest(self) -> int:
        """Return the highest step, -1 without rows."""
        return max(self._layouts, default=-1)

    def by_column(self) -> dict[Column, Piece]:
        """Return each column's steps, rising, and values, without a loop over rows or values of numbers."""
        pieces: dict[Column, list[Piece]] = {}
        for layout, rows in self._packed.items():
            if not rows:
                continue
            steps = np.fromiter(rows, np.int64, len(rows))
            order = None if bool((steps[1:] > steps[:-1]).all()) else np.argsort(steps)
            if order is not None:
                steps = steps[order]
            # one copy turns rows into columns; a layout without numbers has nothing to turn
            table: Any = np.frombuffer(b"".join(rows.values()), layout.table) if layout.numbers else None
            if table is not None and order is not None:
                table = table[order]
            for position, i in enumerate(layout.numbers):
                pieces.setdefault(layout.columns[i], []).append((steps, table[f"f{position}"]))
            if layout.others:
                others = [self._others[step] for step in steps.tolist()]
                for position, i in enumerate(layout.others):
                    pieces.setdefault(layout.columns[i], []).append((steps, [values[position] for values in others]))
        return {column: _in_step_order(column, parts) for column, parts in pieces.items()}


def _in_step_order(column: Column, parts: list[Piece]) -> Piece:
    if len(parts) == 1:
        return parts[0]
    steps = np.concatenate([part[0] for part in parts])
    order = np.argsort(steps, kind="stable")
    if column.code == JSONL:
        values = [value for part in parts for value in part[1]]
        return steps[order], [values[i] for i in order]
    numbers = np.concatenate([np.asarray(part[1]).astype(DTYPES[column.code]) for part in parts])
    return steps[order], numbers[order]
