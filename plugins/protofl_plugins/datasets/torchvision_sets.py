"""Data sets that torchvision downloads and checks.

``emnist`` (Cohen et al., 2017): torchvision's files have the characters transposed, and they are
put upright. They lie in ``DATA_DIR/downloads`` as torchvision keeps them.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.image_files import decode_images

TIMEOUT = 30.0  # seconds; torchvision itself would wait for an answer without end


class _Arrays:
    """A data set that torchvision holds as one array of images."""

    name: ClassVar[str]
    loader: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]]  # its sizes, which are known before it is downloaded

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """Return a constant key, as the data never change."""
        return self.name

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download both parts and join them, the training part first."""
        import torchvision.datasets

        loader = getattr(torchvision.datasets, self.loader)
        root = Path(data_dir) / "downloads"
        with downloading(self.name, getattr(loader, "url", None) or loader.mirrors[0]):
            parts = [loader(root, train=train, download=True) for train in (True, False)]
        arrays = [(np.asarray(p.data), np.asarray(p.targets), self.name) for p in parts]
        return pf.datasets.dataset_from_arrays(arrays, len(arrays[0][0]), list(parts[0].classes))


class MNIST(_Arrays):
    """MNIST, 70,000 handwritten digits of 28×28 (torchvision)."""

    name = "mnist"
    loader = "MNIST"
    outline: ClassVar[dict[str, Any]] = {
        "shape": (1, 28, 28),
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    }


class FashionMNIST(_Arrays):
    """Fashion-MNIST, 70,000 pieces of clothing of 28×28 (torchvision)."""

    name = "fashion-mnist"
    loader = "FashionMNIST"
    outline: ClassVar[dict[str, Any]] = {
        "shape": (1, 28, 28),
        "train": (6000,) * 10,
        "test": (1000,) * 10,
    }


class CIFAR10(_Arrays):
    """CIFAR-10, 60,000 images of 32×32×3 in 10 classes (torchvision)."""

    name = "cifar10"
    loader = "CIFAR10"
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 32, 32),
        "train": (5000,) * 10,
        "test": (1000,) * 10,
    }


class CIFAR100(_Arrays):
    """CIFAR-100, 60,000 images of 32×32×3 in 100 classes (torchvision)."""

    name = "cifar100"
    loader = "CIFAR100"
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 32, 32),
        "train": (500,) * 100,
        "test": (100,) * 100,
    }


class EMNIST:
    """EMNIST, handwritten letters and digits of 28×28, by split (torchvision)."""

    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]] = {
        "shape": (1, 28, 28),
        "train": (2400,) * 47,
        "test": (400,) * 47,
    }

    class Config(pf.Config):
        """Options of emnist."""

        split: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = pf.Field(
            "balanced",
            description="balanced: 131,600 of 47 classes; byclass: 814,255 of 62; bymerge: 814,255 "
            "of 47; letters: 145,600 of 26; digits: 280,000 of 10; mnist: 70,000 of 10",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The data never change, which split of them may."""
        return f"emnist-{config.split}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download both parts and join them, the training part first."""
        from torchvision.datasets import EMNIST as loader

        root = Path(data_dir) / "downloads"
        with downloading("emnist", loader.url):
            parts = [loader(root, config.split, train=t, download=True) for t in (True, False)]
        first = int(config.split == "letters")  # torchvision numbers the letters from 1 on
        arrays = [
            (p.data.numpy().transpose(0, 2, 1), p.targets.numpy() - first, "emnist") for p in parts
        ]
        names = list(parts[0].classes)[first:]
        return pf.datasets.dataset_from_arrays(arrays, len(parts[0]), names)


class SVHN:
    """SVHN, 99,289 house numbers of 32×32×3 in 10 classes (torchvision)."""

    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 32, 32),
        "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    }

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """Return a constant key, as the data never change."""
        return "svhn"

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download both parts and join them, the training part first."""
        from torchvision.datasets import SVHN as loader

        root = Path(data_dir) / "downloads"
        with downloading("svhn", loader.split_list["train"][0]):
            parts = [loader(root, name, download=True) for name in ("train", "test")]
        arrays = [(subset.data, subset.labels, "svhn") for subset in parts]
        return pf.datasets.dataset_from_arrays(arrays, len(parts[0]), 10)


class Flowers102:
    """Oxford Flowers-102, 8,189 images in 102 classes, made square (torchvision)."""

    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 64, 64),
        "train": (20,) * 102,
        "test": (61,) * 29 + (60,) * 73,  # 6,149 in all, not evenly over classes
        "even": True,
    }

    class Config(pf.Config):
        """Options of flowers102."""

        side: int = pf.Field(
            64,
            ge=4,
            le=1024,
            description="images become side×side pixels (bilinear), as in published code",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The data never change, their size may."""
        default = type(config).model_fields["side"].default
        side = "" if config.side == default else f"-{config.side}"
        return f"flowers102-squash{side}-v{pf.datasets.ImageFiles.decoding}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download; the training part is torchvision's train and val, the test part its test."""
        from torchvision import datasets

        loader = datasets.Flowers102
        root = Path(data_dir) / "downloads"
        with downloading("flowers102", loader._download_url_prefix):
            splits = [loader(root, split, download=True) for split in ("train", "val", "test")]
        num_train = len(splits[0]) + len(splits[1])
        names = getattr(loader, "classes", 102)  # torchvision 0.21 has no names: numbers then
        samples = [(split, index) for split in splits for index in range(len(split))]
        y = np.empty(len(samples), np.int64)

        def image_of(row: int) -> tuple[Any, str]:
            split, index = samples[row]
            image, y[row] = split[index]
            return image, f"flowers102, image {index}"

        images = decode_images(len(samples), image_of, config.side, "squash")
        data = pf.datasets.dataset_from_arrays([(images.x, y, "flowers102")], num_train, names)
        return replace(data, note="; ".join(filter(None, [data.note, *images.notes])))


@contextlib.contextmanager
def downloading(name: str, address: str) -> Iterator[None]:
    """Word torchvision's errors, bound its waiting, keep its prints off standard output."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about the age of CIFAR's files
            yield
    except (OSError, RuntimeError, EOFError) as error:
        raise pf.UsageError(
            f"{name} cannot be downloaded: {' '.join(str(error).split()) or type(error).__name__}",
            f"address: {address}",
            "check the connection; without internet, save its arrays elsewhere: --dataset npz:FILE",
        ) from error
    finally:
        socket.setdefaulttimeout(before)
