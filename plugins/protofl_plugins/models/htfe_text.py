"""HtFE-txt-X: bags, recurrent nets and Transformers for token sequences.

HtFLlib (https://github.com/TsingZ0/HtFLlib), model families HtFE-txt-2, -4, -5-1, -5-2, -5-3 and
-6: the families of commit 302a231 (2025-03-24), which are those of the newest commit seen, e959261
(2026-04-23); the Transformer of commit 042013f (2024-09-19), which later commits left as it was;
all other nets of commit c808514 (2025-02-22). All widths are K. Nets, with E the embeddings B×L×K:

- ``logistic``: the mean of E (the classifier is the logistic regression); ``fasttext``: a linear
  layer on it (Joulin et al., EACL 2017).
- ``lstm``, ``gru``: two layers of units; the state after the last token, of ``lstm`` with ReLU.
- ``bilstm``: units in both directions, their states at the last token, a linear layer (FedNLP; its
  attention is off in HtFLlib). The reverse units have read the last token alone, so their recurrent
  weights get no gradient, as in HtFLlib for a text without padding.
- ``transformer-hH-lN``: √K·E plus positions, N layers of H heads with feed-forward layers of 2048
  units, normalised last; the features of the first position (Vaswani et al., NeurIPS 2017; Devlin
  et al., NAACL 2019).

Departures: HtFLlib reads padding as text, in ``bilstm`` with the reverse units, takes the state of
``lstm`` at the end of the longest text of a batch (0 for a shorter text), passes features of all
but ``bilstm`` and Transformers through a log-softmax, and copies one drawn layer N times. Here
padding changes no feature, features stay as they are, and layers are drawn one by one. Embeddings
of all but Transformers start smaller (see `TokenNet`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.selectable import SelectableGroup
from protofl_plugins.models.text import Bag, TokenNet, at_last

Sample = pf.datasets.SampleSpec

HIDDEN = 2048
"""Units of the feed-forward layers of a Transformer."""


def logistic(dropout: bool, sample: Sample, width: int) -> nn.Module:
    """The mean of the embeddings: B×L → B×K."""
    return Bag(sample, width)


def fasttext(dropout: bool, sample: Sample, width: int) -> nn.Module:
    """A linear layer on the mean of the embeddings: B×L → B×K."""
    return nn.Sequential(Bag(sample, width), nn.Linear(width, width))


class Recurrent(TokenNet):
    """Two layers of recurrent units, B×L → B×K.

    Args:
        kind: nn.LSTM or nn.GRU.
        dropout: True for a dropout of 0.2 between the layers and after them.
        sample: The token sequences.
        width: K.
    """

    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], dropout: bool, sample: Sample, width: int
    ) -> None:
        super().__init__(sample, width)
        self.units = kind(width, width, 2, batch_first=True, dropout=0.2 * dropout)
        self.activation = nn.ReLU() if kind is nn.LSTM else nn.Identity()
        self.dropout = nn.Dropout(0.2 * dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The state after the last token."""
        states: Tensor = self.units(self.embedding(x))[0]
        result: Tensor = self.dropout(self.activation(at_last(states, self.real(x))))
        return result


class BiLSTM(TokenNet):
    """LSTM units in both directions and a linear layer on their states, B×L → B×K."""

    def __init__(self, dropout: bool, sample: Sample, width: int) -> None:
        super().__init__(sample, width)
        self.there = nn.LSTM(width, width, batch_first=True)
        self.back = nn.LSTM(width, width, batch_first=True)
        self.last = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The states at the last token; the one of the reverse direction has read that token."""
        real, embedded = self.real(x), self.embedding(x)
        there = at_last(self.there(embedded)[0], real)
        back = self.back(at_last(embedded, real).unsqueeze(1))[0].squeeze(1)
        features: Tensor = self.last(torch.cat([there, back], 1))
        return features


class Layer(nn.Module):
    """A Transformer layer, normalised last: attention, then two fully connected layers.

    The numbers are those of ``nn.TransformerEncoderLayer``, whose faster path in evaluation would
    round differently, and whose attention engines can't map over clients.
    """

    def __init__(self, heads: int, dropout: float, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.ReLU(), nn.Dropout(dropout), nn.Linear(HIDDEN, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.projections.weight)
        nn.init.zeros_(self.projections.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """B×L×K and a mask B×L → B×L×K: softmax(q·kᵀ/√d)·v over real tokens in each head."""
        q, k, v = self.projections(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + torch.log(real)[:, None, None]
        attended = (self.dropout(scores.softmax(3)) @ v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.dropout(self.out(attended)))
        result: Tensor = self.norms[1](x + self.dropout(self.feed(x)))
        return result


class Transformer(TokenNet):
    """Transformer layers over the tokens, B×L → B×K.

    Args:
        heads: Heads H of a layer, which divide K.
        layers: Layers N.
        dropout: True for a dropout of 0.1.
        sample: The token sequences.
        width: K.

    Raises:
        UsageError: K is not a multiple of the heads.
    """

    positions: Tensor

    def __init__(self, heads: int, layers: int, dropout: bool, sample: Sample, width: int) -> None:
        if width % heads:
            raise pf.UsageError(
                f"--feature-dim {width} does not divide into the {heads} heads of this Transformer",
                f"the nearest that does: {max(heads, round(width / heads) * heads)}",
                "choose such a width, or a net with other heads: --set models.only=NET",
            )
        super().__init__(sample, width)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.scale = math.sqrt(width)
        self.layers = nn.ModuleList(Layer(heads, 0.1 * dropout, width) for _ in range(layers))
        self.dropout = nn.Dropout(0.1 * dropout)
        self.register_buffer("positions", positions(sample.shape[0], width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The features of the first position."""
        z = self.dropout(self.scale * self.embedding(x) + self.positions[: x.shape[1]])
        real = self.real(x)
        real = torch.cat([torch.ones_like(real[:, :1]), real[:, 1:]], 1)  # also of an empty text
        for layer in self.layers:
            z = layer(z, real)
        features: Tensor = z[:, 0]
        return features


