"""A decoded image data set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Images:
    """Decoded images with labels, as a data set plugin returns them.

    Attributes:
        x: Images N×channels×H×W, uint8 in 0…255, or float32 that is already normalised and
            used as it is.
        y: Labels [N], int64 in 0…C-1.
        num_train: The first ``num_train`` rows are the data set's own training part, the rest
            its own test part (``num_train == N`` where it has none).
        classes: Names of the C classes.
        split: For data that come already split: per client its rows of training and of test
            samples, [n] int64 each; None for data that a partitioner splits.
        note: A deviation to print beside figures; empty where there is none.
    """

    x: Tensor
    y: Tensor
    num_train: int
    classes: list[str]
    split: list[tuple[Tensor, Tensor]] | None = None
    note: str = ""
    digest: str = field(default="", compare=False)

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.classes)

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.x.shape[1])

    @property
    def side(self) -> int:
        """The smaller side of an image, in pixels."""
        return int(min(self.x.shape[2:]))

    def compute_digest(self) -> str:
        """SHA-256 over images, labels and the own split; identifies the data in a record."""
        digest = hashlib.sha256()
        own = [rows for pair in self.split or [] for rows in pair]
        for tensor in (self.x, self.y, *own):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().reshape(-1).data)
        digest.update(str(self.num_train).encode())
        return digest.hexdigest()
