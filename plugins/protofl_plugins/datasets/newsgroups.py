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
from protofl_plugins.datasets.texts import word_ids
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
        return f"newsgroups-2-{config.length}-{config.vocabulary}"

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
        texts, first = [*parts[0].data, *parts[1].data], len(parts[0].data)
        ids, words, note = word_ids(texts, first, config.length, config.vocabulary, "20 newsgroups")
        y = np.concatenate([np.asarray(bunch.target, np.int64) for bunch in parts])
        data = pf.datasets.dataset_from_arrays(
            [(ids, y, "20 newsgroups")],
            first,
            list(parts[0].target_names),
            kind="tokens",
            vocabulary=words.vocabulary,
            padding=words.padding,
            preparation=pf.datasets.Preparation(words=words),
        )
        data.note = "; ".join(filter(None, (note, data.note)))
        return data
