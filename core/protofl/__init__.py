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
from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use
from protofl.system.version import __version__ as __version__

if TYPE_CHECKING:
    from protofl import functional as functional
    from protofl.data import datasets as datasets
    from protofl.errors import ProtoflError as ProtoflError
    from protofl.errors import RunFailure as RunFailure
    from protofl.errors import UsageError as UsageError
    from protofl.federation import backends as backends
    from protofl.federation import events as events
    from protofl.federation import models as models
    from protofl.federation.round import schedules as schedules
    from protofl.hooks.hookspecs import hookimpl as hookimpl
    from protofl.hooks.views.batch import Batch as Batch
    from protofl.hooks.views.batch import LossData as LossData
    from protofl.hooks.views.batch import Output as Output
    from protofl.hooks.views.batch import Terms as Terms
    from protofl.hooks.views.batch import per_step as per_step
    from protofl.hooks.views.client import Client as Client
    from protofl.hooks.views.client import Learner as Learner
    from protofl.hooks.views.run_info import Phase as Phase
    from protofl.hooks.views.run_info import RunInfo as RunInfo
    from protofl.hooks.views.server import Server as Server
    from protofl.hooks.views.tracked_run import TrackedRun as TrackedRun
    from protofl.hooks.wire.keys import Key as Key
    from protofl.hooks.wire.payload import Payload as Payload
    from protofl.hooks.wire.payload import Uploads as Uploads
    from protofl.hooks.wire.payload import class_rows as class_rows
    from protofl.hooks.wire.payload import stack_rows as stack_rows
    from protofl.records.result import Result as Result
    from protofl.records.weights import read_weights as read_weights
    from protofl.runs.python_api import run as run
    from protofl.system.class_places import load_class as load_class
    from protofl.system.consent import trust_code as trust_code
    from protofl.system.files.home import expand_user as expand_user
    from protofl.system.files.home import missing_path as missing_path
    from protofl.system.options.plugin_options import Config as Config
    from protofl.system.options.plugin_options import Deviation as Deviation
    from protofl.system.options.plugin_options import Field as Field
    from protofl.system.options.plugin_options import VariantConfig as VariantConfig
    from protofl.system.randomness import numpy_stream as numpy_stream
    from protofl.system.randomness import random_stream as random_stream
    from protofl_workbench import plots as plots
    from protofl_workbench.comparing.compare import compare as compare
    from protofl_workbench.publishing.publication import publish as publish
    from protofl_workbench.publishing.verification import verify as verify
    from protofl_workbench.recorded.recorded_run import Run as Run
    from protofl_workbench.recorded.recorded_run import load_run as load_run
    from protofl_workbench.reporting.page import report as report
    from protofl_workbench.reproductions.reproduction_interface import reproduce as reproduce
    from protofl_workbench.reproductions.reproduction_interface import reproduction as reproduction
    from protofl_workbench.sweeps.sweep_interface import sweep as sweep


_NAMES = {
    # plugins, and what their hooks see, exchange and build
    "protofl.hooks.hookspecs": "hookimpl",
    "protofl.system.options.plugin_options": "Config VariantConfig Deviation Field",
    "protofl.hooks.views.client": "Client Learner",
    "protofl.hooks.views.server": "Server",
    "protofl.hooks.views.batch": "Batch Output LossData Terms per_step",
    "protofl.hooks.views.run_info": "Phase RunInfo",
    "protofl.hooks.views.tracked_run": "TrackedRun",
    "protofl.hooks.wire.keys": "Key",
    "protofl.hooks.wire.payload": "Payload Uploads class_rows stack_rows",
    "protofl.system.randomness": "random_stream numpy_stream",
    # runs
    "protofl.runs.python_api": "run",
    "protofl_workbench.recorded.recorded_run": "load_run Run",
    "protofl.records.result": "Result",
    "protofl.records.weights": "read_weights",
    "protofl.system.consent": "trust_code",
    "protofl.system.class_places": "load_class",
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

__getattr__, __dir__ = on_first_use(__name__, _NAMES, _MODULES)

__all__ = ["__version__", *__dir__()]


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
