"""Prototype methods: options, the guiding term, means, and the nearest prototype."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.variants import DropsLastBatch

# --- prototypes up --------------------------------------------------------------------------------


class SendsPrototypes:
    """A method whose clients send their prototypes P_i^c, without counts."""

    uploads = {
        "prototypes": "P_i^c of the client's classes: mean features (the paper: irreversible)",
        "classes": "which classes the client has",
    }

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """P_i^c (Eq. 2), without counts."""
        return client.class_prototypes().select("prototypes")


class CollectingConfig(pf.VariantConfig):
    """Computation of a client's prototypes P_i^c (Eq. 2)."""

    collect: Literal["eval", "online"] = pf.Field(
        None,
        description="take prototypes in an evaluation pass after training, or during training",
    )


class Collecting(DropsLastBatch):
    """A method with `CollectingConfig`."""

    @pf.hookimpl
    def after_batch(
        self, client: pf.Client[CollectingConfig], batch: pf.Batch, output: pf.Output
    ) -> None:
        """Eq. 2 during training, where asked for."""
        if client.config.collect == "online":
            client.collect_prototypes(batch, output)


Average = Literal["weighted", "uniform", "eq3"]
"""Weights of clients in the mean, see `protofl.functional.aggregate_prototypes`."""


class AveragedConfig(CollectingConfig):
    """Options of a method whose server averages prototypes (Eq. 3)."""

    deviations = {
        "collect": pf.Deviation(
            "Eq. 2", "eval", "online", "the code collects in train mode, before each step"
        ),
        "aggregate": pf.Deviation(
            "Eq. 3", "weighted", "uniform", "the code takes the plain mean and sends no counts"
        ),
    }
    aggregate: Average = pf.Field(
        None, description="mean over clients by counts, plain, or as Eq. 3 is printed"
    )


class Averaged(Collecting, SendsPrototypes):
    """A method with `AveragedConfig`, whose clients send what `class_prototypes` returns."""

    uploads = {
        **SendsPrototypes.uploads,
        "counts": "|D_i,c|, the class distribution (not with aggregate=uniform)",
    }


def class_prototypes(client: pf.Client, average: Average) -> pf.Payload:
    """Return P_i^c (Eq. 2), with counts if their average needs them."""
    payload = client.class_prototypes()
    return payload.select("prototypes") if average == "uniform" else payload


def mean_prototypes(
    server: pf.Server,
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
    server: pf.Server, rows: Tensor, known: Tensor, absent: Absent, name: str = "means"
) -> tuple[Tensor, Tensor]:
    """A round's rows of the classes, C×K, and the mask of known ones, with those absent from it.

    With ``keep`` a class that the round lacks has its last row, which the server's state has under
    ``name``. A second call in the same round gives the same result.
    """
    if absent == "keep":
        last, ever = server.state.get(name, (rows, known))
        rows, known = torch.where(known.unsqueeze(1), rows, last), known | ever
        server.state[name] = rows, known
    return rows, known


def sent_rows(uploads: pf.Uploads, name: str, width: int) -> tuple[Tensor, Tensor]:
    """The rows of all uploads below each other, [n, width], and the class of each, [n]."""
    sent = [upload.rows(name, width) for upload in uploads.values()]
    return torch.cat([rows for rows, _ in sent]), torch.cat([classes for _, classes in sent])


class KeptConfig(AveragedConfig):
    """`AveragedConfig` whose means may outlast the rounds of their clients."""

    deviations = {
        **AveragedConfig.deviations,
        "absent": pf.Deviation(
            "Eq. 3", "keep", "forget", "the code knows only the classes of this round's clients"
        ),
    }
    absent: Absent = pf.Field(
        None, description="P̄^c of a class that no client of the round has: the last, or none"
    )


class SendsMeans(Averaged):
    """A method with `KeptConfig`, whose server sends the means P̄."""

    @pf.hookimpl
    def upload_payload(self, client: pf.Client[KeptConfig]) -> pf.Payload:
        """P_i^c (Eq. 2), with counts if Eq. 3 weights by them."""
        return class_prototypes(client, client.config.aggregate)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[KeptConfig], uploads: pf.Uploads) -> pf.Payload:
        """P̄ (Eq. 3)."""
        mean, known = mean_prototypes(server, uploads, server.config.aggregate)
        mean, known = with_absent(server, mean, known, server.config.absent)
        return pf.class_rows(known, prototypes=mean)


