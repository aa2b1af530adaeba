"""The "practical" setting: every class is shared out by a draw from a Dirichlet distribution.

Sources: FedTGP (Zhang et al., AAAI 2024), "Statistical heterogeneity"; FedKTL (Zhang et al., CVPR
2024), Sec. 4.1; FedSA, "Statistical heterogeneity": for each class c draw

    q_c ~ Dir(β)  over the clients; client i gets the proportion q_{c,i} of the samples of c.

=======  ==============================================================================
β        concentration: towards 0 each class goes to one client, β → ∞ makes the parts iid
q_{c,i}  client i's proportion of class c; sums to 1 over the clients
=======  ==============================================================================

Departure from the common implementation: that one redraws until the smallest client is large
enough, for ever if need be. Here ``redraws`` bounds it; the draw that lacks least is kept, and
what it lacks is moved from the largest clients, which a note says.
"""

from __future__ import annotations

import numpy as np
import protofl as pf


class Dirichlet:
    """Label skew by Dir(beta) over the clients for each class ("practical" setting)."""

    class Config(pf.Config):
        """Options of the Dirichlet partitioner."""

        beta: float = pf.Field(
            0.1,
            gt=0,
            le=1e9,
            description="β, concentration: towards 0 each class goes to one client, large is iid",
        )
        min_samples: int | None = pf.Field(
            None,
            ge=2,
            description="samples that every client gets at least; none: one training batch",
        )
        redraws: int = pf.Field(
            20,
            ge=0,
            le=10_000,
            description="further draws for the minimum before samples are moved; 0 moves at once",
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
        """Draw q for every class; redraw, then move samples, where a client has too few."""
        least = min_samples if config.min_samples is None else config.min_samples
        if len(labels) < num_clients * least:
            other = "a smaller batch size" if config.min_samples is None else "a lower min_samples"
            raise pf.UsageError(
                f"dirichlet: {len(labels)} samples are too few for {num_clients} clients "
                f"with at least {least} each",
                do=f"use at most {len(labels) // least} clients, or {other}",
            )
        class_sizes = np.bincount(labels, minlength=num_classes)

        # 1. The draw that lacks least, out of at most 1 + redraws.
        best, lacking = np.empty((0, 0), dtype=np.int64), -1
        for _ in range(1 + config.redraws):
            counts = _draw_counts(class_sizes, num_clients, config.beta, generator)
            short = int(np.maximum(least - counts.sum(axis=0), 0).sum())
            if lacking < 0 or short < lacking:
                best, lacking = counts, short
            if not lacking:
                break

        # 2. Give each class's samples out in random order.
        shuffled = generator.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        owner = np.empty(len(labels), dtype=np.int64)
        owner[by_class] = np.repeat(np.tile(np.arange(num_clients), num_classes), best.ravel())

        # 3. What is still lacking comes from the largest clients.
        if lacking:
            receivers = _move_to_small(owner, num_clients, least, generator)
            notes.append(
                f"dirichlet: moved {lacking} samples from the largest clients to {receivers} "
                f"that had fewer than {least} in each of {1 + config.redraws} draws"
            )
        order = np.argsort(owner, kind="stable")
        return np.split(order, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])


def _draw_counts(
    class_sizes: np.ndarray, num_clients: int, beta: float, generator: np.random.Generator
) -> np.ndarray:
    """Numbers of samples [C, M] with mean q·n and exactly n samples a class.

    q comes from Gamma draws in logarithms, Γ(β) = Γ(β+1)·U^(1/β), so that no β, however small,
    gives 0/0. Cutting the running sum of q·n at a common random offset rounds without favouring
    any client, also where there are more clients than samples of a class.
    """
    shape = (len(class_sizes), num_clients)
    logs = np.log(generator.standard_gamma(beta + 1.0, shape))
    logs += np.log1p(-generator.random(shape)) / max(beta, 1e-300)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    sizes = class_sizes[:, None]
    offsets = generator.random((len(class_sizes), 1))
    cuts = np.floor(np.cumsum(shares, axis=1) * sizes + offsets).astype(np.int64)
    cuts = np.minimum(cuts, sizes)
    cuts[:, -1] = class_sizes
    return np.diff(cuts, axis=1, prepend=0)


def _move_to_small(
    owner: np.ndarray, num_clients: int, least: int, generator: np.random.Generator
) -> int:
    """Give clients below ``least`` random samples of the largest; return how many received.

    The largest clients are cut to one common level, the highest that frees enough samples.
    """
    sizes = np.bincount(owner, minlength=num_clients)
    needs = np.maximum(least - sizes, 0)
    total = int(needs.sum())
    low, high = least, int(sizes.max())  # cutting to low frees enough, cutting to high does not
    while high - low > 1:
        level = (low + high) // 2
        if np.maximum(sizes - level, 0).sum() >= total:
            low = level
        else:
            high = level
    freed = np.maximum(sizes - low, 0)
    freed[np.flatnonzero(freed)[: int(freed.sum()) - total]] -= 1

    shuffled = generator.permutation(len(owner))
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(owner)) - np.repeat(starts, sizes)
    moved = by_owner[rank < np.repeat(freed, sizes)]
    owner[generator.permutation(moved)] = np.repeat(np.arange(num_clients), needs)
    return int(np.count_nonzero(needs))
