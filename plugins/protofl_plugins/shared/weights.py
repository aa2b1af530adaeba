"""Weights that clients send and the server averages: options, and the steps of a round.

    server    w ← Σ_i (n_i / n) · w_i        (FedPKD Eq. 1)

The weights of a module travel as ``NAME/*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

import protofl as pf


class SharingConfig(pf.Config):
    """Weights of clients in the mean."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "weighted", description="weights n_i/n of the average, or 1/M"
    )


class BuffersConfig(pf.Config):
    """BatchNorm statistics in the mean."""

    buffers: Literal["average", "local"] = pf.Field(
        "average", description="average BatchNorm statistics too, or keep them on the client"
    )


class ModelSharingConfig(BuffersConfig, SharingConfig):
    """Options of the aggregation of whole models."""


class ScopeConfig(pf.Config):
    """The clients that share a model."""

    scope: Literal["all", "architecture"] = pf.Field(
        "all",
        description="one model for all clients, or one for each architecture, which clients with "
        "different architectures need (FedDF, algorithm 3, without distillation)",
    )


UPLOADS = {
    "model/*": "the whole model after local training; gradients can be inverted from it",
    "samples": "n_i, the number of training samples",
}
DOWNLOADS = {"model/*": "the average of the clients' models"}
"""Keys of a method whose clients share one model."""


# --- before the run -------------------------------------------------------------------------------


def unequal_models(run: pf.RunInfo) -> list[str]:
    """Return the reason why clients can't share one model: they have several architectures."""
    if run.homogeneous:
        return []
    names = ", ".join(a.name for a in run.architectures)
    one = "--models cnn4, resnet18"
    if run.sample.kind != "image":
        one = f"--set models.only={run.architectures[0].name}"
    return [
        f"it averages whole models, and the clients have {len(run.architectures)} "
        f"architectures ({names}); a homogeneous group works ({one}), or a "
        "method for heterogeneous models (fedproto, fedtgp, fedsa)"
    ]


def unequal_extractors(run: pf.RunInfo) -> list[str]:
    """Return the reason why clients can't share one extractor: they have several architectures."""
    if run.homogeneous:
        return []
    names = ", ".join(a.name for a in run.architectures)
    return [
        f"it averages feature extractors, and the clients have {len(run.architectures)} "
        f"architectures ({names}); a homogeneous group works (--models cnn4, resnet18), or a "
        "method that shares heads (lg-fedavg)"
    ]


def unequal_heads(run: pf.RunInfo) -> list[str]:
    """Return the reason why clients can't share one head: their heads have several shapes."""
    if run.one_head:
        return []
    heads = ", ".join(dict.fromkeys(a.head for a in run.architectures))
    return [
        f"it gives all clients one head, and the clients of {run.group} have different heads "
        f"({heads}); a group with one head works (--models htfe8, htcnn8), or a method that shares "
        "no head (feddistill, fml, fedproto)"
    ]


def tied_parts(run: pf.RunInfo) -> list[str]:
    """Return the reason why clients can't share one part: its weights are another's, too."""
    for architecture in run.architectures:
        model = run.unset_model(architecture)
        of_head = {id(p): name for name, p in model.head.named_parameters()}
        for name, p in model.extractor.named_parameters():
            if id(p) in of_head:
                return [
                    f"it shares one part of the model alone, and {architecture.name} has one "
                    f"tensor in both (extractor.{name}, head.{of_head[id(p)]}): without tied "
                    "weights it works, or a method that shares whole models (fedavg)"
                ]
    return []


def built_model(server: pf.Server[Any]) -> pf.models.SplitModel:
    """Return the model of the first client's architecture, with the initial weights."""
    return server.build(server.clients[0].architecture)


# --- a round --------------------------------------------------------------------------------------


def averages_buffers(config: pf.Config) -> bool:
    """Return True if BatchNorm statistics travel; with ``buffers=local`` they stay on clients."""
    return not isinstance(config, BuffersConfig) or config.buffers == "average"


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return tensors as one vector: a few operations for any number of layers, and vmap's rule."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def sharing(server: pf.Server[Any], clients: Iterable[int]) -> dict[str, list[int]]:
    """Return the clients that share a model, by the end of its key in the global state.

    The end is ``@ARCHITECTURE`` with ``scope=architecture``, and empty for one model of all.
    """
    config = server.config
    if not isinstance(config, ScopeConfig) or config.scope == "all":
        return {"": [*clients]}
    groups: dict[str, list[int]] = {}
    for client in clients:
        groups.setdefault(f"@{server.clients[client].architecture}", []).append(client)
    return groups


