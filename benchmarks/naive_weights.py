"""The naive loop's FedAvg, FML and FedKD, which send weights.

The equations are those of protofl's method pages with ``variant=paper``. No arithmetic of protofl
is used, so that equal results verify both.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from naive_parts import Client, Server, Workplace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss, softmax

from protofl.system.randomness import global_stream

# --- FedAvg -------------------------------------------------------------------------------------


def set_weights(model: nn.Module, other: nn.Module) -> None:
    """Copy all weights and buffers."""
    with torch.no_grad():
        for new, old in zip(other.parameters(), model.parameters(), strict=True):
            old.data = new.data.clone()
        for new, old in zip(other.buffers(), model.buffers(), strict=True):
            old.data = new.data.clone()


def weighted_mean(models: list[nn.Module], shares: list[float]) -> nn.Module:
    """Return the weighted mean of models."""
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
    """A client that starts from the shared model."""

    def receive(self, model: nn.Module) -> None:
        """Copy the shared model's weights."""
        set_weights(model, self.place.load("server", "model"))

    receive_for_test = receive


class FedAvgServer(Server):
    """Averages the clients' models."""

    def set_up(self) -> None:
        """Save the first shared model."""
        model = self.place.build(self.place.plan.info.architecture_of(0).name)
        self.place.save(model, "server", "model")

    def step(self) -> None:
        """Average the models, weighted by samples."""
        counts = [len(client.train_data) for client in self.clients]
        models = [self.place.load(client.name, "model") for client in self.clients]
        mean = weighted_mean(models, [count / sum(counts) for count in counts])
        self.place.save(mean, "server", "model")

    def global_state(self) -> dict[str, Tensor]:
        """Return the shared model."""
        model = self.place.load("server", "model")
        return {f"model/{name}": p.detach() for name, p in model.named_parameters()}


# --- FML and FedKD ------------------------------------------------------------------------------


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) of the softmax outputs, averaged over the batch."""
    return kl_div(
        log_softmax(student, dim=1), softmax(teacher.detach(), dim=1), reduction="batchmean"
    )


class FMLClient(Client):
    """A client that learns mutually with a small shared model."""

    def receive(self, model: nn.Module) -> None:
        """Load the shared model."""
        self.auxiliary = self.place.load("server", "auxiliary")

    def train(self, model: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
        """Train both models, each with its own optimiser."""
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
        """Save this client's copy of the shared model."""
        self.place.save(self.auxiliary, self.name, "auxiliary")


class FMLServer(Server):
    """Averages the small models."""

    def set_up(self) -> None:
        """Save the first shared model."""
        self.place.save(self.place.build(self.place.config.auxiliary), "server", "auxiliary")

    def step(self) -> None:
        """Compute the unweighted mean."""
        models = [self.place.load(client.name, "auxiliary") for client in self.clients]
        mean = weighted_mean(models, [1 / len(models)] * len(models))
        self.place.save(mean, "server", "auxiliary")

    def global_state(self) -> dict[str, Tensor]:
        """Return the shared model."""
        model = self.place.load("server", "auxiliary")
        return {f"auxiliary/{name}": p.detach() for name, p in model.named_parameters()}


Compressed = dict[str, Any]


def compress(updates: dict[str, Tensor], energy: float) -> Compressed:
    """Return each matrix as its leading singular triplets; the rank is found by counting up."""
    result: Compressed = {}
    for name, update in updates.items():
        array = update.cpu().numpy()
        if array.ndim < 2:
            result[name] = array
            continue
        u, sigma, v = np.linalg.svd(array.reshape(len(array), -1), full_matrices=False)
        squares = np.square(sigma.astype(np.float64))
        rank = 1 if squares.sum() == 0 else len(sigma)
        for count in range(1, rank + 1):
            if np.sum(squares[:count]) > energy * np.sum(squares):
                rank = count
                break
        result[name] = [u[:, :rank], sigma[:rank], v[:rank, :]]
    return result


def recover(compressed: Compressed, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the decompressed updates."""
    result = {}
    for name, tensor in like.items():
        value = compressed[name]
        if isinstance(value, list):
            u, sigma, v = value
            value = np.matmul(u * sigma[..., None, :], v).reshape(tensor.shape)
        result[name] = torch.tensor(value, device=tensor.device)
    return result


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def energy_of(place: Workplace) -> float:
    """Return the threshold T of the round."""
    start, end = place.config.T_start, place.config.T_end
    share = (1 + place.round) / place.plan.settings.rounds
    return float(min(1.0, max(0.0, start + (end - start) * share)))


class FedKDClient(Client):
    """A client that distils mutually with a small shared model and sends compressed updates."""

    def set_up(self) -> None:
        """Create the shared model and W_h."""
        place = self.place
        with global_stream(place.seed, "setup", self.id):
            K = place.feature_dim
            place.save(nn.Linear(K, K, bias=False).to(place.device), self.name, "W_h")
        place.save(place.build(place.config.auxiliary), self.name, "auxiliary")

    def receive(self, model: nn.Module) -> None:
        """Apply the server's update to the shared model."""
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
        """Train both models and W_h, each with its own optimiser."""
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
        """Save the compressed update."""
        before = self.place.load(self.name, "broadcast")
        now = parameters_of(self.auxiliary)
        update = {name: now[name] - before[name] for name in now}
        self.place.save(compress(update, energy_of(self.place)), self.name, "update")


class FedKDServer(Server):
    """A server that averages the updates and compresses the mean."""

    def set_up(self) -> None:
        """Save the shared model."""
        model = self.place.build(self.place.config.auxiliary)
        self.place.save(parameters_of(model), "server", "auxiliary")

    def step(self) -> None:
        """Recover, average, compress and apply the updates."""
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

    def global_state(self) -> dict[str, Tensor]:
        """Return the shared model."""
        held = cast(dict[str, Tensor], self.place.load("server", "auxiliary"))
        return {f"auxiliary/{name}": tensor for name, tensor in held.items()}
