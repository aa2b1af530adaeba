"""Figures that a run records on request, ``--measure``: what each needs, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from protofl.errors import UsageError
from protofl.federation.metrics.measures import SCORES, margins, public_logits
from protofl.federation.plan.plan import Plan
from protofl.hooks.wire.payload import Payload


def check_measures(plan: Plan) -> None:
    """Find figures that a run can't give.

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
    """The figures of a round that are made of what clients sent and of what the server knows."""
    found: dict[str, Any] = {}
    if "margins" in plan.settings.measure:
        found["margins"] = margins(knowledge, uploads, plan.info.num_classes)
    if "public-logits" in plan.settings.measure:
        labels = plan.public_labels(trial)
        assert labels is not None
        found["public_logits"] = public_logits(uploads, labels)
    return found
