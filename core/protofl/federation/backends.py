"""Types for backends and engines: hosts, jobs, pools of hosts, training jobs.

Public as ``protofl.backends``.
"""

from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use

if TYPE_CHECKING:
    from protofl.errors import HostFailure, NotReplayable
    from protofl.federation.clients.host import Host
    from protofl.federation.clients.step_trace import StepTrace
    from protofl.federation.clients.train_job import TrainJob
    from protofl.federation.jobs.jobs import Absent, Job, Reply, SaveReply
    from protofl.federation.jobs.pool_interface import Pool
    from protofl.federation.plan.plan import Plan
    from protofl.federation.plan.run_data import installed_transforms, load_dataset
    from protofl.federation.pools.dispatcher import Dispatcher
    from protofl.system.device import visible_as_only
    from protofl.system.machine import Idle, fresh_interpreter
    from protofl.system.transfers import has_streams, to_device

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "protofl.errors": "HostFailure NotReplayable",
        "protofl.federation.clients.host": "Host",
        "protofl.federation.clients.step_trace": "StepTrace",
        "protofl.federation.clients.train_job": "TrainJob",
        "protofl.federation.jobs.jobs": "Absent Job Reply SaveReply",
        "protofl.federation.jobs.pool_interface": "Pool",
        "protofl.federation.plan.plan": "Plan",
        "protofl.federation.plan.run_data": "installed_transforms load_dataset",
        "protofl.federation.pools.dispatcher": "Dispatcher",
        "protofl.system.device": "visible_as_only",
        "protofl.system.machine": "Idle fresh_interpreter",
        "protofl.system.transfers": "has_streams to_device",
    },
)

__all__ = [
    "Absent",
    "Dispatcher",
    "Host",
    "HostFailure",
    "Idle",
    "Job",
    "NotReplayable",
    "Plan",
    "Pool",
    "Reply",
    "SaveReply",
    "StepTrace",
    "TrainJob",
    "fresh_interpreter",
    "has_streams",
    "installed_transforms",
    "load_dataset",
    "to_device",
    "visible_as_only",
]
