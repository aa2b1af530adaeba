"""Shards: each client gets a fixed number of small one-class pieces, from a few classes.

Source: FedPKD (Lyu et al.), Sec. V-A "Datasets": "the dataset is split into shards of size 20, and
each client is assigned with 40 shards from k classes. We use k=3 and k=5 for CIFAR-10, while k=30
and k=50 for CIFAR-100."

The paper leaves open how the 40 shards spread over the k classes; here evenly (14+13+13) as far as
the classes have enough. Where k exceeds the number of shards (k = 50), a client has one shard of
each of 40 classes. Samples beyond clients × shards × size belong to no client, as in the paper; a
note says how many.
"""

from __future__ import annotations

import copy

import numpy as np

import protofl as pf
from protofl_plugins.partitioners.requirements import check_classes, check_samples


class Shards:
    """A fixed number of one-class shards per client, from k classes (FedPKD)."""

    leaves_out = "shards that no client gets, and the rest of a class after its last shard"
    check_options = {"shard_size": 2, "shards_per_client": 2, "classes_per_client": 2}

    class Config(pf.Config):
        """Options of the shards partitioner."""

        shard_size: int = pf.Field(
            20, ge=1, description="samples of one shard, all of one class; small means finer parts"
        )
        shards_per_client: int = pf.Field(
            40, ge=1, description="shards of each client; the rest of the data is left out"
        )
        classes_per_client: int | None = pf.Field(
            None,
            ge=1,
            description="k, classes of each client: 1 is one class, C near iid; none: three "
            "tenths of the classes (3 of 10, 30 of 100, the paper's highly non-IID setting)",
        )

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_classes: int,
        num_clients: int,
        min_samples: int,
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray]:
        """Cut every class into shards and deal each client its number from k classes."""
        samples, size, per_client = len(labels), config.shard_size, config.shards_per_client
        check_samples("shards", samples, num_clients, min_samples, "more samples")
        class_sizes = np.bincount(labels, minlength=num_classes)
        available = class_sizes // size
        classes = int(np.count_nonzero(class_sizes))
        k = config.classes_per_client or min(classes, max(2, (3 * num_classes + 5) // 10))
        check_classes("shards", k, classes)

        # 1. How many shards of each class every client gets.
        before = copy.deepcopy(generator)
        taken = _deal(available, per_client, k, num_clients, generator)
        if taken is None:
            raise _too_few(available, config, k, num_clients, before)

        # 2. The first samples of each shuffled class, shard after shard, clients in random order.
        shuffled = generator.permutation(samples)
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        owner = np.full(samples, num_clients, dtype=np.int64)  # num_clients: no client
        for block, shares in zip(
            np.split(by_class, np.cumsum(class_sizes)[:-1]), taken.T, strict=True
        ):
            clients = generator.permutation(num_clients)
            owned = np.repeat(clients, shares[clients] * size)
            owner[block[: len(owned)]] = owned

        left = samples - num_clients * per_client * size
        if left:
            notes.append(
                f"shards: {left} of {samples} samples are left out "
                f"({num_clients} clients × {per_client} shards × {size} are used)"
            )
        if k > per_client:
            notes.append(
                f"shards: {per_client} shards cover {per_client} classes per client, not {k}"
            )
        if per_client * size < min_samples:
            notes.append(
                f"shards: clients have {per_client * size} samples, fewer than {min_samples}"
            )
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=num_clients + 1))
        return np.split(order[: ends[-2]], ends[:-2])


def _deal(
    available: np.ndarray, per_client: int, k: int, num_clients: int, generator: np.random.Generator
) -> np.ndarray | None:
    """Shards of each class for each client [M, C], or None where the classes have too few.

    Clients in random order take from the classes that fewest others have, ties at random; where
    that ends in a shortage, on a second attempt, from those with most shards left. Either way
    shortages are first evened out between a client's classes.
    """
    if available.sum() < num_clients * per_client:
        return None
    k = min(k, per_client)
    parts = per_client // k + (np.arange(k) < per_client % k).astype(np.int64)
    for evenly in (True, False):
        taken = np.zeros((num_clients, len(available)), dtype=np.int64)
        left = available.copy()
        owners = np.zeros(len(available), dtype=np.int64)
        for client in generator.permutation(num_clients):
            tie = generator.random(len(available))
            keys = (tie, owners, left < parts[0]) if evenly else (tie, -left)
            chosen = generator.permutation(np.lexsort(keys)[:k])
            taken[client, chosen] = parts
            left[chosen] -= parts
            owners[chosen] += 1
        if _even_out(taken, left):
            return taken
    return None


def _even_out(taken: np.ndarray, left: np.ndarray) -> bool:
    """Move shards between classes, within clients, until no class lacks any (``left`` >= 0).

    A client gives up shards of a class down to one and takes more of another of its classes; where
    that has none left, a further client passes them on (augmenting paths, the shortest first).
    """
    while (left < 0).any():
        start = int(np.argmin(left))
        came: dict[int, tuple[int, int]] = {start: (-1, -1)}  # class: (class before, client)
        queue, end = [start], -1
        for a in queue:
            clients = np.flatnonzero(taken[:, a] > 1)
            reached = taken[clients] > 0
            for b in np.flatnonzero(reached.any(axis=0)):
                if int(b) not in came:
                    came[int(b)] = (a, int(clients[np.argmax(reached[:, b])]))
                    queue.append(int(b))
            spare = [b for b in queue if left[b] > 0]
            if spare:
                end = max(spare, key=lambda b: left[b])
                break
        if end < 0:
            return False
        left[end] -= 1
        left[start] += 1
        while end != start:
            before, client = came[end]
            taken[client, end] += 1
            taken[client, before] -= 1
            end = before
    return True


def _too_few(
    available: np.ndarray,
    config: Shards.Config,
    k: int,
    num_clients: int,
    generator: np.random.Generator,
) -> pf.UsageError:
    """The error for too few shards, with the largest number per client that works.

    Trials start from the generator as it was, so the number named works with the same seed.
    """
    what = (
        f"shards: {num_clients} clients × {config.shards_per_client} shards of "
        f"{config.shard_size} samples, from {k} classes each, need more than there are: "
        f"the data make {available.sum()} shards"
    )
    most = min(config.shards_per_client - 1, int(available.sum()) // num_clients)
    for value in range(most, 0, -1):
        if _deal(available, value, k, num_clients, copy.deepcopy(generator)) is not None:
            return pf.UsageError(
                what,
                f"the largest value that works is shards_per_client={value}",
                f"give --set partition.shards_per_client={value}, a smaller shard_size, "
                "or fewer clients",
            )
    return pf.UsageError(
        what,
        "no shards_per_client works with this shard_size and number of clients",
        "use a smaller shard_size, fewer clients, or another partitioner",
    )
