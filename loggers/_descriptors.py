"""Descriptors of files that one process writes at a time, wherever they are moved."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX locks on this platform
    fcntl = None  # type: ignore[assignment]


def close_all(fds: list[int], leave: int = 0) -> None:
    """Close descriptors, those that were opened first: each once, whatever interrupts it."""
    while len(fds) > leave:
        fd = fds[0]
        del fds[0]
        os.close(fd)


def lock(fd: int) -> bool:
    """Lock an open file; return whether nobody else has."""
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # a file system without locks
    return True


def path_of(fd: int) -> Path | None:
    """Return the path of an open file by now, ``None`` where the system does not tell."""
    with contextlib.suppress(OSError):
        if hasattr(fcntl, "F_GETPATH"):
            return Path(os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    return None
