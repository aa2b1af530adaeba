"""Predictions of a run (``--record-predictions``): records of the chosen rounds of each trial."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from protofl.errors import UsageError
from protofl.federation.clients.sample_outputs import PREDICTED, TRUE
from protofl.federation.plan.plan import Plan
from protofl.hooks.wire.payload import Payload
from protofl.records.layout import PREDICTIONS
from protofl.records.result import chosen_row
from protofl.records.row import Row
from protofl.system.files.series import Round, Series


def check_recording(plan: Plan) -> None:
    """Check that a run has the rounds that ``--record-predictions`` names.

    Raises:
        UsageError: It asks for the round chosen on validation samples, and none are held out.
    """
    if "validation" in plan.settings.record_predictions and not plan.settings.validation:
        raise UsageError(
            "--record-predictions validation: the run has no validation samples",
            do="hold some out (--validation 0.1), or record last or best",
        )


class Predictions:
    """Records the predictions of the chosen rounds, and keeps them up to date round by round.

    A round has one file, whatever it is chosen for. A file is removed when neither the run needs it
    nor the same run resumed from one of its last two commits.

    Args:
        plan: The run.
        folder: Its folder.
        rows: The lines of the finished rounds; files of other rounds are removed.
        note: Takes a line for the user.
    """

    def __init__(
        self, plan: Plan, folder: Path, rows: Sequence[Row], note: Callable[[str], None]
    ) -> None:
        self._choices = plan.settings.record_predictions
        self._series = Series(folder / PREDICTIONS)
        self._taken: dict[int, tuple[Tensor, Tensor]] = {}
        for line in self._series.retain({(row.trial, row.round) for row in rows}):
            note(line)
        trials = sorted({row.trial for row in rows})
        for trial in trials:
            for which in self._choices:
                chosen = chosen_row([row for row in rows if row.trial == trial], which)
                if chosen is None or (trial, chosen.round) in self._series.entries:
                    continue
                if which == "last" and trial == trials[-1]:
                    continue  # a later round follows
                of = f" of trial {trial}" if plan.settings.trials > 1 else ""
                note(f"the predictions of round {chosen.round + 1}{of} ({which}) are not recorded")

    def take(self, client: int, counts: Payload) -> None:
        """Take a client's predictions out of the counts of its evaluation."""
        self._taken[client] = counts.pop(PREDICTED), counts.pop(TRUE)

    def keep(self, row: Row, before: Sequence[Row], saved: Collection[Round]) -> None:
        """Write the predictions of a round if it is one of the chosen ones so far.

        Args:
            row: The round's line of the record.
            before: The lines of the trial before.
            saved: Trial and round of the commits from which the run may be resumed.
        """
        taken = {c: self._taken[c] for c in sorted(self._taken) if str(c) not in row.unscored}
        self._taken = {}
        rows, place = [*before, row], (row.trial, row.round)
        needed = self._chosen(rows)
        if place in needed and taken:
            predicted, true = zip(*taken.values(), strict=True)
            tensors = {"predicted": torch.cat(predicted), "true": torch.cat(true)}
            about = {"clients": [*taken], "samples": [len(each) for each in true]}
            self._series.add(place, tensors, about)
        # A thread may be committing the round before this one.
        self._prune(rows, [row.round - 1, *_ends(row.trial, saved)])

    def finish(self, rows: Sequence[Row], saved: Collection[Round]) -> None:
        """Remove files that a finished run does not need.

        Args:
            rows: All lines of the record.
            saved: See `keep`. If the run is continued with more rounds, it may go back to the
                commit before the last one.
        """
        for trial in {row.trial for row in rows}:
            self._prune([row for row in rows if row.trial == trial], _ends(trial, saved))

    def _prune(self, rows: Sequence[Row], ends: Collection[int]) -> None:
        """Remove the files of a trial that its rows, or its rows up to one of the ends, lack."""
        trial, needed = rows[0].trial, self._chosen(rows)
        for end in ends:
            needed |= self._chosen([row for row in rows if row.round <= end])
        kept = {each for each in self._series.entries if each[0] != trial or each in needed}
        if kept != self._series.entries.keys():
            self._series.retain(kept)

    def _chosen(self, rows: Sequence[Row]) -> set[Round]:
        chosen = (chosen_row(rows, which) for which in self._choices)
        return {(row.trial, row.round) for row in chosen if row is not None}


def _ends(trial: int, saved: Collection[Round]) -> list[int]:
    return [round for saved_trial, round in saved if saved_trial == trial]
