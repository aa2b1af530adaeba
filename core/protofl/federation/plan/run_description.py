"""Facts about a run that hooks may know, and the requirements of its methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch.nn import GroupNorm

from protofl.data.dataset import Dataset
from protofl.data.spec import ModelInput, SampleSpec
from protofl.errors import Refused, UsageError
from protofl.federation.plan.run_data import model_input_for
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.models.architecture import Architecture, places_of, with_group_norm
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice, choose
from protofl.hooks.plugin.providers import Baseline
from protofl.hooks.views.run_info import RunInfo
from protofl.system.options.plugin_options import from_data
from protofl.system.options.settings import Settings


def run_info(
    settings: Settings,
    choices: Mapping[str, Choice],
    data: Dataset,
    model_input: ModelInput,
    own_public: Dataset | None,
    registry: Registry,
) -> RunInfo:
    """Return the information about the run that hooks may read."""
    group, sample, K = choices["model-group"], model_input.seen(data.sample), settings.feature_dim
    unseen = 0
    if settings.unseen or settings.join_round:
        from protofl.federation.plan.client_arrivals import check_arrivals, count_unseen

        check_arrivals(settings, settings.rounds)
        unseen = count_unseen(settings.clients, settings.unseen)
    architectures: list[Architecture] = group.call("architectures")
    first, further = architectures[0].name, group.call("server_architectures") or []
    if getattr(group.config, "norm", "batch") == "group":
        architectures, further = (
            [*map(with_group_norm, each)] for each in (architectures, further)
        )
    listed, used = settings.architectures, [*range(min(settings.clients, len(architectures)))]
    numbers = places_of(listed, architectures, settings.clients) if listed else []
    used = sorted({*numbers}) or used
    mine = tuple(architectures[n] for n in used)
    return RunInfo(
        group=settings.models,
        architectures=mine,
        num_clients=settings.clients,
        participants=participants(settings.participation, settings.clients - unseen),
        class_names=(*data.output_names,),
        num_classes=len(data.output_names),
        feature_dim=getattr(group.plugin, "feature_dim", 512) if K == "native" else K,
        sample=sample,
        public=settings.held_out if own_public is None else len(own_public.y),
        rounds=settings.rounds,
        batch_size=settings.batch_size,
        local_epochs=settings.local_epochs,
        server_architectures=(*further, *(a for a in architectures if a not in mine)),
        server_architecture=getattr(group.plugin, "server_architecture", "resnet56"),
        auxiliary_architecture=getattr(group.plugin, "auxiliary_architecture", None) or first,
        malicious=settings.malicious,
        unseen=unseen,
        optimizer=settings.optimizer,
        momentum=settings.momentum,
        clip=settings.clip,
        native=K == "native",
        others=partial(architectures_of, registry, sample),
        places=tuple(map(used.index, numbers)),
        fitted=data.preparation is not None and data.preparation.fitted is not None,
        has_secrets="backend" in choices
        and getattr(choices["backend"].plugin, "has_secrets", False),
        reads_reports=_reads_reports(settings, choices["client-sampler"]),
        sends_samples=_sends_samples(settings),
    )


def about_noise(transform: str) -> str:
    """Return the note about a transform's noise in a simulation."""
    return (
        f"{transform}: the noise of a simulation can be repeated with the seed and protects "
        "no client; only nodes of a deployment have secrets"
    )


def _reads_reports(settings: Settings, sampler: Choice) -> tuple[str, ...]:
    """Return `RunInfo.reads_reports`."""
    options = [f"--patience {settings.patience}"] if settings.patience else []
    if getattr(sampler.plugin, "reads_sizes", False) or reads_losses(sampler):
        options.append(f"--sampling {sampler.text}")
    return tuple(options)


def _sends_samples(settings: Settings) -> tuple[str, ...]:
    """Return `RunInfo.sends_samples`."""
    options = [f"--observe {each}" for each in settings.observe if each != "prototypes"]
    if settings.record_predictions:
        options.append(f"--record-predictions {','.join(settings.record_predictions)}")
    return tuple(options)


def reads_losses(sampler: Choice) -> bool:
    """Return True if a client sampler reads the clients' losses."""
    return "losses" in inspect.signature(sampler.instance.select).parameters


