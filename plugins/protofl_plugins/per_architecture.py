"""Methods whose server keeps a model of every architecture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.public_distillation import OnPublicData, ServerTrainingConfig, evaluated


class ArchitecturesConfig(ServerTrainingConfig):
    """Options of a method with `ModelPerArchitecture`."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "weighted", description="weights n_i/n of the average, or 1/M"
    )


class ModelPerArchitecture(OnPublicData):
    """Hooks that send a client the model of its architecture, and its own back (FedDF, FedET).

    The server knows the weights as ``model@ARCHITECTURE/*``.
    """

    @pf.hookimpl
    def setup_server(self, server: pf.Server) -> pf.Payload:
        """A model of every architecture, sent from round 0."""
        start = pf.Payload()
        for name in architectures_of(server, server.clients):
            start.update(pf.models.pack_weights(server.build(name), f"model@{name}"))
        return start

    @pf.hookimpl
    def download_payload(self, server: pf.Server, client_id: int) -> pf.Payload:
        """The model of the client's architecture."""
        return renamed(server.knowledge, f"model@{server.clients[client_id].architecture}", "model")

    @pf.hookimpl
    def receive(self, client: pf.Client) -> None:
        """Install it."""
        if client.received.under("model"):
            pf.models.load_weights(client.module("model"), client.received, "model")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[ArchitecturesConfig]) -> pf.Payload:
        """The client's weights, and n_i where the mean is weighted by it."""
        payload = pf.models.pack_weights(client.module("model"), "model")
        if client.config.aggregate == "weighted":
            payload["samples"] = torch.tensor(client.num_samples)
        return payload

    @pf.hookimpl
    def server_aggregate(
        self, server: pf.Server[ArchitecturesConfig], uploads: pf.Uploads
    ) -> pf.Payload:
        """The mean of the round's clients of every architecture."""
        means = pf.Payload()
        for name in architectures_of(server, uploads):
            own = [u for c, u in uploads.items() if server.clients[c].architecture == name]
            weighted = server.config.aggregate == "weighted"
            weights = torch.stack([u["samples"] for u in own]) if weighted else None
            mean = pf.models.average_weights(own, "model", weights)
            means.update(renamed(mean, "model", f"model@{name}"))
        return means

    @pf.hookimpl
    def global_models(self, server: pf.Server) -> dict[str, nn.Module]:
        """The model of every architecture."""
        models = {name: server.build(name) for name in architectures_of(server, server.clients)}
        for name, model in models.items():
            pf.models.load_weights(model, server.knowledge, f"model@{name}")
        return dict(models)


def architectures_of(server: pf.Server, clients: Iterable[int]) -> list[str]:
    """The architectures of some clients, each once, in the clients' order."""
    return list(dict.fromkeys(server.clients[client].architecture for client in clients))


def renamed(tensors: Mapping[str, Tensor], old: str, new: str) -> pf.Payload:
    """The tensors ``OLD/*`` as ``NEW/*``."""
    found = pf.Payload(tensors).select(f"{old}/*")
    return pf.Payload({f"{new}/{n.removeprefix(f'{old}/')}": t for n, t in found.items()})


def public_logits_of(server: pf.Server, uploads: pf.Uploads) -> Tensor:
    """Scores of all public samples by the models that clients sent, [M, N, C]."""
    models = {name: server.build(name) for name in architectures_of(server, uploads)}
    logits = []
    for client, upload in uploads.items():
        model = models[server.clients[client].architecture]
        pf.models.load_weights(model, upload, "model")
        logits.append(evaluated(model, server.public)[1])
    return torch.stack(logits)
