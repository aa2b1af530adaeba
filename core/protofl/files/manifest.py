"""A folder of files, of which a manifest names those that count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protofl.files.lines import Journal
from protofl.files.replacing import write_json


class Manifest:
    """What counts in a folder of files.

    It is replaced last: what it does not name does not count, so a process that is killed at any
    moment leaves the folder as the commit before made it. Of numbered files, which may be many,
    a commit changes a few: their names are in a `Journal`, and the manifest says how far it counts.

    Args:
        folder: The folder; nothing else lies in it.

    Attributes:
        values: What the last commit said of itself, ``journal`` the journal's name; empty before
            the first.
        numbered: {number: file} of the numbered files that count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "manifest.json"
        self._journal: Journal | None = None
        self.values: dict[str, Any] = {}
        self.numbered: dict[int, str] = {}

    def read(self) -> None:
        """Take up the folder as its last commit left it; files that don't count are removed."""
        self._folder.mkdir(exist_ok=True)
        if self._file.exists():
            self.values = json.loads(self._file.read_text(encoding="utf-8"))
            old = self.values.pop("clients", {})  # the names themselves, before there was a journal
            self.numbered = {int(number): name for number, name in old.items()}
            if "journal" in self.values:
                length = self.values.pop("journal_bytes")
                self.numbered = Journal.read(self._folder / self.values["journal"], length)
        counted = {self._file.name, *self._words, *self.numbered.values()}
        self._remove({file.name for file in self._folder.iterdir()} - counted)

    def commit(
        self,
        values: Mapping[str, Any],
        changed: Mapping[int, str],
        *,
        journal: str,
        anew: bool = False,
    ) -> None:
        """Have files count from now on, and remove those that no longer do.

        Args:
            values: What the commit says of itself; words among them are files.
            changed: {number: file} of the numbered files that are new.
            journal: The name of the journal, where one is begun.
            anew: Whether no numbered file of before counts any more.
        """
        numbers = self.numbered.keys() if anew else changed.keys() & self.numbered.keys()
        stale = self._words | {self.numbered[number] for number in numbers}
        if anew:
            self.numbered = {}
        self.numbered |= changed
        if self._journal is None or self._journal.outgrown or len(self.numbered) == len(changed):
            self._journal = Journal.begin(self._folder / journal, self.numbered)
        else:
            self._journal.add(changed)
        self.values = {**values, "journal": self._journal.path.name}
        write_json(self._file, self.values | {"journal_bytes": self._journal.length})
        self._remove(stale - self._words)

    @property
    def _words(self) -> set[str]:
        """The files that the values name."""
        return {value for value in self.values.values() if isinstance(value, str)}

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            (self._folder / file).unlink(missing_ok=True)
