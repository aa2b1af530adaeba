"""20 Newsgroups, which scikit-learn downloads: posts in 20 groups, divided by date.

Posts come without headers, footers and quotes, as scikit-learn advises. The first ``length`` words
of a post are token ids: the words that occur twice or more in the training part, the commonest
first; 0 is padding, 1 any other word. The download lies in ``DATA_DIR/downloads`` as scikit-learn
keeps it, which is a pickle that it wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import protofl as pf
from protofl_plugins.datasets.texts import common_words
from protofl_plugins.datasets.torchvision_sets import downloading


class Newsgroups:
    """20 Newsgroups, 18,846 posts as token ids (scikit-learn)."""

    defaults: ClassVar[dict[str, Any]] = {"optimizer": "adam", "lr": 0.001}

    class Config(pf.Config):
        """Options of newsgroups."""

        length: int = pf.Field(200, ge=8, le=10_000, description="words of a post that are read")
        vocabulary: int = pf.Field(
            32_000, ge=100, le=1_000_000, description="largest number of token ids V"
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The data never change, what is made of them may."""
        return f"newsgroups-{config.length}-{config.vocabulary}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download both parts, number the words of the training part."""
        from sklearn.datasets import fetch_20newsgroups

        home = str(Path(data_dir) / "downloads")
        without = ("headers", "footers", "quotes")
        with downloading("newsgroups", "https://ndownloader.figshare.com/files/5975967"):
            parts = [
                fetch_20newsgroups(data_home=home, subset=subset, remove=without, shuffle=False)
                for subset in ("train", "test")
            ]
        tokens = [
            [pf.datasets.Words.split(text)[: config.length] for text in bunch.data]
            for bunch in parts
        ]
        numbers = pf.datasets.Words(common_words(tokens[0], config.vocabulary), config.length)
        arrays = [
            (numbers.ids(sample_tokens), np.asarray(bunch.target, np.int64), "20 newsgroups")
            for sample_tokens, bunch in zip(tokens, parts, strict=True)
        ]
        return pf.datasets.dataset_from_arrays(
            arrays,
            len(tokens[0]),
            list(parts[0].target_names),
            kind="tokens",
            vocabulary=numbers.vocabulary,
            padding=numbers.padding,
            preparation=pf.datasets.Preparation(words=numbers),
        )
