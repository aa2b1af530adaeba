"""Locks between processes: one at a time prepares a cached file, one has a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protofl.errors import UsageError


@contextmanager
def exclusive(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time prepare ``path``; checks that its folder can be written.

    The lock only saves double work: where there are no file locks, writing stays safe, as a cache
    file appears in one step.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise UsageError(
            f"can't write to the data folder {path.parent}: {error.strerror or error}",
            do="give another folder with --data-dir",
        ) from error
    with file:
        if not _lock(file.fileno()):
            report(f"waiting for another process that prepares {path}")
            _lock(file.fileno(), wait=True)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


LOCK = ".lock"
"""The file in a folder by which a process has it."""


@contextmanager
def alone(folder: Path, flag: str) -> Iterator[None]:
    """Have a folder for this process alone; another one that wants it is refused.

    The lock goes with the process, however it ends. Where there are no file locks nothing is
    refused.

    Args:
        folder: The folder; it is made where there is none.
        flag: The option that names it, for errors.

    Raises:
        UsageError: Another process has it, or it can't be written.
    """
    file = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            mode = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(file, mode, 0o644)
            taken = _lock(descriptor) or _lock_again(descriptor)
            if not taken or _names(file, descriptor):
                break
            os.close(descriptor)
    except OSError as error:
        raise UsageError(
            f"{flag} {folder} can't be written: {error.strerror or error}",
            do=f"choose another folder with {flag}",
        ) from None
    try:
        if not taken:
            raise UsageError(
                f"{flag} {folder}: another process is at work there",
                do="wait for its end, or choose another folder",
            )
        yield
    finally:
        _let_go(file if taken else None, descriptor)


@contextmanager
def in_turn(lock: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time do something; the others wait for their turn.

    Args:
        lock: A file that stands for it; its folder is made where there is none.
        wait: Called before waiting.

    Raises:
        OSError: The file can't be written.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if not _lock(descriptor):
                wait()
                _lock(descriptor, wait=True)
            if _names(lock, descriptor):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # who had it before has removed its name
    try:
        yield
    finally:
        _let_go(lock, descriptor)


def _let_go(file: Path | None, descriptor: int) -> None:
    """Remove a lock's name, where it is ours, and close it; ^C between the two closes it too."""
    try:
        if file is not None:
            with suppress(OSError):
                file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def is_held(lock: Path) -> bool:
    """Whether a process has a folder, as far as its lock can be seen from here.

    It can't on Windows, nor on file systems without locks: then nobody has.

    Args:
        lock: The file by which a process has it (`alone`).
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return not _lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _lock_again(descriptor: int) -> bool:
    """Lock a file that is locked: one that looks whether it is (`is_held`) has it for no time."""
    for _ in range(5):
        time.sleep(0.01)
        if _lock(descriptor):
            return True
    return False


def _names(file: Path, descriptor: int) -> bool:
    """Whether a name still is that of an open file; who had its lock before may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, *, wait: bool = False, shared: bool = False) -> bool:
    """Lock an open file; whether nobody else has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, how | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True
