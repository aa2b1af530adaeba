"""Trained prototypes P̂^c = F(e^c; θ_F): the server fits them to the clients' (FedTGP, FedORGP).

e^c   a trainable vector of class c, from N(0, 1)
F     FC–ReLU–FC on K numbers
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.shared.prototypes import of_all_classes


class TrainedConfig(pf.VariantConfig):
    """Options of the server's training."""

    deviations = {
        "send_initial": pf.Deviation(
            "Alg. 1", True, False, "the code sends nothing down in the first round"
        ),
    }
    server_lr: float | None = pf.Field(
        None, gt=0, description="learning rate of the server's SGD. None: the clients'"
    )
    server_batch_size: int | None = pf.Field(
        None, ge=1, description="prototypes in a mini-batch of the server. None: the clients'"
    )
    processor: bool = pf.Field(True, description="F; false trains the vectors alone (w/o F)")
    send_initial: bool = pf.Field(None, description="send P̂ down in the first round already")


@pf.hookimpl
def set_up(server: pf.Server[Any]) -> pf.Payload:
    """Draw the vectors e and F; return P̂, or nothing where it is not sent in the first round."""
    K = server.feature_dim
    vectors = nn.Embedding(server.num_classes, K).to(server.device)
    server.modules["vectors"] = vectors
    if server.config.processor:
        processor = nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K))
        server.modules["F"] = processor.to(server.device)
    return payload(server) if server.config.send_initial else pf.Payload()


def weights(server: pf.Server[Any]) -> tuple[Tensor, nn.Module | None]:
    """Return e, C×K, and F."""
    return cast(Tensor, server.modules["vectors"].weight), server.modules.get("F")


def prototypes(server: pf.Server[Any]) -> Tensor:
    """Return P̂ = F(e; θ_F), C×K, with its gradient."""
    vectors, processor = weights(server)
    return vectors if processor is None else cast(Tensor, processor(vectors))


def payload(server: pf.Server[Any]) -> pf.Payload:
    """Return P̂ of all classes as a payload."""
    return of_all_classes(prototypes(server).detach())


def batches(server: pf.Server[Any], rows: int, epochs: int) -> list[Tensor]:
    """Return the rows of each of the server's mini-batches, over all epochs."""
    size = server.config.server_batch_size or server.batch_size
    generator, result = server.generator("shuffle"), list[Tensor]()
    for _ in server.epochs(epochs):
        result += torch.split(torch.randperm(rows, generator=generator), size)
    return result
