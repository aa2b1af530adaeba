"""Requirements of several partitioners: enough samples and enough classes."""

from __future__ import annotations

import protofl as pf

MIN_SAMPLES = pf.Field(
    None,
    ge=2,
    description="samples that every client gets at least; none: 14, or half the mean where the "
    "data are too few",
)
"""The option ``min_samples`` of several partitioners."""


def check_samples(
    name: str, samples: int, clients: int, least: int, other: str = "a lower partition.min_samples"
) -> None:
    """Check that each client can get a minimum number of samples.

    Args:
        name: The partitioner.
        samples: Number of samples N.
        clients: Clients M.
        least: Minimum number of samples per client.
        other: An alternative to fewer clients, for the error.

    Raises:
        UsageError: N is less than M times the minimum.
    """
    if samples < clients * least:
        raise pf.UsageError(
            f"{name}: {samples} samples are too few for {clients} clients "
            f"with at least {least} each",
            do=f"use at most {samples // least} clients (--clients), or {other}",
        )


def check_classes(name: str, per_client: int, classes: int) -> None:
    """Check that the data have as many classes as each client should get.

    Raises:
        UsageError: The data have fewer classes.
    """
    if per_client > classes:
        raise pf.UsageError(
            f"{name}: classes_per_client={per_client} is more classes per client than there are",
            f"the data have {classes} classes",
            f"use a classes_per_client of at most {classes}",
        )
