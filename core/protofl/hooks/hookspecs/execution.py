"""Hooks of engines and backends: how clients' work is done, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofl.hooks.hookspecs.markers import hookspec

if TYPE_CHECKING:
    from protofl import Config, backends


class EngineSpec:
    """An engine runs local training inside a host.

    ``eager`` is the reference: another engine gives what it can't do to it, and says why in
    ``job.notes``. An engine may keep on ``self`` what changes no result: compiled or captured
    steps, buffers.
    """

    @hookspec(firstresult=True)
    def train(self, job: backends.TrainJob, config: Config) -> dict[str, float]:
        """Run the phase of local training of one client, inside ``job.stream()``.

        Returns:
            For every loss term the sum over samples of its value (the mean of a batch times its
            samples), under the term's label.
        """

    @hookspec(firstresult=True)
    def train_group(self, jobs: list[backends.TrainJob], config: Config) -> list[dict[str, float]]:
        """Run the phases of several clients, chosen by `choose_groups` (optional).

        All clients of a group are in memory at once. What uses torch's global generators must run
        inside the ``stream()`` of its job.

        Returns:
            What `train` returns, for each job in order.
        """

    @hookspec(firstresult=True)
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """Return which clients to train together; needed beside `train_group`.

        Args:
            architectures: The name of each client's architecture, costly clients first.
            config: The engine's options.

        Returns:
            Lists of positions, every position once.
        """


class BackendSpec:
    """A backend places hosts and carries jobs to them."""

    @hookspec(firstresult=True)
    def open_pool(
        self, plan: backends.Plan, config: Config, workers: int, idle: backends.Idle | None
    ) -> backends.Pool:
        """Start the hosts and return the pool that carries jobs to them.

        Args:
            plan: The run; ``plan.to_json()`` is enough to build it elsewhere.
            config: The backend's options.
            workers: Hosts to start; 0 for the backend's own choice.
            idle: In a `protofl.Session` hosts that earlier runs have left, to begin this run with
                in place of new ones, and where the pool leaves its own when it is closed.
        """
