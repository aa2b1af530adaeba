"""Types for backends and engines: hosts, jobs, pools of hosts, training jobs.

Public as ``protofl.backends``.
"""

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
