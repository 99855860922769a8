"""File-system durability: the only place that knows how bytes become safe, and who owns a run.

What the rest of the package relies on:

- :func:`replace_file` is atomic: a reader sees the old bytes or the new ones, and so does a new
  process after a kill at any point.
- :func:`append_at` never extends a file over a gap and never leaves an old tail behind the new bytes.
- :class:`RunLock` lets one live writer own a run directory. The lock falls when its owner dies,
  however it dies, so nobody ever deletes a lock file by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

try:
    import fcntl
except ImportError:  # no POSIX locks on this platform: RunLock says so when it is taken
    fcntl = None  # type: ignore[assignment]

from plattli._format import TMP_SUFFIX
from plattli.errors import RunLockedError

LOCK_FILE: Final = ".plattli.lock"
#: How long a writer waits for a lock: somebody who only looks at it holds it for microseconds.
_LOCK_PATIENCE_S: Final = 1.0
#: How many threads wait for the disk at once.
_SYNCING: Final = 16

#: So many new files are rather waited for together with whatever else the disk has to write.
_MANY_FILES: Final = 256
#: From this version on, syncfs tells of failures.
_LINUX_THAT_TELLS: Final = (5, 8)
#: The file systems, as statfs numbers them, whose syncfs is as good as an fsync of each file: ext2 to ext4, XFS,
#: btrfs, F2FS, tmpfs. One that has a server, such as those behind FUSE, may not ask it.
_SYNCED_AT_ONCE: Final = frozenset((0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994))

_T = TypeVar("_T")


def is_removed(fd: int, path: str | os.PathLike[str]) -> bool:
    """Tell whether an open file is nowhere any more. Some file systems count no links, so its path is asked, too."""
    there = os.fstat(fd)
    if there.st_nlink:
        return False
    try:
        return not os.path.samestat(there, os.stat(path))
    except OSError:
        return True


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte of ``data``, or raise ``OSError``."""
    written = os.write(fd, data)
    while written < len(data):
        data = memoryview(data)[written:]
        written = os.write(fd, data)


def sync_dir(path: str | os.PathLike[str]) -> None:
    """Make the directory's entries (new names, renames, removals) survive a power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the file's bytes survive a power loss."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_files(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Make the bytes of many files survive a power loss."""
    files = list(paths)
    side_by_side(sync_file, files, helpers=len(files) // 4)


@contextlib.contextmanager
def synced_together(folder: Path) -> Iterator[list[str]]:
    """Make new files in a folder, those that a ``with`` block puts into its list, survive a power loss.

    Thousands of small files cost the disk a write or two and part of a flush each. Where the file system can be
    asked for everything at once, they are asked for so: that is a few hundred writes.
    """
    written: list[str] = []
    fd = os.open(folder, os.O_RDONLY)  # failures from here on are told
    try:
        yield written
        if len(written) < _MANY_FILES or not _sync_file_system(fd):
            sync_files(written)
    finally:
        os.close(fd)


def _sync_file_system(fd: int) -> bool:
    """Make everything on the file system of an open file survive a power loss; return whether that can be relied on.

    Raises:
        OSError: some of it was not written.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release) if sys.platform == "linux" else None
    if release is None or tuple(map(int, release.groups())) < _LINUX_THAT_TELLS:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    status = ctypes.create_string_buffer(1024)  # more than struct statfs, which begins with the kind
    if not hasattr(libc, "syncfs") or libc.fstatfs(fd, status):
        return False
    if ctypes.c_long.from_buffer(status).value not in _SYNCED_AT_ONCE:
        return False
    if libc.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


def side_by_side(work: Callable[[_T], object], items: Iterable[_T], *, helpers: int) -> None:
    """Do work that waits for the disk for many items, with the help of some threads.

    A file system commits what several threads wait for at once, and one after the other each file costs a commit of
    its own. When this returns or raises, no thread is at work.

    Raises:
        Exception: what the first failure was; items that nobody had begun are left out then.
    """
    left = deque(items)
    failures: list[Exception] = []
    busy: set[int] = set()

    def share() -> None:
        while left and not failures:
            try:
                item = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                work(item)
            except Exception as error:
                failures.append(error)

    def help_out(number: int) -> None:
        busy.add(number)
        try:
            share()
        finally:
            busy.discard(number)

    threads: list[threading.Thread] = []
    interrupted: BaseException | None = None
    try:
        for number in range(min(helpers, _SYNCING)):
            thread = threading.Thread(target=help_out, args=(number,), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break  # a limit on threads, or the interpreter is going down: fewer do
            threads.append(thread)
        share()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C
        interrupted = error
    left.clear()  # after Ctrl-C nobody begins anything more …
    while busy:  # … but a join that it ends says nothing of who is at work
        try:
            time.sleep(0.001)
        except BaseException as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
    if failures:
        raise failures[0]


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Give ``path`` the content ``data``, atomically: through a temporary file beside it.

    ``sync=False`` leaves out the fsyncs: still atomic for every process, not for a power loss.
    """
    fd = stage_file(path, data)
    try:
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    take_staged(path)
    if sync:
        sync_dir(path.parent)


def stage_file(path: Path, data: bytes) -> int:
    """Write ``data`` to the temporary file beside ``path``; return it open, to be synced if need be and closed."""
    temporary = _temporary(path)
    # a link under the temporary name must not lead the bytes somewhere else
    if temporary.is_symlink():
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def take_staged(path: Path) -> None:
    """Put the temporary file of :func:`stage_file` in the place of ``path``, atomically."""
    os.replace(_temporary(path), path)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + TMP_SUFFIX)


