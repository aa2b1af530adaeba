"""Inputs of a run: its data, its public data, and what samples become for its models."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import lru_cache, partial
from pathlib import Path

import torch

from protofl.data import cache
from protofl.data.dataset import Dataset
from protofl.data.generators import ImageSource
from protofl.data.npz import options_like
from protofl.data.spec import PLURAL, AsStored, Kind, Preparation, SampleSpec, in_words, pixels_for
from protofl.data.split import Split
from protofl.data.splitting import kept_split, make_split
from protofl.data.subset import with_validation
from protofl.errors import ProtoflError, UsageError
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.models.architecture import Architecture
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice, choose
from protofl.system.options.settings import Settings

Report = Callable[[str], None]
"""Takes a line when something takes long (a download)."""


def load_data(choice: Choice, data_dir: Path, report: Report) -> Dataset:
    """A data set, from the cache where it is there."""
    key = choice.call("cache_key", data_dir=data_dir)
    return cache.load(key, data_dir, partial(choice.call, "decode", data_dir=data_dir), report)


def about(data: Dataset, given: Container[str]) -> list[str]:
    """Lines about the data: where they deviate, and what of the options they leave unused."""
    lines = [data.note] if data.note else []
    if "partition" in given:
        return lines + kept_split(data)
    if data.columns:
        names = ", ".join(data.columns)
        use = f"--partition column:{next(iter(data.columns))} makes each value a client"
        lines.append(f"each sample also has: {names}; {use}")
    return lines


def splitter(settings: Settings, data: Dataset, partitioner: Choice) -> Callable[[int], Split]:
    """What makes the split of a seed, and keeps the last two."""
    split = partial(
        make_split,
        data,
        partial(partitioner.call, "partition"),
        settings.clients,
        settings.batch_size,
        public=settings.held_out,
        partitioner=partitioner.name,
        subset=settings.subset,
    )
    held = partial(with_validation, labels=data.y, share=settings.validation)
    return lru_cache(maxsize=2)(lambda seed: held(split(seed), seed=seed))


def public_data(
    settings: Settings,
    composition: Composition,
    data: Dataset,
    registry: Registry,
    report: Report,
    *,
    given: bool,
) -> tuple[int | str, Dataset | None]:
    """``--public`` as it is recorded, and the public samples where they are of their own."""
    wanted, needed = settings.public, composition.needs_public
    if isinstance(wanted, str) and wanted.isdecimal():
        wanted = int(wanted)
    if isinstance(wanted, int):
        if needed and not given:
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
    choice = choose(registry, "dataset", wanted, options_like(data.sample))
    loaded = load_data(choice, settings.data_dir, report)
    if not loaded.sample.is_like(data.sample):
        raise UsageError(f"--public {wanted} holds {loaded.sample}, the data set {data.sample}")
    return choice.text, loaded


def preparation_for(
    stored: SampleSpec, group: Choice, registry: Registry, *, augment: bool
) -> tuple[Preparation, list[str]]:
    """How stored samples become what the group's models take, and lines that say so.

    Raises:
        UsageError: The group takes no samples of this kind, or no such images; or what is no image
            shall be augmented.
    """
    kinds = kinds_of(group.plugin)
    if stored.kind not in kinds:
        fits = [p.name for p in registry.plugins("model-group") if takes(registry, p.name, stored)]
        raise UsageError(
            f"{group.text} takes {in_words(kinds)}, and the data are {stored}",
            f"models that take {PLURAL[stored.kind]}: {', '.join(fits) or 'none is installed'}",
            "choose one of them with --models, or other data with --dataset "
            f"(npz: takes arrays for {PLURAL[kinds[0]]} with --set dataset.kind={kinds[0]})",
        )
    if stored.kind == "image":
        channels = getattr(group.plugin, "channels", None)
        return pixels_for(stored, group.text, channels, getattr(group.plugin, "min_side", 32))
    if augment:
        raise UsageError(
            f"--augment shifts and flips images, and the data are {PLURAL[stored.kind]}",
            do="leave it out",
        )
    return AsStored(), []


def kinds_of(group: type) -> tuple[Kind, ...]:
    """The kinds of samples that a model group takes; images where it says nothing."""
    return tuple(getattr(group, "kinds", ("image",)))


def takes(registry: Registry, name: str, sample: SampleSpec) -> bool:
    """Whether an installed model group can be loaded and takes such samples."""
    try:
        return sample.kind in kinds_of(registry.load("model-group", name))
    except ProtoflError:
        return False


def architectures_of(registry: Registry, sample: SampleSpec, text: str) -> list[Architecture]:
    """The architectures of any installed model group, for samples as a run's models see them.

    Raises:
        UsageError: There is no such group, or it takes samples in another form.
    """
    group = choose(registry, "model-group", text)
    _, notes = preparation_for(sample, group, registry, augment=False)
    if notes:
        do = "take an architecture of a group that takes the same samples"
        raise UsageError(f"{text} takes other samples than the run's models", notes[0], do)
    return [*group.call("architectures"), *(group.call("server_architectures") or [])]


def image_source(
    choice: Choice | None, data: Dataset, device: torch.device, data_dir: Path
) -> ImageSource | None:
    """The run's image generator, which is loaded when it is used; None where none is chosen."""
    if choice is None:
        return None
    outline = partial(choice.call, "outline", data_dir=data_dir)
    load = partial(choice.call, "open_generator", data_dir=data_dir, device=device)
    return ImageSource(choice.name, outline, load, data, device)
