"""The auxiliary model: what FML and FedKD have in common.

Every client trains, beside its own model, a small model of one architecture for all, and only
that one travels. FedTGP, appendix A, "Model heterogeneity": the smallest of the group; the 4-layer
CNN in a homogeneous group.
"""

from __future__ import annotations

import protofl as pf
import torch
from torch import nn

HOMOGENEOUS = "cnn4"
"""The auxiliary of a homogeneous group, where the group offers it."""


class AuxiliaryConfig(pf.Config):
    """Which model is the auxiliary."""

    auxiliary: str = pf.Field(
        None,
        description="architecture of the auxiliary model, one of the group's. None: the one with "
        "the fewest parameters, or cnn4 where all clients have one architecture",
    )


class AuxiliaryModel:
    """Hooks that choose the auxiliary model and give it to the server and to every client."""

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: AuxiliaryConfig) -> list[str]:
        """An auxiliary architecture that the group has."""
        names = [a.name for a in (*run.architectures, *run.server_architectures)]
        if config.auxiliary is None or config.auxiliary in names:
            return []
        return [
            f"auxiliary={config.auxiliary} is no architecture of {run.group}; "
            f"one of these works: {', '.join(names)}"
        ]

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: AuxiliaryConfig) -> dict[str, str]:
        """The smallest of the group; `HOMOGENEOUS` in a homogeneous one that offers it."""
        if config.auxiliary is not None:
            return {}
        offered = [a.name for a in run.server_architectures]
        if run.homogeneous and HOMOGENEOUS in offered:
            return {"auxiliary": HOMOGENEOUS}
        return {"auxiliary": min(run.architectures, key=lambda a: size(a, run)).name}

    @pf.hookimpl
    def setup_server(self, server: pf.Server[AuxiliaryConfig]) -> pf.Payload:
        """The auxiliary model as the server builds it, sent from round 0."""
        return pf.pack_weights(server.build(server.config.auxiliary), "auxiliary")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[AuxiliaryConfig]) -> None:
        """A place for the auxiliary model, trained with the client's own."""
        client.add_module("auxiliary", client.build(client.config.auxiliary))


def size(architecture: pf.Architecture, run: pf.RunInfo) -> int:
    """Parameters of an architecture in this run; no memory is taken."""
    with torch.device("meta"):
        model: nn.Module = architecture.build(run.sample, run.num_classes, run.feature_dim)
    return sum(p.numel() for p in model.parameters())
