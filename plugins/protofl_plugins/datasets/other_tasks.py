"""Embedded data for multi-label and regression: ``digits-pairs`` and ``diabetes``.

- ``digits-pairs``: 898 grey images of 8×16 pixels, two of scikit-learn's handwritten digits beside
  each other. A sample has a label for each of the two digits: ten labels, one or two of them at
  once. Each digit image is in one pair only, so no part of a test sample is in a training sample.
- ``diabetes``: 442 patients, ten measurements (age, sex, body mass index, blood pressure, six of
  blood serum) and the progression of the disease one year later, a number from 25 to 346 (Efron,
  Hastie, Johnstone and Tibshirani, "Least Angle Regression", Annals of Statistics 2004). The
  clients are five age groups. Nets are trained on (progression − 150)/75: both numbers are round
  ones near the mean and the deviation, so no test row decides them.

Neither has a test part of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.tables import TableConfig

AGES = (35, 45, 55, 65)
"""The first ages, in years, of the second to the last age group."""


class DigitsPairs:
    """Pairs of handwritten digits, 898 images of 8×16 with ten labels (multi-label, embedded)."""

    defaults: ClassVar[dict[str, Any]] = {
        "clients": 6, "rounds": 20, "batch_size": 16, "lr": 0.3, "feature_dim": 128,
        "partition": "dirichlet",
    }  # fmt: skip

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """Return a constant key, as the data never change."""
        return "digits-pairs"

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Pair scikit-learn's digits in an order drawn once for all."""
        from sklearn.datasets import load_digits

        shades, labels = load_digits(return_X_y=True)
        pixels = np.round(shades * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
        order = np.random.default_rng(0).permutation(len(labels))[: len(labels) // 2 * 2]
        left, right = order[::2], order[1::2]
        has = np.zeros((len(left), 10), np.uint8)
        for side in (left, right):
            has[np.arange(len(side)), labels[side]] = 1
        return pf.datasets.dataset_from_arrays(
            [(np.concatenate([pixels[left], pixels[right]], 2)[:, None], has, "pairs of digits")],
            classes=[str(digit) for digit in range(10)],
            kind="image",
            task="multilabel",
        )


class Diabetes:
    """Progression of diabetes, 442 rows of 10 measurements (regression, scikit-learn's)."""

    defaults: ClassVar[dict[str, Any]] = {
        "rounds": 20, "batch_size": 16, "lr": 0.02, "partition": "column:age_group",
    }  # fmt: skip

    class Config(TableConfig):
        """Options of diabetes."""

        loss: Literal["mse", "huber"] = pf.Field(
            "mse", description="squared error, or Huber's loss with δ = 1 in units of 75"
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """Return a key of the options, as the data never change."""
        plain = "" if config.standardise else "-plain"
        return f"diabetes{plain}{'-huber' if config.loss == 'huber' else ''}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Read scikit-learn's copy; ages make the column ``age_group``."""
        from sklearn.datasets import load_diabetes

        table = load_diabetes(scaled=False)
        names = ["under 35", "35 to 44", "45 to 54", "55 to 64", "65 and over"]
        groups = np.array(names)[np.searchsorted(AGES, table.data[:, 0], side="right")]
        return pf.datasets.dataset_from_arrays(
            [(table.data, table.target, "scikit-learn's diabetes")],
            classes=["progression"],
            kind="table",
            standardise=config.standardise,
            columns={"age_group": groups},
            task=pf.datasets.Task("regression", config.loss, offset=150.0, scale=75.0),
        )
