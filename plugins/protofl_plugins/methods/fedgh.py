"""FedGH: one head for all, trained by the server on the clients' prototypes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia
2023 (arXiv:2303.13137); the server's learning rate as in FedKTL (Zhang et al., CVPR 2024).

    local     min over f_i, h_i of  E_{(x, y) ~ D_i} ℓ(h_i(f_i(x)), y), h_i starting from h
    P_i^c     client i's prototype of class c: mean feature of its samples
    server    h ← h − η_S·∇ℓ(h(P_i^c), c), over all (i, c) that were sent

The server builds h, sends it from the first round and keeps it from round to round. Inference is by
the head, after h has taken its place.

The paper's step is one gradient step on what was received: ``epochs=1``, here in mini-batches of
the clients' size. The code of FedKTL's comparison passes over it 1000 times by default until
January 2024 and 100 times since (``variant=official``); its scripts ask for one pass.
The authors' own code steps an optimiser that doesn't hold h, so that it never trains it: not
offered.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.engines.server_steps import steps
from protofl_plugins.shared import weights
from protofl_plugins.shared.prototypes import MEANS, sent_rows, sent_without_counts


class FedGH:
    """The server trains one head for all on the clients' prototypes (Yi et al., 2023)."""

    class Config(pf.VariantConfig):
        """Options."""

        official = {"drop_last": True, "same_init": True}
        deviations = {
            "epochs": pf.Deviation(
                "the server's step",
                1,
                100,
                "the paper takes one step on what was received; the code made 1000 passes by "
                "default until January 2024, then 100, and its scripts ask for 1",
            ),
        }
        eta_s: float = pf.Field(0.01, gt=0, description="η_S, the server's learning rate")
        epochs: int = pf.Field(
            None,
            ge=0,
            description="passes of the server over the prototypes; 0 sends an untrained head, many "
            "fit it to the prototypes",
        )

    asynchronous = True
    terms = {"ce": "cross-entropy"}
    uploads = MEANS
    downloads = {"head/*": "h, trained on the prototypes of the last round's clients"}

    requires = weights.HEAD.requires

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """H before any training."""
        server.modules["head"] = weights.built_model(server).head
        return pf.models.pack_weights(server.modules["head"], "head")

    download_payload = weights.HEAD.download_payload  # H
    receive = weights.HEAD.receive  # h_i ← h
    upload_payload = staticmethod(sent_without_counts)  # P_i^c, without counts

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """SGD on the received pairs (P_i^c, c), in mini-batches of the clients' size."""
        P, labels = sent_rows(uploads, "prototypes", server.feature_dim)
        head = server.modules["head"]
        h: list[Tensor] = list(head.parameters())
        generator, batches = server.generator("shuffle"), list[Tensor]()
        for _ in server.epochs(server.config.epochs):
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            batches += torch.split(order, server.batch_size)

        def step(P: Tensor, labels: Tensor) -> None:
            gradients = torch.autograd.grad(cross_entropy(head(P), labels), h)
            with torch.no_grad():
                torch._foreach_add_(h, gradients, alpha=-server.config.eta_s)

        steps(server, step, batches, of=(P, labels), changes=h)
        return pf.models.pack_weights(head, "head")
