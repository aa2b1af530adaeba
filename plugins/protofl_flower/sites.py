"""The data of a federation's sites, which stay on their nodes: ``--dataset sites``.

The server knows the form of a sample, the classes, and what nodes tell of their sizes. A node reads
its samples from the data set that its ``node.toml`` names (`protofl_flower.node.local_data`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import protofl as pf

KINDS = {3: "image", 2: "series", 1: "table"}
"""{number of axes: kind of a sample}; one axis with a vocabulary are tokens."""

MOST_CLASSES = 100_000

FORM = ("sample", "classes", "vocabulary", "padding")
"""Options of this data set that a node reads from a plan."""


class Sites:
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
            UsageError: The form of a sample is missing or wrong, or no node has told its sizes.
        """
        sample, classes = sample_of(config), class_names(config.classes)
        if not config.told:
            raise pf.UsageError(
                "the data set sites is on the nodes of a federation",
                do="train with: protofl deploy run",
            )
        return pf.datasets.data_elsewhere(sample, classes, config.told)


def sample_of(config: Sites.Config) -> pf.datasets.SampleSpec:
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
