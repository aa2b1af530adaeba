"""FedDF: the server fuses the clients' models by distilling their ensemble.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
Algorithms 1 and 3; S_g are the round's clients of architecture g, S all of the round.

    local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w_g
    average   w_g ← Σ_{i in S_g} (n_i / Σ_{k in S_g} n_k) · w_i
    distil    min over w_g of  E_x KL( softmax(1/|S| · Σ_{i in S} z_i(x)) ‖ softmax(z_g(x)) )

x are public samples. Teachers are all models of the round, whatever their architecture; an
architecture of which the round has no client stays as it is. Adam, its learning rate falling along
a cosine. The paper also stops early, by labelled samples on the server. Inference is by the fused
model.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import architecture_models, public_data, weights


class FedDF:
    """The server fuses the clients' models by distilling their ensemble (Lin et al., 2020)."""

    class Config(architecture_models.ArchitecturesConfig):
        """Options; shared: epochs, aggregate."""

        paper_epochs = {"local_epochs": 30, "server_epochs": 5}
        server_epochs: int = pf.Field(
            None,
            ge=0,
            description="epochs of distillation; 0 regresses to FedAvg per architecture. "
            "None: as epochs says",
        )
        server_lr: float = pf.Field(1e-3, gt=0, description="learning rate of the server's Adam")

    native_widths = True
    needs_public = True
    asynchronous = "versions"
    uploads = {
        "model/*": "the whole model after local training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples (not with aggregate=uniform)",
    }
    downloads = {"model/*": "the fused model of the client's architecture"}

    run_defaults = staticmethod(public_data.paper_defaults)
    requires = staticmethod(public_data.without_public)
    setup_server = staticmethod(architecture_models.initial_models)
    download_payload = staticmethod(architecture_models.model_of)
    receive = weights.MODEL.receive  # w_i ← w_g
    upload_payload = staticmethod(architecture_models.trained_model)
    server_aggregate = staticmethod(architecture_models.mean_models)

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Distil the mean logits of the round's models into every architecture of the round."""
        fused = pf.Payload()
        if not server.config.server_epochs:
            return fused
        teacher = architecture_models.public_logits_of(server, uploads).mean(0)
        for name in architecture_models.architectures_of(server, uploads):
            student = server.scratch.get(name) or server.build(name)
            if server.replays:  # its recorded steps change this one
                server.scratch[name] = student
            pf.models.load_weights(student, server.global_state, f"model@{name}")
            public_data.train_on_public(
                server,
                student,
                _distillation,
                of=(teacher,),
                epochs=server.config.server_epochs,
                lr=server.config.server_lr,
                purpose=f"shuffle {name}",
                cosine=True,
            )
            fused.update(pf.models.pack_weights(student, f"model@{name}"))
        return fused

    global_models = staticmethod(architecture_models.known_models)


def _distillation(features: Tensor, logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL to the teacher's logits of public samples, a scalar."""
    return F.kl_divergence(logits, teacher)
