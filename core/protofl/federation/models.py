"""Types and helpers for models: architectures, weights in payloads and in records.

Public as ``protofl.models``.
"""

from protofl.hooks.models.architecture import Architecture, SplitModel
from protofl.hooks.wire.weights import average_weights, load_weights, pack_weights
from protofl.records.weights import Weights

__all__ = [
    "Architecture",
    "SplitModel",
    "Weights",
    "average_weights",
    "load_weights",
    "pack_weights",
]
