"""Text files of users: read line by line, with errors that name the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import protofl as pf

LARGEST = 1 << 30
"""Bytes of a file, at most."""


def stamp(path: str | Path, what: str) -> tuple[int, int]:
    """Return a file's time and size, to detect changes.

    Raises:
        UsageError: The file can't be read, is not a regular file, or is too large.
    """
    try:
        about = Path(path).stat()
    except OSError as error:
        raise _unreadable(path, what, error) from None
    if not S_ISREG(about.st_mode) and not S_ISDIR(about.st_mode):
        raise pf.UsageError(f"the {what} {path} is not a regular file", do="give its path")
    if about.st_size > LARGEST:
        raise pf.UsageError(f"the {what} {path} is larger than 1 GiB", do="give a shorter file")
    return about.st_mtime_ns, about.st_size


def read_lines(path: str | Path, what: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a UTF-8 file with their numbers, from 1 on, without line ends.

    Raises:
        UsageError: The file can't be read, is not a regular file, is too large, or is not text.
    """
    stamp(path, what)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unreadable(path, what, error) from None
    except UnicodeDecodeError as error:
        raise pf.UsageError(
            f"the {what} {path} is not text: byte {error.start} is not UTF-8", do="save it as UTF-8"
        ) from None
    yield from enumerate(text.splitlines(), 1)


def _unreadable(path: str | Path, what: str, error: OSError) -> pf.UsageError:
    return pf.UsageError(f"the {what} {path} cannot be read: {error.strerror}", do="give its path")
