"""What clients compute in local training, in FLOPs, counted on throw-away copies before a run."""

from __future__ import annotations

from dataclasses import replace

from protofl.federation.hosts.host import Host
from protofl.federation.hosts.jobs import Job, Reply, Train, TrainReply
from protofl.federation.participation.flops import forward_of
from protofl.federation.plan.plan import Plan
from protofl.hooks.models.cost import ClientFlops, flop_counter
from protofl.hooks.plugin.members import choose
from protofl.runs.dry_step.step import for_dry_rounds, two_dry_rounds


class _CountingHost(Host):
    """A host that counts what its clients' training takes."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.flops: dict[int, ClientFlops] = {}

    def handle(self, job: Job) -> Reply:
        if not isinstance(job, Train):
            return super().handle(job)
        if job.when == "before_upload":
            self.flops[job.client] = ClientFlops()  # the round before had other downloads
        with flop_counter() as counter:
            reply = super().handle(job)
        assert isinstance(reply, TrainReply)
        found = self.flops[job.client]
        found.counted += counter.get_total_flops()
        found.samples += reply.samples
        return reply


def count_flops(plan: Plan) -> list[ClientFlops]:
    """What clients of each architecture compute, in the order of the architectures.

    They are tried in two rounds, as in the dry step.
    """
    count = len(plan.info.architectures)
    eager = {**plan.choices, "engine": choose(plan.registry, "engine", "eager")}
    host = _CountingHost(for_dry_rounds(replace(plan, choices=eager), count))
    two_dry_rounds(host)
    for client, found in host.flops.items():
        found.forward = forward_of(host.client(client), plan)
    return [host.flops[client] for client in range(count)]
