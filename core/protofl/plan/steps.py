"""The steps in which `protofl.plan.plan.Plan.make` makes a plan, each a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from protofl.cores import usable_cores
from protofl.data.dataset import Dataset
from protofl.data.preparation import Preparation
from protofl.data.split import Split, make_split
from protofl.errors import Refused, UsageError
from protofl.hookspecs.config import Config
from protofl.models.architecture import Architecture
from protofl.plan.inputs import load_data, partition_with, preparation_for, public_data
from protofl.plan.settings import CHOOSING, Settings, build
from protofl.plugin.choice import Choice, choose
from protofl.plugin.composition import Composition
from protofl.plugin.registry import Registry
from protofl.views.run import RunInfo

# --- plugins and settings -------------------------------------------------------------------------


def compose(registry: Registry, settings: Settings) -> Composition:
    """The method, donors and wrappers, with their options."""
    return Composition(
        registry,
        settings.method,
        options={k: v for k, v in settings.options.items() if k not in CHOOSING},
        use=settings.use,
        add=settings.add,
        drop=settings.drop,
        wrappers=settings.wrappers,
    )


def chosen(registry: Registry, settings: Settings, option: str) -> Choice:
    """The plugin that an option of `CHOOSING` names, with its options."""
    text: str = getattr(settings, option)
    return choose(registry, CHOOSING[option], text, settings.options.get(option))


def with_defaults(
    given: Mapping[str, Any], composition: Composition, choices: Mapping[str, Choice]
) -> Settings:
    """What is given, else the default of the method, the data set, the group, or the list."""
    width = getattr(choices["model-group"].plugin, "feature_dim", None)
    defaults: dict[str, Any] = {} if width is None else {"feature_dim": width}
    defaults |= getattr(choices["dataset"].plugin, "defaults", {})
    defaults |= composition.run_defaults()
    return build({**defaults, **given})


def other_choices(
    registry: Registry, settings: Settings, composition: Composition, device: torch.device
) -> tuple[Settings, dict[str, Choice]]:
    """The plugins beside methods, data set and models; the settings name the backend then."""
    found = {
        "partitioner": chosen(registry, settings, "partition"),
        "engine": chosen(registry, settings, "engine"),
    }
    if composition.needs_generator:
        found["generator"] = chosen(registry, settings, "generator")
    elif "generator" in settings.options:
        raise UsageError(
            "--set generator.…: this method has no generator",
            do="leave it out, or choose a method with one (fedktl)",
        )
    settings = with_backend(settings, found["engine"], device, uninstalled=bool(registry.extra))
    found["backend"] = chosen(registry, settings, "backend")
    return settings, found


def device_of(text: str) -> torch.device:
    """The device that ``--device`` names."""
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(
            f"--device {text} is no device", do="use auto, cpu, cuda or cuda:N"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {text}: no CUDA device is at hand", do="use --device cpu")
    return device


def with_backend(
    settings: Settings, engine: Choice, device: torch.device, *, uninstalled: bool
) -> Settings:
    """The settings with a backend in place of ``auto``.

    Args:
        settings: The settings.
        engine: The engine; where it trains several clients at once, one host is to have them all.
        device: Where clients train.
        uninstalled: Whether a plugin is a class of this program, which other processes can't see.
    """
    if settings.backend == "auto":
        together = "train_group" in engine.hooks
        alone = device.type != "cpu" or len(usable_cores()) == 1 or uninstalled or together
        return settings.model_copy(update={"backend": "local" if alone else "process"})
    if uninstalled and settings.backend != "local":
        raise UsageError(
            f"backend {settings.backend!r} can't see a plugin that is not installed",
            do="use --backend local, or install the plugin (protofl finds entry points)",
        )
    return settings


# --- data -----------------------------------------------------------------------------------------


@dataclass
class RunData:
    """The data of a run, and what becomes of them.

    Attributes:
        data: The data.
        clients: M.
        held_out: Samples to hold out as public ones.
        public_data: Public samples of their own, where the run has them.
        public: ``--public`` as it is recorded.
        preparation: What samples become for the models.
        notes: Lines to tell the user.
    """

    data: Dataset
    clients: int
    held_out: int
    public_data: Dataset | None
    public: int | str
    preparation: Preparation
    notes: list[str]


def run_data(
    given: Mapping[str, Any],
    settings: Settings,
    composition: Composition,
    choices: Mapping[str, Choice],
    registry: Registry,
    report: Any,  # noqa: ANN401 - a callable or None
) -> RunData:
    """The data, the public data, and how many clients share them."""
    data_dir = settings.data_dir.expanduser().absolute()
    dataset, group = choices["dataset"], choices["model-group"]
    data = load_data(dataset, data_dir, report)
    needed = getattr(composition.members[settings.method].instance, "needs_public", False)
    public, own_public = public_data(
        settings, "public" in given, needed, data, registry, data_dir, report
    )
    preparation, notes = preparation_for(
        data, group.plugin, group.text, registry, augment=settings.augment
    )
    if "partition" in given and settings.partition != "given":
        notes = [*kept_split(data), *notes]
    return RunData(
        data=data,
        clients=number_of_clients(data, given.get("clients"), settings.clients),
        held_out=0 if own_public else int(public),
        public_data=own_public,
        public=public if own_public is None else f"npz:{public}",
        preparation=preparation,
        notes=[*([data.note] if data.note else []), *notes],
    )


def number_of_clients(data: Dataset, given: int | None, usual: int) -> int:
    """M: as given, else as the data come split, else as usual."""
    if given is None and data.split is not None:
        return len(data.split)
    return usual if given is None else given


def kept_split(data: Dataset) -> list[str]:
    """What to tell whoever names a partitioner of data that come already split."""
    if data.split is None:
        return []
    return ["the data come already split over clients: that split is kept"]


def splitter(
    data: Dataset, partitioner: Choice, clients: int, batch_size: int, public: int
) -> Callable[[int], Split]:
    """What makes the split of a seed, and keeps the last two.

    Args:
        data: The data.
        partitioner: The partitioner, unused where the data come already split.
        clients: M.
        batch_size: Samples that every client should be able to fill a batch with.
        public: Samples to hold out as public ones.
    """
    partition = partition_with(partitioner)

    @lru_cache(maxsize=2)
    def split(seed: int) -> Split:
        return make_split(
            data, partition, clients, batch_size, seed, public, partitioner=partitioner.name
        )

    return split


# --- what the hooks may know ----------------------------------------------------------------------


def run_info(settings: Settings, group: Choice, found: RunData) -> RunInfo:
    """What is known of the run before it starts."""
    architectures: list[Architecture] = group.call("architectures")
    own = found.public_data
    return RunInfo(
        group=settings.models,
        architectures=tuple(architectures[: found.clients]),
        num_clients=found.clients,
        participants=max(1, round(settings.participation * found.clients)),
        num_classes=found.data.num_classes,
        feature_dim=settings.feature_dim,
        sample=found.preparation.seen(found.data.sample),
        public=found.held_out if own is None else len(own.y),
        rounds=settings.rounds,
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        server_architectures=tuple(group.call("server_architectures") or ()),
        server_architecture=getattr(group.plugin, "server_architecture", "resnet56"),
    )


def settle(composition: Composition, settings: Settings, info: RunInfo) -> None:
    """Hold the run against what its methods ask of it; options that depend on it get their values.

    Raises:
        Refused: It is not as a method needs it.
    """
    reasons = composition.reasons_against(info)
    if reasons:
        raise Refused(
            f"{settings.method} can't run with {settings.models} on {settings.dataset}",
            *("; ".join(reasons).partition("\n")[::2]),
            lacks="requirement",
            name="; ".join(reasons),
        )
    composition.resolve(info)
    composition.check_phases(info)


# --- what is recorded -----------------------------------------------------------------------------


def resolved(
    settings: Settings,
    composition: Composition,
    choices: Mapping[str, Choice],
    found: RunData,
    device: torch.device,
) -> Settings:
    """The settings with every option as it is in this run; a plan made from them is the same."""
    options = {name: _dump(config) for name, config in composition.configs.items()}
    for option, kind in CHOOSING.items():
        if kind in choices:
            choice = choices[kind]
            options[option] = _dump(choice.config, getattr(choice.plugin, "argument", None))
    update = {
        "options": {name: values for name, values in options.items() if values},
        "clients": found.clients,
        "dataset": choices["dataset"].text,
        "public": found.public,
        "device": str(device),
        "data_dir": settings.data_dir.expanduser().absolute(),
    }
    return settings.model_copy(update=update)


def _dump(config: Config, without: str | None = None) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True, exclude={without} if without else None)
