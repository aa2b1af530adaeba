"""The data of a federation's nodes, which stay there: ``--dataset nodes``.

The server knows the form of a sample, the classes, and what nodes tell of their sizes. A node reads
its samples from the data set that its ``node.toml`` names (`protofl_flower.node.local_data`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import protofl as pf

KINDS = {3: "image", 2: "series", 1: "table"}
"""{number of axes: kind of a sample}; one axis with a vocabulary are tokens."""

MOST_CLASSES = 100_000

_STORED = {"image": torch.uint8, "tokens": torch.int64}
"""Types of stored samples; float32 for others."""

FORM = ("sample", "classes", "vocabulary", "padding")
"""Options of this data set that a node reads from a plan."""


class NodeData:
    """Data that stay on the nodes of a federation."""

    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.Config):
        """Options; ``federation.toml`` sets the first four, and nodes tell the last."""

        sample: str = pf.Field(
            "", description="the shape of a sample: 1x28x28 for images, 9x128 for series, 561 for "
            "rows of a table, the length of token sequences"
        )  # fmt: skip
        classes: str = pf.Field(
            "", description="the number of classes, or their names with commas between them"
        )
        vocabulary: int = pf.Field(0, ge=0, description="number of token ids; 0: no tokens")
        padding: int | None = pf.Field(
            None, ge=0, description="the id that fills short token sequences up. None: none does"
        )
        told: list[dict[str, Any]] = pf.Field(
            [], description="what the node of each client tells of its sizes"
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """Nothing: there are no samples to cache."""
        return ""

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Describe the data.

        Raises:
            UsageError: The form of a sample is missing or wrong, or no node has sent its sizes.
        """
        sample, classes = sample_of(config), class_names(config.classes)
        if not config.told:
            raise pf.UsageError(
                "the data set 'nodes' is on the nodes of a federation",
                do="train with: protofl deploy run",
            )
        return remote_data(sample, classes, config.told)


def sample_of(config: NodeData.Config) -> pf.datasets.SampleSpec:
    """Return the spec of a sample.

    Raises:
        UsageError: The text is not a shape.
    """
    sizes = config.sample.lower().replace("×", "x").split("x")
    if not all(size.isdecimal() and len(size) < 10 for size in sizes) or len(sizes) not in KINDS:
        raise pf.UsageError(
            f"sample {config.sample!r} is not the shape of a sample",
            "examples: 1x28x28 for images, 9x128 for series, 561 for rows of a table",
            'write it into federation.toml: sample = "1x28x28"',
        )
    shape = tuple(map(int, sizes))
    kind: Any = "tokens" if config.vocabulary else KINDS[len(shape)]
    return pf.datasets.SampleSpec(shape, kind, config.vocabulary, config.padding)


def class_names(text: str) -> list[str]:
    """Return the names of the classes: ``10`` for 0…9, or names with commas between them.

    Raises:
        UsageError: There are fewer than two, too many, two equal ones, or an unprintable one.
    """
    if text.isdecimal() and len(text) < 10:
        count = int(text)
        names = [*map(str, range(min(count, MOST_CLASSES + 1)))]
    else:
        names = [name.strip() for name in text.split(",")]
        count = len(names)
    wrong = [name for name in names if not name or not name.isprintable()]
    if not 2 <= count <= MOST_CLASSES or wrong or len({*names}) < len(names):
        raise pf.UsageError(
            f"classes {text[:80]!r}: expected a number from 2 to {MOST_CLASSES:,}, or different "
            "names with commas between them",
            do='write them into federation.toml: classes = 10, or classes = ["cat", "dog"]',
        )
    return names


def remote_data(
    sample: pf.datasets.SampleSpec, classes: Sequence[str], told: Sequence[Mapping[str, Any]]
) -> pf.datasets.Dataset:
    """Return the data set of clients whose samples lie on other machines.

    Args:
        sample: The spec of a sample.
        classes: Names of the C classes.
        told: What the machine of each client tells: ``train`` and ``test``, each a list of counts
            [C], a number of samples or None, and ``majority``, the right and all test samples of
            always guessing the client's most frequent class, or None. Empty for one that has
            not answered.

    Returns:
        The data, split over as many clients as ``told`` has. A client of unknown size has no rows.
    """
    parts = [(client.get("train"), client.get("test")) for client in told]
    known = all(isinstance(client["train"], list) for client in told if client)
    sizes = [_size(counts) for pair in parts for counts in pair]
    rows = torch.split(torch.arange(sum(sizes)), sizes) if sizes else ()
    labels = [_labels(counts) for pair in parts for counts in pair] if known else []
    y = torch.cat(labels) if labels else torch.empty(sum(sizes), dtype=torch.int64, device="meta")
    unknown = [str(number) for number, (train, _) in enumerate(parts) if train is None]
    dtype = _STORED.get(sample.kind, torch.float32)
    about = json.dumps([str(sample), [*classes], *map(dict, told)], sort_keys=True)
    return pf.datasets.Dataset(
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


def _size(counts: list[int] | int | None) -> int:
    return sum(counts) if isinstance(counts, list) else counts or 0


def _pair(guess: Sequence[int] | None) -> tuple[int, int]:
    return (guess[0], guess[1]) if guess else (0, 0)


def _labels(class_counts: list[int] | None) -> Tensor:
    counts = torch.tensor(class_counts or [], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)
