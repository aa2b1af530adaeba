"""The cache of decoded data sets: one safetensors file each, opened as a memory map.

A data set is decoded once into ``DATA_DIR/KEY.safetensors``. Opening it again maps the file, so it
takes about a millisecond whatever its size, and processes that use the same data share its pages.
The mapping is private: writing to a tensor changes neither the file nor another process's data.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from protofl.data.dataset import Dataset
from protofl.data.npz import read_npz
from protofl.errors import ProtoflError, UsageError

__all__ = ["CacheEntry", "cache_file", "entries", "files_key", "import_npz", "load"]

FORMAT = 1  # raised whenever older files can't be read any more; they are decoded again then
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class CacheEntry:
    """One cached data set, as ``protofl data list`` shows it.

    Attributes:
        key: Its name in the cache; the data set's name for those without options.
        path: The file.
        samples: N, test part included.
        num_train: Samples of the training part.
        shape: channels, height, width.
        dtype: ``uint8`` or ``float32``.
        classes: C.
        clients: Clients of a given split, 0 where a partitioner splits.
        bytes: Size of the file.
        digest: SHA-256 of the data.
        note: A deviation to print beside figures.
        problem: Why the file can't be used; the fields above are 0 or empty then.
    """

    key: str
    path: Path
    samples: int = 0
    num_train: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    classes: int = 0
    clients: int = 0
    bytes: int = 0
    digest: str = ""
    note: str = ""
    problem: str = ""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load(
    key: str,
    data_dir: Path,
    decode: Callable[[], Dataset],
    report: Callable[[str], None] = _to_stderr,
) -> Dataset:
    """Return the data set ``key`` from the cache; decode it first where the cache has none.

    Of several processes that ask at the same time one decodes and the others wait for it. A file
    that is damaged or of an older format is decoded again.

    Args:
        key: What the data set's ``cache_key`` returned.
        data_dir: The folder of the cache; created where missing.
        decode: Returns the data; what it returns is written, dropped and opened from the cache.
        report: Takes a line about what is going on.

    Raises:
        UsageError: ``data_dir`` can't be written, or what ``decode`` raises.
    """
    path = cache_file(key, data_dir)
    images = _reuse(path, report)
    if images is None:
        with _exclusive(path, report):
            images = _reuse(path, lambda line: None)
            if images is None:
                report(f"preparing {key} (once; kept in {data_dir})")
                images = _store(path, decode())
    return images


def import_npz(name: str, file: str | Path, data_dir: Path) -> Dataset:
    """Put the content of an ``.npz`` file into the cache as data set ``name``, replacing it.

    Args:
        name: The data set's cache key.
        file: See ``read_npz``.
        data_dir: The folder of the cache.

    Raises:
        UsageError: The file doesn't hold a data set, or ``data_dir`` can't be written.
    """
    path = cache_file(name, data_dir)
    images = read_npz(file)
    test = len(images.y) - images.num_train
    origin = (
        f"{name} as imported from {Path(file).name}: "
        f"{images.num_train} training and {test} test samples"
    )
    images.note = f"{origin}; {images.note}" if images.note else origin
    with _exclusive(path, _to_stderr):
        return _store(path, images)


def entries(data_dir: Path) -> list[CacheEntry]:
    """What the cache holds, by name; files that can't be used carry their problem."""
    found = []
    for path in sorted(Path(data_dir).glob(f"*{_SUFFIX}")):
        entry = CacheEntry(key=path.name[: -len(_SUFFIX)], path=path, bytes=path.stat().st_size)
        try:
            images = _read(path)
        except _Unusable as problem:
            found.append(replace(entry, problem=str(problem)))
            continue
        found.append(
            replace(
                entry,
                samples=len(images.y),
                num_train=images.num_train,
                shape=tuple(images.x.shape[1:]),
                dtype=str(images.x.dtype).removeprefix("torch."),
                classes=images.num_classes,
                clients=len(images.split or ()),
                digest=images.digest,
                note=images.note,
            )
        )
    return found


def files_key(prefix: str, path: Path, files: Iterable[Path], *options: object) -> str:
    """A cache key for data that lie in the user's own files: changed files, new key.

    Args:
        prefix: The data set's name.
        path: The file or folder that the user gave; its name is part of the key.
        files: All files that are read; their paths, sizes and times are hashed.
        options: Option values that change what is decoded.
    """
    path = Path(path).resolve()
    digest = hashlib.sha256(repr((str(path), options)).encode())
    for file in files:
        stat = os.stat(file)
        digest.update(repr((os.fspath(file), stat.st_size, stat.st_mtime_ns)).encode())
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:40].strip("-")
    return "-".join(filter(None, (prefix, stem, digest.hexdigest()[:12])))


