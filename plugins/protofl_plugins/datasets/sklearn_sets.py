"""Data sets that scikit-learn downloads: ``covtype`` (a table) and ``newsgroups`` (texts).

- ``covtype``: 581,012 patches of forest, 54 measurements, 7 kinds of trees
  (https://archive.ics.uci.edu/dataset/31); standardised over all rows by default.
- ``newsgroups``: 18,846 posts in 20 groups, divided by date, without headers, footers and
  quotes, as scikit-learn advises. The first ``length`` words of a post as token ids: the words that
  occur twice or more in the training part, the commonest first; 0 is padding, 1 any other word.

They lie in ``DATA_DIR/downloads`` as scikit-learn keeps them, which are pickles that it wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import protofl as pf
from protofl_plugins.datasets.tables import TableConfig
from protofl_plugins.datasets.texts import common_words
from protofl_plugins.datasets.torchvision_sets import downloading


class Covtype:
    """Forest cover types, 581,012 rows of 54 measurements in 7 classes (scikit-learn)."""

    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]] = {
        "shape": (54,),
        "train": (211840, 283301, 35754, 2747, 9493, 17367, 20510),
    }

    class Config(TableConfig):
        """Options of covtype."""

    @pf.hookimpl
    def cache_key(self, config: TableConfig, data_dir: Path) -> str:
        """Return a constant key, as the data never change."""
        return "covtype" if config.standardise else "covtype-plain"

    @pf.hookimpl
    def decode(self, config: TableConfig, data_dir: Path) -> pf.datasets.Dataset:
        """Download the table."""
        from sklearn.datasets import fetch_covtype

        with downloading("covtype", "https://ndownloader.figshare.com/files/5976039"):
            table = fetch_covtype(data_home=str(Path(data_dir) / "downloads"))
        kinds = ["spruce/fir", "lodgepole pine", "ponderosa pine", "cottonwood/willow"]
        kinds += ["aspen", "douglas-fir", "krummholz"]
        return pf.datasets.dataset_from_arrays(
            [(table.data, table.target.astype(np.int64) - 1, "covtype")],
            classes=kinds,
            kind="table",
            standardise=config.standardise,
        )


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
