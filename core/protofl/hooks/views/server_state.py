"""The state of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from protofl.data.batches import Samples
from protofl.hooks.models.optimisers import Groups
from protofl.hooks.views.client_state import SideState
from protofl.hooks.wire.payload import GlobalState
from protofl.system.clocks import UNPROFILED, NoProfile

if TYPE_CHECKING:
    from protofl.data.generators import ImageSource


@dataclass(kw_only=True)
class ServerState(SideState):
    """The server: global state, methods' modules and state, and the expected specs of uploads.

    Attributes:
        replays: True if steps of training on the server are recorded and replayed.
        scratch: What methods keep as long as the process runs, {method: values}; not saved.
        notes: Lines to tell the user.
        schedule: What the run's schedule needs on resume; empty with rounds.
        new_optimizer: Returns an optimiser of the clients' kind for groups of parameters.
    """

    lr: float
    new_optimizer: Callable[[Groups], Optimizer]
    test: Samples | None = None
    images: ImageSource | None = None
    profile: NoProfile = UNPROFILED
    dry: bool = False
    evaluates: bool = False
    replays: bool = False
    scratch: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    learned: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    global_state: GlobalState = field(default_factory=GlobalState)
    modules: dict[str, dict[str, nn.Module]] = field(default_factory=dict)
