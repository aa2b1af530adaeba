"""A shard: every N-th run of a batch, so that several machines or jobs share its runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from protofl.errors import UsageError

T = TypeVar("T")

FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True)
class Shard:
    """Every N-th run, beginning with the I-th.

    The place of a run in the list of all runs decides, finished or not. So each shard has the same
    runs whenever it is started.

    Attributes:
        number: Number I of the shard, from 1 to `count`.
        count: Number N of shards; 1 for all runs.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: object) -> Shard:
        """Return the shard of ``I/N``; all runs for None.

        Raises:
            UsageError: The text has another form, or I is not from 1 to N.
        """
        if text is None:
            return cls()
        match = FORM.fullmatch(str(text).strip())
        if match is None:
            raise UsageError(
                f"--shard {text}: not of the form I/N", do="write --shard 1/4 for the first of 4"
            )
        number, count = int(match[1]), int(match[2])
        if not 1 <= number <= count:
            raise UsageError(
                f"--shard {text}: I is from 1 to N", do=f"write --shard 1/{max(1, count)}"
            )
        return cls(number, count)

    @property
    def is_part(self) -> bool:
        """True if there are other shards."""
        return self.count > 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def takes(self, place: int) -> bool:
        """Return True if the run at a place (from 0) in the list of all runs is in this shard."""
        return place % self.count == self.number - 1

    def owner(self, place: int) -> Shard:
        """Return the shard that has the run at a place."""
        return Shard(place % self.count + 1, self.count)

    def of(self, runs: Sequence[T]) -> list[T]:
        """Return the runs of this shard, of all runs."""
        return [*runs[self.number - 1 :: self.count]]


WHOLE = Shard()
"""The shard with all runs."""
