"""`class-embeddings`: embeddings of the classes from one ``.npz`` file, ``path``.

Keys: ``embeddings``, C×K, in the order of the data's classes; or with ``classes``, the name of each
row, in any order and with further classes. ``logit_scale`` is s, one number, where the encoder that
made the embeddings has its own. Pickled content is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.shared.text_files import stamp
from protofl_plugins.text_encoders.encoder import TextEncoder

KEYS = ("embeddings", "classes", "logit_scale")
SAVE = "save it with numpy.savez(FILE, embeddings=…, classes=…)"


class ClassEmbeddings(TextEncoder):
    """Embeddings of the classes from an .npz file with embeddings and perhaps classes."""

    names_only = True

    def __init__(self, classes: Sequence[str], feature_dim: int, path: Path | None) -> None:
        if path is None:
            raise pf.UsageError("class-embeddings needs a file", do="give it: --set path=FILE.npz")
        about = stamp(path, "file of class embeddings")
        self.rows, self.logit_scale = _read(path, tuple(classes), about)
        self.dim = self.rows.shape[1]
        self._place = {name: i for i, name in enumerate(classes)}

    def load(self, device: torch.device) -> None:
        """Copy the rows to the device."""
        self.rows = self.rows.to(device)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the rows [n, K] of n classes."""
        return self.rows[[self._place[text] for text in texts]]


@lru_cache(maxsize=2)
def _read(path: Path, classes: tuple[str, ...], stamp: tuple[int, int]) -> tuple[Tensor, float]:
    """Read and check a file: rows [C, K] and s; cached until it changes.

    Raises:
        UsageError: It can't be read, lacks a class, or holds other arrays or numbers.
    """
    arrays = _arrays(path)
    rows = arrays["embeddings"]
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or not rows.size:
        shape = "×".join(map(str, rows.shape)) or "one value"
        raise pf.UsageError(
            f"{path}: expected numbers C×K in embeddings, got {shape} of {rows.dtype}", do=SAVE
        )
    broken = np.flatnonzero(~np.isfinite(rows).all(1))
    if broken.size:
        raise pf.UsageError(
            f"{path}: row {broken[0]} of embeddings holds NaN or infinity",
            do="embed this class again",
        )
    scale = arrays.get("logit_scale", np.float64(TextEncoder.logit_scale))
    if scale.size != 1 or scale.dtype.kind not in "fiu" or not np.isfinite(scale).all():
        raise pf.UsageError(
            f"{path}: expected one finite number in logit_scale, got {scale!r}", do="leave it out"
        )
    chosen = rows[_rows_of(path, arrays.get("classes"), len(rows), classes)].astype(np.float32)
    return torch.from_numpy(chosen), float(scale.item())


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:
            content = pf.datasets.open_arrays(file, path)
            if isinstance(content, np.ndarray):
                content = {"embeddings": content}
            arrays = {key: content[key] for key in KEYS if key in content}
            held = ", ".join(content)
    except pf.UsageError:
        raise
    except Exception as error:  # zip, zlib, numpy and the OS each have their own
        raise pf.UsageError(
            f"{path} cannot be read as .npz without pickles: {type(error).__name__}: {error}",
            do=SAVE,
        ) from None
    if "embeddings" not in arrays:
        raise pf.UsageError(f"{path} has no embeddings", f"it holds: {held or 'nothing'}", SAVE)
    return arrays


def _rows_of(
    path: Path, names: np.ndarray | None, count: int, classes: tuple[str, ...]
) -> list[int]:
    """Return the row of each class."""
    if names is None:
        if count != len(classes):
            raise pf.UsageError(
                f"{path}: embeddings has {count} rows, and the data have {len(classes)} classes",
                do="save one row per class, or add the array classes with the name of each row",
            )
        return [*range(count)]
    known = [str(name) for name in names.reshape(-1)]
    if len(known) != count or len({*known}) != count:
        raise pf.UsageError(
            f"{path}: expected {count} different names in classes, one per row of embeddings, got "
            f"{len(known)}, {len({*known})} of them different",
            do=SAVE,
        )
    missing = [name for name in classes if name not in known]
    if missing:
        near = get_close_matches(missing[0], known, n=3, cutoff=0.5)
        raise pf.UsageError(
            f"{path}: classes lacks {missing[0]!r} and {len(missing) - 1} more of the data's "
            f"{len(classes)} classes",
            f"did you mean {' or '.join(map(repr, near))}?" if near
            else f"it holds: {', '.join(known[:20])}{', …' * (count > 20)}",
            "add a row for each class of the data, or correct its name in classes",
        )  # fmt: skip
    return [known.index(name) for name in classes]
