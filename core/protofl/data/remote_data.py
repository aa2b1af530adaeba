"""Data on other machines: checks of a run, and drawn samples in their place.

The samples of such a data set are tensors on torch's meta device, which have a shape and no values,
so whatever reads a row fails. `Dataset.elsewhere` is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from protofl.data.dataset import Dataset
from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.system.randomness import random_stream

if TYPE_CHECKING:
    from protofl.system.options.settings import Settings


def check_remote_data(settings: Settings, data: Dataset, sampling: type) -> None:
    """Check that a run needs no facts about remote data that the machines keep private.

    Args:
        settings: The options of the run.
        data: Its data.
        sampling: The plugin that samples clients; ``reads_sizes`` says whether by their sizes.

    Raises:
        UsageError: An option needs the samples of all clients, or a size that is not known.
    """
    why = "each client's samples are on its own machine alone"
    if not data.task.has_classes:
        raise UsageError(
            f"data on other machines are for classification, and these are for {data.task.name}",
            do="run them as a simulation, or give each sample one class",
        )
    if settings.validation:
        raise UsageError(
            f"--validation {settings.validation:g} draws from all clients' samples, and {why}",
            do="leave it out",
        )
    if "global-accuracy" in settings.measure:
        raise UsageError(
            f"--measure global-accuracy tests on samples of all clients, and {why}",
            do="leave it out",
        )
    unknown = [c for c, (train, _) in enumerate(data.split or ()) if not len(train)]
    if getattr(sampling, "reads_sizes", False) and data.x.is_meta and unknown:
        raise UsageError(
            f"--sampling {settings.sampling} needs the size of each client, and that of client "
            f"{unknown[0]} is not known",
            do='take --sampling uniform, or let the node tell it: tell = "sizes" in node.toml',
        )


def drawn(data: Dataset, count: int) -> Dataset:
    """Return drawn samples in place of those on other machines.

    Args:
        data: The data set of a run whose samples are on other machines.
        count: Number of samples.
    """
    chance, shape = random_stream(0, "drawn-samples"), (count, *data.x.shape[1:])
    if data.x.is_floating_point():
        x = torch.randn(shape, generator=chance)
    else:
        x = torch.randint(data.vocabulary or 256, shape, generator=chance).to(data.x.dtype)
    y = torch.randint(data.num_classes, (count,), generator=chance)
    return Dataset(x, y, count, data.classes, vocabulary=data.vocabulary, padding=data.padding)


def drawn_split(count: int, clients: int) -> Split:
    """Return the split of `drawn` samples: all clients train and are tested on all of them."""
    pieces = 2 * clients
    rows = torch.arange(count).repeat(pieces)
    return Split(rows, torch.arange(pieces + 1) * count, partitioner="drawn")
