"""`causal`: a small Transformer that predicts the next token of a text, without any download.

A decoder as in GPT-2 (Radford et al., 2019): learned embeddings of tokens and places, layers of
causal attention and two linear layers, normalised first, and the embeddings of tokens again as the
last layer. It is for data whose task is ``language-model``, such as

    protofl run fedavg --models causal --dataset python-docs --set dataset.task=language-model

Outputs are the log-probabilities of the tokens of a text from the second on, each given those
before it, B×(L − 1); 0 for padding. The net has one part, and no head.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import protofl as pf


class NextTokens(nn.Module):
    """The log-probabilities of a text's tokens by a causal net, B×L → B×(L − 1).

    Args:
        net: Maps token ids B×L to scores of the next tokens, B×L×V.
        padding: The id of padding, of which the log-probability is 0; None without.
    """

    usual_targets: tuple[str, ...]

    def __init__(self, net: nn.Module, padding: int | None, usual_targets: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.padding, self.usual_targets = net, padding, usual_targets

    def forward(self, x: Tensor) -> Tensor:
        """Log p(x_{t+1} | x_1 … x_t). Padding comes last, so no token before it sees it."""
        # Not x[:, 1:], for which torch 2.6 wants a fixed batch when it exports the net.
        length = x.shape[1] - 1
        scores, tokens = self.net(x.narrow(1, 0, length)), x.narrow(1, 1, length)
        logs = -cross_entropy(scores.transpose(1, 2), tokens, reduction="none")
        return logs if self.padding is None else logs * (tokens != self.padding)

    def extra_repr(self) -> str:
        """Return the padding, so that nets that differ in it alone have different texts."""
        return f"padding={self.padding}"


class Layer(nn.Module):
    """A layer of causal attention and two linear layers, normalised first: B×L×K → B×L×K."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, z: Tensor) -> Tensor:
        """Each place attends to itself and the places before it."""
        normed = self.norms[0](z)
        q, k, v = (
            layer(normed).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        z = z + self.out(attended.transpose(1, 2).flatten(2))
        result: Tensor = z + self.feed(self.norms[1](z))
        return result


class CausalNet(nn.Module):
    """The net: token ids B×L → scores of the next tokens, B×L×V."""

    def __init__(self, sample: pf.datasets.SampleSpec, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sample.vocabulary, width)
        self.places = nn.Embedding(sample.shape[0], width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        with torch.no_grad():
            for embedding in (self.tokens, self.places):
                embedding.weight.mul_(0.02)  # as in GPT-2

    def forward(self, x: Tensor) -> Tensor:
        """The embeddings of tokens are the weights of the last layer, too."""
        z = self.layers(self.tokens(x) + self.places.weight[: x.shape[1]])
        scores: Tensor = self.norm(z) @ self.tokens.weight.T
        return scores


def check_task(group: str, sample: pf.datasets.SampleSpec) -> None:
    """Check that a net of the group can learn from such samples.

    Raises:
        UsageError: They are for another task, or texts of one token.
    """
    if sample.task.name != "language-model" or sample.shape[0] < 2:
        raise pf.UsageError(
            f"nets of {group} predict next tokens, and the data are {sample} for "
            f"{sample.task.name}",
            do="--set dataset.task=language-model, with texts of two tokens or more",
        )


def whole(extractor: nn.Module, sample: pf.datasets.SampleSpec) -> pf.models.SplitModel:
    """Return the model of a net that has no head."""
    return pf.models.SplitModel(extractor, nn.Identity(), sample.shape[0] - 1)


class Causal:
    """A small Transformer that predicts next tokens, for language models (no download)."""

    kinds = ("tokens",)
    tasks = ("language-model",)
    feature_dim = 64
    server_architecture = "causal"

    class Config(pf.Config):
        """Options of causal."""

        layers: int = pf.Field(2, ge=1, le=64, description="layers of attention")
        width: int = pf.Field(64, ge=4, le=4096, description="width of embeddings and layers")
        heads: int = pf.Field(4, ge=1, le=64, description="heads of attention, which divide width")

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """One net for all clients.

        Raises:
            UsageError: The heads do not divide the width.
        """
        own = cast(Causal.Config, config)
        if own.width % own.heads:
            raise pf.UsageError(
                f"models.width={own.width} does not divide into models.heads={own.heads}",
                f"the nearest width that does: {max(1, round(own.width / own.heads)) * own.heads}",
                "change one of them",
            )
        build = partial(_built, own.layers, own.width, own.heads)
        return [
            pf.models.Architecture("causal", build, channels_last=False, eval_batch=64, head="none")
        ]


def _built(
    layers: int,
    width: int,
    heads: int,
    sample: pf.datasets.SampleSpec,
    num_classes: int,
    feature_dim: int,
) -> pf.models.SplitModel:
    """Return a freshly drawn model; its outputs are as many as tokens are predicted."""
    check_task("causal", sample)
    net = CausalNet(sample, layers, width, heads)
    return whole(NextTokens(net, sample.padding, ("query", "value")), sample)
