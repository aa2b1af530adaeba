"""Tests of the events of a round's stages, and of the mini-batches that the plan expects."""

from __future__ import annotations

from typing import ClassVar

from runtime_toys import make_plan
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl.data.batches import batch_bounds
from protofl.federation.round.federation import Federation
from protofl.federation.round.round_stages import Workload


class TwoTimes:
    """A phase of two epochs before the upload, and one after the server's step."""

    terms: ClassVar = {"ce": "cross-entropy"}

    @pf.hookimpl
    def phases(self):
        return [pf.Phase("first", epochs=2), pf.Phase("last", epochs=1, when="after_server")]

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}


def batches(plan, client):
    samples = len(plan.split(0).train(client))
    return len(batch_bounds(samples, plan.settings.batch_size, plan.settings.drop_last))


def test_each_client_is_done_once_in_each_stage():
    plan, stages = make_plan(TwoTimes, clients=2), []

    def follow(event):
        if isinstance(event, pf.events.StageStarted):
            stages.append((event.stage, event.jobs, []))
        elif isinstance(event, pf.events.ClientDone):
            stages[-1][2].append(event.client)

    federation = Federation(plan, pf.backends.Host(plan), follow)
    federation.start_trial(0)
    federation.round(0)
    assert [(stage, jobs, sorted(clients)) for stage, jobs, clients in stages] == [
        ("train", 2, [0, 1]),
        ("server", 0, []),
        ("train", 2, [0, 1]),
        ("evaluate", 2, [0, 1]),
    ]


def test_the_workload_has_all_phases():
    plan = make_plan(TwoTimes, clients=2)
    assert Workload(plan, 0).training(1) == 3 * batches(plan, 1)
