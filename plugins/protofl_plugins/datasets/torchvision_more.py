"""More data sets that torchvision downloads and checks, with options for their parts.

- ``emnist``: handwritten characters of 28×28 (Cohen et al., 2017); six splits. The files have them
  transposed, and they are put upright.
- ``svhn``: house numbers of 32×32 (Netzer et al., 2011).
- ``stl10``: ten classes of 96×96 (Coates et al., 2011), without the unlabelled part.
- ``gtsrb``: 43 German traffic signs (Stallkamp et al., 2012).
- ``food101``: 101 dishes (Bossard et al., 2014).
- ``dtd``: 47 textures (Cimpoi et al., 2014).

They lie in ``DATA_DIR/downloads`` as torchvision keeps them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import protofl as pf
from protofl_plugins.datasets.torchvision_sets import downloading, square_images


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

    class Config(pf.Config):
        """Options of svhn."""

        extra: bool = pf.Field(
            False, description="add the 531,131 easier digits of the extra part for training"
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The data never change, which part of them may."""
        return "svhn-extra" if config.extra else "svhn"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download the parts and join them, the training parts first."""
        from torchvision.datasets import SVHN as loader

        root, names = Path(data_dir) / "downloads", ["train", *["extra"] * config.extra, "test"]
        with downloading("svhn", loader.split_list["train"][0]):
            parts = [loader(root, name, download=True) for name in names]
        arrays = [(subset.data, subset.labels, "svhn") for subset in parts]
        return pf.datasets.dataset_from_arrays(arrays, sum(map(len, parts[:-1])), 10)


class STL10:
    """STL-10, 13,000 images of 96×96×3 in 10 classes (torchvision)."""

    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 96, 96),
        "train": (500,) * 10,
        "test": (800,) * 10,
    }

    @pf.hookimpl
    def cache_key(self, config: pf.Config, data_dir: Path) -> str:
        """Return a constant key, as the data never change."""
        return "stl10"

    @pf.hookimpl
    def decode(self, config: pf.Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download both parts and join them, the training part first."""
        from torchvision.datasets import STL10 as loader

        with downloading("stl10", loader.url):
            parts = [loader(Path(data_dir) / "downloads", p, download=True) for p in _PARTS]
        arrays = [(subset.data, subset.labels, "stl10") for subset in parts]
        return pf.datasets.dataset_from_arrays(arrays, len(parts[0]), list(parts[0].classes))


_PARTS = ("train", "test")


class SizedConfig(pf.Config):
    """Options of data sets of images of any size."""

    side: int = pf.Field(64, ge=4, le=1024, description="images become side×side pixels (bilinear)")
    fit: Literal["crop", "squash"] = pf.Field(
        "squash",
        description="squash: both sides are brought to it; crop: the shorter one is, and the "
        "middle is cut out",
    )


class _Sized:
    """Image files of any size, which become square."""

    name: ClassVar[str]
    loader: ClassVar[str]
    address: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = _PARTS  # the last one is the test part
    defaults: ClassVar[dict[str, Any]] = {}

    @pf.hookimpl
    def cache_key(self, config: SizedConfig, data_dir: Path) -> str:
        """The data never change, what is made of them may."""
        options = map(str, config.model_dump().values())
        return "-".join([self.name, *options, f"v{pf.datasets.ImageFiles.decoding}"])

    @pf.hookimpl
    def decode(self, config: SizedConfig, data_dir: Path) -> pf.datasets.Dataset:
        """Download the parts, and bring their images to one size."""
        import torchvision.datasets

        loader, further = getattr(torchvision.datasets, self.loader), self.further(config)
        root = Path(data_dir) / "downloads"
        with downloading(self.name, self.address):
            parts = [loader(root, subset, download=True, **further) for subset in self.parts]
        names = getattr(parts[0], "classes", None)
        num_train = sum(map(len, parts[:-1]))
        return square_images(self.name, parts, num_train, names, config.side, config.fit)

    def further(self, config: SizedConfig) -> dict[str, Any]:
        """Further arguments of torchvision's data set."""
        return {}


class GTSRB(_Sized):
    """GTSRB, 39,270 traffic signs in 43 classes, made square (torchvision)."""

    name = "gtsrb"
    loader = "GTSRB"
    address = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/"
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 32, 32),
        "train": (620,) * 23 + (619,) * 20,  # 26,640 in all, not evenly over classes
        "test": (294,) * 31 + (293,) * 12,
        "even": True,
    }

    class Config(SizedConfig):
        """Options of gtsrb."""

        side: int = pf.Field(
            32, ge=4, le=1024, description="images become side×side pixels (bilinear)"
        )


class Food101(_Sized):
    """Food-101, 101,000 pictures of 101 dishes, made square (torchvision)."""

    name = "food101"
    loader = "Food101"
    address = "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz"
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 64, 64),
        "train": (750,) * 101,
        "test": (250,) * 101,
    }

    class Config(SizedConfig):
        """Options of food101."""


class DTD(_Sized):
    """Describable Textures, 5,640 images in 47 classes, made square (torchvision)."""

    name = "dtd"
    loader = "DTD"
    address = "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz"
    parts = ("train", "val", "test")
    outline: ClassVar[dict[str, Any]] = {
        "shape": (3, 64, 64),
        "train": (80,) * 47,
        "test": (40,) * 47,
    }

    class Config(SizedConfig):
        """Options of dtd."""

        partition: int = pf.Field(
            1, ge=1, le=10, description="which of its ten divisions into train, val and test"
        )

    def further(self, config: SizedConfig) -> dict[str, Any]:
        """The division."""
        return {"partition": cast(DTD.Config, config).partition}
