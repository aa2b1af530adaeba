"""A data set from image files in class folders: ``--dataset folder:PATH``.

``PATH/CLASS/…/IMAGE`` as in torchvision's ``ImageFolder``: classes in the order of their names,
files with the same endings. Where PATH holds nothing but ``train`` and ``test`` (or ``val``)
folders, these hold the class folders and are the data set's own parts.

With ``--set dataset.layout=clients``, every client has a folder: ``PATH/CLIENT/CLASS/…/IMAGE``, or
``PATH/train/CLIENT/CLASS/…/IMAGE``. The folders' names are the column ``client``, for
``--partition column:client``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.npz_domains import check_classes, read_domains

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
PARTS = ("train", "test", "val")


class Folder:
    """A data set from image files in class folders, with or without train and test parts."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.Config):
        """Options of folder."""

        path: str = pf.Field(description="the folder that holds the class folders")
        side: int = pf.Field(
            64,
            ge=4,
            le=1024,
            description="images become side×side pixels: the shorter side is brought to it "
            "(bilinear), the middle is cut out",
        )
        layout: Literal["classes", "clients"] = pf.Field(
            "classes",
            description="classes: the folder holds class folders; clients: it holds a folder per "
            "client with class folders (use --partition column:client)",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files."""
        root = Path(config.path).expanduser()
        files = [file for part in _parts(root) for file in _all_files(part)]
        layout = [config.layout] if config.layout != "classes" else []
        return pf.datasets.files_key("folder", root, files, config.side, *layout)

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Decode all images to RGB of one size."""
        root = Path(config.path).expanduser()
        parts = _parts(root)
        if config.layout == "classes":
            classes = _folders(parts[0])
            found = [_samples(part, classes, needed=part == parts[0]) for part in parts]
            columns: dict[str, list[str]] = {}
        else:
            classes, found, columns = _by_client(parts)
        return _data_set(root, config.side, classes, found, columns)


class Domains:
    """Domains with the same classes: domains:DIR holds DOMAIN/CLASS folders or DOMAIN.npz files."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {"partition": "domain"}

    class Config(pf.Config):
        """Options of domains."""

        path: str = pf.Field(description="the folder that holds a folder or .npz file per domain")
        side: int = pf.Field(
            64, ge=4, le=1024, description="images become side×side pixels, as of folder:"
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files."""
        root = Path(config.path).expanduser()
        parts = _parts(root, "domains")
        if files := _npz_files(root):
            return pf.datasets.files_key("domains-npz", root, files)
        files = [file for part in parts for file in _all_files(part)]
        return pf.datasets.files_key("domains", root, files, config.side)

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Decode all images to RGB of one size; the column ``domain`` names their folders.

        Raises:
            UsageError: A domain lacks a class that another has.
        """
        root = Path(config.path).expanduser()
        parts = _parts(root, "domains")
        if files := _npz_files(root):
            return read_domains(files)
        classes, found, columns = _by_client(parts, "DOMAIN")
        labels = np.array([label for _, label in found[0]])
        names = np.array(columns["client"])[: len(labels)]
        for name in _folders(parts[0]):
            present = {classes[label] for label in np.unique(labels[names == name])}
            check_classes(root, name, present, classes)
        return _data_set(root, config.side, classes, found, {"domain": columns["client"]})


def _data_set(
    root: Path,
    side: int,
    classes: list[str],
    parts: list[list[tuple[Path, int]]],
    columns: dict[str, list[str]],
) -> pf.datasets.Dataset:
    """Decode the files of each part."""
    samples = [sample for part in parts for sample in part]
    x = np.empty((len(samples), 3, side, side), np.uint8)

    def put(row: int) -> None:
        x[row] = _decoded(samples[row][0], side)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(put, range(len(samples))):
            pass
    y = np.array([label for _, label in samples], np.int64)
    return pf.datasets.dataset_from_arrays(
        [(x, y, str(root))], len(parts[0]), classes, columns=columns
    )


def _by_client(
    parts: list[Path], what: str = "CLIENT"
) -> tuple[list[str], list[list[tuple[Path, int]]], dict[str, list[str]]]:
    """The classes, each part's files with labels, and the column ``client``."""
    folders = [[part / name for name in _folders(part)] for part in parts]
    classes = sorted({name for folder in folders[0] for name in _folders(folder)})
    found = [
        [(folder.name, _samples(folder, classes, needed=False)) for folder in of_part]
        for of_part in folders
    ]
    if not classes or not any(samples for _, samples in found[0]):
        raise pf.UsageError(
            f"{parts[0]}: no images in folders {what}/CLASS",
            do=f"put images in PATH/{what}/CLASS/; --dataset folder:PATH reads PATH/CLASS/",
        )
    names = [name for part in found for name, samples in part for _ in samples]
    files = [[sample for _, samples in part for sample in samples] for part in found]
    return classes, files, {"client": names}


def _parts(root: Path, dataset: str = "folder") -> list[Path]:
    """The folders that hold class folders: the training part and, if there is one, the test."""
    if not root.is_dir():
        raise pf.UsageError(f"no folder {root}", do=f"give it as --dataset {dataset}:PATH")
    names = _folders(root)
    if "train" not in names or not set(names) <= set(PARTS) or not _folders(root / "train"):
        return [root]
    test = [root / name for name in ("test", "val") if name in names]
    return [root / "train", *test[:1]]


def _npz_files(root: Path) -> list[Path]:
    """The files of a folder in which each domain is one, and none is a folder."""
    return [] if _folders(root) else sorted(root.glob("*.npz"))


def _folders(folder: Path) -> list[str]:
    names = sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise pf.UsageError(
                f"{folder}: the name of the class folder {os.fsencode(name)!r} is not UTF-8",
                do="rename the folder",
            ) from None
    return names


def _all_files(folder: Path) -> Iterator[Path]:
    """The images in and below a folder, in order; links are followed, but not in circles."""
    for where, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        here = Path(where)
        for link in (here / name for name in folders if (here / name).is_symlink()):
            target = os.path.realpath(link)
            way = [here, *(p for p in here.parents if p.is_relative_to(folder))]
            if any(_holds(target, os.path.realpath(p)) for p in way):
                raise pf.UsageError(
                    f"the link {link} leads back to {target}: images would be read for ever",
                    do="remove the link",
                )
        for name in sorted(files):
            if name.lower().endswith(ENDINGS):
                if not (here / name).exists():
                    raise pf.UsageError(
                        f"the link {here / name} leads to no file", do="remove or repair the link"
                    )
                yield here / name


def _holds(folder: str, path: str) -> bool:
    """Return True if a folder is a path or above it; both without links."""
    return os.path.commonpath([folder, path]) == folder


def _samples(part: Path, classes: list[str], needed: bool) -> list[tuple[Path, int]]:
    """The files of one part with their labels; ``needed``: every class must have some."""
    own = _folders(part)
    if not own:
        raise pf.UsageError(
            f"{part} holds no class folders", do="put each class's images in a folder of its name"
        )
    strange = [name for name in own if name not in classes]
    if strange:
        raise pf.UsageError(
            f"{part} has classes that the training part lacks: {', '.join(strange)}",
            f"classes: {', '.join(classes)}",
            "name the class folders alike in both parts",
        )
    files = {name: list(_all_files(part / name)) for name in own}
    empty = [name for name, paths in files.items() if not paths]
    if empty and needed:
        raise pf.UsageError(
            f"{part}: no images in class folder {', '.join(empty)}",
            f"images end in {', '.join(ENDINGS)}",
            "put images there or remove the folder",
        )
    return [(path, classes.index(name)) for name, paths in files.items() for path in paths]


def _decoded(path: Path, side: int) -> np.ndarray:
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise pf.UsageError(
            f"{path} can't be read as an image: {error}", do="repair or remove the file"
        ) from error
    square = center_crop(resize(image, side, InterpolationMode.BILINEAR), side)
    pixels: np.ndarray = np.asarray(square).transpose(2, 0, 1)
    return pixels
