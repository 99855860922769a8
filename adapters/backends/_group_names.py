"""Series keys as names of Zarr nodes, and back.

=====================================  ==============================================
``train/loss``                         ``train%2Floss``: every byte of the UTF-8 key outside ``[A-Za-z0-9._-]``
``.``, ``..``, ``__x``                 ``%2E``, ``%2E.``, ``%5F_x``: names that Zarr forbids lose their first byte
``zarr.json``                          ``%7Aarr.json``: there lies the document of the folder itself
=====================================  ==============================================

Every key has a safe name and no two have the same one. The empty string is no key.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from loggers.errors import MetricNameError

#: What a file system takes as the name of one file or folder, in bytes.
LONGEST: Final = 255


def safe_name(key: str) -> str:
    """Return the name of the arrays of a series.

    Raises:
        MetricNameError: the key is empty, or holds a lone surrogate, which UTF-8 cannot spell.
    """
    if not key:
        raise MetricNameError("a series key must not be empty; give the metric a name")
    try:
        data = key.encode()
    except UnicodeEncodeError:
        raise MetricNameError(
            f"series key {key!r} holds a lone surrogate, which UTF-8 cannot spell; remove it"
        ) from None
    # what this function never escapes is [A-Za-z0-9_.~-]; of that, only the tilde has to be
    name = quote_from_bytes(data, safe="").replace("~", "%7E")
    if name in (".", "..", "zarr.json") or name.startswith("__"):
        return f"%{data[0]:02X}{name[1:]}"
    return name


def series_key(name: str) -> str:
    """Return the key whose safe name this is.

    Raises:
        MetricNameError: it is nobody's.
    """
    try:
        key = unquote_to_bytes(name).decode()
        if safe_name(key) == name:
            return key
    except (UnicodeDecodeError, MetricNameError):
        pass
    raise MetricNameError(f"{name!r} is not the safe name of a series key")


def check_key(key: str) -> None:
    """Raise for a key that could be logged, but not stored.

    Raises:
        MetricNameError: it has no safe name, or one that is longer than file systems take.
    """
    size = len(safe_name(key))
    if size > LONGEST:
        raise MetricNameError(
            f"series key {key[:60]!r}… is {size} bytes as the name of a Zarr array, and file systems take {LONGEST}; "
            "shorten it"
        )
