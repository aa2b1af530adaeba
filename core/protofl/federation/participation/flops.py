"""What a forward pass costs clients, in FLOPs, counted before a run."""

from __future__ import annotations

import torch

from protofl.federation.hosts.host import Host
from protofl.federation.plan.plan import Plan
from protofl.hooks.models.architecture import SplitModel
from protofl.hooks.models.cost import flop_counter
from protofl.hooks.views.records import ClientRecord


def forward_flops(plan: Plan) -> list[int]:
    """FLOPs of one sample's forward pass by a client of each architecture, in their order.

    Through all models that it trains: its own and, with ``fml`` and ``fedkd``, the auxiliary one.
    """
    host = Host(plan)
    return [forward_of(host.client(number), plan) for number in range(len(plan.info.architectures))]


def forward_of(record: ClientRecord, plan: Plan) -> int:
    """FLOPs of one sample's forward pass through all models that a client trains."""
    x = plan.info.sample.zeros(1).to(plan.device)
    own = [record.model, *(slot.module for _, slot in record.slots() if slot.train)]
    with flop_counter() as counter, torch.no_grad():
        for model in own:
            if isinstance(model, SplitModel):
                model.eval()(x)
    return int(counter.get_total_flops())
