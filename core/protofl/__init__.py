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

if TYPE_CHECKING:
    from protofl import functional
    from protofl.client import Batch, Client, Output
    from protofl.config import Config, Deviation, Field, VariantConfig
    from protofl.data.cache import files_key
    from protofl.data.download import download
    from protofl.data.images import Images
    from protofl.data.npz import images_from_arrays, read_npz
    from protofl.dispatch import Dispatcher
    from protofl.errors import HostFailure, ProtoflError, RunFailure, UsageError
    from protofl.generators import Generator, Outline
    from protofl.hookspecs.markers import hookimpl
    from protofl.hookspecs.version import HOOKSPEC_VERSION
    from protofl.host import Host
    from protofl.info import Phase, RunInfo
    from protofl.jobs import Job, Pool, Reply, TrainJob
    from protofl.models import Architecture, SplitModel
    from protofl.payload import Payload, class_rows, stack_rows
    from protofl.plan import Plan
    from protofl.randomness import numpy_stream, random_stream
    from protofl.running import Result, run
    from protofl.server import Server
    from protofl.standin import StandIn
    from protofl.weights import average_weights, load_weights, pack_weights

__version__ = "0.1.0"

_HOME = {
    # plugins
    "hookimpl": "protofl.hookspecs.markers",
    "HOOKSPEC_VERSION": "protofl.hookspecs.version",
    "Config": "protofl.config",
    "VariantConfig": "protofl.config",
    "Deviation": "protofl.config",
    "Field": "protofl.config",
    # what hooks see and return
    "Payload": "protofl.payload",
    "Client": "protofl.client",
    "Server": "protofl.server",
    "Batch": "protofl.client",
    "Output": "protofl.client",
    "Phase": "protofl.info",
    "RunInfo": "protofl.info",
    # what payloads are made of and read with
    "class_rows": "protofl.payload",
    "stack_rows": "protofl.payload",
    "pack_weights": "protofl.weights",
    "load_weights": "protofl.weights",
    "average_weights": "protofl.weights",
    # what the other kinds of plugin build
    "Architecture": "protofl.models",
    "SplitModel": "protofl.models",
    "Images": "protofl.data.images",
    "download": "protofl.data.download",
    "read_npz": "protofl.data.npz",
    "images_from_arrays": "protofl.data.npz",
    "files_key": "protofl.data.cache",
    "Generator": "protofl.generators",
    "Outline": "protofl.generators",
    "Host": "protofl.host",
    "HostFailure": "protofl.errors",
    "Job": "protofl.jobs",
    "Reply": "protofl.jobs",
    "Pool": "protofl.jobs",
    "Dispatcher": "protofl.dispatch",
    "TrainJob": "protofl.jobs",
    "StandIn": "protofl.standin",
    "Plan": "protofl.plan",
    # running
    "run": "protofl.running",
    "Result": "protofl.running",
    "random_stream": "protofl.randomness",
    "numpy_stream": "protofl.randomness",
    "functional": "protofl.functional",
    # errors
    "ProtoflError": "protofl.errors",
    "UsageError": "protofl.errors",
    "RunFailure": "protofl.errors",
}

__all__ = [
    "HOOKSPEC_VERSION",
    "Architecture",
    "Batch",
    "Client",
    "Config",
    "Deviation",
    "Dispatcher",
    "Field",
    "Generator",
    "Host",
    "HostFailure",
    "Images",
    "Job",
    "Outline",
    "Output",
    "Payload",
    "Phase",
    "Plan",
    "Pool",
    "ProtoflError",
    "Reply",
    "Result",
    "RunFailure",
    "RunInfo",
    "Server",
    "SplitModel",
    "StandIn",
    "TrainJob",
    "UsageError",
    "VariantConfig",
    "__version__",
    "average_weights",
    "class_rows",
    "download",
    "files_key",
    "functional",
    "hookimpl",
    "images_from_arrays",
    "load_weights",
    "numpy_stream",
    "pack_weights",
    "random_stream",
    "read_npz",
    "run",
    "stack_rows",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the public names are of many types
    if name not in _HOME:
        raise AttributeError(f"module 'protofl' has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    value = module if name == "functional" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
