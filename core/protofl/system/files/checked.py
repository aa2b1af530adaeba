"""Files with a length and a checksum beside them, by which damage is found before they are used."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl.errors import UsageError

CHUNK = 1 << 20
THREADS = 8
"""Files that are brought to the disk at a time: file systems write what waits together at once."""


class Damaged(UsageError):
    """A file is not what was written, or none at all; nothing has been changed."""


@dataclass(frozen=True)
class Check:
    """How long a file is, and the CRC-32 of its bytes."""

    size: int = 0
    crc: int = 0

    @classmethod
    def of_values(cls, values: Any) -> Check:  # noqa: ANN401 - whatever a file holds
        """A check as JSON holds it; a `TypeError` where these are no two numbers."""
        size, crc = values
        if type(size) is not int or type(crc) is not int or size < 0:
            raise TypeError(values)
        return cls(size, crc)

    @property
    def values(self) -> list[int]:
        """This, as JSON can hold it."""
        return [self.size, self.crc]

    def plus(self, data: bytes) -> Check:
        """The check of a file to which bytes are appended."""
        return Check(self.size + len(data), zlib.crc32(data, self.crc))

    @classmethod
    def of(cls, path: Path, length: int | None = None, *, sync: bool = False) -> Check:
        """The check of a file, or of its first bytes; ``sync`` first brings it to the disk."""
        found, left = cls(), length
        with open(path, "rb") as file:
            if sync:
                os.fsync(file.fileno())
            while data := file.read(CHUNK if left is None else min(CHUNK, left)):
                found = found.plus(data)
                left = None if left is None else left - len(data)
        return found

    def require(self, path: Path, *, grows: bool = False) -> None:
        """Hold a file against this.

        Args:
            path: The file.
            grows: Whether it may be longer: only its first bytes count.

        Raises:
            Damaged: It is another, or no plain file.
        """
        check_plain_file(path)
        try:
            found = Check.of(path, self.size if grows else None)
        except OSError as error:
            raise Damaged(f"{path} can't be read: {error.strerror or error}") from None
        if found.size < self.size:
            raise Damaged(f"{path} is cut: {found.size} of {self.size} bytes are left")
        if found != self:
            raise Damaged(f"{path} is damaged: it is not what was written")


def checks_of(paths: Sequence[Path]) -> list[Check]:
    """Bring files to the disk; their checks."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda path: Check.of(path, sync=True), paths))


def check_plain_file(path: Path) -> None:
    """Whether there is a file, and no link to one.

    Raises:
        Damaged: It is missing, a link, a folder or what not.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise Damaged(f"{path} can't be read: {error.strerror or error}") from None
    if stat.S_ISLNK(mode):
        raise Damaged(f"{path} is a link, which may lead anywhere")
    if not stat.S_ISREG(mode):
        raise Damaged(f"{path} is no file")


def check_plain(folder: Path, names: Iterable[str]) -> None:
    """Whether what lies in a folder under some names is files, and folders of files, and no links.

    Args:
        folder: The folder.
        names: The names; those of folders end in ``/``. What is not there is no matter.

    Raises:
        Damaged: Something is neither.
    """
    for name in names:
        place = folder / name
        if not os.path.lexists(place):
            continue
        if name.endswith("/") and place.is_dir() and not place.is_symlink():
            linked = [entry for entry in place.iterdir() if entry.is_symlink()]
            if not linked:
                continue
            place = linked[0]
        check_plain_file(place)


def check_plain_name(name: str) -> str:
    """A file's name that leads to no other folder.

    Raises:
        Damaged: It is a path, or no name at all.
    """
    if name in ("", ".", "..") or any(sign in name for sign in "/\\:\0"):
        raise Damaged(f"the name {name!r} leads out of the folder")
    return name


def read_json(path: Path) -> dict[str, Any]:
    """A table that `protofl.system.files.replacing.write_json` wrote.

    Raises:
        Damaged: There is no file, or it holds none.
    """
    check_plain_file(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Damaged(f"{path} can't be read: {error.strerror or error}") from None
    except json.JSONDecodeError as error:
        raise Damaged(f"{path} is damaged: it is no JSON (line {error.lineno})") from None
    except (ValueError, RecursionError):
        raise Damaged(f"{path} is damaged: it is no JSON") from None
    if not isinstance(values, dict):
        raise Damaged(f"{path} is damaged: it holds no table")
    return values
