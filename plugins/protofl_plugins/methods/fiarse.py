"""FIARSE: clients train the largest numbers of one net.

Wu et al., "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
Extraction", NeurIPS 2024 (arXiv 2407.19389); equations after its published code.

    θ_i     the share γ_i of W's numbers is at least as large: the numbers of client i's part
    w_i     min over w of ℓ(w ∘ m(w)),  m(w) = [|w| ≥ θ_i], from W on; ∂m/∂|w| is 2θ_i/(|w| + θ_i)²
            where m = 1 and 0 elsewhere, so that the gradient by w is
            ∂ℓ/∂(w∘m) ∘ m ∘ (1 + 2θ_i·|w|/(|w| + θ_i)²)
    Δ_i     w_i − W
    W       each number: W + η_s·mean of Δ_i over the clients whose Δ_i is not 0

θ_i is fixed for a round; numbers that training brings below it are out until the next. Norm layers
are whole. BatchNorm statistics are averaged without η_s. Inference: the client's part of W.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, BeforeValidator
from torch import Tensor

import protofl as pf
from protofl_plugins.models.masked import Scope, mask, set_thresholds
from protofl_plugins.shared import weights
from protofl_plugins.shared.number_lists import joined


def sizes_of(text: str) -> list[float]:
    """Return the sizes in a text such as ``1,0.25``.

    Raises:
        ValueError: A size is not a number above 0 and at most 1.
    """
    sizes = []
    for word in text.split(","):
        try:
            size = float(word)
        except ValueError:
            size = 0.0
        if not 0 < size <= 1:
            raise ValueError(f"size {word.strip()!r} is not a number above 0 and at most 1")
        sizes.append(size)
    return sizes


def _checked(text: str) -> str:
    return ",".join(f"{size:g}" for size in sizes_of(text))


class FIARSE:
    """Clients train the largest numbers of one net (Wu et al., 2024)."""

    class Config(weights.ModelSharingConfig):
        """Options, with the paper's symbols; shared: buffers."""

        sizes: Annotated[str, BeforeValidator(joined), AfterValidator(_checked)] = pf.Field(
            "1,0.25,0.0625,0.015625",
            description="γ_i, with commas between; client i gets number i mod their count",
        )
        scope: Scope = pf.Field("net", description="θ of all numbers of the net, or of each layer")
        server_rate: float = pf.Field(1.0, gt=0, description="η_s, the server's learning rate")
        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1 of clients in a number's mean, or n_i"
        )

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = True
    uploads = {
        "model_update/*": pf.Key(
            "as the parameter",
            "Δ_i, 0 outside of the client's part; gradients can be inverted from it",
        ),
        "samples": "n_i, the number of training samples",
    }
    downloads = {"model/*": "W, whole"}
    ablations = {"all clients train the whole net": "--set sizes=1"}

    requires = weights.MODEL.requires
    setup_server = weights.MODEL.setup_server  # W

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Mask the client's net: w becomes w ∘ m(w)."""
        mask(client.module("model"))

    download_payload = weights.MODEL.download_payload  # W, whole

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Install W, and set θ_i of it."""
        weights.MODEL.receive(client)
        sizes = sizes_of(client.config.sizes)
        size = sizes[client.id % len(sizes)]
        set_thresholds(client.module("model"), size, client.config.scope)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send Δ_i = w_i − W and n_i."""
        now = pf.models.pack_weights(client.module("model"), "model")
        before = client.received.select("model/*")
        changes = {_update(key): now[key] - W for key, W in before.items()}
        return pf.Payload(changes, samples=torch.tensor(client.num_samples))

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Add to each number of W η_s times the mean of the Δ_i that are not 0."""
        result, weighted = pf.Payload(), server.config.aggregate == "weighted"
        p = [upload["samples"] if weighted else 1 for upload in uploads.values()]
        for key, W in server.global_state.select("model/*").items():
            changes = torch.stack([upload[_update(key)] for upload in uploads.values()])
            if not W.is_floating_point():  # BatchNorm's count of batches
                result[key] = W + changes.amax(0)
                continue
            rate = 1.0 if key.startswith("model/buffer/") else server.config.server_rate
            result[key] = W + rate * _mean_of_changes(changes, torch.as_tensor(p).to(W))
        return result

    global_models = weights.MODEL.global_models


def _mean_of_changes(changes: Tensor, p: Tensor) -> Tensor:
    """Return Σ_i p_i·Δ_i / Σ_{i: Δ_i ≠ 0} p_i of each number; 0 where no Δ_i is another."""
    p = p.reshape(-1, *[1] * (changes.ndim - 1))
    total, has = (p * changes).sum(0), (p * (changes != 0)).sum(0)
    return torch.where(has > 0, total / has.clamp(min=torch.finfo(p.dtype).tiny), 0.0)


def _update(key: str) -> str:
    return f"model_update/{key.removeprefix('model/')}"
