"""What a sample is: an image, a series, a sequence of tokens or a row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from protofl.errors import UsageError

Kind = Literal["image", "series", "tokens", "table"]

KINDS: tuple[Kind, ...] = get_args(Kind)

PLURAL = {"image": "images", "series": "series", "tokens": "token sequences", "table": "tables"}
"""What samples of each kind are called in messages."""

_AXES = {
    "image": ("channels", "height", "width"),
    "series": ("channels", "length"),
    "tokens": ("length",),
    "table": ("features",),
}


@dataclass(frozen=True)
class SampleSpec:
    """What a sample is, as a model sees it or as a data set holds it.

    Attributes:
        shape: A sample's shape, without the batch's axis: (channels, height, width) of an image,
            (channels, length) of a series, (length,) of a token sequence, (features,) of a row of
            a table.
        kind: ``image``, ``series``, ``tokens`` or ``table``.
        vocabulary: Number of token ids V, which are 0…V-1; 0 for the other kinds.
        padding: The id that fills short token sequences up at their end; None where none does.
    """

    shape: tuple[int, ...]
    kind: Kind = "image"
    vocabulary: int = 0
    padding: int | None = None

    def __post_init__(self) -> None:
        """Check that its parts fit together."""
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is no kind of sample", f"kinds: {', '.join(KINDS)}")
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        axes = _AXES[self.kind]
        if len(self.shape) != len(axes) or min(self.shape) < 1:
            raise UsageError(
                f"{self.shape} is no shape of {PLURAL[self.kind]}",
                f"theirs is ({', '.join(axes)}), each at least 1",
            )
        if self.kind != "tokens" and (self.vocabulary or self.padding is not None):
            raise UsageError(f"{PLURAL[self.kind]} have no vocabulary and no padding")
        if self.kind == "tokens" and self.vocabulary < 2:
            raise UsageError(f"token sequences need a vocabulary, not of {self.vocabulary} ids")
        if self.padding is not None and not 0 <= self.padding < self.vocabulary:
            raise UsageError(
                f"the padding id {self.padding} is no id of the vocabulary",
                f"ids go from 0 to {self.vocabulary - 1}",
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of a batch as a model sees it: int64 for tokens, torch's default for the others."""
        return torch.int64 if self.kind == "tokens" else torch.get_default_dtype()

    def is_like(self, other: SampleSpec) -> bool:
        """Whether one preparation does for both: images of any size with the same channels."""
        if self.kind == other.kind == "image":
            return self.shape[0] == other.shape[0]
        mine = (self.kind, self.shape, self.vocabulary)
        return mine == (other.kind, other.shape, other.vocabulary)

    def zeros(self, count: int) -> Tensor:
        """A batch of ``count`` samples that are all zero, as a model sees it."""
        return torch.zeros(count, *self.shape, dtype=self.dtype)

    def __str__(self) -> str:
        """What samples are, with their size: ``images 3×32×32``, ``rows of 13 numbers``."""
        if self.kind == "tokens":
            return f"sequences of {self.shape[0]:,} tokens ({self.vocabulary:,} ids)"
        if self.kind == "table":
            return f"rows of {self.shape[0]:,} numbers"
        return f"{PLURAL[self.kind]} {'×'.join(map(str, self.shape))}"


def in_words(kinds: Sequence[str]) -> str:
    """Kinds as a phrase: ``images``, ``images or tables``."""
    words = [PLURAL[kind] for kind in kinds]
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
