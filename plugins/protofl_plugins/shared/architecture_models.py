"""A model of every architecture on the server: options, and the steps of a round.

Each client shares the model of its architecture g. The server's global state has its weights w_g as
``model@ARCHITECTURE/*``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.shared.public_data import ServerTrainingConfig, evaluated
from protofl_plugins.shared.weights import renamed


class ArchitecturesConfig(ServerTrainingConfig):
    """Options of a method whose server averages a model of every architecture."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "weighted", description="weights n_i/n of the average, or 1/M"
    )


# --- a round --------------------------------------------------------------------------------------


@pf.hookimpl
def initial_models(server: pf.Server[Any]) -> pf.Payload:
    """Return w_g of every architecture g, as the server builds it."""
    start = pf.Payload()
    for name in architectures_of(server, server.clients):
        start.update(pf.models.pack_weights(server.build(name), f"model@{name}"))
    return start


@pf.hookimpl
def model_of(server: pf.Server[Any], client_id: int) -> pf.Payload:
    """Return w_g of the client's architecture, as ``model/*``."""
    return renamed(server.global_state, f"model@{server.clients[client_id].architecture}", "model")


@pf.hookimpl
def trained_model(client: pf.Client[Any]) -> pf.Payload:
    """Return w_i, and n_i if the mean is weighted by it."""
    payload = pf.models.pack_weights(client.module("model"), "model")
    if client.config.aggregate == "weighted":
        payload["samples"] = torch.tensor(client.num_samples)
    return payload


@pf.hookimpl
def mean_models(server: pf.Server[Any], uploads: pf.Uploads) -> pf.Payload:
    """Return w_g of every architecture of the round: the mean over its clients."""
    means = pf.Payload()
    for name in architectures_of(server, uploads):
        architecture_uploads = [
            u for c, u in uploads.items() if server.clients[c].architecture == name
        ]
        weighted = server.config.aggregate == "weighted"
        weights = torch.stack([u["samples"] for u in architecture_uploads]) if weighted else None
        mean = pf.models.average_weights(architecture_uploads, "model", weights)
        means.update(renamed(mean, "model", f"model@{name}"))
    return means


@pf.hookimpl
def known_models(server: pf.Server[Any]) -> dict[str, nn.Module]:
    """Return the model of every architecture, {architecture: model with w_g}."""
    models = {name: server.build(name) for name in architectures_of(server, server.clients)}
    for name, model in models.items():
        pf.models.load_weights(model, server.global_state, f"model@{name}")
    return dict(models)


# --- architectures and their models ---------------------------------------------------------------


def architectures_of(server: pf.Server, clients: Iterable[int]) -> list[str]:
    """Return the architectures of some clients, each once, in the clients' order."""
    return list(dict.fromkeys(server.clients[client].architecture for client in clients))


def public_logits_of(server: pf.Server, uploads: pf.Uploads) -> Tensor:
    """Return scores of all public samples by the models that clients sent, [M, N, C]."""
    models = {name: server.build(name) for name in architectures_of(server, uploads)}
    logits = []
    for client, upload in uploads.items():
        model = models[server.clients[client].architecture]
        pf.models.load_weights(model, upload, "model")
        logits.append(evaluated(model, server.public)[1])
    return torch.stack(logits)
