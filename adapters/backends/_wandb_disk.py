"""How many rows are in the file that W&B's service writes: those survive whatever ends the service.

A ``run-ID.wandb`` file is a header of seven bytes, then blocks of 32 KiB in the manner of a LevelDB log: pieces of
checksum, length, kind and payload, where a record too long for a block is cut in several pieces.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from adapters._require import require

_HEADER: Final = 7
_BLOCK: Final = 32 * 1024
_PIECE: Final = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class RowsOnDisk:
    """Counts the rows of one file, which may be growing, or end in the middle of a record.

    Args:
        path: the file. One that is not there has no rows.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = _HEADER
        self._rows = 0
        self._record: Any = require("wandb.proto.wandb_internal_pb2", extra="wandb", who="WandbLogger").Record

    def count(self) -> int:
        """Return the rows that are there whole; what was counted before is not read again."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            return self._rows
        start, at, pending = self._at, 0, b""
        while at + _PIECE.size <= len(content):
            left = _BLOCK - (start + at) % _BLOCK
            if left < _PIECE.size:
                at += left
                continue
            _, size, kind = _PIECE.unpack_from(content, at)
            if kind == 0:  # the rest of a block is padding
                at += left
                continue
            piece = content[at + _PIECE.size : at + _PIECE.size + size]
            if len(piece) < size:
                break  # torn, or not all written yet
            at += _PIECE.size + size
            pending = piece if kind in (_WHOLE, _FIRST) else pending + piece
            if kind in (_WHOLE, _LAST):
                self._rows += self._record.FromString(pending).HasField("history")
                self._at = start + at
        return self._rows
