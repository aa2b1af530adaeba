"""One process at a time prepares a file of the data cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        _lock(file.fileno(), lambda: report(f"waiting for another process that prepares {path}"))
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _lock(descriptor: int, waiting: Callable[[], None]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return  # a file system without locks