def renamed(tensors: Mapping[str, Tensor], old: str, new: str) -> pf.Payload:
    """Return the tensors ``OLD/*`` as ``NEW/*``."""
    selected = pf.Payload(tensors).select(f"{old}/*")
    return pf.Payload({f"{new}/{n.removeprefix(f'{old}/')}": t for n, t in selected.items()})


def shared_model(
    server: pf.Server[Any], model: nn.Module | None = None, key: str = "model"
) -> dict[str, nn.Module]:
    """Return a model with the server's weights, as the only global model.

    None if its BatchNorm statistics stay on the clients, as it can't predict without them.

    Args:
        server: The server.
        model: Gets the weights; None for the first client's architecture.
        key: The weights are ``KEY/*`` in the global state.
    """
    model = built_model(server) if model is None else model
    if not averages_buffers(server.config) and any(True for _ in model.buffers()):
        return {}
    pf.models.load_weights(model, server.global_state, key)
    return {key.removeprefix("model@"): model}


def install(client: pf.Client[Any], name: str) -> None:
    """Copy the received weights into the client's module; does nothing without them."""
    if client.received.under(name):
        pf.models.load_weights(client.module(name), client.received, name)


class SharedWeights:
    """Hooks of methods whose clients share the weights w of a module, as ``NAME/*``.

    A method takes each of them by name: ``receive = weights.MODEL.receive``.

    Args:
        name: The name of the clients' module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Any], client_id: int) -> pf.Payload:
        """Send w."""
        (end,) = sharing(server, [client_id])
        return renamed(server.global_state, f"{self._name}{end}", self._name)

    @pf.hookimpl
    def receive(self, client: pf.Client[Any]) -> None:
        """Install w: w_i ← w."""
        install(client, self._name)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Any]) -> pf.Payload:
        """Send w_i and n_i."""
        buffers = averages_buffers(client.config)
        w_i = pf.models.pack_weights(client.module(self._name), self._name, buffers=buffers)
        return pf.Payload(w_i, samples=torch.tensor(client.num_samples))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Any], uploads: pf.Uploads) -> pf.Payload:
        """Average: w ← Σ_i (n_i / n) · w_i over the round's clients; 1/M for n_i/n if uniform."""
        means = pf.Payload()
        for end, clients in sharing(server, uploads).items():
            sent = [uploads[client] for client in clients]
            samples = torch.stack([upload["samples"] for upload in sent])
            weights = None if server.config.aggregate == "uniform" else samples
            mean = pf.models.average_weights(sent, self._name, weights)
            means.update(renamed(mean, self._name, f"{self._name}{end}"))
        return means


class SharedPart(SharedWeights):
    """Hooks of methods whose clients share the model, its head or its extractor.

    Args:
        name: ``model``, ``head`` or ``extractor``.
        unequal: Returns the reason why the clients' weights have no mean.
    """

    def __init__(self, name: str, unequal: Callable[[pf.RunInfo], list[str]]) -> None:
        super().__init__(name)
        self._unequal = unequal

    @pf.hookimpl
    def requires(self, run: pf.RunInfo, config: pf.Config) -> list[str]:
        """Require weights of the same shapes, and none that lie in a part that stays."""
        tied = [] if self._name == "model" else tied_parts(run)
        if not isinstance(config, ScopeConfig):
            return self._unequal(run) or tied
        if config.scope == "architecture":
            return tied
        return [f"{reason}; or --set scope=architecture" for reason in self._unequal(run)] or tied

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Any]) -> pf.Payload:
        """Build w, with the initial weights of the first client's architecture."""
        start = pf.Payload()
        for end, (first, *_) in sharing(server, server.clients).items():
            model = server.build(server.clients[first].architecture)
            part = model if self._name == "model" else getattr(model, self._name)
            buffers = averages_buffers(server.config)
            start.update(pf.models.pack_weights(part, f"{self._name}{end}", buffers=buffers))
        return start

    @pf.hookimpl
    def global_models(self, server: pf.Server[Any]) -> dict[str, nn.Module]:
        """Evaluate the model with w on the global test samples."""
        models: dict[str, nn.Module] = {}
        for end, (first, *_) in sharing(server, server.clients).items():
            model = server.build(server.clients[first].architecture)
            models.update(shared_model(server, model, f"model{end}"))
        return models


MODEL = SharedPart("model", unequal_models)
HEAD = SharedPart("head", unequal_heads)
EXTRACTOR = SharedPart("extractor", unequal_extractors)
