"""Clients that train a part of the channels of one net: the first ones, or a rolling window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.shared import weights


class HeteroFL:
    """Clients train the first channels of one net (Diao et al., 2021).

    Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for
    Heterogeneous Clients", ICLR 2021 (arXiv 2010.01264).

        W_i    the first ⌈r_i·n⌉ of the n channels of each layer of W, for a client of width r_i
        W      each number: its mean over the clients that have it; without any it stays

    A client's loss knows only its own classes, and only its classes' rows of the head enter the
    mean (masked cross-entropy). The model group divides the outputs of a client's layers by r_i, in
    training and evaluation (Scaler; the code in training only, as it evaluates the whole net).
    Inference: the client's part, with scores of classes that the client does not have set to 0, as
    the code's Local-Accuracy. The server's net is scored without a mask (Global-Accuracy).
    """

    class Config(weights.ModelSharingConfig):
        """Options; shared: buffers."""

        aggregate: Literal["weighted", "uniform"] = pf.Field(
            "uniform", description="weights 1 of clients in a number's mean, or n_i"
        )
        recipe: Literal["sgd", "run"] = pf.Field(
            "sgd",
            description="defaults of the optimiser: the published code's SGD, or those of any run",
        )
        mask: Literal["both", "loss", "none"] = pf.Field(
            "both",
            description="where scores of classes that a client does not have are 0: in its loss "
            "and its own accuracy, in its loss, or nowhere. With a mask a client changes only its "
            "classes' rows of the head",
        )

    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}  # of the published code
    tasks = pf.datasets.Task.OF_HEADS
    asynchronous: bool | str = "versions"
    terms = {"ce": "cross-entropy"}
    uploads = {
        "model/*": "the client's part of the net after training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
        "classes": "the client's classes, whose rows of the head it has trained",
    }
    downloads = {"model/*": "the part of the server's net that the client's net has"}
    ablations = {
        "scored without the mask": "--set mask=loss",
        "without masked cross-entropy": "--set mask=none",
    }

    @pf.hookimpl
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """Train with the published code's optimiser, unless another is asked for."""
        return {"optimizer": "sgd", "clip": 1.0, **self.sgd} if config.recipe == "sgd" else {}

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one net, in one or several widths."""
        nets = {a.name.partition("@")[0] for a in run.architectures}
        if run.homogeneous or (len(nets) == 1 and len(_layers_of(run)) == 1):
            return []
        names = ", ".join(a.name for a in run.architectures)
        return [
            f"it needs one net in several widths, and the clients have {names}; "
            "--models widths:resnet18@1,0.5,0.25"
        ]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Build W, the widest client's net; keep its name and the shapes of all."""
        names = dict.fromkeys(card.architecture for card in server.clients.values())
        nets = {name: server.build(name) for name in names}
        buffers = weights.averages_buffers(server.config)
        payloads = {
            name: pf.models.pack_weights(net, "model", buffers=buffers)
            for name, net in nets.items()
        }
        server.state["shapes"] = {
            name: {key: [*tensor.shape] for key, tensor in payload.items()}
            for name, payload in payloads.items()
        }
        whole = max(payloads, key=lambda name: sum(t.numel() for t in payloads[name].values()))
        server.state["whole"] = whole
        server.state["positions"] = {
            f"model/{path}.weight": int(getattr(module, "positions", 1))
            for path, module in nets[whole].named_modules()
            if isinstance(module, nn.Linear)
        }
        return payloads[whole]

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """Send W_i."""
        shift = self.shift(server)
        return pf.Payload(
            {
                key: server.global_state[key][_window_of(server, client_id, key, shift)].clone()
                for key in server.state["shapes"][server.clients[client_id].architecture]
            }
        )

    receive = weights.MODEL.receive  # W_i

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """Give the loss the mask of the classes that the client does not have."""
        return {"absent": absent_classes(client)}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """Masked cross-entropy, over the client's classes."""
        scores = output.logits
        if client.config.mask != "none":
            scores = scores.masked_fill(constants["absent"], 0.0)
        return {"ce": client.task.loss(scores, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[Config]) -> pf.Payload:
        """Send W_i, n_i and the client's classes."""
        classes = (~absent_classes(client)).nonzero().flatten()
        return pf.Payload(weights.MODEL.upload_payload(client), classes=classes)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Average each number of W over the clients that have it."""
        result, shift = pf.Payload(), self.shift(server)
        for key, old in server.global_state.select("model/*").items():
            if not old.is_floating_point():  # BatchNorm's count of batches
                result[key] = torch.stack([u[key] for u in uploads.values()]).amax(0)
                continue
            total, count = torch.zeros_like(old), torch.zeros_like(old)
            for client, upload in uploads.items():
                place = _window_of(server, client, key, shift)
                share = _share(server, upload, key, old)
                total[place] += share * upload[key]
                count[place] += share.expand(upload[key].shape)
            result[key] = torch.where(count > 0, total / count.clamp(min=1e-12), old)
        return result

    @pf.hookimpl
    def inference(self, client: pf.Client[Config], x: Tensor) -> Tensor:
        """Return the scores of W_i; 0 for classes that the client does not have.

        Global accuracy has samples of all classes, so its scores have no mask.
        """
        scores = client.head(client.features(x))
        if client.config.mask != "both" or client.scores_all_classes:
            return scores
        return scores.masked_fill(absent_classes(client), 0.0)

    @pf.hookimpl
    def global_models(self, server: pf.Server[Config]) -> dict[str, nn.Module]:
        """Evaluate W on the global test samples, without a mask."""
        return weights.shared_model(server, server.build(server.state["whole"]))

    def shift(self, server: pf.Server[Config]) -> int:
        """Return the channel at which the parts of this round begin: the first."""
        return 0


class FedRolex(HeteroFL):
    """Clients train a window of one net's channels that rolls each round (Alam et al., 2022).

    Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS 2022 (arXiv 2212.01548).

        W_i^t    ⌈r_i·n⌉ of the n channels of each layer, from channel (−t) mod n on, round the end
        W        each number: its mean over the clients that have it; without any it stays

    As HeteroFL otherwise, mask and evaluation included. Inference: the client's part of this round.

    The window is that of the published code; the paper's text was not at hand to check its
    direction.
    """

    sgd = {"momentum": 0.9, "weight_decay": 1e-3}
    asynchronous = (
        "the part of the net that a client has moves in each step, so a stale upload is "
        "of another part"
    )

    def shift(self, server: pf.Server[HeteroFL.Config]) -> int:
        """Return t, the channels by which the window has rolled."""
        return max(server.round, 0)


# --- parts of the net -----------------------------------------------------------------------------


def _layers_of(run: pf.RunInfo) -> set[tuple[str, ...]]:
    """Return the different lists of names of the nets' parameters; one for widths of one net."""
    models = map(run.unset_model, run.architectures)
    return {tuple(name for name, _ in model.named_parameters()) for model in models}


def absent_classes(client: pf.Client[HeteroFL.Config]) -> Tensor:
    """Return the classes that the client does not have, [C] bool, whose scores are masked.

    Of other tasks none is: samples without a label train its score too.
    """
    if client.task.has_classes:
        return client.class_counts == 0
    return torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)


