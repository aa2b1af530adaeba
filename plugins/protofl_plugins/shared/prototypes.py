"""Prototypes that clients send, that the server averages, and that guide features.

    P_i^c   client i's prototype of class c: mean feature of its samples          (Eq. 2)
    P̄^c    global prototype: Σ_{i in N_c} |D_i,c|/N_c · P_i^c                     (Eq. 3)
    guide   E_{c ~ C_i} φ(P_i^c, P̄^c), the second part of a client's loss        (Eq. 4, 11)

Equations are numbered as in FedTGP (Zhang et al., AAAI 2024), which restates those of FedProto. C
is the number of classes, K that of features.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F

MEANS = {
    "prototypes": "P_i^c of the client's classes: mean features",
    "classes": "which classes the client has",
}
"""Keys of a method whose clients send one prototype for each class."""

WHEN_ONLINE = {"collect": "online"}
"""``after_batch_if`` of a method that takes P_i^c during training, if its options say so."""

# --- on a client ----------------------------------------------------------------------------------

Average = Literal["weighted", "uniform", "eq3"]
"""Weights of clients in the mean, see `protofl.functional.aggregate_prototypes`."""


def class_prototypes(client: pf.Client[Any], average: Average) -> pf.Payload:
    """Return P_i^c (Eq. 2), with counts if their average needs them."""
    payload = client.class_prototypes()
    return payload.select("prototypes") if average == "uniform" else payload


def received_prototypes(client: pf.Client[Any], name: str = "prototypes") -> tuple[Tensor, Tensor]:
    """Return the downloaded prototypes as a table C×K, and the classes that have one, [C] bool.

    Raises:
        ProtoflError: They have another width than the features, as FedKTL's.
    """
    return client.received.table(name, client.num_classes, client.feature_dim)


@pf.hookimpl
def guides(client: pf.Client[Any]) -> pf.LossData:
    """Give the loss the `received_prototypes`, ``P`` and ``known``; nothing without any."""
    if "prototypes" not in client.received:
        return {}
    P, known = received_prototypes(client)
    return {"P": P, "known": known}


@pf.hookimpl
def guides_of_before(client: pf.Client[Any]) -> pf.LossData:
    """Return the `guides`, and keep P_i^c of the model before training with ``collect=before``."""
    if client.config.collect == "before":
        client.scratch["prototypes"] = client.class_prototypes().select("prototypes")
    return guides(client)


@pf.hookimpl
def collect_online(client: pf.Client[Any], batch: pf.Batch, output: pf.Output) -> None:
    """Add a batch to the sums of P_i^c (Eq. 2); for a method that declares `WHEN_ONLINE`."""
    client.collect_prototypes(batch, output)


@pf.hookimpl
def sent_prototypes(client: pf.Client[Any]) -> pf.Payload:
    """Send P_i^c (Eq. 2), with counts if Eq. 3 weights by them."""
    return class_prototypes(client, client.config.aggregate)


@pf.hookimpl
def sent_without_counts(client: pf.Client[Any]) -> pf.Payload:
    """Send P_i^c (Eq. 2) without counts, of the model before training if they were kept."""
    if "prototypes" in client.scratch:
        return cast(pf.Payload, client.scratch["prototypes"])
    return class_prototypes(client, "uniform")


@pf.hookimpl
def default_weight(config: Any) -> dict[str, Any]:  # noqa: ANN401 - options of several methods
    """Return λ, with the default that belongs to the distance."""
    return {"lambda_": guide_weight(config.lambda_, config.distance)}


def guide_weight(weight: float | None, distance: str) -> float:
    """Return the weight of a guiding term: 0.1 with Euclidean, 10 with mean squared distances."""
    return weight if weight is not None else (10.0 if distance == "mse" else 0.1)


def guide(config: Any, features: Tensor, labels: Tensor, P: Tensor, known: Tensor) -> Tensor:  # noqa: ANN401 - options of several methods
    """Return λ·E_{c ~ C_i} φ(P_i^c, P̄^c): FedTGP Eq. 4 and 11.

    A class's mean over the whole client has no gradient within a step. P_i^c is therefore the mean
    of the batch's samples of class c, of the classes that are present in the batch.

    Args:
        config: ``lambda_`` (λ), ``distance`` (φ: Euclidean or, with ``mse``, squared and divided by
            K) and ``align``: ``class`` for the equation, ``sample`` for the mean over the batch's
            samples in place of class means, as published code has it.
        features: f(x) of the batch, B×K.
        labels: y of the batch, [B]; or [B, C] of 0 and 1, where a sample counts for each of its
            labels.
        P: P̄, the global prototypes, C×K.
        known: [C] bool, the classes that have a global prototype; the others add 0.
    """
    weight, distance = config.lambda_, config.distance
    if config.align == "sample" and labels.ndim == 2:  # φ is to the mean of a sample's prototypes
        has = (labels > 0.5) & known
        count = has.sum(1)
        own = has.to(P.dtype) @ P.masked_fill(~known.unsqueeze(1), 0.0)
        own = own / count.clamp_min(1).to(P.dtype).unsqueeze(1)
        rows = torch.arange(len(labels), device=labels.device)
        return cast(
            Tensor, weight * F.prototype_alignment(features, rows, own, count > 0, distance)
        )
    if config.align == "sample":
        return cast(Tensor, weight * F.prototype_alignment(features, labels, P, known, distance))
    means, counts = F.class_means(features, labels, len(P))
    present = counts > 0
    term = F.prototype_alignment(means, None, P, known & present, distance)
    # Of all C rows the mean was taken; one factor in place of three steps for autograd.
    return cast(Tensor, weight * len(means) / present.sum(dtype=term.dtype) * term)


@pf.hookimpl
def guided_loss(
    client: pf.Learner[Any], batch: pf.Batch, output: pf.Output, constants: pf.LossData
) -> pf.Terms:
    """Return the loss of the task, and `guide` once there are global prototypes (Eq. 4, 11)."""
    terms = {"ce": client.task.loss(output.logits, batch.y)}
    if constants:
        terms["align"] = guide(client.config, output.features, batch.y, **constants)
    return terms


@pf.hookimpl
def nearest_prototype(client: pf.Client[Any], x: Tensor) -> Tensor:
    """Predict the class of the nearest prototype, see `scores_by_distance`."""
    return scores_by_distance(client, x, "prototypes")


def scores_by_distance(client: pf.Client[Any], x: Tensor, name: str) -> Tensor:
    """Return minus the distance to every prototype, B×C; a class without one can't be predicted.

    Before the first prototypes arrive the head decides, and of a multi-label task always: the
    nearest prototype would be one label.
    """
    features = client.features(x)
    if name not in client.received or not client.task.has_classes:
        return client.head(features)
    table, known = received_prototypes(client, name)
    return -F.prototype_distance(features.float(), table).masked_fill(~known, torch.inf)


# --- on the server --------------------------------------------------------------------------------


@pf.hookimpl
def global_prototypes(server: pf.Server[Any], client_id: int) -> pf.Payload:
    """Send the global prototypes."""
    return server.global_state.select("prototypes")


def mean_prototypes(
    server: pf.Server[Any],
    uploads: pf.Uploads,
    average: Average,
    width: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return P̄, the mean of the clients' prototypes (Eq. 3), C×K, and the sent classes, [C].

    Args:
        server: The server.
        uploads: With `class_prototypes`.
        average: The weights of clients.
        width: Use only rows of this width; None uses all.
    """
    P, weights = pf.stack_rows(uploads, "prototypes", server.num_classes, width)
    if average != "uniform":
        weights, _ = pf.stack_rows(uploads, "counts", server.num_classes)
    return F.aggregate_prototypes(P, weights, average)


