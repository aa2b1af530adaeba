"""Files that commands write: existing files are kept without --force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofl.system.files.home import expand_user

Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


def checked(flag: str, path: Path, *, force: bool) -> Path:
    """Check a file before any long step, and return its path.

    Raises:
        UsageError: The file exists already, is not a regular file, or its folder does not exist.
    """
    from protofl.errors import UsageError
    from protofl.system.files.atomic import check_target

    path = expand_user(path)
    try:
        there, is_dir, parent = path.exists(), path.is_dir(), path.absolute().parent.is_dir()
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} {path} cannot be written: {error}") from None
    if is_dir or not parent:
        what = "is a folder" if is_dir else "cannot be written: its folder does not exist"
        raise UsageError(f"{flag} {path} {what}", do=f"choose another file with {flag}")
    check_target(path)
    if there and not force:
        raise UsageError(
            f"{flag} {path} exists already", do=f"choose another file with {flag}, or --force"
        )
    return path
