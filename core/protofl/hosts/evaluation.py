"""Evaluation: a client's score on its test samples, which changes nothing."""

from __future__ import annotations

import torch

from protofl.cores import autocast
from protofl.errors import naming
from protofl.plan.plan import Plan
from protofl.profile.spans import HostProfile
from protofl.views.client import Client
from protofl.views.records import ClientRecord
from protofl.wire.payload import Payload


def score(
    plan: Plan, record: ClientRecord, download: Payload, round: int, profile: HostProfile
) -> int:
    """How many test samples a client predicts rightly; it stays what it was.

    Args:
        plan: The run.
        record: The client.
        download: What it would download next.
        round: The round after which it is scored.
        profile: Takes the operators, where they are sampled.
    """
    composition, client = plan.composition, Client(record, plan.composition.main)
    place = f"client {record.id}, evaluation of round {round}"
    with record.unchanged() if composition.has("receive") else record.same_download():
        record.received, record.round = download, round
        with naming(f"receive, {place}"):
            composition.lifecycle("receive", client=client)
        record.set_mode(False)
        correct = torch.zeros((), dtype=torch.int64, device=plan.device)
        size, test = record.architecture.eval_batch, record.test
        with profile.operators("evaluate"), torch.no_grad(), naming(f"inference, {place}"):
            for x, y in zip(test.chunks(size), torch.split(test.y, size), strict=False):
                with autocast(plan.settings.precision, plan.device):
                    scores = composition.call("inference", client=client, x=x)
                correct += (scores.argmax(1) == y).sum()
    record.forget_scratch()
    return int(correct)
