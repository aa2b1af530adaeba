"""Layout of run folders: names of files, runs below a folder, and folders for new runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.system.files.atomic import unused_path
from protofl.system.files.lock import LOCK

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
PARTITION, MANIFEST = "partition.json", "checkpoint/manifest.json"
TRACKING = "tracking.json"
FAILURE = "failure.json"
SESSION = "session.json"
PREPARATION = "preparation.json"
OBSERVED, UPLOADS, PREDICTIONS = "observed", "uploads", "predictions"
"""Folders of a run: observations, accepted uploads, and predictions of test samples."""

DIGESTS = "SHA256SUMS"
"""The digests of a published folder, into which only ``protofl publish`` writes."""

FOLDERS = ("checkpoint/", "parked/", "profile/", "observed/", "uploads/", "predictions/")
OWN = (CONFIG, METRICS, SUMMARY, PARTITION, PREPARATION, TRACKING, FAILURE, SESSION, *FOLDERS)
"""Files and folders that a run writes into its folder."""


def fresh_folder(*names: str, below: Path = Path("runs")) -> Path:
    """Return an unused path ``runs/NAME-…-TIME``."""
    return unused_path(below / name_of(*names, f"{datetime.now():%Y%m%d-%H%M%S}"))


def name_of(*names: str) -> str:
    """Join names to the name of a folder; long names are cut."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(filter(None, (name[:60] for name in names))))


def architectures_in(config: Mapping[str, Any]) -> list[str]:
    """Return the architectures of ``config.json``: client i has the one at place i mod length."""
    layout = config.get("layout")
    return [*config.get("architectures", ())] or ([*layout] if isinstance(layout, dict) else [])


def is_run(folder: Path) -> bool:
    """Return True for a run folder, but not for the ``checkpoint/`` inside one."""
    if not (folder / CONFIG).is_file():
        return False
    return not (folder.name == "checkpoint" and (folder / "manifest.json").is_file())


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the run folders in a folder and below it, sorted by name.

    Folders inside a run, hidden folders, and links to folders that are not runs are skipped.
    """
    if is_run(folder):
        yield folder
        return
    try:
        below = sorted(e for e in folder.iterdir() if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return
    for entry in below:
        if not entry.is_symlink() or is_run(entry):
            yield from runs_below(entry)


def no_run(typed: str | Path, path: Path) -> UsageError:
    """Return the error for a folder that is not a run folder.

    Args:
        typed: The folder as the user wrote it.
        path: The folder.
    """
    what = f"{typed} is not a run folder (it has no {CONFIG})"
    if not path.is_dir():
        near = "there is no such folder" if not path.exists() else "it is a file"
        return UsageError(what, near, "give the folder of a run")
    if (path / MANIFEST).is_file():
        near = f"it has the checkpoint of one, whose {CONFIG} is lost"
        do = "put it back; checkpoint/config.json says how the run began"
        return UsageError(what, near, do)
    if path.name == "checkpoint" and (path / "manifest.json").is_file():
        what = f"{typed} is not a run folder, it is the checkpoint of one"
        return UsageError(what, do="give the folder that it is in")
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{CONFIG}"))
    near = f"runs in it: {', '.join(inside[:5])}" if inside else "it holds no runs"
    near += f", and {len(inside) - 5} more" if len(inside) > 5 else ""
    return UsageError(what, near, "give the folder of a run")


def check_resumable(folder: Path) -> None:
    """Raise a `UsageError` if a folder holds no run that could be resumed."""
    if not any((folder / name).exists() for name in (CONFIG, MANIFEST)):
        raise UsageError(
            f"--resume: {folder} is not a run folder (it has no {CONFIG})",
            do="give the folder of an interrupted run with --out",
        )


def check_free(path: Path) -> None:
    """Raise a `UsageError` if a new run cannot use a folder."""
    leftover = {LOCK, "config.json.part"}  # of a run that was killed before it began
    try:
        used = path.exists() and (not path.is_dir() or {p.name for p in path.iterdir()} - leftover)
    except OSError as error:  # a name that is too long, say
        raise UsageError(f"--out {path} cannot be written: {error.strerror}") from None
    if used:
        raise UsageError(
            f"--out {path} is in use",
            do="choose another folder, or continue the run in it with --resume",
        )
    parent = next(place for place in (path, *path.parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"--out {path} cannot be written", do="choose another folder with --out")
