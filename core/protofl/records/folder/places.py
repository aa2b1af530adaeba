"""Where a run's folder is to be: what it is called, and whether it may be used."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path

from protofl.errors import UsageError
from protofl.records.folder.reading import CONFIG
from protofl.system.files.atomic import unused
from protofl.system.files.lock import LOCK


def fresh_folder(*words: str, below: Path = Path("runs")) -> Path:
    """``runs/WORD-…-TIME``, where there is nothing yet."""
    return unused(below / name_of(*words, f"{datetime.now():%Y%m%d-%H%M%S}"))


def name_of(*words: str) -> str:
    """``WORD-WORD-…`` as the name of a folder; long words are cut."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(filter(None, (word[:60] for word in words))))


def check_run(folder: Path) -> None:
    """Raise a `UsageError` where there is no run that could be resumed."""
    if not any((folder / name).exists() for name in (CONFIG, "checkpoint/manifest.json")):
        raise UsageError(
            f"--resume: {folder} is no run folder (it has no {CONFIG})",
            do="give the folder of an interrupted run with --out",
        )


def check_free(path: Path) -> None:
    """Raise a `UsageError` where a new run can't use a folder."""
    leftover = {LOCK, "config.json.part"}  # of a run that was killed before it began
    try:
        used = path.exists() and (not path.is_dir() or {p.name for p in path.iterdir()} - leftover)
    except OSError as error:  # a name that is too long, say
        raise UsageError(f"--out {path} can't be written: {error.strerror}") from None
    if used:
        raise UsageError(
            f"--out {path} is in use",
            do="choose another folder, or continue the run in it with --resume",
        )
    parent = next(place for place in (path, *path.parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"--out {path} can't be written", do="choose another folder with --out")
