"""Files that replace others in one step, scratch folders, and the default data folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from protofl.errors import RunFailure


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Have an `OSError` say which file it is about: one of a write (a full disk) names none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def told_of_disk() -> Iterator[None]:
    """Have what the system refused to read or write be an error for the user.

    Raises:
        RunFailure: It names the file.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise RunFailure(
            f"{error.filename or 'the run'}: {error.strerror or error}",
            do="make room on the disk" if full else "--debug shows where",
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path to write to; what it holds takes the place of ``path`` when the block has ended.

    Where the block fails ``path`` is what it was.
    """
    part = path.with_name(path.name + ".part")
    with naming_file(path):
        part.unlink(missing_ok=True)  # what lies there may be a link to somebody's file
        try:
            yield part
            os.replace(part, path)
        except OSError:
            with suppress(OSError):  # a disk that is full has room for it
                part.unlink(missing_ok=True)
            raise


def write_json(path: Path, values: Any) -> None:  # noqa: ANN401 - anything JSON can hold
    """Write a file atomically and durably."""
    with replacing(path) as part, open(part, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    with suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Have a file under a second name, by a hard link where the file system allows it.

    A file is never changed, only replaced, so that the two don't influence each other.
    """
    with replacing(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
    # Renaming a link to the name of another link to the same file does nothing at all.
    part.unlink(missing_ok=True)


def unused(path: Path) -> Path:
    """The path, or ``PATH-2``, ``PATH-3`` and so on: the first at which there is nothing."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


@contextmanager
def gone_afterwards(folder: Path) -> Iterator[Path]:
    """A folder that may be made in the block; it is removed with all that it holds."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ScratchFolder:
    """A folder of somebody's own, made when a file in it is first asked for.

    It is removed by `clear`, or else when nobody holds this object any more or the process ends.

    Args:
        prefix: What its name begins with.
        within: The folder in which it is made, where the parent of that one is to be seen from
            here; else, and for None, it is made in the system's temporary one.
    """

    def __init__(self, prefix: str, within: str | None = None) -> None:
        self._prefix, self._within = prefix, within
        self._lock = Lock()
        self._made: tuple[Path, weakref.finalize[..., ScratchFolder]] | None = None

    def file(self, name: str) -> Path:
        """The path of a file in it."""
        with self._lock:
            if self._made is None:
                within = self._within and Path(self._within)
                if within and within.parent.is_dir():
                    within.mkdir(exist_ok=True)
                else:
                    within = None
                path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=within))
                self._made = path, weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
            return self._made[0] / name

    def holds(self, path: Path) -> bool:
        """Whether a file lies in it."""
        return self._made is not None and path.parent == self._made[0]

    def clear(self) -> None:
        """Remove it with all files; the next one that is asked for lies in another."""
        with self._lock:
            if self._made is not None:
                self._made[1]()
                self._made = None


def default_data_dir() -> Path:
    """Where decoded data are kept unless ``--data-dir`` says otherwise.

    The folder of the environment variable ``PROTOFL_DATA_DIR``, otherwise ``~/.cache/protofl``.
    """
    return Path(os.environ.get("PROTOFL_DATA_DIR") or "~/.cache/protofl")
