"""Methods that implement every hook and record who calls it, for tests of composition."""

from __future__ import annotations

import torch
from runtime_toys import lines_of, make_plan
from torch import nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.composition import Composition

CALLS = []
"""(method, hook, weight in the view's config, copy of the view's state)."""


def recording(name, option):
    """Return a method that implements every hook and records who called it with which view."""

    class Recorder:
        class Config(pf.Config):
            weight: float = pf.Field(option, ge=0, description="w")

        terms = {"ce": "cross-entropy", "extra": "w"}
        downloads = {f"{name}_key": "something"}
        uploads = {f"{name}_up": "something"}

        def _note(self, hook, view):
            state = view.state
            state["calls"] = state.get("calls", 0) + 1
            CALLS.append((name, hook, view.config.weight, dict(state)))

        @pf.hookimpl
        def setup_server(self, server):
            self._note("setup_server", server)
            server.modules["net"] = nn.Linear(1, 1)
            return pf.Payload(
                {f"{name}_key": torch.full((3,), option), "shared": torch.tensor(option)}
            )

        @pf.hookimpl
        def setup_client(self, client):
            self._note("setup_client", client)
            client.add_module("own", nn.Linear(2, 2), train=False)

        @pf.hookimpl
        def download_payload(self, server, client_id):
            assert set(server.modules) == {"net"}
            CALLS.append((name, "download_payload", server.config.weight, {}))
            return pf.Payload({f"{name}_key": server.global_state[f"{name}_key"]})

        @pf.hookimpl
        def receive(self, client):
            self._note("receive", client)

        @pf.hookimpl
        def before_training(self, client):
            self._note("before_training", client)
            return {"of": name, "d": pf.per_step(torch.full((client.steps,), option))}

        @pf.hookimpl
        def local_loss(self, client, batch, output, constants):
            CALLS.append((name, "local_loss", client.config.weight, {}))
            assert constants["of"] == name
            assert set(client.modules) == {"own"}
            assert constants["d"] == option
            ce = cross_entropy(output.logits, batch.y)
            return {"ce": ce, "extra": client.config.weight * output.features.pow(2).mean()}

        @pf.hookimpl
        def after_batch(self, client, batch, output):
            self._note("after_batch", client)
            assert not output.logits.requires_grad

        @pf.hookimpl
        def after_training(self, client):
            self._note("after_training", client)

        @pf.hookimpl
        def upload_payload(self, client):
            self._note("upload_payload", client)
            random = torch.rand(2, generator=client.generator("u"))
            return pf.Payload({f"{name}_up": random})

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            self._note("server_aggregate", server)
            return {}

        @pf.hookimpl
        def server_train(self, server, uploads):
            self._note("server_train", server)
            return {"trained": torch.tensor(option)}

        @pf.hookimpl
        def inference(self, client, x):
            CALLS.append((name, "inference", client.config.weight, {}))
            return client.head(client.features(x))

        @pf.hookimpl
        def end_round(self, server):
            self._note("end_round", server)
            return {f"{name}_extra": option}

    return Recorder


A, B = recording("a", 1.0), recording("b", 2.0)
SERVER = {"setup_server", "download_payload", "server_aggregate", "server_train", "end_round"}
CLIENT_LIFE = {"setup_client", "receive", "before_training", "after_batch", "after_training"}
CLIENT = CLIENT_LIFE | {"local_loss", "upload_payload", "inference"}


def called(owner):
    """Return the hooks of a method that were called."""
    return {hook for name, hook, *_ in CALLS if name == owner}


def compose(method="a", **options):
    """Return the composition of A and B."""
    extra = {("method", "a"): A, ("method", "b"): B}
    return Composition(Registry(extra=extra), method, **options)


def run_of(**options):
    """Return the rows of a toy run of A, with B available."""
    return lines_of(make_plan("a", {"a": A, "b": B}, **options))