def make_folders(folder: Path, *, inside: Path) -> None:
    """Make a folder and those above it, inside of one that must be there: nothing is begun anew in its old place when
    a run has been moved away.

    Raises:
        FileNotFoundError: there is no ``inside``.
    """
    if folder == inside:
        return
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except FileNotFoundError:
        if folder.parent == inside:
            raise
        make_folders(folder.parent, inside=inside)
        folder.mkdir(exist_ok=True)


def append_at(path: Path, offset: int, data: bytes | memoryview, *, sync: bool = False) -> None:
    """Write ``data`` at byte ``offset``, which is where the file's good content ends.

    Longer files are cut to ``offset`` first (a torn tail of a dead writer). A shorter file is an
    error: extending it would invent bytes. With ``sync`` the whole file survives a power loss then.
    """
    fd = open_at(path, offset)
    try:
        write_at(fd, offset, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def open_at(path: Path, offset: int) -> int:
    """Open a file to append to its good content, which ends at byte ``offset``; see :func:`append_at`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        size = os.fstat(fd).st_size
        if size < offset:
            raise OSError(errno.EIO, f"file ends at byte {size}, but {offset} bytes belong there", str(path))
        if size > offset:
            os.ftruncate(fd, offset)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_at(fd: int, offset: int, data: bytes | memoryview) -> None:
    """Write every byte of ``data`` at byte ``offset``, or raise ``OSError``."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        data, offset = memoryview(data)[written:], offset + written
        written = os.pwrite(fd, data, offset)


def truncate(path: Path, size: int) -> None:
    """Cut the file to ``size`` bytes; a missing or shorter file stays as it is."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > size:
            os.truncate(path, size)


def remove(paths: Iterable[Path]) -> None:
    """Unlink the files that exist."""
    for path in paths:
        path.unlink(missing_ok=True)


# ---- who owns a run -------------------------------------------------------------------------------


class RunLock:
    """The right to write one run directory, held until :meth:`release` or the end of the process.

    The file ``<run root>/.plattli.lock`` lies beside ``plattli/``, so that no other implementation
    and no archive ever sees it. It names its owner: ``{"host", "pid", "started", "token"}``.

    Within one process a newer lock fences the older one: :attr:`lost` then says why, and the older
    writer must stop. After a fork the child's copy is lost too.
    """

    _held: Final[weakref.WeakValueDictionary[str, RunLock]] = weakref.WeakValueDictionary()

    def __init__(self, run_root: Path) -> None:
        """Take the lock of ``run_root``, which must exist.

        Raises:
            RunLockedError: another live process holds it; the message names it.
        """
        #: why this lock no longer counts, or ``None`` while it does
        self.lost: str | None = None
        #: called when a newer lock in this process takes over, so that nothing is left half done
        self.before_takeover: weakref.WeakMethod[Callable[[], None]] | None = None
        # a file object, which closes itself when nobody has it any more: an interrupted call must not leave the run
        # locked for as long as the process lives
        self._file: io.FileIO | None = None
        self._key = os.path.realpath(run_root)
        self._path = run_root / LOCK_FILE
        self.token = secrets.token_hex(8)
        older = RunLock._held.get(self._key)
        try:
            if older is not None and older.lost is None and older._is_held():
                if older.before_takeover is not None and (prepare := older.before_takeover()) is not None:
                    prepare()
                older.lost = "a newer writer in this process took the run over"
                self._file, older._file = older._file, None
            else:
                self._file = self._acquire()
            self._sign(self._file)
            RunLock._held[self._key] = self
        except BaseException:
            self.release()
            raise

    def _acquire(self) -> io.FileIO:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            file = io.FileIO(self._path, "r+", opener=_open_or_make)
            try:
                if _try_flock(file.fileno(), self._path):
                    # the owner before us may have unlinked the file between our open and our lock
                    with contextlib.suppress(FileNotFoundError):
                        if os.stat(self._path).st_ino == os.fstat(file.fileno()).st_ino:
                            return file
                    file.close()
                    continue
                owner = _read_owner(file.fileno())
                file.close()
            except BaseException:
                file.close()
                raise
            if time.monotonic() > deadline:
                raise RunLockedError(
                    f"run {self._key} is being written by {describe_owner(owner)}; stop that process, "
                    f"or write to another directory"
                )
            time.sleep(0.01)

    def _sign(self, file: io.FileIO | None) -> None:
        if file is None:
            raise RunLockedError(f"run {self._key}: its lock was given back by another thread")
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
            "token": self.token,
        }
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), json.dumps(owner).encode(), 0)

    def _is_held(self) -> bool:
        return self._file is not None and not self._file.closed

    def release(self) -> None:
        """Give the run back. Calling it again does nothing."""
        file = self._file
        if file is None or not self._is_held():
            return
        try:
            if self.lost is None:
                self.lost = "the lock was released"
                # unlink while the lock is still ours, so that nobody else's file is removed; one that stays locks
                # nothing
                with contextlib.suppress(OSError):
                    self._path.unlink()
        finally:
            file.close()

    @staticmethod
    def _after_fork_in_child() -> None:
        # flock belongs to the open file that both processes share. Closing the child's copy keeps
        # the lock with the parent and lets it fall when the parent dies.
        for lock in list(RunLock._held.values()):
            lock.lost = "this process is a fork of the one that owns the run"
            if lock._file is not None:
                lock._file.close()
        RunLock._held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RunLock._after_fork_in_child)


def lock_owner(run_root: Path) -> dict[str, Any] | None:
    """Return who writes the run right now, or ``None`` when nobody does."""
    try:
        fd = os.open(run_root / LOCK_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if fcntl is None:
            return _read_owner(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_owner(fd)
        return None
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Tell whether a live process holds a lock on the file at ``path``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(fd)
    return False


def describe_owner(owner: dict[str, Any]) -> str:
    """Return ``process 17 on host x since 2026-01-01 12:00:00`` for messages."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(owner.get("started") or 0)))
    return f"process {owner.get('pid', '?')} on host {owner.get('host', '?')} since {since}"


def _open_or_make(path: str, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _try_flock(fd: int, path: Path) -> bool:
    if fcntl is None:
        warnings.warn(f"{path}: this platform has no file locks: two writers would not notice each other",
                      RuntimeWarning, stacklevel=4)
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        warnings.warn(f"{path}: this file system has no locks: two writers would not notice each other",
                      RuntimeWarning, stacklevel=4)
    return True


def _read_owner(fd: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
    except ValueError:  # just being signed
        owner = {}
    return owner if isinstance(owner, dict) else {}
