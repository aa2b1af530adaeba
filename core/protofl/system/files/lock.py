"""Locks between processes: one at a time prepares a cached file, one has a run folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from protofl.errors import UsageError

LOCK = ".lock"
"""The lock file in a folder that a process has."""

GLANCE = 0.06
"""Seconds to wait for a lock: `is_held` takes it for no time to look whether it is taken."""

_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


@contextmanager
def cache_lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time prepare ``path``; checks that its folder can be written.

    The lock only saves double work: on a file system without locks writing stays safe, because a
    cache file appears in one step.
    """
    wait = lambda: report(f"waiting for another process that prepares {path}")  # noqa: E731
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = _take(path.with_name(f".{path.name}.lock"), wait)
    except OSError as error:
        raise UsageError(
            f"can't write to the data folder {path.parent}: {error.strerror or error}",
            do="give another folder with --data-dir",
        ) from error
    with _released(taken):
        yield


@contextmanager
def folder_lock(folder: Path, flag: str) -> Iterator[None]:
    """Have a folder for this process alone; another process that wants it is refused.

    The lock goes with the process, however it ends. On a file system without locks nothing is
    refused.

    Args:
        folder: The folder; created where missing.
        flag: The option that names it, for errors.

    Raises:
        UsageError: Another process has it, or it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = _take(folder / LOCK)
    except Timeout:
        raise UsageError(
            f"{flag} {folder}: another process is at work there",
            do="wait for its end, or choose another folder",
        ) from None
    except OSError as error:
        raise UsageError(
            f"{flag} {folder} can't be written: {error.strerror or error}",
            do=f"choose another folder with {flag}",
        ) from None
    with _released(taken):
        yield


@contextmanager
def waiting_lock(lock: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time do something; the others wait for their turn.

    Args:
        lock: A file that stands for it; its folder is created where missing.
        wait: Called before waiting.

    Raises:
        OSError: The file can't be written.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _released(_take(lock, wait)):
        yield


def is_held(lock: Path) -> bool:
    """Return True if a process has a folder, as far as its lock file shows.

    False on Windows and on file systems without locks. The file is only read: it may belong to
    another user.

    Args:
        lock: The lock file of the folder (`folder_lock`).
    """
    try:
        import fcntl

        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _take(file: Path, wait: Callable[[], None] | None = None) -> FileLock | None:
    """Take a lock; None on a file system without locks.

    Raises:
        Timeout: Another process has it, and there is nothing to wait for.
        OSError: The file can't be written.
    """
    lock = FileLock(file, mode=0o644)
    try:
        lock.acquire(timeout=GLANCE, poll_interval=GLANCE / 6)
    except Timeout:
        if wait is None:
            raise
        wait()
        lock.acquire()
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return None
    return lock


@contextmanager
def _released(lock: FileLock | None) -> Iterator[None]:
    """Remove the file of a lock after a block, and release it; ^C between the two releases it."""
    try:
        yield
    finally:
        if lock is not None:
            try:
                Path(lock.lock_file).unlink(missing_ok=True)
            finally:
                lock.release()
