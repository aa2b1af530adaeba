"""Validation samples: a part of each client's training samples on which it is not trained.

The papers report the round that is best on the test samples. A round that is chosen on validation
samples has been chosen on nothing that is reported.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.randomness import numpy_stream


def with_validation(split: Split, labels: Tensor, share: float, seed: int) -> Split:
    """A split of which part of every client's training samples is held out; test parts stay.

    A client with n training samples has round(share·n) validation samples, at least one, and keeps
    at least one training sample of each class that it has; so one whose classes have a single
    sample each has no validation sample. They are stratified: the rows that may be taken, in the
    order of their classes and at random within, are drawn systematically (every k-th from a random
    start), so that of each class the number is its part of them, rounded up or down.

    Args:
        split: The split.
        labels: Labels [N] of the whole data set.
        share: The share of training samples that is held out, below 1; 0 changes nothing.
        seed: The effective seed; what is held out depends on it and the split alone.

    Raises:
        UsageError: No client has a sample to hold out.
    """
    if not share:
        return split
    sizes = split.train_sizes.numpy()
    clients, chance = len(sizes), numpy_stream(seed, "split", "validation")
    client = np.repeat(np.arange(clients), sizes)
    first = np.cumsum(sizes) - sizes
    # All training rows, and the place of each in ``rows`` of the split.
    place = np.arange(len(client)) - np.repeat(first - split.offsets[:-1:2].numpy(), sizes)
    classes = labels.numpy()[split.rows.numpy()[place]]
    order = np.lexsort((chance.random(len(place)), classes, client))
    last = np.ones(len(order), dtype=bool)  # of its class and client: it stays
    last[:-1] = (np.diff(client[order]) != 0) | (np.diff(classes[order]) != 0)
    may = order[~last]
    counts = np.bincount(client[may], minlength=clients)
    wanted = np.minimum(np.maximum(1, np.floor(sizes * share + 0.5).astype(np.int64)), counts)
    if not wanted.any():
        raise UsageError(
            f"--validation {share:g} holds nothing out",
            "no client has two training samples of one class",
            "use fewer clients or more data, or leave it out",
        )
    # Systematic draw: the j-th of v out of n is at ⌊(j + u)·n/v⌋, u in [0, 1) of the client.
    turn = np.arange(wanted.sum()) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    step = counts / np.maximum(wanted, 1)
    position = np.floor(
        (turn + np.repeat(chance.random(clients), wanted)) * np.repeat(step, wanted)
    )
    begin = np.repeat(np.cumsum(counts) - counts, wanted)
    most = np.repeat(counts, wanted) - 1
    held = np.sort(place[may[begin + np.minimum(position.astype(np.int64), most)]])
    stays = np.ones(len(split.rows), dtype=bool)
    stays[held] = False
    pieces = split.offsets.diff().clone()
    pieces[::2] -= torch.from_numpy(wanted)
    return replace(
        split,
        rows=split.rows[torch.from_numpy(stays)],
        offsets=torch.cat([pieces[:0].new_zeros(1), pieces.cumsum(0)]),
        validation=split.rows[torch.from_numpy(held)],
        validation_offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(wanted)])),
    )
