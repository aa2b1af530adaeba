"""The steps in which `protofl.plan.plan.Plan.make` makes a plan, each a function."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from protofl.arrivals import check_arrivals, count_unseen, participants, tuning_epochs
from protofl.data.dataset import Dataset
from protofl.data.preparation import Preparation
from protofl.discovery.registry import Registry
from protofl.errors import Refused, UsageError
from protofl.machine.cores import usable_cores
from protofl.malicious import check_attacks
from protofl.models.architecture import Architecture
from protofl.optim.given import training_options
from protofl.options.declared import check_consent
from protofl.options.settings import Settings
from protofl.options.table import CHOOSING, OWNERS, SEVERAL, UPDATES, build, check_names
from protofl.plan.inputs import architectures_of
from protofl.plugin.choice import Choice, choose
from protofl.plugin.composition import Composition
from protofl.plugin.several import several_in
from protofl.views.run import RunInfo

# --- plugins and settings -------------------------------------------------------------------------


def compose(registry: Registry, settings: Settings) -> Composition:
    """The method, donors and wrappers, with their options."""
    several = [name for option in SEVERAL for name in getattr(settings, option)]
    others = {*OWNERS, *several}
    composition = Composition(
        registry,
        settings.method,
        options={k: v for k, v in settings.options.items() if k not in others},
        use=settings.use,
        add=settings.add,
        drop=settings.drop,
        wrappers=settings.wrappers,
    )
    for hook, name in composition.providers.items():
        donated = getattr(composition.members[name].plugin, "donates", (hook,))
        if hook not in donated:
            raise UsageError(
                f"{name} provides {' and '.join(donated)} for other methods, and no {hook}",
                do=f"give it to a method: protofl run METHOD --use {donated[0]}={name}",
            )
    return composition


def chosen(registry: Registry, settings: Settings, *options: str) -> dict[str, Choice]:
    """The plugins that options of `CHOOSING` name, with their own options, by kind."""
    return {
        CHOOSING[o]: choose(registry, CHOOSING[o], getattr(settings, o), settings.options.get(o))
        for o in options
    }


def with_defaults(
    given: Mapping[str, Any], composition: Composition, choices: Mapping[str, Choice]
) -> Settings:
    """What is given, else the default of the method, the data set, the group, or the list."""
    width = getattr(choices["model-group"].plugin, "feature_dim", None)
    defaults: dict[str, Any] = {} if width is None else {"feature_dim": width}
    defaults |= getattr(choices["dataset"].plugin, "defaults", {})
    asked = composition.members[composition.main].call("run_defaults") or {}
    check_names(asked, f"option in run_defaults of {composition.main}:")
    defaults |= asked
    return build({**defaults, **given})


def other_choices(
    registry: Registry, settings: Settings, composition: Composition, device: torch.device
) -> tuple[Settings, dict[str, Choice]]:
    """The plugins beside methods, data set and models; the settings say where they compute."""
    options = ["partition", "selection", "engine"]
    if settings.world is not None:
        options.append("world")
    elif "world" in settings.options:
        raise UsageError("--set world.…: this run has no world", do="choose one with --world")
    if composition.needs_generator:
        options.append("generator")
    elif "generator" in settings.options:
        raise UsageError(
            "--set generator.…: this method has no generator",
            do="leave it out, or choose a method with one (fedktl)",
        )
    else:
        registry.find("generator", settings.generator.partition(":")[0])
    found = chosen(registry, settings, *options)
    own = settings.options | training_options(vars(settings))
    settings = settings.model_copy(update={"options": own})
    settings = placed(settings, found["engine"], device, registry.extra)
    return settings, found | chosen(registry, settings, "backend")


def parts_of(composition: Composition, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """All plugins of a run by the words under which their options stand in ``--set``."""
    several = several_in(choices, *SEVERAL.values())
    parts: dict[str, Choice] = {**composition.members, **{one.name: one for one in several}}
    return parts | {option: choices[kind] for option, kind in CHOOSING.items() if kind in choices}


def check_consents(
    said: Mapping[str, Container[str]] | None,
    composition: Composition,
    choices: Mapping[str, Choice],
) -> None:
    """Whether what only the user may allow (see `protofl.Field`) was said by the user.

    Raises:
        UsageError: It comes from a file.
    """
    if said is None:
        return
    for owner, part in parts_of(composition, choices).items():
        check_consent(part.config, owner, said.get(owner, ()))


def placed(
    settings: Settings, engine: Choice, device: torch.device, objects: Iterable[tuple[str, str]]
) -> Settings:
    """The settings with a device and a backend in place of ``auto``, and the data's whole path.

    Args:
        settings: The settings.
        engine: The engine; where it trains several clients at once, one host is to have them all.
        device: Where clients train.
        objects: Kind and name of classes that this program gave; those without a place are its own.
    """
    labels = [f"{kind}/{name}" for kind, name in objects if kind != "tracker"]
    backend = settings.backend
    hidden = [label for label in labels if not settings.classes.get(label)]
    if backend == "auto":
        alone = device.type != "cpu" or len(usable_cores()) == 1 or "train_group" in engine.hooks
        here = alone or hidden or (labels and not settings.workers)
        backend = "local" if here else "process"
    elif hidden and backend != "local":
        raise UsageError(
            f"backend {backend!r} can't see {', '.join(hidden)}, a class of this program alone",
            "other processes find what is installed, and classes of modules and files",
            "write it into a file of its own, or use --backend local",
        )
    folder = settings.data_dir.expanduser().absolute()
    update = {"backend": backend, "device": str(device), "data_dir": folder}
    return settings.model_copy(update=update)


# --- what the hooks may know ----------------------------------------------------------------------


def run_info(
    settings: Settings,
    choices: Mapping[str, Choice],
    data: Dataset,
    preparation: Preparation,
    own_public: Dataset | None,
    registry: Registry,
) -> RunInfo:
    """What is known of the run before it starts."""
    group, sample = choices["model-group"], preparation.seen(data.sample)
    check_arrivals(settings, settings.rounds)
    seen = settings.clients - count_unseen(settings.clients, settings.unseen)
    architectures: list[Architecture] = group.call("architectures")
    further: list[Architecture] = group.call("server_architectures") or []
    return RunInfo(
        group=settings.models,
        architectures=tuple(architectures[: settings.clients]),
        num_clients=settings.clients,
        participants=participants(settings.participation, seen),
        num_classes=data.num_classes,
        feature_dim=settings.feature_dim,
        sample=sample,
        public=settings.held_out if own_public is None else len(own_public.y),
        rounds=settings.rounds,
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        server_architectures=(*further, *architectures[settings.clients :]),
        server_architecture=getattr(group.plugin, "server_architecture", "resnet56"),
        auxiliary_architecture=getattr(group.plugin, "auxiliary_architecture", None)
        or architectures[0].name,
        malicious=settings.malicious,
        others=partial(architectures_of, registry, sample),
    )


def settle(composition: Composition, settings: Settings, info: RunInfo) -> None:
    """Hold the run against what its methods ask of it; options that depend on it get their values.

    Raises:
        Refused: It is not as a method needs it.
    """
    reasons = [
        f"{method.name}: {reason}"
        for method in composition.methods
        for reason in method.call("requires", run=info) or []
    ]
    if reasons:
        raise Refused(
            f"{settings.method} can't run with {settings.models} on {settings.dataset}",
            *("; ".join(reasons).partition("\n")[::2]),
            lacks="requirement",
            name="; ".join(reasons),
        )
    for method in composition.methods:
        method.resolve(info)
    _check_phases(composition, info)
    check_attacks(settings.malicious, info.num_clients, composition.wrappers)


def _check_phases(composition: Composition, info: RunInfo) -> None:
    """Find terms of donors for which the main method has no phase.

    Raises:
        Refused: A term belongs to a phase of its method's own, and phases are the main method's.
    """
    for term in composition.terms:
        phases = composition.members[term.method].call("phases", run=info) or []
        own = [p for p in phases if term.name in p.terms and p.data != "private"]
        if term.method != composition.main and own:
            raise Refused(
                f"the loss term {term.label!r} belongs to the phase {own[0].name!r} of "
                f"{term.method}, which {composition.main} does not have",
                "phases of training are those of the main method alone",
                f"drop it: --drop local_loss.{term.label}",
                lacks="phase",
                name=own[0].name,
            )


# --- what is recorded -----------------------------------------------------------------------------


def resolved(
    settings: Settings, composition: Composition, choices: Mapping[str, Choice]
) -> Settings:
    """The settings with every plugin's options as they are in this run; made anew they stay so."""
    options = {owner: settings.options[owner] for owner in UPDATES}
    options |= {name: part.dump() for name, part in parts_of(composition, choices).items()}
    update: dict[str, Any] = {
        "options": {name: values for name, values in options.items() if values},
        "fine_tune": tuning_epochs(settings),
    }
    update |= {o: choices[o].text for o in ("dataset", "selection", "world") if o in choices}
    if settings.participants_from is not None:
        update["participants_from"] = settings.participants_from.expanduser().absolute()
    return settings.model_copy(update=update)