def settle(composition: Composition, settings: Settings, info: RunInfo) -> None:
    """Check the requirements of methods and transforms, and resolve options that depend on the run.

    Raises:
        Refused: It is not as a method needs it.
    """
    reasons = [
        f"{member.name}: {reason}"
        for member in (*composition.methods, *composition.transforms)
        for reason in member.call("requires", run=info) or []
    ]
    if reasons:
        raise Refused(
            f"{settings.method} cannot run with {settings.models} on {settings.dataset}",
            *("\n".join(reasons).partition("\n")[::2]),
            lacks="requirement",
            name="; ".join(reasons),
        )
    for method in composition.methods:
        method.resolve(info)
    _check_phases(composition, info)
    if settings.malicious or any(hasattr(t.plugin, "attack") for t in composition.transforms):
        from protofl.hooks.malicious import check_attacks

        check_attacks(settings.malicious, info.num_clients, composition.transforms)


def participants(share: float, clients: int) -> int:
    """Return the number of participants: a share ρ of the available clients, at least one."""
    return max(1, round(share * clients))


def with_phases(info: RunInfo, composition: Composition) -> RunInfo:
    """Return the information about the run with the phases of local training."""
    phases = [phase for phase in composition.phases(info) if composition.terms_of(phase)]
    return replace(
        info, phases=tuple(replace(p, epochs=p.epochs or info.local_epochs) for p in phases)
    )


def _check_phases(composition: Composition, info: RunInfo) -> None:
    """Find terms of donors for which the main method has no phase.

    Raises:
        Refused: A term belongs to a phase of its method's own, and phases are the main method's; or
            the main method trains nothing.
    """
    main = composition.members[composition.main]
    declared = {*getattr(main.plugin, "terms", Baseline.terms)}
    trained = composition.phases(info)
    idle = all(phase.terms and not declared & {*phase.terms} for phase in trained)
    for term in composition.terms:
        if idle and term.method != composition.main:
            raise Refused(
                f"{composition.main} trains nothing on the clients, in its phase "
                f"{trained[0].name!r}, so that the loss term {term.label!r} has no phase",
                do="take another main method, or no further loss terms",
                lacks="phase",
                name=trained[0].name,
            )
        phases = composition.members[term.method].call("phases", run=info) or []
        method_phases = [p for p in phases if term.name in p.terms and p.data != "private"]
        if term.method != composition.main and method_phases:
            raise Refused(
                f"the loss term {term.label!r} belongs to the phase {method_phases[0].name!r} of "
                f"{term.method}, which {composition.main} does not have",
                "phases of training are those of the main method alone",
                f"drop it: --drop local_loss.{term.label}",
                lacks="phase",
                name=method_phases[0].name,
            )


def architectures_of(registry: Registry, sample: SampleSpec, text: str) -> list[Architecture]:
    """Return the architectures of an installed model group for the samples of a run.

    Raises:
        UsageError: There is no such group, or it takes samples in another form.
    """
    group = choose(registry, "model-group", text)
    if "min_side" in from_data(type(group.config)) and sample.kind == "image":
        group = choose(registry, "model-group", text, {"min_side": min(sample.shape[1:])})
    _, notes = model_input_for(sample, group, registry, augment=False)
    if notes:
        do = "take an architecture of a group that takes the same samples"
        raise UsageError(f"{text} takes other samples than the run's models", notes[0], do)
    return [*group.call("architectures"), *(group.call("server_architectures") or [])]


def checked(settings: Settings, info: RunInfo, data: Dataset, sampling: type) -> Settings:
    """Check options against the models and the data; return them with names of architectures.

    Args:
        settings: The options of the run.
        info: What hooks may know of the run.
        data: Its data.
        sampling: The plugin that samples clients.

    Raises:
        UsageError: Features are computed once of images that change in each pass, or an option
            reads samples that lie on other machines.
    """
    if settings.augment and any(each.precomputed for each in info.architectures):
        raise UsageError(
            "--augment changes images in each pass, and keep_features computes features once",
            do="leave one of them out",
        )
    built = map(info.unset_model, info.architectures)
    if settings.options.get("models", {}).get("norm") == "group" and not any(
        isinstance(layer, GroupNorm) for model in built for layer in model.modules()
    ):
        raise UsageError(
            f"--set models.norm=group: no net of {settings.models} has BatchNorm",
            do="leave it out, or choose other models",
        )
    if data.elsewhere:
        from protofl.data.remote_data import check_remote_data

        check_remote_data(settings, data, sampling)
    if settings.architectures:
        return settings.model_copy(update={"architectures": info.names_by_client})
    return settings
