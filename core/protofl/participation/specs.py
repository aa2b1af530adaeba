"""Hooks of selections and worlds: who is asked in a round, and on what devices clients run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from protofl.hookspecs.markers import hookspec
from protofl.options.declared import Config


class SelectionSpec:
    """A selection says which clients the server asks in a round.

    An attribute that a selection may declare beside its hook: ``any_number`` (True where it may
    choose more or fewer clients than it is asked for, as fixed lists do).
    """

    @hookspec(firstresult=True)
    def select(
        self,
        round: int,
        count: int,
        clients: np.ndarray,
        sizes: np.ndarray,
        losses: np.ndarray,
        generator: np.random.Generator,
        config: Config,
    ) -> Sequence[int]:
        """Return the numbers of the clients that the server asks, each once, in any order.

        It is called once before a run too, for round 0, so that what is wrong with its options or
        its file is found before anything is trained.

        Args:
            round: The round.
            count: How many to choose, at most as many as there are in ``clients``.
            clients: Those who can be asked, int64, ascending: all, but those who are away.
            sizes: Training samples [M] of every client, int64.
            losses: The mean local loss [M] that each client had in its last training before an
                upload that counted, as far as the server knows it; NaN for one that never sent any.
                A hook that takes this has the losses recorded (``client_losses``).
            generator: The only source of randomness, of this seed and round.
            config: The selection's options.

        Raises:
            UsageError: The options can't be met by this run.
        """


class WorldSpec:
    """A world says on what devices clients run, and when they are there.

    Times are seconds of the run's virtual clock, which begins at 0 in every trial.
    """

    @hookspec(firstresult=True)
    def device(
        self,
        client: int,
        num_clients: int,
        seed: int,
        generator: np.random.Generator,
        config: Config,
    ) -> Mapping[str, float]:
        """Return a client's device; called once a trial, when the client is first asked.

        It is called once before a run too, for client 0, so that what is wrong with its options or
        its file is found before anything is trained.

        Args:
            client: The client.
            num_clients: Clients M.
            seed: The trial's seed, for what several clients share: ``pf.numpy_stream(seed, …)``.
            generator: The client's own source of randomness, of this seed.
            config: The world's options.

        Returns:
            ``flops``: floating-point operations a second in training; ``download`` and ``upload``:
            bits a second from the server and to it; ``latency``: seconds that the first bit is
            under way, each way. The first three are above 0, the last is not below.

        Raises:
            UsageError: The options can't be met by this run.
        """

    @hookspec(firstresult=True)
    def presence(
        self, num_clients: int, seconds: float, seed: int, config: Config
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return who is there, and until when that is so (optional).

        Whoever is not there is not asked, and whoever leaves before its reply has come is absent.

        Args:
            num_clients: Clients M.
            seconds: The moment.
            seed: The trial's seed; draw from ``pf.numpy_stream(seed, …)`` alone, so that the answer
                depends on the moment and not on what was asked before.
            config: The world's options.

        Returns:
            [M] bool: whether each client is there; [M] float: the moment after ``seconds`` at which
            this next changes, or may change; inf for never. None, as without this hook, where
            everybody always is there.
        """
