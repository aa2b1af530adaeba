"""Which files of ``checkpoint/`` count: those that a commit names.

A commit is one table: the files of a round, with the length and CRC-32 of each. The folder holds a
few commits in one format, and the last whole one counts::

    manifest.json      the last commit
    before.json        the commit before it
    kept-t0-r1.json    a round that is kept: the best, or the last of an earlier trial

      each names     server-t0-r3.safetensors, client-00007-t0-r1.safetensors, …

A round writes its files under new names and syncs them; then ``manifest.json`` is replaced in one
step. Files that no commit names do not count, so a process that is killed at any moment leaves the
folder as the commit before made it. A file that did not change keeps its name in the next commit
and is not written again. If the last commit or one of its files is damaged, the one before counts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.system.files.atomic import link_or_copy, sync_folder, write_file
from protofl.system.files.checksums import (
    Check,
    Damaged,
    check_plain_file,
    check_plain_name,
    checks_of,
    read_json,
)

LAST, BEFORE = "manifest.json", "before.json"
"""Files of the last commit and the commit before."""

Entry = tuple[str, Check]
"""The name of a file, and its check."""


@dataclass(frozen=True)
class Commit:
    """The files that count after a round, or before the first one.

    Attributes:
        trial: The trial.
        round: The round; -1 before the first one.
        server: The server's file; empty before the first round.
        clients: The table of the clients' files; empty before the first round.
        holders: Clients that hold the download of the round's end.
        elsewhere: True if hosts keep the clients' files, so that the folder does not have them.
        record: The part of ``metrics.jsonl`` that counts: rows, bytes, CRC-32.
        config: The file with the configuration at the start of the run.
        extended: True if the run continued with other numbers of rounds or trials.
        finished: True if the run is finished.
        kept: {title: its file} of the kept commits; a title is ``best-t0``, ``last-t0``, or
            ``r5-t0`` for round 5 of trial 0.
        files: {file: its check} of all files above.
        client_files: {client: its file and check} of all clients that have trained in the trial.
    """

    trial: int = 0
    round: int = -1
    server: str = ""
    clients: str = ""
    holders: tuple[int, ...] = ()
    elsewhere: bool = False
    record: tuple[int, ...] = ()
    config: str = ""
    extended: bool = False
    finished: bool = False
    kept: dict[str, str] = field(default_factory=dict)
    files: dict[str, Check] = field(default_factory=dict)
    client_files: dict[int, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Commit:
        """Read a commit and its table of clients' files.

        Raises:
            Damaged: One of them was changed since it was written, or names no files.
        """
        values = commit_values(file)
        try:
            facts = {name: values[name] for name in _FACTS if name in values}
            facts |= {name: tuple(facts[name]) for name in ("holders", "record") if name in facts}
            files = {check_plain_name(n): Check.of_values(c) for n, c in values["checks"].items()}
            result = cls(**facts, files=files)
            if not files.keys() >= result._named:
                raise KeyError
        except (KeyError, ValueError, TypeError, AttributeError):
            raise Damaged(f"{file} is damaged: it names no files") from None
        if not result.clients:
            return result
        client_files = _read_table(file.parent / result.clients, files[result.clients])
        return replace(result, client_files=client_files)

    @property
    def text(self) -> str:
        """The content of the file: JSON with its own CRC-32."""
        facts = {name: getattr(self, name) for name in _FACTS}
        if not self.server:
            del facts["trial"], facts["round"]
        values = {n: v for n, v in facts.items() if v is not False and v not in ("", (), {})}
        values["checks"] = {name: check.values for name, check in sorted(self.files.items())}
        return json.dumps({**values, "crc32": _crc(values)}, indent=1) + "\n"

    @property
    def _named(self) -> set[str]:
        """The files that must have a check among `files`."""
        return {self.server, self.clients, self.config, *self.kept.values()} - {""}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all files, those of the kept commits' own excepted."""
        return frozenset((*self.files, *(name for name, _ in self.client_files.values())))

    @property
    def client_checks(self) -> dict[int, list[int]]:
        """{client: length and CRC-32 of its file} if hosts keep the clients' files."""
        return {c: check.values for c, (_, check) in self.client_files.items() if self.elsewhere}

    def with_exact_files(self) -> Commit:
        """Return the commit without checks of files that it does not name."""
        return replace(self, files={name: self.files[name] for name in sorted(self._named)})

    def to_keep(self) -> Commit:
        """Return the commit of a kept round: server and clients only."""
        now = {"record": (), "config": "", "extended": False, "finished": False, "kept": {}}
        return replace(self, **now).with_exact_files()  # type: ignore[arg-type]

    def require(self, folder: Path) -> None:
        """Compare the files of the folder with their checks, except kept commits.

        Raises:
            Damaged: A file differs.
        """
        kept = {*self.kept.values()}
        clients = () if self.elsewhere else self.client_files.values()
        for name, check in (*self.files.items(), *clients):
            if name not in kept:
                check.require(folder / name)


def kept_name(trial: int, round: int) -> str:
    """Return the name of the file of a kept commit."""
    return f"kept-t{trial}-r{round}.json"


_FACTS = [f.name for f in fields(Commit) if f.name not in ("files", "client_files")]
"""Attributes of a commit that its file has under their own names."""


def commit_values(file: Path) -> dict[str, Any]:
    """Return the JSON values of a commit, without its files.

    Raises:
        Damaged: The file was changed since it was written.
    """
    values = read_json(file)
    if values.pop("crc32", None) != _crc(values):
        raise Damaged(f"{file} is damaged: its content was changed")
    return values


