"""FedGen: a generator of features, trained by the server against the clients' heads.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021; sizes and learning rate as in FedTGP (Zhang et al., AAAI 2024, appendix A).

    G        [ε, one-hot ỹ] → FC → BN → ReLU → FC → K,  ε ~ U(0, 1) of 32 numbers
    client   ℓ(h_i(f_i(x)), y) + a·ℓ(h_i(G(ỹ)), ỹ) + b·KL(s(h_i(G(y))) ‖ s(h_i(f_i(x))))
    server   h ← Σ_i (n_i / n) · h_i
             min over G of  ℓ(Σ_i w_i^ỹ · h_i(G(ỹ)), ỹ) + d·exp(−mean MSE(ε_j, ε_k)·MAE(G_j, G_k))

    ỹ  drawn from the label counts of the round's clients, evenly in the first  s  softmax
    w_i^c  = n_i^c / Σ_j n_j^c, client i's share of class c                        (``shares``)

FedTGP's FedGen has a = 1, b = d = 0; the original's code adds the terms of b and d, with a = b = 10
(for EMNIST b = 1) that decay by 0.98 a round. Each step of the server draws one mini-batch of
labels. h and G are sent from the first round, as the algorithm has it. Inference is by the head.

The code of FedTGP's comparison (since August 2023) trains G each round on a copy that it doesn't
keep, so clients only ever see the untrained one: ``epochs=0`` of ``variant=official``.

At η_G = 0.1 generated features are some hundred times longer than real ones, and grow. With a
learning rate of 0.05 clients' heads diverge, with 0.01 one did after some tens of rounds
(docs/reference/methods/fedgen.md): lower ``eta_g``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import batch_norm, cross_entropy

import protofl as pf
from protofl import functional as F
from protofl_plugins.engines.server_steps import minimise
from protofl_plugins.shared import weights

Norm = Literal["running", "batch"]
"""The statistics of BatchNorm."""


class FedGen:
    """The server trains a generator of features against clients' heads (Zhu et al., 2021)."""

    class Config(pf.VariantConfig):
        """Options."""

        official = {"drop_last": True, "same_init": True}
        deviations = {
            "epochs": pf.Deviation(
                "the server's steps", 100, 0, "the code trains a copy of G and never keeps it"
            ),
            "shares": pf.Deviation(
                "the server's loss", "class", "client", "the code weights heads by n_i/n alone"
            ),
            "adam": pf.Deviation(
                "the server's steps", "keep", "fresh", "the code makes a new Adam each round"
            ),
            "norm": pf.Deviation(
                "the client's loss", "running", "batch", "clients leave G in training mode"
            ),
        }
        noise: int = pf.Field(32, ge=1, description="numbers of noise ε")
        hidden: int | None = pf.Field(
            None, ge=1, description="width of G's hidden layer. None: the feature width K"
        )
        eta_g: float = pf.Field(
            0.1, gt=0, description="η_G, learning rate of G by Adam; with --lr above 0.01 take less"
        )
        epochs: int = pf.Field(None, ge=0, description="steps of G a round; 0 leaves it untrained")
        ensemble: Literal["logits", "losses"] = pf.Field(
            "logits",
            description="G lowers the loss of the heads' weighted mean logits, or the weighted "
            "mean of the heads' losses",
        )
        shares: Literal["class", "client", "uniform"] = pf.Field(
            None,
            description="w_i of that mean: client i's share of the class, n_i/n, or 1/M",
        )
        adam: Literal["keep", "fresh"] = pf.Field(
            None, description="keep Adam's moments from round to round, or begin anew"
        )
        norm: Norm = pf.Field(
            None,
            description="BatchNorm of G in the term gen: its running statistics, or the batch's",
        )
        send_initial: bool = pf.Field(
            True, description="send G in the first round; false begins to generate in the second"
        )
        a: float = pf.Field(
            1.0, ge=0, description="a of the generated features; 0 regresses to LG-FedAvg"
        )
        b: float = pf.Field(
            0.0, ge=0, description="b of the latent term; 0 leaves it out, the original's code 10"
        )
        decay: float = pf.Field(
            1.0, gt=0, le=1, description="factor of a and b a round; the original's code 0.98"
        )
        diversity: float = pf.Field(
            0.0, ge=0, description="d of the diversity loss; 0 leaves it out, the original's code 1"
        )

    check_options = {"b": 1.0, "epochs": 5}  # all terms from the first round, few server epochs
    asynchronous = "the generator learns labels as often as the clients of one step have them"
    terms = {
        "ce": "cross-entropy",
        "gen": "a·ℓ(h(G(ỹ)), ỹ): the head on generated features",
        "latent": "b·KL(s(h(G(y))) ‖ s(h(f(x))))",
    }
    uploads = {
        "head/*": "the classifier after local training; its bias hints at the class shares",
        "counts": "n_i^c, the class distribution",
        "classes": "which classes the client has",
    }
    downloads = {
        "head/*": "h, one head for all; the average of the clients' heads from the second round on",
        "generator/*": pf.Key(
            "as the parameter",
            "G, which maps a class to features that the clients' heads recognise",
        ),
        "counts": "the label counts of the last round's clients together; at first one each",
        "classes": "the classes of these counts",
    }

    requires = weights.HEAD.requires

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """The head h, G and even label counts; and a head to run the clients' weights in."""
        G = server.modules["generator"] = _generator(server).to(server.device)
        server.modules["head"] = weights.built_model(server).head
        payload = pf.models.pack_weights(server.modules["head"], "head")
        if server.config.send_initial:
            even = torch.ones(server.num_classes, dtype=torch.long, device=server.device)
            payload |= pf.models.pack_weights(G, "generator") | pf.class_rows(even > 0, counts=even)
        return pf.Payload(payload)

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """A place for G, which the client does not train."""
        client.add_module("generator", _generator(client), train=False)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """h, G and the label counts."""
        return server.global_state.select("head/*", "generator/*", "counts")

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install h and G."""
        weights.HEAD.receive(client)
        weights.install(client, "generator")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Labels ỹ from the counts, and noise for them and for the batch's own labels."""
        received = client.received
        if not received.under("generator") or "counts" not in received:
            return {}
        counts, _ = received.table("counts", client.num_classes)
        config, steps, generator = client.config, client.steps, client.generator("draws")
        # A batch of one has no statistics.
        batch = max(client.batch_size, 2 if config.norm == "batch" else 1)
        draws = {
            "labels": _labels(counts, steps * batch, generator).view(steps, batch),
            "noise": torch.rand(steps, batch, config.noise, generator=generator),
            "own": torch.rand(steps, client.largest_batch, config.noise, generator=generator),
        }
        # Tensors, as engines keep numbers as they are from round to round.
        fade = config.decay**client.round
        factors = {"a": torch.tensor(fade * config.a), "b": torch.tensor(fade * config.b)}
        constants = {name: tensor.to(client.device) for name, tensor in (draws | factors).items()}
        return constants | {name: pf.per_step(constants[name]) for name in draws}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """The client's loss."""
        ce = cross_entropy(output.logits, batch.y)
        if not constants:
            return {"ce": ce}
        G = client.module("generator")
        generated = client.head(G(constants["noise"], constants["labels"], client.config.norm))
        teacher = client.head(G(constants["own"][: len(batch.x)], batch.y))
        return {
            "ce": ce,
            "gen": constants["a"] * cross_entropy(generated, constants["labels"]),
            "latent": constants["b"] * F.kl_divergence(output.logits, teacher),
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """h_i and n_i^c."""
        counts = client.class_counts
        payload = pf.models.pack_weights(client.module("head"), "head")
        return pf.Payload(payload | pf.class_rows(counts > 0, counts=counts))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """The average of the heads, and the sum of the label counts."""
        counts, _ = pf.stack_rows(uploads, "counts", server.num_classes)
        head = pf.models.average_weights(list(uploads.values()), "head", counts.sum(1))
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
        shares = _shares(counts, config.shares)
        scores = vmap(functional_call, in_dims=(None, 0, None))
        theta = [p for p in G.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(theta, lr=config.eta_g)
        if "adam" in server.state and config.adam == "keep":
            optimizer.load_state_dict(server.state["adam"])

        def draws() -> Iterator[tuple[Tensor, Tensor]]:
            generator, size = server.generator("draws"), max(server.batch_size, 2)
            total = counts.sum(0).cpu()
            for _ in server.epochs(config.epochs):
                y = _labels(total, size, generator)
                yield y, torch.rand(size, config.noise, generator=generator)

        def loss(y: Tensor, noise: Tensor, heads: dict[str, Tensor], shares: Tensor) -> Tensor:
            z = G(noise, y)
            ensemble = ensemble_loss(scores(head, heads, (z,)), y, shares[:, y], config.ensemble)
            if not config.diversity:
                return ensemble
            return ensemble + config.diversity * diversity_loss(noise, z)

        minimise(server, loss, optimizer, draws(), given=(heads, shares), changes=[G])
        server.state["adam"] = optimizer.state_dict()
        return pf.models.pack_weights(G, "generator")


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
        # BatchNorm subtracts this bias, so its gradient is a rounding error, which Adam enlarges.
        cast(nn.Linear, self.layers[0]).bias.requires_grad_(False)

    def forward(self, noise: Tensor, labels: Tensor, norm: Norm = "running") -> Tensor:
        """G(ỹ); with ``norm="batch"`` in BatchNorm's training mode, keeping no statistics."""
        # one_hot looks at the labels' values on a CPU, and waits for them.
        label_columns = labels.unsqueeze(1) == torch.arange(self.num_classes, device=labels.device)
        x = torch.cat([noise, label_columns.to(noise.dtype)], 1)
        if norm == "running":
            return cast(Tensor, self.layers(x))
        first, normed, relu, last = self.layers
        norm_layer = cast(nn.BatchNorm1d, normed)
        hidden = batch_norm(first(x), None, None, norm_layer.weight, norm_layer.bias, training=True)
        return cast(Tensor, last(relu(hidden)))


def _generator(side: pf.Client[FedGen.Config] | pf.Server[FedGen.Config]) -> Generator:
    config, K = side.config, side.feature_dim
    return Generator(config.noise, side.num_classes, config.hidden or K, K)


def _shares(counts: Tensor, kind: Literal["class", "client", "uniform"]) -> Tensor:
    """w_i^c of all clients, M×C, from their label counts."""
    if kind == "class":
        return counts / counts.sum(0).clamp(min=1)
    sizes = counts.sum(1, keepdim=True) if kind == "client" else torch.ones_like(counts[:, :1])
    return (sizes / sizes.sum()).expand_as(counts)


def _labels(counts: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """ỹ: labels drawn by the counts [C], on the CPU."""
    weights = counts.cpu().double()
    return torch.multinomial(weights, number, replacement=True, generator=generator)


def ensemble_loss(
    logits: Tensor, labels: Tensor, shares: Tensor, of: Literal["logits", "losses"] = "logits"
) -> Tensor:
    """Return the loss of the clients' averaged heads on generated features, a scalar.

    ``logits``: ℓ(Σ_i w_i·h_i(z), y), the loss of the weighted mean logits. ``losses``:
    Σ_i w_i·ℓ(h_i(z), y), the weighted mean of the heads' losses, as in the original's code.

    Args:
        logits: h_i(z) of M heads on N generated features, M×N×C.
        labels: The classes asked for, [N].
        shares: w_i of each label, M×N.
        of: One of the two above.
    """
    M, N, C = logits.shape
    if of == "logits":
        return cross_entropy((shares.unsqueeze(2) * logits).sum(0), labels)
    losses = cross_entropy(logits.reshape(M * N, C), labels.repeat(M), reduction="none")
    return (shares * losses.view(M, N)).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return exp(−mean over pairs of MSE(ε_j, ε_k)·MAE(z_j, z_k)), a scalar in (0, 1].

    Both distances are means over the entries. With norms in their place the exponent grows with
    the widths and the loss is 0 from the start, and so is its gradient. The mean is over all N²
    ordered pairs, a row with itself included.

    Args:
        noise: ε, N×n.
        features: z, what was generated from it, N×K.
    """
    e, z = noise, features
    apart = (e.unsqueeze(1) - e).square().mean(2) * (z.unsqueeze(1) - z).abs().mean(2)
    return (-apart.mean()).exp()
