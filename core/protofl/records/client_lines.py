"""Figures of each client, of the recorded splits and the last evaluation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protofl.data.guesses import class_guesses, pooled_guess
from protofl.system.files.tables import finite

SplitRecord = Mapping[str, Any]
"""The split of a trial, as ``partition.json`` records it."""


def guess_of(split: SplitRecord, clients: Sequence[int] | None = None) -> float:
    """Return the score of the majority guess of some clients; NaN if it is not known.

    Args:
        split: The split.
        clients: The clients; None for all.
    """
    if "majority" in split:
        return pooled_guess(split["majority"], clients)
    chosen = range(len(split["train_counts"])) if clients is None else clients
    if not chosen:
        return math.nan
    train, test = ([split[f"{n}_counts"][c] for c in chosen] for n in ("train", "test"))
    return pooled_guess(class_guesses(train, test).tolist())


def names_of(splits: Iterable[SplitRecord]) -> tuple[str, ...]:
    """Return the names that the data give the clients; empty for none, or others by trial."""
    names = {tuple(split.get("client_names") or ()) for split in splits}
    return names.pop() if len(names) == 1 else ()


def client_lines(
    splits: Mapping[int, SplitRecord],
    accuracies: Mapping[int, Mapping[int, float]],
    architectures: Sequence[str],
) -> list[dict[str, Any]]:
    """Return a mapping for each client of the last evaluation, the worst first.

    ``client`` is its name, or ``client 3`` if the data give no names; ``number`` and
    ``architecture`` are those of the client. ``samples`` (training samples), ``score`` and
    ``guess`` (the score of its majority guess, None if it is not known) are means over trials;
    ``std`` is the population standard deviation of the score.

    Args:
        splits: The splits of all trials with rounds.
        accuracies: Accuracies of the last evaluation by trial and client.
        architectures: Client i has the one at place i mod their number.
    """
    names = names_of(splits.values())
    found: dict[int, list[tuple[float, float, float]]] = {}
    for trial, scored in accuracies.items():
        counts = splits[trial]["train_counts"]
        for client, accuracy in scored.items():
            samples = sum(counts[client]) if counts else math.nan
            guess = guess_of(splits[trial], [client])
            found.setdefault(client, []).append((accuracy, samples, guess))
    lines = []
    for client, trials in found.items():
        scores, samples, guesses = zip(*trials, strict=True)
        line = {"client": names[client] if names else f"client {client}", "number": client}
        line["architecture"] = architectures[client % len(architectures)]
        line |= {"samples": finite(statistics.fmean(samples))}
        line |= {"score": statistics.fmean(scores), "std": statistics.pstdev(scores)}
        lines.append(line | {"guess": finite(statistics.fmean(guesses))})
    return sorted(lines, key=lambda line: line["score"])
