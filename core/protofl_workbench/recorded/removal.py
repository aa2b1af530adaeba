"""Removal of runs: the files that a run wrote, and nothing else."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from protofl.errors import UsageError
from protofl.records.layout import CONFIG, OWN, SUMMARY
from protofl.records.reading import GOING_ON, Reading
from protofl.system.files.checksums import check_plain
from protofl.system.files.lock import LOCK, folder_lock


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a run folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())


def check_removable(folder: Path) -> Path:
    """Check that a run can be removed, and return its folder.

    Raises:
        UsageError: It is not a run, is still going on, or is or contains links.
    """
    if folder.is_symlink():
        raise UsageError(
            f"{folder} is a link to {folder.resolve()}, and links are not followed here",
            do="give the folder of the run, or remove the link itself",
        )
    reading = Reading.of(folder)
    if reading.state == GOING_ON:
        raise UsageError(f"{folder} is still running", do="stop it first (Ctrl-C)")
    check_plain(reading.folder, OWN)
    return reading.folder


def remove(folder: Path) -> list[str]:
    """Remove the files of a run, and its folder if it is empty then.

    Returns:
        Names of other files in the folder, which stay.

    Raises:
        UsageError: It is not a run, is still going on, or contains links.
    """
    check_removable(folder)
    with folder_lock(folder, "protofl runs rm"):
        # First the configuration: a folder without it is not a run, if the removal is interrupted.
        for name in (CONFIG, SUMMARY, *OWN):
            if name == "parked/":  # only scratch folders
                shutil.rmtree(folder / name, ignore_errors=True)
            elif name.endswith("/"):
                _remove_files(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        left = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK)
    if not left:
        folder.rmdir()
    return left


_WRITTEN = re.compile(
    r"((client-\d+-|clients-|server-|kept-)?t\d+-r\d+|config(-\d+x\d+)?|manifest|before|begin"
    r"|journal|summary|trace)\.(json|jsonl|safetensors)(\.part)?"
)
"""Names of the files that runs write into the folders of their folder."""


def _remove_files(folder: Path) -> None:
    """Remove the files that a run wrote into a folder, and the folder if it is empty then."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_file() and _WRITTEN.fullmatch(entry.name):
            entry.unlink()
    with suppress(OSError):  # other files stay
        folder.rmdir()