def _share(server: pf.Server[HeteroFL.Config], upload: pf.Payload, key: str, old: Tensor) -> Tensor:
    """Return a client's weight in the mean of a tensor; by row for the head's classes."""
    share = torch.ones((), device=old.device, dtype=old.dtype)
    if server.config.aggregate == "weighted":
        share = upload["samples"].to(share)
    if server.config.mask == "none" or not key.startswith("model/head."):
        return share
    rows = torch.zeros(len(old), device=old.device, dtype=old.dtype)
    rows[upload["classes"]] = share
    return rows.reshape(-1, *[1] * (old.ndim - 1))


def _window_of(
    server: pf.Server[HeteroFL.Config], client: int, key: str, shift: int
) -> tuple[Tensor | slice, ...]:
    """Return the index of a client's part in a tensor of the whole net."""
    state = server.state
    return window(
        server.global_state[key].shape,
        state["shapes"][server.clients[client].architecture][key],
        shift=shift,
        positions=state["positions"].get(key, 1),
        device=server.device,
    )


def window(
    whole: Sequence[int],
    part_shape: Sequence[int],
    *,
    shift: int = 0,
    positions: int = 1,
    device: torch.device | None = None,
) -> tuple[Tensor | slice, ...]:
    """Return the index of a part in a tensor: of each dimension, m of the n channels.

    Args:
        whole: The shape of the tensor of the whole net.
        part_shape: The shape of the part, of as many dimensions.
        shift: Channels by which the window has rolled: it begins at (−shift) mod n and goes
            round the end. 0: the first m channels.
        positions: Entries of the second dimension that belong to one channel.
        device: Of the index.
    """
    sizes = [*zip(whole, part_shape, strict=True)]
    if not shift:
        return tuple(slice(m) for _, m in sizes)
    index = list[Tensor]()
    for place, (n, m) in enumerate(sizes):
        each = positions if place == 1 else 1
        channels, kept = n // each, math.ceil(m / each)
        start = (-shift) % channels if m < n else 0
        rows = (start + torch.arange(kept, device=device)) % channels
        entries = (rows.unsqueeze(1) * each + torch.arange(each, device=device)).flatten()
        index.append(entries.reshape(-1, *[1] * (len(sizes) - place - 1)))
    return tuple(index)
