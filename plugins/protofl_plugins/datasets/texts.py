"""Texts as token ids, by the words or the characters that occur."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

import protofl as pf


def common_words(texts: Iterable[Sequence[str]], vocabulary: int) -> tuple[str, ...]:
    """Return the words that occur twice or more, the commonest first, for ``vocabulary`` ids."""
    counts = Counter(word for tokens in texts for word in tokens)
    common = sorted((-count, word) for word, count in counts.items() if count > 1)
    return tuple(word for _, word in common[: vocabulary - 2])


def word_ids(
    texts: Sequence[str], num_train: int, length: int, vocabulary: int, source: str
) -> tuple[np.ndarray, pf.datasets.Words, str]:
    """Number the words of texts.

    Args:
        texts: Texts [N], training texts first.
        num_train: Number of training texts; only their words get ids of their own.
        length: Words of a sample, L; what a text has beyond them is cut off.
        vocabulary: Largest number of ids V.
        source: The origin, for errors.

    Returns:
        Token ids [N, L] int64, the numbering, and a note that counts texts without a word.

    Raises:
        UsageError: No word occurs twice in the training texts.
    """
    words = pf.datasets.Words((), length)
    tokens = [words.split(text) for text in texts]
    listed = common_words(tokens[:num_train], vocabulary)
    if not listed:
        raise pf.UsageError(
            f"{source}: no word occurs twice in the {num_train:,} training texts",
            "words are letters of any alphabet, digits and _",
            "give more texts, or another column",
        )
    words = replace(words, words=listed)
    empty = sum(not found for found in tokens)
    note = f"{empty:,} of {len(texts):,} texts are empty: no letter and no digit" if empty else ""
    return words.ids(tokens), words, note
