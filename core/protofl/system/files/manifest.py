"""A folder of files with a manifest that names the valid files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofl.system.files.atomic import link_or_copy, sync_folder
from protofl.system.files.checksums import Check, Damaged, check_plain_file, checks_of
from protofl.system.files.commit import KEPT, Entry, Generation, Journal, file_names


class Manifest:
    """The files that count in a folder.

    The manifest is replaced last. Files that it does not name do not count, so a process that is
    killed at any moment leaves the folder as the previous commit made it. There may be many
    numbered files, of which a commit changes a few: a `Journal` has their names, and the manifest
    the size of the journal.

    Every file is synced and has a checksum before the manifest names it. The previous commit keeps
    its files, and its manifest as ``before.json``; it replaces a damaged last commit. Earlier
    commits may be kept under names, each with its own manifest.

    Args:
        folder: The folder, which holds nothing else.

    Attributes:
        damage: The damage of the last commit, if the previous one replaces it.
        lost: The damage of kept commits, one line each.
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
        """Facts about the last commit; empty before the first commit."""
        return self._now.values

    @property
    def numbered(self) -> dict[int, Entry]:
        """{number: file and check} of the numbered files that count."""
        return self._now.numbered

    @property
    def names(self) -> set[str]:
        """The names of all files of the last two commits and of kept commits."""
        return self._now.names | self._stale

    def read(self, also: Callable[[Mapping[str, Any]], None], *, back: bool = False) -> None:
        """Find the last undamaged commit, without changing the disk.

        Args:
            also: Called with a commit's values to check files of the commit in other folders.
            back: True to use the previous commit instead of the last.

        Raises:
            Damaged: The last commit and the previous one are damaged.
        """
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            check_plain_file(entry)
        found: list[Damaged] = []
        for file in (self._file, self._before)[back:]:
            try:
                generation = Generation.read(file)
                also(generation.values)
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
        """Write the commit that `read` found, and remove files that do not count."""
        self._folder.mkdir(exist_ok=True)
        counted = self._now.names | {self._file.name}
        if self.lost:
            self._now.write(self._file)
        elif self._back:
            link_or_copy(self._before, self._file)
        elif self._before.exists():
            try:
                before = Generation.read(self._before)
                before.read_kept(self._folder, verify=False)
                self._stale = before.names - self._now.names
                counted |= self._stale | {self._before.name}
            except Damaged:
                self._stale = set()
        self._remove({file.name for file in self._folder.iterdir()} - counted)
        if journal := self.values.get("journal"):
            self._journal = Journal.reopened(self._folder / journal, self._now.files[journal])

    def commit(
        self,
        values: Mapping[str, Any],
        changed: Mapping[int, str],
        known: Mapping[int, Check] | None = None,
        *,
        journal: str,
        anew: bool = False,
        base: str = "",
        keep: Mapping[str, str] | None = None,
        keep_before: Mapping[str, str] | None = None,
    ) -> None:
        """Commit files, and remove those that no longer count.

        Args:
            values: Facts about the commit; strings among the values are files.
            changed: {number: file} of the new numbered files.
            known: {number: check} of new files that are not in the folder; None if they are.
            journal: The name of the journal, for a new one.
            anew: True if no earlier numbered file counts any more.
            base: The name of a kept commit whose numbered files replace those of the last one.
            keep: {name: new file}: names under which this commit is kept.
            keep_before: {name: new file}: names under which the previous commit is kept.
        """
        before = self._now
        new = changed.values() if known is None else ()
        checks = self._checks([*file_names(values) - before.files.keys(), *new])
        entries = {n: (name, known[n] if known else checks[name]) for n, name in changed.items()}
        numbered, other = before.numbered, self.kept(base)
        anew = anew or other is not None
        stale = {numbered[n][0] for n in (numbered if anew else changed.keys() & numbered.keys())}
        if anew:
            numbered = dict(other.numbered) if other else {}
        numbered |= entries
        if anew or self._journal is None or self._journal.outgrown or len(numbered) == len(entries):
            self._journal = Journal.begin(self._folder / journal, numbered)
        else:
            self._journal.add(entries)
        values = {**values, "journal": self._journal.path.name}
        files = before.files | checks | {self._journal.path.name: self._journal.check}
        now = Generation(values, {name: files[name] for name in file_names(values)}, numbered)
        self._keep(now, keep or {}, keep_before or {})
        self._now = now
        sync_folder(self._folder)
        if self._file.exists():
            link_or_copy(self._file, self._before)
        now.write(self._file)
        sync_folder(self._folder)
        stale |= before.files.keys() - now.files.keys()
        for file in before.kept.keys() - now.kept.keys():  # it may share files with this commit
            stale |= before.kept[file].fixed_names - now.names
        gone = {name for name in self._stale - stale if not before.needs(name)}
        self._stale = {name for name in stale if not now.needs(name)}
        self._remove(name for name in gone if not now.needs(name))

    def _keep(
        self, now: Generation, keep: Mapping[str, str], keep_before: Mapping[str, str]
    ) -> None:
        """Add kept commits to a new commit."""
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
        """Sync files to the disk and return their checks."""
        checks = checks_of([self._folder / name for name in names])
        return dict(zip(names, checks, strict=True))

    def kept(self, name: str) -> Generation | None:
        """Return the commit that is kept under a name."""
        return self._now.kept.get(self._now.values.get(KEPT + name, ""))

    def restate(self, values: Mapping[str, Any]) -> None:
        """Add to the values of the last commit; the previous one stays the same."""
        self._now.files |= self._checks([*file_names(values) - self._now.files.keys()])
        self._now.values |= values
        self._now.write(self._file)

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            (self._folder / file).unlink(missing_ok=True)
