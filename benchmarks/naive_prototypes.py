"""The naive loop's FedProto, FedTGP and FedSA.

The equations are those of protofl's method pages with ``variant=paper``. No arithmetic of protofl
is used, so that equal results verify both.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from naive_parts import Client, Prototypes, Server, as_tensors, by_class, distance, mean_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader

from protofl.system.randomness import random_stream


class PrototypeClient(Client):
    """A client that is guided by global prototypes and sends prototypes of its own classes."""

    globals: Prototypes | None

    def receive(self, model: nn.Module) -> None:
        """Load the global prototypes."""
        self.globals = self.place.load("server", "prototypes")

    receive_for_test = receive

    def loss(self, model: Any, features: Tensor, scores: Tensor, y: Tensor) -> Tensor:  # noqa: ANN401
        """Return cross-entropy plus the distance of the batch's prototypes to the global ones."""
        loss = cross_entropy(scores, y)
        if self.globals:
            prototypes = mean_of(by_class(features, y))
            guide = torch.zeros((), device=y.device)
            for label, prototype in prototypes.items():
                if label in self.globals:
                    guide = guide + distance(prototype, self.globals[label])
            loss = loss + self.place.config.lambda_ * guide / len(prototypes)
        return loss

    def after_training(self, model: Any) -> None:  # noqa: ANN401 - a SplitModel
        """Compute the prototypes in one pass over the training data."""
        model.eval()
        lists: dict[int, list[Tensor]] = defaultdict(list)
        with torch.no_grad():
            for x, y in self.in_order(self.train_data):
                features = model.features(x)
                for row, label in enumerate(y):
                    lists[label.item()].append(features[row, :].detach().data)
        self.counts = {label: len(rows) for label, rows in lists.items()}
        self.own = mean_of(lists)

    def send(self, model: nn.Module) -> None:
        """Save prototypes and counts."""
        self.place.save((self.own, self.counts), self.name, "prototypes")

    def scores(self, model: Any, x: Tensor) -> Tensor:  # noqa: ANN401 - a SplitModel
        """Return the negative distance of each sample to each prototype."""
        features = model.features(x)
        assert self.globals is not None
        scores = torch.full((len(x), self.place.num_classes), -torch.inf, device=x.device)
        for row, feature in enumerate(features):
            for label, prototype in self.globals.items():
                scores[row, label] = -distance(feature, prototype)
        return scores


class PrototypeServer(Server):
    """A server that loads the clients' prototypes."""

    def received(self) -> list[tuple[Prototypes, dict[int, int]]]:
        """Return each client's prototypes and counts."""
        return [self.place.load(client.name, "prototypes") for client in self.clients]

    def send(self, prototypes: Prototypes) -> None:
        """Save the global prototypes."""
        self.place.save(prototypes, "server", "prototypes")

    def global_state(self) -> dict[str, Tensor]:
        """Return the global prototypes."""
        return as_tensors(self.place.load("server", "prototypes"))


def weighted_prototypes(received: list[tuple[Prototypes, dict[int, int]]]) -> Prototypes:
    """Return the mean prototype of each class over clients, weighted by samples."""
    lists: dict[int, list[tuple[Tensor, int]]] = defaultdict(list)
    for prototypes, counts in received:
        for label, prototype in prototypes.items():
            lists[label].append((prototype, counts[label]))
    means = {}
    for label, rows in lists.items():
        total = sum(count for _, count in rows)
        mean = torch.zeros_like(rows[0][0])
        for prototype, count in rows:
            mean = mean + prototype * (count / total)
        means[label] = mean
    return means


class FedProtoServer(PrototypeServer):
    """A server that averages prototypes, weighted by samples."""

    def step(self) -> None:
        """Average the prototypes and save them."""
        self.send(weighted_prototypes(self.received()))


