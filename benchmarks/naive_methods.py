"""The methods of the naive reference loop, each with the options' values of protofl's plan.

The equations are those of protofl's method pages with ``variant=paper``; nothing of protofl's
arithmetic is used here, so that agreement is a check of both.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

import numpy as np
import torch
from naive_parts import (
    Client,
    Prototypes,
    Server,
    Workplace,
    as_tensors,
    by_class,
    distance,
    mean_of,
)
from protofl.randomness import global_stream, random_stream
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss, one_hot, softmax
from torch.utils.data import DataLoader

# --- FedAvg -------------------------------------------------------------------------------------


def set_weights(model: nn.Module, other: nn.Module) -> None:
    """Copy all weights and buffers."""
    with torch.no_grad():
        for new, old in zip(other.parameters(), model.parameters(), strict=True):
            old.data = new.data.clone()
        for new, old in zip(other.buffers(), model.buffers(), strict=True):
            old.data = new.data.clone()


def weighted_mean(models: list[nn.Module], shares: list[float]) -> nn.Module:
    """The weighted mean of models."""
    mean = models[0]
    states = [{k: v.clone() for k, v in model.state_dict().items()} for model in models]
    with torch.no_grad():
        for name, target in mean.state_dict().items():
            if not target.is_floating_point():
                target.copy_(torch.stack([state[name] for state in states]).amax(0))
                continue
            target.zero_()
            for state, share in zip(states, shares, strict=True):
                target += state[name] * share
    return mean


class FedAvgClient(Client):
    """Starts from the shared model."""

    def receive(self, model: nn.Module) -> None:
        """Take over the shared model."""
        set_weights(model, self.place.load("server", "model"))

    receive_for_test = receive


class FedAvgServer(Server):
    """Averages the clients' models."""

    def set_up(self) -> None:
        """The first shared model."""
        model = self.place.build(self.place.plan.info.architecture_of(0).name)
        self.place.save(model, "server", "model")

    def step(self) -> None:
        """The mean, weighted by samples."""
        counts = [len(client.train_data) for client in self.clients]
        models = [self.place.load(client.name, "model") for client in self.clients]
        mean = weighted_mean(models, [count / sum(counts) for count in counts])
        self.place.save(mean, "server", "model")

    def knowledge(self) -> dict[str, Tensor]:
        """The shared model."""
        model = self.place.load("server", "model")
        return {f"model/{name}": p.detach() for name, p in model.named_parameters()}


# --- FedProto, FedTGP, FedSA --------------------------------------------------------------------


class PrototypeClient(Client):
    """Is guided by global prototypes, and sends those of its own classes."""

    globals: Prototypes | None

    def receive(self, model: nn.Module) -> None:
        """Load the global prototypes."""
        self.globals = self.place.load("server", "prototypes")

    receive_for_test = receive

    def loss(self, model: Any, features: Tensor, scores: Tensor, y: Tensor) -> Tensor:  # noqa: ANN401
        """Cross-entropy, and the distance of the batch's prototypes to the global ones."""
        loss = cross_entropy(scores, y)
        if self.globals:
            own = mean_of(by_class(features, y))
            guide = torch.zeros((), device=y.device)
            for label, prototype in own.items():
                if label in self.globals:
                    guide = guide + distance(prototype, self.globals[label])
            loss = loss + self.place.config.lambda_ * guide / len(own)
        return loss

    def after_training(self, model: Any) -> None:  # noqa: ANN401 - a SplitModel
        """One pass over the training data."""
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
        """Minus the distance of every sample to every prototype."""
        features = model.features(x)
        assert self.globals is not None
        scores = torch.full((len(x), self.place.num_classes), -torch.inf, device=x.device)
        for row, feature in enumerate(features):
            for label, prototype in self.globals.items():
                scores[row, label] = -distance(feature, prototype)
        return scores


