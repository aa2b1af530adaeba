"""FedDF: the server fuses the clients' models by distilling their ensemble.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
Algorithms 1 and 3; S_g are the round's clients of architecture g, S all of the round.

    local     min over w_i of  E_{(x, y) ~ D_i} ℓ(w_i; x, y), starting from w_g
    average   w_g ← Σ_{i in S_g} (n_i / Σ_{k in S_g} n_k) · w_i
    distil    min over w_g of  E_x KL( softmax(1/|S| · Σ_{i in S} z_i(x)) ‖ softmax(z_g(x)) )

x are public samples. Teachers are all models of the round, whatever their architecture; an
architecture of which the round has no client stays as it is. Adam, its learning rate falling along
a cosine. With ``patience`` a share of the public samples is held out and distillation stops when
its loss there no longer falls (the paper holds labelled ones out). Inference is by the fused model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import architecture_models, public_data, weights

HOLDOUT = 0.1
"""Share of public samples held out if ``patience`` is set."""


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
        patience: int = pf.Field(
            0, ge=0, description="epochs without a better held-out loss before the stop; 0 for none"
        )

    native_widths = True
    needs_public = True
    asynchronous = "versions"
    uploads = {
        "model/*": "the whole model after local training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples (not with aggregate=uniform)",
    }
    downloads = {"model/*": "the fused model of the client's architecture"}

    run_defaults = staticmethod(public_data.paper_defaults)

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: Config) -> list[str]:
        """Require public samples; two if one is held out."""
        if config.patience and run.public == 1:
            return ["patience holds public samples out, and there is one; give --public N"]
        return public_data.without_public(run)

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
            _distil(server, student, teacher, name)
            fused.update(pf.models.pack_weights(student, f"model@{name}"))
        return fused

    global_models = staticmethod(architecture_models.known_models)


def _distil(
    server: pf.Server[FedDF.Config], student: pf.models.SplitModel, teacher: Tensor, name: str
) -> None:
    """Train a student on KL to the teacher's logits of public samples, [N, C]."""
    config, public = server.config, server.public
    assert public is not None
    order = torch.randperm(len(public), generator=server.generator("holdout"))
    order = order.to(server.device)
    count = min(max(1, round(HOLDOUT * len(public))), len(public) - 1)
    held, rows = order[:count], order[count:].sort().values
    if not config.patience:
        rows = torch.arange(len(public), device=server.device)
    best: list[Any] = [float("inf"), 0, None]  # loss, epochs since, weights

    def loss(features: Tensor, logits: Tensor, teacher: Tensor) -> Tensor:
        return F.kl_divergence(logits, teacher)

    def stop() -> bool:
        _, logits = public_data.evaluated(student, public.at(held))
        divergence = float(F.kl_divergence(logits, teacher[held]))
        best[1] += 1
        if divergence < best[0]:
            best[:] = divergence, 0, pf.models.pack_weights(student, "model")
        return bool(best[1] >= config.patience)

    public_data.train_on_public(
        server,
        student,
        loss,
        of=(teacher[rows],),
        epochs=config.server_epochs,
        lr=config.server_lr,
        rows=rows,
        purpose=f"shuffle {name}",
        cosine=True,
        stop=stop if config.patience else None,
    )
    if best[2] is not None:
        pf.models.load_weights(student, best[2], "model")
