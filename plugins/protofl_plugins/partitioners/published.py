"""The splits of the published generator: its draws, in its order, and its 75/25 cut.

The code of FedTGP and FedKTL (Zhang et al., 2024) splits every data set once, for all methods and
trials. Its generator (``dataset_utils.py``, as in PFLlib) draws from NumPy's legacy stream with
seed 1, so who holds how many samples of which class follows from the sizes of the classes alone.
No paper prints the seed; the printed traffic on CIFAR-100 needs 889 to 900 classes over clients'
training samples, and seed 1 gives 869. It is drawn again here:

``practical``
    for each class: shuffle its rows, draw q ~ Dir(β), set q_i = 0 for clients with N/M samples or
    more, renormalise, cut the rows where the running sum of q·n is rounded down. All of it again
    until the smallest client has min(40, N/M/2) samples.
``pathological``
    for each class: its owners are the first ⌈M·k/C⌉ clients that have fewer than k classes yet, so
    runs of neighbours hold the same classes. All but the last draw their number of samples between
    n/10 and n, for n samples an owner; the last takes the rest, more than the others by far.

Then the same stream cuts each client's rows 75/25, as scikit-learn's `train_test_split` does; all
trials share this cut, too. The *rows* are as published where training samples, then test samples
are in torchvision's order.

`dirichlet` and `pathological` draw such splits anew for every seed. They differ in what they are
spared: there no client gets a sample of nearly every class, no class is dropped, and the owners of
a class are drawn at random. The last decides the level of a table: in Fashion-MNIST 0 and 1, 2 and
3, 4 and 5, 6 and 7, 8 and 9 go together here, and shirts never have to be told from T-shirts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

import protofl as pf

TRIES = 1000


class Published:
    """Splits of the papers' generator: ``published:practical``, ``published:pathological``."""

    argument = "setting"
    check_argument = "practical"
    deterministic = True  # by the run's seed; the partitioner has one of its own
    leaves_out = "samples of classes that no client is dealt, with pathological"

    class Config(pf.Config):
        """Options of the published splits."""

        setting: Literal["practical", "pathological"] = pf.Field(
            description="practical (label skew by Dir(β)) or pathological (k classes a client)",
        )
        beta: float = pf.Field(0.1, gt=0, le=1e9, description="β of practical: concentration")
        classes_per_client: int | None = pf.Field(
            None,
            ge=1,
            description="k of pathological; none: a tenth of the classes, at least 2 "
            "(2/10/10/20 of 10/100/102/200)",
        )
        min_samples: int = pf.Field(
            40, ge=1, alias="least", description="samples of the smallest client of practical"
        )
        seed: int = pf.Field(
            1, ge=0, lt=2**32, description="of the split, whatever the run's; published: 1"
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
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Draw as the published generator; ``generator``, the run's own, is not used."""
        if len(labels) < 2 * num_clients:
            raise pf.UsageError(
                f"published: {len(labels)} samples are too few for {num_clients} clients",
                do=f"use at most {len(labels) // 2} clients (--clients)",
            )
        least = min(config.min_samples, len(labels) // num_clients // 2)
        stream = np.random.RandomState(config.seed)
        rows = [np.flatnonzero(labels == c) for c in range(num_classes)]
        if config.setting == "practical":
            return _cut(_practical(rows, num_clients, config.beta, least, stream), stream)
        k = config.classes_per_client or max(2, round(num_classes / 10))
        parts = _pathological(rows, num_clients, k, least, stream)
        dealt = sum(len(client_rows) for client_rows in parts)
        if dealt < len(labels):
            notes.append(
                f"published: no client has the {len(labels) - dealt} samples of the last classes, "
                "as in the published generator"
            )
        return _cut(parts, stream)


def _cut(
    parts: list[np.ndarray], stream: np.random.RandomState
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cut each client's rows into training and test rows, the test rows first in a permutation."""
    cut = []
    for client_rows in parts:
        shuffled = client_rows[stream.permutation(len(client_rows))]
        tests = len(client_rows) - int(0.75 * len(client_rows))
        cut.append((shuffled[tests:], shuffled[:tests]))
    return cut


def _practical(
    rows: list[np.ndarray],
    num_clients: int,
    beta: float,
    least: int,
    stream: np.random.RandomState,
) -> list[np.ndarray]:
    samples = sum(len(of_class) for of_class in rows)
    smallest = 0
    for _ in range(TRIES):
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        held = np.zeros(num_clients, dtype=np.int64)
        for of_class in rows:
            shuffled = of_class.copy()
            stream.shuffle(shuffled)
            q = stream.dirichlet(np.full(num_clients, beta)) * (held < samples / num_clients)
            cuts = (np.cumsum(q / q.sum()) * len(shuffled)).astype(np.int64)[:-1]
            for pieces, piece in zip(parts, np.split(shuffled, cuts), strict=True):
                pieces.append(piece)
            held += np.diff(cuts, prepend=0, append=len(shuffled))
        smallest = max(smallest, int(held.min()))
        if held.min() >= least:
            return [np.concatenate(pieces) for pieces in parts]
    raise pf.UsageError(
        f"published:practical: in {TRIES} draws the smallest client had at most {smallest} "
        f"samples, and the published generator draws until it has {least}",
        do=f"use fewer than {num_clients} clients, a larger beta than {beta:g}, or `dirichlet`",
    )


def _pathological(
    rows: list[np.ndarray], num_clients: int, k: int, least: int, stream: np.random.RandomState
) -> list[np.ndarray]:
    num_classes = len(rows)
    lacks = np.full(num_clients, k)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for c, of_class in enumerate(rows):
        owners = np.flatnonzero(lacks)[: int(np.ceil(num_clients / num_classes * k))]
        if not len(owners):
            break
        mean = len(of_class) / len(owners)
        low = max(mean / 10, least / num_classes)
        if len(owners) > 1 and int(low) >= int(mean):
            raise pf.UsageError(
                f"published:pathological: class {c} has {len(of_class)} samples for "
                f"{len(owners)} clients, which is too few to draw unequal shares",
                do="use fewer clients, or `pathological`",
            )
        sizes = stream.randint(int(low), int(mean), len(owners) - 1)
        for owner, piece in zip(owners, np.split(of_class, np.cumsum(sizes)), strict=True):
            parts[owner].append(piece)
        lacks[owners] -= 1
    dealt = [np.concatenate(pieces) for pieces in parts]
    empty = sum(not len(client_rows) for client_rows in dealt)
    if empty:
        raise pf.UsageError(
            f"published:pathological: {empty} of {num_clients} clients get no sample, as their "
            "classes have none",
            do="use another number of clients or classes_per_client, or `pathological`",
        )
    return dealt
