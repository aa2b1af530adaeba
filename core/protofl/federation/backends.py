"""Types for backends and engines: hosts, jobs, pools of hosts, training jobs.

Public as ``protofl.backends``.
"""

from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use

if TYPE_CHECKING:
    from protofl.errors import HostFailure as HostFailure
    from protofl.errors import NotReplayable as NotReplayable
    from protofl.federation.clients.host import Host as Host
    from protofl.federation.clients.step_trace import StepTrace as StepTrace
    from protofl.federation.clients.train_job import TrainJob as TrainJob
    from protofl.federation.jobs.jobs import Absent as Absent
    from protofl.federation.jobs.jobs import Job as Job
    from protofl.federation.jobs.jobs import Reply as Reply
    from protofl.federation.jobs.jobs import SaveReply as SaveReply
    from protofl.federation.jobs.pool_interface import Pool as Pool
    from protofl.federation.plan.plan import Plan as Plan
    from protofl.federation.plan.run_data import installed_transforms as installed_transforms
    from protofl.federation.plan.run_data import load_dataset as load_dataset
    from protofl.federation.pools.dispatcher import Dispatcher as Dispatcher
    from protofl.system.machine import Idle as Idle
    from protofl.system.machine import fresh_interpreter as fresh_interpreter
    from protofl.system.named_devices import visible_as_only as visible_as_only
    from protofl.system.transfers import has_streams as has_streams
    from protofl.system.transfers import to_device as to_device

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
        "protofl.system.named_devices": "visible_as_only",
        "protofl.system.machine": "Idle fresh_interpreter",
        "protofl.system.transfers": "has_streams to_device",
    },
)

__all__ = __dir__()
