"""Records of a client, and the parts that the views of client and server share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeAlias

import torch
from torch import Tensor
from typing_extensions import TypeVar

from protofl.data.batches import LEAST, Samples
from protofl.data.spec import SampleSpec
from protofl.data.tasks import Task
from protofl.errors import UsageError
from protofl.hooks.models.architecture import Architecture, SplitModel
from protofl.hooks.models.flops import forward_flops
from protofl.hooks.models.modules import ModuleSlot, restored, set_mode
from protofl.hooks.views.run_info import Phase, RunInfo
from protofl.hooks.wire.payload import Payload
from protofl.system.transfers import keep_apart

ConfigT = TypeVar("ConfigT", default=Any, covariant=True)
"""The options of the method whose hook runs: ``pf.Client[Config]``."""


@dataclass(kw_only=True)
class SideState:
    """The data of the views of a client or the server.

    Attributes:
        configs: {method: its options}.
        public: The public samples, unlabelled; None for a run without.
        state: {method: its state}.
    """

    info: RunInfo
    seed: int
    device: torch.device
    configs: Mapping[str, Any]
    public: Samples | None = None
    round: int = -1
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def malicious(self) -> frozenset[int]:
        """The clients that are malicious."""
        if not self.info.malicious:
            return frozenset()
        from protofl.hooks.malicious import malicious_clients

        return malicious_clients(self.seed, self.info.num_clients, self.info.malicious)


class MethodView(Generic[ConfigT]):
    """A method's options and the sizes of its run.

    Attributes:
        config: The options of the method whose hook runs.
        device: Where it computes.
    """

    __slots__ = ("_config", "_info", "device")

    def __init__(self, config: ConfigT, info: RunInfo, device: torch.device) -> None:
        self._config, self._info, self.device = config, info, device

    @property
    def config(self) -> ConfigT:
        """The options of the method whose hook runs."""
        return self._config

    @property
    def num_classes(self) -> int:
        """C, the number of a model's outputs: classes, labels, or 1 for a regression."""
        return self._info.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self._info.class_names

    @property
    def feature_dim(self) -> int:
        """K; of a client its own, if widths are native.

        Raises:
            UsageError: The server of clients with several widths has no K.
        """
        if len(self.feature_dims) > 1:
            raise UsageError(
                f"the clients' features have the widths {', '.join(map(str, self.feature_dims))}",
                do="read server.clients[i].feature_dim",
            )
        return self.feature_dims[0]

    @property
    def feature_dims(self) -> list[int]:
        """The widths of the clients' features, ascending: K alone, unless widths are native."""
        return self._info.feature_dims

    @property
    def sample(self) -> SampleSpec:
        """The sample spec of a model's input, to build further nets."""
        return self._info.sample

    @property
    def task(self) -> Task:
        """The task; ``client.task.loss(output.logits, batch.y)`` is the loss of its labels."""
        return self._info.sample.task

    @property
    def batch_size(self) -> int:
        """Samples per mini-batch; the last one of an epoch has fewer, or up to `largest_batch`."""
        return self._info.batch_size

    @property
    def largest_batch(self) -> int:
        """Largest size of a mini-batch: a very small last batch joins the one before it."""
        return self.batch_size + LEAST - 1

    @property
    def least_batch(self) -> int:
        """Smallest size of a mini-batch, and of a data set on which BatchNorm is trained."""
        return LEAST

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of local training that have a loss term, with their epochs."""
        return self._info.phases

    @property
    def has_secrets(self) -> bool:
        """True on the server of a deployment whose nodes draw noise that it can't repeat."""
        return self._info.has_secrets

    @property
    def rounds(self) -> int:
        """Rounds of the run. A run whose method reads this can't be extended."""
        self._info.asked.add("rounds")
        return self._info.rounds


class StatefulView:
    """The round, the public samples, and the state of a method."""

    __slots__ = ()
    _state: SideState
    _owner: str

    @property
    def round(self) -> int:
        """The round's number, from 0; -1 at set-up."""
        return self._state.round

    @property
    def public(self) -> Samples | None:
        """The public samples, unlabelled; None for a run without."""
        return self._state.public

    @property
    def state(self) -> dict[str, Any]:
        """Values that this method keeps from round to round.

        Tensors, numbers, strings, and dicts and lists of them.
        """
        return self._state.state.setdefault(self._owner, {})


Features: TypeAlias = Callable[[Tensor], Tensor]
"""Maps samples B×… to features B×K′ in evaluation."""


