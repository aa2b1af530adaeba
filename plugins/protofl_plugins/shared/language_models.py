"""The option of text data sets by which users choose language models."""

from __future__ import annotations

from typing import Literal

TextTask = Literal["classification", "language-model"]
MEANING = "classification of texts, or language-model: predict the next tokens (--models causal)"
