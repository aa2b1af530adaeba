"""The runs in a folder and the folders below it, known without opening them all.

What a run's files say is kept in ``.protofl-runs.json`` beside the runs, with times and sizes of
these files. The folder is the truth: it is walked through each time, what was kept counts only as
long as the files are those that it was read from, and an index that can't be read, or written, is
as none.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.records.folder.reading import (
    CONFIG,
    MANIFEST,
    METRICS,
    SUMMARY,
    Reading,
    is_run,
    runs_below,
)

INDEX = ".protofl-runs.json"
_FORMAT = 1

Stamps = list[list[int]]
"""Of some files time, size and number, by which another file in their place is told."""


@dataclass(frozen=True)
class Told:
    """What the files of a run say, as far as it is asked of many runs at once.

    Attributes:
        identity: Its identity; empty of runs that were made before it was recorded.
        name: Its method, or the recipe that it was made by.
        method: Its method.
        models: Its model group.
        dataset: Its data set.
        digest: The data's digest.
        partition: Its partitioner.
        clients: Clients M.
        seed: The seed of its first trial.
        trials: Trials asked for.
        rounds: Rounds asked for, of each.
        done: Rounds done, of all trials together.
        finished: Whether it has done all that it was to do.
        best: The best test accuracy, over trials the mean; None before the first evaluation.
        final: The last test accuracy, likewise.
        time: When its last round ended, or it was begun, in seconds.
        problem: What is wrong with the files; empty of whole ones.
    """

    identity: str = ""
    name: str = "?"
    method: str = "?"
    models: str = "?"
    dataset: str = "?"
    digest: str = ""
    partition: str = "?"
    clients: int = 0
    seed: int = 0
    trials: int = 0
    rounds: int = 0
    done: int = 0
    finished: bool = False
    best: float | None = None
    final: float | None = None
    time: float = 0.0
    problem: str = ""


class Index:
    """What is told of the runs in a folder and below it.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = _read(folder / INDEX)

    def runs(self, *, save: bool = True) -> dict[Path, Told]:
        """The runs that are there now, {run folder: what its files say}.

        Args:
            save: Whether to keep what was read for others; nothing is put into a run's own folder.
        """
        found: dict[str, tuple[Stamps, Told]] = {}
        fresh = False
        for path in runs_below(self._folder):
            name, stamps = path.relative_to(self._folder).as_posix(), _stamps(path)
            old = self._kept.get(name)
            if old is None or old[0] != stamps:
                fresh, old = True, (stamps, told_of(path))
            found[name] = old
        moved = fresh or found.keys() != self._kept.keys()
        if save and moved and not is_run(self._folder):
            _write(self._folder / INDEX, found)
        self._kept = found
        return {self._folder / name: told for name, (_, told) in found.items()}


def runs_in(folder: Path) -> dict[Path, Told]:
    """What is told of the runs in a folder and below it, {run folder: what its files say}.

    Args:
        folder: The folder.
    """
    return Index(folder).runs()


def told_of(path: Path) -> Told:
    """What the files of one run say; damaged ones are told, as others are asked for with it."""
    reading, about = Reading(path), dict[str, Any]()
    try:
        about = _about(reading.config)
        return Told(**about, **_progress(reading))
    except UsageError as error:
        problem = error.what
    except STRANGE:
        problem = f"{path}: {'its record' if about else CONFIG} is not what a run writes"
    return Told(**about, problem=problem, time=_time(path / CONFIG))


STRANGE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What comes of reading a table that somebody has edited, and that has other things in it."""


def _about(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("method", "clients", "seed", "trials", "rounds")
    return {
        "identity": str(config.get("identity", "")),
        "name": str((config.get("recipe") or {}).get("name") or config["method"]),
        "models": str(config.get("models", "?")),
        "dataset": str(config.get("dataset", "?")),
        "digest": str((config.get("data") or {}).get("digest", "")),
        "partition": str(config.get("partition", "?")),
        **{key: config[key] for key in keys},
    }


def _progress(reading: Reading) -> dict[str, Any]:
    """How far a run is; of a finished one the summary says it, and its record is only counted."""
    config, summary = reading.config, reading.summary
    asked = config["rounds"] * config["trials"]
    if summary is not None and _lines(reading.path / METRICS) >= asked:
        mean = summary.get("mean", {})
        return {
            "done": asked,
            "finished": True,
            "best": _number(mean.get("best_test_accuracy")),
            "final": _number(mean.get("final_test_accuracy")),
            "time": _time(reading.path / SUMMARY),
        }
    scored: dict[int, list[tuple[int, float]]] = {}
    for row in reading.rows:
        if (accuracy := row.test_accuracy) is not None:
            scored.setdefault(row.trial, []).append((row.round, float(accuracy)))
    best = [max(accuracy for _, accuracy in own) for own in scored.values()]
    final = [max(own)[1] for own in scored.values()]
    file = reading.path / METRICS
    return {
        "done": len(reading.rows),
        "finished": reading.finished,
        "problem": reading.lost,
        "best": sum(best) / len(best) if best else None,
        "final": sum(final) / len(final) if final else None,
        "time": _time(file if reading.rows else reading.path / CONFIG),
    }


def _number(value: Any) -> float | None:  # noqa: ANN401 - whatever a file holds
    return None if value is None else float(value)


def _lines(file: Path) -> int:
    with suppress(OSError):
        return file.read_bytes().count(b"\n")
    return 0


def _time(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _stamps(path: Path) -> Stamps:
    found = []
    for name in (CONFIG, METRICS, MANIFEST, SUMMARY):
        try:
            about = os.stat(path / name)
            found.append([about.st_mtime_ns, about.st_size, about.st_ino])
        except OSError:
            found.append([])
    return found


def _read(file: Path) -> dict[str, tuple[Stamps, Told]]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["format"] != _FORMAT:
            return {}
        return {name: (stamps, Told(**told)) for name, (stamps, told) in values["runs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(file: Path, runs: Mapping[str, tuple[Stamps, Told]]) -> None:
    """Keep what was read; several processes may do so at a time, each with a file of its own."""
    rows = {name: [stamps, asdict(told)] for name, (stamps, told) in runs.items()}
    part = ""
    with suppress(OSError):
        try:
            descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=f"{INDEX}.")
            with open(descriptor, "w", encoding="utf-8") as out:
                json.dump({"format": _FORMAT, "runs": rows}, out)
            os.replace(part, file)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
