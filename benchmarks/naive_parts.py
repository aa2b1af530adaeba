"""The naive reference loop's client and server: what all its methods share."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from protofl.data.batches import LEAST, batch_bounds
from protofl.federation.plan import Plan
from protofl.system.randomness import global_stream, random_stream

Prototypes = dict[int, Tensor]
Batches = Iterator[tuple[Tensor, Tensor]]


class Workplace:
    """What clients and server share: the plan, the folder for everything saved, the clock."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.device, self.seed = plan.device, plan.seed(0)
        self.num_classes, self.feature_dim = plan.info.num_classes, plan.info.feature_dim
        self.config: Any = plan.composition.configs[plan.settings.method]
        self.round = -1
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book the seconds of a block."""
        begin = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - begin

    def save(self, item: Any, owner: str, name: str) -> None:  # noqa: ANN401 - any picklable
        """Write something to disk."""
        torch.save(item, self.folder / f"{owner}_{name}.pt")

    def load(self, owner: str, name: str) -> Any:  # noqa: ANN401 - what was saved
        """Read it back; None where it is not there."""
        path = self.folder / f"{owner}_{name}.pt"
        return torch.load(path, weights_only=False) if path.exists() else None

    def build(self, architecture: str) -> nn.Module:
        """A model of the server or an auxiliary one, with the weights that the seed gives."""
        return self.plan.info.build(architecture, self.seed).to(self.device)


class Client:
    """A client: its data as a list of samples, its model on disk between its turns."""

    def __init__(self, place: Workplace, id: int) -> None:
        self.place, self.id, self.name = place, id, f"client{id}"
        plan = place.plan
        self.phase = plan.composition.phases(plan.info)[0].name
        self.train_data = self._samples(plan.split(0).train(id))
        self.test_data = self._samples(plan.split(0).test(id))
        # Plain layout, as the libraries have it: channels-last is protofl's own rule.
        model = plan.initial_model(id, 0).to(memory_format=torch.contiguous_format)
        place.save(model, self.name, "model")
        self.set_up()

    def set_up(self) -> None:
        """What a method adds to a client."""

    def _samples(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        samples = self.place.plan.samples(rows, False)
        return [
            (x.clone(), y) for x, y in zip(samples.inputs().cpu(), samples.y.cpu(), strict=True)
        ]

    # --- loaders --------------------------------------------------------------------------------

    def shuffled(self, epoch: int) -> Batches:
        """Mini-batches of an epoch, in the order that protofl takes too."""
        settings, count = self.place.plan.settings, len(self.train_data)
        keys = ("order", self.phase, self.place.round, self.id, epoch)
        stream = random_stream(self.place.seed, *keys)
        order = torch.arange(count)
        if settings.shuffle:
            order = torch.randperm(count, generator=stream)
        bounds = batch_bounds(count, settings.batch_size, settings.drop_last)
        return self._on_device(
            DataLoader(
                self.train_data,
                batch_sampler=[order[a:b].tolist() for a, b in bounds],
                generator=torch.Generator(),  # it draws a seed, by default from dropout's stream
            )
        )

    def in_order(self, data: list[tuple[Tensor, Tensor]]) -> Batches:
        """All samples in batches of the training's size."""
        return self._on_device(DataLoader(data, batch_size=self.place.plan.settings.batch_size))

    def _on_device(self, loader: DataLoader[Any]) -> Batches:
        for x, y in loader:
            yield x.to(self.place.device), y.to(self.place.device)

    # --- a client's turn ------------------------------------------------------------------------

    def turn(self) -> None:
        """Load the model, train it, save it, and save what the server takes."""
        place, settings = self.place, self.place.plan.settings
        with place.stage("setup"):
            model = place.load(self.name, "model")
        with place.stage("payload"):
            self.receive(model)
        keys = ("train", place.round, self.id, self.phase)
        with place.stage("train"), global_stream(place.seed, *keys):
            optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
            model.train(len(self.train_data) >= LEAST)
            self.train(model, optimizer)
        with place.stage("prototypes"):
            self.after_training(model)
        with place.stage("setup"):
            place.save(model, self.name, "model")
        with place.stage("payload"):
            self.send(model)

    def receive(self, model: nn.Module) -> None:
        """Load what the server has saved for this round."""

    def train(self, model: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
        """Local epochs."""
        for epoch in range(self.place.plan.settings.local_epochs):
            for x, y in self.shuffled(epoch):
                features = model.features(x)
                loss = self.loss(model, features, model.head(features), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def loss(self, model: Any, features: Tensor, scores: Tensor, y: Tensor) -> Tensor:  # noqa: ANN401
        """The loss of a batch."""
        return nn.functional.cross_entropy(scores, y)

    def after_training(self, model: nn.Module) -> None:
        """Collect prototypes, where the method has them."""

    def send(self, model: nn.Module) -> None:
        """Save what the server takes."""

    # --- evaluation -----------------------------------------------------------------------------

    def evaluate(self) -> tuple[int, int]:
        """Correct predictions and samples of the client's test data."""
        model = self.place.load(self.name, "model")
        self.receive_for_test(model)
        model.eval()
        correct = count = 0
        with torch.no_grad():
            for x, y in self.in_order(self.test_data):
                correct += (torch.argmax(self.scores(model, x), dim=1) == y).sum().item()
                count += len(y)
        return int(correct), count

    def receive_for_test(self, model: nn.Module) -> None:
        """Load what inference needs."""

    def scores(self, model: Any, x: Tensor) -> Tensor:  # noqa: ANN401 - a SplitModel
        """Class scores of a batch."""
        found: Tensor = model(x)
        return found


class Server:
    """A server that does nothing."""

    def __init__(self, place: Workplace, clients: list[Client]) -> None:
        self.place, self.clients = place, clients
        with global_stream(place.seed, "setup-server"):
            self.set_up()

    def set_up(self) -> None:
        """Build the server's models, and save what round 0 sends."""

    def step(self) -> None:
        """Read what the clients have saved, aggregate, train, and save the result."""

    def knowledge(self) -> dict[str, Tensor]:
        """What the server knows, by the names that protofl has for it."""
        return {}


# --- prototypes, a sample at a time -------------------------------------------------------------


def by_class(features: Tensor, y: Tensor) -> dict[int, list[Tensor]]:
    """Every sample's feature, in a list of its class."""
    lists: dict[int, list[Tensor]] = defaultdict(list)
    for row, label in enumerate(y):
        lists[label.item()].append(features[row, :])
    return lists


def mean_of(lists: dict[int, list[Tensor]]) -> Prototypes:
    """The mean of every class's list."""
    return {label: torch.stack(rows).mean(0) for label, rows in lists.items()}


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The Euclidean distance."""
    return torch.norm(a - b)


def as_tensors(prototypes: Prototypes) -> dict[str, Tensor]:
    """Prototypes in the names of the wire."""
    classes = sorted(prototypes)
    return {
        "prototypes": torch.stack([prototypes[c] for c in classes]),
        "classes": torch.tensor(classes),
    }
