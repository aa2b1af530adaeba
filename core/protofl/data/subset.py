"""Class-balanced subsets, divisions by groups, and validation samples of clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.system.randomness import numpy_stream


def class_balanced(labels: np.ndarray, amount: float, generator: np.random.Generator) -> np.ndarray:
    """Positions of a part of the samples with as many of each class as of any other.

    Where a class has fewer than its part, all of it is taken and the others give more. What can't
    be divided evenly goes to classes drawn at random, one sample each. FedKTL takes 1/20, 1/50 and
    1/200 of CIFAR-100 in this way (appendix B: "the number of samples is the same for all the 100
    class").

    Args:
        labels: Labels [N].
        amount: A share of the samples below 1, or above 1 their number.
        generator: The only source of chance.

    Returns:
        Positions [n] int64 in ascending order, n = round(wanted·N) or ``amount``.

    Raises:
        UsageError: There are fewer samples, or more classes.
    """
    sizes = np.bincount(labels)
    classes = int(np.count_nonzero(sizes))
    count = round(amount * len(labels)) if amount < 1 else int(amount)
    if count != amount and amount > 1:
        raise UsageError(f"a subset of {amount} samples", do="give a whole number, or a share")
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


def subset_note(labels: np.ndarray, total: int) -> str:
    """A line about the part that was taken.

    Args:
        labels: Labels of the part.
        total: Samples before it was taken.
    """
    sizes = np.bincount(labels)
    sizes = sizes[sizes > 0]
    each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    return f"subset: {len(labels):,} of {total:,} samples, {each} of each class"


def held_groups(
    owner: np.ndarray, groups: np.ndarray, share: float, chance: np.random.Generator
) -> np.ndarray:
    """Draw whole groups that are held out: about the share of each client's rows.

    Groups are taken in random order if that brings the number of rows nearer to the share. A
    client with two groups or more that it shares with no other holds one out, and keeps one.

    Args:
        owner: The client [n] of each row.
        groups: The group [n] of each row; a group may have rows of several clients.
        share: Share of rows that are held out.
        chance: Draws the order.

    Returns:
        The rows of the groups that are held out, [n] bool.
    """
    pairs, counts = np.unique(np.stack([groups, owner]), axis=1, return_counts=True)
    parts: dict[int, list[tuple[int, int]]] = {}
    for group, client, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        parts.setdefault(group, []).append((client, count))
    missing = np.bincount(owner) * share
    wanted = {client: float(rows) for client, rows in enumerate(missing)}
    left = dict(enumerate(np.bincount(owner).tolist()))
    held, first = list[int](), {*wanted}
    for group in chance.permutation(sorted(parts)).tolist():
        nearer = sum(abs(wanted[c]) - abs(wanted[c] - n) for c, n in parts[group])
        lacks = nearer == 0 and any(client in first for client, _ in parts[group])
        if (nearer > 0 or lacks) and all(left[c] > n for c, n in parts[group]):
            held.append(group)
            for client, count in parts[group]:
                wanted[client] -= count
                left[client] -= count
                first.discard(client)
    return np.isin(groups, held)


def divided_by_group(
    rows: np.ndarray,
    sizes: np.ndarray,
    own_train: np.ndarray | None,
    groups: np.ndarray,
    share: float,
    seed: int,
    name: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Divide each client's rows into training and test rows, so that no group is in both.

    Args:
        rows: Positions [n], client after client.
        sizes: Samples [M] of each client.
        own_train: Training samples [M] that come first, if the data have a test part.
        groups: The group [n] of each row.
        share: Share of test samples.
        seed: The effective seed.
        name: The column of the groups, for errors.

    Returns:
        Positions [n], each client's training rows first, and the training samples [M].

    Raises:
        UsageError: A client has one group only, or a group is in both parts of the data set.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if own_train is not None:
        place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        test = place >= np.repeat(own_train, sizes)
        if both := len(np.intersect1d(groups[test], groups[~test])):
            raise UsageError(
                f"{both:,} values of {name!r} (dataset.group) have training and test rows",
                "the data set's own test part is kept",
                "leave --set dataset.test out, or divide both again: --set partition.test=pooled",
            )
        return rows, own_train
    test = held_groups(owner, groups, share, numpy_stream(seed, "split", "groups"))
    tests = np.bincount(owner, test, minlength=len(sizes)).astype(np.int64)
    for client in np.flatnonzero((tests == 0) | (tests == sizes)):
        count = len(np.unique(groups[owner == client]))
        raise UsageError(
            f"client {client} has {count:,} values of the column {name!r} (dataset.group), which "
            "cannot be divided into training and test rows",
            "a client needs a group to train on and another one for its test",
            "use fewer clients, or another partitioner",
        )
    return rows[np.lexsort((test, owner))], sizes - tests


def with_validation(
    split: Split, labels: Tensor, share: float, seed: int, groups: np.ndarray | None = None
) -> Split:
    """A split of which part of every client's training samples is held out; test parts stay.

    A client with n training samples has round(share·n) validation samples, at least one, and keeps
    at least one training sample of each class that it has; so one whose classes have a single
    sample each has no validation sample. They are stratified: the rows that may be taken, in the
    order of their classes and at random within, are drawn systematically (every k-th from a random
    start), so that of each class the number is its part of them, rounded up or down.

    Args:
        split: The split.
        labels: Labels [N] of the whole data set.
        share: The share of training samples that is held out, below 1.
        seed: The effective seed; the held-out samples depend only on it and the split.
        groups: The group [N] of each sample, see `Dataset.groups`. Then whole groups are held out,
            as `held_groups` draws them, without regard to classes.

    Raises:
        UsageError: No client has a sample to hold out.
    """
    sizes = split.train_sizes.numpy()
    clients, chance = len(sizes), numpy_stream(seed, "split", "validation")
    client = np.repeat(np.arange(clients), sizes)
    first = np.cumsum(sizes) - sizes
    # All training rows, and the place of each in ``rows`` of the split.
    place = np.arange(len(client)) - np.repeat(first - split.offsets[:-1:2].numpy(), sizes)
    if groups is not None:
        drawn = held_groups(client, groups[split.rows.numpy()[place]], share, chance)
        return _held_out(split, share, place[drawn], np.bincount(client[drawn], minlength=clients))
    classes = labels.numpy()[split.rows.numpy()[place]]
    order = np.lexsort((chance.random(len(place)), classes, client))
    last = np.ones(len(order), dtype=bool)  # of its class and client: it stays
    last[:-1] = (np.diff(client[order]) != 0) | (np.diff(classes[order]) != 0)
    may = order[~last]
    counts = np.bincount(client[may], minlength=clients)
    held_sizes = np.minimum(np.maximum(1, np.floor(sizes * share + 0.5).astype(np.int64)), counts)
    # Systematic draw: the j-th of v out of n is at ⌊(j + u)·n/v⌋, u in [0, 1) of the client.
    turn = np.arange(held_sizes.sum()) - np.repeat(np.cumsum(held_sizes) - held_sizes, held_sizes)
    step = counts / np.maximum(held_sizes, 1)
    position = np.floor(
        (turn + np.repeat(chance.random(clients), held_sizes)) * np.repeat(step, held_sizes)
    )
    begin = np.repeat(np.cumsum(counts) - counts, held_sizes)
    most = np.repeat(counts, held_sizes) - 1
    held = np.sort(place[may[begin + np.minimum(position.astype(np.int64), most)]])
    return _held_out(split, share, held, held_sizes)


def _held_out(split: Split, share: float, held: np.ndarray, held_sizes: np.ndarray) -> Split:
    """Return a split whose validation part is some of its training rows.

    Args:
        split: The split.
        share: The share that was asked for, for the error.
        held: Places of rows in ``split.rows``, ascending.
        held_sizes: How many of them each client has, [M].

    Raises:
        UsageError: There are none.
    """
    if not len(held):
        raise UsageError(
            f"--validation {share:g} holds nothing out",
            "no client has two training samples of one class, or two groups (dataset.group)",
            "use fewer clients or more data, or leave it out",
        )
    stays = np.ones(len(split.rows), dtype=bool)
    stays[held] = False
    pieces = split.offsets.diff().clone()
    pieces[::2] -= torch.from_numpy(held_sizes)
    return replace(
        split,
        rows=split.rows[torch.from_numpy(stays)],
        offsets=torch.cat([pieces[:0].new_zeros(1), pieces.cumsum(0)]),
        validation=split.rows[torch.from_numpy(held)],
        validation_offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(held_sizes)])),
    )
