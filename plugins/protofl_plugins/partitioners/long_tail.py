"""Long tail: class sizes fall off exponentially, then a Dirichlet split over the clients.

Source: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019
(https://arxiv.org/abs/1901.05555), Sec. 5.1: class c of 0…C-1 keeps

    n_c = n_0·ρ^(−c/(C−1)),        ρ = n_0/n_{C−1}, the imbalance ratio,

and the rest is left out. CReFF (Shang et al., IJCAI 2022, https://arxiv.org/abs/2204.13399) divides
such data over clients by a Dirichlet distribution. n_0 is the size of the largest class, and no
class keeps more than it has. Test samples come from the same clients' shares, so they have the long
tail too: ``--metrics balanced-accuracy`` weighs classes alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import protofl as pf
from protofl_plugins.partitioners.dirichlet import Dirichlet
from protofl_plugins.partitioners.iid import IID
from protofl_plugins.partitioners.requirements import MIN_SAMPLES


class LongTail:
    """Class sizes that fall off exponentially, divided by a Dirichlet distribution or evenly."""

    leaves_out = "samples of all classes but the largest, by the imbalance ratio"
    check_options = {"ratio": 4}

    class Config(pf.Config):
        """Options of the long-tail partitioner."""

        ratio: float = pf.Field(
            100, ge=1, description="ρ, size of the largest class over the smallest; 1 keeps all"
        )
        beta: float | None = pf.Field(
            0.5,
            gt=0,
            le=1e9,
            description="β of the Dirichlet distribution over clients. None: equal random parts",
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
        """Keep n_c random samples of each class and divide them."""
        sizes = np.bincount(labels, minlength=num_classes)
        falls = config.ratio ** (-np.arange(num_classes) / max(1, num_classes - 1))
        kept_sizes = np.maximum(np.floor(sizes.max() * falls + 1e-9).astype(np.int64), 1)
        shuffled = generator.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = np.sort(by_class[place < np.repeat(kept_sizes, sizes)])
        kept = np.bincount(labels[rows], minlength=num_classes)
        least = kept[kept > 0]
        notes.append(
            f"long-tail: {len(rows)} of {len(labels)} samples, {least.max()} of the largest class "
            f"and {least.min()} of the smallest"
        )
        arguments: dict[str, Any] = {
            "labels": labels[rows],
            "num_classes": num_classes,
            "num_clients": num_clients,
            "min_samples": min_samples,
            "generator": generator,
            "notes": notes,
        }
        if config.beta is None:
            parts = IID().partition(config=IID.Config(), **arguments)
        else:
            inner = Dirichlet.Config(beta=config.beta, min_samples=config.min_samples)
            parts = Dirichlet().partition(config=inner, **arguments)
        return [rows[client_rows].astype(np.int64) for client_rows in parts]