# --- prototypes down ------------------------------------------------------------------------------


def received_prototypes(client: pf.Client, name: str = "prototypes") -> tuple[Tensor, Tensor]:
    """The downloaded prototypes as a table C×K in the space of features, and the known ones, [C].

    Those of another space (FedKTL's) are of another width and raise `protofl.ProtoflError`.
    """
    return client.received.table(name, client.num_classes, client.feature_dim)


def nearest_prototype(client: pf.Client, x: Tensor, name: str = "prototypes") -> Tensor:
    """Minus the distance to every prototype, B×C; a class without one can't be predicted.

    Before the first prototypes arrive the head decides.
    """
    features = client.features(x)
    if name not in client.received:
        return client.head(features)
    table, known = received_prototypes(client, name)
    return -F.prototype_distance(features.float(), table).masked_fill(~known, torch.inf)


# --- guiding --------------------------------------------------------------------------------------


class GuidedConfig(CollectingConfig):
    """Options of a method that guides features towards prototypes."""

    deviations = {
        "distance": pf.Deviation(
            "FedTGP Eq. 4 and 11",
            "l2",
            "mse",
            "λ = 0.1 and λ = 10 belong to two different losses",
        ),
        "align": pf.Deviation(
            "FedTGP Eq. 4 and 11",
            "class",
            "sample",
            "the equation aligns P_i^c, the code each sample",
        ),
    }
    lambda_: float = pf.Field(
        None,
        alias="lambda",
        ge=0,
        description="λ of the guiding term; 0 regresses to local training. None: 0.1 for "
        "distance=l2, 10 for mse",
    )
    distance: Literal["l2", "mse"] = pf.Field(
        None, description="φ: Euclidean distance, or squared distance / K"
    )
    align: Literal["class", "sample"] = pf.Field(
        None, description="guide the batch's class means P_i^c, or every sample's feature"
    )


def guide_weight(given: float | None, distance: str) -> float:
    """The weight of a guiding term: 0.1 with Euclidean, 10 with mean squared distances."""
    return given if given is not None else (10.0 if distance == "mse" else 0.1)


class ReceivesPrototypes:
    """A method whose server sends the prototypes that it knows."""

    @pf.hookimpl
    def download_payload(self, server: pf.Server, client_id: int) -> pf.Payload:
        """The global prototypes."""
        return server.knowledge.select("prototypes")

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.Given:
        """The global prototypes as a table C×K with the mask of known classes."""
        if "prototypes" not in client.received:
            return {}
        prototypes, known = received_prototypes(client)
        return {"prototypes": prototypes, "known": known}


class CollectsBefore(ReceivesPrototypes, SendsPrototypes):
    """A method whose option ``collect=before`` takes P_i^c before the round's training.

    HtFLlib's clients read their last saved model when they collect, and save the trained one after.
    """

    @pf.hookimpl
    def before_training(self, client: pf.Client) -> pf.Given:
        """What the method gives its loss; P_i^c (Eq. 2), where asked for."""
        if client.config.collect == "before":
            client.scratch["prototypes"] = super().upload_payload(client)
        return super().before_training(client)

    @pf.hookimpl
    def upload_payload(self, client: pf.Client) -> pf.Payload:
        """P_i^c (Eq. 2), without counts."""
        taken: pf.Payload | None = client.scratch.get("prototypes")
        return super().upload_payload(client) if taken is None else taken


class DecidesByPrototype:
    """A method that predicts by the nearest global prototype."""

    @pf.hookimpl
    def inference(self, client: pf.Client, x: Tensor) -> Tensor:
        """The nearest global prototype."""
        return nearest_prototype(client, x)


class Guided(ReceivesPrototypes, DecidesByPrototype, Collecting, SendsPrototypes):
    """Prototypes come down, guide the features, and the nearest one decides (FedProto, FedTGP).

    The method itself says what its prototypes are (``server_aggregate``, ``server_train``), and
    adds `guide` to its loss.
    """

    @pf.hookimpl
    def resolve(self, config: GuidedConfig) -> dict[str, Any]:
        """λ, with the default that belongs to the distance."""
        return {"lambda_": guide_weight(config.lambda_, config.distance)}


def guide(
    client: pf.Learner[GuidedConfig],
    batch: pf.Batch,
    output: pf.Output,
    prototypes: Tensor,
    known: Tensor,
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
