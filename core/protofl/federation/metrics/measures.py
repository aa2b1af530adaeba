"""Figures of ``--measure``, by class: of what clients sent, and of what the server made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofl import functional
from protofl.hooks.wire.payload import Payload, stack_rows
from protofl.system.files.tables import finite

SCORES = ("public_logits", "public_probabilities")
"""What clients send of the public samples."""


def margins(knowledge: Payload, uploads: Mapping[int, Payload], classes: int) -> dict[str, Any]:
    """FedTGP, Fig. 1: margins of the global prototypes, and the clients' largest, by class."""
    own = None
    if "prototypes" in knowledge.keys():
        own = _numbers(functional.class_margins(*knowledge.table("prototypes", classes)))
    sent = stack_rows(uploads, "prototypes", classes)
    return {"global": own, "clients": _numbers(functional.largest_margins(*sent))}


def public_logits(uploads: Mapping[int, Payload], labels: Tensor) -> dict[str, Any]:
    """FedPKD, Fig. 2: accuracy by class of each client's scores, and of their ensembles."""
    (key,) = (key for key in SCORES if key in next(iter(uploads.values())).keys())
    scores = torch.stack([upload[key] for upload in uploads.values()])

    def accuracy(scores: Tensor) -> list[float | None]:
        return _numbers(functional.accuracy_by_class(scores, labels))

    return {
        "clients": {
            str(client): accuracy(own) for client, own in zip(uploads, scores, strict=True)
        },
        "mean": accuracy(scores.mean(0)),
        "variance": accuracy(functional.ensemble_logits(scores)),
    }


def _numbers(values: Tensor) -> list[float | None]:
    return [finite(value) for value in values.tolist()]
