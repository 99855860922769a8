"""Where the files in an archive are.

An archive as writers make it is read here. Everything else a zip may be is left to :mod:`zipfile`, which takes
many times as long: compressed or encrypted members, 4 GiB and more, comments, bytes ahead of the archive, names
in old encodings, and damage.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol

from plattli.errors import CorruptRunError

#: How much of the end of an archive is read first: most directories, and the manifest, are in it.
TAIL: Final = 16 << 10
_END: Final = struct.Struct("<4s4x2x2x2LH")  # of the archive: magic, size and offset of the directory, of a comment
_END_MAGIC: Final = b"PK\x05\x06"
_LARGE_MAGIC: Final = b"PK\x06\x07"
_LARGE_SIZE: Final = 20  # of what says, ahead of the end, that the numbers are elsewhere
_LARGE: Final = 0xFFFFFFFF  # instead of a number that is elsewhere
#: In the directory: magic, flags, method, checksum, both sizes, lengths of name, extra field and comment, offset.
_ENTRY: Final = struct.Struct("<4s4x2H4x3L3H8xL")
_ENTRY_MAGIC: Final = b"PK\x01\x02"
#: Ahead of a member: magic, checksum, lengths of name and extra field.
_HEADER: Final = struct.Struct("<4s10xL8x2H")
HEADER_SIZE: Final = _HEADER.size  # the name and an extra field follow
_HEADER_MAGIC: Final = b"PK\x03\x04"
_HAS_NO_CRC: Final = 0x08  # flag: the header was written before the data were known
_IS_UTF8: Final = 0x800  # flag: of the name
_OTHER_FLAGS: Final = ~(_HAS_NO_CRC | _IS_UTF8)


class RandomAccess(Protocol):
    """An open file.

    Attributes:
        size: how many bytes it has.
    """

    size: int

    def pread(self, length: int, offset: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on; fewer at the end of the file."""

    def stream(self) -> IO[bytes]:
        """Return the same file as :mod:`zipfile` wants it."""

    def close(self) -> None:
        """Close it. Calling it again does nothing."""


class Member(NamedTuple):
    """What the directory says of a file.

    Attributes:
        name: as the archive spells it.
        crc: its checksum.
        size: in bytes.
        header: where it begins, with a header.
        extra: how long the header's extra field is likely to be, in bytes.
        has_header_crc: whether the header has the checksum, too.
        packed: if the bytes do not stand there as they are: what ``zipfile`` needs to unpack them.
    """

    name: bytes
    crc: int
    size: int
    header: int
    extra: int
    has_header_crc: bool
    packed: zipfile.ZipInfo | None = None


def members(file: RandomAccess) -> tuple[dict[str, Member], zipfile.ZipFile | None]:
    """Return the files in an archive, and what unpacks them if that is needed.

    Of files with the same name the last one counts.

    Raises:
        zipfile.BadZipFile, OSError, ValueError, RuntimeError: not a zip, or a damaged one.
    """
    found = _usual(file)
    if found is not None:
        return found, None
    archive = zipfile.ZipFile(file.stream())
    return {info.filename: _member(info) for info in archive.infolist()}, archive


def _usual(file: RandomAccess) -> dict[str, Member] | None:
    """Return the files in an archive as writers make it, ``None`` of any other."""
    at = max(0, file.size - TAIL)
    tail = file.pread(file.size - at, at)
    end = len(tail) - _END.size
    if end < 0:
        return None
    magic, length, start, comment = _END.unpack_from(tail, end)
    if magic != _END_MAGIC or comment or start + length + _END.size != file.size:
        return None
    if tail.startswith(_LARGE_MAGIC, max(0, end - _LARGE_SIZE)):
        return None
    data = tail[end - length : end] if length <= end else file.pread(length, start)
    found = {}
    at = 0
    try:
        while at < length:
            magic, flags, method, crc, packed, size, name_size, extra_size, more, header = _ENTRY.unpack_from(data, at)
            begin = at + _ENTRY.size
            spelled = data[begin : begin + name_size]
            at = begin + name_size + extra_size + more
            if magic != _ENTRY_MAGIC or method or flags & _OTHER_FLAGS or packed != size:
                return None
            if size == _LARGE or header == _LARGE or b"\0" in spelled:
                return None
            name = spelled.decode("utf-8" if flags & _IS_UTF8 else "ascii")
            found[name] = Member(spelled, crc, size, header, extra_size, not flags & _HAS_NO_CRC)
    except (struct.error, UnicodeDecodeError):
        return None
    return found if at == length == len(data) else None


def _member(info: zipfile.ZipInfo) -> Member:
    name = info.orig_filename.encode("utf-8" if info.flag_bits & _IS_UTF8 else "cp437")
    is_plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & _OTHER_FLAGS
    has_crc = not info.flag_bits & _HAS_NO_CRC
    return Member(name, info.CRC, info.file_size, info.header_offset, len(info.extra), has_crc,
                  None if is_plain else info)  # fmt: skip


def data_start(file: RandomAccess, member: Member, where: Path | str) -> int:
    """Return where the data of a member begin.

    The directory says where the member's header is, and only that header how long it is.

    Args:
        file: the archive.
        member: what the directory says.
        where: what to call the archive, for the message.

    Raises:
        CorruptRunError: there is no such header, or the archive ends before the data do.
    """
    at, name = member.header, member.name
    header = file.pread(HEADER_SIZE + len(name), at) if 0 <= at < file.size else b""
    if len(header) < HEADER_SIZE + len(name) or not header.startswith(_HEADER_MAGIC):
        raise CorruptRunError(f"{_shown(member)} has no header where {where} says it is")
    _, crc, name_size, extra_size = _HEADER.unpack_from(header)
    if name_size != len(name) or not header.endswith(name) or (member.has_header_crc and crc != member.crc):
        raise is_another(member, where)
    start: int = at + HEADER_SIZE + name_size + extra_size
    if start + member.size > file.size:
        raise CorruptRunError(f"{where} ends before its member {_shown(member)} does")
    return start


def is_another(member: Member, where: Path | str) -> CorruptRunError:
    """Return the error to raise when a member is not what the directory says."""
    return CorruptRunError(
        f"{_shown(member)} is not what the directory of {where} says: the archive was replaced since it was "
        f"opened, or is damaged; open a new reader"
    )


def _shown(member: Member) -> str:
    return member.name.decode(errors="backslashreplace")
