"""Base classes of the naive reference loop's clients and servers."""

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
from protofl.federation.plan.plan import Plan
from protofl.system.randomness import global_stream, random_stream

Prototypes = dict[int, Tensor]
Batches = Iterator[tuple[Tensor, Tensor]]


class Workplace:
    """State that clients and server share: the plan, the folder for saved files, the timings."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.device, self.seed = plan.device, plan.seed(0)
        self.num_classes, self.feature_dim = plan.info.num_classes, plan.info.feature_dim
        self.config: Any = plan.composition.configs[plan.settings.method]
        self.round = -1
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a stage."""
        begin = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - begin

    def save(self, item: Any, owner: str, name: str) -> None:  # noqa: ANN401 - any picklable
        """Save an object to disk."""
        torch.save(item, self.folder / f"{owner}_{name}.pt")

    def load(self, owner: str, name: str) -> Any:  # noqa: ANN401 - what was saved
        """Load a saved object; return None if there is none."""
        path = self.folder / f"{owner}_{name}.pt"
        return torch.load(path, weights_only=False) if path.exists() else None

    def build(self, architecture: str) -> nn.Module:
        """Build a model of the server or an auxiliary model, with the weights of the seed."""
        return self.plan.info.build(architecture, self.seed).to(self.device)


class Client:
    """A client with its data as a list of samples; its model is on disk between turns."""

    def __init__(self, place: Workplace, id: int) -> None:
        self.place, self.id, self.name = place, id, f"client{id}"
        plan = place.plan
        self.phase = plan.composition.phases(plan.info)[0].name
        self.train_data = self._samples(plan.split(0).train(id))
        self.test_data = self._samples(plan.split(0).test(id))
        # Contiguous layout, as in other libraries: channels-last is protofl's own rule.
        model = plan.initial_model(id, 0).to(memory_format=torch.contiguous_format)
        place.save(model, self.name, "model")
        self.set_up()

    def set_up(self) -> None:
        """Create the state that a method adds to a client."""

    def _samples(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        samples = self.place.plan.samples(rows, False)
        return [
            (x.clone(), y) for x, y in zip(samples.inputs().cpu(), samples.y.cpu(), strict=True)
        ]

    # --- loaders --------------------------------------------------------------------------------

    def shuffled(self, epoch: int) -> Batches:
        """Return the mini-batches of an epoch, in the same order as protofl."""
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
                generator=torch.Generator(),  # the default would draw from dropout's stream
            )
        )

    def in_order(self, data: list[tuple[Tensor, Tensor]]) -> Batches:
        """Return all samples in batches of the training's size."""
        return self._on_device(DataLoader(data, batch_size=self.place.plan.settings.batch_size))

    def _on_device(self, loader: DataLoader[Any]) -> Batches:
        for x, y in loader:
            yield x.to(self.place.device), y.to(self.place.device)

    # --- a client's turn ------------------------------------------------------------------------

    def turn(self) -> None:
        """Load the model, train and save it, and save the upload."""
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
        """Load the download of this round."""

    def train(self, model: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
        """Run the local epochs."""
        for epoch in range(self.place.plan.settings.local_epochs):
            for x, y in self.shuffled(epoch):
                features = model.features(x)
                loss = self.loss(model, features, model.head(features), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def loss(self, model: Any, features: Tensor, scores: Tensor, y: Tensor) -> Tensor:  # noqa: ANN401
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(scores, y)

    def after_training(self, model: nn.Module) -> None:
        """Collect prototypes, if the method has them."""

    def send(self, model: nn.Module) -> None:
        """Save the upload."""

    # --- evaluation -----------------------------------------------------------------------------

    def evaluate(self) -> tuple[int, int]:
        """Return the numbers of correct predictions and of samples in the client's test data."""
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
        """Return class scores of a batch."""
        result: Tensor = model(x)
        return result


class Server:
    """A server that does nothing."""

    def __init__(self, place: Workplace, clients: list[Client]) -> None:
        self.place, self.clients = place, clients
        with global_stream(place.seed, "setup-server"):
            self.set_up()

    def set_up(self) -> None:
        """Build the server's models and save the download of round 0."""

    def step(self) -> None:
        """Load the uploads, aggregate, train, and save the download."""

    def global_state(self) -> dict[str, Tensor]:
        """Return the server's global state by protofl's wire names."""
        return {}


# --- prototypes, sample by sample ---------------------------------------------------------------


def by_class(features: Tensor, y: Tensor) -> dict[int, list[Tensor]]:
    """Return the features of each class as a list."""
    lists: dict[int, list[Tensor]] = defaultdict(list)
    for row, label in enumerate(y):
        lists[label.item()].append(features[row, :])
    return lists


def mean_of(lists: dict[int, list[Tensor]]) -> Prototypes:
    """Return the mean of each class's list."""
    return {label: torch.stack(rows).mean(0) for label, rows in lists.items()}


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the Euclidean distance."""
    return torch.norm(a - b)


def as_tensors(prototypes: Prototypes) -> dict[str, Tensor]:
    """Return prototypes by their wire names."""
    classes = sorted(prototypes)
    return {
        "prototypes": torch.stack([prototypes[c] for c in classes]),
        "classes": torch.tensor(classes),
    }
