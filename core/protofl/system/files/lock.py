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

GLANCE = 0.06
"""Seconds to wait for a lock before asking who holds it."""

PATIENCE = 2.0
"""Seconds to wait for processes that only look (`is_held`); one that is paused may hold on."""

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

    Processes that only look at the lock (`is_held`) never keep it from being taken.

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
        _acquire(lock, file, wait)
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


def _acquire(lock: FileLock, file: Path, wait: Callable[[], None] | None) -> None:
    """Take a lock; see `waiting_lock`.

    Processes that only look have `PATIENCE` to release the file. A paused one does not, so its file
    is then replaced by a new one.
    """
    seconds, looked_at, told = GLANCE, False, False
    while True:
        try:
            lock.acquire(timeout=seconds, poll_interval=GLANCE / 6)
            return
        except Timeout:
            first = seconds == GLANCE
            seconds = PATIENCE
            if _is_only_looked_at(file, unknown=first) and (not looked_at or _set_aside(file)):
                looked_at = True
                continue
            if wait is None:
                raise
            if not told:
                wait()
            looked_at, told = False, True


def _is_only_looked_at(file: Path, *, unknown: bool) -> bool:
    """Return True if no process holds a lock that could not be taken.

    Args:
        file: The lock file.
        unknown: The answer on systems without shared locks, where a look takes the lock as well.
    """
    try:
        with _shared(file):
            return True
    except ImportError:
        return unknown
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # its holder has just ended


def _set_aside(file: Path) -> bool:
    """Remove a lock file at which other processes only look.

    The shared lock keeps every start from taking the file meanwhile. The lock on the folder keeps
    another process that does the same from removing the file that comes next.

    Returns:
        False if the folder can't be locked.
    """
    import fcntl

    try:
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with _shared(file) as descriptor:
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                file.unlink()
    except (BlockingIOError, FileNotFoundError):
        return True  # another process takes the lock, or has removed the file
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


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
