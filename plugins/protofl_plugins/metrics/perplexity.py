"""Perplexity of language models."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

import protofl as pf


class Perplexity:
    """Perplexity of the next tokens (language models); lower is better."""

    tasks: ClassVar = ("language-model",)
    usual_for = "language-model"

    @pf.hookimpl
    def count(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count −Σ log p of the tokens that are not padding, and these tokens, [2]."""
        losses = torch.where(labels > 0, -scores.double(), 0.0)
        return torch.stack([losses.sum(), (labels > 0).sum().double()])

    @pf.hookimpl
    def value(self, counts: Tensor) -> Tensor:
        """Return exp(−Σ log p / tokens)."""
        return (counts[0] / counts[1]).exp()
