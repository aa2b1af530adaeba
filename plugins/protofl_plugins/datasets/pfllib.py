"""A data set already split over clients, as PFLlib and HtFLlib store it: ``--dataset pfllib:DIR``.

``DIR/train/ID.npz`` and ``DIR/test/ID.npz`` for the clients 0…M-1, each with the arrays ``x``
(images N×C×H×W, floats already normalised, used as they are, or uint8; other samples as in
``npz:``, of the kind ``dataset.kind``) and ``y``. PFLlib itself stores one object array ``data``
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


class PFLlib:
    """A data set already split over clients, in the format of PFLlib and HtFLlib."""

    argument = "path"
    defaults: ClassVar[dict[str, Any]] = {}

    class Config(pf.Config):
        """Options of pfllib."""

        path: str = pf.Field(description="the folder with train/ID.npz and test/ID.npz")
        kind: Literal["image", "series", "tokens", "table"] | None = pf.Field(
            None, description="what a sample is. None: what the arrays' shape and type suggest"
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
        root = Path(config.path).expanduser()
        files = [root / part / f"{i}.npz" for i in range(_clients(root)) for part in _PARTS]
        about = root / "config.json"
        kind = [config.kind] if config.kind else []
        return pf.datasets.files_key(
            "pfllib", root, [*files, *([about] if about.is_file() else [])], *kind
        )

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Pool all clients' samples and note which rows are whose."""
        root = Path(config.path).expanduser()
        clients = _clients(root)
        files = [root / part / f"{i}.npz" for i in range(clients) for part in _PARTS]
        parts = [_read(file, config.trust_pickle) for file in files]
        for _, y, source in parts[::2]:
            if not y.size:
                raise pf.UsageError(
                    f"{source}: the client has no training samples",
                    do="leave the client out and number the others anew",
                )
        whole = (y for _, y, _ in parts if y.size and y.dtype.kind in "iu")
        highest = max((int(y.max()) for y in whole), default=-1)
        classes, notes = _about(root, clients, highest)
        images = pf.datasets.dataset_from_arrays(parts, classes=classes, kind=config.kind)
        ends = np.cumsum([len(y) for _, y, _ in parts]).tolist()
        rows = [torch.arange(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        images.split = list(zip(rows[::2], rows[1::2], strict=True))
        images.note = "; ".join(filter(None, (*notes, images.note)))
        return images


_PARTS = ("train", "test")


def _clients(root: Path) -> int:
    """The number of clients; both folders must hold ID.npz for each ID from 0 on."""
    ids: dict[str, set[str]] = {}
    for part in _PARTS:
        folder = root / part
        ids[part] = {path.stem for path in folder.glob("*.npz")}
        if not ids[part]:
            held = sorted(path.name for path in root.iterdir())[:8] if root.is_dir() else []
            raise pf.UsageError(
                f"no {folder}/ID.npz",
                f"{root} holds: {', '.join(held)}" if held else f"no files in {root}",
                "give the folder that holds train/ and test/: --dataset pfllib:DIR",
            )
    clients = max(map(len, ids.values()))
    for part in _PARTS:
        expected = {str(i) for i in range(clients)}
        odd, missing = sorted(ids[part] - expected), sorted(expected - ids[part], key=int)
        if odd or missing:
            raise pf.UsageError(
                f"{root / part} has no {', '.join(f'{i}.npz' for i in missing[:5])}",
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
            arrays = np.load(file, allow_pickle=trust)
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
            f"{path} can't be read: {type(error).__name__}: {error}",
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
    except (OSError, ValueError, KeyError, TypeError):
        return None, [f"{path.name} names no num_classes; the labels that occur are counted"]
    notes = []
    if about.get("num_clients", clients) != clients:
        notes.append(f"{path.name} says {about['num_clients']} clients, there are {clients}")
    if classes <= highest:
        notes.append(f"{path.name} says {classes} classes, labels go up to {highest}")
        return None, notes
    return classes, notes
