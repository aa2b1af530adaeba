"""Texts for language models: data sets whose task is to predict next tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import protofl as pf

TextTask = Literal["classification", "language-model"]
MEANING = (
    "classification of texts, or language-model: predict the next tokens, with --models causal"
)


def as_language_model(data: pf.datasets.Dataset) -> pf.datasets.Dataset:
    """Return token sequences whose task is to predict each token from those before it.

    The classes still divide the samples among clients, and nothing is trained with them.

    Args:
        data: Token sequences [N, L] with classes.

    Raises:
        UsageError: The samples are not texts of two tokens or more.
    """
    if data.sample.kind != "tokens" or data.x.shape[1] < 2:
        raise pf.UsageError(
            f"dataset.task=language-model needs texts of two tokens or more, got {data.sample}",
            do="leave it out, or choose texts",
        )
    tokens = data.x[:, 1:]
    real = tokens != data.padding if data.padding is not None else tokens.new_ones(tokens.shape) > 0
    places = [f"token {place}" for place in range(2, data.x.shape[1] + 1)]
    task = pf.datasets.Task("language-model")
    return replace(data, task=task, targets=real.float(), outputs=places, digest="")
