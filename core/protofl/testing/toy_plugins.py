"""Toy methods (one sends prototypes, one all weights) and toy models for contracts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

import protofl as pf
from protofl.testing.toy_data import SIDE


class Prototypes:
    """Clients send prototypes, the server sends their mean, and clients are drawn to it."""

    terms = {"ce": "cross-entropy", "align": "distance to the mean prototype of the class"}
    uploads = {"prototypes": "mean features", "classes": "whose they are"}
    downloads = {"prototypes": "their mean over clients"}

    @pf.hookimpl
    def download_payload(self, server: pf.Server) -> pf.Payload:
        """Return the server's global state."""
        return server.global_state.select("prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.LossData:
        """A table of all classes."""
        if "prototypes" not in client.received:
            return {}
        table, known = client.received.table("prototypes", client.num_classes)
        return {"table": table, "known": known}

    @pf.hookimpl
    def local_loss(
        self, batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> dict[str, Tensor]:
        """Cross-entropy and the distance."""
        terms = {"ce": nn.functional.cross_entropy(output.logits, batch.y)}
        if constants:
            table, known = constants["table"], constants["known"]
            terms["align"] = pf.functional.prototype_alignment(
                output.features, batch.y, table.to(output.features), known
            )
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """Mean features."""
        return client.class_prototypes().select("prototypes")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server, uploads: Mapping[int, pf.Payload]) -> pf.Payload:
        """Return the mean of the uploads."""
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        mean, known = pf.functional.aggregate_prototypes(P, present, "uniform")
        return pf.class_rows(known, prototypes=mean)


class Weights:
    """All weights are averaged; all clients have one architecture."""

    terms = {"ce": "cross-entropy"}
    uploads = {"model/*": "the weights", "model/buffer/*": "statistics of BatchNorm"}
    downloads = uploads

    @pf.hookimpl
    def download_payload(self, server: pf.Server) -> pf.Payload:
        """The mean."""
        return pf.Payload(server.global_state)

    @pf.hookimpl
    def receive(self, client: pf.Client) -> None:
        """Take the mean over."""
        if client.received:
            pf.models.load_weights(client.module("model"), client.received, "model")

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """All weights."""
        return pf.models.pack_weights(client.module("model"), "model")

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server, uploads: Mapping[int, pf.Payload]) -> pf.Payload:
        """Return the plain mean of the uploads."""
        return pf.models.average_weights([*uploads.values()], "model")


Extractor = Callable[[pf.datasets.SampleSpec, int], nn.Module]
"""Extractors of features: {sample: K → a module}."""


Head = Callable[[int, int], nn.Module]
"""K, C → a module from features to scores."""


def _cnn(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    channels, height, width = sample.shape
    width = 4 * ((height - 2) // 2) * ((width - 2) // 2)
    convolution = [nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolution, nn.Linear(width, K), nn.Tanh())


def _norm(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    flat = [nn.Flatten(), nn.Linear(math.prod(sample.shape), K)]
    return nn.Sequential(*flat, nn.BatchNorm1d(K), nn.Tanh())


def _pixels(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    return nn.Flatten()


class _MeanEmbedding(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.embedding(x).mean(1)
        return mean


def _own_width(width: int, sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample.shape), width), nn.Tanh())


def _embedding(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    return nn.Sequential(_MeanEmbedding(sample.vocabulary, 6), nn.Linear(6, K), nn.Tanh())


class _Stages(nn.Module):
    """One or two stages; each has an exit with half of the features, and a missing one has 0."""

    def __init__(self, depth: int, sample: pf.datasets.SampleSpec, K: int) -> None:
        super().__init__()
        flat, self.width = math.prod(sample.shape), K
        first = nn.Sequential(nn.Flatten(), nn.Linear(flat, 10), nn.BatchNorm1d(10), nn.ReLU())
        second = nn.Sequential(nn.Linear(10, 9), nn.Tanh())
        self.stages = nn.ModuleList([first, second][:depth])
        self.exits = nn.ModuleList(nn.Linear(width, K // 2) for width in (10, 9)[:depth])

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for stage, leave in zip(self.stages, self.exits, strict=True):
            x = stage(x)
            rows.append(leave(x))
        z = torch.cat(rows, 1)
        return nn.functional.pad(z, (0, self.width - z.shape[1]))


class _Exits(nn.Module):
    """A classifier on each exit's half of the features."""

    def __init__(self, depth: int, K: int, C: int) -> None:
        super().__init__()
        self.width = K // 2
        self.classifiers = nn.ModuleList(nn.Linear(self.width, C) for _ in range(depth))

    def scores(self, z: Tensor) -> list[Tensor]:
        return [h(z[:, n * self.width :][:, : self.width]) for n, h in enumerate(self.classifiers)]

    def forward(self, z: Tensor) -> Tensor:
        return torch.stack(self.scores(z)).mean(0)


def _linear(K: int, C: int) -> nn.Module:
    return nn.Linear(K, C)


def _two_layers(K: int, C: int) -> nn.Module:
    return nn.Sequential(nn.Linear(K, 5), nn.ReLU(), nn.Linear(5, C))


def _log_probabilities(K: int, C: int) -> nn.Module:
    return nn.Sequential(nn.Linear(K, C), nn.LogSigmoid())


def _build(
    extractor: Extractor,
    head: Head,
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    f = extractor(sample, feature_dim)
    return pf.models.SplitModel(f, head(feature_dim, num_classes), feature_dim)


def architecture(
    name: str, extractor: Extractor, head: Head = _linear, head_widths: str = "linear"
) -> pf.models.Architecture:
    """An architecture; its evaluation batch is small, so that several are needed."""
    return pf.models.Architecture(name, partial(_build, extractor, head), False, 7, head_widths)


def group(
    *members: pf.models.Architecture,
    K: int = 8,
    side: int = SIDE,
    kinds: Sequence[str] = ("image",),
) -> type:
    """A model group plugin of these architectures."""
    taken = tuple(kinds)

    class Group:
        """Toy models."""

        kinds: tuple[str, ...] = taken
        tasks: tuple[str, ...] = pf.datasets.Task.ALL
        feature_dim: int = K
        min_side: int = side
        channels: int | None = None

        @pf.hookimpl
        def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
            """The samples unchanged."""
            return [*members]

        @pf.hookimpl
        def server_architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
            """A small one under the name that servers ask for."""
            return [architecture("resnet56", _norm)]

    return Group


CNN = architecture("cnn", _cnn)


NORM = architecture("norm", _norm)


PIXELS = architecture("pixels", _pixels)


class _Passing(nn.Module):
    """A frozen net, which passes features unchanged."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = x if x.dim() == 2 else self.inner(x)
        return features


def _frozen(sample: pf.datasets.SampleSpec, K: int) -> nn.Module:
    return _Passing(_cnn(sample, K))


FROZEN = replace(architecture("frozen", _frozen), precomputed=lambda model: model.extractor)
"""Its features are computed once, as with ``keep_features``."""


NARROW = architecture("narrow", partial(_own_width, 6))


WIDE = architecture("wide", partial(_own_width, 11))


EMBEDDING = architecture("embedding", _embedding)


TWO_LAYERS = architecture("cnn-mlp", _cnn, _two_layers, "5")


TOKENS = architecture("tokens", _cnn, _log_probabilities, "")
"""Scores are logarithms of probabilities, as those of a language model."""


EXITS = [
    architecture(
        f"exits@{depth}", partial(_Stages, depth), partial(_Exits, depth), f"exits-{depth}"
    )
    for depth in (2, 1)
]
"""One net in two depths, with an exit after each stage; for methods such as DepthFL."""
