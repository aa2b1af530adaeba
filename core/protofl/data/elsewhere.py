"""Data that lie on other machines, as the server of a run knows them.

Such a data set has the spec of a sample, the classes, and the sizes that the machines tell. Its
samples are tensors on torch's meta device, which have a shape and no values, so whatever reads a
row fails. Labels are there only where all machines tell their counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofl.data.dataset import Dataset
from protofl.data.spec import SampleSpec
from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.system.randomness import random_stream

if TYPE_CHECKING:
    from protofl.system.options.settings import Settings

_STORED = {"image": torch.uint8, "tokens": torch.int64}
"""Types of stored samples; float32 for others."""


def data_elsewhere(
    sample: SampleSpec, classes: Sequence[str], told: Sequence[Mapping[str, Any]]
) -> Dataset:
    """Return the data set of clients whose samples lie on other machines.

    Args:
        sample: The spec of a sample.
        classes: Names of the C classes.
        told: What the machine of each client tells: ``train`` and ``test``, each a list of counts
            [C], a number of samples or None, and ``majority``, the right and all test samples of
            always guessing the client's most frequent class. Empty for one that has not answered.

    Returns:
        The data, split over as many clients as ``told`` has. A client of unknown size has no rows.
    """
    parts = [(client.get("train"), client.get("test")) for client in told]
    known = all(isinstance(client["train"], list) for client in told if client)
    sizes = [_size(part) for pair in parts for part in pair]
    rows = torch.split(torch.arange(sum(sizes)), sizes) if sizes else ()
    labels = [_labels(part) for pair in parts for part in pair] if known else []
    y = torch.cat(labels) if labels else torch.empty(sum(sizes), dtype=torch.int64, device="meta")
    unknown = [str(number) for number, (train, _) in enumerate(parts) if train is None]
    dtype = _STORED.get(sample.kind, torch.float32)
    about = json.dumps([str(sample), [*classes], *map(dict, told)], sort_keys=True)
    return Dataset(
        x=torch.empty(len(y), *sample.shape, dtype=dtype, device="meta"),
        y=y,
        num_train=len(y),
        classes=[*classes],
        split=[*zip(rows[::2], rows[1::2], strict=True)],
        note=f"sizes are not known of client {', '.join(unknown)}" if unknown else "",
        digest=hashlib.sha256(about.encode()).hexdigest(),
        vocabulary=sample.vocabulary,
        padding=sample.padding,
        elsewhere=True,
        guesses=[_pair(client.get("majority")) for client in told],
        preparation=None,  # each machine has its own
    )


def _size(part: list[int] | int | None) -> int:
    return sum(part) if isinstance(part, list) else part or 0


def _pair(guess: Sequence[int] | None) -> tuple[int, int]:
    return (guess[0], guess[1]) if guess else (0, 0)


def _labels(part: list[int] | None) -> Tensor:
    counts = torch.tensor(part or [], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def check_elsewhere(settings: Settings, data: Dataset, selection: type) -> None:
    """Check that a run needs nothing of data on other machines that nobody can know.

    Args:
        settings: The options of the run.
        data: Its data.
        selection: The plugin that samples clients; ``reads_sizes`` says whether by their sizes.

    Raises:
        UsageError: An option reads the samples of all clients, or a size that is not known.
    """
    why = "each client's samples are on its own machine alone"
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
    if getattr(selection, "reads_sizes", False) and data.x.is_meta and unknown:
        raise UsageError(
            f"--selection {settings.selection} needs the size of each client, and that of client "
            f"{unknown[0]} is not known",
            do='take --selection uniform, or let the node tell it: tell = "sizes" in node.toml',
        )


def drawn(data: Dataset, count: int) -> Dataset:
    """Return drawn samples in the place of samples that lie on other machines.

    Args:
        data: Such data.
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
