"""Handwritten digits from scikit-learn: the embedded data sets, no download needed.

1,797 grey images of 8×8 pixels in 17 shades: the test part of the UCI "Optical Recognition of
Handwritten Digits" (https://archive.ics.uci.edu/dataset/80). Shade v of 0…16 becomes the pixel
round(255·v / 16). ``digits-series`` is the same read pixel by pixel, row after row: a series of 64
shades in −1…1, as sequential MNIST reads its images (Le, Jaitly and Hinton, "A Simple Way to
Initialize Recurrent Networks of Rectified Linear Units", 2015).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import protofl as pf


class Digits:
    """Handwritten digits, 1,797 images of 8×8 (scikit-learn's, embedded)."""

    # For the first run, fedsa on htfe8, to end alike with every seed and processor: each class has
    # several clients, the rate is high for a start, and plain SGD is computed fastest.
    defaults: ClassVar[dict[str, Any]] = {
        "clients": 8,
        "rounds": 3,
        "local_epochs": 3,
        "batch_size": 16,
        "lr": 0.03,
        "lr_schedule": "cosine",
        "feature_dim": 128,
        "partition": "pathological",
        "options": {
            "partition": {"classes_per_client": 4, "min_samples": 22},
            "schedule": {"over": 2, "floor": 0.33},
        },
        # Large nets take half the time on 16 pixels instead of 32. Their last stages then see 1×1
        # and normalise over the batch alone: a last batch of four samples can bring the features
        # of ResNet152 to 1e17 in evaluation mode, so such batches are dropped.
        "resized": {"drop_last": True, "options": {"models": {"min_side": 16}}},
    }

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """The data never change."""
        return "digits"

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Read scikit-learn's copy; it has no test part of its own."""
        from sklearn.datasets import load_digits

        shades, labels = load_digits(return_X_y=True)
        pixels = np.round(shades * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8)
        names = [str(digit) for digit in range(10)]
        return pf.datasets.dataset_from_arrays(
            [(pixels, labels, "scikit-learn's digits")], classes=names
        )


class DigitsDomains:
    """Handwritten digits of five domains, plain to recoloured, 1,797 images (embedded)."""

    defaults: ClassVar[dict[str, Any]] = {
        "rounds": 20, "batch_size": 16, "lr": 0.03, "feature_dim": 128, "partition": "domain",
    }  # fmt: skip

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """The data never change."""
        return "digits-domains"

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Every fifth image of a class belongs to a domain, which changes it (``domain``)."""
        from sklearn.datasets import load_digits

        shades, labels = load_digits(return_X_y=True)
        grey = (shades / 16).reshape(-1, 8, 8)
        order = np.argsort(labels, kind="stable")
        number = np.empty(len(labels), dtype=np.int64)
        number[order] = np.arange(len(labels)) % 5
        tint = np.array([[0.9, 0.3, 0.1], [0.1, 0.2, 0.6]])  # of the strokes and of the paper
        around = np.pad(grey, ((0, 0), (1, 1), (1, 1)))
        blurred = sum(around[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)) / 9
        changed = [grey, np.rot90(grey, axes=(1, 2)), 1 - grey, blurred]
        x = np.stack([*changed, grey])[number, np.arange(len(grey))][:, None].repeat(3, axis=1)
        recoloured = grey[:, None] * tint[0][:, None, None]
        recoloured = recoloured + (1 - grey[:, None]) * tint[1][:, None, None]
        x[number == 4] = recoloured[number == 4]
        names = np.array(["plain", "turned", "inverted", "blurred", "recoloured"])
        return pf.datasets.dataset_from_arrays(
            [(np.round(x * 255).astype(np.uint8), labels, "scikit-learn's digits")],
            classes=[str(digit) for digit in range(10)],
            columns={"domain": names[number]},
        )


class DigitsSeries:
    """Handwritten digits read pixel by pixel, 1,797 series of 64 (scikit-learn's, embedded)."""

    defaults: ClassVar[dict[str, Any]] = {"clients": 8, "rounds": 20, "lr": 0.05}

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """The data never change."""
        return "digits-series"

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Read scikit-learn's copy; it has no test part of its own."""
        from sklearn.datasets import load_digits

        shades, labels = load_digits(return_X_y=True)
        names = [str(digit) for digit in range(10)]
        to_unit = pf.datasets.Scaling((8,), (8,))  # shades 0…16 to −1…1
        return pf.datasets.dataset_from_arrays(
            [(shades, labels, "scikit-learn's digits")],
            classes=names,
            kind="series",
            preparation=pf.datasets.Preparation(to_unit),
        )
