"""FedKD: adaptive mutual distillation with a small shared model, which travels compressed.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 13, 2022; T_start = T_end = 0.95 as in FedTGP (Zhang et al., AAAI 2024, appendix A).
The client's own model is the paper's mentor (s), the auxiliary model (a) its mentee.

    L_s     ℓ_s + KL(p_a ‖ p_s)/(ℓ_s + ℓ_a) + MSE(f_s, W_h·f_a)/(ℓ_s + ℓ_a)
    L_a     ℓ_a + KL(p_s ‖ p_a)/(ℓ_s + ℓ_a) + MSE(f_s, W_h·f_a)/(ℓ_s + ℓ_a)
    up      U_i, Σ_i, V_i: truncated SVD of client i's update g_i of θ_a
    server  g ← 1/M · Σ_i U_i Σ_i V_i;   U, Σ, V: truncated SVD of g;   θ_a ← θ_a + U Σ V
    down    U, Σ, V
    T       T_start + (T_end − T_start)·round/(rounds − 1): the smallest rank r ≥ 1 whose share of
            squared singular values exceeds T

Denominators and the other model's part of every term are detached; W_h stays on the client and
learns from the hidden term of L_s. Convolutions are seen as matrices out × (in·k·k); tensors of one
dimension travel whole, BatchNorm statistics too. Server and clients hold the same θ_a, as it is
rebuilt from what was sent. A client that missed a broadcast gets the whole of θ_a. Inference is
by the client's own model.

The published code compresses the weights (``svd=weights``): g_i is θ_a,i itself, θ_a ← U Σ V, and a
convolution is out·in kernels k × k of one rank.

Not in the paper: ``floor``. A client that has learned its samples has ℓ_s + ℓ_a ≈ 0, and the
quotients grow without bound (0/0 on a client of one class).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import auxiliary

UPDATE = "auxiliary_update"

UPDATE_KEYS = {
    "auxiliary_update/*/u": pf.Key(
        "[rows, r]", "U of the truncated update; gradients can be inverted from it", varies=-1
    ),
    "auxiliary_update/*/s": pf.Key("[r]", "Σ of the same update", varies=-1),
    "auxiliary_update/*/vh": pf.Key("[r, columns]", "V of the same update, transposed", varies=-2),
    "auxiliary_update/*": pf.Key("as the parameter", "the update of a 1-D parameter, whole"),
}
"""The update of the auxiliary model: up g_i of a client, down the mean g, for who holds the model
before it. The client's own model stays private."""


