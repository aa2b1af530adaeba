"""The naive reference loop, for ``benchmarks/bench.py --against benchmarks/naive.py``.

We wrote it in the style of existing libraries for heterogeneous federated learning:

- a DataLoader over each client's list of samples,
- models and payloads that are saved to disk and loaded again for each client's turn,
- prototypes that are collected sample by sample in lists,
- evaluation in batches of the training's size, with a loop over samples and classes,
- one client after the other in one process, with torch's default number of threads.

Data stay in memory, layouts are torch's default, and only what the method needs is computed.

The data, the split, the first weights, the order of mini-batches and the values of options come
from protofl, so that both loops do the same work. The arithmetic is independent of protofl.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from naive_parts import Client, Server, Workplace
from naive_prototypes import FedProtoServer, FedSAClient, FedSAServer, FedTGPServer, PrototypeClient
from naive_weights import (
    FedAvgClient,
    FedAvgServer,
    FedKDClient,
    FedKDServer,
    FMLClient,
    FMLServer,
)
from torch import Tensor

from protofl.errors import UsageError, unknown
from protofl.federation.plan.plan import Plan

METHODS: dict[str, tuple[type[Client], type[Server]]] = {
    "local": (Client, Server),
    "fedavg": (FedAvgClient, FedAvgServer),
    "fedproto": (PrototypeClient, FedProtoServer),
    "fedtgp": (PrototypeClient, FedTGPServer),
    "fedsa": (FedSAClient, FedSAServer),
    "fml": (FMLClient, FMLServer),
    "fedkd": (FedKDClient, FedKDServer),
}
"""The client class and the server class of each method."""


def open_loop(plan: Plan, folder: Path) -> NaiveLoop:
    """Return the loop for a plan. ``folder`` is empty and the loop may write to it.

    Raises:
        UsageError: The plan uses an option that this loop does not support.
    """
    return NaiveLoop(plan, folder)


class NaiveLoop:
    """A naive federation; implements `bench_loops.Loop`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        method, settings = plan.settings.method, plan.settings
        if method not in METHODS:
            raise unknown("method of the naive loop", method, METHODS)
        variant = getattr(plan.composition.configs[method], "variant", "paper")
        plain = settings.optimizer == "sgd" and not (settings.weight_decay or plan.scheduled)
        if variant != "paper" or settings.participation < 1 or not plain:
            raise UsageError(
                "the naive loop does variant=paper, participation 1 and plain SGD alone",
                do="measure this case without --against",
            )
        make_client, make_server = METHODS[method]
        self.place = Workplace(plan, folder)
        self.clients = [make_client(self.place, i) for i in range(plan.info.num_clients)]
        self.server = make_server(self.place, self.clients)
        self._accuracies: dict[int, float] = {}

    def round(self, number: int) -> dict[str, float]:
        """Run a whole round; return seconds by stage."""
        self._begin(number)
        self._train_clients()
        self._serve()
        self._evaluate()
        return dict(self.place.seconds)

    def collect(self, number: int) -> dict[str, float]:
        """Run local training and uploads."""
        self._begin(number)
        self._train_clients()
        return dict(self.place.seconds)

    def serve(self, number: int) -> dict[str, float]:
        """Run the server's step on the last uploads."""
        self._begin(number)
        self._serve()
        return dict(self.place.seconds)

    def evaluate(self, number: int) -> dict[str, float]:
        """Evaluate all clients."""
        self._begin(number)
        self._evaluate()
        return dict(self.place.seconds)

    def accuracies(self) -> dict[int, float]:
        """Return each client's accuracy in the last evaluation."""
        return self._accuracies

    def global_state(self) -> dict[str, Tensor]:
        """Return the server's global state."""
        return self.server.global_state()

    def weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each client's model."""
        for client in self.clients:
            model = self.place.load(client.name, "model")
            named = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
            buffers = {f"model/buffer/{name}": b for name, b in model.named_buffers()}
            yield client.id, named | buffers

    def close(self) -> None:
        """Do nothing."""

    # --- pieces ---------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        self.place.round = number
        self.place.seconds.clear()

    def _train_clients(self) -> None:
        for client in self.clients:
            client.turn()

    def _serve(self) -> None:
        with self.place.stage("server"):
            self.server.step()

    def _evaluate(self) -> None:
        with self.place.stage("evaluate"):
            for client in self.clients:
                correct, count = client.evaluate()
                self._accuracies[client.id] = correct / count


if __name__ == "__main__":
    raise SystemExit(f"use it as: python benchmarks/bench.py --against {Path(__file__).name}")
