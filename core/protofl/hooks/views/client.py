"""The views of a client: for hooks of one method, and for its ``local_loss``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from protofl import functional
from protofl.data.batches import Samples
from protofl.errors import MissingModule, RunFailure, UsageError
from protofl.hooks.models.architecture import Architecture, SplitModel
from protofl.hooks.models.modules import ModuleSlot
from protofl.hooks.views.batch import Batch, Output
from protofl.hooks.views.client_state import (
    ClientState,
    ConfigT,
    Features,
    MethodView,
    StatefulView,
)
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.wire.payload import Payload, class_rows
from protofl.system.randomness import random_stream

if TYPE_CHECKING:
    from protofl.system.secret_stream import SecretStream


class Learner(MethodView[ConfigT]):
    """A client as ``local_loss`` sees it: its model, a method's options, and sizes.

    A loss receives everything else from ``before_training``, so that an engine can train many
    clients at once, or replay a step from fixed memory.
    """

    __slots__ = ("_model", "_modules", "_owner")

    def __init__(
        self,
        owner: str,
        config: ConfigT,
        info: RunInfo,
        device: torch.device,
        model: SplitModel,
        modules: Mapping[str, nn.Module],
    ) -> None:
        super().__init__(config, info, device)
        self._owner, self._model, self._modules = owner, model, modules

    def on(self, model: SplitModel, modules: Mapping[str, nn.Module]) -> Learner[ConfigT]:
        """Return the same view with another model and modules."""
        return Learner(self._owner, self._config, self._info, self.device, model, modules)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or not hasattr(Client, name):
                raise AttributeError(f"a client has no {name!r}", name=name, obj=self)
            raise RunFailure(
                f"{self._owner}.local_loss reads client.{name}",
                "it sees the batch, the output, the client's model, options and sizes, and the "
                "return value of before_training",
                f"return what it needs of {name} from before_training, as "
                "{'name': tensor}, and read constants['name']",
            )

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that this method gave the client."""
        return self._modules

    @property
    def feature_dim(self) -> int:
        """K, the width of this client's features."""
        return self._model.feature_dim

    def features(self, x: Tensor) -> Tensor:
        """Return f(x), B×K."""
        return self._model.features(x)

    def head(self, z: Tensor) -> Tensor:
        """Return h(z), B×C, of features B×K."""
        scores: Tensor = self._model.head(z)
        return scores

    def module(self, name: str) -> nn.Module:
        """Return ``model``, ``head`` or ``extractor`` of the client, or a module of this method.

        Raises:
            MissingModule: The client has no such module.
        """
        model = self._model
        parts = {"model": model, "head": model.head, "extractor": model.extractor}
        if name in parts:
            return parts[name]
        method_modules = self.modules
        if name not in method_modules:
            raise MissingModule(name, f"the client of {self._owner}", [*parts, *method_modules])
        return method_modules[name]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the client's model, in a fixed order."""
        return list(self._model.parameters())


