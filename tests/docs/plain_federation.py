"""PFLlib's methods, written from their descriptions in plain PyTorch, for one process.

The options are those of PFLlib's command line. Clients train one after the other, on mini-batches
in the order of their samples and without the last, smaller one. Nothing of protofl computes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss, one_hot, softmax

BATCH, CLASSES = 10, 10
DEFAULTS: dict[str, Any] = {"mu": 0, "tau": 1, "lam": 1, "pls": 1, "se": 1000, "nd": 512, "lf": ""}
"""PFLlib's options of methods, with its defaults."""

Samples = tuple[Tensor, Tensor]


class FedAvg:
    """Clients start from w, and w becomes the mean of their nets by n_i/n.

    Args:
        w: The server's first net.
        nets: The clients' first nets, each with ``features`` and ``head``.
        data: Each client's training and test samples.
        lr: η.
        options: PFLlib's options by their short names.
        draws: Returns the labels and the noise that FedGen draws.
    """

    def __init__(
        self,
        w: Any,
        nets: list[Any],
        data: list[tuple[Samples, Samples]],
        lr: float,
        options: dict[str, str],
        draws: Callable[..., Iterator[tuple[Tensor, Tensor]]],
    ) -> None:
        self.nets, self.data, self.lr, self.draws = nets, data, lr, draws
        self.options, self.number = DEFAULTS | options, 0
        names = {name for name, _ in w.named_parameters() if self.shares(w, name)}
        self.w = {name: p.detach().clone() for name, p in w.named_parameters() if name in names}
        self.set_up(w)

    def set_up(self, w: nn.Module) -> None:
        """Create what a method keeps."""

    def shares(self, net: nn.Module, name: str) -> bool:
        """Return True if a parameter travels."""
        return True

    def option(self, name: str) -> float:
        return float(self.options[name])

    def round(self, chosen: list[int]) -> None:
        """Run a round with these clients."""
        for k in chosen:
            self.receive(k)
            self.nets[k].train()
            self.train(k)
        self.aggregate(chosen)
        self.number += 1

    def receive(self, k: int) -> None:
        self.nets[k].load_state_dict(self.w, strict=False)

    def batches(self, k: int) -> Iterator[Samples]:
        x, y = self.data[k][0]
        for start in range(0, len(y) - BATCH + 1, BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]

    def train(self, k: int) -> None:
        for x, y in self.batches(k):
            self.step(self.nets[k], self.loss(k, x, y))

    def step(self, net: nn.Module, loss: Tensor) -> None:
        parameters = [p for p in net.parameters() if p.requires_grad]
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data -= self.lr * g

    def loss(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.nets[k](x), y)

    def distance(self, net: nn.Module) -> Tensor:
        """Return ‖net − w‖²."""
        return sum(((p - self.w[name]) ** 2).sum() for name, p in net.named_parameters())

    def aggregate(self, chosen: list[int]) -> None:
        shares = self.shares_of(chosen)
        for name in self.w:
            mean = sum(s * self.nets[k].get_parameter(name) for k, s in shares.items())
            self.w[name] = mean.detach()

    def shares_of(self, chosen: list[int]) -> dict[int, float]:
        sizes = {k: len(self.data[k][0][1]) for k in chosen}
        return {k: size / sum(sizes.values()) for k, size in sizes.items()}

    def correct(self) -> list[int]:
        """Return the number of correct test samples of each client."""
        found = []
        for k, (_, (x, y)) in enumerate(self.data):
            self.receive(k)
            with torch.no_grad():
                found.append(int((self.scores(k, x).argmax(1) == y).sum()))
        return found

    def scores(self, k: int, x: Tensor) -> Tensor:
        return self.nets[k].eval()(x)


class Local(FedAvg):
    def shares(self, net: nn.Module, name: str) -> bool:
        return False


