"""Locks between processes: for cached files, and for run folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from protofl.errors import UsageError

LOCK = ".lock"
"""The lock file in a folder that a process uses."""

PATIENCE = 0.2
"""Seconds to wait for processes that only look at a lock (`is_held`)."""

_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


@contextmanager
def cache_lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time prepare ``path``; checks that its folder can be written.

    The lock only saves double work: without it writing stays safe, because a cache file appears in
    one step.
    """
    wait = partial(report, f"waiting for another process that prepares {path}")
    with ExitStack() as held:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held.enter_context(waiting_lock(path.with_name(f".{path.name}.lock"), wait))
        except OSError as error:
            raise UsageError(
                f"cannot write to the data folder {path.parent}: {error.strerror or error}",
                do="give another folder with --data-dir or the variable PROTOFL_DATA_DIR",
            ) from error
        yield


@contextmanager
def folder_lock(folder: Path, flag: str) -> Iterator[None]:
    """Reserve a folder for this process; other processes are refused.

    The lock ends with the process, however that ends.

    Args:
        folder: The folder; created if missing.
        flag: The option that names it, for errors.

    Raises:
        UsageError: Another process has the folder, its lock file is a symbolic link, or it can't be
            written.
    """
    new = flag == "--out"
    if (folder / LOCK).is_symlink():
        raise UsageError(f"{flag}: {folder / LOCK} is a symbolic link", do="remove the link")
    with ExitStack() as held:
        try:
            held.enter_context(waiting_lock(folder / LOCK))
        except Timeout:
            raise UsageError(
                f"{flag} {folder}: another process uses this folder",
                do=f"wait for its end{', or choose another folder' if new else ''}",
            ) from None
        except OSError as error:
            raise UsageError(
                f"{flag} {folder} cannot be written: {error.strerror or error}",
                do=f"choose another folder with {flag}" if new else "make the folder writable",
            ) from None
        yield


@contextmanager
def waiting_lock(file: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock during a block. On a file system without locks nothing is locked.

    Args:
        file: The lock file; its folder is created if missing.
        wait: Called before waiting for another process; None raises `Timeout` at once.

    Raises:
        Timeout: Another process holds the lock, and ``wait`` is None.
        OSError: The file can't be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file, mode=0o644)
    try:
        _acquire(lock, wait)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    try:
        yield
    finally:
        try:
            if lock.is_locked:
                file.unlink(missing_ok=True)
        except PermissionError:  # Windows keeps an open file, and so the next holder's as well
            lock.release()
            with suppress(PermissionError):
                file.unlink(missing_ok=True)
        finally:
            lock.release()


def _acquire(lock: FileLock, wait: Callable[[], None] | None) -> None:
    """Take a lock; see `waiting_lock`."""
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 10)
    except Timeout:
        if wait is None:
            raise
        wait()
        lock.acquire(poll_interval=PATIENCE / 10)


@contextmanager
def _shared(file: Path) -> Iterator[int]:
    """Hold a shared lock on an existing lock file, and yield its descriptor.

    The file is only read, since it may belong to another user.

    Raises:
        ImportError: The system has no shared locks (Windows).
        BlockingIOError: A process holds the lock.
        OSError: There is no such file, or the file system has no locks.
    """
    import fcntl

    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(lock: Path) -> bool:
    """Return True if a process uses a folder, as far as its lock file shows.

    False on file systems without locks.

    Args:
        lock: The lock file of the folder (`folder_lock`).
    """
    try:
        with _shared(lock):
            return False
    except ImportError:
        return _is_taken(lock)
    except OSError as error:
        return isinstance(error, BlockingIOError)


def _is_taken(lock: Path) -> bool:
    """Return True if an existing lock file can't be locked, for Windows."""
    if not lock.is_file():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False
