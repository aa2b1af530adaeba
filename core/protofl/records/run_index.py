"""Facts about the runs in a folder and below it, and runs by name or identity."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from protofl.errors import UsageError, unknown
from protofl.records.layout import (
    CONFIG,
    MANIFEST,
    METRICS,
    SUMMARY,
    is_run,
)
from protofl.records.reading import Reading
from protofl.system.files.atomic import regular_file
from protofl.system.files.home import expand_user

Stamps = tuple[tuple[int, ...], ...]
"""Time, size and inode of some files, to detect changes."""


@dataclass(frozen=True)
class IndexEntry:
    """Facts about a run.

    Attributes:
        identity: Its identity; empty if the configuration cannot be read.
        name: Its method.
        method: Its method.
        models: Its model group.
        dataset: Its data set.
        digest: The digest of the data.
        partition: Its partitioner.
        clients: Number of clients M.
        seed: Seed of the first trial.
        trials: Number of trials asked for.
        rounds: Rounds of each trial asked for.
        done: Finished rounds of all trials.
        finished: True if all rounds are done.
        best: Best test accuracy, averaged over trials; None before the first evaluation.
        final: Last test accuracy, averaged over trials.
        time: When its last round ended or it was created, in seconds.
        problem: What is wrong with the files; empty if nothing is.
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


def runs_in(folder: Path) -> dict[Path, IndexEntry]:
    """Return the entries of the runs in a folder and below it, by run folder.

    A process reads the files of a run again only if they have changed.
    """
    return {path: _entry(path, _stamps(path)) for path in runs_below(folder)}


@lru_cache(maxsize=100_000)
def _entry(path: Path, stamps: Stamps) -> IndexEntry:
    return entry_of(path)


def entry_of(path: Path) -> IndexEntry:
    """Return the entry of a run; for a damaged one the entry says what is wrong."""
    reading, about = Reading(path), dict[str, Any]()
    try:
        about = _about(reading.config)
        return IndexEntry(**about, **_progress(reading))
    except UsageError as error:
        problem = error.what
    return IndexEntry(**about, problem=problem, time=_time(path / CONFIG))


def _about(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("method", "clients", "seed", "trials", "rounds")
    return {
        "identity": config.get("identity", ""),
        "name": config["method"],
        "models": config["models"],
        "dataset": config["dataset"],
        "digest": (config.get("data") or {}).get("digest", ""),
        "partition": config["partition"],
        **{key: config[key] for key in keys},
    }


def _progress(reading: Reading) -> dict[str, Any]:
    """Return the progress of a run; for a finished one from its summary, which is shorter."""
    asked, summary = reading.asked, reading.summary
    lines = 0
    with suppress(OSError):
        lines = regular_file(reading.folder / METRICS).read_bytes().count(b"\n")
    if summary is not None and lines >= asked:
        figures = {key: summary["mean"].get(f"{key}_test_accuracy") for key in ("best", "final")}
        figures |= {"done": asked, "finished": True, "time": _time(reading.folder / SUMMARY)}
        return {**figures, "problem": reading.problem}
    scored: dict[int, list[tuple[int, float]]] = {}
    for row in reading.rows:
        if (accuracy := row.test_accuracy) is not None:
            scored.setdefault(row.trial, []).append((row.round, accuracy))
    best = [max(accuracy for _, accuracy in scores) for scores in scored.values()]
    final = [max(scores)[1] for scores in scored.values()]
    file = reading.folder / METRICS
    return {
        "done": len(reading.rows),
        "finished": reading.finished,
        "problem": reading.problem,
        "best": sum(best) / len(best) if best else None,
        "final": sum(final) / len(final) if final else None,
        "time": _time(file if reading.rows else reading.folder / CONFIG),
    }


def _time(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _stamps(path: Path) -> Stamps:
    result = list[tuple[int, ...]]()
    for name in (CONFIG, METRICS, MANIFEST, SUMMARY):
        try:
            about = os.stat(path / name)
            result.append((about.st_mtime_ns, about.st_size, about.st_ino))
        except OSError:
            result.append(())
    return tuple(result)


_IDENTITY = re.compile(r"([0-9a-f]{4,})(?:-s(\d+))?")


def find_runs(word: str, runs: Path) -> list[Path]:
    """Return the runs that a word names, at least one.

    Args:
        word: The path of a run folder, its name, or at least four digits of an identity, which
            runs with several seeds share, optionally followed by ``-sSEED``.
        runs: The folder of runs.

    Raises:
        UsageError: There is no such run, or runs with different identities match.
    """
    if is_run(expand_user(word)):
        return [expand_user(word)]
    there = runs_in(expand_user(runs))
    if result := [path for path in there if path.name == word]:
        return result
    if asked := _IDENTITY.fullmatch(word):
        digits, seed = asked.groups()
        candidates = {
            p: told.identity for p, told in there.items() if seed in (None, str(told.seed))
        }
        if result := [path for path, identity in candidates.items() if identity.startswith(digits)]:
            identities = {candidates[path] for path in result}
            if len(identities) > 1:
                raise UsageError(
                    f"{word}: runs of {len(identities)} identities (in {runs}) begin with it",
                    f"they are {', '.join(sorted(identities)[:5])}",
                    "write more of the digits",
                )
            return result
    if expand_user(word).exists():
        Reading.of(word)  # says what it is in place of a run
    names = [path.name for path in there] + [told.identity[:8] for told in there.values()]
    raise unknown(
        f"run (in {runs})",
        word,
        filter(None, names),
        "see: protofl runs list" if there else "give the folder of a run",
    )