class FedProx(FedAvg):
    def loss(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        return super().loss(k, x, y) + self.option("mu") / 2 * self.distance(self.nets[k])


class SCAFFOLD(FedAvg):
    def set_up(self, w: nn.Module) -> None:
        self.c = {name: torch.zeros_like(p) for name, p in self.w.items()}
        self.own = [deepcopy(self.c) for _ in self.nets]

    def train(self, k: int) -> None:
        steps = 0
        for steps, (x, y) in enumerate(self.batches(k), 1):  # noqa: B007 - the number of steps
            named = dict(self.nets[k].named_parameters())
            gradients = torch.autograd.grad(self.loss(k, x, y), [*named.values()])
            for (name, p), g in zip(named.items(), gradients, strict=True):
                p.data -= self.lr * (g + self.c[name] - self.own[k][name])
        self.steps = steps
        self.change = getattr(self, "change", {}) | {k: {}}
        for name, p in self.nets[k].named_parameters():
            drift = (self.w[name] - p.detach()) / (steps * self.lr)
            self.change[k][name] = drift - self.c[name]
            self.own[k][name] = self.own[k][name] + self.change[k][name]

    def aggregate(self, chosen: list[int]) -> None:
        for name, x in self.w.items():
            moved = sum(self.nets[k].get_parameter(name).detach() - x for k in chosen)
            self.w[name] = x + moved / len(chosen)
            self.c[name] = self.c[name] + sum(self.change[k][name] for k in chosen) / len(self.nets)


class MOON(FedAvg):
    def set_up(self, w: nn.Module) -> None:
        self.before = [deepcopy(w) for _ in self.nets]

    def train(self, k: int) -> None:
        self.received = deepcopy(self.nets[k])
        super().train(k)
        self.before[k] = deepcopy(self.nets[k])

    def loss(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        z = self.nets[k].features(x)
        near = [
            cosine_similarity(z, net.features(x).detach()) / self.option("tau")
            for net in (self.received, self.before[k])
        ]
        contrast = cross_entropy(torch.stack(near, 1), torch.zeros_like(y))
        return cross_entropy(self.nets[k].head(z), y) + self.option("mu") * contrast


class Ditto(FedAvg):
    def set_up(self, w: nn.Module) -> None:
        self.own = [deepcopy(w) for _ in self.nets]

    def train(self, k: int) -> None:
        v = self.own[k].train()
        for x, y in self.batches(k):
            self.step(v, cross_entropy(v(x), y) + self.option("mu") / 2 * self.distance(v))
        super().train(k)

    def scores(self, k: int, x: Tensor) -> Tensor:
        return self.own[k].eval()(x)


class FedPer(FedAvg):
    def shares(self, net: nn.Module, name: str) -> bool:
        return name.startswith("extractor.")


class FedRep(FedPer):
    def train(self, k: int) -> None:
        net = self.nets[k]
        for part, epochs in (("head", int(self.option("pls"))), ("extractor", 1)):
            for name, p in net.named_parameters():
                p.requires_grad_(name.startswith(part))
            for _ in range(epochs):
                super().train(k)
        net.requires_grad_(True)


class FedBN(FedAvg):
    def shares(self, net: nn.Module, name: str) -> bool:
        return not isinstance(net.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d)


class LGFedAvg(FedAvg):
    def shares(self, net: nn.Module, name: str) -> bool:
        return name.startswith("head.")


class FD(Local):
    """Clients learn the mean scores of each class, which are collected before each step."""

    softened = True

    def set_up(self, w: nn.Module) -> None:
        self.means: dict[int, Tensor] = {}

    def round(self, chosen: list[int]) -> None:
        self.seen: list[dict[int, list[Tensor]]] = []
        super().round(chosen)

    def train(self, k: int) -> None:
        self.seen.append({})
        super().train(k)

    def loss(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        z = self.nets[k].features(x)
        scores = self.nets[k].head(z)
        rows = self.rows(z, scores)
        for row, label in zip(rows.detach(), y.tolist(), strict=True):
            self.seen[-1].setdefault(label, []).append(row)
        if not self.means:
            return cross_entropy(scores, y)
        target = [self.means.get(c, r) for c, r in zip(y.tolist(), rows.detach(), strict=True)]
        return cross_entropy(scores, y) + self.option("lam") * self.pull(rows, torch.stack(target))

    def rows(self, z: Tensor, scores: Tensor) -> Tensor:
        return scores

    def pull(self, rows: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(rows, softmax(target, 1))

    def aggregate(self, chosen: list[int]) -> None:
        own = [{c: torch.stack(r).mean(0) for c, r in seen.items()} for seen in self.seen]
        classes = {c for rows in own for c in rows}
        self.means = {c: torch.stack([r[c] for r in own if c in r]).mean(0) for c in classes}


class FDofMSE(FD):
    def pull(self, rows: Tensor, target: Tensor) -> Tensor:
        return mse_loss(rows, target)


class FedProto(FDofMSE):
    def rows(self, z: Tensor, scores: Tensor) -> Tensor:
        return z

    def scores(self, k: int, x: Tensor) -> Tensor:
        z = self.nets[k].eval().features(x)
        far = torch.full((len(x), CLASSES), -torch.inf)
        for c, row in self.means.items():
            far[:, c] = -((z - row) ** 2).mean(1)
        return far


class FedGen(FedAvg):
    def set_up(self, w: Any) -> None:
        width, inputs = w.head.in_features, int(self.option("nd")) + CLASSES
        hidden = nn.Sequential(nn.Linear(inputs, 512), nn.BatchNorm1d(512), nn.ReLU())
        self.G = nn.Sequential(hidden, nn.Linear(512, width))
        self.adam = torch.optim.Adam(self.G.parameters(), lr=0.005)

    def shares(self, net: nn.Module, name: str) -> bool:
        return name.startswith("head.") or self.options["lf"] != "True"

    def made(self, labels: Tensor, noise: Tensor) -> Tensor:
        return self.G(torch.cat([noise, one_hot(labels, CLASSES).to(noise)], 1))

    def train(self, k: int) -> None:
        self.drawn = self.draws(self.number, k, len([*self.batches(k)]), int(self.option("nd")))
        super().train(k)

    def loss(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        labels, noise = next(self.drawn)
        generated = self.nets[k].head(self.made(labels, noise).detach())
        return super().loss(k, x, y) + cross_entropy(generated, labels)

    def aggregate(self, chosen: list[int]) -> None:
        steps, shares = int(self.option("se")), self.shares_of(chosen)
        for labels, noise in self.draws(self.number, "server", steps, int(self.option("nd"))):
            z = self.made(labels, noise)
            loss = cross_entropy(sum(s * self.nets[k].head(z) for k, s in shares.items()), labels)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        super().aggregate(chosen)


METHODS: dict[str, type[FedAvg]] = {
    **{cls.__name__: cls for cls in (Local, FedAvg, FedProx, SCAFFOLD, MOON, Ditto, FedPer)},
    **{cls.__name__: cls for cls in (FedRep, FedBN, FedProto, FedGen)},
    **{"LG-FedAvg": LGFedAvg, "FD, before d832e76": FD, "FD, with MSE": FDofMSE},
}
"""The class of each algorithm, by the words of the page."""
