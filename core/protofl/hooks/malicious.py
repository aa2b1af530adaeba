"""Malicious clients of a run (``--malicious``): their draw, and checks of attacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from torch import Tensor

from protofl.errors import RunFailure, UsageError
from protofl.system.randomness import numpy_stream


@lru_cache
def malicious_clients(seed: int, clients: int, share: float) -> frozenset[int]:
    """Draw the malicious clients; they depend on the seed, the number of clients and the share.

    Args:
        seed: The trial's seed.
        clients: Clients M.
        share: The share of malicious clients, at least one client; 0 for none.
    """
    if not share:
        return frozenset()
    drawn = numpy_stream(seed, "malicious").choice(clients, _count(clients, share), replace=False)
    return frozenset(drawn.tolist())


def _count(clients: int, share: float) -> int:
    return max(1, round(share * clients))


class Transform(Protocol):
    """A transform of a run."""

    name: str
    plugin: type


def check_attacks(share: float, clients: int, transforms: Sequence[Transform]) -> None:
    """Check that attacks and malicious clients come together, and that some clients are honest.

    Args:
        share: The share of malicious clients.
        clients: Clients M.
        transforms: The transforms of the run; attacks have ``attack = True``.

    Raises:
        UsageError: Attacks or malicious clients are missing, or no client is honest.
    """
    attacks = [
        transform.name for transform in transforms if getattr(transform.plugin, "attack", False)
    ]
    if attacks and not share:
        raise UsageError(
            f"--with {attacks[0]} is an attack, and no client is malicious",
            do=f"add --malicious 0.2, or drop --with {attacks[0]}",
        )
    if share and not attacks:
        raise UsageError(
            f"--malicious {share:g} is given, and no attack",
            do="add an attack: --with sign-flip (list-plugins --kind payload-transform)",
        )
    if share and _count(clients, share) >= clients:
        raise UsageError(
            f"--malicious {share:g} of {clients} clients leaves no honest client",
            do="take a smaller share, or more clients",
        )


def checked_labels(returned: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Check training labels [n] that a transform returned.

    Raises:
        RunFailure: The labels have another type, shape or range.
    """
    if returned is labels:
        return labels
    came = repr(returned)
    if isinstance(returned, Tensor) and (returned.shape, returned.dtype) == (
        labels.shape,
        labels.dtype,
    ):
        low, high = (int(returned.min()), int(returned.max())) if len(returned) else (0, 0)
        if 0 <= low <= high < num_classes and not labels.is_floating_point():
            return returned
        came = f"labels from {low} to {high}"
    elif isinstance(returned, Tensor):
        came = f"{returned.dtype} {list(returned.shape)}"
    raise RunFailure(
        f"a transform's train_labels returned {came}",
        f"expected {labels.dtype} {list(labels.shape)} from 0 to {num_classes - 1}",
        "return a class for each given label",
    )
