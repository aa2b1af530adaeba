"""Clients that train parts of the server's net (HeteroFL, FedRolex)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import protofl as pf
from protofl_plugins.weight_sharing import ModelSharingConfig, SharedPart


class SubmodelConfig(ModelSharingConfig):
    """Options of the parts."""

    aggregate: Literal["weighted", "uniform"] = pf.Field(
        "uniform", description="weights 1 of clients in a number's mean, or n_i"
    )
    recipe: Literal["sgd", "adam", "run"] = pf.Field(
        "sgd",
        description="defaults of the run's optimiser: the published code's SGD, the Adam of its "
        "configuration file, or those of every run",
    )
    mask: Literal["both", "loss", "none"] = pf.Field(
        "both",
        description="where scores of classes that a client does not have are 0: in its loss and "
        "in its own accuracy, in its loss, or nowhere. With a mask a client changes only its "
        "classes' rows of the head",
    )


class SharedSubmodel(SharedPart):
    """Hooks that send each client the part of the server's net that its own net has.

    `window` says which channels these are, `sgd` with which options the published code trains.
    """

    window: ClassVar[str] = "first"
    sgd: ClassVar[Mapping[str, float]] = {}
    """Learning rate, momentum and weight decay of the published code's SGD."""
    terms = {"ce": "cross-entropy"}
    uploads = {
        "model/*": "the client's part of the net after training; gradients can be inverted from it",
        "samples": "n_i, the number of training samples",
        "classes": "the client's classes, whose rows of the head it has trained",
    }
    downloads = {"model/*": "the part of the server's net that the client's net has"}

    @pf.hookimpl
    def run_defaults(self, config: SubmodelConfig) -> dict[str, Any]:
        """The optimiser of the published code, which clips gradients at norm 1."""
        return {
            "sgd": {"optimizer": "sgd", "clip": 1.0, **self.sgd},
            "adam": {"optimizer": "adam", "clip": 1.0, "lr": 3e-4, "weight_decay": 5e-4},
            "run": {},
        }[config.recipe]

    @pf.hookimpl
    def requires(self, run: pf.RunInfo) -> list[str]:
        """Require one net, in one or several widths."""
        nets = {a.name.partition("@")[0] for a in run.architectures}
        if run.homogeneous or len(nets) == 1:
            return []
        names = ", ".join(a.name for a in run.architectures)
        return [
            f"it needs one net in several widths, and the clients have {names}; "
            "--models widths:resnet18@1,0.5,0.25"
        ]

    @pf.hookimpl
    def setup_server(self, server: pf.Server[SubmodelConfig]) -> pf.Payload:
        """The widest client's net, and the shapes of all."""
        nets = {
            name: server.build(name)
            for name in dict.fromkeys(card.architecture for card in server.clients.values())
        }
        payloads = {
            name: pf.models.pack_weights(net, "model", buffers=server.config.buffers == "average")
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
    def download_payload(self, server: pf.Server[SubmodelConfig], client_id: int) -> pf.Payload:
        """The client's part."""
        return pf.Payload(
            {
                key: server.knowledge[key][self._window(server, client_id, key)].clone()
                for key in server.state["shapes"][server.clients[client_id].architecture]
            }
        )

    @pf.hookimpl
    def before_training(self, client: pf.Client[SubmodelConfig]) -> pf.Given:
        """The classes that the client does not have."""
        return {"absent": client.class_counts == 0}

    @pf.hookimpl
    def local_loss(
        self,
        client: pf.Learner[SubmodelConfig],
        batch: pf.Batch,
        output: pf.Output,
        given: pf.Given,
    ) -> pf.Terms:
        """Cross-entropy over the client's classes."""
        logits = output.logits
        if client.config.mask != "none":
            logits = logits.masked_fill(given["absent"], 0.0)
        return {"ce": cross_entropy(logits, batch.y)}

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[SubmodelConfig]) -> pf.Payload:
        """The client's part, n_i and its classes."""
        buffers = client.config.buffers == "average"
        payload = pf.models.pack_weights(client.module("model"), "model", buffers=buffers)
        payload["samples"] = torch.tensor(client.num_samples)
        payload["classes"] = client.class_counts.nonzero().flatten()
        return payload

    @pf.hookimpl
    def server_aggregate(
        self, server: pf.Server[SubmodelConfig], uploads: pf.Uploads
    ) -> pf.Payload:
        """Each number: its mean over the clients that have it; else what it was."""
        found = pf.Payload()
        for key, old in server.knowledge.select("model/*").items():
            if not old.is_floating_point():  # BatchNorm's count of batches
                found[key] = torch.stack([u[key] for u in uploads.values()]).amax(0)
                continue
            total, count = torch.zeros_like(old), torch.zeros_like(old)
            for client, upload in uploads.items():
                window = self._window(server, client, key)
                share = self._share(server, upload, key, old)
                total[window] += share * upload[key]
                count[window] += share.expand(upload[key].shape)
            found[key] = torch.where(count > 0, total / count.clamp(min=1e-12), old)
        return found

    @pf.hookimpl
    def inference(self, client: pf.Client[SubmodelConfig], x: Tensor) -> Tensor:
        """The scores of the client's part; 0 for classes that the client does not have.

        Global accuracy has samples of all classes, so its scores have no mask.
        """
        scores = client.head(client.features(x))
        if client.config.mask != "both" or client.scores_all_classes:
            return scores
        return scores.masked_fill(client.class_counts == 0, 0.0)

    @pf.hookimpl
    def global_models(self, server: pf.Server[SubmodelConfig]) -> dict[str, nn.Module]:
        """The whole net; none where BatchNorm statistics stay on the clients."""
        model = server.build(server.state["whole"])
        if server.config.buffers == "local" and any(True for _ in model.buffers()):
            return {}
        pf.models.load_weights(model, server.knowledge, "model")
        return {"model": model}

    def _share(
        self, server: pf.Server[SubmodelConfig], upload: pf.Payload, key: str, old: Tensor
    ) -> Tensor:
        """Return a client's weight in the mean of a tensor; by row for the head's classes."""
        share = torch.ones((), device=old.device, dtype=old.dtype)
        if server.config.aggregate == "weighted":
            share = upload["samples"].to(share)
        if server.config.mask == "none" or not key.startswith("model/head."):
            return share
        rows = torch.zeros(len(old), device=old.device, dtype=old.dtype)
        rows[upload["classes"]] = share
        return rows.reshape(-1, *[1] * (old.ndim - 1))

    def _window(
        self, server: pf.Server[SubmodelConfig], client: int, key: str
    ) -> tuple[Tensor | slice, ...]:
        """Return the index of a client's part in a tensor of the whole net."""
        state = server.state
        part = state["shapes"][server.clients[client].architecture][key]
        return window(
            server.knowledge[key].shape,
            part,
            shift=max(server.round, 0) if self.window == "rolling" else 0,
            positions=state["positions"].get(key, 1),
            device=server.device,
        )


def window(
    whole: Sequence[int],
    part: Sequence[int],
    *,
    shift: int = 0,
    positions: int = 1,
    device: torch.device | None = None,
) -> tuple[Tensor | slice, ...]:
    """Return the index of a part in a tensor: of each dimension, m of the n channels.

    Args:
        whole: The shape of the tensor of the whole net.
        part: That of the part, of as many dimensions.
        shift: Channels by which the window has rolled: it begins at (−shift) mod n and goes
            round the end. 0: the first m channels.
        positions: Entries of the second dimension that belong to one channel.
        device: Of the index.
    """
    sizes = [*zip(whole, part, strict=True)]
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
