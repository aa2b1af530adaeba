"""Hooks around a round: client sampling, devices and availability, metrics, trackers.

Each of these hooks has one provider. Returning None is an error unless the hook says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofl.hooks.hookspecs.markers import hookspec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from protofl import Config, TrackedRun


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


class MetricSpec:
    """A metric is a figure of class scores, by way of counts that add up over samples and clients.

    A client's counts give its own figure, the sum of all clients' counts that over all samples, and
    the counts of the server's model on the global test samples the server's. So nobody sees another
    one's scores. A figure that knows no counts is a mean: count it times the samples, and the
    samples.
    """

    @hookspec(firstresult=True)
    def count(self, scores: Tensor, labels: Tensor, config: Config) -> Tensor:
        """Return what samples count, in a tensor of a shape that depends on C and options alone.

        Args:
            scores: [n, C] as ``inference`` gives them, float32 or wider, one sample at least:
                logits, or minus distances; −∞ for a class that can't be predicted.
            labels: [n] integers in 0…C−1.
            config: The metric's options.
        """

    @hookspec(firstresult=True)
    def value(self, counts: Tensor, config: Config) -> float | Tensor | Sequence[float]:
        """Return the figure of counts: a number, or several ([C], by class); NaN for none.

        Args:
            counts: What ``count`` returned, or the sum of several, float64.
            config: The metric's options.
        """


class TrackerSpec:
    """A tracker writes a run down elsewhere: in a service, a data base, files of another program.

    Its hooks but ``check`` are called in a thread of its own, in order: ``open_run``, ``log_round``
    for every round, ``end_run``. What they raise is a note and ends nothing; where they are slow,
    rounds wait in a queue and at last are left out, and the run waits for none of it. What they
    need of each other is what ``open_run`` returns; nothing is kept on ``self``.

    Keys and passwords come from where the service's own library has them (its environment
    variables, its files), never from options: those are typed, and stand in scripts.
    """

    @hookspec(firstresult=True)
    def check(self, config: Config) -> None:
        """Raise an error if the tracker can't work, as without its library (optional).

        Called before the run starts and in its thread, so look at what is here and ask no service.

        Raises:
            UsageError: What is missing, and what to do.
        """

    @hookspec(firstresult=True)
    def open_run(self, run: TrackedRun, config: Config) -> Any:  # noqa: ANN401 - the tracker's own
        """Return what the other hooks need: a writer, a client of the service; possibly None.

        A run with a ``key`` that the tracker knows goes on: it was interrupted, or is given more
        rounds. Of ``run.rows``, the lines that its record has already, the tracker writes down
        those that it lacks, be it all of them.

        Args:
            run: The run.
            config: The tracker's options.
        """

    @hookspec(firstresult=True)
    def log_round(
        self,
        opened: Any,  # noqa: ANN401 - the tracker's own
        run: TrackedRun,
        row: Mapping[str, Any],
        number: int,
        config: Config,
    ) -> None:
        """Write a round down; returns None.

        Args:
            opened: What ``open_run`` returned.
            run: The run; ``run.figures(row)`` are the line's figures, ``run.step(row)`` the step.
            row: The round's line of ``metrics.jsonl``.
            number: The line's place in the record, from 0.
            config: The tracker's options.
        """

    @hookspec(firstresult=True)
    def end_run(
        self,
        opened: Any,  # noqa: ANN401 - the tracker's own
        run: TrackedRun,
        status: str,
        summary: Mapping[str, Any],
        error: str,
        config: Config,
    ) -> None:
        """Send what is left, and close; returns None.

        Args:
            opened: What ``open_run`` returned.
            run: The run.
            status: ``finished``, ``failed`` or ``interrupted``.
            summary: What ``summary.json`` holds; empty for a run that did not finish.
            error: Of one that failed what was wrong, in a line.
            config: The tracker's options.
        """
