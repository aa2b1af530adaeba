"""The record of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from protofl.data.batches import Samples
from protofl.data.generators import ImageSource
from protofl.hooks.views.records import Record
from protofl.hooks.wire.payload import Knowledge
from protofl.system.profile.clock import Sums

if TYPE_CHECKING:
    from protofl.data.text_encoders import TextSource


@dataclass(kw_only=True)
class ServerRecord(Record):
    """The server: knowledge, the methods' modules and state, and the gate's specs of uploads."""

    lr: float
    test: Samples | None = None
    images: ImageSource | None = None
    texts: TextSource | None = None
    sums: Sums = field(default_factory=Sums)
    dry: bool = False
    evaluates: bool = False
    learned: dict[str, Any] = field(default_factory=dict)
    knowledge: Knowledge = field(default_factory=Knowledge)
    modules: dict[str, dict[str, nn.Module]] = field(default_factory=dict)
