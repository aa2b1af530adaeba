"""Figures of observed prototypes and features: by round and class, similarities, t-SNE.

All functions take observations of a run (`protofl_workbench.recorded.observed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from protofl.errors import TooLittle
from protofl.functional.margins import class_margins, largest_margins
from protofl_workbench.recorded.observed import Observed, Prototypes
from protofl_workbench.recorded.prototype_spreads import (
    Similarity,
    client_similarity,
    distances_by_client,
    inter_class_distances,
    intra_class_distances,
)

FEWEST = 4
"""Smallest number of points for a t-SNE."""


@dataclass(frozen=True)
class ByClass:
    """A figure of each class over rounds.

    Attributes:
        rounds: The rounds, [R].
        server: The figure of the server's prototypes, [R, C]; NaN for none.
        clients: The figure of the clients' prototypes, [R, C].
    """

    rounds: list[int]
    server: np.ndarray
    clients: np.ndarray


def margins(observed: Observed, trial: int = 0, round: int | None = None) -> ByClass:
    """Return margins of the server's prototypes and the largest of the clients' (FedTGP, Fig. 1).

    Args:
        observed: Observations of a run.
        trial: The trial.
        round: One round, or -1 for the last observed round; None for all.
    """
    server_margins, largest = class_margins, largest_margins
    return _by_class(_each(observed, trial, round), server_margins, largest)


def inter_class(observed: Observed, trial: int = 0) -> ByClass:
    """Return the mean distance of each class to the others, on the server and on clients.

    Args:
        observed: Observations of a run.
        trial: The trial.
    """

    def of_clients(P: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        each = [inter_class_distances(*table) for table in zip(P, known, strict=True)]
        return torch.stack(each).nanmean(0)

    return _by_class(_each(observed, trial), inter_class_distances, of_clients)


def intra_class(observed: Observed, trial: int = 0) -> tuple[list[int], np.ndarray]:
    """Return the mean distance of the clients' prototypes of a class to their mean.

    Args:
        observed: Observations of a run.
        trial: The trial.

    Returns:
        The rounds, [R], and the distances, [R, C]; NaN for a class that no client sent.
    """
    rounds, distances = [], []
    for seen in _each(observed, trial):
        rounds.append(seen.round)
        rows, classes = torch.from_numpy(seen.rows), torch.from_numpy(seen.classes)
        distances.append(intra_class_distances(rows, classes, seen.num_classes).numpy())
    return rounds, np.stack(distances)


def drift(
    observed: Observed, trial: int = 0, name: str = "prototypes"
) -> tuple[list[int], np.ndarray]:
    """Return the distance of the server's prototypes or anchors to the previous observed round.

    Args:
        observed: Observations of a run.
        trial: The trial.
        name: ``prototypes``, or ``global_prototypes``.

    Returns:
        The rounds after the first, [R−1], and the Euclidean distances, [R−1, C]; NaN for a class
        that is missing in one of both rounds.
    """
    known = {seen.round: seen.server_table(name) for seen in _each(observed, trial)}
    rounds, tables = [*known], [*known.values()]
    moved = np.full((len(rounds) - 1, len(tables[0][1])), np.nan)
    for number in range(len(moved)):
        (before, had), (now, has) = tables[number : number + 2]
        both = had & has
        if both.any():
            moved[number, both] = np.linalg.norm(now[both] - before[both], axis=1)
    return rounds[1:], moved


def alignment(observed: Observed, trial: int = 0) -> tuple[list[int], dict[str, np.ndarray]]:
    """Return the mean distance of the clients' prototypes to the server's, by architecture.

    Args:
        observed: Observations of a run.
        trial: The trial.

    Returns:
        The rounds, [R], and {architecture: mean over its clients, [R]}; NaN if no client took part
        or the server has no prototypes.
    """
    rounds: list[int] = []
    names: list[str] = []
    distances: list[dict[str, float]] = []
    for seen in _each(observed, trial):
        rounds.append(seen.round)
        names = list(dict.fromkeys(seen.architectures))
        each = distances_to_server(seen)
        by_architecture: dict[str, list[float]] = {}
        for client, distance in zip(seen.who, each, strict=True):
            if np.isfinite(distance):
                by_architecture.setdefault(seen.architecture_of(client), []).append(float(distance))
        distances.append({name: float(np.mean(values)) for name, values in by_architecture.items()})
    return rounds, {name: np.array([f.get(name, np.nan) for f in distances]) for name in names}


def distances_to_server(seen: Prototypes) -> np.ndarray:
    """Return the mean distance of each client's prototypes to the server's, [M], as in `who`."""
    P, known = map(torch.from_numpy, seen.table())
    centres, there = map(torch.from_numpy, seen.server_table())
    if centres.shape[1:] != P.shape[2:]:
        return np.full(len(P), np.nan)
    return distances_by_client(P, known, centres, there).numpy()


def similarity(seen: Prototypes, kind: Similarity = "pearson") -> tuple[list[int], np.ndarray]:
    """Return the similarity of the clients' prototypes.

    Args:
        seen: Prototypes of a round.
        kind: ``pearson``, ``spearman`` or ``cka``, see `client_similarity`.

    Returns:
        The clients, sorted by architecture, and the matrix, [M, M].
    """
    P, known = map(torch.from_numpy, seen.table())
    matrix = client_similarity(P, known, kind).numpy()
    names = [*dict.fromkeys(seen.architectures)]
    group = [names.index(seen.architecture_of(client)) for client in seen.who]
    order = sorted(range(len(P)), key=lambda place: (group[place], seen.who[place]))
    return [seen.who[place] for place in order], matrix[np.ix_(order, order)]


def in_the_plane(rows: np.ndarray, seed: int = 0, perplexity: float = 30.0) -> np.ndarray:
    """Return the points of a t-SNE (van der Maaten and Hinton, JMLR 2008), initialized with PCA.

    The same rows, seed and version of scikit-learn give the same points on one machine.

    Args:
        rows: Prototypes or features, [n, K].
        seed: Random seed.
        perplexity: Approximate number of neighbours of a point, at most a third of the points.

    Returns:
        [n, 2].

    Raises:
        TooLittle: There are fewer than four points.
    """
    if len(rows) < FEWEST:
        raise TooLittle(f"a t-SNE needs {FEWEST} points, got {len(rows)}")
    from sklearn.manifold import TSNE  # takes a second to import
    from threadpoolctl import threadpool_limits

    near = min(perplexity, (len(rows) - 1) / 3)
    method = "exact" if len(rows) < 200 else "barnes_hut"
    plane = TSNE(
        perplexity=near, init="pca", learning_rate="auto", random_state=seed, method=method
    )
    # On shared cores several threads take ten times as long.
    with threadpool_limits(1):
        return np.asarray(plane.fit_transform(np.asarray(rows, np.float64)))


def _each(observed: Observed, trial: int, round: int | None = None) -> Iterator[Prototypes]:
    """Yield the prototypes of one round, or of each round that has any; fail if none has any."""
    any_observed = False
    for number in observed.rounds(trial) if round is None else ():
        if "prototypes" in observed.kinds(number, trial):
            any_observed = True
            yield observed.prototypes(number, trial)
    if not any_observed:
        yield observed.prototypes(-1 if round is None else round, trial)


def _by_class(
    each: Iterator[Prototypes],
    of_server: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    of_clients: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> ByClass:
    rounds, server, clients = [], [], []
    for seen in each:
        rounds.append(seen.round)
        server.append(of_server(*map(torch.from_numpy, seen.server_table())).numpy())
        P, known = map(torch.from_numpy, seen.table())
        nothing = np.full(seen.num_classes, np.nan)
        clients.append(of_clients(P, known).numpy() if len(P) else nothing)
    return ByClass(rounds, np.stack(server), np.stack(clients))