def positions(length: int, width: int) -> Tensor:
    """Return sin(p/10000^(2i/K)) and the cosine in turn, L×K (Vaswani et al., Sec. 3.5)."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :width]


def _net(name: str, build: Callable[..., nn.Module]) -> Extractor:
    """A net with the dropout that its group decides on."""
    return Extractor(name, build, channels_last=False, wide=True)


def _transformer(heads: int, layers: int) -> Extractor:
    return _net(f"transformer-h{heads}-l{layers}", partial(Transformer, heads, layers))


FASTTEXT = _net("fasttext", fasttext)
LOGISTIC = _net("logistic", logistic)
LSTM = _net("lstm", partial(Recurrent, nn.LSTM))
GRU = _net("gru", partial(Recurrent, nn.GRU))
BILSTM = _net("bilstm", BiLSTM)
SIZES = (1, 2, 4, 8, 16)


class HtFETxt2(SelectableGroup):
    """FastText and logistic regression, for token sequences (HtFLlib)."""

    class Config(SelectableGroup.Config):
        """The chosen net, and dropout."""

        dropout: bool = pf.Field(
            True,
            description="dropout as published: 0.1 in Transformers, 0.2 in lstm and gru; false: "
            "none, and engines can train several clients at once",
        )

    extractors: tuple[Extractor, ...] = (FASTTEXT, LOGISTIC)
    feature_dim = 512
    kinds = ("tokens",)
    server_architecture = "fasttext"
    auxiliary_architecture = "logistic"
    untrained = {"bilstm": ("extractor.back.weight_hh_l0",)}  # as published, see above

    def members(self, config: pf.Config) -> tuple[Extractor, ...]:
        """Return the extractors with or without dropout."""
        dropout = cast(HtFETxt2.Config, config).dropout
        return tuple(replace(e, build=partial(e.build, dropout)) for e in self.extractors)


class HtFETxt4(HtFETxt2):
    """FastText, logistic regression, LSTM and BiLSTM (HtFLlib)."""

    extractors = (FASTTEXT, LOGISTIC, LSTM, BILSTM)
    server_architecture = "bilstm"


class HtFETxt51(HtFETxt2):
    """Transformers of 8 heads and 1, 2, 4, 8 and 16 layers (HtFLlib)."""

    extractors = tuple(_transformer(8, layers) for layers in SIZES)
    server_architecture = "transformer-h8-l16"
    auxiliary_architecture = "transformer-h8-l1"


class HtFETxt52(HtFETxt2):
    """Transformers of 4 layers and 1, 2, 4, 8 and 16 heads (HtFLlib)."""

    extractors = tuple(_transformer(heads, 4) for heads in SIZES)
    server_architecture = "transformer-h8-l4"
    auxiliary_architecture = "transformer-h1-l4"


class HtFETxt53(HtFETxt2):
    """Transformers of 1, 2, 4, 8 and 16 heads and as many layers (HtFLlib)."""

    extractors = tuple(_transformer(size, size) for size in SIZES)
    server_architecture = "transformer-h16-l16"
    auxiliary_architecture = "transformer-h1-l1"


class HtFETxt6(HtFETxt2):
    """FastText, LSTM, BiLSTM, Transformer, logistic regression and GRU (HtFLlib)."""

    extractors = (FASTTEXT, LSTM, BILSTM, _transformer(8, 2), LOGISTIC, GRU)
    server_architecture = "transformer-h8-l2"
