"""Files of lines of JSON that only grow, so that adding to one costs as much as what is added."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from protofl.system.files.checked import Check, Damaged, check_plain_name
from protofl.system.files.replacing import naming_file, replacing

R = TypeVar("R")


def append_line(path: Path, values: Any, so_far: Check) -> Check:  # noqa: ANN401 - any JSON
    """Append a line, durably.

    Args:
        path: The file; it is made where there is none.
        values: Anything JSON can hold.
        so_far: The file's check.

    Returns:
        Its check with the line.
    """
    line = (json.dumps(values) + "\n").encode()
    with naming_file(path), open(path, "ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return so_far.plus(line)


def read_lines(path: Path, check: Check) -> list[Any]:
    """The lines of a file as far as they count.

    Raises:
        Damaged: They are not what was written.
    """
    check.require(path, grows=True)
    with open(path, "rb") as file:
        text = file.read(check.size).decode("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def cut(path: Path, check: Check) -> None:
    """Leave of a file what counts.

    It is made anew, so that a line that is appended later is not seen under another name of it.
    """
    kept = b""
    if check.size:
        with open(path, "rb") as file:
            kept = file.read(check.size)
    with replacing(path) as part:
        part.write_bytes(kept)


class Record(Generic[R]):
    """A file of rows; whoever keeps one remembers how far it counts.

    Args:
        path: The file.
        made: Makes a row of the JSON in a line.

    Attributes:
        rows: Its rows.
    """

    def __init__(self, path: Path, made: Callable[[dict[str, Any]], R]) -> None:
        self._path, self._made, self._check = path, made, Check()
        self.rows: list[R] = []

    @property
    def length(self) -> list[int]:
        """How far it counts, as JSON can hold it: rows, bytes, checksum."""
        return [len(self.rows), *self._check.values]

    def add(self, values: dict[str, Any]) -> None:
        """Append a row, durably."""
        self._check = append_line(self._path, values, self._check)
        self.rows.append(self._made(values))

    def read(self, length: Any) -> None:  # noqa: ANN401 - whatever a file holds
        """Take up the rows as far as they counted.

        Raises:
            Damaged: They are not what was written.
        """
        try:
            count, *check = length
            found = Check.of_values(check)
        except (ValueError, TypeError):
            raise Damaged(f"nothing says how many rows of {self._path} count") from None
        rows = read_lines(self._path, found)
        if len(rows) != count:
            raise Damaged(f"{self._path} has {len(rows)} rows of {count}")
        self.rows, self._check = [self._made(values) for values in rows], found

    def cut(self) -> None:
        """Remove what does not count."""
        cut(self._path, self._check)

    @property
    def is_empty(self) -> bool:
        """Whether the file has no rows, or isn't there."""
        return not self._path.exists() or not self._path.stat().st_size


Entry = tuple[str, Check]
"""A file's name, and its check."""


@dataclass
class Journal:
    """A mapping from numbers to files in a file, to which every commit adds a line of changes.

    Whoever keeps a journal remembers its check behind a commit: what lies beyond doesn't count.

    Attributes:
        path: The file.
        check: Its check, as far as it counts.
        first: Bytes of its first line, which holds the whole mapping of that time.
    """

    path: Path
    check: Check
    first: int

    @classmethod
    def begin(cls, path: Path, entries: Mapping[int, Entry]) -> Journal:
        """A new file."""
        path.unlink(missing_ok=True)  # one of a process that was killed before it counted
        check = append_line(path, _as_values(entries), Check())
        return cls(path, check, check.size)

    @classmethod
    def again(cls, path: Path, check: Check) -> Journal:
        """A file that is there; what lies in it beyond what counts is cut off."""
        cut(path, check)
        with open(path, "rb") as file:
            return cls(path, check, len(file.readline()))

    def add(self, changes: Mapping[int, Entry]) -> None:
        """Append a line, durably."""
        self.check = append_line(self.path, _as_values(changes), self.check)

    @property
    def outgrown(self) -> bool:
        """Whether most of its lines are about files that have been replaced."""
        return self.check.size > 4 * self.first + (1 << 16)

    @staticmethod
    def read(path: Path, check: Check) -> dict[int, Entry]:
        """The mapping behind the commit at which the file had this check.

        Raises:
            Damaged: The file is not what was written, or names a file of another folder.
        """
        entries: dict[int, Entry] = {}
        try:
            for line in read_lines(path, check):
                for number, (name, *check) in line.items():
                    entries[int(number)] = check_plain_name(name), Check.of_values(check)
        except (ValueError, TypeError, AttributeError):
            raise Damaged(f"{path} is damaged: it names no files") from None
        return entries


def _as_values(entries: Mapping[int, Entry]) -> dict[int, list[Any]]:
    return {n: [name, *check.values] for n, (name, check) in entries.items()}
