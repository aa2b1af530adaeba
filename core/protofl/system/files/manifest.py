"""A folder of files, of which a manifest names those that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.system.files.checked import Check, Damaged, check_plain_file, checks_of
from protofl.system.files.generation import KEPT, Generation, words_of
from protofl.system.files.lines import Entry, Journal
from protofl.system.files.replacing import link_or_copy, sync_folder


class Manifest:
    """What counts in a folder of files.

    It is replaced last: what it does not name does not count, so a process that is killed at any
    moment leaves the folder as the commit before made it. Of numbered files, which may be many,
    a commit changes a few: their names are in a `Journal`, and the manifest says how far it counts.

    Every file is on the disk and has a checksum before the manifest names it. The commit before
    the last keeps its files, and its manifest as ``before.json``: where one of the last's is
    damaged it counts again.

    Earlier commits may be kept under names: each has a manifest of its own, a file of the commit
    that keeps it, and the files that it names stay.

    Args:
        folder: The folder; nothing else lies in it.

    Attributes:
        values: What the last commit said of itself, ``journal`` the journal's name; empty before
            the first.
        damage: What is wrong with the last commit, where the one before counts; else empty.
        lost: What is wrong with commits that were kept, a line each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file, self._before = folder / "manifest.json", folder / "before.json"
        self._journal: Journal | None = None
        self._now = Generation()
        self._stale: set[str] = set()
        self.damage = ""
        self.lost: list[str] = []
        self._back = False

    @property
    def values(self) -> dict[str, Any]:
        """What the last commit said of itself; empty before the first."""
        return self._now.values

    @property
    def numbered(self) -> dict[int, str]:
        """{number: file} of the numbered files that count."""
        return {number: name for number, (name, _) in self._now.numbered.items()}

    def read(self, also: Callable[[Mapping[str, Any]], bool], *, back: bool = False) -> None:
        """Find the last commit of which nothing is damaged; changes nothing on the disk.

        Args:
            back: Whether the commit before the last shall count again.
            also: Called with a commit's values: checks what lies in other folders and belongs to
                it, and says whether the files in this one are needed.

        Raises:
            Damaged: Something of the last commit and of the one before is.
        """
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            check_plain_file(entry)
        found: list[Damaged] = []
        for file in (self._file, self._before)[back:]:
            try:
                generation = Generation.read(file)
                if also(generation.values):
                    generation.require(self._folder)
                    self.lost = generation.read_kept(self._folder)
            except Damaged as problem:
                found.append(problem)
                continue
            self._now, self._back = generation, file == self._before
            self.damage = found[0].what if found else ""
            return
        if self._file.exists() or self._before.exists():
            raise found[not self._file.exists()]

    def settle(self) -> None:
        """Have the folder hold what `read` found, and remove files that don't count."""
        self._folder.mkdir(exist_ok=True)
        counted = self._now.names | {self._file.name}
        if self.lost:
            self._now.write(self._file)
        elif self._back:
            link_or_copy(self._before, self._file)
        elif self._before.exists():
            try:
                before = Generation.read(self._before)
                before.read_kept(self._folder, whole=False)
                self._stale = before.names - self._now.names
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
        behind: str = "",
        keep: Mapping[str, str] | None = None,
        keep_before: Mapping[str, str] | None = None,
    ) -> None:
        """Have files count from now on, and remove those that don't since the last commit.

        Args:
            values: What the commit says of itself; words among them are files.
            changed: {number: file} of the numbered files that are new.
            journal: The name of the journal, where one is begun.
            anew: Whether no numbered file of before counts any more.
            behind: The name of a commit that is kept, whose numbered files count in place of those
                of before.
            keep: {name: a new file} under which this commit is kept from now on.
            keep_before: The same of the commit before.
        """
        before = self._now
        checks = self._checks([*words_of(values) - before.files.keys(), *changed.values()])
        entries = {number: (name, checks[name]) for number, name in changed.items()}
        numbered, other = before.numbered, self.kept(behind)
        replaced = {*changed} if not (anew or other) else {*numbered}
        stale = {numbered[number][0] for number in replaced & numbered.keys()}
        if anew or other:
            numbered = dict(other.numbered) if other else {}
        numbered |= entries
        self._note(journal, numbered, entries, anew=bool(anew or other))
        assert self._journal is not None
        values = {**values, "journal": self._journal.path.name}
        files = before.files | checks | {self._journal.path.name: self._journal.check}
        now = Generation(values, {word: files[word] for word in words_of(values)}, numbered)
        self._keep(now, keep or {}, keep_before or {})
        self._now = now
        sync_folder(self._folder)
        if self._file.exists():
            link_or_copy(self._file, self._before)
        now.write(self._file)
        sync_folder(self._folder)
        stale |= before.files.keys() - now.files.keys()
        for file in before.kept.keys() - now.kept.keys():  # files of now may be among its
            stale |= before.kept[file].all_names - now.names
        gone = {name for name in self._stale - stale if not before.needs(name)}
        stale = {name for name in stale if not now.needs(name)}
        self._remove(name for name in gone if not now.needs(name))
        self._stale = stale

    def _note(
        self, name: str, numbered: Mapping[int, Entry], entries: Mapping[int, Entry], *, anew: bool
    ) -> None:
        """Have the journal, or a new one, name the numbered files."""
        if anew or self._journal is None or self._journal.outgrown or len(numbered) == len(entries):
            self._journal = Journal.begin(self._folder / name, numbered)
        else:
            self._journal.add(entries)

    def _keep(
        self, now: Generation, keep: Mapping[str, str], keep_before: Mapping[str, str]
    ) -> None:
        """Have a commit keep earlier ones, and perhaps itself."""
        before = self._now
        titles = {key: file for key, file in before.values.items() if key.startswith(KEPT)}
        commits = dict(before.kept)
        for name, file in keep_before.items():
            titles[KEPT + name] = file
            commits.setdefault(file, before.fixed())
        for name, file in keep.items():
            titles[KEPT + name] = file
            commits[file] = now.fixed()
        now.kept = {file: commits[file] for file in titles.values()}
        fresh = [file for file in now.kept if file not in before.files]
        for file in fresh:
            now.kept[file].write(self._folder / file)
        checks = self._checks(fresh)
        now.files |= {file: checks.get(file) or before.files[file] for file in now.kept}
        now.values |= titles

    def _checks(self, names: Sequence[str]) -> dict[str, Check]:
        """Bring files to the disk; their checks."""
        checks = checks_of([self._folder / name for name in names])
        return dict(zip(names, checks, strict=True))

    def kept(self, name: str) -> Generation | None:
        """A commit that is kept under a name."""
        return self._now.kept.get(self._now.values.get(KEPT + name, ""))

    def restate(self, values: Mapping[str, Any]) -> None:
        """Add to what the last commit says of itself; the one before stays the same."""
        self._now.files |= self._checks([*words_of(values) - self._now.files.keys()])
        self._now.values |= values
        self._now.write(self._file)

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            (self._folder / file).unlink(missing_ok=True)
