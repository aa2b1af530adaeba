"""Layout of run folders: names of files, runs below a folder, and folders for new runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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
