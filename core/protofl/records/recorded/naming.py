"""Runs as a user names them, by folder or by digits of an identity; and their removal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from protofl.errors import UsageError, unknown
from protofl.records.folder.reading import CONFIG, GOING_ON, OWN, SUMMARY, Reading, is_run
from protofl.records.recorded.index import Told, runs_in
from protofl.system.files.checksums import check_plain
from protofl.system.files.lock import LOCK, alone

_IDENTITY = re.compile(r"([0-9a-f]{4,})(?:-s(\d+))?")


def named(word: str, runs: Path) -> list[Path]:
    """The runs that a word names, one at least.

    Args:
        word: A run's folder, its path or its name in the folder of runs; or four digits or more of
            an identity, which runs with several seeds may have, perhaps with ``-sSEED``.
        runs: The folder of runs.

    Raises:
        UsageError: It names none; or too few digits, by which runs of several identities begin.
    """
    if is_run(Path(word).expanduser()):
        return [Path(word).expanduser()]
    there = runs_in(runs.expanduser())
    if found := [path for path in there if path.name == word]:
        return found
    if asked := _IDENTITY.fullmatch(word):
        digits, seed = asked.groups()
        if found := [p for p, told in there.items() if _is_of(told, digits, seed)]:
            _check_one(word, {there[path].identity for path in found}, runs)
            return found
    if Path(word).expanduser().exists():
        Reading.of(word)  # says what it is in place of a run
    names = [path.name for path in there] + [told.identity[:8] for told in there.values()]
    raise unknown(f"run (in {runs})", word, filter(None, names), "see: protofl runs list")


def _is_of(told: Told, digits: str, seed: str | None) -> bool:
    return told.identity.startswith(digits) and seed in (None, str(told.seed))


def _check_one(word: str, identities: set[str], runs: Path) -> None:
    if len(identities) > 1:
        raise UsageError(
            f"{word}: runs of {len(identities)} identities (in {runs}) begin with it",
            f"they are {', '.join(sorted(identities)[:5])}",
            "write more of the digits",
        )


def size_of(folder: Path) -> int:
    """Bytes of all files in a run's folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())


def check_removable(folder: Path) -> Path:
    """Whether a run can be removed; its folder.

    Raises:
        UsageError: It is no run, goes on, or holds links in place of what a run writes.
    """
    reading = Reading.of(folder)
    if reading.state == GOING_ON:
        raise UsageError(
            f"{folder} is going on: a process is at work on it", do="end that first (Ctrl-C)"
        )
    check_plain(reading.path, OWN)
    return reading.path


def remove(folder: Path) -> list[str]:
    """Remove what a run has written, and its folder where nothing else is in it.

    Args:
        folder: The run's folder.

    Returns:
        What else is in it, and stays.

    Raises:
        UsageError: It is no run, goes on, or holds links in place of what a run writes.
    """
    check_removable(folder)
    with alone(folder, "protofl runs rm"):
        # Without a configuration it is no run any more, wherever this may be interrupted.
        for name in (CONFIG, SUMMARY, *OWN):
            if name.endswith("/"):
                shutil.rmtree(folder / name, ignore_errors=True)
            else:
                (folder / name).unlink(missing_ok=True)
        left = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK)
    if not left and not folder.is_symlink():
        folder.rmdir()
    return left
