"""FedGen: a generator of features, trained by the server against the clients' heads.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021; sizes and learning rate as in FedTGP (Zhang et al., AAAI 2024, appendix A).

    G        [ε, one-hot ỹ] → FC → BN → ReLU → FC → K,  ε ~ U(0, 1) of 32 numbers
    client   ℓ(h_i(f_i(x)), y) + a·ℓ(h_i(G(ỹ)), ỹ) + b·KL(s(h_i(G(y))) ‖ s(h_i(f_i(x))))
    server   h ← Σ_i (n_i / n) · h_i
             min over G of  ℓ(Σ_i w_i^ỹ · h_i(G(ỹ)), ỹ) + d·exp(−mean ‖ε_j−ε_k‖·‖G_j−G_k‖)

    ỹ  drawn from the label counts of the round's clients      s  softmax
    w_i^c  = n_i^c / Σ_j n_j^c, client i's share of class c

FedTGP's FedGen has a = 1, b = d = 0; the original's code adds the terms of b and d and lets a and
b decay by 0.98 a round. Each step of the server draws one mini-batch of labels; Adam keeps its
moments from round to round. Nothing is sent down in round 0. Inference is by the head.

At η_G = 0.1 generated features are some hundred times longer than real ones; a client's head
survives them at its learning rate 0.01, not at 0.05: lower ``eta_g`` with a higher one.
"""

from __future__ import annotations

from typing import Literal

import protofl as pf
import torch
from protofl import functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from protofl_plugins.heads import needs_one_head


