"""Hooks around a round: client sampling, devices and availability, schedules, metrics, trackers.

Each of these hooks has one provider. Returning None is an error unless the hook says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofl.hooks.hookspecs import hookspec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from protofl import backends, schedules
    from protofl.hooks.views.tracked_run import TrackedRun
    from protofl.system.options.plugin_options import Config


class ClientSamplerSpec:
    """Client sampling: the participants of a round.

    A client sampler may declare ``any_number = True`` if it returns more or fewer clients than
    requested, as fixed lists do.
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
        """Return the numbers of the participants, each once, in any order.

        The hook is also called before a run, for the first round, to find errors in its options
        and files before training.

        Args:
            round: The round.
            count: Number of clients to choose, at most as many as in ``clients``.
            clients: The available clients, int64, ascending.
            sizes: Training samples [M] of every client, int64.
            losses: The mean local loss [M] of each client's last training with an accepted upload;
                NaN for a client without any. If a hook takes this argument, the losses are recorded
                (``client_losses``).
            generator: The only source of randomness, of this seed and round.
            config: The client sampler's options.

        Raises:
            UsageError: The options can't be met by this run.
        """


class DeviceModelSpec:
    """The devices and the availability of clients in virtual time.

    Times are seconds of the run's virtual clock, which starts at 0 in every trial.
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
        """Return a client's device; called once in a trial, when the client first takes part.

        The hook is also called before a run, for client 0, to find errors in its options and files
        before training.

        Args:
            client: The client.
            num_clients: Clients M.
            seed: The trial's seed, for draws that clients share: ``pf.numpy_stream(seed, …)``.
            generator: The client's own source of randomness, of this seed.
            config: The device model's options.

        Returns:
            ``flops``: floating-point operations per second in training; ``download`` and
            ``upload``: bits per second from the server and to it; ``latency``: seconds of one
            direction. The first three are positive, the last is not negative.

        Raises:
            UsageError: The options can't be met by this run.
        """

    @hookspec(firstresult=True)
    def presence(
        self, num_clients: int, seconds: float, seed: int, config: Config
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the available clients, and when their availability changes (optional).

        Unavailable clients are not sampled. A client that leaves before its reply is absent.

        Args:
            num_clients: Clients M.
            seconds: The time.
            seed: The trial's seed; draw only from ``pf.numpy_stream(seed, …)``, so that the result
                depends on the time and not on earlier calls.
            config: The device model's options.

        Returns:
            [M] bool: True for available clients; [M] float: the time after ``seconds`` at which
            this next changes, or may change; inf for never. None, as without this hook: all
            clients are always available.
        """


class ScheduleSpec:
    """The schedule of a run: when clients train, and when the server acts.

    A schedule without hooks is that of rounds: the server asks the participants, waits, and acts.
    Another one decides in virtual time. Each of its steps of the server is a line of the record,
    and counts as a round: of ``--rounds``, of learning rate schedules, and of random streams.

    A schedule that also works in real time, where clients are machines of their own, declares
    ``real_time = True`` (`Coordinator.real_time`).
    """

    @hookspec(firstresult=True)
    def check_run(self, plan: backends.Plan, config: Config) -> None:
        """Raise an error if a run can't have this schedule (optional).

        Called before the run starts.

        Raises:
            UsageError: An option or a plugin of the run does not fit; the error says what to do.
        """

    @hookspec(firstresult=True)
    def try_out(
        self, coordinator: schedules.Coordinator, note: Callable[[str], None], config: Config
    ) -> None:
        """Try steps of the server that rounds do not have (optional); errors refuse the run.

        Called in the dry run after its two rounds, in which both of its clients took part. Nothing
        of it is kept.

        Args:
            coordinator: The server and two clients; without devices and virtual time.
            note: Takes lines for the user.
            config: The schedule's options.
        """

    @hookspec(firstresult=True)
    def open_schedule(
        self, coordinator: schedules.Coordinator, config: Config
    ) -> schedules.Schedule:
        """Return the schedule of a trial (optional). Without this hook the run has rounds.

        Args:
            coordinator: The server and the clients of the trial, and their devices.
            config: The schedule's options.
        """


class MetricSpec:
    """A figure of class scores, computed from counts that add up over samples and clients.

    A client's counts give its own figure, the sum of all clients' counts the figure of all samples,
    and the counts of the server's model on the global test samples the figure of the server. So no
    scores leave a client. For a mean, count the sum over samples, and the samples.
    """

    @hookspec(firstresult=True)
    def count(self, scores: Tensor, labels: Tensor, config: Config) -> Tensor:
        """Return the counts of samples: a tensor whose shape depends only on C and the options.

        Args:
            scores: [n, C] of ``inference``, float32 or wider, n ≥ 1: logits, or minus distances;
                −∞ for a class that can't be predicted.
            labels: [n] integers in 0…C−1. If the metric declares another task (``tasks``), [n, C]
                of 0 and 1 (``multilabel``), or numbers [n, 1] (``regression``), which are in one
                unit with the scores.
            config: The metric's options.
        """

    @hookspec(firstresult=True)
    def value(self, counts: Tensor, config: Config) -> float | Tensor | Sequence[float]:
        """Return the figure of counts: a number, or several ([C], by class); NaN for none.

        Args:
            counts: A result of ``count``, or the sum of several, float64.
            config: The metric's options.
        """


class TrackerSpec:
    """A tracker records a run elsewhere: in a service, a database, files of another program.

    All hooks except ``check`` are called in a separate thread, in order: ``open_run``,
    ``log_round`` for every round, ``end_run``. Their errors become notes. If they are slow, rounds
    wait in a queue and are finally dropped; the run does not wait. ``open_run`` returns the state
    that the other hooks need; nothing is kept on ``self``.

    Keys and passwords come from the service's own library (its environment variables, its files),
    never from options, which appear in scripts.
    """

    @hookspec(firstresult=True)
    def check(self, config: Config) -> None:
        """Raise an error if the tracker can't work, for example without its library (optional).

        Called before the run starts, in its thread, so do not contact a service.

        Raises:
            UsageError: Something is missing; the error says what to do.
        """

    @hookspec(firstresult=True)
    def open_run(self, run: TrackedRun, config: Config) -> Any:  # noqa: ANN401 - the tracker's own
        """Return the state of the other hooks: a writer, a client of the service, or None.

        A run with a known ``key`` was interrupted, or gets more rounds. ``run.rows`` are its
        recorded rows; the tracker records those that it lacks.

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
        """Record a round; returns None.

        Args:
            opened: The return value of ``open_run``.
            run: The run; ``run.figures(row)`` are the row's figures, ``run.step(row)`` the step.
            row: The round's row of ``metrics.jsonl``.
            number: The row's position in the record, from 0.
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
        """Send remaining data and close; returns None.

        Args:
            opened: The return value of ``open_run``.
            run: The run.
            status: ``finished``, ``failed`` or ``interrupted``.
            summary: The content of ``summary.json``; empty for a run that did not finish.
            error: The error of a failed run, in a line.
            config: The tracker's options.
        """
