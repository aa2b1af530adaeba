"""A method that keeps data in every place, and runs of it that are killed."""

from __future__ import annotations

import pytest
import torch
from runtime_toys import train
from torch import nn

import protofl as pf


class Killed(BaseException):
    """Simulates a signal that ends the process at once."""


class Remembering:
    """Keeps data in every place: state and modules of clients and server, and global state."""

    terms = {"ce": "cross-entropy", "pull": "towards the shared scale"}

    @pf.hookimpl
    def setup_server(self, server):
        server.modules["net"] = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        server.state["seen"] = {}

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("gate", nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
        client.add_module("fixed", nn.Linear(6, 6), train=False)

    @pf.hookimpl
    def download_payload(self, server, client_id):
        rounds = server.state["seen"].get(client_id, 0)
        return pf.Payload({k: v + rounds for k, v in server.global_state.items()})

    @pf.hookimpl
    def local_loss(self, client, batch, output, constants):
        gated = client.module("gate")(client.module("fixed")(output.features))
        pull = constants["drift"] * gated.pow(2).mean()
        return {"ce": nn.functional.cross_entropy(output.logits, batch.y), "pull": pull}

    @pf.hookimpl
    def before_training(self, client):
        client.state.setdefault("drift", 0.1)
        client.state.setdefault("rounds", {})[client.round] = torch.tensor(client.round)
        return {"drift": client.state["drift"]}

    @pf.hookimpl
    def after_training(self, client):
        shift = torch.rand((), generator=client.generator("shift")).item() / 10
        client.state["drift"] += shift + 0.01 * len(client.state["rounds"])

    @pf.hookimpl
    def upload_payload(self, client):
        return pf.Payload(drift=torch.tensor(client.state["drift"]))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        for client in uploads:
            server.state["seen"][client] = server.state["seen"].get(client, 0) + 1
        return {"drift": torch.stack([u["drift"] for u in uploads.values()]).mean()}

    @pf.hookimpl
    def server_train(self, server, uploads):
        noise = torch.rand(4, 3, generator=server.generator("noise"))
        loss = server.modules["net"](noise + server.global_state["drift"]).pow(2).sum()
        gradients = torch.autograd.grad(loss, list(server.modules["net"].parameters()))
        with torch.no_grad():
            for p, g in zip(server.modules["net"].parameters(), gradients, strict=True):
                p.sub_(0.1 * g)
        return {"loss": loss.detach()}

    @pf.hookimpl
    def end_round(self, server):
        return {k: float(v) for k, v in server.global_state.items()}


def interrupted(method, out, at, **options):
    """Start a run and kill it at the beginning of ``at``, a (trial, round)."""

    def progress(event):
        if event == pf.events.RoundStarted(*at):
            raise Killed

    with pytest.raises(Killed):
        train(method, out, progress=progress, **options)
