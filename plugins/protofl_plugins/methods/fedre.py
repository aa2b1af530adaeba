"""FedRE: one head for all, trained on one random mixture of each client's prototypes.

Yao et al., "FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated
Learning", CVPR 2026 (arXiv:2511.22265).

    local     min over f_k, h_k of  E_{(x, y) ~ D_k} ℓ(h_k(f_k(x)), y), h_k starting from h
    P_k^c     client k's prototype of class c: mean feature of its samples
    r̃_k       Σ_c w_k^c·P_k^c, the entangled representation
    ỹ_k       Σ_c w_k^c·e_c, the entangled label, e_c the one-hot vector of class c
    w_k^c     u_c / Σ_c' u_c' of the client's classes, u_c uniform in (0, 1], drawn in each round
    server    min over h of  Σ_k ℓ(h(r̃_k), ỹ_k), by SGD

The paper writes r̃_k and ỹ_k as sums over samples. This is the variant that it uses for its
results, Random Average Prototype: samples are first averaged by class. Its map of features to one
width, average pooling, is that of the model groups.

The server builds h, sends it from the first round and keeps it from round to round. Inference is by
the head, after h has taken its place. The published code of the folder ``PFLlib`` has these steps;
that of ``HtFLlib`` never sends h to the clients, which is not offered.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

import protofl as pf
from protofl_plugins.engines.server_steps import steps
from protofl_plugins.shared import weights


class FedRE:
    """The server trains one head on a mixture of each client's prototypes (Yao et al., 2026)."""

    class Config(pf.Config):
        """Options."""

        eta_s: float = pf.Field(
            0.001, gt=0, description="the server's learning rate, that of the published code"
        )
        epochs: int = pf.Field(
            1, ge=0, description="passes of the server over the mixtures; 0 sends an untrained head"
        )
        server_batch: int = pf.Field(
            32, ge=1, description="mixtures in a step of the server, whose losses are added up"
        )
        resample: bool = pf.Field(
            True,
            description="draw w_k^c in each round; false draws once for all rounds, and the head "
            "fits those mixtures",
        )

    asynchronous = True
    terms = {"ce": "cross-entropy"}
    uploads = {
        "entangled_representation": pf.Key(
            "[K]",
            "r̃_k, a random mixture of the client's mean features of its classes",
            reveals="a mixture of mean features, which protofl leak does not attack",
        ),
        "entangled_label": pf.Key(
            "[C]",
            "ỹ_k, the weights of the mixture: which classes the client has, and no counts",
            reveals="which classes the client has, exactly",
        ),
    }
    downloads = {"head/*": "h, trained on the mixtures of the last round's clients"}
    ablations = {"fixed weights": "--set resample=false"}

    requires = weights.HEAD.requires

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build h."""
        server.modules["head"] = weights.built_model(server).head
        return pf.models.pack_weights(server.modules["head"], "head")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Draw u for all rounds, if it is not drawn in each."""
        if not client.config.resample:
            client.state["u"] = _drawn(client)

    download_payload = weights.HEAD.download_payload  # h
    receive = weights.HEAD.receive  # h_k ← h

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send r̃_k and ỹ_k."""
        P, known = client.class_prototypes().table("prototypes", client.num_classes)
        u = _drawn(client) if client.config.resample else client.state["u"]
        r, y = entangled(P, known, u.to(P))
        return pf.Payload(entangled_representation=r, entangled_label=y)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Train h by SGD on the received pairs (r̃_k, ỹ_k)."""
        R = torch.stack([upload["entangled_representation"] for upload in uploads.values()])
        Y = torch.stack([upload["entangled_label"] for upload in uploads.values()])
        config, head = server.config, server.modules["head"]
        h: list[Tensor] = list(head.parameters())
        generator, batches = server.generator("shuffle"), list[Tensor]()
        for _ in server.epochs(config.epochs):
            order = torch.randperm(len(R), generator=generator).to(R.device)
            batches += torch.split(order, config.server_batch)

        def step(R: Tensor, Y: Tensor) -> None:
            loss = -(Y * log_softmax(head(R), 1)).sum()
            gradients = torch.autograd.grad(loss, h)
            with torch.no_grad():
                torch._foreach_add_(h, gradients, alpha=-config.eta_s)

        steps(server, step, batches, of=(R, Y), changes=h)
        return pf.models.pack_weights(head, "head")


def _drawn(client: pf.Client[FedRE.Config]) -> Tensor:
    """Return u, uniform in (0, 1], [C]: a client of one class needs a weight above 0."""
    return 1 - torch.rand(client.num_classes, generator=client.generator("weights"))


def entangled(P: Tensor, known: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return r̃ [K] and ỹ [C] of the prototypes of a client's classes.

    Args:
        P: The prototypes as a table, C×K; those of unknown classes are left out.
        known: The client's classes, [C] bool; at least one.
        u: Weights before they are normalised, [C], above 0.
    """
    w = torch.where(known, u, 0)
    w = w / w.sum()
    return w @ torch.where(known.unsqueeze(1), P, 0), w
