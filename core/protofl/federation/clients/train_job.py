"""The work of an engine: one phase of the local training of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from protofl.data.batches import Table
from protofl.hooks.models.modules import CombinedModule
from protofl.hooks.models.optimisers import PLAIN, make_optimizer
from protofl.hooks.plugin.loss import Loss
from protofl.hooks.views.batch import Batch
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.run_info import Phase
from protofl.system.device import autocast
from protofl.system.randomness import global_stream


@dataclass
class TrainJob:
    """A phase of a client's local training, as an engine sees it.

    All tensors that the losses are given lie on ``device``.

    Attributes:
        model: The client's model, in the right mode.
        groups: Parameters to update, with the learning rate of each group.
        loss: Named terms of a batch: ``loss(batch, output, step)``.
        after_batch: To be called with the batch and the output of every step; None where no method
            asks for it.
        optimizer: ``sgd``, ``adam``, or another of `torch.optim`.
        momentum: Momentum of SGD.
        clip: Largest norm of each group's gradient; 0 for any.
        precision: ``bf16`` (autocast of the forward pass), or another for which torch's flags are
            set already (`protofl.system.device.arithmetic`).
        device: Where it runs.
        phase: The phase.
        batch_size: Samples per mini-batch; the last one of an epoch may hold fewer or some more.
        drawn: Draws inputs, labels and rows of every mini-batch; see `batches`.
        sizes: Samples of every mini-batch of all epochs, in order.
        table: Returns the mini-batches as rows of the stored samples, for an engine that takes the
            samples of a batch by itself; None where they are not rows of stored samples.
        lap: To be called at the end of each part of a step, which books the time since the last
            call: ``data`` (which opens a step), ``forward``, ``loss``, ``backward``, ``update``.
            It does nothing unless the run is profiled, and never waits for a device.
        client_state: State of the client.
        notes: Lines for the user; each is shown once in a run.
        weight_decay: Weight decay; None for the optimiser's own.
        optimizer_options: The optimiser's further arguments.
        scheduled: Whether learning rates are others in other rounds.
        epochs: Passes over the phase's data, perhaps a fraction; one in the dry run.
        augment: Whether `drawn` shifts and flips images at random.
        checks: True in the dry run: an engine that replays steps runs the code of every step, and
            raises `NotReplayable` if a replay would compute something else (see `StepTrace`).
    """

    model: Any
    groups: list[tuple[list[nn.Parameter], float]]
    loss: Loss
    after_batch: Any
    optimizer: str
    momentum: float
    clip: float
    precision: str
    device: torch.device
    phase: Phase
    batch_size: int
    drawn: Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]]
    client_state: ClientState
    sizes: Sequence[int] = ()
    table: Callable[[], Table | None] = lambda: None
    notes: list[str] = field(default_factory=list)
    lap: Callable[[str], None] = lambda phase: None
    weight_decay: float | None = None
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    scheduled: bool = False
    epochs: float = 1
    augment: bool = False
    checks: bool = False

    @property
    def plain(self) -> bool:
        """True for plain SGD or Adam, whose steps engines compute themselves."""
        return self.optimizer in PLAIN and not self.optimizer_options

    def torch_optimizer(self, **options: Any) -> Optimizer:  # noqa: ANN401 - an optimiser's
        """Return a new torch optimiser over the groups, with further options of it."""
        return make_optimizer(
            self.optimizer,
            self.groups,
            self.momentum,
            self.weight_decay,
            {**self.optimizer_options, **options},
        )

    @property
    def architecture(self) -> str:
        """The name of the client's architecture."""
        return self.client_state.architecture.name

    def whole(self) -> CombinedModule:
        """Return the client's model and its modules of methods as one module, without copies."""
        modules = self.client_state.modules
        slots = {m: {n: modules[m][n].module for n in sorted(modules[m])} for m in sorted(modules)}
        return CombinedModule(self.client_state.model, slots)

    def loss_on(self, whole: CombinedModule) -> Loss:
        """Return the loss of a module that replaces the client's own (stacked or copied)."""
        return self.loss.on(whole.model, whole.modules_of())

    def snapshot(self) -> Callable[[], None]:
        """Store the state that ``after_batch`` changes; a call of the result restores it."""
        client = self.client_state
        if self.after_batch is None:
            return lambda: None
        kept = deepcopy((client.scratch, client.state))

        def restore() -> None:
            client.scratch, client.state = kept

        return restore

    def stream(self) -> AbstractContextManager[None]:
        """Seed torch's global generators for this client's training (dropout)."""
        client = self.client_state
        return global_stream(client.seed, "train", client.round, client.id, self.phase.name)

    @property
    def steps(self) -> int:
        """Number of mini-batches of all epochs."""
        return self.client_state.steps

    def batches(self) -> Iterator[Batch]:
        """Yield the mini-batches of all epochs, in the order that seed, round and client give."""
        return (Batch(x, y, index, self.phase.name) for x, y, index in self.drawn())

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""
        return autocast(self.precision, self.device)
