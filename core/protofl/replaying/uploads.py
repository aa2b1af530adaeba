"""The uploads that a run has kept, as its server got them."""

from __future__ import annotations

from pathlib import Path

import torch

from protofl.errors import UsageError
from protofl.files.series import Series
from protofl.observing.places import UPLOADS
from protofl.wire.payload import Payload


class RecordedUploads:
    """What clients sent in the rounds of a trial, as the gate let it in.

    Args:
        run: The run's folder.
        trial: The trial.

    Attributes:
        rounds: The rounds from the first on, without a gap.

    Raises:
        UsageError: The run has not kept those of the first round.
        Damaged: What says where they are is not what was written.
    """

    def __init__(self, run: Path, trial: int) -> None:
        self._series, self._trial = Series(run / UPLOADS), trial
        have = {round for own, round in self._series.entries if own == trial}
        self.rounds = list(range(next(n for n in range(len(have) + 1) if n not in have)))
        if self.rounds:
            return
        trials = sorted({own for own, _ in self._series.entries})
        many = "trials" if len(trials) > 1 else "trial"
        near = f"kept are those of {many} {', '.join(map(str, trials))}" if trials else ""
        if have:
            near = f"kept are those from round {min(have)} on, and the server needs all before"
        raise UsageError(
            f"{run} has not kept the uploads of round 0 of trial {trial}",
            near,
            "run it again with --record-uploads (--config RUN/config.json repeats a run)",
        )

    def of(self, round: int, device: torch.device) -> dict[int, Payload]:
        """{client: upload} of a round, in the order in which the server got them.

        Args:
            round: The round.
            device: Where the tensors go.

        Raises:
            Damaged: The file is not what was written.
        """
        tensors, about = self._series.read((self._trial, round))
        found: dict[int, Payload] = {client: Payload() for client in about["clients"]}
        for name, tensor in tensors.items():
            owner, _, key = name.partition("/")
            found[int(owner)][key] = tensor.to(device, copy=True)
        for client, upload in found.items():
            upload.holder = f"the upload of client {client}"
        return found
