"""DepthFL: clients train the first stages of one net, whose exits teach one another.

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023; equations
after the author's code, the baseline ``depthfl`` of github.com/adap/flower.

    W_k    the first d_k stages of W, and their exits 1…d_k
    L_k    Σ_i ℓ(z_i, y) + w/(d_k − 1)·Σ_i Σ_{j≠i} KL(p_j ‖ p_i) − ⟨θ, g_k⟩ + α/2·‖θ − W_k‖²
    g_k    g_k − α·(θ_k − W_k), after training; 0 at first
    h      h − α·(|S|/M)·(mean_{k∈S} θ_k − W), of each tensor
    W      mean_{k∈S} θ_k − h/α, of each tensor; W stays if S is empty

z_i and p_i are the scores and probabilities of exit i; p_j is a constant where it teaches. S are
the clients of the round whose net has the tensor, of the M that can take part. g_k, h and the last
two terms of L_k are FedDyn (Acar et al., ICLR 2021), with which DepthFL is trained; with α = 0 they
are left out, and W is the mean. BatchNorm statistics are averaged without h. w = 1; the code raises
it with the rounds, w = exp(−5·(1 − t/300)²).
Inference: the mean of the scores of the client's exits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

import protofl as pf
from protofl_plugins.models.depths import HasExits
from protofl_plugins.shared import weights


class DepthFL:
    """Clients train the first stages of one net with exits (Kim et al., 2023)."""

    class Config(pf.VariantConfig, weights.ModelSharingConfig):
        """Options, with the paper's symbols; shared: buffers."""

        deviations = {
            "rampup": pf.Deviation(
                "self-distillation", 0, 300, "the code raises the weight of distillation"
            )
        }
        w: float = pf.Field(
            1.0, ge=0, description="weight of the self-distillation; 0 turns it off"
        )
        rampup: int = pf.Field(
            None,
            ge=0,
            description="rounds R in which the weight rises, w·exp(−5·(1 − t/R)²); 0: w at once",
        )
        alpha: float = pf.Field(
            0.1, ge=0, description="α of FedDyn; 0: no FedDyn, the server takes the mean"
        )
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1/|S| of the clients in a tensor's mean, or n_k"
        )

    asynchronous = "versions"
    terms = {
        "ce": "cross-entropy of all exits, summed",
        "kd": "w/(d_k − 1)·Σ_i Σ_{j≠i} KL(p_j ‖ p_i); 0 of one exit",
        "dyn": "−⟨θ, g_k⟩ + α/2·‖θ − W_k‖² of FedDyn",
    }
    uploads = {
        "model/*": "the client's stages and exits; gradients can be inverted from them",
        "samples": "n_k, the number of training samples",
    }
    downloads = {"model/*": "the stages and exits of the server's net that the client's net has"}
    ablations = {
        "without self-distillation": "--set w=0",
        "without FedDyn": "--set alpha=0",
        "FedAvg of each part": "--set w=0 --set alpha=0",
    }

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one net, in one or several depths."""
        return _unequal_depths(run)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build W, the deepest client's net, and set h = 0."""
        nets = {card.architecture: None for card in server.clients.values()}
        buffers = weights.averages_buffers(server.config)
        payloads = {
            name: pf.models.pack_weights(server.build(name), "model", buffers=buffers)
            for name in nets
        }
        server.state["tensors"] = {name: [*payload] for name, payload in payloads.items()}
        whole = server.state["whole"] = max(payloads, key=lambda name: len(payloads[name]))
        if server.config.alpha:
            server.state["h"] = {
                key: torch.zeros_like(W) for key, W in _parameters(payloads[whole])
            }
        return payloads[whole]

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send W_k."""
        keys = server.state["tensors"][server.clients[client_id].architecture]
        return pf.Payload({key: server.global_state[key] for key in keys})

    receive = weights.MODEL.receive  # W_k

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the weight of distillation, W_k and g_k."""
        start = _flat(client).detach()
        client.scratch["start"] = start
        w = torch.tensor(_weight(client.config, client.round))
        return {"w": w, "start": start, "g": client.state.get("g", torch.zeros_like(start))}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_k."""
        scores = cast(HasExits, client.module("head")).scores(output.features)
        theta, alpha = _flat(client), client.config.alpha
        squared = (theta - constants["start"]).square().sum()
        return {
            "ce": torch.stack([cross_entropy(z, batch.y) for z in scores]).sum(),
            "kd": constants["w"] * mutual_distillation(scores),
            "dyn": alpha / 2 * squared - (theta * constants["g"]).sum(),
        }

    @pf.hookimpl
    def after_training(self, client: pf.Client[Config]) -> None:
        """Update g_k."""
        moved = _flat(client).detach() - client.scratch.pop("start")
        if client.config.alpha:
            g = client.state.get("g", torch.zeros_like(moved))
            client.state["g"] = g - client.config.alpha * moved

    upload_payload = weights.MODEL.upload_payload  # θ_k and n_k

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average each tensor over the clients that have it, and correct it by h."""
        result, alpha, M = pf.Payload(), server.config.alpha, server.num_clients
        corrections: dict[str, Tensor] = server.state.get("h", {})
        for key, W in server.global_state.select("model/*").items():
            holders = [upload for upload in uploads.values() if key in upload.keys()]
            if not holders:
                continue
            result[key] = mean = _mean(holders, key, server.config.aggregate)
            if key in corrections:
                h = corrections[key] - alpha * len(holders) / M * (mean - W)
                corrections[key], result[key] = h, mean - h / alpha
        return result

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """Evaluate W on the global test samples, by the mean of its exits."""
        return weights.shared_model(server, server.build(server.state["whole"]))


