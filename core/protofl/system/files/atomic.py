"""Files that are read and replaced as a whole, scratch folders, and the default data folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from protofl.errors import RunFailure, UsageError

LARGEST = 1 << 30
"""Bytes of a text that is read as a whole, at most."""

LARGEST_DATA = 64 << 30
"""Bytes of a file of samples or weights, at most."""

REPLACES_OPEN_FILES = hasattr(os, "fork")
"""True if a file can be replaced while it is open or mapped; not on Windows."""


def regular_file(path: str | Path, most: int = LARGEST) -> Path:
    """Return the path of a file that can be read: a pipe would block, a device may never end.

    Args:
        path: The file, or a link to it.
        most: The largest accepted size in bytes.

    Raises:
        OSError: The file is missing, is not a regular file, or is too large.
    """
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if about.st_size > most:
        raise OSError(errno.EFBIG, f"larger than {most / (1 << 30):g} GiB", str(path))
    return Path(path)


def check_target(path: Path) -> None:
    """Check that a file to write is new or a regular file.

    Raises:
        UsageError: The path is a folder, link, device, pipe or socket.
    """
    with suppress(FileNotFoundError, NotADirectoryError):  # writing raises the clearer error
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UsageError(
                f"{path} is neither new nor a regular file", do="choose another file to write"
            )


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Add the file name to an `OSError` that has none, as from a write to a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn an `OSError` into an error for the user.

    Raises:
        RunFailure: It names the file.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            folder = Path(os.fsdecode(error.filename)).parent
            if not folder.is_dir():
                raise RunFailure(
                    f"{folder} was removed while the run used it", do="start the run again"
                ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise RunFailure(
            f"{error.filename or 'the run'}: {error.strerror or error}",
            do="make room on the disk" if full else "--debug shows where",
        ) from error


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield a path to write to; its file replaces ``path`` when the block ends.

    If the block fails, ``path`` stays unchanged.

    Raises:
        UsageError: ``path`` is neither new nor a regular file.
    """
    check_target(path)
    temporary = path.with_name(path.name + ".part")
    with file_errors(path):
        temporary.unlink(missing_ok=True)  # it may be a link to another file
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # works on a full disk
                temporary.unlink(missing_ok=True)
            raise


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically and durably; a text is written as UTF-8."""
    with atomic_replacement(path) as temporary, open(temporary, "wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON that others may have written, in UTF-8.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has half a surrogate pair.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        values = json.loads(text, parse_constant=_not_json)
        if "\\ud" in text.lower():
            json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has half a character") from None
    except RecursionError:
        raise ValueError("tables in tables, too deep to read") from None
    return values


def _not_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def json_text(path: Path, values: Any, indent: int | None = None) -> str:  # noqa: ANN401 - any JSON
    """Return the text of a JSON value for a file.

    Raises:
        RunFailure: A number is NaN or infinite, which JSON cannot hold; the error names its key.
    """
    try:
        return json.dumps(values, indent=indent, allow_nan=False) + "\n"
    except ValueError:
        raise RunFailure(f"{path}: a number is NaN or infinite, which JSON cannot hold") from None


def write_json(path: Path, values: Any) -> None:  # noqa: ANN401 - anything JSON can hold
    """Write values as JSON with `write_file`."""
    write_file(path, json_text(path, values, indent=1))


def sync_folder(folder: Path) -> None:
    """Sync the file names of a folder to the disk, if the system can."""
    with suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name: a hard link if the file system has them, otherwise a copy.

    Files are never changed, only replaced, so the two names stay independent.
    """
    with atomic_replacement(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
    # Renaming a hard link to the name of another link to the same file does nothing.
    temporary.unlink(missing_ok=True)


def unused_path(path: Path) -> Path:
    """Return the first free path of ``PATH``, ``PATH-2``, ``PATH-3`` and so on."""
    number, result = 1, path
    while result.exists():
        number += 1
        result = path.with_name(f"{path.name}-{number}")
    return result


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a folder, and remove the folder with its content after the block."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ScratchFolder:
    """A private folder that is created with its first file.

    It is removed by `clear`, by the garbage collector, or at the end of the process.

    Args:
        prefix: The beginning of its name.
        within: Its parent folder, if the folder above that exists; otherwise, and for None, the
            system's folder for temporary files.
    """

    def __init__(self, prefix: str, within: str | None = None) -> None:
        self._prefix, self._within = prefix, within
        self._lock = Lock()
        self._made: tuple[Path, weakref.finalize[..., ScratchFolder]] | None = None

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
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
        """Return True if a file lies in this folder."""
        return self._made is not None and path.parent == self._made[0]

    def clear(self) -> None:
        """Remove the folder with all files; the next file gets a new folder."""
        with self._lock:
            if self._made is not None:
                self._made[1]()
                self._made = None


def default_data_dir() -> Path:
    """Return the default folder for decoded data.

    The folder of the environment variable ``PROTOFL_DATA_DIR``, otherwise ``~/.cache/protofl``.
    """
    return Path(os.environ.get("PROTOFL_DATA_DIR") or "~/.cache/protofl")
