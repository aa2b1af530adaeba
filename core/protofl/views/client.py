"""What a hook sees on a client: a batch, the model's output, the client bound to a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from protofl import functional
from protofl.errors import MissingModule
from protofl.randomness import random_stream
from protofl.views.architecture import SplitModel
from protofl.views.run import build_model
from protofl.wire.payload import Payload, class_rows

if TYPE_CHECKING:
    from protofl.data.batches import Samples
    from protofl.views.records import ClientRecord


@dataclass(slots=True)
class Batch:
    """One mini-batch of local training.

    Attributes:
        x: What the model sees of the samples, B×… (`SampleSpec.shape`).
        y: Labels [B]; on the public phase's unlabelled samples an empty tensor.
        index: Rows of the samples in the phase's data, [B].
        phase: The phase's name.
        draws: What `before_training` of the running hook's method drew, for this step.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    phase: str = "private"
    draws: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Output:
    """What the client's model makes of a batch: features f(x), B×K, and scores h(f(x)), B×C."""

    features: Tensor
    logits: Tensor


class Client:
    """A client as a hook sees it, bound to one method.

    Attributes:
        config: The options of the method whose hook runs.
    """

    __slots__ = ("_owner", "_record", "config")

    def __init__(self, record: ClientRecord, owner: str, config: Any) -> None:  # noqa: ANN401
        self._record, self._owner = record, owner
        self.config: Any = config

    def bound_to(self, owner: str) -> Client:
        """The same client as another method of the composition sees it."""
        return Client(self._record, owner, self._record.configs[owner])

    # --- where and when ---------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The client's number, from 0."""
        return self._record.id

    @property
    def round(self) -> int:
        """The round's number, from 0."""
        return self._record.round

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self._record.info.rounds

    @property
    def num_classes(self) -> int:
        """C."""
        return self._record.info.num_classes

    @property
    def feature_dim(self) -> int:
        """K."""
        return self._record.info.feature_dim

    @property
    def batch_size(self) -> int:
        """Samples per mini-batch; an epoch's last batch may hold fewer, or up to three more."""
        return self._record.info.batch_size

    @property
    def device(self) -> torch.device:
        """Where the client's model and data are."""
        return self._record.device

    @property
    def steps(self) -> int:
        """Mini-batches of the phase that starts or runs."""
        return self._record.steps

    # --- the model --------------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        """f(x), B×K."""
        return self._record.model.features(x)

    def head(self, z: Tensor) -> Tensor:
        """h(z), B×C, of features B×K."""
        scores: Tensor = self._record.model.head(z)
        return scores

    def module(self, name: str) -> nn.Module:
        """``model``, ``head`` or ``extractor`` of the client, or a module of this method.

        Raises:
            MissingModule: The method has given the client no such module.
        """
        model = self._record.model
        parts = {"model": model, "head": model.head, "extractor": model.extractor}
        if name in parts:
            return parts[name]
        own = self.modules
        if name not in own:
            raise MissingModule(name, f"the client of {self._owner}", [*parts, *own])
        return own[name]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the client's model, in a fixed order."""
        return list(self._record.model.parameters())

    def add_module(
        self,
        name: str,
        module: nn.Module,
        *,
        train: bool = True,
        lr: float | None = None,
        temporary: bool = False,
    ) -> nn.Module:
        """Give the client a module of this method.

        Args:
            name: Its name, seen by `module`.
            module: The module; it moves to the client's device.
            train: Whether local training updates it. A frozen one runs in eval mode and is not
                written into checkpoints.
            lr: A learning rate of its own; None for the run's.
            temporary: Drop it with `scratch` when the client's work ends (FedKTL's h', which
                ``before_training`` makes anew); it is not written into checkpoints.
        """
        return self._record.add_module(
            self._owner, name, module, train=train, lr=lr, temporary=temporary
        )

    def build(self, architecture: str) -> SplitModel:
        """A fresh model of any architecture of the group, as `Server.build`: the same everywhere.

        For models that clients train beside their own (`add_module`).
        """
        info = self._record.info
        known = {a.name: a for a in (*info.server_architectures, *info.architectures)}
        model = build_model(known, architecture, info, self._record.seed)
        last = known[architecture].channels_last
        return model.to(memory_format=torch.channels_last if last else torch.contiguous_format)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that this method gave the client."""
        return {n: slot.module for n, slot in self._record.modules.get(self._owner, {}).items()}

    # --- the data ---------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """Training samples |D_i|."""
        return len(self._record.train)

    @property
    def class_counts(self) -> Tensor:
        """Training samples per class |D_i,c|, [C] int."""
        return self._record.class_counts

    @property
    def train(self) -> Samples:
        """The private training samples."""
        return self._record.train

    @property
    def public(self) -> Samples | None:
        """The public samples, unlabelled; None where the run has none."""
        return self._record.public

    def prepare(self, x: Tensor) -> Tensor:
        """Other samples of the data's shape and range, as the client's model takes them."""
        return self._record.train.prepare(x)

    def train_features(self) -> tuple[Tensor, Tensor]:
        """Features of all training samples in one evaluation pass, N×K, and their labels [N]."""
        return self._record.train_features()

    def collect_prototypes(self, batch: Batch, output: Output) -> None:
        """Add a batch's features to the sums from which `class_prototypes` takes its means.

        Call it from ``after_batch`` to collect during training (train mode, weights before each
        step, all epochs), as FedProto's published code does.
        """
        sums = self.scratch.get("prototype_sums")
        if sums is None:
            sums = self.scratch["prototype_sums"] = (
                output.features.new_zeros((self.num_classes, self.feature_dim)),
                output.features.new_zeros(self.num_classes),
            )
        sums[0].index_add_(0, batch.y, output.features.detach())
        sums[1].index_add_(0, batch.y, torch.ones_like(batch.y, dtype=sums[1].dtype))

    def class_prototypes(self) -> Payload:
        """The client's prototypes: mean features of its own classes (FedTGP Eq. 2).

        Taken in an evaluation pass over the training samples, or from what
        `collect_prototypes` has collected where it was called in this phase.

        Returns:
            ``prototypes`` [n, K], ``classes`` [n] and ``counts`` [n] of the n classes that
            the client has.
        """
        sums = self.scratch.get("prototype_sums")
        if sums is None:
            features, labels = self.train_features()
            prototypes, counts = functional.class_means(features, labels, self.num_classes)
        else:
            prototypes = sums[0] / sums[1].clamp(min=1).unsqueeze(1)
            # A class whose samples were all in a dropped last batch has not been seen.
            counts = self.class_counts * (sums[1] > 0)
        return class_rows(counts > 0, prototypes=prototypes, counts=counts)

    # --- what is remembered -----------------------------------------------------------------

    @property
    def received(self) -> Payload:
        """This round's download."""
        return self._record.received

    @property
    def state(self) -> dict[str, Any]:
        """What this method remembers of the client from round to round.

        Tensors, numbers, strings, and dicts and lists of them.
        """
        return self._record.state.setdefault(self._owner, {})

    @property
    def scratch(self) -> dict[str, Any]:
        """What this method prepares for the phase; emptied when the client's work ends."""
        return self._record.scratch.setdefault(self._owner, {})

    # --- chance -----------------------------------------------------------------------------

    def generator(self, purpose: str) -> torch.Generator:
        """A CPU generator of this method, purpose, round and client."""
        record = self._record
        return random_stream(record.seed, self._owner, purpose, record.round, record.id)

    def shared_generator(self, purpose: str) -> torch.Generator:
        """As `generator`, but the same on all clients.

        In ``setup_client`` the round is -1, whenever a client is set up: what is drawn there is
        the same for all clients and all rounds (FedKTL's V).
        """
        return random_stream(self._record.seed, self._owner, purpose, self._record.round)
