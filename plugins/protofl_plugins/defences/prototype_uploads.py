"""Prototypes of uploads in a defence: what a rule is applied to, and what it returns to the method.

A defence provides ``server_aggregate`` (``--use server_aggregate=NAME``) and sees the uploads
before the server's other hooks do. It changes them, so that a method's own use of prototypes, in
its ``server_train`` or elsewhere, is based on the changed ones:

* A filter removes the rows that it does not trust; the others stay unchanged (`without_rows`).
* A robust mean replaces each row of a class by the class's mean (`with_means`). The number of rows
  stays, so a server that trains on them (FedTGP, FedGH) takes as many steps.

The defence aggregates the changed rows by their plain mean (`mean_of_rows`). Counts that clients
send have no weight here: they are claims like all else.

A rule is a function of the prototypes of M clients, [M, C, K], and of the mask ``present`` [M, C]
of the rows that exist, whose number n_c differs from class to class. It does not look at the
contents of absent rows. A rule that expects malicious clients expects at most f_c of n_c, see
`minority`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.shared.prototypes import Absent, mean_prototypes, with_absent


class DefenceConfig(pf.Config):
    """Options of all defences."""

    absent: Absent = pf.Field(
        "keep", description="a class that no client of the round has: its last prototype, or none"
    )


# --- uploads --------------------------------------------------------------------------------------


def stacked(server: pf.Server[Any], uploads: pf.Uploads) -> tuple[Tensor, Tensor]:
    """Return the prototypes of M clients, [M, C, K], and the mask of rows that exist, [M, C]."""
    return pf.stack_rows(uploads, "prototypes", server.num_classes)


def with_means(uploads: pf.Uploads, means: Tensor) -> pf.Uploads:
    """Return the uploads with a class's mean in place of each of its rows.

    Args:
        uploads: Of M clients.
        means: [C, K].
    """
    return {
        client: pf.Payload(
            upload, prototypes=means[upload.classes_of("prototypes")].to(upload["prototypes"])
        )
        for client, upload in uploads.items()
    }


def without_rows(uploads: pf.Uploads, kept: Tensor) -> pf.Uploads:
    """Return the uploads without the prototypes that are not kept, nor the counts of these.

    Args:
        uploads: Of M clients.
        kept: [M, C] bool.
    """
    return {
        client: _without(upload, ~kept[number][upload.classes_of("prototypes")])
        for number, (client, upload) in enumerate(uploads.items())
    }


def _without(upload: pf.Payload, dropped: Tensor) -> pf.Payload:
    if not bool(dropped.any()):
        return upload
    changed: dict[str, Tensor] = {}
    for name in ("prototypes", "counts"):
        if name in upload.keys() and len(upload[name]) == len(dropped):
            changed[name] = upload[name][~dropped]
            changed[f"{name}.classes"] = upload.classes_of(name)[~dropped]
    return pf.Payload(upload | changed)


@pf.hookimpl
def mean_of_rows(server: pf.Server[Any], uploads: pf.Uploads) -> pf.Payload:
    """Return the plain mean of every class's rows; absent classes by the option ``absent``."""
    mean, known = mean_prototypes(server, uploads, "uniform")
    mean, known = with_absent(server, mean, known, server.config.absent)
    return pf.class_rows(known, prototypes=mean)


# --- rules ----------------------------------------------------------------------------------------


def minority(counts: Tensor, share: float) -> Tensor:
    """Return f_c = min(⌈share·n_c⌉, ⌊(n_c − 1)/2⌋), the clients that may be malicious.

    The rounding up makes a class with few clients expect one, and a majority is always believed.

    Args:
        counts: n_c, integers of any shape.
        share: The share that is expected to be malicious, 0…1.

    Returns:
        f_c, int64 of the same shape; 0 for classes that no client has.
    """
    wide = pf.functional.in_float64(counts)
    up = (wide * share - 1e-9).ceil().long().to(counts.device)  # 0.1·30 is a little above 3
    return torch.minimum(up, (counts.long() - 1) // 2).clamp(min=0)


def ascending(prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return every coordinate's values, ascending over clients, absent ones last; and n_c, [C]."""
    values = prototypes.masked_fill(~present.unsqueeze(2), torch.inf).sort(dim=0).values
    return values, present.sum(0)


def of_known_classes(means: Tensor, counts: Tensor) -> Tensor:
    """Return the means [C, K] of classes that some client has, and 0 for the others."""
    return means.masked_fill((counts == 0).unsqueeze(1), 0.0)
