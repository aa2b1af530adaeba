"""FedL2G: the server learns a guiding vector per class, by the gradient of clients' quiz losses.

Zhang et al., "Adaptive Guidance for Local Training in Heterogeneous Federated Learning", 2024
(arXiv 2410.06490).

    v^c       the guiding vector of class c: C numbers for logits, or K for features
    L_i       E ℓ(h_i(f_i(x)), y) + MSE(g_i(x), v^y), g_i the logits or the features
    θ_i'      θ_i − η·∇L_i of a study batch: one step that is not kept
    Q_i       E ℓ(h_i(f_i(x)), y) at θ_i', on a quiz batch that the client never trains on
    v^c       ← v^c − η_S·mean of ∂Q_i/∂v^c over the clients whose study batch has class c

In the first rounds only v learns (``warmup``). Inference: the client's own head.

∂Q_i/∂v^c is a second derivative. As v enters L_i through a square alone, it is a product of a
Jacobian and a vector, which one forward-mode pass gives:

    ∂Q_i/∂v^c = 2η/(B·W) · Σ_{b: y_b = c} J_b·∇Q_i(θ_i'),   J_b = ∂g_i(x_b)/∂θ at θ_i, W = |v^c|

θ_i' is a step of training, so both batches run in training mode, as in the published code.
BatchNorm takes a batch's own statistics and does not write the running ones. Dropout is on, with
one mask for both passes over the study batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.backends import cudnn, mkldnn
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy, mse_loss

import protofl as pf
from protofl_plugins.shared.prototypes import of_all_classes

Weights: TypeAlias = dict[str, Tensor]
"""Parameters by their names."""

Labelled: TypeAlias = tuple[Tensor, Tensor]
"""Samples B×… and their labels [B]."""

ETA = {"logits": 0.1, "features": 100.0}
"""η_S of the published code."""

BOUND = 100.0
"""Largest norm of v's gradient, and of a client's, in the published code."""


class FedL2G:
    """The server learns vectors that guide clients' outputs per class (Zhang et al., 2024)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        official = {"drop_last": True, "same_init": True, "shuffle": False, "clip": BOUND}

        guide: Literal["logits", "features"] = pf.Field(
            "logits", description="what v guides: FedL2G-l or FedL2G-f"
        )
        eta_s: float | None = pf.Field(
            None, gt=0, description="η_S, the server's learning rate. None: 0.1 or 100 (features)"
        )
        warmup: int | None = pf.Field(
            None, ge=0, description="first rounds, without training. None: 50, at most half of all"
        )
        weight: float = pf.Field(1.0, ge=0, description="weight of guide; the paper has none")

    asynchronous = True
    terms = {"ce": "cross-entropy", "guide": "MSE(g(x), v^y)"}
    uploads = {
        "guide_gradients": pf.Key(
            "[n, K] or [n, C]", "∂Q_i/∂v^c of the classes of one study batch", by_class=True
        ),
        "classes": "the classes of that batch",
    }
    downloads = {
        "guides": pf.Key("[C, K] or [C, C]", "v of all classes", by_class=True),
        "classes": "all classes",
        "warmed_up": pf.Key("[] bool", "that clients train in this round"),
    }
    ablations = {"without guiding": "--set weight=0"}

    @pf.hookimpl
    def phases(self, config: Config) -> list[pf.Phase]:
        """Training on all samples but the quiz batch, once v is warmed up."""
        return [pf.Phase(needs="warmed_up", rows="studied")]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Draw v from N(0, 1)."""
        C = server.num_classes
        width = C if server.config.guide == "logits" else server.feature_dim
        v = torch.randn(C, width, generator=server.generator("guides"))
        return of_all_classes(v.to(server.device), "guides")

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Choose the quiz batch, at most half of the samples; the others are studied."""
        order = torch.randperm(client.num_samples, generator=client.generator("quiz"))
        quiz = min(client.batch_size, client.num_samples // 2)
        client.state["quiz"], client.state["studied"] = order[:quiz], order[quiz:]

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send v, and whether the warm-up is over."""
        payload, warmup = server.global_state.select("guides"), server.config.warmup
        if warmup is None:
            warmup = min(50, server.rounds // 2)
        if server.round >= (min(1, warmup) if server.dry else warmup):
            payload["warmed_up"] = torch.tensor(True)
        return payload

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Return v as a table."""
        return {"v": client.received.table("guides", client.num_classes)[0]}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_i."""
        guided = output.logits if client.config.guide == "logits" else output.features
        guide = mse_loss(guided, constants["v"][batch.y].to(guided.dtype))
        return {
            "ce": cross_entropy(output.logits, batch.y),
            "guide": client.config.weight * guide,
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """∂Q_i/∂v^c of the classes of a study batch."""
        studied, config = client.state["studied"], client.config
        drawn = torch.randperm(len(studied), generator=client.generator("study"))
        study = labelled(client, studied[drawn[: client.batch_size]])
        quiz = labelled(client, client.state["quiz"]) if len(client.state["quiz"]) else study
        v, _ = client.received.table("guides", client.num_classes)
        net = GuidedModel(cast(pf.models.SplitModel, client.module("model")), config.guide)
        net.train(_trains_norms(client, study, quiz))
        seed = client.generator("dropout").initial_seed()
        gradient = guide_gradient(net, study, quiz, v, client.lr, config.weight, seed)
        net.eval()
        counts = torch.bincount(study[1], minlength=client.num_classes)
        return pf.class_rows(counts > 0, guide_gradients=gradient)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """A step on v along the mean gradient, whose norm is bounded."""
        v, _ = server.global_state.table("guides", server.num_classes)
        rows, known = pf.stack_rows(uploads, "guide_gradients", server.num_classes, v.shape[1])
        mean = rows.sum(0) / known.sum(0).clamp(min=1).unsqueeze(1)
        mean = mean * (BOUND / (mean.norm() + 1e-6)).clamp(max=1)
        eta_s = server.config.eta_s or ETA[server.config.guide]
        return of_all_classes(v - eta_s * mean, "guides")


def labelled(client: pf.Client, rows: Tensor) -> Labelled:
    """Return the client's training samples at some rows."""
    samples = client.train.at(rows)
    return samples.inputs(), samples.y


class GuidedModel(nn.Module):
    """A model that returns what v guides, B×W, beside the logits, B×C."""

    def __init__(self, model: pf.models.SplitModel, guide: str) -> None:
        super().__init__()
        self.model, self.guide = model, guide

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return g(x) and the logits of samples B×…."""
        features = self.model.features(x)
        logits = self.model.head(features)
        return (logits if self.guide == "logits" else features), logits


def guide_gradient(
    net: GuidedModel,
    study: Labelled,
    quiz: Labelled,
    v: Tensor,
    eta: float,
    weight: float,
    seed: int = 0,
) -> Tensor:
    """Return ∂Q/∂v, of v's shape.

    Args:
        net: The client's model at θ, in the mode that counts. Its weights and buffers stay as they
            are.
        study: The study batch of B samples.
        quiz: The quiz batch.
        v: Guiding vectors, C×W.
        eta: η, the learning rate of the step to θ'.
        weight: The weight of the guiding term in L.
        seed: The seed of dropout. Torch's global generators are restored.
    """
    x, y = study
    theta = {n: p.detach() for n, p in net.named_parameters() if p.requires_grad}

    def outputs(theta: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        # In training mode BatchNorm writes its buffers. The copies are made here, since forward
        # mode refuses to write to tensors from outside of the function.
        copies = {n: b.clone() for n, b in net.named_buffers()}
        return cast(tuple[Tensor, Tensor], functional_call(net, {**theta, **copies}, (x,)))

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        with torch.enable_grad():
            at = {n: p.detach().requires_grad_() for n, p in theta.items()}
            g, logits = outputs(at, x)
            guide = mse_loss(g, v[y].to(g.dtype))
            slope = _gradient(cross_entropy(logits, y) + weight * guide, at)
            at = {n: p.sub(slope[n], alpha=eta).requires_grad_() for n, p in theta.items()}  # θ'
            Q = cross_entropy(outputs(at, quiz[0])[1], quiz[1])
            direction = _gradient(Q, at)
        torch.manual_seed(seed)  # the study batch again, with the same dropout
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, at its first forward mode
            with _plain_recurrence(net):
                moved = jvp(lambda theta: outputs(theta, x)[0], (theta,), (direction,))[1]  # J_b·∇Q
    rows = (2 * eta * weight / moved.numel()) * moved
    return torch.zeros_like(v).index_add_(0, y, rows.to(v.dtype))


@contextmanager
def _plain_recurrence(net: nn.Module) -> Iterator[None]:
    """Keep recurrent layers off the fused kernels of oneDNN and cuDNN, without forward mode."""
    if not any(isinstance(layer, nn.RNNBase) for layer in net.modules()):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration")  # torch's own, without an Intel GPU
        with mkldnn.flags(enabled=False), cudnn.flags(enabled=False):
            yield


def _trains_norms(client: pf.Client, *batches: Labelled) -> bool:
    """Return True if all batches are large enough for BatchNorm in training mode.

    Local training, too, never normalises fewer samples.
    """
    return all(len(y) >= client.least_batch for _, y in batches)


def _gradient(loss: Tensor, at: Weights) -> Weights:
    gradients = torch.autograd.grad(loss, [*at.values()], materialize_grads=True)
    return dict(zip(at, gradients, strict=True))
