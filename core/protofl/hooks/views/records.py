"""The records behind the views: all that a client or the server is, in one place each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from protofl.data.batches import LEAST, Samples
from protofl.data.generators import ImageSource
from protofl.hooks.models.architecture import Architecture, SplitModel
from protofl.hooks.models.modules import ModuleSlot, restored
from protofl.hooks.views.seen import Record
from protofl.hooks.wire.payload import Knowledge, Payload

Features: TypeAlias = Callable[[Tensor], Tensor]
"""From samples B×… to features B×K′ in evaluation."""


@dataclass(kw_only=True)
class ClientRecord(Record):
    """A client: model, data, and what methods keep of it. Lives in a host."""

    id: int
    architecture: Architecture
    train: Samples
    test: Samples
    validation: Samples | None = None
    model: SplitModel
    steps: int = 0
    received: Payload = field(default_factory=Payload)
    scratch: dict[str, dict[str, Any]] = field(default_factory=dict)
    modules: dict[str, dict[str, ModuleSlot]] = field(default_factory=dict)
    feature_seconds: float = 0.0
    _features: tuple[Tensor, Tensor] | None = None

    def begin_work(self) -> None:
        """Before a client's training: nothing collected or computed before holds any more."""
        self.forget_scratch()
        self.weights_changed()
        self.set_mode(False)

    def end_work(self, *, keep_received: bool) -> None:
        """After it; the download stays where the round will train by it once more."""
        self.forget_scratch()
        self.weights_changed()
        self.steps = 0
        if not keep_received:
            self.received = Payload()

    def forget_scratch(self) -> None:
        """Drop what methods prepared for a phase: scratch, and temporary modules."""
        self.scratch = {}
        for owner, slots in self.modules.items():
            self.modules[owner] = {n: slot for n, slot in slots.items() if not slot.temporary}

    def slots(self) -> Iterator[tuple[str, ModuleSlot]]:
        """All methods' modules as (``METHOD/NAME``, slot), in a fixed order."""
        for owner in sorted(self.modules):
            for name in sorted(self.modules[owner]):
                yield f"{owner}/{name}", self.modules[owner][name]

    @cached_property
    def class_counts(self) -> Tensor:
        """Training samples per class, [C] int64."""
        return torch.bincount(self.train.y, minlength=self.info.num_classes)

    def set_mode(self, training: bool) -> None:
        """Train or eval mode.

        Frozen modules stay in eval mode, and so do all of a client with too few samples for
        BatchNorm.
        """
        training = training and len(self.train) >= LEAST
        self.model.train(training)
        for _, slot in self.slots():
            slot.module.train(training and slot.train)

    @torch.no_grad()
    def train_features(self, features: Features | None = None) -> tuple[Tensor, Tensor]:
        """One evaluation pass over the training samples, of the model's features or of others.

        The model's are kept until the weights change.
        """
        if features is None and self._features is not None:
            return self._features
        start, training = time.perf_counter(), self.model.training
        self.set_mode(False)
        chunks = self.train.chunks(self.architecture.eval_batch)
        rows = torch.cat([(features or self.model.features)(x) for x in chunks])
        self.set_mode(training)
        wide = torch.promote_types(rows.dtype, torch.float32)  # float64 stays what it is
        found = rows.to(wide), self.train.y
        if features is None:
            self._features = found
        self.feature_seconds += time.perf_counter() - start
        return found

    def weights_changed(self) -> None:
        """Forget what was computed with earlier weights."""
        self._features = None

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore model, modules, state and download after the block (evaluation)."""
        modules = [self.model, *(slot.module for _, slot in self.slots())]
        state = deepcopy(self.state)
        try:
            with self.same_download(), restored(modules):
                yield
        finally:
            self.state = state
            self.weights_changed()

    @contextmanager
    def same_download(self) -> Iterator[None]:
        """Restore the download and the round after the block, where nothing else changes."""
        received, round_ = self.received, self.round
        try:
            yield
        finally:
            self.received, self.round = received, round_


@dataclass(kw_only=True)
class ServerRecord(Record):
    """The server: knowledge, what methods keep of it, and what the gate has learned of uploads."""

    lr: float
    test: Samples | None = None
    images: ImageSource | None = None
    dry: bool = False
    evaluates: bool = False
    learned: dict[str, Any] = field(default_factory=dict)
    knowledge: Knowledge = field(default_factory=Knowledge)
    modules: dict[str, dict[str, nn.Module]] = field(default_factory=dict)
