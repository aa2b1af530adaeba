"""Figures of `--measure`: checks before a run, and values of a round by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofl import functional
from protofl.errors import UsageError
from protofl.federation.plan import Plan
from protofl.hooks.wire.payload import Payload, stack_rows
from protofl.system.files.tables import finite

SCORES = ("public_logits", "public_probabilities")
"""Uploads that hold scores of the public samples."""


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


def check_measures(plan: Plan) -> None:
    """Check that the run can give the figures of ``--measure``.

    Raises:
        UsageError: Clients don't send what a figure is of, or the public samples have no labels.
    """
    method = plan.composition.members[plan.composition.providers["upload_payload"]]
    sent = getattr(method.instance, "uploads", {})
    for figure, keys in {"margins": ("prototypes",), "public-logits": SCORES}.items():
        if figure in plan.settings.measure and not any(key in sent for key in keys):
            raise UsageError(
                f"--measure {figure}: clients of {method.name} don't send {' or '.join(keys)}",
                f"they send: {', '.join(sent) or 'nothing'}",
                "leave it out, or take a method that does",
            )
    if "public-logits" in plan.settings.measure and plan.public_labels(0) is None:
        raise UsageError(
            "--measure public-logits: the labels of the public samples are not known",
            f"{plan.settings.public} has other classes than {plan.settings.dataset}",
            "hold samples of the data set out: --public N",
        )


@torch.no_grad()
def measured(
    plan: Plan, trial: int, knowledge: Payload, uploads: Mapping[int, Payload]
) -> dict[str, Any]:
    """Return the figures of a round that follow from uploads and the server's knowledge."""
    found: dict[str, Any] = {}
    if "margins" in plan.settings.measure:
        found["margins"] = margins(knowledge, uploads, plan.info.num_classes)
    if "public-logits" in plan.settings.measure:
        labels = plan.public_labels(trial)
        assert labels is not None
        found["public_logits"] = public_logits(uploads, labels)
    return found
