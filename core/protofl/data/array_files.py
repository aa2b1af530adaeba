"""NumPy's files from others (.npy, .npz), checked before their arrays are read."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from protofl.errors import UsageError
from protofl.system.files.atomic import LARGEST_DATA
from protofl.system.files.tensors import shown_name

FREE = 1 << 30
"""Bytes of arrays that a compressed file may hold whatever its own size."""

RATIO = 200
"""Largest ratio of the bytes of larger arrays to those of their compressed file."""


def open_arrays(file: IO[bytes], path: Path, *, pickles: bool = False) -> Any:  # noqa: ANN401
    """Open a file of arrays as `numpy.load` does, after checks of what it declares.

    Args:
        file: The open file.
        path: Its path, for errors.
        pickles: True to read pickled objects.

    Returns:
        An array (.npy), or a mapping from names to arrays (.npz).

    Raises:
        UsageError: A member of the file is not an array or occurs twice, or the arrays are
            implausibly large.
        Exception: Errors of NumPy and zipfile about damaged files.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(len(np.lib.format.MAGIC_PREFIX))
    file.seek(0)
    if start == np.lib.format.MAGIC_PREFIX:
        _check_array(file, size, str(path))
    elif start.startswith((b"PK\x03\x04", b"PK\x05\x06")):  # the second is an empty archive
        with zipfile.ZipFile(file) as archive:
            _check_archive(archive, size, path)
    file.seek(0)
    return np.load(file, allow_pickle=pickles)


def _check_archive(archive: zipfile.ZipFile, size: int, path: Path) -> None:
    members = archive.infolist()
    seen: set[str] = set()
    for member in members:
        name = shown_name(member.filename)
        if member.filename in seen:
            raise UsageError(f"{path} holds {name} twice", do="save it again (numpy.savez)")
        seen.add(member.filename)
        if not member.filename.endswith(".npy"):
            raise UsageError(
                f"{path}: its member {name} is not an array (.npy)",
                do="save only arrays in it (numpy.savez)",
            )
    total = sum(member.file_size for member in members)
    if total > LARGEST_DATA or (total > FREE and total > RATIO * size):
        raise UsageError(
            f"{path} has {_text(size)}, and its arrays would have {_text(total)}",
            f"arrays of more than {_text(FREE)} may have {RATIO} times the bytes of their file, "
            f"and at most {_text(LARGEST_DATA)}",
            "if the arrays are what you expect, save them without compression (numpy.savez)",
        )
    for member in members:
        with archive.open(member) as content:
            _check_array(content, member.file_size, f"{path}: {shown_name(member.filename)}")


def _check_array(content: IO[bytes], size: int, what: str) -> None:
    """Check that an array is not larger than its bytes; NumPy would first make room for it."""
    try:
        version = np.lib.format.read_magic(content)
    except ValueError:
        raise UsageError(f"{what} is not an array", do="save it again (numpy.savez)") from None
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:  # version 3: names of columns in other alphabets
        return
    shape, _, dtype = readers[version](content)
    needed = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and needed > size:
        raise UsageError(
            f"{what} is cut: {_text(size)} are left of an array of {_text(needed)}",
            do="copy or save it again",
        )


def _text(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.2g} MiB"
