"""Inputs of a run: its data, its public data, and what samples become for its models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from protofl.data import cache
from protofl.data.dataset import Dataset
from protofl.data.generators import Generator, ImageSource, Outline
from protofl.data.preparation import AsStored, Pixels, Preparation
from protofl.data.spec import PLURAL, Kind, SampleSpec, in_words
from protofl.data.split import Partition
from protofl.errors import ProtoflError, UsageError
from protofl.plan.settings import Settings
from protofl.plugin.choice import Choice, choose
from protofl.plugin.registry import Registry


def load_data(choice: Choice, data_dir: Path, report: Any) -> Dataset:  # noqa: ANN401
    """A data set, from the cache where it is there."""
    key = choice.call("cache_key", data_dir=data_dir)
    return cache.load(
        key,
        data_dir,
        lambda: choice.call("decode", data_dir=data_dir),
        **({"report": report} if report else {}),
    )


def partition_with(choice: Choice) -> Partition:
    """A partitioner with its options bound, as `protofl.data.split.make_split` takes it."""
    names = ("labels", "num_classes", "num_clients", "min_samples", "generator", "notes")

    def partition(*given: Any) -> list[np.ndarray]:  # noqa: ANN401 - as the hook says
        found: list[np.ndarray] = choice.call("partition", **dict(zip(names, given, strict=True)))
        return found

    return partition


def public_data(
    settings: Settings,
    given: bool,
    needed: bool,
    data: Dataset,
    registry: Registry,
    data_dir: Path,
    report: Any,  # noqa: ANN401
) -> tuple[int | str, Dataset | None]:
    """Public samples to hold out, or public samples of their own."""
    wanted = settings.public
    if isinstance(wanted, str) and wanted.isdigit():
        wanted = int(wanted)
    if isinstance(wanted, int):
        if not given and needed:
            wanted = 5000 if len(data.y) >= 25_000 else len(data.y) // 5
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
    choice = choose(registry, "dataset", wanted, _options_like(data.sample))
    loaded = load_data(choice, data_dir, report)
    given_as, held_as = loaded.sample, data.sample
    alike = given_as.kind == held_as.kind and (
        given_as.shape[0] == held_as.shape[0]
        if held_as.kind == "image"
        else (given_as.shape, given_as.vocabulary) == (held_as.shape, held_as.vocabulary)
    )
    if not alike:
        raise UsageError(f"--public {wanted} holds {given_as}, the data set {held_as}")
    return choice.argument, loaded


def _options_like(sample: SampleSpec) -> dict[str, Any]:
    """Options of ``npz`` under which a file holds such samples."""
    if sample.kind == "image":
        return {}
    if sample.kind != "tokens":
        return {"kind": sample.kind}
    return {"kind": "tokens", "vocabulary": sample.vocabulary, "padding": sample.padding}


def preparation_for(
    data: Dataset, group: type, name: str, registry: Registry, *, augment: bool = False
) -> tuple[Preparation, list[str]]:
    """How the data become what the group's models take, and lines that say so.

    Raises:
        UsageError: The group takes no samples of this kind, or no such images; or what is no image
            shall be augmented.
    """
    stored = data.sample
    kinds = kinds_of(group)
    if stored.kind not in kinds:
        fits = [p.name for p in registry.plugins("model-group") if takes(registry, p.name, stored)]
        raise UsageError(
            f"{name} takes {in_words(kinds)}, and the data are {stored}",
            f"models that take {PLURAL[stored.kind]}: {', '.join(fits) or 'none is installed'}",
            "choose one of them with --models, or other data with --dataset "
            f"(npz: takes arrays for {PLURAL[kinds[0]]} with --set dataset.kind={kinds[0]})",
        )
    if stored.kind != "image":
        if augment:
            raise UsageError(
                f"--augment shifts and flips images, and the data are {PLURAL[stored.kind]}",
                do="leave it out",
            )
        return AsStored(), []
    channels = getattr(group, "channels", None) or stored.shape[0]
    notes = []
    if stored.shape[0] != channels:
        if stored.shape[0] != 1:
            raise UsageError(
                f"{name} takes images of {channels} channels, the data have {stored.shape[0]}"
            )
        notes.append(f"grey images are repeated to {channels} channels for {name}")
    smaller, least = min(stored.shape[1:]), getattr(group, "min_side", 32)
    if smaller < least:
        notes.append(f"images of {smaller} px are brought to {least} px for {name} (bilinear)")
    return Pixels(channels, least), notes


def kinds_of(group: type) -> tuple[Kind, ...]:
    """The kinds of samples that a model group takes; images where it says nothing."""
    return tuple(getattr(group, "kinds", ("image",)))


def takes(registry: Registry, name: str, sample: SampleSpec) -> bool:
    """Whether an installed model group can be loaded and takes such samples."""
    try:
        return sample.kind in kinds_of(registry.load("model-group", name))
    except ProtoflError:
        return False


def image_source(
    choice: Choice, data: Dataset, device: torch.device, data_dir: Path, *, dry: bool = False
) -> ImageSource:
    """The run's image generator; ``dry``: it is never loaded."""
    return ImageSource(
        choice.name,
        lambda: cast("Outline | None", choice.call("outline", data_dir=data_dir)),
        lambda: cast(
            "Generator | None", choice.call("open_generator", data_dir=data_dir, device=device)
        ),
        data,
        device,
        dry=dry,
    )
