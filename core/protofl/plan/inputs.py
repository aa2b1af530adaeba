"""Inputs of a run: its data, its public data, and what images become for its models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protofl.data import cache
from protofl.data.batches import Pixels
from protofl.data.images import Images
from protofl.data.split import Partition
from protofl.errors import UsageError
from protofl.plan.settings import Settings
from protofl.plugin.choice import Choice, choose
from protofl.plugin.registry import Registry


def load_images(part: Choice, data_dir: Path, report: Any) -> Images:  # noqa: ANN401
    """A data set, from the cache where it is there."""
    key = part.call("cache_key", data_dir=data_dir)
    return cache.load(
        key,
        data_dir,
        lambda: part.call("decode", data_dir=data_dir),
        **({"report": report} if report else {}),
    )


def partition_with(part: Choice) -> Partition:
    """A partitioner with its options bound, as `protofl.data.split.make_split` takes it."""

    def partition(
        labels: np.ndarray,
        num_classes: int,
        num_clients: int,
        min_samples: int,
        generator: np.random.Generator,
        notes: list[str],
    ) -> list[np.ndarray]:
        found: list[np.ndarray] = part.call(
            "partition",
            labels=labels,
            num_classes=num_classes,
            num_clients=num_clients,
            min_samples=min_samples,
            generator=generator,
            notes=notes,
        )
        return found

    return partition


def public_data(
    settings: Settings,
    given: bool,
    needed: bool,
    images: Images,
    registry: Registry,
    data_dir: Path,
    report: Any,  # noqa: ANN401
) -> tuple[int | str, Images | None]:
    """Public samples to hold out, or public images of their own."""
    wanted = settings.public
    if isinstance(wanted, str) and wanted.isdigit():
        wanted = int(wanted)
    if isinstance(wanted, int):
        if not given and needed:
            wanted = 5000 if len(images.y) >= 25_000 else len(images.y) // 5
        if wanted < 0:
            raise UsageError(f"--public {wanted} is negative")
        return wanted, None
    if wanted == "none":
        if needed:
            raise UsageError(
                f"{settings.method} needs public data and --public none was given",
                do="give --public N, or leave the option out",
            )
        return 0, None
    if not wanted.startswith("npz:"):
        raise UsageError(f"--public {wanted!r} is no number, npz:PATH or none")
    part = choose(registry, "dataset", wanted)
    loaded = load_images(part, data_dir, report)
    if loaded.channels != images.channels:
        raise UsageError(
            f"--public {wanted} has {loaded.channels} channels, the data set {images.channels}"
        )
    return part.argument, loaded


def pixels_for(images: Images, group: type, name: str) -> tuple[Pixels, list[str]]:
    """How the data become what the group's models take, and lines that say so."""
    height, width = images.x.shape[2:]
    if height != width:
        raise UsageError(
            f"the images are {height}×{width}; the model groups take square images",
            do="crop or pad them before",
        )
    channels = getattr(group, "channels", None) or images.channels
    notes = []
    if images.channels != channels:
        if images.channels != 1:
            raise UsageError(
                f"{name} takes images of {channels} channels, the data have {images.channels}"
            )
        notes.append(f"grey images are repeated to {channels} channels for {name}")
    side = getattr(group, "min_side", 32)
    if images.side < side:
        notes.append(f"images of {images.side} px are brought to {side} px for {name} (bilinear)")
    return Pixels(channels, side), notes