@dataclass(kw_only=True)
class ClientState(SideState):
    """A client on a host: model, data, and the methods' modules and state.

    Attributes:
        balanced: Equally many test samples of each class, of all clients; None if not measured.
        scores_all_classes: True while the ``balanced`` samples are scored.
        domain: The number of its domain, as `Client.domain`.
        variance: Of a regression, the variance of all clients' test numbers, to which R² refers.
        lr_factor: Factor of learning rates in this round (``--lr-schedule``).
        secret: The host's secret, in a job one of the job alone; empty in a simulation.
        secretive: Transforms that may draw from the secret.
        hidden: {plugin: {transform that hides the samples from it: why}}; "" for any other plugin.
    """

    id: int
    lr: float
    lr_factor: float = 1.0
    architecture: Architecture
    train: Samples
    test: Samples
    validation: Samples | None = None
    balanced: Samples | None = None
    scores_all_classes: bool = False
    model: SplitModel
    steps: int = 0
    epoch_steps: int = 0
    domain: int | None = None
    variance: float = 1.0
    secret: bytes = field(default=b"", repr=False)
    secretive: Sequence[str] = ()
    hidden: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    received: Payload = field(default_factory=Payload)
    scratch: dict[str, dict[str, Any]] = field(default_factory=dict)
    modules: dict[str, dict[str, ModuleSlot]] = field(default_factory=dict)
    feature_seconds: float = 0.0
    _features: tuple[Tensor, Tensor] | None = None

    def begin_work(self) -> None:
        """Clear collected and computed values before a client's training."""
        self.forget_scratch()
        self.weights_changed()
        self.set_mode(False)

    def end_work(self, *, keep_received: bool) -> None:
        """Clear collected values; keep the download if the round trains with it again."""
        self.forget_scratch()
        self.weights_changed()
        keep_apart(self.state)
        self.steps = 0
        if not keep_received:
            self.received = Payload()

    def forget_scratch(self) -> None:
        """Drop the methods' scratch and temporary modules."""
        self.scratch = {}
        for owner, slots in self.modules.items():
            self.modules[owner] = {n: slot for n, slot in slots.items() if not slot.temporary}

    def slots(self) -> Iterator[tuple[str, ModuleSlot]]:
        """Yield all methods' modules as (``METHOD/NAME``, slot), in a fixed order."""
        for owner in sorted(self.modules):
            for name in sorted(self.modules[owner]):
                yield f"{owner}/{name}", self.modules[owner][name]

    @cached_property
    def class_counts(self) -> Tensor:
        """Training samples per class or label, [C] int64."""
        return self.info.sample.task.label_counts(self.train.y, self.info.num_classes)

    def set_mode(self, training: bool) -> None:
        """Set train or eval mode.

        Frozen modules stay in eval mode, and so do all modules of a client with too few samples
        for BatchNorm.
        """
        training = training and len(self.train) >= LEAST
        set_mode(self.model, training)
        for _, slot in self.slots():
            set_mode(slot.module, training and slot.train)

    @torch.no_grad()
    def train_features(self, features: Features | None = None) -> tuple[Tensor, Tensor]:
        """Return the features of all training samples in eval mode, and their labels.

        The model's features are cached until the weights change.
        """
        if features is None and self._features is not None:
            return self._features
        start, training = time.perf_counter(), self.model.training
        self.set_mode(False)
        chunks = self.train.chunks(self.architecture.eval_batch)
        rows = torch.cat([(features or self.model.features)(x) for x in chunks])
        if training:
            self.set_mode(True)
        wide = torch.promote_types(rows.dtype, torch.float32)  # float64 stays float64
        result = rows.to(wide), self.train.y
        if features is None:
            self._features = result
        self.feature_seconds += time.perf_counter() - start
        return result

    @torch.no_grad()
    def features_as_samples(self) -> tuple[Samples, Samples, Samples | None]:
        """Return training, test and validation samples as the model's frozen part maps them."""
        size, frozen_of = self.architecture.eval_batch, self.architecture.precomputed
        assert frozen_of is not None
        frozen = frozen_of(self.model)

        def mapped(samples: Samples) -> Samples:
            rows = [frozen(x).flatten(1) for x in samples.chunks(size)]
            return samples.as_features(torch.cat(rows)) if rows else samples

        held = self.validation
        return mapped(self.train), mapped(self.test), None if held is None else mapped(held)

    def forward_flops(self) -> int:
        """Return the FLOPs of one sample's forward pass through all models that are trained."""
        modules = [self.model, *(slot.module for _, slot in self.slots() if slot.train)]
        models = [module for module in modules if isinstance(module, SplitModel)]
        x = self.info.sample.zeros(1).to(self.device)
        if self.architecture.precomputed and len(self.train):
            x = self.train.inputs(slice(1))
        return forward_flops(models, x)

    def weights_changed(self) -> None:
        """Drop cached features of earlier weights."""
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
        """Restore the download and the round after the block, if nothing else changes.

        An evaluation is over then, so `scores_all_classes` is False again.
        """
        received, round_ = self.received, self.round
        try:
            yield
        finally:
            self.received, self.round = received, round_
            self.scores_all_classes = False
