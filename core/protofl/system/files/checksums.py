"""Files with a recorded length and checksum, which show damage before use."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from protofl.errors import UsageError
from protofl.system.files.atomic import (
    LARGEST_DATA,
    atomic_replacement,
    file_errors,
    json_text,
    parse_json,
    regular_file,
)

CHUNK = 1 << 20

THREADS = 8
"""Files that are synced at the same time: file systems write waiting files together."""


class Damaged(UsageError):
    """A file is missing or was changed by others; reading it changes nothing."""


@dataclass(frozen=True)
class Check:
    """The size of a file and the CRC-32 of its bytes."""

    size: int = 0
    crc: int = 0

    @classmethod
    def of_values(cls, values: Any) -> Check:  # noqa: ANN401 - whatever a file holds
        """Return the check of a JSON list; raises `TypeError` if it is not two numbers."""
        size, crc = values
        if type(size) is not int or type(crc) is not int or size < 0:
            raise TypeError(values)
        return cls(size, crc)

    @property
    def values(self) -> list[int]:
        """The check as a JSON list."""
        return [self.size, self.crc]

    def plus(self, data: bytes) -> Check:
        """Return the check of the file with bytes appended."""
        return Check(self.size + len(data), zlib.crc32(data, self.crc))

    @classmethod
    def of(cls, path: Path, length: int | None = None, *, sync: bool = False) -> Check:
        """Compute the check of a file or its first bytes; ``sync`` writes it to the disk."""
        result, left = cls(), length
        with open(path, "rb") as file:
            if sync:
                os.fsync(file.fileno())
            while data := file.read(CHUNK if left is None else min(CHUNK, left)):
                result = result.plus(data)
                left = None if left is None else left - len(data)
        return result

    def require(self, path: Path, *, grows: bool = False) -> None:
        """Check that a file matches.

        Args:
            path: The file.
            grows: True if it may be longer: only its first bytes count.

        Raises:
            Damaged: The file differs, or is not a plain file.
        """
        check_plain_file(path)
        try:
            actual = Check.of(path, self.size if grows else None)
        except OSError as error:
            raise _unreadable(path, error) from None
        if actual.size < self.size:
            raise Damaged(f"{path} is cut: {actual.size} of {self.size} bytes are left")
        if actual != self:
            raise Damaged(f"{path} is damaged: its content was changed")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file; an unchanged file is read once.

    Raises:
        OSError: The file can't be read.
    """
    about = os.stat(regular_file(path, LARGEST_DATA))
    return _sha256(path, about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(maxsize=64)
def _sha256(path: Path, *stamps: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def checks_of(paths: Sequence[Path]) -> list[Check]:
    """Sync files to the disk and return their checks."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda path: Check.of(path, sync=True), paths))


def _unreadable(path: Path, error: OSError) -> Damaged:
    return Damaged(f"{path} cannot be read: {error.strerror or error}")


def check_plain_file(path: Path) -> None:
    """Check that a path is a regular file and not a link.

    Raises:
        Damaged: The path is missing or anything else.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if stat.S_ISLNK(mode):
        raise Damaged(f"{path} is a link, which may lead anywhere")
    if not stat.S_ISREG(mode):
        raise Damaged(f"{path} is not a file")


def check_plain(folder: Path, names: Collection[str]) -> None:
    """Check that names in a folder are files or folders of files, without links.

    Args:
        folder: The folder.
        names: The names; those of folders end in ``/``. Missing files are skipped.

    Raises:
        Damaged: One of them is neither.
    """
    for place in filter(os.path.lexists, (folder / name for name in names)):
        if place.is_dir() and not place.is_symlink() and f"{place.name}/" in names:
            for entry in place.iterdir():
                if entry.is_symlink():
                    check_plain_file(entry)
        else:
            check_plain_file(place)


def check_plain_name(name: str) -> str:
    """Return a file name, checked not to lead to another folder.

    Raises:
        Damaged: The name is a path, or empty.
    """
    if name in ("", ".", "..") or any(sign in name for sign in "/\\:\0"):
        raise Damaged(f"the name {name!r} leads out of the folder")
    return name


def read_json(path: Path) -> dict[str, Any]:
    """Read a table that `protofl.system.files.atomic.write_json` wrote.

    Raises:
        Damaged: The file is missing, or holds no JSON table.
    """
    check_plain_file(path)
    try:
        values = parse_json(regular_file(path).read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise Damaged(f"{path} is damaged: invalid JSON{line}") from None
    if not isinstance(values, dict):
        raise Damaged(f"{path} is damaged: expected a JSON table")
    return values


R = TypeVar("R")


def append_line(path: Path, values: Any, so_far: Check) -> Check:  # noqa: ANN401 - any JSON
    """Append a line, durably.

    Args:
        path: The file; created if missing.
        values: Any JSON value.
        so_far: The file's check.

    Returns:
        The file's check with the line.
    """
    line = json_text(path, values).encode()
    with file_errors(path), open(path, "ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return so_far.plus(line)


def read_lines(path: Path, check: Check) -> list[Any]:
    """Return the lines of a file that count.

    Raises:
        Damaged: The lines were changed.
    """
    check.require(path, grows=True)
    with open(path, "rb") as file:
        lines = file.read(check.size).splitlines()
    return [parse_json(line) for line in lines]


def truncate(path: Path, check: Check) -> None:
    """Cut a file to the part that counts.

    The file is replaced, so other hard links to it do not see lines that are appended later.
    """
    kept = b""
    if check.size:
        with open(path, "rb") as file:
            kept = file.read(check.size)
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(kept)


class RowFile(Generic[R]):
    """A file of rows; its owner remembers how much of it counts.

    Args:
        path: The file.
        made: Returns the row of a line's JSON value.

    Attributes:
        rows: The rows.
    """

    def __init__(self, path: Path, made: Callable[[dict[str, Any]], R]) -> None:
        self._path, self._made, self._check = path, made, Check()
        self.rows: list[R] = []

    @property
    def length(self) -> tuple[int, ...]:
        """The part of the file that counts: rows, bytes, CRC-32."""
        return (len(self.rows), *self._check.values)

    def add(self, values: dict[str, Any]) -> None:
        """Append a row, durably."""
        self._check = append_line(self._path, values, self._check)
        self.rows.append(self._made(values))

    def read(self, length: Any) -> None:  # noqa: ANN401 - whatever a file holds
        """Read the rows that count.

        Raises:
            Damaged: The rows were changed.
        """
        try:
            count, *check = length
            expected = Check.of_values(check)
        except (ValueError, TypeError):
            raise Damaged(f"the number of rows of {self._path} is unknown") from None
        rows = read_lines(self._path, expected)
        if len(rows) != count:
            raise Damaged(f"{self._path} has {len(rows)} rows of {count}")
        self.rows, self._check = [self._made(values) for values in rows], expected

    def cut(self) -> None:
        """Remove the part that does not count."""
        truncate(self._path, self._check)

    @property
    def is_empty(self) -> bool:
        """Return True if the file is missing or empty."""
        return not self._path.exists() or not self._path.stat().st_size
