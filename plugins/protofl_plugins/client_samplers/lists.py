"""Client sampling from a file: a line for each round.

A line holds the numbers of a round's clients, apart by spaces or commas; what follows ``#`` and
empty lines are left out. Behind its last line the file begins again. Clients that are away in a
round (``--devices``) are left out of it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

import protofl as pf
from protofl_plugins.shared.text_files import read_lines, stamp


@functools.lru_cache(maxsize=8)
def _read(path: str, clients: int, stamp: tuple[int, int]) -> list[list[int]]:
    """Return the lists of a file, checked for the number of clients; cached until it changes."""
    rounds: list[list[int]] = []
    for number, line in read_lines(path, "sampling list"):
        entries = line.partition("#")[0].replace(",", " ").split()
        place = f"{path}, line {number}"
        participants: list[int] = []
        for word in entries:
            if not (word.isascii() and word.isdecimal() and int(word) < clients):
                raise pf.UsageError(
                    f"{place}: {word!r} is not a client",
                    f"clients have the numbers 0 … {clients - 1}",
                    "write a round's clients in a line, apart by spaces or commas",
                )
            if int(word) in participants:
                raise pf.UsageError(f"{place}: client {int(word)} stands there twice")
            participants.append(int(word))
        if entries:
            rounds.append(participants)
    if not rounds:
        raise pf.UsageError(f"{path} lists no client", do="write a round's clients in a line")
    return rounds


class Lists:
    """Clients from a file, with a line for each round."""

    argument = "path"
    any_number = True

    class Config(pf.Config):
        """Options: --set sampling.OPTION=VALUE."""

        path: Path = pf.Field(description="the file: a round's clients in a line")

    @pf.hookimpl
    def select(
        self, round: int, clients: np.ndarray, sizes: np.ndarray, config: Config
    ) -> list[int]:
        """Return the clients of the round's line that are available."""
        rounds = _read(str(config.path), len(sizes), stamp(config.path, "sampling list"))
        listed = rounds[round % len(rounds)]
        return [*np.intersect1d(listed, clients).tolist()]