def mutual_distillation(scores: Sequence[Tensor]) -> Tensor:
    """Return 1/(d − 1)·Σ_i Σ_{j≠i} KL(p_j ‖ p_i), the mean over samples; p_j is a constant.

    Args:
        scores: Scores z_i of d exits, B×C each; one exit alone has the sum 0.
    """
    if len(scores) == 1:
        return 0 * scores[0].sum()
    logs = [log_softmax(z, 1) for z in scores]
    pairs = [
        kl_div(learner, teacher.detach(), reduction="batchmean", log_target=True)
        for i, learner in enumerate(logs)
        for j, teacher in enumerate(logs)
        if j != i
    ]
    return torch.stack(pairs).sum() / (len(scores) - 1)


def _weight(config: DepthFL.Config, round: int) -> float:
    """Return w in a round t, which rises over R rounds."""
    if not config.rampup:
        return config.w
    phase = 1 - min(max(round, 0), config.rampup) / config.rampup
    return config.w * math.exp(-5 * phase * phase)


def _mean(holders: Sequence[pf.Payload], key: str, aggregate: str) -> Tensor:
    """Return the mean of a tensor, 1/|S| or n_k; the maximum of BatchNorm's count of batches."""
    tensors = torch.stack([upload[key] for upload in holders])
    if not tensors.is_floating_point():
        return tensors.amax(0)
    samples = torch.stack([upload["samples"] for upload in holders]).to(tensors)
    n = torch.ones_like(samples) if aggregate == "uniform" else samples
    mean: Tensor = torch.tensordot(n / n.sum(), tensors, 1)
    return mean


def _flat(client: pf.Learner[DepthFL.Config]) -> Tensor:
    """Return θ as one vector."""
    return torch.cat([p.flatten() for p in client.parameters()])


def _parameters(payload: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return the parameters in a payload, without BatchNorm statistics."""
    return [(key, W) for key, W in payload.items() if not key.startswith("model/buffer/")]


def _unequal_depths(run: pf.RunInfo) -> list[str]:
    """Return the reason why clients' nets are not the first parts of one net with exits."""
    models = [run.unset_model(a) for a in run.architectures]
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in models]
    whole = max(shapes, key=len)
    is_part = all(part.items() <= whole.items() for part in shapes)
    if is_part and all(isinstance(model.head, HasExits) for model in models):
        return []
    names = ", ".join(a.name for a in run.architectures)
    return [
        "it needs one net in several depths, with an exit after each stage, and the clients have "
        f"{names}; --models depths:resnet18@4,3,2,1"
    ]
