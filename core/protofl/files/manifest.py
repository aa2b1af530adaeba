"""A folder of files, of which a manifest names those that count."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofl.files.checked import (
    Check,
    Damaged,
    check_plain_file,
    check_plain_name,
    checks_of,
    read_json,
)
from protofl.files.lines import Entry, Journal
from protofl.files.replacing import link_or_copy, sync_folder, write_json


@dataclass
class _Generation:
    """What a commit had count.

    Attributes:
        values: What it said of itself; words among them are files.
        files: {file: its check} of these.
        numbered: {number: file and check} of the numbered ones.
    """

    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Check] = field(default_factory=dict)
    numbered: dict[int, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> _Generation:
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
            if not files.keys() >= _words(values):
                raise KeyError
        except (KeyError, ValueError, TypeError, AttributeError):
            raise Damaged(f"{file} is damaged: it names no files") from None
        return cls(values, files, numbered)

    @property
    def names(self) -> set[str]:
        """The files that count."""
        return {*self.files, *(name for name, _ in self.numbered.values())}

    def write(self, file: Path) -> None:
        """Write the manifest."""
        checks = {name: check.values for name, check in self.files.items()}
        values = {**self.values, "checks": checks}
        write_json(file, {**values, "crc32": _crc(values)})

    def require(self, folder: Path) -> None:
        """Hold the files against their checks.

        Raises:
            Damaged: One is not what was written.
        """
        for name, check in (*self.files.items(), *self.numbered.values()):
            check.require(folder / name, grows=name == self.values["journal"])


class Manifest:
    """What counts in a folder of files.

    It is replaced last: what it does not name does not count, so a process that is killed at any
    moment leaves the folder as the commit before made it. Of numbered files, which may be many,
    a commit changes a few: their names are in a `Journal`, and the manifest says how far it counts.

    Every file is on the disk and has a checksum before the manifest names it. The commit before
    the last keeps its files, and its manifest as ``before.json``: where one of the last's is
    damaged it counts again.

    Args:
        folder: The folder; nothing else lies in it.

    Attributes:
        values: What the last commit said of itself, ``journal`` the journal's name; empty before
            the first.
        damage: What is wrong with the last commit, where the one before counts; else empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file, self._before = folder / "manifest.json", folder / "before.json"
        self._journal: Journal | None = None
        self._now = _Generation()
        self._stale: set[str] = set()
        self.damage = ""

    @property
    def values(self) -> dict[str, Any]:
        """What the last commit said of itself; empty before the first."""
        return self._now.values

    @property
    def numbered(self) -> dict[int, str]:
        """{number: file} of the numbered files that count."""
        return {number: name for number, (name, _) in self._now.numbered.items()}

    def read(self, also: Callable[[Mapping[str, Any]], bool]) -> None:
        """Find the last commit of which nothing is damaged; changes nothing on the disk.

        Args:
            also: Called with a commit's values: checks what lies in other folders and belongs to
                it, and says whether the files in this one are needed.

        Raises:
            Damaged: Something of the last commit and of the one before is.
        """
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            check_plain_file(entry)
        found: list[Damaged] = []
        for file in (self._file, self._before):
            try:
                generation = _Generation.read(file)
                if also(generation.values):
                    generation.require(self._folder)
            except Damaged as problem:
                found.append(problem)
                continue
            self._now = generation
            self.damage = found[0].what if found else ""
            return
        if self._file.exists() or self._before.exists():
            raise found[not self._file.exists()]

    def settle(self) -> None:
        """Have the folder hold what `read` found, and remove files that don't count."""
        self._folder.mkdir(exist_ok=True)
        counted = self._now.names | {self._file.name}
        if self.damage:
            link_or_copy(self._before, self._file)
        elif self._before.exists():
            try:
                self._stale = _Generation.read(self._before).names - self._now.names
                counted |= self._stale | {self._before.name}
            except Damaged:
                self._stale = set()
        self._remove({file.name for file in self._folder.iterdir()} - counted)
        if journal := self.values.get("journal"):
            self._journal = Journal.again(self._folder / journal, self._now.files[journal])

    def commit(
        self,
        values: Mapping[str, Any],
        changed: Mapping[int, str],
        *,
        journal: str,
        anew: bool = False,
    ) -> None:
        """Have files count from now on, and remove those that don't since the last commit.

        Args:
            values: What the commit says of itself; words among them are files.
            changed: {number: file} of the numbered files that are new.
            journal: The name of the journal, where one is begun.
            anew: Whether no numbered file of before counts any more.
        """
        before = self._now
        fresh = [*_words(values) - before.files.keys(), *changed.values()]
        checks = dict(zip(fresh, checks_of([self._folder / n for n in fresh]), strict=True))
        files = before.files | checks
        entries = {number: (name, checks[name]) for number, name in changed.items()}
        replaced = before.numbered.keys() if anew else changed.keys() & before.numbered.keys()
        stale = {before.numbered[number][0] for number in replaced}
        numbered = {} if anew else before.numbered
        numbered |= entries
        if self._journal is None or self._journal.outgrown or len(numbered) == len(entries):
            self._journal = Journal.begin(self._folder / journal, numbered)
        else:
            self._journal.add(entries)
        name = self._journal.path.name
        values = {**values, "journal": name}
        files[name] = self._journal.check
        files = {word: files[word] for word in _words(values)}
        self._now = _Generation(values, files, numbered)
        sync_folder(self._folder)
        if self._file.exists():
            link_or_copy(self._file, self._before)
        self._now.write(self._file)
        sync_folder(self._folder)
        stale |= before.files.keys() - files.keys()
        self._remove(self._stale - stale)
        self._stale = stale

    def restate(self, values: Mapping[str, Any]) -> None:
        """Add to what the last commit says of itself; the one before stays the same."""
        self._now.values |= values
        self._now.write(self._file)

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            (self._folder / file).unlink(missing_ok=True)


def _words(values: Mapping[str, Any]) -> set[str]:
    """The files that values name."""
    return {value for value in values.values() if isinstance(value, str)}


def _crc(values: Mapping[str, Any]) -> int:
    """The checksum of a manifest itself."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
