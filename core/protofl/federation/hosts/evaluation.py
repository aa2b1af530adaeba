"""Evaluation: a client's score on its samples, which changes nothing."""

from __future__ import annotations

import torch

from protofl.errors import naming
from protofl.federation.hosts.jobs import Evaluate
from protofl.federation.metrics.figures import of_client
from protofl.federation.observing.observer import test_features
from protofl.federation.plan.plan import Plan
from protofl.hooks.views.client import Client
from protofl.hooks.views.records import ClientRecord
from protofl.hooks.wire.payload import Payload
from protofl.system.device import autocast
from protofl.system.profile.host_profile import HostProfile
from protofl.system.progress import Counter


def score(
    plan: Plan,
    record: ClientRecord,
    download: Payload,
    job: Evaluate,
    profile: HostProfile,
    counter: Counter,
) -> tuple[dict[str, tuple[int, int]], Payload]:
    """How many samples a client predicts rightly, and of how many; it stays what it was.

    Args:
        plan: The run.
        record: The client.
        download: What it would download next; one that was fine-tuned has received it.
        job: After which round it is scored, whether it was fine-tuned, and how many features are
            wanted.
        profile: Takes the operators, where they are sampled.
        counter: Counts mini-batches.

    Returns:
        Of its ``test`` samples, its ``validation`` samples where any are held out, and its
        ``train`` samples where they are measured; and what the test samples' scores count in the
        run's metrics, with the features.
    """
    scored = {"test": record.test}
    if record.validation is not None:
        scored["validation"] = record.validation
    if "train-accuracy" in plan.settings.measure:
        scored["train"] = record.train
    composition, client = plan.composition, Client(record, plan.composition.main)
    place = f"client {record.id}, evaluation of round {job.round}"
    measured, kept, found = plan.metrics or composition.has("score_client"), [], Payload()
    writes = composition.has("receive") or composition.has("score_client")
    with record.unchanged() if writes else record.same_download():
        record.received, record.round = download, job.round
        with naming(f"receive, {place}"):
            if not job.epochs:
                composition.lifecycle("receive", client=client)
        record.set_mode(False)
        correct = torch.zeros(len(scored), dtype=torch.int64, device=plan.device)
        size = record.architecture.eval_batch
        with profile.operators("evaluate"), torch.no_grad(), naming(f"inference, {place}"):
            for number, samples in enumerate(scored.values()):
                pairs = zip(samples.chunks(size), torch.split(samples.y, size), strict=False)
                for x, y in counter.over(pairs):
                    with autocast(plan.settings.precision, plan.device):
                        scores = composition.call("inference", client=client, x=x)
                    correct[number] += (scores.argmax(1) == y).sum()
                    if measured and number == 0:
                        kept.append(scores.float() if scores.element_size() < 4 else scores)
        if kept:
            with torch.no_grad(), naming(place):
                found = of_client(plan.metrics, composition, client, torch.cat(kept), record.test.y)
        if job.observe:
            with naming(f"features, {place}"):
                found |= test_features(plan, record, job.observe)
    record.forget_scratch()
    counts = (len(samples) for samples in scored.values())
    return dict(zip(scored, zip(correct.tolist(), counts, strict=True), strict=True)), found
