"""Partition of a data set: training and test rows of every client.

Without public data the data set's own training and test parts are pooled, partitioned, and each
client's share is shuffled and split 75/25 (FedTGP, FedKTL, FedSA: "Implementation Details"). With
public data (FedPKD, Sec. V-A) N samples of the training part are held out unlabelled, the data
set's own test part is the global test set, and the rest of the training part is partitioned and
split 75/25. Data that come already split keep their split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.dataset import Dataset
from protofl.data.split import Split
from protofl.errors import UsageError
from protofl.system.randomness import numpy_stream

MIN_SAMPLES = 14
"""Usual minimum of samples of a client: 10 to train on, a usual batch, and 4 to test on."""

CUT = 0.75
"""Share of a client's samples that it trains on, as in FedTGP, FedKTL and FedSA."""

Partition = Callable[..., list[Any]]
"""A partitioner with its options bound: by name all but ``config`` of its hook's arguments."""


def number_of_clients(
    data: Dataset, clients: int | None, usual: int, count_clients: Callable[..., int | None]
) -> int:
    """Return M: of the data's own split, the partitioner's count, the given or the default number.

    Args:
        data: The data.
        clients: M as the user gave it.
        usual: The default.
        count_clients: The partitioner's hook with its options bound; None: it divides by any M.

    Raises:
        UsageError: The partitioner counts another number than the given one.
    """
    if data.split is not None:
        return len(data.split) if clients is None else clients
    counted = count_clients(labels=data.y.numpy(), columns=data.columns)
    if counted is None:
        return usual if clients is None else clients
    if clients not in (None, counted):
        raise UsageError(
            f"the data divide into {counted} clients, not {clients}",
            do=f"use --clients {counted}, or leave it out",
        )
    return counted


def minimum_for(config: object) -> dict[str, Any]:
    """Return the minimum of samples of a client, as arguments of `make_split`.

    It is a number of the partitioner: options of training, such as the batch size, change no split.

    Args:
        config: The partitioner's options; ``min_samples`` is the minimum if the user gave one.
    """
    min_samples = getattr(config, "min_samples", None)
    return {
        "minimum": MIN_SAMPLES if min_samples is None else min_samples,
        "exact": min_samples is not None,
    }


def kept_split(data: Dataset) -> list[str]:
    """Return a note for a user who names a partitioner for data that are already split."""
    if data.split is None:
        return []
    return ["the data come already split over clients: that split is kept"]


def make_split(
    data: Dataset,
    partition: Partition,
    num_clients: int | None,
    minimum: int,
    seed: int,
    public: int = 0,
    train_size: float = CUT,
    partitioner: str = "",
    subset: float = 1,
    *,
    exact: bool = False,
) -> Split:
    """Split a data set over clients.

    The partitioner is asked for a minimum of samples per client. If the data are too few for a
    usual minimum, it is asked for half the mean share, and at least 2; a note says so.

    Args:
        data: The data; a split of their own is used.
        partition: The partitioner with its options bound; returns positions among the labels.
        num_clients: M; None for data that come already split.
        minimum: Samples of a client at least, see `minimum_for`.
        seed: The effective seed; the split depends on no other randomness.
        public: Samples of the training part to hold out as unlabelled public data.
        train_size: Samples that a client trains on: a share of its samples, or from 1 a number.
        partitioner: The partitioner's name, for the record.
        subset: Class-balanced part of the clients' samples: a share, or above 1 their number.
        exact: True if a user gave the minimum, so that it is not lowered.

    Raises:
        UsageError: The data can't be split this way.
    """
    if data.split is not None:
        if train_size != CUT:
            raise _kept_cut("the data")
        return _own_split(data, num_clients, public, subset)
    if num_clients is None or num_clients < 1:
        raise UsageError(f"a split needs at least 1 client, not {num_clients}", do="give --clients")

    public_rows, test_rows, base = _hold_out(data, num_clients, seed, public)
    notes: list[str] = []
    if subset != 1:
        from protofl.data.subset import class_balanced, subset_note

        total, chance = len(base), numpy_stream(seed, "split", "subset")
        base = base[class_balanced(data.y.numpy()[base], subset, chance)]
        notes.append(subset_note(data.y.numpy()[base], total))
    shares = partition(
        labels=data.y.numpy()[base],
        num_classes=data.num_classes,
        class_names=[*data.classes],
        num_clients=num_clients,
        min_samples=minimum if exact else _lowered(minimum, len(base), num_clients, notes),
        generator=numpy_stream(seed, "split", "partition"),
        notes=notes,
        num_train=int(np.searchsorted(base, data.num_train)),
        columns=data.columns
        if len(base) == len(data.y)
        else {name: values[base] for name, values in data.columns.items()},
    )
    name = partitioner or "the partitioner"
    rows, sizes, own_train = _checked(shares, len(base), num_clients, name)
    if own_train is not None and train_size != CUT:
        raise _kept_cut(f"the samples of {name}")
    if data.groups is not None:
        from protofl.data.subset import divided_by_group

        groups = data.groups[base][rows]
        if train_size >= 1:
            raise UsageError(
                f"--train-size {train_size:g}: rows of one {data.group} stay together, so a number "
                "of samples cannot be kept",
                do="give a share: --train-size 0.5",
            )
        rows, own_train = divided_by_group(
            rows, sizes, own_train, groups, 1 - train_size, seed, data.group
        )
        notes.append(
            f"rows of one {data.group} are in one part: {len({*groups.tolist()}):,} groups"
        )
    else:
        notes += _like_groups(data, base[rows], sizes)
    rows, offsets = _shuffled(rows, sizes, own_train, train_size, seed)
    return Split(
        rows=torch.from_numpy(base[rows]),
        offsets=torch.from_numpy(offsets),
        public=public_rows,
        global_test=test_rows,
        partitioner=partitioner,
        notes=notes,
    )


