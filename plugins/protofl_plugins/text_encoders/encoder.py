"""Text encoders of FedTSP's server: the interface of their classes, and their use in a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import protofl as pf

BUILT_IN = {
    "tiny-text": "protofl_plugins.text_encoders.tiny_text:TinyText",
    "transformers": "protofl_plugins.text_encoders.transformers_text:Transformers",
}
"""{name: place of the class}."""


class TextEncoder:
    """A frozen text encoder. Its constructor reads sizes, and loads no weights.

    Args:
        classes: Names of the data's classes.
        feature_dim: K, for encoders of any width.
        path: A file or folder of the user, if one is given.

    Attributes:
        dim: Length of an embedding; by default K.
        token_dim: Length of a token's embedding; 0 for an encoder whose tokens can't be replaced.
        logit_scale: s; cosines with the embeddings are multiplied by e^s. The default is CLIP's.
        note: A line that runs with this encoder print.
    """

    token_dim = 0
    logit_scale = 4.6052  # ln 100
    note = ""

    def __init__(self, classes: Sequence[str], feature_dim: int, path: Path | None) -> None:
        self.dim = feature_dim

    def load(self, device: torch.device) -> None:
        """Load the weights, frozen, onto the server's device; called once in a trial."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings [n, dim] of n texts, on the encoder's device."""
        raise NotImplementedError

    def embed_prompts(self, texts: Sequence[str], prompts: Tensor) -> Tensor:
        """Return embeddings [n, dim] with a gradient for the prompts.

        Called only if ``token_dim`` is not 0.

        Args:
            texts: n texts.
            prompts: [n, m, token_dim], in place of the first m token embeddings of each text. A
                text of fewer tokens is padded.
        """
        raise NotImplementedError


class LoadedOnce:
    """The text encoder of a run, loaded on first use.

    Args:
        name: The option ``encoder``: a name of `BUILT_IN`, or the place of a class.
        path: The option ``path``.
        classes: Names of the data's classes.
        feature_dim: K.
        device: The device of the server.
        dry: True to load nothing; embeddings are then random, of the right shape.

    Raises:
        UsageError: The class can't be imported or has no consent, or its file can't be read.
    """

    def __init__(
        self,
        name: str,
        path: Path | None,
        classes: Sequence[str],
        feature_dim: int,
        device: torch.device,
        *,
        dry: bool,
    ) -> None:
        if name not in BUILT_IN and ":" not in name:
            raise pf.UsageError(
                f"--set encoder={name}: unknown text encoder",
                f"known: {', '.join(BUILT_IN)}",
                "give one of them, MODULE:CLASS or FILE.py:CLASS",
            )
        kind = pf.load_class(BUILT_IN.get(name, name))
        if not issubclass(kind, TextEncoder):
            raise pf.UsageError(
                f"--set encoder={name}: {kind.__name__} is not a text encoder",
                do=f"derive it from {TextEncoder.__module__}.TextEncoder",
            )
        self.name, self.device, self.dry, self.is_loaded = name, device, dry, False
        self.encoder = kind(classes, feature_dim, path)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings [n, dim] of texts, float32, without gradient."""
        if self.dry:
            drawn = torch.randn(len(texts), self.encoder.dim, generator=torch.Generator())
            return drawn.to(self.device)
        return self._checked(self._loaded().embed(texts), texts)

    def embed_prompts(self, texts: Sequence[str], prompts: Tensor) -> Tensor:
        """Return embeddings [n, dim] with a gradient for the prompts, [n, m, token_dim]."""
        if self.dry:
            return self.embed(texts) + prompts.mean((1, 2)).unsqueeze(1)
        return self._checked(self._loaded().embed_prompts(texts, prompts), texts)

    def _loaded(self) -> TextEncoder:
        if not self.is_loaded:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                self.encoder.load(self.device)
            self.is_loaded = True
        return self.encoder

    def _checked(self, embeddings: Tensor, texts: Sequence[str]) -> Tensor:
        expected = (len(texts), self.encoder.dim)
        if tuple(embeddings.shape) != expected or not bool(embeddings.isfinite().all()):
            raise pf.UsageError(
                f"text encoder {self.name}: expected finite embeddings of shape {expected}, got "
                f"shape {tuple(embeddings.shape)}"
                + " with NaN or infinity"
                * (embeddings.shape == expected)
            )
        return embeddings.float()
