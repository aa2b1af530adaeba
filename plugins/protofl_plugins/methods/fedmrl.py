"""FedMRL: features of a small shared model and of the client's own are fused and nested.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024 (arXiv
2406.00488).

    R_i    [G^ex(x), F_i^ex(x)], features of the shared model G (d_1) and of the own model F_i (d_2)
    R̃_i    P_i(R_i), the fused representation of d_2 numbers; P_i is linear and stays on the client
    R̃_lc   its first d_1 numbers, coarse; R̃_hf all of them, fine
    ℓ_i    m_G·ℓ(G^hd(R̃_lc), y) + m_F·ℓ(F_i^hd(R̃_hf), y)
    G      Σ_i (n_i/n)·G_i

One backward pass trains G_i, F_i and P_i. Inference: the client's own head on the fine
representation. The default d_1 is HtFLlib's 128 (option ``sub_feature_dim``), or K where that is
smaller; the authors' own models have 500.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.shared import auxiliary

D_1 = 128
"""HtFLlib's d_1, the default where K is not smaller."""


class FedMRL:
    """Features of a small shared model and the own one are fused and nested (Yi et al., 2024)."""

    class Config(auxiliary.AuxiliaryConfig):
        """Options, with the paper's symbols; shared: auxiliary."""

        auxiliary_dim: int | None = pf.Field(
            None,
            ge=1,
            description="d_1, width of the shared model's features, at most K. None: min(128, K)",
        )
        m_G: float = pf.Field(1.0, ge=0, description="m_G of the coarse term; 0: no nesting")
        m_F: float = pf.Field(1.0, ge=0, description="m_F of the fine term; 0: G learns alone")

    tasks = pf.datasets.Task.OF_HEADS
    check_options = {"auxiliary_dim": 4}
    asynchronous = "versions"
    terms = {"coarse": "m_G·ℓ(G^hd(R̃_lc), y)", "fine": "m_F·ℓ(F_i^hd(R̃_hf), y)"}
    uploads = {
        "auxiliary/*": pf.Key(
            "as the parameter",
            "the shared model after local training; gradients can be inverted from it",
        ),
        "samples": "n_i, the number of training samples",
    }
    downloads = {
        "auxiliary/*": pf.Key("as the parameter", "the average of the clients' shared models")
    }

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require an architecture of G, and features that R̃_lc is a part of."""
        reasons, K = auxiliary.unknown_architecture(run, config), run.feature_dim
        if (config.auxiliary_dim or K) > K:
            reasons.append(
                f"auxiliary_dim={config.auxiliary_dim} is wider than K = {K}; "
                f"--set auxiliary_dim={K}"
            )
        return reasons

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, Any]:
        """Choose the architecture of G, and d_1."""
        result = auxiliary.chosen_architecture(run, config)
        if config.auxiliary_dim is None:
            result["auxiliary_dim"] = min(D_1, run.feature_dim)
        return result

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build G."""
        return pf.models.pack_weights(auxiliary.built(server), "auxiliary")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add G_i and P_i, which train with the client's own model."""
        client.add_module("auxiliary", auxiliary.built(client))
        d_2 = client.feature_dim
        client.add_module("P", nn.Linear((client.config.auxiliary_dim or d_2) + d_2, d_2))

    download_payload = auxiliary.AUXILIARY.download_payload  # G
    receive = auxiliary.AUXILIARY.receive  # G

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output
    ) -> pf.Terms:
        """ℓ_i, of the coarse and the fine representation."""
        config, y, G = client.config, batch.y, auxiliary.auxiliary_of(client)
        fine = fused(client, batch.x, output.features)  # R̃_hf
        coarse = fine[:, : config.auxiliary_dim]  # R̃_lc
        return {
            "coarse": config.m_G * client.task.loss(G.head(coarse), y),
            "fine": config.m_F * client.task.loss(client.head(fine), y),
        }

    upload_payload = auxiliary.AUXILIARY.upload_payload  # G_i and n_i

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average: G ← Σ_i (n_i/n)·G_i."""
        samples = torch.stack([upload["samples"] for upload in uploads.values()])
        return pf.models.average_weights([*uploads.values()], "auxiliary", samples)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return the scores F_i^hd(R̃_hf)."""
        return client.head(fused(client, x, client.features(x)))

    global_models = staticmethod(auxiliary.shared_auxiliary)


def fused(client: pf.Learner[FedMRL.Config], x: Tensor, client_features: Tensor) -> Tensor:
    """Return R̃_i, B×d_2, of samples and the client's own features of them."""
    features = torch.cat([auxiliary.auxiliary_of(client).features(x), client_features], 1)  # R_i
    return cast(Tensor, client.module("P")(features))