class TrainablePrototypes(nn.Module):
    """FedTGP's trainable vectors and the network F that processes them."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(num_classes, width)
        self.F = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, classes: list[int]) -> Tensor:
        """Return the prototypes of classes."""
        index = torch.tensor(classes, device=self.vectors.weight.device)
        result: Tensor = self.F(self.vectors(index))
        return result


class FedTGPServer(PrototypeServer):
    """Trains global prototypes on the clients' prototypes, in mini-batches."""

    def set_up(self) -> None:
        """Build the vectors and F, and save the prototypes of round 0."""
        place = self.place
        model = TrainablePrototypes(place.num_classes, place.feature_dim).to(place.device)
        self._send(model)
        place.save(model, "server", "trainable")

    def _send(self, model: TrainablePrototypes) -> None:
        prototypes = model(list(range(self.place.num_classes))).detach()
        self.send({label: row for label, row in enumerate(prototypes)})

    def step(self) -> None:
        """Compute the margin (Eq. 9), then train S epochs on the clients' prototypes (Eq. 10)."""
        place, settings = self.place, self.place.plan.settings
        received = self.received()
        pairs = [(P, c) for prototypes, _ in received for c, P in sorted(prototypes.items())]
        margin = min(self._margin(received), place.config.tau)
        model = place.load("server", "trainable")
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
        model.train()
        stream = random_stream(place.seed, "fedtgp", "shuffle", place.round, "server")
        size = settings.batch_size
        for _ in range(place.config.S):
            order = torch.randperm(len(pairs), generator=stream).tolist()
            parts = [order[start : start + size] for start in range(0, len(order), size)]
            for sent, y in DataLoader(pairs, batch_sampler=parts):  # type: ignore[arg-type]
                sent, y = sent.to(place.device), y.to(place.device)
                made = model(list(range(place.num_classes)))
                square = torch.sum(torch.pow(sent, 2), 1, keepdim=True)
                square_made = torch.sum(torch.pow(made, 2), 1, keepdim=True)
                apart = torch.sqrt(square - 2 * torch.matmul(sent, made.T) + square_made.T)
                apart = apart + one_hot(y, place.num_classes) * margin
                loss = cross_entropy(-apart, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self._send(model)
        place.save(model, "server", "trainable")

    @staticmethod
    def _margin(received: list[tuple[Prototypes, dict[int, int]]]) -> float:
        lists: dict[int, list[Tensor]] = defaultdict(list)
        for prototypes, _ in received:
            for label, prototype in prototypes.items():
                lists[label].append(prototype)
        centres = mean_of(lists)
        largest = 0.0
        for a in centres:
            for b in centres:
                if a != b:
                    largest = max(largest, distance(centres[a], centres[b]).item())
        return largest


def mean_margin(prototypes: Prototypes) -> float:
    """Return the margin of FedSA Eq. 6."""
    total = 0.0
    for a in prototypes:
        for b in prototypes:
            if a != b:
                total += distance(prototypes[a], prototypes[b]).item()
    return total / (len(prototypes) - 1) ** 2 if len(prototypes) > 1 else 0.0


class FedSAClient(PrototypeClient):
    """A client guided by anchors that keeps a margin between classes and calibrates its head."""

    own_margin: float | None = None

    def receive(self, model: nn.Module) -> None:
        """Load the anchors and compute the margin d*."""
        super().receive(model)
        assert self.globals is not None
        self.margin = mean_margin(self.globals)
        if self.own_margin is not None:
            self.margin = max(self.margin, self.own_margin)

    def receive_for_test(self, model: nn.Module) -> None:
        """Load the anchors."""
        super().receive(model)

    def loss(self, model: Any, features: Tensor, scores: Tensor, y: Tensor) -> Tensor:  # noqa: ANN401
        """Return the loss of Eq. 9."""
        config, classes = self.place.config, self.place.num_classes
        assert self.globals is not None
        anchors = torch.stack([self.globals[label] for label in range(classes)])
        prototypes = mean_of(by_class(features, y))
        guide = torch.zeros((), device=y.device)
        contrast = torch.zeros((), device=y.device)
        for label, prototype in prototypes.items():
            guide = guide + distance(prototype, anchors[label])
            apart = torch.stack([distance(prototype, anchor) for anchor in anchors])
            apart = apart + one_hot(torch.tensor(label), classes).to(y.device) * self.margin
            contrast = contrast + cross_entropy(-apart, torch.tensor(label, device=y.device))
        calibration = cross_entropy(
            anchors @ model.head.weight.T, torch.arange(classes, device=y.device)
        )
        return (
            cross_entropy(scores, y)
            + config.lambda_1 * guide
            + config.lambda_2 * contrast / len(prototypes)
            + config.lambda_3 * calibration
        )

    def after_training(self, model: nn.Module) -> None:
        """Compute the prototypes, and d_i for the next round."""
        super().after_training(model)
        self.own_margin = mean_margin(self.own)


class FedSAServer(PrototypeServer):
    """Moves the anchors towards the mean prototypes."""

    def set_up(self) -> None:
        """Create the anchors: random class anchors, passed through the embedding."""
        C, K = self.place.num_classes, self.place.feature_dim
        stream = random_stream(self.place.seed, "fedsa", "anchors", -1, "server")
        layers: list[nn.Module] = []
        A = torch.randn(C, K, generator=stream)
        for _ in range(2):
            layers += [nn.Linear(K, K), nn.BatchNorm1d(K), nn.ReLU()]
        anchors = nn.Sequential(*layers)(A).detach().to(self.place.device)
        self.last: Prototypes = {}
        self.send({label: row for label, row in enumerate(anchors)})

    def step(self) -> None:
        """Apply Eq. 3 and Eq. 10."""
        alpha = self.place.config.alpha
        self.last |= weighted_prototypes(self.received())
        anchors: Prototypes = self.place.load("server", "prototypes")
        for label, target in self.last.items():
            anchors[label] = alpha * anchors[label] + (1 - alpha) * target
        self.send(anchors)
