"""Evaluation: a client's score on its samples, which changes nothing."""

from __future__ import annotations

import torch

from protofl.errors import naming
from protofl.machine.cores import autocast
from protofl.plan.plan import Plan
from protofl.profile.spans import HostProfile
from protofl.views.client import Client
from protofl.views.records import ClientRecord
from protofl.wire.payload import Payload


def score(
    plan: Plan, record: ClientRecord, download: Payload, round: int, profile: HostProfile
) -> list[tuple[int, int]]:
    """How many samples a client predicts rightly, and of how many; it stays what it was.

    Args:
        plan: The run.
        record: The client.
        download: What it would download next.
        round: The round after which it is scored.
        profile: Takes the operators, where they are sampled.

    Returns:
        Of its test samples and, where they are measured, of its training samples.
    """
    scored = [record.test]
    if "train-accuracy" in plan.settings.measure:
        scored.append(record.train)
    composition, client = plan.composition, Client(record, plan.composition.main)
    place = f"client {record.id}, evaluation of round {round}"
    with record.unchanged() if composition.has("receive") else record.same_download():
        record.received, record.round = download, round
        with naming(f"receive, {place}"):
            composition.lifecycle("receive", client=client)
        record.set_mode(False)
        correct = torch.zeros(len(scored), dtype=torch.int64, device=plan.device)
        size = record.architecture.eval_batch
        with profile.operators("evaluate"), torch.no_grad(), naming(f"inference, {place}"):
            for number, samples in enumerate(scored):
                for x, y in zip(samples.chunks(size), torch.split(samples.y, size), strict=False):
                    with autocast(plan.settings.precision, plan.device):
                        scores = composition.call("inference", client=client, x=x)
                    correct[number] += (scores.argmax(1) == y).sum()
    record.forget_scratch()
    return [(right, len(each)) for right, each in zip(correct.tolist(), scored, strict=True)]
