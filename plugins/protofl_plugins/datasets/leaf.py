"""Data by writer, role or user in LEAF's JSON layout: ``--dataset leaf:DIR``.

LEAF (Caldas et al., 2018, https://github.com/TalwalkarLab/leaf) writes ``train/*.json`` and
``test/*.json`` below ``data/NAME/data``; without them, ``sampled_data``, ``rem_user_data`` or
``all_data``. A file has ``user_data`` with lists ``x`` and ``y`` for each user. The column
``client`` names each sample's user: each user is a client (``--partition column:client``, the
default) and keeps its own test samples. A user with test samples alone, as LEAF writes with
``-t user``, is an unseen client (``--unseen``). What a sample is follows from ``x``:

    FEMNIST        784 numbers in 0…1: images 1×28×28, stored as 0…255; 62 classes
    Shakespeare    80 characters, and the next one as label: token ids of LEAF's 80 characters;
                   further characters share one more id. A class is a character.
    Sentiment140   the fields of a tweet, of which the fifth is the text; or plain texts: token ids
                   of common words
    others         lists of numbers: rows of a table; nested lists: images

The images of CelebA are files and not in the JSON files, so they are not read.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import protofl as pf
from protofl_plugins.datasets.texts import word_ids
from protofl_plugins.shared.language_models import MEANING, TextTask

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
)
"""The characters of LEAF's Shakespeare, in the order of its classes."""

_FEMNIST = [*string.digits, *string.ascii_uppercase, *string.ascii_lowercase]

_WHOLE = ("sampled_data", "rem_user_data", "all_data")
"""Folders of data without a test part; the first that has files is read."""

_TWEET = 4
"""Place of the text among the fields of a tweet."""


