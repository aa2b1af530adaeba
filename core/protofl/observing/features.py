"""Features of test samples, as a client's model has them when it is scored."""

from __future__ import annotations

import torch

from protofl.machine.cores import autocast
from protofl.plan.plan import Plan
from protofl.randomness import random_stream
from protofl.views.records import ClientRecord
from protofl.wire.payload import Payload

FEATURES, LABELS = "(features)", "(labels)"
"""Their names beside the counts of metrics, none of which is called so."""


@torch.no_grad()
def test_features(plan: Plan, record: ClientRecord, most: int) -> Payload:
    """Features of some of a client's test samples, the same in every round.

    Args:
        plan: The run.
        record: The client, in evaluation, with what it would download next.
        most: Samples at most; which they are is drawn by the trial's seed and the client.

    Returns:
        ``(features)`` [n, K] float32 and ``(labels)`` [n].
    """
    drawn = random_stream(record.seed, "observed-samples", record.id)
    rows = torch.randperm(len(record.test), generator=drawn)[:most].sort().values
    chosen = record.test.at(rows.to(record.test.y.device))
    found = [torch.zeros(0, plan.info.feature_dim)]
    for x in chosen.chunks(record.architecture.eval_batch):
        with autocast(plan.settings.precision, plan.device):
            found.append(record.model.features(x).float().cpu())
    return Payload({FEATURES: torch.cat(found[1:] or found), LABELS: chosen.y.cpu()})
