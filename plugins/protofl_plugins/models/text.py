"""Nets for token sequences, with 64 features each; what the padding id fills up is left out.

- ``bag``: the mean of the tokens' embeddings, as in fastText (Joulin et al., "Bag of Tricks for
  Efficient Text Classification", EACL 2017, https://arxiv.org/abs/1607.01759).
- ``bag-mlp``: two fully connected layers on it, a deep averaging network (Iyyer et al., "Deep
  Unordered Composition Rivals Syntactic Methods for Text Classification", ACL 2015).
- ``textcnn``: convolutions over three and five tokens and their largest values (Kim,
  "Convolutional Neural Networks for Sentence Classification", EMNLP 2014,
  https://arxiv.org/abs/1408.5882).
- ``gru``: the state of a gated recurrent unit after the last token (Cho et al., EMNLP 2014,
  https://arxiv.org/abs/1406.1078).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.selectable import SelectableGroup

WIDTH = 64
"""Features of each net."""

SPREAD = 0.1
"""Standard deviation of the embeddings' first values."""


class TokenNet(nn.Module):
    """Embeddings of tokens, with a mask of padding.

    Args:
        sample: The token sequences.
        width: Numbers of an embedding, E.
    """

    def __init__(self, sample: pf.datasets.SampleSpec, width: int) -> None:
        super().__init__()
        self.padding = sample.padding
        self.embedding = nn.Embedding(sample.vocabulary, width, padding_idx=sample.padding)
        with torch.no_grad():  # torch's have deviation 1, which few samples don't unlearn
            self.embedding.weight.mul_(SPREAD)

    def real(self, x: Tensor) -> Tensor:
        """Mask B×L of real tokens, 1 for a token and 0 for padding, in the embeddings' type."""
        if self.padding is None:
            return torch.ones_like(x, dtype=self.embedding.weight.dtype)
        return (x != self.padding).to(self.embedding.weight.dtype)


class Bag(TokenNet):
    """The mean of the tokens' embeddings, B×L → B×E; 0 where all is padding."""

    def forward(self, x: Tensor) -> Tensor:
        """Σ over real tokens / their number."""
        real = self.real(x).unsqueeze(2)
        sums: Tensor = (self.embedding(x) * real).sum(1)
        return sums / real.sum(1).clamp(min=1)


class TextCNN(TokenNet):
    """Convolutions of two lengths with ReLU, their largest values over the tokens: B×L → B×96."""

    def __init__(self, sample: pf.datasets.SampleSpec, width: int = 64, filters: int = 48) -> None:
        super().__init__(sample, width)
        self.three = nn.Conv1d(width, filters, 3, padding=1)
        self.five = nn.Conv1d(width, filters, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """A window counts where its middle is a real token; ReLU's 0 stands for the others."""
        real = self.real(x).unsqueeze(1)
        embedded = (self.embedding(x).transpose(1, 2)) * real
        activations = [
            convolution(embedded).relu() * real for convolution in (self.three, self.five)
        ]
        return torch.cat(activations, 1).amax(2)


class GRU(TokenNet):
    """The state of a gated recurrent unit after the last real token, B×L → B×H."""

    def __init__(
        self, sample: pf.datasets.SampleSpec, width: int = 32, hidden: int = WIDTH
    ) -> None:
        super().__init__(sample, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Padding comes last, so no state up to the last real token has seen it."""
        states: Tensor = self.gru(self.embedding(x))[0]
        return at_last(states, self.real(x))


def last_places(real: Tensor) -> Tensor:
    """Return the place of the last real token in each text, [B], of a mask B×L; 0 without one."""
    return (real * torch.arange(real.shape[1], device=real.device)).amax(1).long()


def at_last(states: Tensor, real: Tensor) -> Tensor:
    """Return the states at the last real token, B×L×H → B×H; the mask is B×L."""
    places = last_places(real)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, places).squeeze(1)


def bag(sample: pf.datasets.SampleSpec) -> nn.Module:
    """The mean embedding: B×L → B×64."""
    return Bag(sample, WIDTH)


def bag_mlp(sample: pf.datasets.SampleSpec) -> nn.Module:
    """Two fully connected layers on the mean of embeddings of 128 numbers: B×L → B×64."""
    layers = (nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.ReLU())
    return nn.Sequential(Bag(sample, 128), *layers)


def textcnn(sample: pf.datasets.SampleSpec) -> nn.Module:
    """Convolutions over the tokens and one fully connected layer: B×L → B×64."""
    return nn.Sequential(TextCNN(sample), nn.Linear(96, WIDTH), nn.ReLU())


class TextNets(SelectableGroup):
    """Four nets for token sequences: bag of embeddings, with layers on it, CNN and GRU."""

    extractors = (
        Extractor("bag", bag, channels_last=False),
        Extractor("bag-mlp", bag_mlp, channels_last=False),
        Extractor("textcnn", textcnn, channels_last=False),
        Extractor("gru", GRU, channels_last=False),
    )
    kinds = ("tokens",)
    server_architecture = "textcnn"
    auxiliary_architecture = "bag"