class FedKD:
    """Adaptive mutual distillation with a small shared model, compressed (Wu et al., 2022)."""

    class Config(auxiliary.MutualConfig):
        """Options, with the paper's symbols.

        Shared: auxiliary, auxiliary_dim, kl_mean, detach, clip.
        """

        deviations = auxiliary.MutualConfig.deviations | {
            "T_end": pf.Deviation(
                "appendix A of FedTGP", 0.95, 0.98, "the scripts of the code end at 0.98"
            ),
            "svd": pf.Deviation(
                "g_i", "update", "weights", "the code compresses θ_a itself, a kernel at a time"
            ),
        }
        T_start: float = pf.Field(
            0.95,
            ge=0,
            le=1,
            description="energy threshold of the SVD in the first round; 0 sends one triplet of "
            "each matrix, 1 all of them",
        )
        T_end: float = pf.Field(
            None, ge=0, le=1, description="energy threshold in the last round; linear between"
        )
        svd: Literal["update", "weights"] = pf.Field(
            None,
            description="compress the round's update of the auxiliary model, or its weights",
        )
        floor: float = pf.Field(
            0.01,
            gt=0,
            description="smallest denominator ℓ_s + ℓ_a; near 0 the paper's, large values regress "
            "to plain mutual distillation with weight 1/floor. Ours",
        )

    tasks = pf.datasets.Task.OF_HEADS
    native_widths = True
    asynchronous = (
        "a client applies the server's last update to the version that it holds, and a "
        "stale client holds an older one"
    )
    terms = {
        "ce": "ℓ_s, cross-entropy of the client's model",
        "kl": "KL(p_a ‖ p_s)/(ℓ_s + ℓ_a)",
        "hidden": "MSE(f_s, W_h·f_a)/(ℓ_s + ℓ_a), for f_s and W_h",
        "aux_ce": "ℓ_a, cross-entropy of the auxiliary model",
        "aux_kl": "KL(p_s ‖ p_a)/(ℓ_s + ℓ_a)",
        "aux_hidden": "MSE(f_s, W_h·f_a)/(ℓ_s + ℓ_a), for f_a",
    }
    uploads = {
        **UPDATE_KEYS,
        "auxiliary/buffer/*": "BatchNorm statistics of the auxiliary model, where it has any",
    }
    downloads = {
        **UPDATE_KEYS,
        "auxiliary/*": pf.Key(
            "as the parameter",
            "the whole auxiliary model, for all others; BatchNorm statistics for all",
        ),
        "auxiliary_version": pf.Key("[] int", "the number of broadcasts so far"),
    }

    run_defaults = staticmethod(auxiliary.mutual_defaults)
    requires = staticmethod(auxiliary.unknown_architecture)
    resolve = staticmethod(auxiliary.chosen_architecture)

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build θ_a, and set the version to 0."""
        start = pf.models.pack_weights(auxiliary.built(server), "auxiliary")
        return pf.Payload(start, auxiliary_version=torch.tensor(0))

    @pf.hookimpl
    def setup_client(self, client: pf.Client[Config]) -> None:
        """Add θ_a,i and W_h, which train with the client's own model."""
        client.add_module("auxiliary", auxiliary.built(client))
        model = auxiliary.auxiliary_of(client)
        client.state["broadcast"] = _parameters(model)
        client.state["version"] = -1
        client.add_module("W_h", nn.Linear(model.feature_dim, client.feature_dim, bias=False))

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send U, Σ, V; the whole of θ_a to a client that does not hold what they build on."""
        global_state = server.global_state
        if server.config.svd == "weights":  # which build on nothing, once there are any
            holds = bool(global_state.under(UPDATE))
        else:
            holds = client_id in server.state.get("holders", ())
        sent = global_state.select(f"{UPDATE if holds else 'auxiliary'}/*", "auxiliary/buffer/*")
        return pf.Payload(sent, auxiliary_version=global_state["auxiliary_version"])

    @pf.hookimpl
    def receive(self, client: pf.Client[Config]) -> None:
        """Rebuild θ_a as the server did; the same download twice changes nothing."""
        received, state = client.received, client.state
        if "auxiliary_version" not in received:
            return
        version, held = int(received["auxiliary_version"]), state["broadcast"]
        if version != state["version"]:
            if received.under(UPDATE):
                state["broadcast"] = _moved(client.config, held, received)
            else:
                state["broadcast"] = {name: received[f"auxiliary/{name}"] for name in held}
            state["version"] = version
        weights = {f"auxiliary/{name}": tensor for name, tensor in state["broadcast"].items()}
        pf.models.load_weights(client.module("auxiliary"), received | weights, "auxiliary")

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output
    ) -> pf.Terms:
        """L_s and L_a."""
        config, model = client.config, auxiliary.auxiliary_of(client)
        divergence = auxiliary.divergence
        W_h = cast(Tensor, client.module("W_h").weight)
        f_s, p_s = output.features, output.logits
        f_a = model.features(batch.x)
        p_a: Tensor = model.head(f_a)
        ce, aux_ce = client.task.loss(p_s, batch.y), client.task.loss(p_a, batch.y)
        target = Tensor.detach if config.detach else _as_it_is
        quotient = 1 / target(ce + aux_ce).clamp(min=config.floor)
        return {
            "ce": ce,
            "kl": quotient * divergence(client, p_s, p_a),
            "hidden": quotient * mse_loss(f_s, linear(target(f_a), W_h)),
            "aux_ce": aux_ce,
            "aux_kl": quotient * divergence(client, p_a, p_s),
            "aux_hidden": quotient * mse_loss(linear(f_a, target(W_h)), target(f_s)),
        }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send the truncated SVD of g_i = θ_a,i − θ_a, or of θ_a,i."""
        model, held = client.module("auxiliary"), client.state["broadcast"]
        g = _parameters(model)
        if client.config.svd == "update":
            g = {name: now - held[name] for name, now in g.items()}
        buffers = pf.models.pack_weights(model, "auxiliary").select("auxiliary/buffer/*")
        kernels = client.config.svd == "weights"
        return pf.Payload(compress(g, UPDATE, threshold(client), kernels=kernels) | buffers)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average the g_i, compress g, and apply U Σ V to θ_a as the clients will."""
        global_state, sent = server.global_state, list(uploads.values())
        kernels = server.config.svd == "weights"
        named = global_state.under("auxiliary").items()
        held = {name: tensor for name, tensor in named if not name.startswith("buffer/")}
        updates = [rebuild(upload, UPDATE, held, kernels=kernels) for upload in sent]
        mean = {name: torch.stack([u[name] for u in updates]).mean(0) for name in held}
        broadcast = compress(mean, UPDATE, threshold(server), kernels=kernels)
        now = _moved(server.config, held, broadcast)
        moved = {f"auxiliary/{name}": tensor for name, tensor in now.items()}
        buffers = pf.Payload()
        if any(key.startswith("auxiliary/buffer/") for key in sent[0]):
            buffers = pf.models.average_weights(sent, "auxiliary")
        server.state["holders"] = list(uploads)
        version = global_state["auxiliary_version"] + 1
        return pf.Payload(broadcast | moved | buffers, auxiliary_version=version)

    global_models = staticmethod(auxiliary.shared_auxiliary)


def threshold(side: pf.Client[FedKD.Config] | pf.Server[FedKD.Config]) -> float:
    """Return T of this round."""
    T_start, T_end = side.config.T_start, side.config.T_end
    return min(1.0, max(0.0, T_start + (T_end - T_start) * side.round / max(side.rounds - 1, 1)))


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _moved(
    config: FedKD.Config, held: Mapping[str, Tensor], payload: pf.Payload
) -> dict[str, Tensor]:
    """Return θ_a after a broadcast: θ_a + U Σ V, or U Σ V."""
    if config.svd == "weights":
        return rebuild(payload, UPDATE, held, kernels=True)
    change = rebuild(payload, UPDATE, held)
    return {name: tensor + change[name] for name, tensor in held.items()}


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: p.detach().clone(memory_format=torch.contiguous_format)
        for name, p in module.named_parameters()
    }


# --- tensors that travel as factors ---------------------------------------------------------------

PARTS = ("u", "s", "vh")


def compress(
    tensors: Mapping[str, Tensor], prefix: str, energy: float, *, kernels: bool = False
) -> pf.Payload:
    """Return U, Σ, V of each tensor, truncated at an energy (`protofl.functional.truncated_svd`).

    ``PREFIX/NAME/u``, ``s`` and ``vh`` are the factors of a tensor, ``PREFIX/NAME`` is one that
    travels whole. A tensor is seen as one matrix, out × (in·k·k) if it is a convolution's; or, with
    ``kernels``, a convolution as out·in matrices k × k that share one rank.

    Args:
        tensors: Parameters or their updates, by name.
        prefix: Of the names in the payload.
        energy: T between 0 and 1.
        kernels: See a convolution as its kernels.
    """
    payload = pf.Payload()
    for name, tensor in tensors.items():
        key, matrix = f"{prefix}/{name}", _matrix(tensor, kernels)
        if matrix is None:
            payload[key] = tensor
            continue
        # An SVD of NaN fails; factors of NaN are refused where every upload is checked for it.
        finite = bool(torch.isfinite(matrix).all())
        factors = F.truncated_svd(matrix, energy) if finite else _lost(matrix)
        # The layout that they have after the wire: rounding depends on it.
        for factor_name, factor in zip(PARTS, factors, strict=True):
            payload[f"{key}/{factor_name}"] = factor.contiguous()
    return payload


def rebuild(
    payload: pf.Payload, prefix: str, like: Mapping[str, Tensor], *, kernels: bool = False
) -> dict[str, Tensor]:
    """Return U Σ V in the names and shapes of ``like``."""
    rebuilt = {}
    for name, tensor in like.items():
        key = f"{prefix}/{name}"
        if _matrix(tensor, kernels) is None:
            rebuilt[name] = payload[key]
        else:
            u, s, vh = (payload[f"{key}/{factor_name}"] for factor_name in PARTS)
            rebuilt[name] = ((u * s.unsqueeze(-2)) @ vh).view_as(tensor)
    return rebuilt


def _lost(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors of rank 1 that hold NaN."""
    *lead, rows, columns = matrix.shape
    sizes = (*lead, rows, 1), (*lead, 1), (*lead, 1, columns)
    u, s, vh = (matrix.new_full(size, torch.nan) for size in sizes)
    return u, s, vh


def _matrix(tensor: Tensor, kernels: bool) -> Tensor | None:
    """Return the matrix for the SVD; None for one dimension, or kernels of a single number."""
    if tensor.dim() < 2:
        return None
    if kernels and tensor.dim() == 4:
        return tensor if tensor[0, 0].numel() > 1 else None
    return tensor.reshape(len(tensor), -1)
