"""Medical images of MedMNIST: ``--dataset medmnist:NAME``, such as ``medmnist:pathmnist``.

Names, addresses, checksums and classes are those of the package medmnist (Yang et al., Scientific
Data 2023, https://medmnist.com). A file of the package's own folder, ``~/.medmnist``, is used if it
is there; otherwise it is downloaded into the data folder. Images are 28×28 pixels, or as ``size``
says. The validation part is left out unless ``validation`` says where it goes. ``chestmnist`` is
multi-label: a sample has any number of 14 labels.

A file that you have already is read without the package: ``--dataset npz:pathmnist.npz``.
"""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path
from typing import Any, ClassVar, Literal

import protofl as pf


class MedMNIST:
    """Medical images of MedMNIST by name (medmnist:NAME; protofl[medmnist])."""

    argument = "name"
    check_argument = "breastmnist"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.Config):
        """Options of medmnist."""

        name: str = pf.Field(description="the data set: pathmnist, bloodmnist, …")
        size: Literal[28, 64, 128, 224] = pf.Field(28, description="sides of the images in pixels")
        validation: Literal["out", "train", "test"] = pf.Field(
            "out",
            description="where samples of the validation part go: nowhere, to the training or to "
            "the test samples",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The name, the size, and where the validation part goes."""
        return f"medmnist-{config.name.lower()}-{config.size}-{config.validation}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Download the file if needed, and read it.

        Raises:
            UsageError: The package is missing, there is no such data set, it is of volumes, or the
                download failed.
        """
        about = _about(config.name)
        name = config.name.lower()
        suffix = "" if config.size == 28 else f"_{config.size}"
        url = f"url{suffix}"
        if url not in about:
            raise pf.UsageError(
                f"medmnist:{name} has no images of {config.size}×{config.size} pixels",
                do="leave dataset.size out",
            )
        file = f"{name}{suffix}.npz"
        md5 = about[f"MD5{suffix}"]
        own = pf.expand_user("~/.medmnist") / file
        # A damaged file of the package is left as it is: the download would replace it.
        whole = own.is_file() and _md5(own) == md5
        path = own if whole else Path(data_dir) / "downloads" / file
        try:
            pf.datasets.download(about[url], path, md5=md5)
        except pf.UsageError as error:
            raise pf.UsageError(f"medmnist:{name}: {error.what}", error.near, error.do) from error
        several = about["task"].startswith("multi-label")
        task = pf.datasets.Task("multilabel" if several else "classification")
        data = pf.datasets.read_npz(path, validation=config.validation, task=task)
        names = about["label"]
        if several:
            names = {f"label {number}": name for number, name in names.items()}
            data.outputs = [names[output] for output in data.outputs]
        data.classes = [names.get(each, each) for each in data.classes]
        return data


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _about(name: str) -> dict[str, Any]:
    """Return what the package knows of a data set.

    Raises:
        UsageError: The package is missing, or there is no such data set of images.
    """
    try:
        from medmnist.info import INFO
    except ImportError as error:
        raise pf.UsageError(
            f"medmnist:{name} needs the package medmnist, which is not installed: {error}",
            f"a file that you have needs no package: --dataset npz:{name}.npz",
            "pip install 'protofl[medmnist]'",
        ) from error
    images = [each for each in INFO if not each.endswith("3d")]
    if name.lower() in images:
        about: dict[str, Any] = INFO[name.lower()]
        return about
    if name.lower() in INFO:
        raise pf.UsageError(
            f"medmnist:{name} holds volumes, and models here take images",
            f"data sets of images: {', '.join(images)}",
        )
    near = difflib.get_close_matches(name.lower(), images, n=1)
    raise pf.UsageError(
        f"medmnist has no data set {name!r}",
        f"data sets: {', '.join(images)}" + (f"; did you mean {near[0]}?" if near else ""),
    )