Absent = Literal["keep", "forget"]
"""Prototype of a class that no client of the round has: the last one, or none."""


def with_absent(
    server: pf.Server[Any], rows: Tensor, known: Tensor, absent: Absent, name: str = "means"
) -> tuple[Tensor, Tensor]:
    """Return a round's rows of the classes, C×K, and the known ones, with those absent from it.

    With ``keep`` a class that the round lacks has its last row, which the server's state has under
    ``name``. A second call in the same round gives the same result.
    """
    if absent == "keep":
        last, ever = server.state.get(name, (rows, known))
        rows, known = torch.where(known.unsqueeze(1), rows, last), known | ever
        server.state[name] = rows, known
    return rows, known


def sent_rows(uploads: pf.Uploads, name: str, width: int) -> tuple[Tensor, Tensor]:
    """Return the rows of all uploads below each other, [n, width], and the class of each, [n]."""
    sent = [upload.rows(name, width) for upload in uploads.values()]
    return torch.cat([rows for rows, _ in sent]), torch.cat([classes for _, classes in sent])


def of_all_classes(rows: Tensor, name: str = "prototypes") -> pf.Payload:
    """Return rows of all classes, C×K, as a payload."""
    every = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    return pf.class_rows(every, **{name: rows})


# --- options --------------------------------------------------------------------------------------


class SentMeansConfig(pf.VariantConfig):
    """Options of prototypes that clients send (Eq. 2) and the server averages (Eq. 3)."""

    deviations = {
        "collect": pf.Deviation(
            "Eq. 2", "eval", "online", "the code collects in train mode, before each step"
        ),
        "aggregate": pf.Deviation(
            "Eq. 3", "weighted", "uniform", "the code takes the plain mean and sends no counts"
        ),
    }
    collect: Literal["eval", "online"] = pf.Field(
        None,
        description="take prototypes in an evaluation pass after training, or during training",
    )
    aggregate: Average = pf.Field(
        None, description="mean over clients by counts, plain, or as Eq. 3 is printed"
    )


class MeansConfig(SentMeansConfig):
    """Options of a method that sends the means of Eq. 3."""

    deviations = SentMeansConfig.deviations | {
        "absent": pf.Deviation(
            "Eq. 3", "keep", "forget", "the code knows only the classes of this round's clients"
        ),
    }
    absent: Absent = pf.Field(
        None, description="P̄^c of a class that no client of the round has: the last, or none"
    )


class GuideConfig(pf.VariantConfig):
    """Options of a loss that guides features to global prototypes (`guide`, Eq. 4 and 11)."""

    deviations = {
        "distance": pf.Deviation(
            "Eq. 4, 11", "l2", "mse", "λ = 0.1 and λ = 10 belong to two different losses"
        ),
        "align": pf.Deviation(
            "Eq. 4, 11", "class", "sample", "the equation aligns P_i^c, the code each sample"
        ),
    }
    lambda_: float = pf.Field(
        None,
        alias="lambda",
        ge=0,
        description="λ of align; 0 regresses to local training. None: 0.1 for distance=l2, "
        "10 for mse",
    )
    distance: Literal["l2", "mse"] = pf.Field(
        None, description="φ: Euclidean distance, or squared distance / K"
    )
    align: Literal["class", "sample"] = pf.Field(
        None, description="guide the batch's class means P_i^c, or every sample's feature"
    )
