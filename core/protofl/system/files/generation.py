"""What a commit of a folder of files had count: its manifest, and the journal of numbered files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.system.files.checked import Check, Damaged, check_plain_name, read_json
from protofl.system.files.lines import Entry, Journal
from protofl.system.files.replacing import write_json

KEPT = "kept: "
"""What the names of commits that are kept begin with, among a manifest's values."""


@dataclass
class Generation:
    """What a commit had count.

    Attributes:
        values: What it said of itself; words among them are files.
        files: {file: its check} of these.
        numbered: {number: file and check} of the numbered ones.
        kept: {file: earlier commit} of those that are kept with it; their manifests are its files.
    """

    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Check] = field(default_factory=dict)
    numbered: dict[int, Entry] = field(default_factory=dict)
    kept: dict[str, Generation] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Generation:
        """What a manifest and its journal say.

        Raises:
            Damaged: One of them is not what was written.
        """
        values = read_json(file)
        if "checks" not in values:
            raise Damaged(
                f"{file} has no checksums, so that damage could not be told from what was written",
                "a version of protofl before there were checksums wrote it",
            )
        if values.pop("crc32", None) != _crc(values):
            raise Damaged(f"{file} is damaged: it is not what was written")
        try:
            checks = values.pop("checks").items()
            files = {check_plain_name(name): Check.of_values(check) for name, check in checks}
            journal = values["journal"]
            numbered = Journal.read(file.parent / journal, files[journal])
            if not files.keys() >= words_of(values):
                raise KeyError
        except (KeyError, ValueError, TypeError, AttributeError):
            raise Damaged(f"{file} is damaged: it names no files") from None
        return cls(values, files, numbered)

    @property
    def names(self) -> set[str]:
        """The files that count."""
        own = {*self.files, *(name for name, _ in self.numbered.values())}
        return own.union(*(generation.names for generation in self.kept.values()))

    def needs(self, name: str) -> bool:
        """Whether a file counts for a commit that is kept."""
        return any(name in generation.all_names for generation in self.kept.values())

    @cached_property
    def all_names(self) -> frozenset[str]:
        """The files of a commit that is kept and changes no more."""
        return frozenset(self.names)

    def fixed(self) -> Generation:
        """The commit's files as they are now, without those that are kept with it."""
        of_now = ("record", "extended", "finished")  # about a record that goes on, and has times
        named = {key: v for key, v in self.values.items() if not key.startswith(KEPT)}
        values = {key: value for key, value in named.items() if key not in of_now}
        files = {name: self.files[name] for name in words_of(values)}
        return Generation(values, files, dict(self.numbered))

    def read_kept(self, folder: Path, *, whole: bool = True) -> list[str]:
        """Find the commits that are kept with it; those that are damaged are left out, and told.

        Args:
            folder: The folder.
            whole: Whether to hold their files against their checks.
        """
        lost = []
        for key in [key for key in self.values if key.startswith(KEPT)]:
            file = self.values[key]
            try:
                self.files[file].require(folder / file)
                self.kept[file] = Generation.read(folder / file)
                if whole:
                    self.kept[file].require(folder)
            except Damaged as problem:
                lost.append(f"{problem.what}: {key.removeprefix(KEPT)} is not kept any more")
                self.kept.pop(file, None)
                del self.values[key], self.files[file]
        return lost

    def write(self, file: Path) -> None:
        """Write the manifest."""
        checks = {name: check.values for name, check in sorted(self.files.items())}
        values = {**self.values, "checks": checks}
        write_json(file, {**values, "crc32": _crc(values)})

    def require(self, folder: Path) -> None:
        """Hold the files against their checks.

        Raises:
            Damaged: One is not what was written.
        """
        kept = {value for key, value in self.values.items() if key.startswith(KEPT)}
        for name, check in (*self.files.items(), *self.numbered.values()):
            if name in kept:
                continue  # `read_kept` looks at it
            check.require(folder / name, grows=name == self.values["journal"])


def words_of(values: Mapping[str, Any]) -> set[str]:
    """The files that values name."""
    return {value for value in values.values() if isinstance(value, str)}


def _crc(values: Mapping[str, Any]) -> int:
    """The checksum of a manifest itself."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
