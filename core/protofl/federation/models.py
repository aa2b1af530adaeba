"""Types and helpers for models: architectures, weights in payloads and in records.

Public as ``protofl.models``.
"""

from typing import TYPE_CHECKING

from protofl.system.public_names import on_first_use

if TYPE_CHECKING:
    from protofl.hooks.models.architecture import Architecture as Architecture
    from protofl.hooks.models.architecture import SplitModel as SplitModel
    from protofl.hooks.wire.weights import average_weights as average_weights
    from protofl.hooks.wire.weights import load_weights as load_weights
    from protofl.hooks.wire.weights import pack_weights as pack_weights
    from protofl.records.weights import Weights as Weights

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "protofl.hooks.models.architecture": "Architecture SplitModel",
        "protofl.hooks.wire.weights": "average_weights load_weights pack_weights",
        "protofl.records.weights": "Weights",
    },
)

__all__ = __dir__()
