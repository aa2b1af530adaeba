"""Tiny-ImageNet: 200 classes of 64×64 images, from the official archive (248 MB).

Stanford's CS231n course, http://cs231n.stanford.edu/tiny-imagenet-200.zip: 100,000 training images
and, as test part, the 10,000 validation images (the test images have no labels). Classes are
WordNet ids in ascending order. FedTGP, "Datasets": "100K images with 200 classes", so the default
is the training part alone.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.image_files import decode_images, open_image

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
ROOT = "tiny-imagenet-200"


class TinyImageNet:
    """Tiny-ImageNet, 100,000 images of 64×64×3 in 200 classes (official archive)."""

    defaults: ClassVar[dict[str, Any]] = {}
    outline: ClassVar[dict[str, Any]] = {"shape": (3, 64, 64), "train": (500,) * 200}

    class Config(pf.Config):
        """Options of tiny-imagenet."""

        part: Literal["train", "all"] = pf.Field(
            "train",
            description="train: the 100,000 training images, as in FedTGP; all: the 10,000 "
            "validation images too, as a test part",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The data never change, which part of them may."""
        suffix = "" if config.part == "all" else "-train"
        return f"tiny-imagenet{suffix}-v{pf.datasets.ImageFiles.decoding}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download the archive and decode its images without unpacking it."""
        try:
            path = pf.datasets.download(URL, Path(data_dir) / "downloads" / f"{ROOT}.zip", md5=MD5)
        except pf.UsageError as error:
            raise pf.UsageError(
                f"tiny-imagenet: {error.what}",
                error.near,
                f"{error.do}; or save its arrays elsewhere: --dataset npz:FILE",
            ) from error
        with zipfile.ZipFile(path) as archive:
            classes = sorted(archive.read(f"{ROOT}/wnids.txt").decode().split())
            number = {name: label for label, name in enumerate(classes)}
            train = [
                (name, number[name.split("/")[2]])
                for name in sorted(archive.namelist())
                if name.startswith(f"{ROOT}/train/") and name.endswith(".JPEG")
            ]
            lines = archive.read(f"{ROOT}/val/val_annotations.txt").decode().splitlines()
            fields = [line.split("\t") for line in lines]
            test = [(f"{ROOT}/val/images/{file}", number[label]) for file, label, *_ in fields]
            samples = train + (test if config.part == "all" else [])

            def image_of(row: int) -> tuple[Any, str]:
                name = samples[row][0]
                with archive.open(name) as file:
                    return open_image(file, name), name

            images = decode_images(len(samples), image_of, 64)
        y = np.array([label for _, label in samples], np.int64)
        data = pf.datasets.dataset_from_arrays([(images.x, y, str(path))], len(train), classes)
        return replace(data, note="; ".join(filter(None, [data.note, *images.notes])))