class PrototypeServer(Server):
    """Reads the clients' prototypes."""

    def received(self) -> list[tuple[Prototypes, dict[int, int]]]:
        """Every client's prototypes and counts."""
        return [self.place.load(client.name, "prototypes") for client in self.clients]

    def send(self, prototypes: Prototypes) -> None:
        """Save the global prototypes."""
        self.place.save(prototypes, "server", "prototypes")

    def knowledge(self) -> dict[str, Tensor]:
        """The global prototypes."""
        return as_tensors(self.place.load("server", "prototypes"))


def weighted_prototypes(received: list[tuple[Prototypes, dict[int, int]]]) -> Prototypes:
    """The mean of every class over clients, weighted by samples."""
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
    """The weighted mean of prototypes."""

    def step(self) -> None:
        """Average."""
        self.send(weighted_prototypes(self.received()))


class TrainablePrototypes(nn.Module):
    """FedTGP's vectors and their processor F."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(num_classes, width)
        self.F = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, classes: list[int]) -> Tensor:
        """The prototypes of classes."""
        index = torch.tensor(classes, device=self.vectors.weight.device)
        found: Tensor = self.F(self.vectors(index))
        return found


class FedTGPServer(PrototypeServer):
    """Trains global prototypes on those of the clients, in mini-batches."""

    def set_up(self) -> None:
        """The vectors, F, and the prototypes of round 0."""
        place = self.place
        model = TrainablePrototypes(place.num_classes, place.feature_dim).to(place.device)
        self._send(model)
        place.save(model, "server", "trainable")

    def _send(self, model: TrainablePrototypes) -> None:
        found = model(list(range(self.place.num_classes))).detach()
        self.send({label: row for label, row in enumerate(found)})

    def step(self) -> None:
        """The margin (Eq. 9), then S epochs over the list of prototypes (Eq. 10)."""
        place, settings = self.place, self.place.plan.settings
        received = self.received()
        pairs = [(P, c) for own, _ in received for c, P in sorted(own.items())]
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
    """FedSA Eq. 6."""
    total = 0.0
    for a in prototypes:
        for b in prototypes:
            if a != b:
                total += distance(prototypes[a], prototypes[b]).item()
    return total / (len(prototypes) - 1) ** 2 if len(prototypes) > 1 else 0.0


class FedSAClient(PrototypeClient):
    """Is guided by anchors, keeps a margin between classes, and calibrates its head."""

    own_margin: float | None = None

    def receive(self, model: nn.Module) -> None:
        """The anchors, and the margin d*."""
        super().receive(model)
        assert self.globals is not None
        self.margin = mean_margin(self.globals)
        if self.own_margin is not None:
            self.margin = max(self.margin, self.own_margin)

    def receive_for_test(self, model: nn.Module) -> None:
        """The anchors."""
        super().receive(model)

    def loss(self, model: Any, features: Tensor, scores: Tensor, y: Tensor) -> Tensor:  # noqa: ANN401
        """Eq. 9."""
        config, classes = self.place.config, self.place.num_classes
        assert self.globals is not None
        anchors = torch.stack([self.globals[label] for label in range(classes)])
        own = mean_of(by_class(features, y))
        guide = torch.zeros((), device=y.device)
        contrast = torch.zeros((), device=y.device)
        for label, prototype in own.items():
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
            + config.lambda_2 * contrast / len(own)
            + config.lambda_3 * calibration
        )

    def after_training(self, model: nn.Module) -> None:
        """Prototypes, and d_i for the next round."""
        super().after_training(model)
        self.own_margin = mean_margin(self.own)


class FedSAServer(PrototypeServer):
    """Moves the anchors towards the mean prototypes."""

    def set_up(self) -> None:
        """Random class anchors through the embedding."""
        C, K = self.place.num_classes, self.place.feature_dim
        stream = random_stream(self.place.seed, "fedsa", "anchors", -1, "server")
        layers: list[nn.Module] = []
        A = torch.randn(C, K, generator=stream)
        for _ in range(2):
            layers += [nn.Linear(K, K), nn.BatchNorm1d(K), nn.ReLU()]
        found = nn.Sequential(*layers)(A).detach().to(self.place.device)
        self.last: Prototypes = {}
        self.send({label: row for label, row in enumerate(found)})

    def step(self) -> None:
        """Eq. 3 and Eq. 10."""
        alpha = self.place.config.alpha
        self.last |= weighted_prototypes(self.received())
        anchors: Prototypes = self.place.load("server", "prototypes")
        for label, target in self.last.items():
            anchors[label] = alpha * anchors[label] + (1 - alpha) * target
        self.send(anchors)


# --- FML and FedKD ------------------------------------------------------------------------------


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """KL of the teacher's softmax and the student's, the mean over the batch."""
    return kl_div(
        log_softmax(student, dim=1), softmax(teacher.detach(), dim=1), reduction="batchmean"
    )


class FMLClient(Client):
    """Learns mutually with a small shared model."""

    def receive(self, model: nn.Module) -> None:
        """Load the shared model."""
        self.auxiliary = self.place.load("server", "auxiliary")

    def train(self, model: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
        """Both models, each with an optimiser of its own."""
        config, settings = self.place.config, self.place.plan.settings
        shared = self.auxiliary
        other = torch.optim.SGD(shared.parameters(), lr=settings.lr)
        shared.train(model.training)
        for epoch in range(settings.local_epochs):
            for x, y in self.shuffled(epoch):
                mine, theirs = model(x), shared(x)
                loss = config.alpha * cross_entropy(mine, y)
                loss = loss + (1 - config.alpha) * divergence(mine, theirs)
                loss_shared = config.beta * cross_entropy(theirs, y)
                loss_shared = loss_shared + (1 - config.beta) * divergence(theirs, mine)
                optimizer.zero_grad()
                other.zero_grad()
                loss.backward()
                loss_shared.backward()
                optimizer.step()
                other.step()

    def send(self, model: nn.Module) -> None:
        """Save the shared model as this client has it."""
        self.place.save(self.auxiliary, self.name, "auxiliary")


class FMLServer(Server):
    """Averages the small models."""

    def set_up(self) -> None:
        """The first shared model."""
        self.place.save(self.place.build(self.place.config.auxiliary), "server", "auxiliary")

    def step(self) -> None:
        """The plain mean."""
        models = [self.place.load(client.name, "auxiliary") for client in self.clients]
        mean = weighted_mean(models, [1 / len(models)] * len(models))
        self.place.save(mean, "server", "auxiliary")

    def knowledge(self) -> dict[str, Tensor]:
        """The shared model."""
        model = self.place.load("server", "auxiliary")
        return {f"auxiliary/{name}": p.detach() for name, p in model.named_parameters()}


Compressed = dict[str, Any]


def compress(updates: dict[str, Tensor], energy: float) -> Compressed:
    """Every matrix as its leading singular triplets, found one by one."""
    found: Compressed = {}
    for name, update in updates.items():
        array = update.cpu().numpy()
        if array.ndim < 2:
            found[name] = array
            continue
        u, sigma, v = np.linalg.svd(array.reshape(len(array), -1), full_matrices=False)
        squares = np.square(sigma.astype(np.float64))
        rank = 1 if squares.sum() == 0 else len(sigma)
        for count in range(1, rank + 1):
            if np.sum(squares[:count]) > energy * np.sum(squares):
                rank = count
                break
        found[name] = [u[:, :rank], sigma[:rank], v[:rank, :]]
    return found


def recover(compressed: Compressed, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The updates again."""
    found = {}
    for name, tensor in like.items():
        value = compressed[name]
        if isinstance(value, list):
            u, sigma, v = value
            value = np.matmul(u * sigma[..., None, :], v).reshape(tensor.shape)
        found[name] = torch.tensor(value, device=tensor.device)
    return found


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def energy_of(place: Workplace) -> float:
    """The threshold T of the round."""
    start, end = place.config.T_start, place.config.T_end
    share = (1 + place.round) / place.plan.settings.rounds
    return float(min(1.0, max(0.0, start + (end - start) * share)))


