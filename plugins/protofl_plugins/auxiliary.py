"""The auxiliary model of FML and FedKD.

Every client trains, beside its own model, a small model of one architecture for all, and only
that one travels. FedTGP, appendix A, "Model heterogeneity": "the smallest model in any given model
group", the 4-layer CNN where all clients have one architecture. In the published code that is the
group's first architecture at every size of images, so groups declare theirs: counted in parameters,
another one is the smallest at 64 px, where the 4-layer CNN has more of them than MobileNetV2.
"""

from __future__ import annotations

from torch import nn

import protofl as pf


class AuxiliaryConfig(pf.Config):
    """Options of the auxiliary model."""

    auxiliary: str = pf.Field(
        None,
        description="architecture of the auxiliary model, one of the group's, or GROUP/NAME of "
        "another's. None: the one that the group declares (protofl show GROUP), for most its first",
    )
    auxiliary_dim: int | None = pf.Field(
        None, ge=1, description="width of the auxiliary model's features. None: K"
    )


class AuxiliaryModel:
    """Hooks that choose the auxiliary model and give it to the server and to every client."""

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: AuxiliaryConfig) -> list[str]:
        """Require an auxiliary architecture that the group has."""
        names = [a.name for a in (*run.architectures, *run.server_architectures)]
        wanted = config.auxiliary or run.auxiliary_architecture
        if wanted in names:
            return []
        if "/" not in wanted:
            return [
                f"auxiliary={wanted} is not an architecture of {run.group}; "
                f"one of these works: {', '.join(names)}, or GROUP/NAME"
            ]
        try:
            run.named(wanted)
        except pf.UsageError as error:
            return [f"auxiliary={wanted}: {', '.join(filter(None, (error.what, error.near)))}"]
        return []

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: AuxiliaryConfig) -> dict[str, str]:
        """Choose the auxiliary architecture of the group by default."""
        return {} if config.auxiliary else {"auxiliary": run.auxiliary_architecture}

    @pf.hookimpl
    def setup_server(self, server: pf.Server[AuxiliaryConfig]) -> pf.Payload:
        """The auxiliary model as the server builds it, sent from round 0."""
        return pf.models.pack_weights(_built(server), "auxiliary")

    @pf.hookimpl
    def global_models(self, server: pf.Server[AuxiliaryConfig]) -> dict[str, nn.Module]:
        """The auxiliary model, the one that all have in common."""
        model = _built(server)
        pf.models.load_weights(model, server.knowledge, "auxiliary")
        return {"auxiliary": model}

    @pf.hookimpl
    def setup_client(self, client: pf.Client[AuxiliaryConfig]) -> None:
        """A place for the auxiliary model, trained with the client's own."""
        client.add_module("auxiliary", _built(client))


class SharedAuxiliary(AuxiliaryModel):
    """`AuxiliaryModel` of which the server sends the whole, and clients install it."""

    downloads = {"auxiliary/*": "the average of the clients' auxiliary models"}

    @pf.hookimpl
    def download_payload(self, server: pf.Server, client_id: int) -> pf.Payload:
        """θ_aux."""
        return server.knowledge.select("auxiliary/*")

    @pf.hookimpl
    def receive(self, client: pf.Client) -> None:
        """Install θ_aux."""
        if client.received.under("auxiliary"):
            pf.models.load_weights(client.module("auxiliary"), client.received, "auxiliary")


def _built(side: pf.Server[AuxiliaryConfig] | pf.Client[AuxiliaryConfig]) -> pf.models.SplitModel:
    """The auxiliary model as it begins, the same on both sides."""
    return side.build(side.config.auxiliary, feature_dim=side.config.auxiliary_dim)
