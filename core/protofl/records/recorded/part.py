"""Part of what lies in a run's folder: some of its trials, and the first rounds of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.records.folder.reading import FINISHED, Reading
from protofl.records.folder.result import Weights, is_best, summarise
from protofl.records.folder.row import Row


@dataclass(frozen=True)
class Part:
    """A reading of fewer trials and rounds, as a run of these alone would have left it.

    Attributes:
        whole: All that lies in the folder.
        trials: The trials; the first of them is trial 0 here.
        rounds: Rounds of each.
    """

    whole: Reading
    trials: range
    rounds: int

    @property
    def path(self) -> Path:
        """The folder."""
        return self.whole.path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration with the seed, trials and rounds of the part."""
        config = self.whole.config
        seed = config["seed"] + self.trials.start
        return {**config, "seed": seed, "trials": len(self.trials), "rounds": self.rounds}

    @cached_property
    def rows(self) -> list[Row]:
        """The lines of the record."""
        rows = [r for r in self.whole.rows if r.trial in self.trials]
        return [Row.from_json(self._renumbered(row)) for row in rows if row.round < self.rounds]

    @cached_property
    def partition(self) -> dict[str, Any] | None:
        """The splits of the part's trials."""
        record = self.whole.partition
        if record is None or self.config.get("hold_split"):
            return record
        every = [record, *record.get("trials", ())]
        first, *others = [self._renumbered(one) for one in every if one["trial"] in self.trials]
        return {**first, "trials": others}

    @property
    def finished(self) -> bool:
        """Whether all rounds are there."""
        return len(self.rows) == self.rounds * len(self.trials)

    @property
    def state(self) -> str:
        """``finished``, or the state of the whole run."""
        return FINISHED if self.finished else self.whole.state

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the whole run diverged before the part was done; None where it didn't."""
        return None if self.finished else self.whole.failure

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """What a run of these trials and rounds would have written; None where some lack."""
        partition = self.partition
        if not self.finished or partition is None:
            return None
        about = {key: self.config[key] for key in ("rounds", "clients", "eval_clients")}
        splits = [partition, *partition.get("trials", ())]

        def majority(trial: int, clients: Sequence[int] | None = None) -> float:
            return _majority(splits[trial if len(splits) > trial else 0], clients)

        return summarise(self.rows, majority, about)

    def check_round(self, kept: Weights, which: str, trial: int) -> None:
        """Whether weights are those of a round of the part.

        Args:
            kept: The weights.
            which: What they are kept as, ``best`` or ``last``.
            trial: The trial, from 0 here.

        Raises:
            UsageError: They are of a later round, or of one that was the best later.
        """
        rows = [row for row in self.rows if row.trial == trial]
        wanted = self.rounds - 1
        if which == "best":
            best = [row.round for n, row in enumerate(rows) if is_best(row, rows[:n])]
            wanted = best[-1] if best else wanted
        if kept.round != wanted:
            raise UsageError(
                f"{self.path} has kept round {kept.round} as the {which} of all its rounds, and "
                f"not round {wanted}, the {which} of the first {self.rounds}",
                do=f"a run of {self.rounds} rounds has it",
            )

    def _renumbered(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "trial": values["trial"] - self.trials.start}


def _majority(split: Mapping[str, Any], clients: Sequence[int] | None) -> float:
    """The accuracy of always guessing each client's commonest class; of some or of all."""
    import torch

    from protofl.data.split import majority_correct

    own = slice(None) if clients is None else [*clients]
    train, test = (torch.tensor(split[f"{part}_counts"])[own] for part in ("train", "test"))
    return majority_correct(train, test)
