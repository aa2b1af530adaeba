"""Continuous: the server acts after each upload.

Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019 (FedAsync), with its α = 0.6. See
`protofl_plugins.schedules.buffered`, of which this is B = 1.
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

    @pf.hookimpl
    def try_out(self, desk: schedules.Desk, note: Callable[[str], None], config: Config) -> None:
        """Act on the upload of one of two clients."""
        try_stale_steps(desk, note, config)

    @pf.hookimpl
    def open_schedule(self, desk: schedules.Desk, config: Config) -> schedules.Schedule:
        """Return a queue, in virtual or in real time, with a buffer of one upload."""
        queue = RealTimeQueue if desk.real_time else EventQueue
        return queue(desk, config, 1)
