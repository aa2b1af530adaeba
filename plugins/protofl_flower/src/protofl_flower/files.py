"""Files of federations and nodes: TOML, JSON that is replaced in one step, locks of folders."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import protofl as pf


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UsageError: The file is missing or damaged.
    """
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except (OSError, ValueError) as error:
        raise pf.UsageError(f"{path} cannot be read: {error}") from None


def write_json(path: Path, values: Any) -> None:  # noqa: ANN401 - anything JSON can hold
    """Replace a file by values as JSON, in one step."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(values) + "\n", encoding="utf-8")
    temporary.replace(path)


@contextmanager
def folder_lock(folder: Path, noun: str) -> Iterator[None]:
    """Reserve a folder for this process until the block or the process ends.

    Args:
        folder: The folder.
        noun: What it is, for errors.

    Raises:
        UsageError: Another process has the folder, or it can't be written.
    """
    try:
        lock = FileLock(folder / ".lock").acquire(timeout=0.1)
    except Timeout:
        raise pf.UsageError(
            f"{noun} {folder}: another process uses this folder", do="wait for its end"
        ) from None
    except OSError as error:
        raise pf.UsageError(
            f"{noun} {folder} cannot be written: {error.strerror or error}",
            do="make the folder writable",
        ) from None
    with lock:
        yield
