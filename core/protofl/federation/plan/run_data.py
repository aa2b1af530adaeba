"""Inputs of a run: data, public data, the input of its models, and what hooks may know."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from protofl.data import cache
from protofl.data.dataset import Dataset
from protofl.data.partition import kept_split, make_split, minimum_for
from protofl.data.preparation import Fitted
from protofl.data.spec import PLURAL, AsStored, Kind, ModelInput, SampleSpec, in_words, pixels_for
from protofl.data.split import Split, client_names
from protofl.errors import ProtoflError, Unknown, UsageError
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice, choose
from protofl.system.formatting import count
from protofl.system.options.settings import Settings

if TYPE_CHECKING:
    from protofl.data.fitting import FittedSamples, Fitting
    from protofl.data.generators import ImageSource

Report = Callable[[str], None]
"""Takes a line when something takes long (a download)."""


def load_data(choice: Choice, data_dir: Path, report: Report, cached: str = "on") -> Dataset:
    """Load a data set, from the cache if possible; an empty key means that it is not cached."""
    key, decode = choice.call("cache_key", data_dir=data_dir), partial(choice.call, "decode")
    if key:
        decode = partial(decode, data_dir=data_dir)
        data = cache.load(key, data_dir, decode, report, keep=cached == "on")
    else:
        data = decode(data_dir=data_dir)
    if data.preparation is not None and (fitted := data.preparation.fitted):
        named = replace(fitted, dataset=fitted.dataset or choice.name)
        data = replace(data, preparation=replace(data.preparation, fitted=named))
    if group := getattr(choice.config, "group", None):
        data = replace(data, group=group)
    return data


def load_dataset(name: str, options: Mapping[str, Any], data_dir: Path, report: Report) -> Dataset:
    """Load an installed data set by its name, as ``--dataset`` takes it.

    Args:
        name: The name, ``npz:FILE``.
        options: Its options, as ``--set dataset.KEY=VALUE`` takes them.
        data_dir: The folder of decoded data.
        report: Takes a line when something takes long.

    Raises:
        UsageError: There is no such data set, or it can't be read.
    """
    return load_data(choose(Registry(), "dataset", name, options), data_dir, report)


def installed_transforms(names: Iterable[str]) -> dict[str, type]:
    """Return {name: class} of those payload transforms that are installed."""
    registry = Registry()
    there = {plugin.name for plugin in registry.plugins("payload-transform")}
    return {name: registry.load("payload-transform", name) for name in names if name in there}


def own_partition(dataset: Choice, given: str | None) -> str:
    """Return the partitioner that an option of the data set chooses; empty without the option.

    The option is ``by``, or the one that the data set's ``client_option`` names.

    Args:
        dataset: The data set.
        given: The partitioner that the user gave; None for none.

    Raises:
        UsageError: The user gave another one, too.
    """
    option = getattr(dataset.plugin, "client_option", "by")
    column = getattr(dataset.config, option, None)
    own = f"column:{column}" if column else ""
    if own and given not in (None, own):
        raise UsageError(
            f"--partition {given} and dataset.{option}={column} both divide the samples",
            do="leave one of them out",
        )
    return own


def load_for_group(
    choices: Mapping[str, Choice],
    registry: Registry,
    settings: Settings,
    report: Report,
    data: Dataset | None = None,
) -> tuple[dict[str, Choice], Dataset, list[str]]:
    """Load the data set as samples that the model group takes, if its arrays allow several kinds.

    Float arrays N×a×b are images or series. A data set with an option ``kind`` that is not given is
    loaded again with a kind that the group takes.

    Args:
        choices: The plugins of the run.
        registry: Where plugins are found.
        settings: The options.
        report: Takes a line when something takes long.
        data: Data to use instead.

    Returns:
        The plugins, with the options of the data set that were used; the data; and notes.
    """
    if data is not None:
        return {**choices}, data, []
    choice, group = choices["dataset"], choices["model-group"]
    data = load_data(choice, settings.data_dir, report, settings.cache)
    kinds, given_kind = kinds_of(group.plugin), getattr(choice.config, "kind", "")
    if data.sample.kind in kinds or given_kind is not None or not data.x.is_floating_point():
        return {**choices}, data, []
    for kind in kinds:
        kind_choice = choose(registry, "dataset", choice.text, {**choice.dump(), "kind": kind})
        try:
            loaded = load_data(kind_choice, settings.data_dir, report, settings.cache)
        except UsageError:
            continue  # such arrays cannot be of this kind
        note = (
            f"the arrays are read as {loaded.sample}, because {group.text} takes {in_words(kinds)}"
        )
        other = f"--set dataset.kind={data.sample.kind}: as {data.sample}"
        return {**choices, "dataset": kind_choice}, loaded, [f"{note}; {other}"]
    return {**choices}, data, []


def about(data: Dataset, given_names: Container[str], settings: Settings) -> list[str]:
    """Return notes about the data set: deviations from its source, and options that it ignores."""
    lines = data.note.splitlines()
    if data.preparation is not None and (fitted := data.preparation.fitted):
        classes, clients = data.about_outputs(), settings.clients
        missing = f"{100 * fitted.missing:.2g} % missing"
        lines.insert(0, f"{fitted.about}, {classes}, {count(clients, 'client')}, {missing}")
    if "partition" in given_names:
        return lines + kept_split(data)
    if data.columns and not settings.partition.startswith("column:"):
        names = ", ".join(data.columns)
        use = f"--partition column:{next(iter(data.columns))} makes each value a client"
        lines.append(f"each sample also has: {names}; {use}")
    return lines


def about_ids(group: Choice, data: Dataset) -> list[str]:
    """Return a note if models know other token ids than the words of the data have."""
    if (
        data.preparation is None
        or not data.preparation.words
        or not getattr(group.plugin, "own_ids", False)
    ):
        return []
    return [
        f"the token ids are numbers of the data's own words, and nets of {group.name} know the ids "
        "of their tokenizer; for texts of hf: --set dataset.tokenizer=NAME"
    ]


def splitter(settings: Settings, data: Dataset, partitioner: Choice) -> Callable[[int], Split]:
    """Return a function that builds the split for a seed and caches the last two."""
    split = partial(
        make_split,
        data,
        partial(partitioner.call, "partition"),
        settings.clients,
        **minimum_for(partitioner.config),
        public=settings.held_out,
        partitioner=partitioner.name,
        subset=settings.subset,
        train_size=settings.train_size,
    )

    @lru_cache(maxsize=2)
    def checked(seed: int) -> Split:
        result = split(seed=seed)
        if result.untrained:
            from protofl.federation.plan.client_arrivals import check_untrained

            check_untrained(result, settings.unseen, client_names(result, data.columns))
        if not settings.validation:
            return result
        from protofl.data.subset import with_validation

        return with_validation(result, data.y, settings.validation, seed, data.groups)

    return checked


def fitting_of(fitted: Fitted, registry: Registry | None = None) -> Fitting:
    """Return what fits a preparation and reads new samples, from the plugin of its data set.

    Args:
        fitted: The preparation.
        registry: Where plugins are found; None for the installed ones.

    Raises:
        UsageError: The plugin is missing, or does not know the form.
    """
    try:
        plugin: Any = (registry or Registry()).load("dataset", fitted.dataset)
    except Unknown:
        package = fitted.package
        raise UsageError(
            f"raw samples are read by the data set {fitted.dataset!r}, which is not installed",
            f"it is a plugin of {package}" if package else "it is a class of a program",
            f"pip install {package}"
            if package
            else "give an array of samples (.npy), or use Run.predict in this program",
        ) from None
    if not hasattr(plugin, "fitting"):
        raise ProtoflError(
            f"data set {fitted.dataset!r} fits its preparation, and its class has no `fitting`",
            do="this is an error in the data set's plugin; see protofl.datasets.Fitting",
        )
    try:
        fitting: Fitting = plugin.fitting(**fitted.form)
    except TypeError as error:
        raise UsageError(
            f"data set {fitted.dataset!r} does not know the recorded form of samples: {error}",
            do=f"use the version of {fitted.package or 'its package'} that recorded it, or a newer "
            "one",
        ) from None
    return fitting


def fitter(
    settings: Settings, data: Dataset, splits: Callable[[int], Split], registry: Registry
) -> Callable[[int], FittedSamples] | None:
    """Return a function that fits the preparation to the split of a seed; None without such data.

    Args:
        settings: The options.
        data: The data.
        splits: Makes the split of a seed.
        registry: Where plugins are found.

    Raises:
        UsageError: The run needs samples of no client, which have no statistics.
    """
    fitted = None if data.preparation is None else data.preparation.fitted
    if fitted is None:
        return None
    if settings.held_out and fitted.per_client:
        raise UsageError(
            "public samples belong to no client, so no client's statistics prepare them",
            "dataset.statistics=client computes medians, means and deviations for each client",
            "compute them from all clients' training rows: --set dataset.statistics=global",
        )
    from protofl.data.fitting import FittedSamples

    fitting = fitting_of(fitted, registry)
    return lru_cache(maxsize=2)(
        lambda seed: FittedSamples(fitting, data.x, splits(seed), settings.data_dir)
    )


def public_data(
    settings: Settings,
    composition: Composition,
    data: Dataset,
    registry: Registry,
    report: Report,
    *,
    is_given: bool,
) -> tuple[int | str, Dataset | None]:
    """Return the recorded value of ``--public``, and the public data set if it is separate."""
    public, needed = settings.public, composition.needs_public
    if isinstance(public, str) and public.isdecimal():
        public = int(public)
    if isinstance(public, int):
        if needed and not is_given:
            public = 5000 if len(data.y) >= 25_000 else len(data.y) // 5
        if public < 0:
            raise UsageError(f"--public {public} is negative")
        return public, None
    if public == "none":
        if needed:
            raise UsageError(
                f"{settings.method} needs public data and --public none was given",
                do="give --public N, or leave the option out",
            )
        return 0, None
    if not public.startswith("npz:"):
        raise UsageError(f"--public {public!r}: expected a number, npz:PATH or none")
    choice = choose(registry, "dataset", public, options_like(data.sample))
    loaded = load_data(choice, settings.data_dir, report, settings.cache)
    if not loaded.sample.is_like(data.sample):
        raise UsageError(f"--public {public} holds {loaded.sample}, the data set {data.sample}")
    if data.preparation is not None and data.preparation.fitted is not None:
        raise UsageError(
            f"--public {public}: arrays have no columns, and the data set is a table with columns",
            do="give a number: --public N holds N training rows out",
        )
    if data.preparation is not None and data.preparation.scaling is not None:
        report(f"the public samples of {public} are prepared as those of the data set")
        loaded = replace(loaded, x=data.preparation(loaded.x))
    return choice.text, loaded


def model_input_for(
    stored: SampleSpec, group: Choice, registry: Registry, *, augment: bool
) -> tuple[ModelInput, list[str]]:
    """Return what prepares stored samples for the models, and lines that describe it.

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
        usual = getattr(group.plugin, "min_side", 32)
        side = getattr(group.config, "min_side", usual)
        return pixels_for(stored, group.text, channels, side)
    if augment:
        raise UsageError(
            f"--augment shifts and flips images, and the data are {PLURAL[stored.kind]}",
            do="leave it out",
        )
    return AsStored(), []


