"""Text files of users: read line by line, with errors that name the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import protofl as pf


def stamp(path: str | Path, what: str) -> tuple[int, int]:
    """Return a file's time and size, to detect changes.

    Raises:
        UsageError: It can't be read.
    """
    try:
        about = Path(path).stat()
    except OSError as error:
        raise _unreadable(path, what, error) from None
    return about.st_mtime_ns, about.st_size


def read_lines(path: str | Path, what: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a UTF-8 file with their numbers, from 1 on, without line ends.

    Raises:
        UsageError: It can't be read, or is no text.
    """
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
    return pf.UsageError(f"the {what} {path} can't be read: {error.strerror}", do="give its path")
