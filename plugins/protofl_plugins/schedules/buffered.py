"""Buffered: the server acts when B uploads are there.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (FedBuff).
`protofl_plugins.schedules.event_queue` has the order of events,
`protofl_plugins.schedules.stale_uploads` what becomes of a stale upload.
"""

from __future__ import annotations

from collections.abc import Callable

import protofl as pf
from protofl import schedules
from protofl_plugins.schedules.event_queue import EventQueue
from protofl_plugins.schedules.options import AsynchronousConfig
from protofl_plugins.schedules.real_time import RealTimeQueue
from protofl_plugins.schedules.refusals import check_asynchronous
from protofl_plugins.schedules.trial_steps import try_stale_steps


class Buffered:
    """Asynchronous: the server acts when B uploads are there (Nguyen et al., 2022)."""

    real_time = True

    class Config(AsynchronousConfig):
        """Options: --set timing.OPTION=VALUE."""

        buffer: int = pf.Field(
            None,
            ge=1,
            le=10_000_000,
            description="B, uploads of a step; None: half the concurrency",
        )

    @pf.hookimpl
    def check_run(self, plan: pf.backends.Plan, config: Config) -> None:
        """Refuse what needs rounds, or all clients at once."""
        check_asynchronous(plan, config, buffer_of(plan, config))

    @pf.hookimpl
    def try_out(
        self, coordinator: schedules.Coordinator, note: Callable[[str], None], config: Config
    ) -> None:
        """Act on the upload of one of two clients."""
        try_stale_steps(coordinator, note, config)

    @pf.hookimpl
    def open_schedule(
        self, coordinator: schedules.Coordinator, config: Config
    ) -> schedules.Schedule:
        """Return a queue, in virtual or in real time, with a buffer of B uploads."""
        queue = RealTimeQueue if coordinator.real_time else EventQueue
        return queue(coordinator, config, buffer_of(coordinator.plan, config))


def buffer_of(plan: pf.backends.Plan, config: Buffered.Config) -> int:
    """Return B."""
    return config.buffer or max(1, (config.concurrency or plan.info.participants) // 2)
