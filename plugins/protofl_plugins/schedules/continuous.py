"""Continuous: the server acts after each upload.

Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019 (FedAsync), with its α = 0.6. See
`protofl_plugins.schedules.buffered`, of which this is B = 1.
"""

from __future__ import annotations

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.buffered import Buffered
from protofl_plugins.schedules.event_queue import EventQueue
from protofl_plugins.schedules.options import AsynchronousConfig
from protofl_plugins.schedules.real_time import RealTimeQueue
from protofl_plugins.schedules.refusals import check_asynchronous


class Continuous:
    """Asynchronous: the server acts after each upload (Xie et al., 2019)."""

    real_time = True

    class Config(AsynchronousConfig):
        """Options: --set timing.OPTION=VALUE."""

        mixing: float = pf.Field(
            0.6,
            gt=0,
            le=1,
            description="α: weight of an upload that is not stale, against what the server has; "
            "1: it replaces that",
        )

    @pf.hookimpl
    def check_run(self, plan: pf.backends.Plan, config: Config) -> None:
        """Refuse what needs rounds, or all clients at once."""
        check_asynchronous(plan, config, 1)

    try_out = Buffered.try_out

    @pf.hookimpl
    def open_schedule(
        self, coordinator: schedules.Coordinator, config: Config
    ) -> schedules.Schedule:
        """Return a queue, in virtual or in real time, with a buffer of one upload."""
        queue = RealTimeQueue if coordinator.real_time else EventQueue
        return queue(coordinator, config, 1)
