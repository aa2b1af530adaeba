"""protofl: the runtime for prototype-based heterogeneous federated learning.

A method is one class whose hooks are the lines of its paper::

    import protofl as pf

    class PrototypeMean:
        "FedProto without guidance: clients send prototypes, the server averages them."
        terms = {"ce": "cross-entropy of the classifier"}

        @pf.hookimpl
        def upload_payload(self, client):
            return client.class_prototypes()

        @pf.hookimpl
        def server_aggregate(self, server, uploads):
            P, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
            mean, known = pf.functional.aggregate_prototypes(P, present.long(), "uniform")
            return pf.class_rows(known, prototypes=mean)

Publish it with an entry point::

    [project.entry-points."protofl.methods"]
    prototype-mean = "my_package:PrototypeMean"

and run it: ``protofl run prototype-mean --models htfe8`` or ``pf.run("prototype-mean")``.

The names below are loaded on first use, so that ``import protofl`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from protofl.version import __version__ as __version__

if TYPE_CHECKING:
    from protofl import functional, plots
    from protofl.comparing.compare import compare
    from protofl.data.arrays import dataset_from_arrays
    from protofl.data.cache import files_key
    from protofl.data.dataset import Dataset
    from protofl.data.download import download
    from protofl.data.generators import Generator, Outline
    from protofl.data.npz import read_npz
    from protofl.data.spec import SampleSpec
    from protofl.dispatch.dispatcher import Dispatcher
    from protofl.errors import HostFailure, ProtoflError, RunFailure, UsageError
    from protofl.folder.result import Result, Weights, read_weights
    from protofl.hookspecs.markers import hookimpl
    from protofl.hookspecs.version import HOOKSPEC_VERSION
    from protofl.hosts.host import Host
    from protofl.hosts.jobs import Job, Pool, Reply
    from protofl.hosts.train_job import TrainJob
    from protofl.machine.idle import Idle
    from protofl.machine.interpreter import fresh_interpreter
    from protofl.models.architecture import Architecture, SplitModel
    from protofl.options.declared import Config, Deviation, Field, VariantConfig
    from protofl.plan.plan import Plan
    from protofl.program.run import run
    from protofl.program.session import Session
    from protofl.randomness import numpy_stream, random_stream
    from protofl.replaying.replay import replay
    from protofl.reporting.page import report
    from protofl.reuse.run import Run, load_run
    from protofl.rounds import events
    from protofl.studies.program import reproduce, study
    from protofl.sweeps.program import sweep
    from protofl.trackers.tracked import TrackedRun
    from protofl.views.batch import Batch, Given, Output, Terms, per_step
    from protofl.views.client import Client, Learner
    from protofl.views.run import Phase, RunInfo
    from protofl.views.server import Server
    from protofl.wire.payload import Payload, Uploads, class_rows, stack_rows
    from protofl.wire.weights import average_weights, load_weights, pack_weights


_HOME = {
    # plugins
    "hookimpl": "protofl.hookspecs.markers",
    "HOOKSPEC_VERSION": "protofl.hookspecs.version",
    "Config": "protofl.options.declared",
    "VariantConfig": "protofl.options.declared",
    "Deviation": "protofl.options.declared",
    "Field": "protofl.options.declared",
    # what hooks see and return
    "Payload": "protofl.wire.payload",
    "Uploads": "protofl.wire.payload",
    "Client": "protofl.views.client",
    "Server": "protofl.views.server",
    "Learner": "protofl.views.client",
    "Batch": "protofl.views.batch",
    "Output": "protofl.views.batch",
    "Given": "protofl.views.batch",
    "Terms": "protofl.views.batch",
    "per_step": "protofl.views.batch",
    "Phase": "protofl.views.run",
    "RunInfo": "protofl.views.run",
    # what payloads are made of and read with
    "class_rows": "protofl.wire.payload",
    "stack_rows": "protofl.wire.payload",
    "pack_weights": "protofl.wire.weights",
    "load_weights": "protofl.wire.weights",
    "average_weights": "protofl.wire.weights",
    # what the other kinds of plugin build
    "Architecture": "protofl.models.architecture",
    "SplitModel": "protofl.models.architecture",
    "SampleSpec": "protofl.data.spec",
    "Dataset": "protofl.data.dataset",
    "download": "protofl.data.download",
    "read_npz": "protofl.data.npz",
    "dataset_from_arrays": "protofl.data.arrays",
    "files_key": "protofl.data.cache",
    "Generator": "protofl.data.generators",
    "Outline": "protofl.data.generators",
    "Host": "protofl.hosts.host",
    "HostFailure": "protofl.errors",
    "Job": "protofl.hosts.jobs",
    "Reply": "protofl.hosts.jobs",
    "Pool": "protofl.hosts.jobs",
    "Dispatcher": "protofl.dispatch.dispatcher",
    "TrainJob": "protofl.hosts.train_job",
    "fresh_interpreter": "protofl.machine.interpreter",
    "Idle": "protofl.machine.idle",
    "Plan": "protofl.plan.plan",
    "TrackedRun": "protofl.trackers.tracked",
    # running
    "run": "protofl.program.run",
    "Session": "protofl.program.session",
    "load_run": "protofl.reuse.run",
    "report": "protofl.reporting.page",
    "replay": "protofl.replaying.replay",
    "Run": "protofl.reuse.run",
    "read_weights": "protofl.folder.result",
    "Weights": "protofl.folder.result",
    "Result": "protofl.folder.result",
    "events": "protofl.rounds.events",
    "random_stream": "protofl.randomness",
    "numpy_stream": "protofl.randomness",
    "functional": "protofl.functional",
    # looking at runs
    "compare": "protofl.comparing.compare",
    "plots": "protofl.plots",
    # tables and figures of papers
    "study": "protofl.studies.program",
    "reproduce": "protofl.studies.program",
    # many runs
    "sweep": "protofl.sweeps.program",
    # errors
    "ProtoflError": "protofl.errors",
    "UsageError": "protofl.errors",
    "RunFailure": "protofl.errors",
}

_MODULES = ("functional", "events", "plots")
"""Names that are modules themselves."""

__all__ = [
    "HOOKSPEC_VERSION",
    "Architecture",
    "Batch",
    "Client",
    "Config",
    "Dataset",
    "Deviation",
    "Dispatcher",
    "Field",
    "Generator",
    "Given",
    "Host",
    "HostFailure",
    "Idle",
    "Job",
    "Learner",
    "Outline",
    "Output",
    "Payload",
    "Phase",
    "Plan",
    "Pool",
    "ProtoflError",
    "Reply",
    "Result",
    "Run",
    "RunFailure",
    "RunInfo",
    "SampleSpec",
    "Server",
    "Session",
    "SplitModel",
    "Terms",
    "TrackedRun",
    "TrainJob",
    "Uploads",
    "UsageError",
    "VariantConfig",
    "Weights",
    "__version__",
    "average_weights",
    "class_rows",
    "compare",
    "dataset_from_arrays",
    "download",
    "events",
    "files_key",
    "fresh_interpreter",
    "functional",
    "hookimpl",
    "load_run",
    "load_weights",
    "numpy_stream",
    "pack_weights",
    "per_step",
    "plots",
    "random_stream",
    "read_npz",
    "read_weights",
    "replay",
    "report",
    "reproduce",
    "run",
    "stack_rows",
    "study",
    "sweep",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the public names are of many types
    if name not in _HOME:
        raise AttributeError(f"module 'protofl' has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
