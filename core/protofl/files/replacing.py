"""Files that are written beside their place and take it in one step: whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path to write to; what it holds takes the place of ``path`` when the block has ended.

    Where the block fails ``path`` is what it was.
    """
    part = path.with_name(path.name + ".part")
    yield part
    os.replace(part, path)


def write_json(path: Path, values: Any) -> None:  # noqa: ANN401 - anything JSON can hold
    """Write a file atomically and durably."""
    with replacing(path) as part, open(part, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """Have a file under a second name, by a hard link where the file system allows it.

    A file is never changed, only replaced, so that the two don't influence each other.
    """
    with replacing(target) as part:
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
    # Renaming a link to the name of another link to the same file does nothing at all.
    part.unlink(missing_ok=True)


def unused(path: Path) -> Path:
    """The path, or ``PATH-2``, ``PATH-3`` and so on: the first at which there is nothing."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


@contextmanager
def gone_afterwards(folder: Path) -> Iterator[Path]:
    """A folder that may be made in the block; it is removed with all that it holds."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
