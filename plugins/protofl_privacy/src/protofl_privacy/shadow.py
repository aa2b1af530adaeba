"""Further runs for attacks: shadow runs for LiRA, and more rounds of a run without uploads.

A shadow run repeats the run, but every client trains on another random part of its own samples
(training and held-out ones), as large as its training part in the run. Each sample is in the same
number of shadow runs, and in one and out of one at least. The seed is that of the run: the server
knows it, so an attacker does too, and initial weights and public samples are the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import protofl as pf

LEAST = 2
"""Smallest number of shadow runs."""


class ShadowSplit:
    """Random parts of each client's samples, for shadow runs of protofl leak (shadow:FILE)."""

    argument = "path"
    leaves_out = "samples that no client has in the attacked run"

    class Config(pf.Config):
        """Options of a shadow run's split."""

        path: Path = pf.Field(description="the .npz file that `protofl leak` writes")
        number: int = pf.Field(0, ge=0, description="the number of the shadow run, from 0")

    @pf.hookimpl
    def count_clients(self, config: Config) -> int:
        """As many clients as in the attacked run."""
        return len(_read(config.path)["offsets"]) - 1

    @pf.hookimpl
    def partition(self, labels: np.ndarray, config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the training and test positions of each client in one shadow run."""
        file = _read(config.path)
        positions, offsets, inside = file["positions"], file["offsets"], file["inside"]
        if config.number >= len(inside):
            raise pf.UsageError(
                f"{config.path} is for {len(inside)} shadow runs", f"number is {config.number}"
            )
        if len(positions) and positions.max() >= len(labels):
            raise pf.UsageError(f"{config.path} is for other data: they have {len(labels)} samples")
        result = []
        for start, end in pairwise(offsets):
            mine, chosen = positions[start:end], inside[config.number, start:end]
            result.append((mine[chosen], mine[~chosen]))
        return result


def shadow_runs(
    run: pf.Run,
    count: int,
    folder: Path,
    *,
    trial: int = 0,
    seed: int = 0,
    at_once: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[pf.Run]:
    """Do the shadow runs of a run, in the worker processes of a sweep; finished ones are reused.

    Args:
        run: The attacked run.
        count: Number of shadow runs; 0 for none.
        folder: They are in its folder ``shadows``.
        trial: The trial of the attacked run.
        seed: Draws the parts.
        at_once: Number of parallel runs; None: one per core, 0: in this process.
        progress: Takes a line when a step begins.

    Raises:
        UsageError: The run cannot be repeated on parts of its samples, or a shadow run failed.
    """
    if not count:
        return []
    if count < LEAST:
        raise pf.UsageError(f"--shadows {count}: a likelihood ratio needs at least {LEAST}")
    _check(run)
    place = folder / "shadows"
    place.mkdir(parents=True, exist_ok=True)
    parts = _parts(run, count, trial, seed)
    file, options = place / "parts.npz", place / "options.json"
    if not _same(file, parts):
        for old in (place / "runs", place / "sweep"):
            shutil.rmtree(old, ignore_errors=True)
        np.savez(file, **parts)  # type: ignore[arg-type]
    options.write_text(json.dumps(_options(run, trial)), encoding="utf-8")
    progress(f"training {count} shadow runs")
    shutil.rmtree(place / "sweep", ignore_errors=True)
    result = pf.sweep(
        config=options,
        partition=f"shadow:{file}",
        grid={"partition.number": [*range(count)]},
        record_uploads=True,
        keep="last",
        data_dir=run.settings.data_dir,
        out=place / "sweep",
        runs=place / "runs",
        at_once=at_once,
    )
    found = []
    for line in result.lines:
        for each in line.runs:
            if each.state != "finished" or each.folder is None:
                raise pf.RunFailure(f"shadow run {line.point} {each.state}", each.error)
            found.append(pf.load_run(each.folder))
    return sorted(found, key=lambda each: str(each.folder))


def _check(run: pf.Run) -> None:
    """Refuse runs whose clients cannot train on other parts of their samples."""
    reasons = {
        "come already split over clients": run.plan.data.split is not None,
        "are a part of the data set (--subset)": run.config.get("subset", 1) != 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise pf.UsageError(
                f"--shadows: the data of {run.folder} {reason}", do="leave --shadows out"
            )


def _options(run: pf.Run, trial: int) -> dict[str, Any]:
    """Return the options of the shadow runs: those of the run, without its partitioner's."""
    config = {k: v for k, v in run.config.items() if k not in ("data_dir", "identity", "set_by")}
    options = {k: v for k, v in config["options"].items() if k != "partition"}
    held = config.get("hold_split", False)
    return {
        **config,
        "options": options,
        "seed": int(config["seed"]) + (0 if held else trial),
        "trials": 1,
        "hold_split": False,
        "validation": 0.0,
        "patience": 0,
        "keep_weights": "",
        "observe": [],
        "record_predictions": [],
    }


def _parts(run: pf.Run, count: int, trial: int, seed: int) -> dict[str, np.ndarray]:
    """Return positions of all clients' samples, offsets [M+1], and which runs train on them."""
    split, total = run.plan.split(trial), len(run.plan.data.y)
    away = [rows for rows in (split.public, split.global_test) if rows is not None]
    base = np.setdiff1d(np.arange(total), torch.cat(away).numpy() if away else np.zeros(0, int))
    pools, inside = [], []
    for client in range(split.num_clients):
        held = split.held_out(client)
        pieces = [split.train(client), split.test(client), *([] if held is None else [held])]
        pool, train = torch.cat(pieces).numpy(), len(pieces[0])
        pools.append(np.searchsorted(base, pool))
        inside.append(_inside(count, len(pool), train, np.random.default_rng([seed, client])))
    return {
        "positions": np.concatenate(pools),
        "offsets": np.cumsum([0, *map(len, pools)]),
        "inside": np.concatenate(inside, axis=1),
    }


def _inside(count: int, pool: int, train: int, generator: np.random.Generator) -> np.ndarray:
    """Return which of S runs train on which of n samples [S, n], each run on about ``train``.

    The samples get places in the runs in turn, in a random order, so that each sample is in k or
    k + 1 runs, and out of one run at least.
    """
    times = min(max(round(count * train / pool), 1), count - 1)
    result = np.zeros((count, pool), bool)
    first = generator.permutation(pool) % count
    for step in range(times):
        result[(first + step) % count, np.arange(pool)] = True
    for row in result:  # a client needs a sample of both kinds
        if row.all():
            row[generator.integers(pool)] = False
        if not row.any():
            row[generator.integers(pool)] = True
    return result


def _same(file: Path, parts: dict[str, np.ndarray]) -> bool:
    """Return True if a file has these parts already."""
    if not file.is_file():
        return False
    known = _read(file)
    return all(np.array_equal(known[name], value) for name, value in parts.items())


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of parts."""
    with path.open("rb") as file:
        return dict(pf.datasets.open_arrays(file, path))


def continued(run: pf.Run, folder: Path, rounds: int = 2) -> pf.Run:
    """Return a new run of a few rounds with recorded uploads, whose clients begin as a run ended.

    The clients have the weights that the run kept; the server and the methods' own state begin
    anew.

    Args:
        run: The run; it does not change.
        folder: The new run is in its folder ``continued``, which is replaced.
        rounds: Number of rounds of each trial.

    Raises:
        UsageError: The run has kept no weights, or cannot be repeated.
    """
    target = folder / "continued"
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    options = folder / "continued.json"
    kept = {k: v for k, v in run.config.items() if k not in ("data_dir", "identity", "set_by")}
    options.write_text(json.dumps({**kept, "patience": 0, "keep_weights": ""}), encoding="utf-8")
    try:
        pf.run(
            config=options,
            init=run.folder,
            rounds=rounds,
            record_uploads=True,
            keep="last",
            data_dir=run.settings.data_dir,
            out=target,
        )
    except pf.UsageError as error:
        raise pf.UsageError(
            f"{run.folder} has no recorded uploads, and it cannot be continued: {error.what}",
            do="repeat it: protofl run --config RUN/config.json --record-uploads",
        ) from error
    finally:
        options.unlink(missing_ok=True)
    return pf.load_run(target)