def cache_file(key: str, data_dir: Path) -> Path:
    """The file of data set ``key``."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", key):
        raise ProtoflError(
            f"{key!r} is no name for a file of the data cache",
            "a data set's cache_key consists of a-z, 0-9 and -",
        )
    return Path(data_dir) / f"{key}{_SUFFIX}"


class _Unusable(Exception):
    """A cache file can't be used; the message says why."""


def _reuse(path: Path, report: Callable[[str], None]) -> Dataset | None:
    if not path.exists():
        return None
    try:
        return _read(path)
    except _Unusable as problem:
        report(f"{path} can't be used ({problem}); it is made anew")
        return None


def _read(path: Path) -> Dataset:
    """Open a cache file; its tensors are views of the mapped file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("protofl", "{}"))
            if about.get("format") != FORMAT:
                raise _Unusable("no data set in this version's format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        return Dataset(
            x=tensors["x"],
            y=tensors["y"],
            num_train=about["num_train"],
            classes=about["classes"],
            split=_unpacked_split(tensors),
            note=about["note"],
            digest=about["digest"],
        )
    except PermissionError:
        raise UsageError(
            f"no permission to read {path}", do="give another folder with --data-dir"
        ) from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _Unusable(f"damaged: {error}") from error


def _store(path: Path, images: Dataset) -> Dataset:
    """Write a cache file in one step and open it."""
    _check(images, path)
    about: dict[str, Any] = {
        "format": FORMAT,
        "num_train": images.num_train,
        "classes": images.classes,
        "note": images.note,
        "digest": images.compute_digest(),
    }
    tensors = {"x": images.x.contiguous(), "y": images.y.contiguous(), **_packed_split(images)}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the user's umask wants it; save_file writes 0600
        save_file(tensors, temporary, metadata={"protofl": json.dumps(about)})
        temporary.chmod(mode)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        raise UsageError(
            f"can't write {path} ({size / 1e6:.0f} MB): {error}",
            do="make room, or give another folder with --data-dir",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return _read(path)


def _check(images: Dataset, path: Path) -> None:
    """A data set plugin's result against its contract."""
    x, y, count = images.x, images.y, len(images.y)
    rows = [part for client in images.split or () for part in client]
    faults = [
        (
            x.ndim != 4 or x.dtype not in (torch.uint8, torch.float32),
            "x isn't N×C×H×W of uint8 or float32",
        ),
        (y.ndim != 1 or y.dtype != torch.int64 or len(x) != count, "y isn't [N] of int64"),
        (not 0 < images.num_train <= count, f"num_train is {images.num_train} of {count}"),
        (
            bool(count) and not 0 <= int(y.min()) <= int(y.max()) < images.num_classes,
            f"labels leave 0…{images.num_classes - 1}",
        ),
        (
            any(len(r) and not 0 <= int(r.min()) <= int(r.max()) < count for r in rows),
            f"rows of the split leave 0…{count - 1}",
        ),
    ]
    wrong = [text for fault, text in faults if fault]
    if wrong:
        raise ProtoflError(
            f"the data set for {path.name} was decoded wrongly: {'; '.join(wrong)}",
            do="this is an error in the data set's plugin; see protofl.Dataset",
        )


def _packed_split(images: Dataset) -> dict[str, Tensor]:
    if images.split is None:
        return {}
    packed = {}
    for part, rows in zip(("train", "test"), zip(*images.split, strict=True), strict=True):
        packed[f"split/{part}"] = torch.cat(rows)
        packed[f"split/{part}_counts"] = torch.tensor([len(r) for r in rows])
    return packed


def _unpacked_split(tensors: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    if "split/train" not in tensors:
        return None
    train, test = (
        torch.split_with_sizes(tensors[f"split/{part}"], tensors[f"split/{part}_counts"].tolist())
        for part in ("train", "test")
    )
    return list(zip(train, test, strict=True))


@contextmanager
def _exclusive(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time prepare ``path``; checks that its folder can be written.

    The lock only saves double work: where there are no file locks, writing stays safe, as a cache
    file appears in one step.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise UsageError(
            f"can't write to the data folder {path.parent}: {error.strerror or error}",
            do="give another folder with --data-dir",
        ) from error
    with file:
        _lock(file.fileno(), lambda: report(f"waiting for another process that prepares {path}"))
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _lock(descriptor: int, waiting: Callable[[], None]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return  # a file system without locks
