"""A data set already split over clients, as PFLlib and HtFLlib store it: ``--dataset pfllib:DIR``.

``DIR/train/ID.npz`` and ``DIR/test/ID.npz`` for the clients 0…M-1, each with the arrays ``x``
(images N×C×H×W, floats already normalised, used as they are, or uint8; other samples as in
``npz:``, of the kind ``dataset.kind``) and ``y``. Their generators store two further layouts:

    text (AG News, Sogou News)    ``x`` is N×2 objects: a list of token ids, filled up with 0, and
                                  its length; ids from the length on become the padding id
    sensors (HAR, PAMAP2)         ``x`` is N×channels×1×length or N×channels×sensors×length of
                                  floats; read as N×(channels·sensors)×length

 PFLlib itself stores one object array ``data``
that holds a dict of both. Such an array is a pickle, which can run any code when it is read, so it
is read only with ``--set dataset.trust_pickle=true``. ``DIR/config.json`` gives the number of
classes, if it has one that fits.

Formats: https://github.com/TsingZ0/PFLlib and https://github.com/TsingZ0/HtFLlib.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

import protofl as pf

_Kind = Literal["image", "series", "tokens", "table"] | None


class PFLlib:
    """A data set already split over clients, in the format of PFLlib and HtFLlib."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.Config):
        """Options of pfllib."""

        path: str = pf.Field(description="the folder with train/ID.npz and test/ID.npz")
        kind: _Kind = pf.Field(
            None, description="what a sample is. None: what the arrays' shape and type suggest"
        )
        vocabulary: int | None = pf.Field(
            None, ge=2, description="number of token ids V. None: the largest that occurs, and one"
        )
        padding: int | None = pf.Field(
            None,
            ge=0,
            description="the id that fills short token sequences up. None: 0 of texts stored with "
            "their lengths, as the generators fill them up; otherwise none does",
        )
        trust_pickle: bool = pf.Field(
            False,
            consent=True,
            description="read the files although they are pickles, which can run any code: only "
            "for files whose source you trust",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The paths, sizes and times of all files."""
        root = pf.expand_user(config.path)
        files = [root / subset / f"{i}.npz" for i in range(_clients(root)) for subset in _PARTS]
        about = root / "config.json"
        chosen = config.model_dump(exclude_defaults=True, exclude={"path", "trust_pickle"})
        # A folder without options keeps the key that it always had.
        return pf.datasets.files_key(
            "pfllib", root, [*files, *([about] if about.is_file() else [])], *chosen.items()
        )

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Pool all clients' samples and note which rows are whose."""
        root = pf.expand_user(config.path)
        clients = _clients(root)
        files = [root / subset / f"{i}.npz" for i in range(clients) for subset in _PARTS]
        parts = [_read(file, config.trust_pickle) for file in files]
        whole = (y for _, y, _ in parts if y.size and y.dtype.kind in "iu")
        highest = max((int(y.max()) for y in whole), default=-1)
        classes, notes = _about(root, clients, highest)
        parts, kind, padding = _plain(parts, config)
        images = pf.datasets.dataset_from_arrays(
            parts,
            classes=classes,
            kind=kind,
            vocabulary=config.vocabulary,
            padding=padding,
        )
        ends = np.cumsum([len(y) for _, y, _ in parts]).tolist()
        rows = [torch.arange(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        images.split = list(zip(rows[::2], rows[1::2], strict=True))
        images.note = "; ".join(filter(None, (*notes, images.note)))
        return images


_PARTS = ("train", "test")

_Parts = list[tuple[np.ndarray, np.ndarray, str]]
"""Samples, labels and file of each part."""


def _plain(parts: _Parts, config: PFLlib.Config) -> tuple[_Parts, _Kind, int | None]:
    """Return texts and sensor series as plain arrays, their kind, and the padding id of tokens."""
    kind: _Kind = config.kind
    filled = [x for x, y, _ in parts if len(y)]
    if all(x.dtype == object and x.shape[1:] == (2,) for x in filled):
        padding = 0 if config.padding is None else config.padding
        length = max(len(text) for x in filled for text in x[:, 0] if hasattr(text, "__len__"))
        return (
            [
                (_token_ids(x, source, length, padding) if len(y) else x, y, source)
                for x, y, source in parts
            ],
            kind,
            padding,
        )
    if kind is None and all(map(_of_sensors, filled)):
        kind = "series"
    if kind == "series":
        parts = [
            (x.reshape(len(x), -1, x.shape[3]) if x.ndim == 4 and len(y) else x, y, source)
            for x, y, source in parts
        ]
    return parts, kind, config.padding


def _of_sensors(x: np.ndarray) -> bool:
    """Return True for floats N×channels×sensors×length, which are not of an image's shape."""
    if x.ndim != 4 or x.dtype.kind != "f":
        return False
    channels, sensors, length = x.shape[1:]
    return bool(not {channels, length} & {1, 3} and channels >= min(sensors, length))


def _token_ids(x: np.ndarray, source: str, length: int, padding: int) -> np.ndarray:
    """Return token ids of texts that are stored with their lengths.

    Args:
        x: Objects [N, 2]: a list of token ids, and the text's length.
        source: The file, for errors.
        length: Tokens of a sequence, L.
        padding: The id from the text's length on.

    Returns:
        Ids [N, L].

    Raises:
        UsageError: An entry is not a list of integers with a length that fits.
    """
    try:
        sizes = np.array([len(text) for text in x[:, 0]])
        ids, lengths = np.concatenate([*x[:, 0]]), np.array([*x[:, 1]])
    except (TypeError, ValueError):
        ids = lengths = np.empty(0)
    if not ids.dtype.kind == lengths.dtype.kind == "i" or (lengths > sizes).any():
        raise pf.UsageError(
            f"{source}: x holds pairs of objects that are not token ids and their number",
            do="store (list of ids, number of ids) for each text, or plain integers N×length",
        )
    places = np.arange(length)
    result = np.full((len(x), length), padding, np.int64)
    result[places < sizes[:, None]] = ids
    result[places >= lengths[:, None]] = padding
    return result


def _clients(root: Path) -> int:
    """The number of clients; both folders must hold ID.npz for each ID from 0 on."""
    ids: dict[str, set[str]] = {}
    for subset in _PARTS:
        folder = root / subset
        ids[subset] = {path.stem for path in folder.glob("*.npz")}
        if not ids[subset]:
            held = sorted(path.name for path in root.iterdir())[:8] if root.is_dir() else []
            raise pf.UsageError(
                f"no {folder}/ID.npz",
                f"{root} holds: {', '.join(held)}" if held else f"no files in {root}",
                "give the folder that holds train/ and test/: --dataset pfllib:DIR",
            )
    clients = max(map(len, ids.values()))
    for subset in _PARTS:
        expected = {str(i) for i in range(clients)}
        odd, missing = sorted(ids[subset] - expected), sorted(expected - ids[subset], key=int)
        if odd or missing:
            raise pf.UsageError(
                f"{root / subset} has no {', '.join(f'{i}.npz' for i in missing[:5])}",
                f"it holds {', '.join(f'{i}.npz' for i in odd[:5])} beside them" if odd else "",
                f"clients are numbered 0…{clients - 1} without gaps, alike in train/ and test/",
            )
    return clients


def _read(path: Path, trust: bool) -> tuple[np.ndarray, np.ndarray, str]:
    do = "it must hold the arrays x and y, or one object array 'data' with a dict of x and y"
    try:
        # opened here, as NumPy would leave a damaged file open
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about the age of files
            arrays = pf.datasets.open_arrays(file, path, pickles=trust)
            held = getattr(arrays, "files", [])
            if {"x", "y"} <= set(held):
                return arrays["x"], arrays["y"], str(path)
            if "data" not in held:
                raise pf.UsageError(f"{path} has no x and y", f"it holds: {', '.join(held)}", do)
            content = arrays["data"].tolist()
            if not (isinstance(content, dict) and {"x", "y"} <= set(content)):
                keys = ", ".join(map(str, content)) if isinstance(content, dict) else ""
                raise pf.UsageError(
                    f"{path}: 'data' is not a dict with x and y",
                    f"its keys: {keys}" if keys else f"it is of type {type(content).__name__}",
                    do,
                )
            return np.asarray(content["x"]), np.asarray(content["y"]), str(path)
    except pf.UsageError:
        raise
    except Exception as error:  # a pickle can raise anything
        if not trust and "allow_pickle" in str(error):
            raise pf.UsageError(
                f"{path} is a pickle and was not read",
                "a pickle can run any code on your machine when it is read",
                "if you trust where it comes from: --set dataset.trust_pickle=true; or save plain "
                "arrays x and y",
            ) from None
        raise pf.UsageError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            do="the file is damaged or of another kind; copy it again",
        ) from error


def _about(root: Path, clients: int, highest: int) -> tuple[int | None, list[str]]:
    """The number of classes that config.json names, if it fits, and what doesn't fit."""
    path = root / "config.json"
    if not path.is_file():
        return None, []
    try:
        about = json.loads(path.read_text())
        classes = int(about["num_classes"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, [f"{path.name} names no num_classes; the labels that occur are counted"]
    notes = []
    if about.get("num_clients", clients) != clients:
        notes.append(f"{path.name} says {about['num_clients']} clients, there are {clients}")
    if classes <= highest:
        notes.append(f"{path.name} says {classes} classes, labels go up to {highest}")
        return None, notes
    return classes, notes
