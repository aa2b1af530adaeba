"""A run's folder as others read it: at any moment, also while the run goes on, and without torch.

What a run writes appears whole (`protofl.system.files.atomic`) but for the last line of its
record: a half-written one is left out. Everything else that can't be read is damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.records.folder.row import Row
from protofl.system.files.checksums import Damaged, read_json
from protofl.system.files.lock import LOCK, is_held

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
PARTITION, MANIFEST = "partition.json", "checkpoint/manifest.json"
TRACKING = "tracking.json"
FAILURE = "failure.json"

FOLDERS = ("checkpoint/", "parked/", "profile/", "observed/", "uploads/")
OWN = (CONFIG, METRICS, SUMMARY, PARTITION, TRACKING, FAILURE, *FOLDERS)
"""What a run writes into its folder."""

FINISHED, UNFINISHED, GOING_ON, DAMAGED = "finished", "unfinished", "going on", "damaged"
DIVERGED = "diverged"


@dataclass(frozen=True)
class Reading:
    """What lies in a run's folder; each file is read when it is first asked for.

    Another reading sees what has been written since.

    Attributes:
        path: The folder.
    """

    path: Path

    @classmethod
    def of(cls, folder: str | Path) -> Reading:
        """A folder that is a run's.

        Raises:
            UsageError: It isn't.
        """
        path = Path(folder).expanduser()
        if not is_run(path):
            raise _no_run(folder, path)
        return cls(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What ``config.json`` says: every option, resolved, and what they stood for.

        Raises:
            Damaged: It isn't whole, or tells of no run.
        """
        values = _table(self.path / CONFIG)
        for key, kind in _NEEDED.items():
            if not isinstance(values.get(key), kind) or (key in _COUNTS and values[key] < 1):
                raise Damaged(
                    f"{self.path / CONFIG} doesn't say what the run was: {key} is "
                    f"{values.get(key, 'missing')}"
                )
        return values

    @cached_property
    def rows(self) -> list[Row]:
        """The whole lines of ``metrics.jsonl``, in the order in which they were made.

        Raises:
            Damaged: A line other than the last is no line of a record; it names file and line.
        """
        return read_rows(self.path / METRICS)

    @cached_property
    def partition(self) -> dict[str, Any] | None:
        """What ``partition.json`` says; None of a run that has not come so far.

        Raises:
            Damaged: It isn't whole.
        """
        return _where_there_is_one(self.path / PARTITION)

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` says; None of a run that isn't finished.

        Raises:
            Damaged: It isn't whole.
        """
        return _where_there_is_one(self.path / SUMMARY) if self.finished else None

    @cached_property
    def finished(self) -> bool:
        """Whether the run has done all that it was to do.

        Its manifest says so; of a copy without ``checkpoint/`` the summary's being there.
        """
        manifest = self.path / MANIFEST
        if manifest.is_file():
            values = _table(manifest)
            if "checks" in values:  # those of protofl 0.1.0 have none, and don't say it
                return values.get("finished") is True
        return bool(_where_there_is_one(self.path / SUMMARY))

    @property
    def going_on(self) -> bool:
        """Whether a process is at work on it, as far as its lock can be seen from here."""
        return is_held(self.path / LOCK)

    @property
    def state(self) -> str:
        """How far it is.

        ``finished``, ``going on``, ``unfinished``, ``diverged``: unfinished, as its training ended
        in NaN, or ``damaged``: finished, and rounds lack.
        """
        if self.going_on:
            return GOING_ON
        if not self.finished:
            return DIVERGED if self.failure else UNFINISHED
        try:
            return DAMAGED if self.lost else FINISHED
        except Damaged:
            return DAMAGED

    @cached_property
    def failure(self) -> dict[str, Any] | None:
        """Why its training diverged; None where it didn't, or where it has come further since."""
        try:
            found = read_json(self.path / FAILURE)
            return found if found["done"] == len(self.rows) else None
        except (OSError, Damaged, LookupError, TypeError):
            return None

    @property
    def lost(self) -> str:
        """What a finished run's record lacks, in words; empty for nothing."""
        asked = self.config["rounds"] * self.config["trials"]
        if not self.finished or len(self.rows) >= asked:
            return ""
        return (
            f"{self.path / METRICS}, line {len(self.rows) + 1}, is missing: the run is finished, "
            f"and had {asked:,} rounds"
        )


_COUNTS = ("rounds", "trials", "clients")
_NEEDED = {"method": str, **dict.fromkeys(_COUNTS, int), "seed": int}


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's; its ``checkpoint/`` is none, though it has a configuration."""
    if not (folder / CONFIG).is_file():
        return False
    return not (folder.name == "checkpoint" and (folder / "manifest.json").is_file())


def _no_run(given: str | Path, path: Path) -> UsageError:
    what = f"{given} is no run folder (it has no {CONFIG})"
    if not path.is_dir():
        near = "there is no such folder" if not path.exists() else "it is a file"
        return UsageError(what, near, "give the folder of a run")
    if (path / MANIFEST).is_file():
        near = f"it has the checkpoint of one, whose {CONFIG} is lost"
        do = "put it back; checkpoint/config.json says how the run began"
        return UsageError(what, near, do)
    if path.name == "checkpoint" and (path / "manifest.json").is_file():
        what = f"{given} is no run folder, it is the checkpoint of one"
        return UsageError(what, do="give the folder that it is in")
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{CONFIG}"))
    near = f"runs in it: {', '.join(inside[:5])}" if inside else "it holds no runs"
    near += f", and {len(inside) - 5} more" if len(inside) > 5 else ""
    return UsageError(what, near, "give the folder of a run")


def read_rows(file: Path) -> list[Row]:
    """The lines of a record that are whole; none where there is no file yet.

    Raises:
        Damaged: A line is none of a record; it names file and line.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Damaged(f"{file} can't be read: {error.strerror or error}") from None
    rows = [_row(file, number, line) for number, line in enumerate(lines[:-1], 1)]
    if lines[-1]:  # without an end of line: half written, or a copy that lost it
        try:
            rows.append(_row(file, len(lines), lines[-1]))
        except Damaged:
            pass
    return rows


def _row(file: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
        if type(row["trial"]) is int and type(row["round"]) is int:
            return Row.from_json(dict(row))
        problem = "trial or round is no number"
    except (ValueError, RecursionError):
        problem = "it is no JSON"
    except (TypeError, KeyError):
        problem = "it has no trial and round"
    raise Damaged(f"{file}, line {number}, is damaged: {problem}")


def _where_there_is_one(file: Path) -> dict[str, Any] | None:
    """A table in a file; None where there is no file, or an empty one, which says nothing."""
    try:
        if not file.stat().st_size:
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{file} can't be read: {error.strerror or error}") from None
    return _table(file)


def _table(file: Path) -> dict[str, Any]:
    """A table in a file, which may be a link to one elsewhere: nothing is written here."""
    return read_json(file.resolve() if file.is_symlink() else file)


def runs_below(folder: Path) -> Iterator[Path]:
    """The folders of runs in a folder and the folders below it, by name.

    A run's own folders are not looked through, nor hidden ones, nor links to other folders.
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
