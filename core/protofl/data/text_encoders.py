"""Text encoders on the server: the interface of plugins, and their use in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from protofl.errors import UsageError

LOGIT_SCALE = 4.6052
"""The s of CLIP, ln 100, for encoders without their own."""


@dataclass(frozen=True)
class TextOutline:
    """Facts about a text encoder that are known before it is loaded.

    Attributes:
        dim: Length of an embedding.
        token_dim: Length of a token's embedding; 0 for an encoder whose tokens can't be replaced.
        logit_scale: s; cosines with its embeddings are multiplied by e^s.
        names_only: True if it takes names of classes only, not sentences.
    """

    dim: int
    token_dim: int = 0
    logit_scale: float = LOGIT_SCALE
    names_only: bool = False


class TextEncoder(Protocol):
    """A frozen text encoder, as a plugin's ``open_encoder`` returns it.

    Attributes:
        outline: Its sizes.
    """

    outline: TextOutline

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings [n, dim] of n texts, on the encoder's device."""
        ...

    def embed_prompts(self, texts: Sequence[str], prompts: Tensor) -> Tensor:
        """Return embeddings [n, dim] with a gradient for the prompts.

        Called only if ``outline.token_dim`` is not 0.

        Args:
            texts: n texts.
            prompts: [n, m, token_dim], in place of the first m token embeddings of each text. A
                text of fewer tokens is padded.
        """
        ...


class TextSource:
    """The text encoder of a run, loaded on first use.

    Args:
        name: ``NAME`` or ``NAME:PATH``, for errors.
        outline: Returns the outline without loading the encoder.
        open: Loads the encoder.
        device: The device of the server.
        dry: True to load nothing; embeddings are then random, of the right shape.
    """

    def __init__(
        self,
        name: str,
        outline: Callable[[], TextOutline | None],
        open: Callable[[], TextEncoder | None],
        device: torch.device,
        *,
        dry: bool = False,
    ) -> None:
        self.name, self.device = name, device
        self._tell, self._load, self._dry = outline, open, dry
        self._outline: TextOutline | None = None
        self._opened: TextEncoder | None = None

    @property
    def outline(self) -> TextOutline:
        """The outline of the encoder.

        Raises:
            UsageError: The encoder can't be loaded, or does not know the classes.
        """
        if self._outline is None:
            self._outline = self._tell()
        if self._outline is None:
            raise UsageError(f"text-encoder/{self.name}: outline returns None")
        return self._outline

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings [n, dim] of texts, float32, without gradient."""
        if self._dry:
            drawn = torch.randn(len(texts), self.outline.dim, generator=torch.Generator())
            return drawn.to(self.device)
        return self._checked(self._open().embed(texts), texts)

    def embed_prompts(self, texts: Sequence[str], prompts: Tensor) -> Tensor:
        """Return embeddings [n, dim] with a gradient for the prompts, [n, m, token_dim]."""
        if self._dry:
            return self.embed(texts) + prompts.mean((1, 2)).unsqueeze(1)
        return self._checked(self._open().embed_prompts(texts, prompts), texts)

    def _checked(self, embeddings: Tensor, texts: Sequence[str]) -> Tensor:
        expected = (len(texts), self.outline.dim)
        if tuple(embeddings.shape) != expected or not bool(embeddings.isfinite().all()):
            raise UsageError(
                f"text-encoder/{self.name}: expected finite embeddings of shape {expected}, got "
                f"shape {tuple(embeddings.shape)}"
                + " with NaN or infinity"
                * (embeddings.shape == expected)
            )
        return embeddings.float()

    def _open(self) -> TextEncoder:
        if self._opened is None:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                self._opened = self._load()
            if self._opened is None:
                raise UsageError(f"text-encoder/{self.name}: open_encoder returns None")
        return self._opened
