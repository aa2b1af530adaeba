"""What hooks may know of a run before it starts, and what its methods ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from protofl.data.dataset import Dataset
from protofl.data.spec import Preparation
from protofl.errors import Refused
from protofl.federation.arrivals import check_arrivals, count_unseen, participants
from protofl.federation.plan.inputs import architectures_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.malicious import check_attacks
from protofl.hooks.models.architecture import Architecture
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice
from protofl.hooks.views.run_info import RunInfo
from protofl.system.options.settings import Settings


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
