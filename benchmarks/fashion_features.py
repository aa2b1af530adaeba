"""Write the data of ``benchmark/regimes``: 64 principal components of Fashion-MNIST's images.

    python benchmarks/fashion_features.py fashion-features.npz
    python benchmarks/fashion_features.py fashion-features.npz --data DIR

``DIR`` holds a file ``fashion-mnist*.npz``; without it the images are downloaded. All components
are divided by one number, so that they keep their relative sizes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from bench_cases import load
from sklearn.decomposition import PCA

from protofl.system.files.atomic import default_data_dir
from protofl.system.files.home import expand_user

COMPONENTS = 64


def main(words: list[str]) -> None:
    """Compute the components of all 70,000 images, training and test images alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args(words)
    data = load("fashion-mnist", given.data, expand_user(default_data_dir()))
    pixels = data.x.flatten(1).numpy().astype(np.float32) / 255
    features = PCA(COMPONENTS, svd_solver="covariance_eigh").fit_transform(pixels)
    features = (features / features.std()).astype(np.float32)
    np.savez(given.out, x_train=features, y_train=data.y.numpy(), classes=data.classes)


if __name__ == "__main__":
    main(sys.argv[1:])
