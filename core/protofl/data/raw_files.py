"""Files as samples: the words of texts and their numbering, and the pixels of images."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from protofl.errors import UsageError

__all__ = ["ImageFiles", "Words"]

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
_UNSPACED += "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese characters: no spaces divide their words."""

_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u0963\u0966-\u0dff"
"""Accents, and the vowels of Hebrew, Arabic and Indian scripts, which ``\\w`` does not match."""

WORDS = rf"\d+(?:[.,]\d+)+|[{_UNSPACED}]|(?:[^\W{_UNSPACED}]|[{_MARKS}])+"
"""A number with decimals, a character of a script without spaces, or letters, digits and ``_``."""


@dataclass(frozen=True)
class Words:
    """The numbering of words: a text becomes the ids of its first words.

    Words are found in the text in lower case and in the Unicode form NFKC. Id 0 is padding, id 1
    any word that is not listed, and ids from 2 on are the listed words.

    Attributes:
        words: The listed words in the order of their ids.
        length: Token ids of a sample; longer texts are cut, shorter ones padded.
        pattern: The regular expression of a word. By default, a word consists of letters of any
            alphabet, digits and ``_``; a number has its decimals; in scripts without spaces, such
            as Chinese, each character is a word.
    """

    words: tuple[str, ...]
    length: int
    pattern: str = WORDS
    padding = 0
    unknown = 1

    def __post_init__(self) -> None:
        """Check the words."""
        object.__setattr__(self, "words", tuple(self.words))
        if len({*self.words}) < len(self.words) or not all(isinstance(w, str) for w in self.words):
            raise UsageError("a vocabulary with a word that occurs twice, or that is not a text")
        if self.length < 1:
            raise UsageError(f"token sequences of the length {self.length}")
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise UsageError(f"the pattern {self.pattern!r} of words is invalid: {error}") from None

    @property
    def vocabulary(self) -> int:
        """The number of token ids V, with those of padding and of words that are not listed."""
        return len(self.words) + 2

    def split(self, text: str) -> list[str]:
        """Return the words of a text, in order."""
        return re.findall(self.pattern, unicodedata.normalize("NFKC", text).lower())

    def ids(self, texts: Iterable[Sequence[str]]) -> np.ndarray:
        """Return the token ids [N, length] int64 of N texts, each a list of words."""
        numbers = {word: number + 2 for number, word in enumerate(self.words)}
        rows = [[numbers.get(word, self.unknown) for word in text[: self.length]] for text in texts]
        result = np.full((len(rows), self.length), self.padding, np.int64)
        for row, tokens in zip(result, rows, strict=True):
            row[: len(tokens)] = tokens
        return result


Background = Literal["white", "black", "grey"]


@dataclass(frozen=True)
class ImageFiles:
    """How image files become pixels.

    Attributes:
        black: The number of an image with more than 8 bits or of floats that becomes 0; None if
            there are no such images.
        white: The number that becomes 255.
        background: The colour on which images with transparency are laid.
        decoding: The version of the decoding, which data sets put into their cache keys. It is
            raised whenever pixels change.
    """

    decoding: ClassVar[str] = "2"
    black: float | None = None
    white: float | None = None
    background: Background = "white"

    def __post_init__(self) -> None:
        """Check the numbers."""
        if (self.black is None) != (self.white is None):
            raise UsageError(
                f"black={self.black}, white={self.white}: one number of the range is missing",
                do="give both: the numbers that become 0 and 255",
            )
        for name in ("black", "white"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))
        if self.black is not None and self.white is not None:
            if not (math.isfinite(self.black) and math.isfinite(self.white)):
                raise UsageError("black and white are not finite numbers")
            if self.black == self.white:
                raise UsageError(f"black and white are both {self.black:g}", do="give a range")
        if self.background not in get_args(Background):
            raise UsageError(
                f"background={self.background!r}", f"possible: {', '.join(get_args(Background))}"
            )

    def __str__(self) -> str:
        """Return a line for the user."""
        notes = []
        if self.black is not None:
            notes.append(f"numbers {self.black:g}…{self.white:g} of image files become 0…255")
        if self.background != "white":
            notes.append(f"transparent images are laid on {self.background}")
        return ", ".join(notes)
