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
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from protofl.system.version import __version__ as __version__

if TYPE_CHECKING:
    from protofl import functional
    from protofl.data import datasets
    from protofl.errors import ProtoflError, RunFailure, UsageError
    from protofl.federation import backends, events, models
    from protofl.federation.round import schedules
    from protofl.hooks.hookspecs import hookimpl
    from protofl.hooks.views.batch import Batch, LossData, Output, Terms, per_step
    from protofl.hooks.views.client import Client, Learner
    from protofl.hooks.views.run_info import Phase, RunInfo, TrackedRun
    from protofl.hooks.views.server import Server
    from protofl.hooks.wire.keys import Key
    from protofl.hooks.wire.payload import Payload, Uploads, class_rows, stack_rows
    from protofl.records.result import Result
    from protofl.records.weights import read_weights
    from protofl.runs.python_api import run
    from protofl.system.consent import trust_code
    from protofl.system.files.home import expand_user, missing_path
    from protofl.system.options.plugin_options import Config, Deviation, Field, VariantConfig
    from protofl.system.randomness import numpy_stream, random_stream
    from protofl.system.sources import load_class
    from protofl_workbench import plots
    from protofl_workbench.comparing.compare import compare
    from protofl_workbench.publishing.publication import publish
    from protofl_workbench.publishing.verification import verify
    from protofl_workbench.recorded.recorded_run import Run, load_run
    from protofl_workbench.reporting.page import report
    from protofl_workbench.reproductions.reproduction_interface import reproduce, reproduction
    from protofl_workbench.sweeps.sweep_interface import sweep


_NAMES = {
    # plugins, and what their hooks see, exchange and build
    "protofl.hooks.hookspecs": "hookimpl",
    "protofl.system.options.plugin_options": "Config VariantConfig Deviation Field",
    "protofl.hooks.views.client": "Client Learner",
    "protofl.hooks.views.server": "Server",
    "protofl.hooks.views.batch": "Batch Output LossData Terms per_step",
    "protofl.hooks.views.run_info": "Phase RunInfo TrackedRun",
    "protofl.hooks.wire.keys": "Key",
    "protofl.hooks.wire.payload": "Payload Uploads class_rows stack_rows",
    "protofl.system.randomness": "random_stream numpy_stream",
    # runs
    "protofl.runs.python_api": "run",
    "protofl_workbench.recorded.recorded_run": "load_run Run",
    "protofl.records.result": "Result",
    "protofl.records.weights": "read_weights",
    "protofl.system.consent": "trust_code",
    "protofl.system.sources": "load_class",
    "protofl.system.files.home": "expand_user missing_path",
    "protofl.errors": "ProtoflError UsageError RunFailure",
    # many runs
    "protofl_workbench.comparing.compare": "compare",
    "protofl_workbench.publishing.publication": "publish",
    "protofl_workbench.publishing.verification": "verify",
    "protofl_workbench.reporting.page": "report",
    "protofl_workbench.reproductions.reproduction_interface": "reproduction reproduce",
    "protofl_workbench.sweeps.sweep_interface": "sweep",
}
_MODULES = {
    "functional": "protofl.functional",
    "events": "protofl.federation.events",
    "backends": "protofl.federation.backends",
    "datasets": "protofl.data.datasets",
    "models": "protofl.federation.models",
    "schedules": "protofl.federation.round.schedules",
    "plots": "protofl_workbench.plots",
}
"""Names that are modules themselves."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()} | _MODULES

__all__ = [
    "Batch",
    "Client",
    "Config",
    "Deviation",
    "Field",
    "Key",
    "Learner",
    "LossData",
    "Output",
    "Payload",
    "Phase",
    "ProtoflError",
    "Result",
    "Run",
    "RunFailure",
    "RunInfo",
    "Server",
    "Terms",
    "TrackedRun",
    "Uploads",
    "UsageError",
    "VariantConfig",
    "__version__",
    "backends",
    "class_rows",
    "compare",
    "datasets",
    "events",
    "expand_user",
    "functional",
    "hookimpl",
    "load_class",
    "load_run",
    "missing_path",
    "models",
    "numpy_stream",
    "per_step",
    "plots",
    "publish",
    "random_stream",
    "read_weights",
    "report",
    "reproduce",
    "reproduction",
    "run",
    "schedules",
    "stack_rows",
    "sweep",
    "trust_code",
    "verify",
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


class _Spaces(MetaPathFinder, Loader):
    """Finds the modules of `_MODULES` by their public names, as in ``import protofl.datasets``."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return a spec for a public name of a module; None for any other name."""
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in _MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of the new one, so that there is only one."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(_MODULES[name.rpartition(".")[2]])


sys.meta_path.append(_Spaces())
