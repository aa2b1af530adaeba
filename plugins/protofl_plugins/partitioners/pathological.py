"""The "pathological" setting: each client has samples of a few classes only.

Sources: McMahan et al., AISTATS 2017; FedTGP (Zhang et al., AAAI 2024), "Statistical
heterogeneity": "nonredundant and unbalanced data of 2/10/10/20 classes to each client from a
total of 10/100/102/200 classes" (and 2 of Fashion-MNIST's 10).

Departures from the common implementation, which deals classes to runs of clients in order: there
clients 0-3 hold the same classes, and 20 clients × 10 classes leave the last two of Flowers102's
102 classes unused. Here the numbers of clients a class has differ by at most one, which clients
they are is random, and every sample is given to somebody: where M·k is below the number of classes,
k is raised, with a note.
"""

from __future__ import annotations

import numpy as np

import protofl as pf
from protofl_plugins.partitioners.requirements import MIN_SAMPLES, check_classes, check_samples


class Pathological:
    """A few classes per client, in unbalanced shares ("pathological" setting)."""

    class Config(pf.Config):
        """Options of the pathological partitioner."""

        classes_per_client: int | None = pf.Field(
            None,
            ge=1,
            description="classes of each client; all of them is near iid; none: a tenth of the "
            "classes, at least 2 (2/10/10/20 of 10/100/102/200, as in FedTGP)",
        )
        min_samples: int | None = MIN_SAMPLES

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
        """Deal classes evenly and at random, then cut each class into unbalanced shares."""
        class_sizes = np.bincount(labels, minlength=num_classes)
        present = np.flatnonzero(class_sizes)
        count = config.classes_per_client or min(len(present), max(2, round(num_classes / 10)))
        check_samples("pathological", len(labels), num_clients, min_samples)
        check_classes("pathological", count, len(present))
        least = -(-len(present) // num_clients)
        if count < least:
            notes.append(
                f"pathological: {num_clients} clients have {least} classes each, as {count} would "
                f"leave {len(present) - num_clients * count} of the {len(present)} classes unused"
            )
            count = least

        # 1. Clients in random order each take the classes with fewest owners, ties at random.
        owned = np.zeros((num_clients, len(present)), dtype=bool)
        owners = np.zeros(len(present), dtype=np.int64)
        for client in generator.permutation(num_clients):
            taken = np.lexsort((generator.random(len(present)), owners))[:count]
            owned[client, taken] = True
            owners[taken] += 1
        for c in np.flatnonzero(owners > class_sizes[present]):
            raise pf.UsageError(
                f"pathological: class {present[c]} has {class_sizes[present[c]]} samples "
                f"for its {owners[c]} clients",
                do="use fewer clients, a smaller classes_per_client, or another partitioner",
            )

        # 2. Of each class every owner gets what its minimum needs, and a random part of the rest.
        owner = np.empty(len(labels), dtype=np.int64)
        shuffled = generator.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        blocks = np.split(by_class, np.cumsum(class_sizes)[:-1])
        for column, c in enumerate(present):
            clients = generator.permutation(np.flatnonzero(owned[:, column]))
            base = max(1, min(-(-min_samples // count), class_sizes[c] // len(clients)))
            rest = class_sizes[c] - base * len(clients)
            weights = np.cumsum(generator.uniform(0.1, 1.0, len(clients)))
            cuts = np.rint(weights / weights[-1] * rest).astype(np.int64)
            owner[blocks[c]] = np.repeat(clients, base + np.diff(cuts, prepend=0))

        sizes = np.bincount(owner, minlength=num_clients)
        small = int(np.count_nonzero(sizes < min_samples))
        if small:
            notes.append(
                f"pathological: {small} clients have fewer than {min_samples} samples, "
                f"the smallest {sizes.min()}: their classes have no more"
            )
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