class FedKDClient(Client):
    """Mutual distillation with a small shared model, whose updates travel compressed."""

    def set_up(self) -> None:
        """The shared model and W_h."""
        place = self.place
        with global_stream(place.seed, "setup", self.id):
            K = place.feature_dim
            place.save(nn.Linear(K, K, bias=False).to(place.device), self.name, "W_h")
        place.save(place.build(place.config.auxiliary), self.name, "auxiliary")

    def receive(self, model: nn.Module) -> None:
        """The server's update of the shared model."""
        place = self.place
        self.auxiliary = place.load(self.name, "auxiliary")
        sent = place.load("server", "update")
        if sent is not None:
            before = place.load(self.name, "broadcast")
            steps = recover(sent, before)
            with torch.no_grad():
                for name, parameter in self.auxiliary.named_parameters():
                    parameter.data = before[name] + steps[name]
        place.save(parameters_of(self.auxiliary), self.name, "broadcast")

    def train(self, model: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
        """Both models and W_h, each with an optimiser of its own."""
        place, settings = self.place, self.place.plan.settings
        shared, W_h = self.auxiliary, place.load(self.name, "W_h")
        others = [torch.optim.SGD(m.parameters(), lr=settings.lr) for m in (shared, W_h)]
        shared.train(model.training)
        for epoch in range(settings.local_epochs):
            for x, y in self.shuffled(epoch):
                f_s, f_a = model.features(x), shared.features(x)
                p_s, p_a = model.head(f_s), shared.head(f_a)
                ce_s, ce_a = cross_entropy(p_s, y), cross_entropy(p_a, y)
                bottom = max(ce_s.item() + ce_a.item(), place.config.floor)
                loss = ce_s + divergence(p_s, p_a) / bottom
                loss = loss + mse_loss(f_s, W_h(f_a.detach())) / bottom
                hidden = nn.functional.linear(f_a, W_h.weight.detach())
                loss_shared = ce_a + divergence(p_a, p_s) / bottom
                loss_shared = loss_shared + mse_loss(hidden, f_s.detach()) / bottom
                for each in (optimizer, *others):
                    each.zero_grad()
                loss.backward()
                loss_shared.backward()
                for each in (optimizer, *others):
                    each.step()
        place.save(W_h, self.name, "W_h")
        place.save(shared, self.name, "auxiliary")

    def send(self, model: nn.Module) -> None:
        """The compressed update."""
        before = self.place.load(self.name, "broadcast")
        now = parameters_of(self.auxiliary)
        update = {name: now[name] - before[name] for name in now}
        self.place.save(compress(update, energy_of(self.place)), self.name, "update")


class FedKDServer(Server):
    """The mean update, compressed again."""

    def set_up(self) -> None:
        """The shared model."""
        model = self.place.build(self.place.config.auxiliary)
        self.place.save(parameters_of(model), "server", "auxiliary")

    def step(self) -> None:
        """Recover, average, compress, apply."""
        held = self.place.load("server", "auxiliary")
        mean = {name: torch.zeros_like(tensor) for name, tensor in held.items()}
        for client in self.clients:
            update = recover(self.place.load(client.name, "update"), held)
            for name in mean:
                mean[name] += update[name] / len(self.clients)
        sent = compress(mean, energy_of(self.place))
        steps = recover(sent, held)
        self.place.save(sent, "server", "update")
        self.place.save({n: held[n] + steps[n] for n in held}, "server", "auxiliary")

    def knowledge(self) -> dict[str, Tensor]:
        """The shared model."""
        held = cast(dict[str, Tensor], self.place.load("server", "auxiliary"))
        return {f"auxiliary/{name}": tensor for name, tensor in held.items()}


METHODS: dict[str, tuple[type[Client], type[Server]]] = {
    "local": (Client, Server),
    "fedavg": (FedAvgClient, FedAvgServer),
    "fedproto": (PrototypeClient, FedProtoServer),
    "fedtgp": (PrototypeClient, FedTGPServer),
    "fedsa": (FedSAClient, FedSAServer),
    "fml": (FMLClient, FMLServer),
    "fedkd": (FedKDClient, FedKDServer),
}
"""The client and the server of each method."""
