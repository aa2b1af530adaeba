"""Files that commands write: what is there already is kept, unless --force says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace files that are there already.")]


def checked(flag: str, path: Path, *, force: bool) -> Path:
    """The file, checked before anything takes time.

    Raises:
        UsageError: It is there already, is a folder, or its folder does not exist.
    """
    from protofl.errors import UsageError

    path = path.expanduser()
    try:
        there, is_dir, parent = path.exists(), path.is_dir(), path.absolute().parent.is_dir()
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} {path} can't be written: {error}") from None
    if is_dir or not parent:
        what = "is a folder" if is_dir else "can't be written: its folder does not exist"
        raise UsageError(f"{flag} {path} {what}", do=f"choose another file with {flag}")
    if there and not force:
        raise UsageError(
            f"{flag} {path} is there already", do=f"choose another file with {flag}, or --force"
        )
    return path
