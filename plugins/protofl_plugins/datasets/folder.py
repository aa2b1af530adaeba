"""A data set from image files in class folders: ``--dataset folder:PATH``.

``PATH/CLASS/…/IMAGE`` as in torchvision's ``ImageFolder``: classes in the order of their names,
files with the same endings. Where PATH holds nothing but folders of parts (``train``, ``Test``,
``validation``, ``seg_train``), these hold the class folders: the test part is ``test``, or the
validation part if there is none. A single folder around all others is passed through.

A note counts what is left out: a validation part beside a test part, images outside class folders,
and other files.

With ``--set dataset.layout=clients``, every client has a folder: ``PATH/CLIENT/CLASS/…/IMAGE``, or
``PATH/train/CLIENT/CLASS/…/IMAGE``. The folders' names are the column ``client``, for
``--partition column:client``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.image_files import decode_images, open_image, read_image

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_PART = re.compile(
    r"(?:seg|images?|imgs?|data)?(?:(?P<train>train(?:ing)?)|(?P<test>test(?:ing)?)"
    r"|(?P<val>val(?:id(?:ation)?)?|dev(?:elopment)?|eval(?:uation)?))"
    r"(?:sets?|data|images?|imgs?|split|folder)?"
)
"""Names of the folders of parts, in lower case and without anything but letters."""

_LEFT_OUT = ("__MACOSX", "@eaDir")
"""Folders that other systems add; names with a leading dot are left out too."""


class ImageConfig(pf.Config):
    """Options of image files."""

    side: int = pf.Field(
        64,
        ge=4,
        le=1024,
        description="images become side×side pixels: the shorter side is brought to it "
        "(bilinear), the middle is cut out",
    )
    black: float | None = pf.Field(
        None,
        description="of images with more than 8 bits or floats, the number that becomes 0. None: "
        "the least number in all images",
    )
    white: float | None = pf.Field(
        None, description="the number that becomes 255. None: the largest number in all images"
    )
    background: Literal["white", "black", "grey"] = pf.Field(
        "white", description="the colour on which images with transparency are laid"
    )
    skip_unreadable: bool = pf.Field(
        False, description="leave images out that cannot be read; a note counts them"
    )

    @property
    def files(self) -> pf.datasets.ImageFiles:
        """How the files become pixels."""
        return pf.datasets.ImageFiles(self.black, self.white, self.background)


class Folder:
    """A data set from image files in class folders, with or without train and test parts."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}
    read_image = staticmethod(read_image)

    class Config(ImageConfig):
        """Options of folder."""

        path: str = pf.Field(description="the folder that holds the class folders")
        layout: Literal["classes", "clients"] = pf.Field(
            "classes",
            description="classes: the folder holds class folders; clients: it holds a folder per "
            "client with class folders (use --partition column:client)",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files."""
        root = pf.expand_user(config.path)
        return _key("folder", root, _parts(root, layout=config.layout), config, config.layout)

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Decode all images to RGB of one size."""
        root = pf.expand_user(config.path)
        parts = _parts(root, layout=config.layout)
        if config.layout == "classes":
            classes = _folders(parts[0])
            if len(classes) < 2:
                held = f"only one class ({classes[0]})" if classes else "no class folders"
                raise pf.UsageError(
                    f"folder:{parts[0]} holds {held}",
                    "a data set needs two classes or more",
                    f"put each class's images in a folder of its name{_table_beside(root)}",
                )
            samples = [_samples(folder, classes, needed=folder == parts[0]) for folder in parts]
            columns: dict[str, list[str]] = {}
        else:
            classes, samples, columns = _by_client(parts)
        depth = 2 if config.layout == "classes" else 3
        return _data_set(root, config, classes, samples, columns, _left_out(root, parts, depth))


class Domains:
    """Domains with the same classes: domains:DIR holds DOMAIN/CLASS folders of images."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {"partition": "domain"}

    class Config(ImageConfig):
        """Options of domains."""

        path: str = pf.Field(description="the folder that holds a folder for each domain")

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files."""
        root = pf.expand_user(config.path)
        return _key("domains", root, _parts(root, "domains"), config, "clients")

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Decode all images to RGB of one size; the column ``domain`` names their folders.

        Raises:
            UsageError: A domain lacks a class that another has.
        """
        root = pf.expand_user(config.path)
        parts = _parts(root, "domains")
        classes, samples, columns = _by_client(parts, "DOMAIN")
        labels = np.array([label for _, label in samples[0]])
        names = np.array(columns["client"])[: len(labels)]
        for name in _folders(parts[0]):
            absent = np.setdiff1d(np.arange(len(classes)), labels[names == name])
            if absent.size:
                raise pf.UsageError(
                    f"{root}: domain {name} has no training samples of class {classes[absent[0]]}",
                    f"classes of all domains: {', '.join(classes)}",
                    f"give all domains the same classes, or remove {name}",
                )
        left = _left_out(root, parts, 3)
        return _data_set(root, config, classes, samples, {"domain": columns["client"]}, left)


def _key(prefix: str, root: Path, parts: list[Path], config: ImageConfig, layout: str) -> str:
    """A cache key of the files, of the options, and of the note about what is left out."""
    files = [file for folder in parts for file in all_files(folder)]
    depth = 2 if layout == "classes" else 3
    options = [
        layout,
        config.side,
        config.files,
        config.skip_unreadable,
        *_left_out(root, parts, depth),
    ]
    return pf.datasets.files_key(prefix, root, files, pf.datasets.ImageFiles.decoding, *options)


def _data_set(
    root: Path,
    config: ImageConfig,
    classes: list[str],
    parts: list[list[tuple[Path, int]]],
    columns: dict[str, list[str]],
    left_out: Sequence[str],
) -> pf.datasets.Dataset:
    """Decode the files of each part."""
    samples = [sample for part_samples in parts for sample in part_samples]

    def image_of(row: int) -> tuple[Any, str]:
        path = samples[row][0]
        return open_image(path), str(path)

    images = decode_images(
        len(samples), image_of, config.side, files=config.files, skip=config.skip_unreadable
    )
    y = np.array([label for _, label in samples], np.int64)
    usual = images.files == pf.datasets.ImageFiles()
    data = pf.datasets.dataset_from_arrays(
        [(images.x, y, str(root))],
        len(parts[0]),
        classes,
        columns=columns,
        preparation=pf.datasets.Preparation(images=None if usual else images.files),
    )
    notes = [data.note, *images.notes, *left_out]
    return replace(data, note="; ".join(filter(None, notes))).without(images.left_out)


def _table_beside(root: Path) -> str:
    """Return how to read images with a table in their folder or the one above; empty for none."""
    tables = sorted([*root.glob("*.csv"), *root.parent.glob("*.csv")])
    if not tables:
        return ""
    return (
        f"; labels in a table: --dataset csv:{tables[0]} --set dataset.image=COLUMN --set "
        "dataset.label=COLUMN"
    )


def _by_client(
    parts: list[Path], what: str = "CLIENT"
) -> tuple[list[str], list[list[tuple[Path, int]]], dict[str, list[str]]]:
    """The classes, each part's files with labels, and the column ``client``."""
    folders = [[root / name for name in _folders(root)] for root in parts]
    classes = sorted({name for folder in folders[0] for name in _folders(folder)})
    client_samples = [
        [(folder.name, _samples(folder, classes, needed=False)) for folder in client_folders]
        for client_folders in folders
    ]
    if not classes or not any(samples for _, samples in client_samples[0]):
        raise pf.UsageError(
            f"{parts[0]}: no images in folders {what}/CLASS",
            do=f"put images in PATH/{what}/CLASS/; --dataset folder:PATH reads PATH/CLASS/",
        )
    names = [name for clients in client_samples for name, samples in clients for _ in samples]
    files = [[sample for _, samples in clients for sample in samples] for clients in client_samples]
    return classes, files, {"client": names}


def _parts(root: Path, dataset: str = "folder", layout: str = "clients") -> list[Path]:
    """The folders that hold class folders: the training part and, if there is one, the test.

    Args:
        root: The folder that the user gave.
        dataset: Its data set, for errors.
        layout: ``classes`` for PART/CLASS/…, ``clients`` for PART/CLIENT/CLASS/….

    Raises:
        UsageError: The folder is missing, or its folders may be parts or classes.
    """
    if not root.is_dir():
        raise pf.missing_path(root, f"give it as --dataset {dataset}:PATH", "folder")
    root = _inner(root) if layout == "classes" else root
    names = _folders(root)
    parts: dict[str, str] = {}
    others = []
    for name in names:
        role = _part_of(name)
        if role is None:
            others.append(name)
        elif role in parts and (_folders(root / name) or _folders(root / parts[role])):
            raise pf.UsageError(
                f"{root}: {parts[role]} and {name} are both names of the {role} part",
                do="put their images into one folder, or rename one of them",
            )
        else:
            parts[role] = name
    deep = any(_folders(root / name) for name in parts.values())
    if parts and not others and (deep or (len(parts) > 1 and "train" in parts)):
        if "train" not in parts:
            raise pf.UsageError(
                f"{root} has no training part; it holds {', '.join(names)}",
                do="name the folder of the training part train",
            )
        test = [parts[role] for role in ("test", "val") if role in parts]
        folders = [root / name for name in (parts["train"], *test[:1])]
        return [_inner(folder) for folder in folders] if layout == "classes" else folders
    if deep and len(parts) > 1 and "train" in parts:
        raise pf.UsageError(
            f"{root}: {' and '.join(parts.values())} are names of parts, beside them is "
            f"{', '.join(others)}",
            do=f"move {others[0]} elsewhere if it is not a class; rename the parts if they are "
            "classes",
        )
    if layout == "classes":
        _check_levels(root, names)
    return [root]


def _part_of(name: str) -> str | None:
    """Return train, test or val if a folder is called like one, else None."""
    match = _PART.fullmatch(re.sub(r"[^a-z]", "", name.lower()))
    return match.lastgroup if match else None


def _inner(folder: Path) -> Path:
    """Return the folder inside, while there is one alone and no image beside it."""
    while True:
        subfolders = _folders(folder)
        if len(subfolders) != 1 or _holds_images(folder) or not _folders(folder / subfolders[0]):
            return folder
        if _part_of(subfolders[0]) and not _part_of(folder.name):
            return folder
        folder = folder / subfolders[0]


def _holds_images(folder: Path) -> bool:
    return any(is_image(entry.name) for entry in os.scandir(folder) if entry.is_file())


def is_image(name: str) -> bool:
    """Return True if a file has the ending of an image and no leading dot."""
    return name.lower().endswith(ENDINGS) and name[0] != "."


def _check_levels(root: Path, names: list[str]) -> None:
    """Refuse folders that hold no image themselves but all the same subfolders."""
    inside = [_folders(root / name) for name in names]
    if len(names) < 2 or not inside[0] or any(subfolders != inside[0] for subfolders in inside):
        return
    if not any(_holds_images(root / name) for name in names):
        raise pf.UsageError(
            f"{root}: {', '.join(names)} hold no image themselves, but all the same folders: "
            f"{', '.join(inside[0])}",
            "the classes could be either",
            "if the first are parts, call them train and test; if they are clients, use --set "
            "dataset.layout=clients (or domains:PATH for domains); if they are classes, put their "
            "images in them without folders",
        )


def _left_out(root: Path, parts: list[Path], depth: int) -> list[str]:
    """Count what is not read below a folder, and say which part serves as the test part.

    Args:
        root: The folder.
        parts: The folders that are read.
        depth: Names in the path of an image below its part, at least.
    """
    base = os.path.commonpath(parts) if len(parts) > 1 else root
    images, others = Counter[str](), Counter[str]()
    for where, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        found = sum(map(is_image, files))
        others.update(
            Path(name).suffix.lower() or "no ending"
            for name in files
            if not (is_image(name) or _is_hidden(name))
        )
        inside = [Path(where).relative_to(p) for p in parts if Path(where).is_relative_to(p)]
        if found and not any(len(path.parts) + 1 >= depth for path in inside):
            images[os.path.relpath(where, base).split(os.sep)[0]] += found
    omitted = [f"{count:,} image{'s' * (count > 1)} in {n}/" for n, count in sorted(images.items())]
    if others:
        endings = ", ".join(f"{ending} {count:,}" for ending, count in sorted(others.items()))
        omitted.append(f"other files: {endings}")
    lines = [f"left out: {', '.join(omitted)}"] if omitted else []
    if len(parts) > 1 and _part_of(parts[1].name) == "val":
        lines.insert(0, f"{parts[1].name}/ is the test part")
    return lines


def _is_hidden(name: str) -> bool:
    return name[0] == "." or name in _LEFT_OUT


def _folders(folder: Path) -> list[str]:
    names = sorted(e.name for e in os.scandir(folder) if e.is_dir() and not _is_hidden(e.name))
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise pf.UsageError(
                f"{folder}: the name of the class folder {os.fsencode(name)!r} is not UTF-8",
                do="rename the folder",
            ) from None
    return names


def all_files(folder: Path) -> Iterator[Path]:
    """The images in and below a folder, in order; links are followed, but not in circles."""
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
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
            if is_image(name):
                if not (here / name).exists():
                    raise pf.UsageError(
                        f"the link {here / name} leads to no file", do="remove or repair the link"
                    )
                yield here / name


def _holds(folder: str, path: str) -> bool:
    """Return True if a folder is a path or above it; both without links."""
    return os.path.commonpath([folder, path]) == folder


def _samples(folder: Path, classes: list[str], needed: bool) -> list[tuple[Path, int]]:
    """The files of one part with their labels; ``needed``: every class must have some."""
    class_folders = _folders(folder)
    if not class_folders:
        raise pf.UsageError(
            f"{folder} holds no class folders", do="put each class's images in a folder of its name"
        )
    strange = [name for name in class_folders if name not in classes]
    if strange:
        raise pf.UsageError(
            f"{folder} has classes that the training part lacks: {', '.join(strange)}",
            f"classes: {', '.join(classes)}",
            "name the class folders alike in both parts",
        )
    files = {name: list(all_files(folder / name)) for name in class_folders}
    empty = [name for name, paths in files.items() if not paths]
    if empty and needed:
        raise pf.UsageError(
            f"{folder}: no images in class folder {', '.join(empty)}",
            f"images end in {', '.join(ENDINGS)}",
            "put images there or remove the folder",
        )
    return [(path, classes.index(name)) for name, paths in files.items() for path in paths]
