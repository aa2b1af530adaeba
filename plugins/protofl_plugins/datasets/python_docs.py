"""Passages of Python's own documentation: which part of the reference is a passage from?

The text is what ``help()`` shows in Python's prompt, the module ``pydoc_data.topics`` of the
standard library, so there is nothing to download. The classes are seven long topics that do not
overlap, cut into passages of ``length`` words; of every five passages the last is the test part.
Token ids number the words that occur at least twice in the training part, the commonest first; 0 is
the padding of a topic's last passage and 1 any other word.

With ``task=language-model`` the next words are predicted (``--models causal``), and the topics only
divide the passages among clients.

The text changes with the version of Python, and with it the data's digest in a run's record.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.texts import common_words

TOPICS = {
    "specialnames": "special methods",
    "compound": "compound statements",
    "types": "standard types",
    "formatstrings": "format strings",
    "string-methods": "string methods",
    "typesseq": "sequence types",
    "debugger": "debugger",
}
"""The topics' names in the module, and the classes'."""

PATTERN = "[a-z_]+"
"""The regular expression of a word: numbers are left out."""

LEAST = 8
"""Words of the shortest passage."""


class PythonDocs:
    """Passages of Python's documentation by topic, as token ids (from the standard library)."""

    defaults: ClassVar[dict[str, Any]] = {
        "clients": 8,
        "rounds": 20,
        "optimizer": "adam",
        "lr": 0.005,
    }

    class Config(pf.Config):
        """Options of python-docs."""

        length: int = pf.Field(32, ge=LEAST, le=512, description="words of a passage")
        vocabulary: int = pf.Field(
            2000, ge=100, le=100_000, description="largest number of token ids V"
        )
        task: Literal["classification", "language-model"] = pf.Field(
            "classification",
            description="classification of texts, or language-model: predict the next tokens "
            "(--models causal)",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """A digest of the text and the options."""
        options: tuple[object, ...] = (config.length, config.vocabulary)
        if config.task != "classification":
            options = (*options, config.task)
        digest = hashlib.sha256(repr(options).encode())
        for text in _topics():
            digest.update(text.encode())
        return f"python-docs-{digest.hexdigest()[:12]}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Cut the topics into passages, number the words of the training part."""
        parts: tuple[list[tuple[int, list[str]]], ...] = ([], [])
        for label, text in enumerate(_topics()):
            for number, passage in enumerate(passages(text, config.length)):
                parts[number % 5 == 4].append((label, passage))
        train, test = parts
        listed = common_words((tokens for _, tokens in train), config.vocabulary)
        tokenizer = pf.datasets.Words(listed, config.length, PATTERN)
        samples = train + test
        x = tokenizer.ids(tokens for _, tokens in samples)
        y = np.array([label for label, _ in samples], np.int64)
        data = pf.datasets.dataset_from_arrays(
            [(x, y, "pydoc_data.topics")],
            len(train),
            [*TOPICS.values()],
            kind="tokens",
            vocabulary=tokenizer.vocabulary,
            padding=tokenizer.padding,
            preparation=pf.datasets.Preparation(words=tokenizer),
            task=config.task,
        )
        data.note = f"the text is that of Python {platform.python_version()}"
        return data


def passages(text: str, length: int) -> list[list[str]]:
    """A text's words, ``length`` at a time; a last passage that is very short is left out."""
    tokens = pf.datasets.Words((), length, PATTERN).split(text)
    chunks = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    return [chunk for chunk in chunks if len(chunk) >= LEAST]


def _topics() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise pf.UsageError(
            "this Python comes without pydoc_data, the text that help() shows",
            do="install the whole standard library (on Debian: the package python3)",
        ) from None
    missing = [name for name in TOPICS if name not in topics]
    if missing:
        raise pf.UsageError(
            f"the documentation of Python {platform.python_version()} has no topic "
            f"{', '.join(missing)}",
            do="use Python 3.11 to 3.15",
        )
    return [topics[name] for name in TOPICS]
