"""A class-balanced part of the samples."""

from __future__ import annotations

import numpy as np

from protofl.errors import UsageError


def class_balanced(labels: np.ndarray, wanted: float, generator: np.random.Generator) -> np.ndarray:
    """Positions of a part of the samples with as many of each class as of any other.

    Where a class has fewer than its part, all of it is taken and the others give more. What can't
    be divided evenly goes to classes drawn at random, one sample each. FedKTL takes 1/20, 1/50 and
    1/200 of CIFAR-100 in this way (appendix B: "the number of samples is the same for all the 100
    class").

    Args:
        labels: Labels [N].
        wanted: A share of the samples up to 1, or above 1 their number.
        generator: The only source of chance.

    Returns:
        Positions [n] int64 in ascending order, n = round(wanted·N) or ``wanted``.

    Raises:
        UsageError: There are fewer samples, or more classes.
    """
    if wanted == 1:
        return np.arange(len(labels), dtype=np.int64)
    sizes = np.bincount(labels)
    classes = int(np.count_nonzero(sizes))
    count = round(wanted * len(labels)) if wanted < 1 else int(wanted)
    if count != wanted and wanted > 1:
        raise UsageError(f"a subset of {wanted} samples", do="give a whole number, or a share")
    if count > len(labels):
        raise UsageError(
            f"a subset of {count} samples is more than there are: {len(labels)}",
            do="give fewer, or a share: --subset 1/2",
        )
    if count < classes:
        raise UsageError(
            f"a subset of {count} of {len(labels)} samples leaves out some of {classes} classes",
            do=f"give at least --subset {classes}",
        )
    taken = _levelled(sizes, count, generator)
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(by_class[rank < np.repeat(taken, sizes)]).astype(np.int64)


def _levelled(sizes: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Samples to take of each class, ``count`` in all: min(size, level), and one more of some."""
    low, high = 0, int(sizes.max()) + 1  # taking low of each is not too much, taking high is
    while high - low > 1:
        level = (low + high) // 2
        if np.minimum(sizes, level).sum() <= count:
            low = level
        else:
            high = level
    taken: np.ndarray = np.minimum(sizes, low)
    more = generator.permutation(np.flatnonzero(sizes > low))
    taken[more[: count - int(taken.sum())]] += 1
    return taken


def in_words(labels: np.ndarray, total: int) -> str:
    """A line about the part that was taken.

    Args:
        labels: Labels of the part.
        total: Samples before it was taken.
    """
    sizes = np.bincount(labels)
    sizes = sizes[sizes > 0]
    each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    return f"subset: {len(labels):,} of {total:,} samples, {each} of each class"
