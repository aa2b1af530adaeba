"""The cache of decoded data sets: one safetensors file each, opened as a memory map.

A data set is decoded once into ``DATA_DIR/KEY.safetensors``. Opening it again maps the file, so
processes that use the same data share its pages, and it takes no longer than its checksum (CRC-32,
some 2 GB a second). The mapping is private: writing to a tensor changes neither the file nor
another process's data.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from protofl.data.dataset import Dataset
from protofl.data.preparation import Preparation
from protofl.data.tasks import Task
from protofl.errors import ProtoflError, UsageError
from protofl.system.files.lock import cache_lock
from protofl.system.formatting import size_text, visible

__all__ = ["cache_file", "load", "to_stderr"]

FORMAT = 1  # raised when the format changes; files of another format are decoded again
_SUFFIX = ".safetensors"


def to_stderr(line: str) -> None:
    """Print a progress line to standard error."""
    print(visible(line), file=sys.stderr, flush=True)


def load(
    key: str,
    data_dir: Path,
    decode: Callable[[], Dataset],
    report: Callable[[str], None] = to_stderr,
    *,
    keep: bool = True,
) -> Dataset:
    """Return the data set ``key`` from the cache; decode it first if the cache lacks it.

    The file is compared with its checksum. Of several processes that ask at the same time one
    decodes and the others wait for it. A file that is damaged or of another format is decoded
    again.

    Args:
        key: The result of the data set's ``cache_key``.
        data_dir: The folder of the cache; created where missing.
        decode: Returns the data, which are written, dropped and opened from the cache.
        report: Takes a line about the progress.
        keep: False to decode the data without reading or writing the cache.

    Raises:
        UsageError: ``data_dir`` can't be written, or what ``decode`` raises.
    """
    path = cache_file(key, data_dir)
    if not keep:
        decoded = decode()
        _check(decoded, path)
        return replace(decoded, digest=decoded.compute_digest())
    data = _reuse(path, report)
    if data is None:
        with cache_lock(path, report):
            data = _reuse(path, lambda line: None)
            if data is None:
                report(f"preparing {key} (once; kept in {data_dir})")
                data = _store(path, decode())
    return data


def cache_file(key: str, data_dir: Path) -> Path:
    """The file of data set ``key``."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", key):
        raise ProtoflError(
            f"{key!r} is not a name for a file of the data cache",
            "a data set's cache_key consists of a-z, 0-9 and -",
        )
    return Path(data_dir) / f"{key}{_SUFFIX}"


class _Unusable(Exception):
    """A cache file can't be used; the message says why."""


def _reuse(path: Path, report: Callable[[str], None]) -> Dataset | None:
    if not path.exists():
        return None
    try:
        return _read(path, verify=True)
    except _Unusable as problem:
        report(f"{path} cannot be used ({problem}); it is made anew")
        return None


def _read(path: Path, *, verify: bool = False) -> Dataset:
    """Open a cache file; its tensors are views of the mapped file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("protofl", "{}"))
            if about.get("format") != FORMAT:
                raise _Unusable("no data set in this version's format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        data = Dataset(
            x=tensors["x"],
            y=tensors["y"],
            num_train=about["num_train"],
            classes=about["classes"],
            split=_unpacked_split(tensors),
            note=about["note"],
            digest=about["digest"],
            vocabulary=about.get("vocabulary", 0),
            padding=about.get("padding"),
            task=Task(**about.get("task", {})),
            targets=tensors.get("targets"),
            outputs=about.get("outputs", []),
            group=about.get("group", ""),
        )
        if named := about.get("columns"):
            from protofl.data import columns

            data.columns = columns.unpacked(tensors, named, path.parent)
        recorded = about["preparation"]
        data.preparation = None if recorded is None else Preparation.of_json(recorded, str(path))
        if verify and _checksum(tensors, about) != about["checksum"]:
            raise _Unusable("damaged: its content was changed")
        return data
    except PermissionError:
        raise UsageError(
            f"no permission to read {path}", do="give another folder with --data-dir"
        ) from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _Unusable(f"damaged: {error}") from error


def _store(path: Path, data: Dataset) -> Dataset:
    """Write a cache file in one step and open it."""
    _check(data, path)
    about: dict[str, Any] = {
        "format": FORMAT,
        "num_train": data.num_train,
        "classes": data.classes,
        "note": data.note,
        "digest": data.compute_digest(),
        "preparation": None if data.preparation is None else data.preparation.as_json(),
    }
    if data.vocabulary:
        about |= {"vocabulary": data.vocabulary, "padding": data.padding}
    tensors = {"x": data.x.contiguous(), "y": data.y.contiguous(), **_packed_split(data)}
    if data.targets is not None:
        about |= {"task": asdict(data.task), "outputs": data.outputs}
        tensors["targets"] = data.targets.contiguous()
    if data.columns:
        from protofl.data import columns

        values, about["columns"] = columns.packed(data.columns)
        tensors |= values
    if data.group:
        about["group"] = data.group
    about["checksum"] = _checksum(tensors, about)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        save_file(tensors, temporary, metadata={"protofl": json.dumps(about)})
        temporary.chmod(0o600)  # data of patients are read by their user alone
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        raise UsageError(
            f"cannot write {path} ({size_text(size)}): {error}",
            do="make room, or give another folder with --data-dir",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return _read(path)


def _checksum(tensors: dict[str, Tensor], about: dict[str, Any]) -> int:
    """CRC-32 of all that a cache file holds."""
    told = {key: value for key, value in about.items() if key != "checksum"}
    result = zlib.crc32(json.dumps(told, sort_keys=True).encode())
    for name in sorted(tensors):
        result = zlib.crc32(f"{name} {tuple(tensors[name].shape)}".encode(), result)
        result = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, result)
    return result


def _check(data: Dataset, path: Path) -> None:
    """Check the result of a data set plugin."""
    wrong = data.faults()
    if wrong:
        raise ProtoflError(
            f"the data set for {path.name} was decoded wrongly: {'; '.join(wrong)}",
            do="this is an error in the data set's plugin; see protofl.datasets.Dataset",
        )


def _packed_split(data: Dataset) -> dict[str, Tensor]:
    if data.split is None:
        return {}
    packed = {}
    for subset, rows in zip(("train", "test"), zip(*data.split, strict=True), strict=True):
        packed[f"split/{subset}"] = torch.cat(rows)
        packed[f"split/{subset}_counts"] = torch.tensor([len(r) for r in rows])
    return packed


def _unpacked_split(tensors: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    if "split/train" not in tensors:
        return None
    train, test = (
        torch.split_with_sizes(
            tensors[f"split/{subset}"], tensors[f"split/{subset}_counts"].tolist()
        )
        for subset in ("train", "test")
    )
    return list(zip(train, test, strict=True))