def _crc(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def table_of(client_files: Mapping[int, Entry]) -> str:
    """Return the content of a table of clients' files: {client: [file, length, CRC-32]}."""
    entries = {c: (name, check.size, check.crc) for c, (name, check) in client_files.items()}
    return json.dumps(entries) + "\n"


def _read_table(file: Path, check: Check) -> dict[int, Entry]:
    """Read a table of clients' files.

    Raises:
        Damaged: The file was changed, or names no files.
    """
    check.require(file)
    result: dict[int, Entry] = {}
    try:
        for client, (name, *values) in read_json(file).items():
            result[int(client)] = check_plain_name(name), Check.of_values(values)
    except (ValueError, TypeError):
        raise Damaged(f"{file} is damaged: it names no files") from None
    return result


class Checkpoint:
    """The commits of a folder.

    Args:
        folder: The folder, which holds nothing else.

    Attributes:
        last: The commit that counts; a commit of nothing before the first one.
        damage: The damage of the last commit, if the commit before counts.
        lost: The damage of kept commits, one line each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last = self._before = Commit()
        self._kept: dict[str, Commit] = {}
        self._back = False
        self.damage = ""
        self.lost: list[str] = []

    def kept(self, title: str) -> Commit | None:
        """Return the commit that is kept under a title."""
        return self._kept[self.last.kept[title]] if title in self.last.kept else None

    @property
    def commits(self) -> tuple[Commit, ...]:
        """The last commit and the one before, those before the first round excepted."""
        return tuple(commit for commit in (self.last, self._before) if commit.server)

    @property
    def names(self) -> frozenset[str]:
        """The names of all files that the last two commits and the kept ones need."""
        return self._names(self.last) | self._names(self._before)

    def _names(self, commit: Commit) -> frozenset[str]:
        kept = (self._kept[file].names for file in commit.kept.values() if file in self._kept)
        return commit.names.union(*kept)

    # --- reading --------------------------------------------------------------------------------

    def read(self, also: Callable[[Commit], None], *, back: bool = False) -> None:
        """Find the last undamaged commit, without changing the disk.

        Args:
            also: Called with a commit to check files of the commit in other folders.
            back: True to use the commit before the last.

        Raises:
            Damaged: The last commit and the one before are damaged.
        """
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            check_plain_file(entry)
        problems: list[Damaged] = []
        for file in (self._folder / LAST, self._folder / BEFORE)[back:]:
            try:
                commit = Commit.read(file)
                also(commit)
                commit.require(self._folder)
            except Damaged as problem:
                problems.append(problem)
                continue
            self.last, self._back = self._with_kept(commit), file.name == BEFORE
            self.damage = problems[0].what if problems else ""
            return
        if (self._folder / LAST).exists():
            raise problems[0]
        if (self._folder / BEFORE).exists():
            raise problems[-1]

    def _with_kept(self, commit: Commit) -> Commit:
        """Read the kept commits; return the commit without the damaged ones."""
        for title, file in commit.kept.items():
            try:
                commit.files[file].require(self._folder / file)
                kept = Commit.read(self._folder / file)
                kept.require(self._folder)
                self._kept[file] = kept
            except Damaged as problem:
                self.lost.append(f"{problem.what}: {title} is lost")
        kept_files = {title: f for title, f in commit.kept.items() if f in self._kept}
        if kept_files == commit.kept:
            return commit
        return replace(commit, kept=kept_files).with_exact_files()

    # --- writing --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Make the commit that `read` found the last one on the disk, and remove other files."""
        self._folder.mkdir(exist_ok=True)
        counted = set[str]()
        if self.last.files:
            self._before = self.last
            if self._back or self.lost:
                self._write(self.last)
            else:
                with suppress(Damaged):
                    self._before = Commit.read(self._folder / BEFORE)
                    counted.add(BEFORE)
            for name in {*self._before.kept.values()} - self._kept.keys():
                with suppress(Damaged):
                    self._kept[name] = Commit.read(self._folder / name)
            counted |= {LAST, *self.names}
        self._remove({entry.name for entry in self._folder.iterdir()} - counted)

    def sync(self, names: Iterable[str]) -> dict[str, Check]:
        """Sync files to the disk and return {name: its check}."""
        new = [*names]
        checks = checks_of([self._folder / name for name in new])
        return dict(zip(new, checks, strict=True))

    def write(self, name: str, text: str) -> Check:
        """Write a file, durably, and return its check."""
        write_file(self._folder / name, text)
        return Check().plus(text.encode())

    def commit(self, commit: Commit, keep: Mapping[str, Commit] | None = None) -> None:
        """Make a commit the last one, and remove files that no commit needs any more.

        Args:
            commit: The commit; its files are there and synced (`sync`).
            keep: {title: commit of which it keeps server and clients}.
        """
        kept, files = dict(commit.kept), dict(commit.files)
        for title, other in (keep or {}).items():
            kept[title] = name = kept_name(other.trial, other.round)
            if name not in files:
                self._kept[name] = other.to_keep()
                files[name] = self.write(name, self._kept[name].text)
        commit = replace(commit, kept=kept, files=files).with_exact_files()
        sync_folder(self._folder)
        if (self._folder / LAST).exists():
            link_or_copy(self._folder / LAST, self._folder / BEFORE)
        self._write(commit)
        sync_folder(self._folder)
        gone = self._names(self._before) - self._names(self.last) - self._names(commit)
        self._before, self.last = self.last, commit
        self._remove(gone)
        needed = {*self.last.kept.values(), *self._before.kept.values()}
        self._kept = {name: self._kept[name] for name in needed & self._kept.keys()}

    def restate(self, commit: Commit) -> None:
        """Replace the last commit by one of the same round; the commit before stays."""
        self._write(commit)
        self.last = commit

    def _write(self, commit: Commit) -> None:
        self.write(LAST, commit.text)

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            (self._folder / file).unlink(missing_ok=True)
