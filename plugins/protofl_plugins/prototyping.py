"""What the prototype methods have in common: options, the guiding term, nearest prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import protofl as pf
import torch
from protofl import functional as F
from torch import Tensor


class GuidedConfig(pf.VariantConfig):
    """Options of a method that guides features towards prototypes."""

    lambda_: float | None = pf.Field(
        None,
        alias="lambda",
        ge=0,
        description="λ of the guiding term; 0 regresses to local training. None: 0.1 for "
        "distance=l2, 10 for mse",
    )
    distance: Literal["l2", "mse"] | None = pf.Field(
        None, description="φ: Euclidean distance, or squared distance / K"
    )
    align: Literal["class", "sample"] | None = pf.Field(
        None, description="guide the batch's class means P_i^c, or every sample's feature"
    )
    collect: Literal["eval", "online"] | None = pf.Field(
        None,
        description="take prototypes in an evaluation pass after training, or during training",
    )


class Guided:
    """A method with `GuidedConfig`: λ's default, and the published code's last batch."""

    @pf.hookimpl
    def run_defaults(self, config: GuidedConfig) -> dict[str, Any]:
        """The published code leaves the last, smaller batch out."""
        return {"drop_last": True} if config.variant == "official" else {}

    @pf.hookimpl
    def resolve(self, config: GuidedConfig) -> dict[str, Any]:
        """λ, with the default that belongs to the distance."""
        return {"lambda_": guide_weight(config.lambda_, config.distance)}


def guide_weight(given: float | None, distance: str | None) -> float:
    """The weight of a guiding term: 0.1 with Euclidean, 10 with mean squared distances."""
    return given if given is not None else (10.0 if distance == "mse" else 0.1)


DEVIATIONS = {
    "distance": pf.Deviation(
        "FedTGP Eq. 4 and 11", "l2", "mse", "λ = 0.1 and λ = 10 belong to two different losses"
    ),
    "align": pf.Deviation(
        "FedTGP Eq. 4 and 11", "class", "sample", "the equation aligns P_i^c, the code each sample"
    ),
}


def guide(
    client: pf.Learner, batch: pf.Batch, output: pf.Output, prototypes: Tensor, known: Tensor
) -> Tensor:
    """λ·E_{c ~ C_i} φ(P_i^c, P̄^c): FedTGP Eq. 4 and 11; or of every sample (published code).

    A class's mean over the whole client has no gradient within a step, so P_i^c is the mean of
    the batch's samples of class c, C×K, of the classes that are present in the batch.
    """
    config = client.config
    weight: float | Tensor = config.lambda_
    if config.align == "sample":
        term = F.prototype_alignment(output.features, batch.y, prototypes, known, config.distance)
    else:
        means, counts = F.class_means(output.features, batch.y, client.num_classes)
        present = counts > 0
        term = F.prototype_alignment(means, None, prototypes, known & present, config.distance)
        # Of all C rows the mean was taken; one factor in place of three steps for autograd.
        weight = weight * len(means) / present.sum(dtype=term.dtype)
    return weight * term


def received_prototypes(client: pf.Client, name: str = "prototypes") -> tuple[Tensor, Tensor]:
    """The downloaded prototypes as a table C×K in the space of features, and the known ones, [C].

    Those of another space (FedKTL's) are of another width and raise `protofl.ProtoflError`.
    """
    return client.received.table(name, client.num_classes, client.feature_dim)


def sent_rows(uploads: Mapping[int, pf.Payload], name: str, width: int) -> tuple[Tensor, Tensor]:
    """The rows of all uploads below each other, [n, width], and the class of each, [n]."""
    sent = [upload.rows(name, width) for upload in uploads.values()]
    return torch.cat([rows for rows, _ in sent]), torch.cat([classes for _, classes in sent])


def nearest_prototype(client: pf.Client, x: Tensor, name: str = "prototypes") -> Tensor:
    """Minus the distance to every prototype, B×C; a class without one can't be predicted.

    Before the first prototypes arrive the head decides.
    """
    features = client.features(x)
    if name not in client.received:
        return client.head(features)
    table, known = received_prototypes(client, name)
    return -F.prototype_distance(features.float(), table).masked_fill(~known, torch.inf)
