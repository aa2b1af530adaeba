"""A folder with a file of tensors for each round, and a journal that names those that count.

A file is complete before the journal gets its line, so a process that is killed leaves every round
that the journal names. A resumed run drops the rounds that it will repeat. Files are not synced,
which would take longer than anything else: after a power failure the last seconds may be lost, and
checksums show it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from protofl.errors import UsageError
from protofl.system.files.atomic import atomic_replacement, file_errors, parse_json, regular_file
from protofl.system.files.checksums import Check, Damaged, check_plain_file, check_plain_name
from protofl.system.files.tensors import Packed, read_tensors, write_tensors

Round = tuple[int, int]
"""A trial, and a round of it."""


@dataclass(frozen=True)
class SeriesEntry:
    """A file that counts."""

    file: str
    check: Check


class Series:
    """A folder to which a run adds one file per round.

    Args:
        folder: The folder; it is made with the first file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._journal = folder, folder / "journal.jsonl"

    @cached_property
    def entries(self) -> dict[Round, SeriesEntry]:
        """The files by trial and round; an incomplete last line is ignored.

        Raises:
            Damaged: Another line is invalid; the error names it.
        """
        if not self._journal.exists():
            return {}
        check_plain_file(self._journal)
        *lines, rest = regular_file(self._journal).read_bytes().split(b"\n")
        result = dict(self._entry(number, line) for number, line in enumerate(lines, 1))
        self._cut = not rest
        return result

    _cut = True
    """True if the journal ends with a complete line."""

    def _entry(self, number: int, line: bytes) -> tuple[Round, SeriesEntry]:
        try:
            values = parse_json(line)
            place = values["trial"], values["round"]
            if not all(type(number) is int and number >= 0 for number in place):
                raise ValueError
            check = Check.of_values((values["size"], values["crc32"]))
            return place, SeriesEntry(check_plain_name(values["file"]), check)
        except (ValueError, TypeError, KeyError, AttributeError, Damaged):
            raise Damaged(
                f"{self._journal}, line {number}, is damaged: it names no file",
                do=f"remove {self._folder}: the run itself does not need it",
            ) from None

    def retain(self, rounds: Collection[Round]) -> list[str]:
        """Retain the files of these rounds, and remove all others.

        Args:
            rounds: The finished rounds.

        Returns:
            A line for each damaged file, which is removed too.
        """
        lost = []
        kept: dict[Round, SeriesEntry] = {}
        for place, entry in self.entries.items():
            if place not in rounds:
                continue
            try:
                entry.check.require(self._folder / entry.file)
                kept[place] = entry
            except Damaged as problem:
                lost.append(f"{problem.what}: round {place[1] + 1} is lost")
        if kept != self.entries or not self._cut:
            with atomic_replacement(self._journal) as temporary:
                temporary.write_text(
                    "".join(_line(*item) for item in kept.items()), encoding="utf-8"
                )
            self._cut = True
        self.entries = kept
        if self._folder.is_dir():
            named = {self._journal.name, *(entry.file for entry in kept.values())}
            for file in self._folder.iterdir():
                if file.name not in named and file.is_file():
                    file.unlink()
        return lost

    def add(self, place: Round, tensors: Mapping[str, Tensor], header: Any) -> None:  # noqa: ANN401
        """Write the file of a round, and then its line in the journal.

        Args:
            place: Trial and round.
            tensors: The tensors.
            header: Any JSON value.
        """
        entries, (trial, round) = self.entries, place
        self._folder.mkdir(exist_ok=True)
        name = f"t{trial}-r{round}.safetensors"
        write_tensors(self._folder / name, tensors, header)
        entry = SeriesEntry(name, Check.of(self._folder / name))
        append(self._journal, _line(place, entry))
        entries[place] = entry

    def read(self, place: Round) -> Packed:
        """Read the file of a round; the tensors are views of it.

        Raises:
            UsageError: The round has no file.
            Damaged: The file was changed.
        """
        if place not in self.entries:
            trial, round = place
            rounds = [r for t, r in self.entries if t == trial]
            near = f"rounds of trial {trial}: {_listed(rounds) or 'none'}"
            raise UsageError(f"{self._folder} has no round={round} of trial {trial}", near)
        entry = self.entries[place]
        entry.check.require(self._folder / entry.file)
        return read_tensors(self._folder / entry.file)


def append(file: Path, line: str) -> None:
    """Append a line to a file."""
    with file_errors(file), open(file, "a", encoding="utf-8") as journal:
        journal.write(line)


def _line(place: Round, entry: SeriesEntry) -> str:
    (trial, round), (size, crc) = place, entry.check.values
    values = {"trial": trial, "round": round, "file": entry.file, "size": size, "crc32": crc}
    return json.dumps(values) + "\n"


def _listed(rounds: list[int]) -> str:
    shown = [str(number) for number in sorted(rounds)]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:4], "…", *shown[-3:]])
