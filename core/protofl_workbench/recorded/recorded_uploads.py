"""Recorded uploads of a run (``--record-uploads``) as payloads."""

from __future__ import annotations

from pathlib import Path

from protofl.errors import UsageError
from protofl.hooks.wire.payload import Payload
from protofl.records.layout import UPLOADS
from protofl.system.files.series import Series


def series_of(run: Path) -> Series:
    """Return the files of a run's recorded uploads."""
    return Series(run / UPLOADS)


def rounds_in(series: Series, trial: int) -> list[int]:
    """Return the recorded rounds of a trial, ascending.

    Raises:
        Damaged: The index of the uploads is damaged.
    """
    return sorted(round for entry_trial, round in series.entries if entry_trial == trial)


def uploads_in(series: Series, trial: int, round: int) -> dict[int, Payload]:
    """Return {client: accepted upload} of a recorded round, in the order of arrival.

    Raises:
        Damaged: The file is damaged.
    """
    tensors, about = series.read((trial, round))
    result: dict[int, Payload] = {client: Payload() for client in about["clients"]}
    for name, tensor in tensors.items():
        owner, _, key = name.partition("/")
        result[int(owner)][key] = tensor
    for client, upload in result.items():
        upload.holder = f"the upload of client {client}"
    return result


def read_uploads(run: Path, trial: int, round: int) -> dict[int, Payload]:
    """Return {client: accepted upload} of a round.

    Args:
        run: The run folder.
        trial: The trial.
        round: The round, from 0; -1 for the last recorded one, and so on.

    Raises:
        UsageError: The uploads of this round are not recorded.
        Damaged: A recorded file is damaged.
    """
    rounds = rounds_in(series := series_of(run), trial)
    number = rounds[round] if -len(rounds) <= round < 0 else round
    if number not in rounds:
        which = "any round" if round < 0 else f"round {round + 1}"
        raise UsageError(
            f"{run} has no uploads of {which} of trial {trial}",
            f"it has those of rounds {rounds[0] + 1} to {rounds[-1] + 1}" if rounds else "",
            f"repeat the run: protofl run --config {run}/config.json --record-uploads",
        )
    return uploads_in(series, trial, number)
