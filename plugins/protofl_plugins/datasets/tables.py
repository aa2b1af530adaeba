"""Tables from scikit-learn, embedded there: no download needed.

- ``wine``: 178 Italian wines of three cultivars, 13 chemical measurements
  (https://archive.ics.uci.edu/dataset/109).
- ``breast-cancer``: 569 tumours, benign or malignant, 30 measurements of cell nuclei: the Wisconsin
  Diagnostic Breast Cancer data (https://archive.ics.uci.edu/dataset/17).

Their columns differ in scale by four orders of magnitude, so they are standardised: mean 0 and
standard deviation 1 over all rows. Neither has a test part of its own, so the rows that clients are
tested on count among them; ``standardise=false`` leaves the numbers as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import protofl as pf


class TableConfig(pf.Config):
    """Options of scikit-learn's tables."""

    standardise: bool = pf.Field(
        True,
        description="bring every column to mean 0 and standard deviation 1 over all rows; false "
        "leaves the numbers as they are",
    )


class _Table:
    name: ClassVar[str]

    @pf.hookimpl
    def cache_key(self, config: TableConfig, data_dir: Path) -> str:
        """Return a constant key, as the data never change."""
        return self.name if config.standardise else f"{self.name}-plain"

    @pf.hookimpl
    def decode(self, config: TableConfig, data_dir: Path) -> pf.datasets.Dataset:
        """Read scikit-learn's copy."""
        from sklearn import datasets

        table = getattr(datasets, f"load_{self.name.replace('-', '_')}")()
        return pf.datasets.dataset_from_arrays(
            [(table.data, table.target, f"scikit-learn's {self.name}")],
            classes=[str(name) for name in table.target_names],
            kind="table",
            standardise=config.standardise,
        )


class Wine(_Table):
    """Wines of three cultivars, 178 rows of 13 measurements (scikit-learn's, embedded)."""

    name = "wine"
    defaults: ClassVar[dict[str, Any]] = {"clients": 4, "rounds": 20, "lr": 0.05}

    class Config(TableConfig):
        """Options of wine."""


class BreastCancer(_Table):
    """Benign and malignant tumours, 569 rows of 30 measurements (scikit-learn's, embedded)."""

    name = "breast-cancer"
    defaults: ClassVar[dict[str, Any]] = {"clients": 8, "rounds": 20, "lr": 0.05}

    class Config(TableConfig):
        """Options of breast-cancer."""
