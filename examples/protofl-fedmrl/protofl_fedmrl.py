"""FedMRL: a small shared net and the client's own are fused, and learn at two widths.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024. Our
reading of the paper, not a reproduction.

    R_i    [G^ex(x), F_i^ex(x)], features of the shared net G (d_1) and of the own net F_i (d_2)
    R̃_i    P_i(R_i), the fused representation, of d_2 numbers
    R̃_lc   the first d_1 of them: coarse; R̃_hf all of them: fine
    ℓ_i    m_G·ℓ(G^hd(R̃_lc), y) + m_F·ℓ(F_i^hd(R̃_hf), y)
    G      the mean of the clients' G_i, weighted by their samples

Inference is by the client's own head on the fine representation.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import protofl as pf


class FedMRL:
    """A small shared net and the client's own are fused at two widths (Yi et al., 2024)."""

    requires_hookspec = "2.2"

    class Config(pf.Config):
        """Options, with the paper's symbols."""

        d_1: int = pf.Field(
            128, ge=1, description="d_1, width of the shared net; up to K, which leaves no nesting"
        )
        m_G: float = pf.Field(1.0, ge=0, description="m_G of the coarse term; 0: no nesting")
        m_F: float = pf.Field(1.0, ge=0, description="m_F of the fine term; 0: G learns alone")
        shared: str = pf.Field("", description="G's architecture, GROUP/NAME too; the group's own")

    check_options = {"d_1": 4}
    terms = {"coarse": "m_G·ℓ(G^hd(R̃_lc), y)", "fine": "m_F·ℓ(F_i^hd(R̃_hf), y)"}
    uploads = {
        "auxiliary/*": "the shared net after local training; gradients can be inverted from it",
        "samples": "|D_i|",
    }
    downloads = {"auxiliary/*": "the mean of the clients' shared nets"}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """R̃_lc is a part of R̃_hf."""
        near = f"d_1={config.d_1} is wider than K = {run.feature_dim}; --set d_1={run.feature_dim}"
        return [near] if config.d_1 > run.feature_dim else []

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, str]:
        """G as the group declares it."""
        return {"shared": config.shared or run.auxiliary_architecture}

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """G, which all begin with."""
        net = server.build(server.config.shared, feature_dim=server.config.d_1)
        return pf.models.pack_weights(net, "auxiliary")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """G_i, of a width of its own, and P_i."""
        d_1, d_2 = client.config.d_1, client.feature_dim
        client.add_module("G", client.build(client.config.shared, feature_dim=d_1))
        client.add_module("P", nn.Linear(d_1 + d_2, d_2))

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config]) -> pf.Payload:
        """G."""
        return server.knowledge.select("auxiliary/*")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install G."""
        pf.models.load_weights(client.module("G"), client.received, "auxiliary")

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output
    ) -> pf.Terms:
        """ℓ_i."""
        config, y = client.config, batch.y
        fine = fused(client, batch.x, output.features)
        coarse = cast(pf.models.SplitModel, client.module("G")).head(fine[:, : config.d_1])
        fine_term = config.m_F * cross_entropy(client.head(fine), y)
        return {"coarse": config.m_G * cross_entropy(coarse, y), "fine": fine_term}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """G_i, and its weight."""
        weights = pf.models.pack_weights(client.module("G"), "auxiliary")
        return pf.Payload(weights, samples=torch.tensor(client.num_samples))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The mean, weighted by samples."""
        sent = [*uploads.values()]
        return pf.models.average_weights(
            sent, "auxiliary", torch.stack([u["samples"] for u in sent])
        )

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """F_i^hd(R̃_hf)."""
        return client.head(fused(client, x, client.features(x)))


def fused(client: pf.Learner[FedMRL.Config], x: Tensor, own: Tensor) -> Tensor:
    """R̃_i, B×d_2, of samples and the client's own features of them."""
    shared = cast(pf.models.SplitModel, client.module("G")).features(x)
    found: Tensor = client.module("P")(torch.cat([shared, own], 1))
    return found