class Generator(nn.Module):
    """G: noise B×n and labels [B] to features B×K."""

    def __init__(self, noise: int, num_classes: int, hidden: int, feature_dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layers = nn.Sequential(
            nn.Linear(noise + num_classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, feature_dim),
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """G(ỹ)."""
        # one_hot looks at the labels' values on a CPU, and waits for them.
        wanted = labels.unsqueeze(1) == torch.arange(self.num_classes, device=labels.device)
        features: Tensor = self.layers(torch.cat([noise, wanted.to(noise.dtype)], 1))
        return features


class FedGen:
    """The server trains a generator of features against clients' heads (Zhu et al., 2021)."""

    class Config(pf.Config):
        """Options."""

        noise: int = pf.Field(32, ge=1, description="numbers of noise ε")
        hidden: int | None = pf.Field(
            None, ge=1, description="width of G's hidden layer. None: the feature width K"
        )
        eta_g: float = pf.Field(
            0.1, gt=0, description="η_G, learning rate of G by Adam; with --lr above 0.01 take less"
        )
        epochs: int = pf.Field(100, ge=0, description="steps of G a round; 0 leaves it untrained")
        ensemble: Literal["logits", "losses"] = pf.Field(
            "logits",
            description="G lowers the loss of the heads' weighted mean logits, or the weighted "
            "mean of the heads' losses",
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "weighted", description="weights n_i/n of the heads' average, or 1/M"
        )
        a: float = pf.Field(
            1.0, ge=0, description="a of the generated features; 0 regresses to LG-FedAvg"
        )
        b: float = pf.Field(
            0.0, ge=0, description="b of the latent term; 0 leaves it out, the original's code 1"
        )
        decay: float = pf.Field(
            1.0, gt=0, le=1, description="factor of a and b a round; the original's code 0.98"
        )
        diversity: float = pf.Field(
            0.0, ge=0, description="d of the diversity loss; 0 leaves it out, the original's code 1"
        )

    check_options = {"b": 1.0, "epochs": 5}  # all terms from the first round, few server epochs
    terms = {
        "ce": "cross-entropy",
        "gen": "a·ℓ(h(G(ỹ)), ỹ): the head on generated features",
        "latent": "b·KL(s(h(G(y))) ‖ s(h(f(x))))",
    }
    uploads = {
        "head/…": "the classifier after local training; its bias hints at the class shares",
        "counts": "n_i^c, the class distribution",
        "classes": "which classes the client has",
    }
    downloads = {
        "head/…": "the average of the clients' heads",
        "generator/…": "G, which maps a class to features that the clients' heads recognise",
        "counts": "the label counts of the last round's clients together",
        "classes": "the classes of these counts",
    }

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Heads of one shape."""
        return needs_one_head(run, "averages heads and trains a generator against them")

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> None:
        """G, and a head to run the clients' weights in."""
        server.modules["generator"] = _generator(server).to(server.device)
        server.modules["head"] = server.build(server.clients[0].architecture).head

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """A place for G, which the client does not train."""
        client.add_module("generator", _generator(client), train=False)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """h, G and the label counts."""
        return server.knowledge.select("head/*", "generator/*", "counts")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install h and G."""
        for part in ("head", "generator"):
            if client.received.under(part):
                pf.load_weights(client.module(part), client.received, part)

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.Given:
        """Labels ỹ from the counts, and noise for them and for the batch's own labels."""
        received = client.received
        if not received.under("generator") or "counts" not in received:
            return {}
        counts, _ = received.table("counts", client.num_classes)
        config = client.config
        steps, batch, generator = client.steps, client.batch_size, client.generator("draws")
        draws = {
            "labels": _labels(counts, steps * batch, generator).view(steps, batch),
            "noise": torch.rand(steps, batch, config.noise, generator=generator),
            "own": torch.rand(steps, client.largest_batch, config.noise, generator=generator),
        }
        # Tensors, as engines keep numbers as they are from round to round.
        fade = config.decay**client.round
        weights = {"a": torch.tensor(fade * config.a), "b": torch.tensor(fade * config.b)}
        given = {name: tensor.to(client.device) for name, tensor in (draws | weights).items()}
        return given | {name: pf.per_step(given[name]) for name in draws}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, given: pf.Given
    ) -> pf.Terms:
        """The client's loss."""
        ce = cross_entropy(output.logits, batch.y)
        if not given:
            return {"ce": ce}
        G = client.module("generator")
        generated = client.head(G(given["noise"], given["labels"]))
        teacher = client.head(G(given["own"][: len(batch.x)], batch.y))
        return {
            "ce": ce,
            "gen": given["a"] * cross_entropy(generated, given["labels"]),
            "latent": given["b"] * F.kl_divergence(output.logits, teacher),
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """h_i and n_i^c."""
        counts = client.class_counts
        payload = pf.pack_weights(client.module("head"), "head")
        return pf.Payload(payload | pf.class_rows(counts > 0, counts=counts))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The average of the heads, and the sum of the label counts."""
        counts, _ = pf.stack_rows(uploads, "counts", server.num_classes)
        weights = None if server.config.aggregate == "uniform" else counts.sum(1)
        head = pf.average_weights(list(uploads.values()), "head", weights)
        total = counts.sum(0)
        return pf.Payload(head | pf.class_rows(total > 0, counts=total))

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """G, against the ensemble of the heads."""
        config, G, head = server.config, server.modules["generator"], server.modules["head"]
        heads = {
            name: torch.stack([upload[f"head/{name}"] for upload in uploads.values()])
            for name, _ in head.named_parameters()
        }
        counts, _ = pf.stack_rows(uploads, "counts", server.num_classes)
        shares = counts / counts.sum(0).clamp(min=1)
        scores = vmap(functional_call, in_dims=(None, 0, None))
        weights = list(G.parameters())
        optimizer = torch.optim.Adam(weights, lr=config.eta_g)
        if "adam" in server.state:
            optimizer.load_state_dict(server.state["adam"])
        generator, size = server.generator("draws"), max(server.batch_size, 2)
        for _ in server.epochs(config.epochs):
            y = _labels(counts.sum(0), size, generator).to(server.device)
            noise = torch.rand(size, config.noise, generator=generator).to(server.device)
            z = G(noise, y)
            loss = ensemble_loss(scores(head, heads, (z,)), y, shares[:, y], config.ensemble)
            if config.diversity:
                loss = loss + config.diversity * diversity_loss(noise, z)
            for p, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                p.grad = gradient
            optimizer.step()
        server.state["adam"] = optimizer.state_dict()
        return pf.pack_weights(G, "generator")


def ensemble_loss(
    logits: Tensor, labels: Tensor, shares: Tensor, ensemble: Literal["logits", "losses"]
) -> Tensor:
    """Loss of heads' logits M×B×C on labels [B], weighted by the shares M×B."""
    if ensemble == "logits":
        return cross_entropy((shares.unsqueeze(2) * logits).sum(0), labels)
    rows = cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), reduction="none")
    return (shares * rows.view_as(shares)).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """exp(−mean over pairs of ‖ε_j−ε_k‖·‖G_j−G_k‖): other noise should make other features."""
    return (-(torch.cdist(noise, noise) * torch.cdist(features, features)).mean()).exp()


def _generator(side: pf.Client[FedGen.Config] | pf.Server[FedGen.Config]) -> Generator:
    config, K = side.config, side.feature_dim
    return Generator(config.noise, side.num_classes, config.hidden or K, K)


def _labels(counts: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """ỹ: labels drawn by the counts [C], on the CPU."""
    weights = counts.cpu().double()
    return torch.multinomial(weights, number, replacement=True, generator=generator)
