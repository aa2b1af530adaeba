"""Centralised: all training data in one place, one net of each architecture.

The upper bound of a comparison: what could be reached if data might leave the clients. It is not
federated learning and protects nothing.

    round 1   every client sends all of its training samples D_i
    server    min over w_g of  E_{(x, y) ~ ∪_i D_i} ℓ(w_g; x, y), for every architecture g
    client    infers by w_g of its architecture

In every round the server trains each w_g with the clients' optimiser, learning rate and batch size;
the clients train nothing. A client that has not sent its samples yet sends them with its first
upload.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.engines.server_steps import minimise
from protofl_plugins.shared import architecture_models, weights


class Centralised:
    """All training data in one place, one net of each architecture: the upper bound."""

    class Config(pf.Config):
        """Options."""

        epochs: int = pf.Field(
            1,
            ge=0,
            description="passes of the server over all samples in a round; 0 trains nothing",
        )

    tasks = pf.datasets.Task.ALL
    native_widths = True
    uploads = {
        "inputs": pf.Key(
            "[s, …]",
            "ALL training samples of the client, as its model sees them",
            reveals="all training samples, exactly",
        ),
        "labels": pf.Key(
            "[s] int",
            "their labels; of other tasks [s, C] floats",
            reveals="the labels of all training samples, exactly",
        ),
    }
    upload_rules = {"inputs": "optional", "labels": "optional"}  # a client sends them once
    downloads = {
        "model/*": "the model of the client's architecture, trained on all data",
        "kept": pf.Key("[] int", "that the server has the client's samples"),
    }

    @pf.hookimpl
    def phases(self) -> list[pf.Phase]:
        """Train nothing on clients; they are evaluated with this round's models."""
        return [pf.Phase("none", when="after_server", terms=("none",))]

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send w_g of the client's architecture; nothing before it is trained."""
        payload = architecture_models.model_of(server, client_id)
        if f"samples@{client_id}/labels" in server.global_state:
            payload["kept"] = torch.tensor(1)
        return payload

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install w_g."""
        if client.received.select("model/*"):
            weights.MODEL.receive(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send all training samples, once."""
        if "kept" in client.received.keys():
            return pf.Payload()
        return pf.Payload({"inputs": client.train.inputs(), "labels": client.train.y})

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Keep the samples of the clients."""
        return pf.Payload(
            {
                f"samples@{client}/{name}": upload[name]
                for client, upload in uploads.items()
                if "labels" in upload
                for name in ("inputs", "labels")
            }
        )

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Train w_g of every architecture on all samples that were sent."""
        state = server.global_state
        held = [c for c in server.clients if f"samples@{c}/labels" in state]
        held = held or [0]  # without any, the error names the key that is missing
        x = torch.cat([state[f"samples@{c}/inputs"] for c in held])
        y = torch.cat([state[f"samples@{c}/labels"] for c in held])
        trained = pf.Payload()
        for name in architecture_models.architectures_of(server, server.clients):
            model = server.build(name)
            if any(key.startswith(f"model@{name}/") for key in state):
                pf.models.load_weights(model, state, f"model@{name}")
            _train(server, model, x, y, name)
            trained.update(pf.models.pack_weights(model, f"model@{name}"))
        return trained

    global_models = staticmethod(architecture_models.known_models)


def _train(
    server: pf.Server[Any], model: pf.models.SplitModel, x: Tensor, y: Tensor, name: str
) -> None:
    """Train a model on all samples [n, …] with labels [n] or [n, C]."""
    generator, batches = server.generator(f"shuffle {name}"), list[Tensor]()
    for _ in server.epochs(server.config.epochs):
        batches += server.batches(len(y), generator)
    model.train(len(y) >= server.least_batch)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return server.task.loss(model.head(model.features(x)), y)

    optimizer = server.optimizer(model.parameters())
    with torch.enable_grad():
        minimise(server, loss, optimizer, batches, of=(x, y), changes=[*model.buffers()], name=name)
    model.eval()
