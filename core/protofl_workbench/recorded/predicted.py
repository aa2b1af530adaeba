"""Predictions that a run has recorded (``--record-predictions``), as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protofl.errors import UsageError, unknown
from protofl.records.layout import PREDICTIONS
from protofl.records.result import chosen_row
from protofl.system.files.checksums import Damaged
from protofl.system.options.option import CHOSEN_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofl.records.row import Row


@dataclass(frozen=True)
class Predicted:
    """Predictions of a round for all test samples of the evaluated clients.

    Attributes:
        trial: The trial.
        round: The round, from 0.
        clients: The client of each sample, ascending [n].
        predicted: The predicted class of each sample [n]; a client's samples are in the order of
            its test part (``run.plan.split(trial).test(client)``).
        true: The class of each sample [n].
    """

    trial: int
    round: int
    clients: np.ndarray
    predicted: np.ndarray
    true: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """True for each sample whose class is predicted correctly [n]."""
        result: np.ndarray = self.predicted == self.true
        return result


def read_predictions(
    folder: Path, rows: Sequence[Row], which: str, trial: int, stored_trial: int
) -> Predicted:
    """Read the predictions of a chosen round of a trial.

    Args:
        folder: The run folder.
        rows: The lines of the trial, which choose the round.
        which: ``last`` for the last evaluated round, ``best`` for the first round with the best
            test accuracy, ``validation`` for the first with the best validation accuracy.
        trial: The trial.
        stored_trial: Its number in the folder.

    Raises:
        UsageError: ``which`` is unknown, or the predictions of the round are not recorded.
        Damaged: The file was changed.
    """
    from protofl.system.files.series import Series  # needs torch

    if which not in CHOSEN_ROUNDS:
        raise unknown("round", which, CHOSEN_ROUNDS)
    chosen = chosen_row(rows, which)
    if chosen is None:
        what = "validation accuracy" if which == "validation" else "evaluated round"
        do = "run it with --validation 0.1" if which == "validation" else ""
        raise UsageError(f"{folder} has no {what} in trial {trial}", do=do)
    series = Series(folder / PREDICTIONS)
    place = stored_trial, chosen.round
    if place not in series.entries:
        recorded = sorted(number + 1 for t, number in series.entries if t == stored_trial)
        raise UsageError(
            f"{folder} has no recorded predictions of round {chosen.round + 1} ({which})"
            + (f" of trial {trial}" if trial or stored_trial else ""),
            f"recorded are rounds {', '.join(map(str, recorded))}" if recorded else "",
            f"repeat the run with --record-predictions {which}: protofl run --config "
            f"{folder}/config.json --record-predictions {which}",
        )
    tensors, about = series.read(place)
    try:
        arrays = {name: np.array(tensors[name].numpy()) for name in ("predicted", "true")}
        clients = np.repeat(np.array(about["clients"]), np.array(about["samples"]))
        if not clients.shape == arrays["predicted"].shape == arrays["true"].shape:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"{folder / PREDICTIONS / series.entries[place].file} is damaged") from None
    return Predicted(trial, chosen.round, clients, **arrays)
