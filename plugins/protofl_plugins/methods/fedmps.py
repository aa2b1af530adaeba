"""FedMPS: prototypes of two levels in a contrastive loss, and soft labels that the server makes.

Yang et al., "FedMPS: Federated Learning in a Synergy of Multi-Level Prototype-Based Contrastive
Learning and Soft Label Generation", IEEE TNNLS 2025; equations and names after the published code.

    z, l      f_i(x)/‖f_i(x)‖, and the same of the outputs of f_i's first layers
    H_i^c     client i's high prototype of class c: mean z of its samples;  L_i^c: mean l
    H^c, L^c  plain means of the H_i^c, L_i^c over the clients of the round that have class c
    ℓ_con(v; V)   −(τ/0.07)·mean over a ∈ A of the mean over p ∈ A, p ≠ a, y_p = y_a, of
                  log( e^{a·p/τ} / Σ_{b ∈ A, b ≠ a} e^{a·b/τ} )
                  A: the batch's v and, of each, V^y, a constant
    local     min of  ℓ(h_i(z), y) + α·ℓ_con(z; H) + β·ℓ_con(l; L) + γ·KL(s(S^y/T) ‖ s(h_i(z)/T))
    server    w ← w − Adam of ∇ℓ(w(H_i^c), c), over all (i, c) of the round;  w has the heads' shape
    S^c       mean of w(H_i^c) over the round's clients, the soft label of class c

s is the softmax. In the first round there is nothing but ℓ. A class that no client of the round has
keeps H^c, L^c and S^c; a sample whose class has none adds nothing to KL, and is its own V^y.
First layers of different architectures are not compared: L is shared by clients of one architecture
and H and S by all. Inference: h_i(z).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.modules.batchnorm import _BatchNorm

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights
from protofl_plugins.shared.feature_statistics import train_head
from protofl_plugins.shared.prototypes import (
    MEANS,
    mean_prototypes,
    received_prototypes,
    sent_rows,
    with_absent,
)

BASE = 0.07
"""The temperature by which ℓ_con is divided."""


class FedMPS:
    """Prototypes of two levels and soft labels guide clients (Yang et al., 2025)."""

    class Config(pf.Config):
        """Options; defaults are those of the published code for CIFAR-10."""

        alpha: float = pf.Field(1.0, ge=0, description="α, weight of high")
        beta: float = pf.Field(0.2, ge=0, description="β, weight of low")
        gamma: float = pf.Field(5.0, ge=0, description="γ, weight of soft")
        tau: float = pf.Field(
            0.5, gt=0, description="τ of ℓ_con; small values look at the nearest rows alone"
        )
        temperature: float = pf.Field(
            5.0, gt=0, description="T of the soft labels; large values make them flat"
        )
        low: int = pf.Field(
            3,
            ge=1,
            description="first layers: so many children of the extractor, or all. 3: in cnn4 the "
            "first convolution with pooling and ReLU; 5: in a ResNet all up to layer1",
        )
        epochs: int = pf.Field(
            6, ge=0, description="passes of the server over the prototypes; 0 leaves w random"
        )
        server_batch_size: int = pf.Field(4, ge=1, description="prototypes in a mini-batch")
        server_lr: float = pf.Field(1e-3, gt=0, description="learning rate of Adam")

    asynchronous = True
    terms = {
        "ce": "cross-entropy of h_i(z)",
        "high": "α·ℓ_con(z; H)",
        "low": "β·ℓ_con(l; L)",
        "soft": "γ·KL(s(S^y/T) ‖ s(h_i(z)/T))",
    }
    uploads = {
        **MEANS,
        "low_prototypes": pf.Key(
            "[n, L]",
            "L_i^c of the client's classes: mean outputs of the first layers",
            by_class=True,
            varies=-1,
            reveals="about a mean image of each class, which protofl leak does not attack",
        ),
    }
    downloads = {
        "prototypes": "H^c of the classes that anybody has sent",
        "low_prototypes": pf.Key(
            "[n, L]",
            "L^c of the classes that a client of this architecture has sent",
            by_class=True,
            varies=-1,
        ),
        "class_logits": pf.Key("[n, C]", "S^c, the server's soft labels", by_class=True),
    }
    ablations = {
        "without low prototypes": "--drop local_loss.low",
        "without contrast": "--drop local_loss.low --drop local_loss.high",
        "without soft labels": "--drop local_loss.soft",
    }

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build w."""
        server.modules["head"] = weights.built_model(server).head
        return pf.Payload()

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """H and S, and L of the client's architecture."""
        state, payload = server.global_state, server.global_state.select("prototypes")
        named = {"class_logits": "class_logits", "low_prototypes": low_key(server, client_id)}
        for name, key in named.items():
            if key in state:
                payload |= {name: state[key], f"{name}.classes": state[f"{key}.classes"]}
        return payload

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """H, L and S as tables with their known classes."""
        tables = {}
        if "prototypes" in client.received:
            tables["high"] = received_prototypes(client)
        for name, key in (("low", "low_prototypes"), ("soft", "class_logits")):
            if key in client.received:
                tables[name] = client.received.table(key, client.num_classes)
        return tables

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Cross-entropy, two contrasts and the divergence from soft labels."""
        config, y = client.config, batch.y
        z = normalize(output.features)
        scores = client.head(z)
        terms = {"ce": cross_entropy(scores, y)}
        if "high" in constants:
            H_y = rows_of(y, z, *constants["high"])
            terms["high"] = config.alpha * contrast(z, H_y, y, config.tau)
        if "low" in constants:
            low = low_features(client.module("extractor"), config.low, batch.x)
            L_y = rows_of(y, low, *constants["low"])
            terms["low"] = config.beta * contrast(low, L_y, y, config.tau)
        if "soft" in constants:
            T, S_y = config.temperature, rows_of(y, scores, *constants["soft"])
            terms["soft"] = config.gamma / T**2 * F.kl_divergence(scores, S_y, T)
        return terms

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """H_i^c and L_i^c, of evaluation passes after training."""
        extractor, first, C = client.module("extractor"), client.config.low, client.num_classes
        features, y = client.train_features()
        low, _ = client.train_features(lambda x: low_features(extractor, first, x))
        high, counts = F.class_means(normalize(features), y, C)
        return pf.class_rows(
            counts > 0, prototypes=high, low_prototypes=F.class_means(low, y, C)[0]
        )

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """H, and L of each architecture."""
        H, known = mean_prototypes(server, uploads, "uniform", server.feature_dim)
        H, known = with_absent(server, H, known, "keep")
        changed = pf.class_rows(known, prototypes=H)
        for key in dict.fromkeys(low_key(server, client) for client in uploads):
            own = {i: upload for i, upload in uploads.items() if low_key(server, i) == key}
            rows, present = pf.stack_rows(own, "low_prototypes", server.num_classes)
            changed |= kept(server, key, *F.aggregate_prototypes(rows, present, "uniform"))
        return changed

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Train w on the H_i^c; S."""
        config, w = server.config, server.modules["head"].train()
        P, labels = sent_rows(uploads, "prototypes", server.feature_dim)

        def loss(rows: Tensor) -> Tensor:
            return cross_entropy(w(P[rows]), labels[rows])

        train_head(
            server,
            loss,
            [*w.parameters()],
            len(P),
            config.epochs,
            config.server_batch_size,
            lr=config.server_lr,
            weight_decay=0.0,
        )
        with torch.no_grad():
            S, counts = F.class_means(w.eval()(P), labels, server.num_classes)
        return kept(server, "class_logits", S, counts > 0)

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return h_i(z)."""
        return client.head(normalize(client.features(x)))


def low_key(server: pf.Server[FedMPS.Config], client: int) -> str:
    """Return the key of a client's L in the server's state."""
    return f"low_prototypes@{server.clients[client].architecture}"


def kept(server: pf.Server[FedMPS.Config], key: str, rows: Tensor, known: Tensor) -> pf.Payload:
    """Return the rows of the known classes, C×…, and the last ones of classes that were absent."""
    rows, known = with_absent(server, rows, known, "keep", key)
    return pf.Payload({key: rows[known], f"{key}.classes": known.nonzero().squeeze(1)})


def rows_of(y: Tensor, own: Tensor, table: Tensor, known: Tensor) -> Tensor:
    """Return the row of each label, B×…; a constant of ``own`` where its class has none."""
    return table[y].to(own.dtype).where(known[y].unsqueeze(1), own.detach())


def contrast(v: Tensor, V: Tensor, y: Tensor, tau: float) -> Tensor:
    """Return ℓ_con, a scalar.

    Args:
        v: Unit features of a batch, B×K.
        V: V^y, the prototype of each, B×K.
        y: Their labels, [B].
        tau: τ.
    """
    A, labels = torch.cat([v, V]), torch.cat([y, y])
    itself = torch.eye(len(A), dtype=torch.bool, device=A.device)
    s = A @ A.T / tau
    log_p = s - s.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (labels.unsqueeze(1) == labels) & ~itself  # one at least: the own prototype
    means = (log_p * positive).sum(1) / positive.sum(1)
    return -tau / BASE * means.mean()


class Reached(Exception):
    """The first layers have computed their outputs."""


def low_features(extractor: nn.Module, first: int, x: Tensor) -> Tensor:
    """Return l, B×L: unit outputs of an extractor's first layers, computed apart.

    Args:
        extractor: f_i.
        first: Children that count as first layers. Of an extractor that does not call the last of
            them, such as a list, all layers count.
        x: Samples, B×….
    """
    last = [extractor, *extractor.children()][: first + 1][-1]

    def leave(module: nn.Module, inputs: object, outputs: Tensor) -> None:
        raise Reached(outputs)

    hook = last.register_forward_hook(leave)
    try:
        with statistics_kept(extractor):
            outputs: Tensor = extractor(x)
    except Reached as reached:
        outputs = reached.args[0]
    finally:
        hook.remove()
    return normalize(outputs.flatten(1))


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Have BatchNorm leave its statistics as they are: the samples have passed it already."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
