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

from protofl.system.version import __version__ as __version__

if TYPE_CHECKING:
    from protofl import functional
    from protofl.data import datasets
    from protofl.errors import ProtoflError, RunFailure, UsageError
    from protofl.federation import backends, events
    from protofl.hooks.hookspecs.markers import HOOKSPEC_VERSION, hookimpl
    from protofl.hooks.models.architecture import Architecture, SplitModel
    from protofl.hooks.views.batch import Batch, Given, Output, Terms, per_step
    from protofl.hooks.views.client import Client, Learner
    from protofl.hooks.views.run_info import Phase, RunInfo
    from protofl.hooks.views.server import Server
    from protofl.hooks.views.tracked_run import TrackedRun
    from protofl.hooks.wire.payload import Payload, Uploads, class_rows, stack_rows
    from protofl.hooks.wire.weights import average_weights, load_weights, pack_weights
    from protofl.records.result import Result, Weights, read_weights
    from protofl.runs.python_api import Session, run
    from protofl.runs.recorded_run import Run, load_run
    from protofl.system.consent import trust_code
    from protofl.system.options.plugin_options import Config, Deviation, Field, VariantConfig
    from protofl.system.randomness import numpy_stream, random_stream
    from protofl_workbench import plots
    from protofl_workbench.comparing.compare import compare
    from protofl_workbench.replaying.replay import replay
    from protofl_workbench.reporting.page import report
    from protofl_workbench.studies.study_interface import reproduce, study
    from protofl_workbench.sweeps.sweep_interface import sweep


_HOME = {
    # plugins
    "hookimpl": "protofl.hooks.hookspecs.markers",
    "HOOKSPEC_VERSION": "protofl.hooks.hookspecs.markers",
    "Config": "protofl.system.options.plugin_options",
    "VariantConfig": "protofl.system.options.plugin_options",
    "Deviation": "protofl.system.options.plugin_options",
    "Field": "protofl.system.options.plugin_options",
    # what hooks see and return
    "Payload": "protofl.hooks.wire.payload",
    "Uploads": "protofl.hooks.wire.payload",
    "Client": "protofl.hooks.views.client",
    "Server": "protofl.hooks.views.server",
    "Learner": "protofl.hooks.views.client",
    "Batch": "protofl.hooks.views.batch",
    "Output": "protofl.hooks.views.batch",
    "Given": "protofl.hooks.views.batch",
    "Terms": "protofl.hooks.views.batch",
    "per_step": "protofl.hooks.views.batch",
    "Phase": "protofl.hooks.views.run_info",
    "RunInfo": "protofl.hooks.views.run_info",
    # what payloads are made of and read with
    "class_rows": "protofl.hooks.wire.payload",
    "stack_rows": "protofl.hooks.wire.payload",
    "pack_weights": "protofl.hooks.wire.weights",
    "load_weights": "protofl.hooks.wire.weights",
    "average_weights": "protofl.hooks.wire.weights",
    # what the other kinds of plugin build
    "Architecture": "protofl.hooks.models.architecture",
    "SplitModel": "protofl.hooks.models.architecture",
    "TrackedRun": "protofl.hooks.views.tracked_run",
    "backends": "protofl.federation.backends",
    "datasets": "protofl.data.datasets",
    # running
    "run": "protofl.runs.python_api",
    "Session": "protofl.runs.python_api",
    "load_run": "protofl.runs.recorded_run",
    "report": "protofl_workbench.reporting.page",
    "replay": "protofl_workbench.replaying.replay",
    "Run": "protofl.runs.recorded_run",
    "Result": "protofl.records.result",
    "Weights": "protofl.records.result",
    "read_weights": "protofl.records.result",
    "events": "protofl.federation.events",
    "random_stream": "protofl.system.randomness",
    "numpy_stream": "protofl.system.randomness",
    "functional": "protofl.functional",
    # looking at runs
    "compare": "protofl_workbench.comparing.compare",
    "plots": "protofl_workbench.plots",
    # tables and figures of papers
    "study": "protofl_workbench.studies.study_interface",
    "reproduce": "protofl_workbench.studies.study_interface",
    # many runs
    "sweep": "protofl_workbench.sweeps.sweep_interface",
    # consent
    "trust_code": "protofl.system.consent",
    # errors
    "ProtoflError": "protofl.errors",
    "UsageError": "protofl.errors",
    "RunFailure": "protofl.errors",
}

_MODULES = ("functional", "events", "plots", "backends", "datasets")
"""Names that are modules themselves."""

_MOVED = {
    **dict.fromkeys(
        (
            "Dispatcher",
            "Host",
            "HostFailure",
            "Idle",
            "Job",
            "Plan",
            "Pool",
            "Reply",
            "TrainJob",
            "fresh_interpreter",
        ),
        "protofl.backends.{}",
    ),
    **dict.fromkeys(
        (
            "Dataset",
            "Generator",
            "Outline",
            "SampleSpec",
            "dataset_from_arrays",
            "download",
            "files_key",
            "read_npz",
        ),
        "protofl.datasets.{}",
    ),
}
"""{name of protofl 0.1.0: its place now}."""

__all__ = [
    "HOOKSPEC_VERSION",
    "Architecture",
    "Batch",
    "Client",
    "Config",
    "Deviation",
    "Field",
    "Given",
    "Learner",
    "Output",
    "Payload",
    "Phase",
    "ProtoflError",
    "Result",
    "Run",
    "RunFailure",
    "RunInfo",
    "Server",
    "Session",
    "SplitModel",
    "Terms",
    "TrackedRun",
    "Uploads",
    "UsageError",
    "VariantConfig",
    "Weights",
    "__version__",
    "average_weights",
    "backends",
    "class_rows",
    "compare",
    "datasets",
    "events",
    "functional",
    "hookimpl",
    "load_run",
    "load_weights",
    "numpy_stream",
    "pack_weights",
    "per_step",
    "plots",
    "random_stream",
    "read_weights",
    "replay",
    "report",
    "reproduce",
    "run",
    "stack_rows",
    "study",
    "sweep",
    "trust_code",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the public names are of many types
    if name in _MOVED:
        raise AttributeError(f"protofl.{name} is now {_MOVED[name].format(name)}")
    if name not in _HOME:
        raise AttributeError(f"module 'protofl' has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
