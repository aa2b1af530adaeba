"""Accuracy of uploaded scores of public samples (``--measure public-logits``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofl import functional
from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.functional.precision import in_float64
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tables import finite
from protofl.system.transfers import to_host

SCORES = ("public_logits", "public_probabilities")
"""Uploads that hold scores of the public samples."""


def accuracy_by_class(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the share of each class's samples that is predicted correctly, [C] float64.

    Args:
        scores: [N, C], logits or probabilities.
        labels: [N] integers in 0…C−1. The share of a class without samples is NaN.
    """
    hits = labels[scores.argmax(1) == labels]
    correct, count = (torch.bincount(y, minlength=scores.shape[1]) for y in (hits, labels))
    return in_float64(correct) / in_float64(count)  # 0/0 is NaN


def public_logits(uploads: Mapping[int, Payload], labels: Tensor) -> dict[str, Any]:
    """FedPKD, Fig. 2: accuracy by class of each client's scores, and of their ensembles."""
    (key,) = (key for key in SCORES if key in next(iter(uploads.values())).keys())
    each = to_host({str(client): upload[key] for client, upload in uploads.items()})
    scores, labels = torch.stack([*each.values()]), labels.cpu()

    def accuracy(scores: Tensor) -> list[float | None]:
        return _numbers(accuracy_by_class(scores, labels))

    return {
        "clients": {
            client: accuracy(client_scores)
            for client, client_scores in zip(each, scores, strict=True)
        },
        "mean": accuracy(scores.mean(0)),
        "variance": accuracy(functional.ensemble_logits(scores)),
    }


def _numbers(values: Tensor) -> list[float | None]:
    return [finite(value) for value in values.tolist()]


def check_public_logits(plan: Plan) -> None:
    """Check that the run can measure the scores of public samples.

    Raises:
        UsageError: Clients don't send what a figure is of, or the public samples have no labels.
    """
    method = plan.composition.members[plan.composition.providers["upload_payload"]]
    sent = getattr(method.instance, "uploads", {})
    if not any(key in sent for key in SCORES):
        raise UsageError(
            f"--measure public-logits: clients of {method.name} don't send {' or '.join(SCORES)}",
            f"they send: {', '.join(sent) or 'nothing'}",
            "leave it out, or take a method that does",
        )
    if plan.public_labels(0) is None:
        raise UsageError(
            "--measure public-logits: the labels of the public samples are not known",
            f"{plan.settings.public} has other classes than {plan.settings.dataset}",
            "hold samples of the data set out: --public N",
        )


@torch.no_grad()
def measured(plan: Plan, trial: int, uploads: Mapping[int, Payload]) -> dict[str, Any]:
    """Return the figures of a round that follow from uploads."""
    labels = plan.public_labels(trial)
    assert labels is not None
    return {"public_logits": public_logits(uploads, labels)}
