"""Types for backends and engines: hosts, jobs, pools of hosts, training jobs.

Public as ``protofl.backends``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from protofl.errors import HostFailure, NotReplayable
from protofl.federation.clients.host import Host
from protofl.federation.clients.train_job import TrainJob
from protofl.federation.jobs.jobs import Absent, Job, Reply, SaveReply
from protofl.federation.jobs.pool_interface import Pool
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.run_data import installed_transforms, load_dataset
from protofl.system.device import visible_as_only
from protofl.system.machine import Idle, fresh_interpreter
from protofl.system.transfers import has_streams, to_device

if TYPE_CHECKING:
    from protofl.federation.clients.step_trace import StepTrace
    from protofl.federation.pools.dispatcher import Dispatcher

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

_LATER = {
    "Dispatcher": "protofl.federation.pools.dispatcher",
    "StepTrace": "protofl.federation.clients.step_trace",
}
"""Names that a run on one host does without, and their modules."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class of one of these modules
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