def kinds_of(group: type) -> tuple[Kind, ...]:
    """Return the kinds of samples that a model group takes; images by default."""
    return tuple(getattr(group, "kinds", ("image",)))


def takes(registry: Registry, name: str, sample: SampleSpec) -> bool:
    """Return True if an installed model group loads and takes such samples."""
    try:
        return sample.kind in kinds_of(registry.load("model-group", name))
    except ProtoflError:
        return False


def image_source(
    choice: Choice | None, data: Dataset, device: torch.device, data_dir: Path
) -> ImageSource | None:
    """Return the image generator of the run, loaded on first use, or None."""
    if choice is None:
        return None
    from protofl.data.generators import ImageSource

    outline = partial(choice.call, "outline", data_dir=data_dir)
    load = partial(choice.call, "open_generator", data_dir=data_dir, device=device)
    return ImageSource(choice.name, outline, load, data, device)


def options_like(sample: SampleSpec) -> dict[str, Any]:
    """Return the options of ``npz:`` for a file of such samples and labels."""
    options: dict[str, Any] = {} if sample.task.has_classes else {"task": sample.task.name}
    if sample.kind == "image":
        return options
    if sample.kind == "tokens":
        options |= {"vocabulary": sample.vocabulary, "padding": sample.padding}
    return {"kind": sample.kind, **options}