def _kept_cut(whose: str) -> UsageError:
    return UsageError(
        f"--train-size: {whose} come already divided into training and test samples",
        do="leave --train-size out",
    )


def _like_groups(data: Dataset, rows: np.ndarray, sizes: np.ndarray) -> list[str]:
    """Return a note for each column that looks like groups of rows, such as those of a patient.

    Each value has several rows, all of one client, and a client has several values.

    Args:
        data: The data.
        rows: Rows [n], client after client.
        sizes: Samples [M] of each client.
    """
    notes, owner = [], np.repeat(np.arange(len(sizes)), sizes)
    for name, values in data.columns.items():
        from protofl.data.columns import distinct

        found, places = distinct(values)
        if 2 * len(sizes) < len(found) <= len(rows) // 2:
            pairs = np.unique(places[rows] * len(sizes) + owner)
            if len(pairs) == len(np.unique(pairs // len(sizes))):
                notes.append(
                    f"column {name} has {len(found):,} values in {len(rows):,} rows, each at one "
                    "client: if rows of one value belong together, keep them in one part, training "
                    f"or test: --set dataset.group={name}"
                )
    return notes


def _lowered(minimum: int, samples: int, num_clients: int, notes: list[str]) -> int:
    """Return the samples to ask for per client; see `make_split`."""
    if num_clients * minimum <= samples:
        return minimum
    lowered, enough = max(2, samples // num_clients // 2), samples // minimum
    if num_clients * lowered <= samples:
        notes.append(
            f"{samples} samples are too few for {num_clients} clients with at least {minimum} "
            f"each; asked for at least {lowered} samples each"
            + (f"; --clients {enough} gives each enough" if enough > 1 else "")
        )
    return lowered


def _shuffled(
    rows: np.ndarray,
    sizes: np.ndarray,
    train_sizes: np.ndarray | None,
    train_size: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle within every client at once: sort by client, then by a random key.

    Args:
        rows: Positions [n], client after client.
        sizes: Samples [M] of each client.
        train_sizes: Training samples [M] that come first and stay before the test samples; None to
            shuffle both together.
        train_size: Share or number of the samples that a client trains on, without ``train_sizes``.
        seed: The effective seed.

    Returns:
        Positions [n] and offsets [2M+1] of a `Split`.
    """
    keys = numpy_stream(seed, "split", "shuffle").random(len(rows))
    if train_sizes is None:
        client = int(sizes.argmin())
        if train_size >= sizes[client]:
            raise UsageError(
                f"--train-size {train_size:g} leaves client {client} no test sample: it has "
                f"{sizes[client]:,} samples",
                do=f"give --train-size {sizes[client] - 1} or less, or fewer --clients",
            )
        wanted = sizes * train_size if train_size < 1 else np.full(len(sizes), train_size)
        trains = np.clip(np.floor(wanted + 1e-9).astype(np.int64), 1, sizes - 1)
    else:
        trains = train_sizes
        place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        keys += place >= np.repeat(trains, sizes)
    rows = rows[np.lexsort((keys, np.repeat(np.arange(len(sizes)), sizes)))]
    pieces = np.stack([trains, sizes - trains], axis=1).reshape(-1)
    return rows, np.concatenate([[0], np.cumsum(pieces)])


def _hold_out(
    data: Dataset, num_clients: int, seed: int, public: int
) -> tuple[Tensor | None, Tensor | None, np.ndarray]:
    """Public rows, global test rows, and the rows that are left to partition.

    One permutation serves both, the test rows first: so the global test set does not depend on
    the number of public samples, and a larger public set contains the smaller.
    """
    if not public:
        return None, None, np.arange(len(data.y), dtype=np.int64)
    if data.group:
        own = data.preparation is None or data.preparation.fitted is None  # `public_data` takes it
        raise UsageError(
            f"--public {public} holds out single rows, and dataset.group={data.group} keeps rows "
            "together",
            do="give public samples of their own: --public npz:PATH"
            if own
            else "leave --set dataset.group out, or take a method without public samples",
        )
    has_test = data.num_train < len(data.y)
    tenth = 0 if has_test else max(1, data.num_train // 10)
    largest = data.num_train - tenth - 2 * num_clients
    if not 0 < public <= largest:
        raise UsageError(
            f"cannot hold out {public} public samples",
            f"the training part has {data.num_train} samples"
            + (f", of which {tenth} are the global test set" if tenth else "")
            + f", and {num_clients} clients need at least 2 each",
            f"use --public {largest} or less" if largest > 0 else "use fewer clients",
        )
    order = numpy_stream(seed, "split", "public").permutation(data.num_train).astype(np.int64)
    if has_test:
        test = np.arange(data.num_train, len(data.y), dtype=np.int64)
    else:
        test = np.sort(order[:tenth])
    held = np.sort(order[tenth : tenth + public])
    base = np.sort(order[tenth + public :])
    return torch.from_numpy(held), torch.from_numpy(test), base


def _joined(shares: list[Any], name: str) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Return one array per client, and the training sizes if shares are pairs (train, test)."""
    if not any(isinstance(share, tuple) for share in shares):
        return shares, None
    for client, share in enumerate(shares):
        if not (isinstance(share, tuple) and len(share) == 2 and len(share[1])):
            raise UsageError(
                f"{name}: client {client} has no test rows",
                "expected a pair (training rows, test rows) for every client",
                "this is an error in the partitioner, not in your options",
            )
    return [np.concatenate(share) for share in shares], np.array([len(s[0]) for s in shares])


def _checked(
    shares: list[Any], num_samples: int, num_clients: int, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Check a partition.

    Returns:
        The positions of all shares in order, their sizes [M], and the training sizes [M] if shares
        are pairs (train, test).
    """
    shares, own_train = _joined(shares, name)
    do = "this is an error in the partitioner, not in your options"
    if len(shares) != num_clients:
        raise UsageError(f"{name} returned {len(shares)} parts for {num_clients} clients", do=do)
    sizes = np.array([len(share) for share in shares], dtype=np.int64)
    for client in np.flatnonzero(sizes < (2 if own_train is None else 1)):
        raise UsageError(
            f"empty client: client {client} of {num_clients} got {sizes[client]} of "
            f"{num_samples} samples from {name}",
            "a client needs at least 1 training and 1 test sample",
            "use fewer clients, a larger beta, or another partitioner",
        )
    rows = np.concatenate([np.asarray(share).reshape(-1) for share in shares])
    if not np.issubdtype(rows.dtype, np.integer):
        raise UsageError(f"{name} returned rows of type {rows.dtype}", "rows are int64", do)
    rows = rows.astype(np.int64, copy=False)
    if rows.min() < 0 or rows.max() >= num_samples:
        raise UsageError(f"{name} returned rows outside 0…{num_samples - 1}", do=do)
    twice = np.flatnonzero(np.bincount(rows, minlength=num_samples) > 1)
    if twice.size:
        raise UsageError(f"{name} gave row {twice[0]} to more than one place", do=do)
    return rows, sizes, own_train


def _own_split(data: Dataset, num_clients: int | None, public: int, subset: float) -> Split:
    """The split that the data came with."""
    pairs = data.split or []
    if num_clients not in (None, len(pairs)):
        raise UsageError(
            f"these data come split over {len(pairs)} clients, not {num_clients}",
            do=f"use --clients {len(pairs)}, or leave it out",
        )
    if public:
        raise UsageError(
            f"cannot hold out {public} public samples: these data come already split",
            do="give public samples of their own: --public npz:PATH",
        )
    if subset != 1:
        raise UsageError(
            "--subset takes a part before the data are split, and these come already split",
            do="leave it out",
        )
    pieces = [piece for pair in pairs for piece in pair]
    sizes = torch.tensor([len(piece) for piece in pieces], dtype=torch.int64)
    for client in [] if data.elsewhere else torch.nonzero(sizes[1::2] == 0).flatten().tolist():
        raise UsageError(
            f"empty client: client {client} of {len(pairs)} has no test sample in the data's own "
            "split",
            do="repair the data set's files",
        )
    offsets = torch.zeros(len(pieces) + 1, dtype=torch.int64)
    offsets[1:] = sizes.cumsum(0)
    rows = torch.cat([piece.long() for piece in pieces]) if pieces else offsets[:0]
    return Split(rows=rows, offsets=offsets, partitioner="own")
