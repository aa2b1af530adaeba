"""The view of the server for hooks of one method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from protofl.data.batches import Samples, batch_bounds
from protofl.errors import UsageError
from protofl.hooks.models.architecture import Architecture, SplitModel
from protofl.hooks.views.client_state import ConfigT, MethodView, StatefulView
from protofl.hooks.views.run_info import Cards, ClientCard
from protofl.hooks.views.server_state import ServerState
from protofl.hooks.wire.payload import GlobalState
from protofl.system.randomness import random_stream

if TYPE_CHECKING:
    from protofl.data.generators import ImageSource, Outline


class Server(MethodView[ConfigT], StatefulView):
    """The server as a hook sees it, bound to one method."""

    __slots__ = ("_owner", "_state")

    def __init__(self, state: ServerState, owner: str) -> None:
        super().__init__(state.configs[owner], state.info, state.device)
        self._state: ServerState = state
        self._owner = owner

    def bound_to(self, owner: str) -> Server[Any]:
        """Return the same server as another plugin of the composition sees it."""
        return self if owner == self._owner else Server(self._state, owner)

    @property
    def malicious(self) -> frozenset[int]:
        """The malicious clients (``--malicious``); for attacks, as a defence can't know them."""
        return self._state.malicious

    @property
    def evaluates(self) -> bool:
        """True if this round ends with an evaluation, a good time for costly figures."""
        return self._state.evaluates

    @property
    def architecture(self) -> str:
        """The group's architecture for a model that the server trains."""
        return self._info.server_architecture

    @property
    def dry(self) -> bool:
        """True in the dry run, whose second round has to be beyond any warm-up."""
        return self._state.dry

    @property
    def replays(self) -> bool:
        """True if steps of training on the server should be recorded and replayed.

        The run's engine does so with clients' steps, on a device with streams.
        """
        return self._state.replays

    @property
    def scratch(self) -> dict[str, Any]:
        """Objects that this method keeps in this process, such as recorded steps; never saved.

        Results must not depend on it: a run that is resumed starts with an empty one.
        """
        return self._state.scratch.setdefault(self._owner, {})

    def note(self, line: str) -> None:
        """Tell the user a line, once in a run."""
        self._state.notes.append(line)

    @property
    def lr(self) -> float:
        """The clients' learning rate."""
        return self._state.lr

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return a new optimiser as clients have it: ``--optimizer``, ``--lr`` and its options."""
        return self._state.new_optimizer([([*parameters], self.lr)])

    @property
    def global_state(self) -> GlobalState:
        """The server's global state by wire names. Read only: hooks return changes."""
        return self._state.global_state

    @property
    def modules(self) -> dict[str, nn.Module]:
        """This method's modules on the server; saved in checkpoints."""
        return self._state.modules.setdefault(self._owner, {})

    @property
    def test(self) -> Samples | None:
        """The global test samples of a run with public data, otherwise None."""
        return self._state.test

    @property
    def clients(self) -> Mapping[int, ClientCard]:
        """The facts that clients registered at set-up, {client: card}.

        A card has ``architecture`` (name of the client's architecture), ``head`` (type and shape
        of its head) and ``feature_dim`` (width of its features): `ClientCard`.
        """
        return Cards(self._info)

    @property
    def num_clients(self) -> int:
        """Clients that can take part in rounds: all of ``clients`` but unseen ones."""
        return self._info.num_clients - self._info.unseen

    @property
    def generator_outline(self) -> Outline:
        """The sizes of the image generator, for a method with ``needs_generator``."""
        return self._images.outline

    def sample_latents(
        self, count: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """Return valid latent vectors of the image generator, [count, H]; zeros in a dry run.

        Args:
            count: Number of vectors.
            generator: A CPU generator (`generator`).
            labels: Classes of the image generator [count], if it is conditional.
        """
        return self._images.sample_latents(count, generator, labels)

    def generate(self, latents: Tensor) -> Tensor:
        """Return images of latent vectors [n, H] in the data's channels, size, range; float32."""
        return self._images.images(latents)

    @property
    def _images(self) -> ImageSource:
        if self._state.images is None:
            raise UsageError(
                "this run has no image generator",
                do="declare needs_generator = True in the method",
            )
        return self._state.images

    def part(self, name: str) -> AbstractContextManager[None]:
        """Time a block as a part of its own in a profile (``--profile``)."""
        return self._state.profile.span(name, "server")

    def epochs(self, count: int) -> Iterator[int]:
        """Count epochs of training on the server; a dry run has one."""
        return iter(range(min(count, 1) if self.dry else count))

    def batches(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the positions of each mini-batch of an epoch over ``count`` shuffled samples.

        As on clients, a last batch of fewer than four samples joins the one before it.
        """
        order = torch.randperm(count, generator=generator).to(self.device)
        for start, end in batch_bounds(count, self.batch_size, drop_last=False):
            yield order[start:end]

    def build(
        self, architecture: str | Architecture, *, feature_dim: int | None = None
    ) -> SplitModel:
        """Build a new model, the same at every call and on every client.

        Args:
            architecture: ``NAME`` of the run's group, ``GROUP/NAME`` of another group, or an
                `Architecture`, which is built for the run's ``sample``.
            feature_dim: Its own width of features; None for K, or its native width.

        Raises:
            UsageError: The name is unknown, or the group takes other samples.
        """
        return self._info.build(architecture, self._state.seed, feature_dim).to(self.device)

    def generator(self, purpose: str) -> torch.Generator:
        """Return the CPU generator of this method, purpose and round."""
        return random_stream(self._state.seed, self._owner, purpose, self._state.round, "server")