class LEAF:
    """Data by user in LEAF's JSON layout, such as FEMNIST and Shakespeare (leaf:DIR)."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {"partition": "column:client"}

    class Config(pf.Config):
        """Options of leaf."""

        path: str = pf.Field(description="the folder that holds train/ and test/, or all_data/")
        length: int = pf.Field(32, ge=4, le=512, description="words of a text; of texts alone")
        vocabulary: int = pf.Field(
            10_000, ge=10, le=1_000_000, description="largest number of ids of words"
        )
        task: TextTask = pf.Field("classification", description=MEANING)

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files, and the options."""
        root, parts = _files(config.path)
        files = [file for part in parts for file in part]
        options = (config.length, config.vocabulary)
        if config.task != "classification":
            return pf.datasets.files_key("leaf", root, files, *options, config.task)
        return pf.datasets.files_key("leaf", root, files, *options)

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Read all users' samples, file by file.

        Raises:
            UsageError: A file is damaged, or its samples are of no known form.
        """
        root, files = _files(config.path)
        parts = [_Part(str(root / name)) for name in ("train", "test")][: len(files)]
        for part, part_files in zip(parts, files, strict=True):
            for file in part_files:
                for user, x, y in _users(file):
                    part.add(user, x, y, file)
        if not parts[0].y:
            raise pf.UsageError(f"{root} holds no training samples", do="write LEAF's data again")
        return _dataset(parts, config)


@dataclass
class _Part:
    """Samples of the training or the test part.

    Attributes:
        source: Its folder, for errors.
        x: Numbers [n, …] of each user, or texts.
        y: Labels.
        users: The user of each sample.
        tweets: True if its texts were fields of tweets.
    """

    source: str
    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    tweets: bool = False

    def add(self, user: str, x: list[Any], y: list[Any], file: Path) -> None:
        """Add samples of a user.

        Raises:
            UsageError: They differ in form, or are neither numbers nor texts.
        """
        source = f"{file}: user {user!r}"
        if len(x) != len(y):
            raise pf.UsageError(
                f"{source} has {len(x):,} samples, but {len(y):,} labels",
                do="write LEAF's data again",
            )
        if not y:
            return
        if all(isinstance(sample, list) and len(sample) > _TWEET for sample in x) and all(
            isinstance(sample[_TWEET], str) for sample in x
        ):
            x, self.tweets = [sample[_TWEET] for sample in x], True
        if all(isinstance(sample, str) for sample in x):
            if x[0].lower().endswith((".jpg", ".jpeg", ".png")):
                raise pf.UsageError(
                    f"{source}: x holds names of images ({x[0]!r}), which are not in the file",
                    do="put the images into folders: --dataset folder:DIR "
                    "--set dataset.layout=clients",
                )
            self.x += x
        else:
            self.x.append(_pixels(_numbers(x, source)))
        self.y += y
        self.users += [user] * len(y)

    @property
    def is_text(self) -> bool:
        """True if its samples are texts.

        Raises:
            UsageError: Some are, and others are numbers.
        """
        texts = sum(isinstance(sample, str) for sample in self.x)
        if texts not in (0, len(self.x)):
            raise pf.UsageError(
                f"{self.source}: some users have texts, and others numbers",
                do="keep one data set in a folder",
            )
        return bool(texts)

    def joined(self) -> np.ndarray:
        """Return all numbers [N, …].

        Raises:
            UsageError: Users differ in the shape of their samples.
        """
        for x in self.x:
            if x.shape[1:] != self.x[0].shape[1:]:
                raise pf.UsageError(
                    f"{self.source}: users have samples of the shapes {list(self.x[0].shape[1:])} "
                    f"and {list(x.shape[1:])}",
                    do="keep one data set in a folder",
                )
        if len({x.dtype for x in self.x}) > 1:
            self.x = [x / np.float32(255) if x.dtype == np.uint8 else x for x in self.x]
        return np.concatenate(self.x)


def _dataset(parts: list[_Part], config: LEAF.Config) -> pf.datasets.Dataset:
    """Return the samples of both parts as a data set."""
    parts = [part for part in parts if part.y]
    forms = {part.is_text for part in parts}
    if len(forms) > 1:
        raise pf.UsageError(
            f"{parts[0].source} and {parts[1].source} differ: texts and numbers",
            do="keep one data set in a folder",
        )
    labels = [np.array(part.y) for part in parts]
    options: dict[str, Any] = {}
    x: list[np.ndarray]
    if forms == {False}:
        x, names = _as_images([part.joined() for part in parts], labels)
    elif not any(part.tweets for part in parts) and all(
        isinstance(y, str) and len(y) == 1 for part in parts for y in part.y
    ):
        x, names = [_characters(part) for part in parts], [*LETTERS]
        strange = {y for part in parts for y in part.y} - {*LETTERS}
        if strange:
            raise pf.UsageError(
                f"{parts[0].source}: the label {min(strange)!r} is not one of LEAF's "
                f"{len(LETTERS)} characters",
                do="write LEAF's data again, or leave such samples out",
            )
        place = {letter: number for number, letter in enumerate(LETTERS)}
        labels = [np.array([place[y] for y in part.y]) for part in parts]
        options = {"kind": "tokens", "vocabulary": len(LETTERS) + 1}
    else:
        texts, names = [text for part in parts for text in part.x], None
        ids, words = word_ids(
            texts, len(parts[0].y), config.length, config.vocabulary, parts[0].source
        )
        x = [ids[: len(parts[0].y)], ids[len(parts[0].y) :]][: len(parts)]
        options = {"kind": "tokens", "vocabulary": words.vocabulary, "padding": words.padding}
        options["preparation"] = pf.datasets.Preparation(words=words)
    if all(y.dtype.kind == "U" for y in labels):
        values = np.unique(np.concatenate(labels))
        labels, names = [np.searchsorted(values, y) for y in labels], values.tolist()
    users = [user for part in parts for user in part.users]
    sources = [part.source for part in parts]
    return pf.datasets.dataset_from_arrays(
        [*zip(x, labels, sources, strict=True)],
        num_train=len(parts[0].y),
        classes=names,
        columns={"client": np.array(users)},
        task=config.task,
        **options,
    )


def _pixels(x: np.ndarray) -> np.ndarray:
    """Return 784 numbers k / 255 of pixels k in 0…255, as FEMNIST's, as uint8; others unchanged."""
    if x.shape[1:] != (784,):
        return x
    pixels = np.rint(255 * x)
    exact = pixels.min() >= 0 and pixels.max() <= 255 and np.abs(255 * x - pixels).max() < 1e-2
    return pixels.astype(np.uint8) if exact else x