class Client(Learner[ConfigT], StatefulView):
    """A client as a hook sees it, bound to one method."""

    __slots__ = ("_state",)

    def __init__(self, state: ClientState, owner: str) -> None:
        config, info = state.configs[owner], state.info
        super().__init__(owner, config, info, state.device, state.model, {})
        self._state: ClientState = state

    def bound_to(self, owner: str) -> Client[Any]:
        """Return the same client as another method of the composition sees it."""
        return self if owner == self._owner else Client(self._state, owner)

    def learner(self) -> Learner[ConfigT]:
        """Return the view of the client for ``local_loss``."""
        return self.on(self._model, self.modules)

    @property
    def id(self) -> int:
        """The client's number, from 0."""
        return self._state.id

    @property
    def architecture(self) -> str:
        """The name of the client's architecture."""
        return self._state.architecture.name

    def _of_samples(self, name: str) -> ClientState:
        """Return the client's state, for an attribute that depends on its training samples.

        Raises:
            UsageError: A transform hides the samples from this plugin.
        """
        for transform, why in self._hidden.items():
            raise UsageError(
                f"{transform}: {self._owner} reads client.{name}, and {why}",
                do=f"run without {transform}, or without {self._owner}",
            )
        return self._state

    @property
    def _hidden(self) -> Mapping[str, str]:
        """{transform that hides the samples from this plugin: why}."""
        hidden = self._state.hidden
        return hidden.get(self._owner, hidden.get("", {}))

    @property
    def domain(self) -> int | None:
        """The number of the client's domain, from 0, which clients of one domain share.

        None if the data have no domains, or a client has samples of several. The column ``domain``
        of the data names them, or the ``column`` of the partitioner. A node of a deployment knows
        only its own samples, so it has None.
        """
        return self._of_samples("domain").domain

    @property
    def malicious(self) -> bool:
        """True if the client is malicious (``--malicious``)."""
        return self.id in self._state.malicious

    @property
    def lr(self) -> float:
        """The clients' learning rate (``--lr``), without its schedule."""
        return self._state.lr

    @property
    def round_lr(self) -> float:
        """The learning rate of this round's training: `lr` with its schedule."""
        return self._state.lr * self._state.lr_factor

    @property
    def scores_all_classes(self) -> bool:
        """True while ``inference`` scores samples of all classes (``--measure global-accuracy``).

        A method that masks the scores of classes without training samples leaves them here.
        """
        return self._state.scores_all_classes

    @property
    def steps(self) -> int:
        """Mini-batches of the current phase."""
        return self._of_samples("steps").steps

    @property
    def epoch_steps(self) -> int:
        """Mini-batches of a whole epoch of the current phase, or of its part of an epoch."""
        return self._state.epoch_steps

    # --- further modules ----------------------------------------------------------------------

    def add_module(
        self,
        name: str,
        module: nn.Module,
        *,
        train: bool = True,
        lr: float | None = None,
        temporary: bool = False,
        with_model: bool = False,
    ) -> nn.Module:
        """Give the client a module of this method.

        Args:
            name: Its name, for `module`.
            module: The module; it moves to the client's device.
            train: True if local training updates it. A frozen module runs in eval mode and is not
                written into checkpoints.
            lr: Its own learning rate; None for the run's.
            temporary: Drop it with `scratch` when the client's work ends (FedKTL's h', which
                ``before_training`` builds again); it is not written into checkpoints.
            with_model: Train it as a part of the model: at the run's learning rate, with one
                ``--clip`` bound for both (FedKTL's h). By default a module has its own bound.
        """
        module = module.to(self.device).requires_grad_(train)
        slots = self._state.modules.setdefault(self._owner, {})
        slots[name] = ModuleSlot(module, train, lr, temporary, with_model)
        return module

    def build(
        self, architecture: str | Architecture, *, feature_dim: int | None = None
    ) -> SplitModel:
        """Build a new model, as `Server.build` does: the same on all clients and the server.

        For models that clients train in addition to their own (`add_module`).

        Args:
            architecture: ``NAME`` of the run's group, ``GROUP/NAME`` of another group, or an
                `Architecture`, which is built for the run's ``sample``.
            feature_dim: Its own width of features; None for K, or its native width.

        Raises:
            UsageError: The name is unknown, or the group takes other samples.
        """
        info = self._state.info
        if self._state.architecture.precomputed:
            raise UsageError(
                f"{self._owner} trains a second model on the samples, and keep_features replaces "
                "these by the features of the first",
                do="leave keep_features out",
            )
        model = info.build(architecture, self._state.seed, feature_dim)
        return model.to(memory_format=info.named(architecture).layout)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that this method gave the client."""
        return {n: slot.module for n, slot in self._state.modules.get(self._owner, {}).items()}

    # --- the data ---------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """Training samples |D_i|; 1 if a transform hides them (``hides_samples``)."""
        return 1 if self._hidden else len(self._state.train)

    @property
    def class_counts(self) -> Tensor:
        """Training samples per class |D_i,c|, [C] int; a sample counts for each of its labels."""
        return self._of_samples("class_counts").class_counts

    @property
    def train(self) -> Samples:
        """The private training samples."""
        return self._of_samples("train").train

    def prepare(self, x: Tensor) -> Tensor:
        """Prepare other samples of the data's shape and range for the client's model."""
        return self._state.train.prepare(x)

    def train_features(self, features: Features | None = None) -> tuple[Tensor, Tensor]:
        """Return the features of all training samples, N×K, and their labels [N].

        Args:
            features: Maps samples B×… to features B×K′, such as those of an auxiliary net; None for
                the model's features.
        """
        return self._of_samples("train_features").train_features(features)

    def collect_prototypes(self, batch: Batch, output: Output) -> None:
        """Add a batch's features to the sums from which `class_prototypes` takes its means.

        Call it from ``after_batch`` to collect during training (train mode, weights before each
        step, all epochs), as FedProto's published code does. To collect other features, pass
        ``pf.Output(features, output.logits)``.
        """
        sums = self.scratch.get("prototype_sums")
        if sums is None:
            sums = self.scratch["prototype_sums"] = (
                output.features.new_zeros((self.num_classes, output.features.shape[1])),
                output.features.new_zeros(self.num_classes),
            )
        if batch.y.dim() == 2:  # a sample counts for each of its labels
            has = batch.y.to(sums[0].dtype)
            sums[0].add_(has.T @ output.features.detach().to(has.dtype))
            sums[1].add_(has.sum(0))
            return
        sums[0].index_add_(0, batch.y, output.features.detach())
        sums[1].index_add_(0, batch.y, torch.ones_like(batch.y, dtype=sums[1].dtype))

    def class_prototypes(self, features: Features | None = None) -> Payload:
        """Return the client's prototypes: mean features of its own classes (FedTGP Eq. 2).

        Of a multi-label task a label is a class, and a sample counts for each of its labels.

        The features come from an evaluation pass over the training samples, or from
        `collect_prototypes` if it was called in this phase.

        Args:
            features: As in `train_features`.

        Returns:
            ``prototypes`` [n, K], ``classes`` [n] and ``counts`` [n] of the client's n classes.
        """
        sums = self.scratch.get("prototype_sums")
        if sums is None:
            feature_rows, labels = self.train_features(features)
            prototypes, counts = functional.class_means(feature_rows, labels, self.num_classes)
        else:
            prototypes = sums[0] / sums[1].clamp(min=1).unsqueeze(1)
            # A class whose samples were all in a dropped last batch has not been seen.
            counts = self.class_counts * (sums[1] > 0)
        return class_rows(counts > 0, prototypes=prototypes, counts=counts)

    # --- state ------------------------------------------------------------------------------

    @property
    def received(self) -> Payload:
        """This round's download."""
        return self._state.received

    @property
    def scratch(self) -> dict[str, Any]:
        """Temporary values of this method; cleared when the client's work ends."""
        return self._state.scratch.setdefault(self._owner, {})

    # --- randomness -------------------------------------------------------------------------

    def generator(self, purpose: str) -> torch.Generator:
        """Return the CPU generator of this method, purpose, round and client."""
        state = self._state
        return random_stream(state.seed, self._owner, purpose, state.round, state.id)

    def secret_stream(self, purpose: str) -> SecretStream:
        """Return a stream whose draws the server can't repeat: ``normal(shape)``, ``uniform(n)``.

        For transforms that hide something from the server, which knows the seed. The key has the
        secret of the client's host (`Host(plan, secret=…)`), and the job: the same purpose, round
        and client draw the same only for the same download. **A simulation has no secret**, so
        that whoever knows the seed knows the draws.
        """
        from protofl.system.secret_stream import SecretStream, derived_key

        state = self._state
        if self._owner not in state.secretive:
            raise UsageError(
                f"{self._owner} calls client.secret_stream and does not declare it",
                "a simulation must say that such noise hides nothing",
                "write in the transform's class: draws_secretly = True",
            )
        keys = (state.seed, self._owner, "secret", purpose, state.round, state.id)
        return SecretStream(derived_key(state.secret, *keys))

    def shared_generator(self, purpose: str) -> torch.Generator:
        """Return a CPU generator like `generator` that is the same on all clients.

        In ``setup_client`` the round is always -1, so its draws never change (FedKTL's V).
        """
        return random_stream(self._state.seed, self._owner, purpose, self._state.round)
