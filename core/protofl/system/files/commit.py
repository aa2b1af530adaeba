"""One commit of a folder: its manifest, and the journal of its numbered files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.system.files.atomic import write_json
from protofl.system.files.checksums import (
    Check,
    Damaged,
    append_line,
    check_plain_name,
    read_json,
    read_lines,
    truncate,
)

Entry = tuple[str, Check]
"""A file's name, and its check."""


@dataclass
class Journal:
    """A mapping from numbers to files; each commit appends a line of changes.

    The manifest holds the check after the last commit: later bytes do not count.

    Attributes:
        path: The file.
        check: The check of the bytes that count.
        first: Size of its first line, which holds the whole mapping at that time.
    """

    path: Path
    check: Check
    first: int

    @classmethod
    def begin(cls, path: Path, entries: Mapping[int, Entry]) -> Journal:
        """Create a journal."""
        path.unlink(missing_ok=True)  # a journal of a process that was killed before its commit
        check = append_line(path, _as_values(entries), Check())
        return cls(path, check, check.size)

    @classmethod
    def reopened(cls, path: Path, check: Check) -> Journal:
        """Open an existing journal and remove bytes that do not count."""
        truncate(path, check)
        with open(path, "rb") as file:
            return cls(path, check, len(file.readline()))

    def add(self, changes: Mapping[int, Entry]) -> None:
        """Append a line, durably."""
        self.check = append_line(self.path, _as_values(changes), self.check)

    @property
    def outgrown(self) -> bool:
        """Return True if most lines name files that have been replaced."""
        return self.check.size > 4 * self.first + (1 << 16)

    @staticmethod
    def read(path: Path, check: Check) -> dict[int, Entry]:
        """Return the mapping after the commit at which the file had this check.

        Raises:
            Damaged: The file was changed, or names a file of another folder.
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


ELSEWHERE = "elsewhere"
"""Key of a manifest's values that is true if its numbered files are not in the folder."""

KEPT = "kept: "
"""Prefix of the names of kept commits among the values of a manifest."""


@dataclass
class Generation:
    """The files of one commit.

    Attributes:
        values: Facts about the commit; strings among the values are file names.
        files: {file: its check} of these files.
        numbered: {number: file and check} of the numbered files.
        kept: {manifest file: earlier commit} of the commits that this one keeps.
    """

    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Check] = field(default_factory=dict)
    numbered: dict[int, Entry] = field(default_factory=dict)
    kept: dict[str, Generation] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Generation:
        """Read a manifest and its journal.

        Raises:
            Damaged: One of them was changed since it was written.
        """
        values = manifest_values(file)
        try:
            checks = values.pop("checks").items()
            files = {check_plain_name(name): Check.of_values(check) for name, check in checks}
            journal = values["journal"]
            numbered = Journal.read(file.parent / journal, files[journal])
            if not files.keys() >= file_names(values):
                raise KeyError
        except (KeyError, ValueError, TypeError, AttributeError):
            raise Damaged(f"{file} is damaged: it names no files") from None
        return cls(values, files, numbered)

    @property
    def names(self) -> set[str]:
        """The names of all files that count."""
        own = {*self.files, *self.numbered_names}
        return own.union(*(generation.names for generation in self.kept.values()))

    @property
    def numbered_names(self) -> set[str]:
        """The names of the numbered files."""
        return {name for name, _ in self.numbered.values()}

    def needs(self, name: str) -> bool:
        """Return True if a kept commit has a file of this name."""
        return any(name in generation.fixed_names for generation in self.kept.values())

    @cached_property
    def fixed_names(self) -> frozenset[str]:
        """The `names` of a kept commit, which no longer changes."""
        return frozenset(self.names)

    def fixed(self) -> Generation:
        """Return a copy to keep, without the record's length and the commits kept with it."""
        of_now = ("record", "extended", "finished")
        values = {
            key: value
            for key, value in self.values.items()
            if key not in of_now and not key.startswith(KEPT)
        }
        files = {name: self.files[name] for name in file_names(values)}
        return Generation(values, files, dict(self.numbered))

    def read_kept(self, folder: Path, *, verify: bool = True) -> list[str]:
        """Read the kept commits and drop damaged ones.

        Args:
            folder: The folder.
            verify: False to skip the comparison of their files with the checks.

        Returns:
            One line for each damaged commit.
        """
        lost = []
        for key in [key for key in self.values if key.startswith(KEPT)]:
            file = self.values[key]
            try:
                self.files[file].require(folder / file)
                self.kept[file] = Generation.read(folder / file)
                if verify:
                    self.kept[file].require(folder)
            except Damaged as problem:
                lost.append(f"{problem.what}: {key.removeprefix(KEPT)} is lost")
                self.kept.pop(file, None)
                del self.values[key], self.files[file]
        return lost

    def write(self, file: Path) -> None:
        """Write the manifest."""
        checks = {name: check.values for name, check in sorted(self.files.items())}
        values = {**self.values, "checks": checks}
        write_json(file, {**values, "crc32": _crc(values)})

    def require(self, folder: Path) -> None:
        """Compare all files of the folder except manifests of kept commits with their checks.

        Raises:
            Damaged: A file differs.
        """
        kept = {value for key, value in self.values.items() if key.startswith(KEPT)}
        numbered = () if self.values.get(ELSEWHERE) else self.numbered.values()
        for name, check in (*self.files.items(), *numbered):
            if name not in kept:
                check.require(folder / name, grows=name == self.values["journal"])


def manifest_values(file: Path) -> dict[str, Any]:
    """Read a manifest, without the files that it names.

    Raises:
        Damaged: It was changed since it was written.
    """
    values = read_json(file)
    if "checks" not in values:
        raise Damaged(
            f"{file} has no checksums, so damage can't be detected",
            "an early version of protofl wrote it",
        )
    if values.pop("crc32", None) != _crc(values):
        raise Damaged(f"{file} is damaged: its content was changed")
    return values


def file_names(values: Mapping[str, Any]) -> set[str]:
    """Return the file names among values."""
    return {value for value in values.values() if isinstance(value, str)}


def _crc(values: Mapping[str, Any]) -> int:
    """Return the checksum of a manifest."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