def _as_images(
    x: list[np.ndarray], labels: list[np.ndarray]
) -> tuple[list[np.ndarray], list[str] | None]:
    """Return 784 numbers as images 28×28, and the names of FEMNIST's classes if they fit."""
    if any(each.shape[1:] != (784,) for each in x):
        return x, None
    if len({each.dtype for each in x}) > 1:
        x = [each / np.float32(255) if each.dtype == np.uint8 else each for each in x]
    whole = all(y.dtype.kind in "iu" and y.max() < len(_FEMNIST) for y in labels)
    letters = whole and max(int(y.max()) for y in labels) > 9  # otherwise digits alone
    named = letters and x[0].dtype == np.uint8
    return [each.reshape(-1, 28, 28) for each in x], _FEMNIST if named else None


def _characters(part: _Part) -> np.ndarray:
    """Return ids [N, L] of texts of one length, character by character.

    Raises:
        UsageError: Texts differ in length.
    """
    length = len(part.x[0])
    if odd := next((text for text in part.x if len(text) != length), None):
        raise pf.UsageError(
            f"{part.source}: texts of {length} and {len(odd)} characters",
            "LEAF's Shakespeare has texts of one length",
            "cut all texts to one length",
        )
    if not length:
        raise pf.UsageError(f"{part.source}: empty texts", do="write LEAF's data again")
    points = np.frombuffer("".join(part.x).encode("utf-32-le"), np.uint32)
    table = np.full(int(points.max()) + 1, len(LETTERS), np.int64)
    for number, letter in enumerate(LETTERS):
        if ord(letter) < len(table):
            table[ord(letter)] = number
    return table[points].reshape(len(part.x), length)


def _numbers(x: list[Any], source: str) -> np.ndarray:
    """Return samples as float32 [n, …].

    Raises:
        UsageError: They are not numbers, or differ in length.
    """
    array: np.ndarray
    try:
        array = np.asarray(x, np.float32)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim < 2 or not array.size:
        raise pf.UsageError(
            f"{source}: x holds neither texts nor lists of numbers of one length",
            f"the first sample: {str(x[0])[:40]}",
            "leaf: reads FEMNIST, Shakespeare, Sentiment140 and lists of numbers",
        )
    return array


def _files(path: str) -> tuple[Path, list[list[Path]]]:
    """Return the folder of the parts, and the files of the training and perhaps the test part.

    Raises:
        UsageError: There is no such folder, or it holds no such files.
    """
    root = pf.expand_user(path)
    if not root.is_dir():
        raise pf.missing_path(root, "give it as --dataset leaf:DIR", "folder")
    for folder in (root, root / "data"):
        train, test = (sorted((folder / part).glob("*.json")) for part in ("train", "test"))
        if train:
            return folder, [train, test] if test else [train]
        for name in _WHOLE:
            if files := sorted((folder / name).glob("*.json")):
                return folder, [files]
    held = ", ".join(sorted(item.name for item in root.iterdir())[:8])
    raise pf.UsageError(
        f"no file {root / 'train'}/*.json",
        f"{root} holds: {held or 'nothing'}",
        "give the folder that holds train/ and test/: --dataset leaf:data/femnist/data",
    )


def _users(file: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield each user of a file with its samples and labels.

    Raises:
        UsageError: The file is not JSON, or not of LEAF's layout.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise pf.UsageError(
            f"{file} is damaged: invalid JSON{line}", do="write LEAF's data again"
        ) from error
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(data, dict):
        held = ", ".join(content) if isinstance(content, dict) else type(content).__name__
        raise pf.UsageError(
            f"{file} has no user_data", f"it holds: {held}", "give files that LEAF wrote"
        )
    for user, samples in data.items():
        if not isinstance(samples, dict) or not all(
            isinstance(samples.get(key), list) for key in "xy"
        ):
            raise pf.UsageError(
                f"{file}: user {user!r} has no lists x and y", do="give files that LEAF wrote"
            )
        yield user, samples["x"], samples["y"]
