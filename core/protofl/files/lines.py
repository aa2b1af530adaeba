"""Files of lines of JSON that only grow, so that adding to one costs as much as what is added."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofl.files.replacing import replacing


def append_line(path: Path, values: Any) -> int:  # noqa: ANN401 - anything JSON can hold
    """Append a line, durably; returns its bytes."""
    line = (json.dumps(values) + "\n").encode()
    with open(path, "ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return len(line)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a file of lines atomically."""
    with replacing(path) as part:
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_lines(path: Path) -> list[Any]:
    """The lines of a file, none where there is no file.

    A line that is not whole ends them: a process was killed while it wrote it.
    """
    rows: list[Any] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows


@dataclass
class Journal:
    """A mapping from numbers to names in a file, to which every commit adds a line of changes.

    Whoever keeps a journal remembers its length behind a commit: what lies beyond doesn't count.

    Attributes:
        path: The file.
        length: Bytes of it that count.
        first: Bytes of its first line, which holds the whole mapping of that time.
    """

    path: Path
    length: int
    first: int

    @classmethod
    def begin(cls, path: Path, entries: Mapping[int, str]) -> Journal:
        """A new file."""
        path.unlink(missing_ok=True)  # one of a process that was killed before it counted
        length = append_line(path, entries)
        return cls(path, length, length)

    def add(self, changes: Mapping[int, str]) -> None:
        """Append a line, durably."""
        self.length += append_line(self.path, changes)

    @property
    def outgrown(self) -> bool:
        """Whether most of its lines are about names that have been replaced."""
        return self.length > 4 * self.first + (1 << 16)

    @staticmethod
    def read(path: Path, length: int) -> dict[int, str]:
        """The mapping behind the commit at which the file had this length."""
        entries: dict[int, str] = {}
        for line in path.read_bytes()[:length].decode("utf-8").splitlines():
            entries |= {int(number): name for number, name in json.loads(line).items()}
        return entries
