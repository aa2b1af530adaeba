"""Sums over a client's features, from which the server computes a linear head in closed form.

    A_c = Σ_{y = c} f(x), N_c samples of class c, G = Σ f(x)·f(x)ᵀ, over a client's training samples

Sums of all clients add up to those of all samples, however these are split. Clients train nothing:
their extractors stay as they are, so a client sends its sums once. Sums of different extractors
mean nothing, so clients of each architecture have a head of their own (``scope``). C is the number
of classes, K that of features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared import weights

RTOL = 1e-10
"""Eigenvalues below this share of the largest one are the rounding of features in float32."""

FEATURE_SUMS = pf.Key(
    "[n, K] float64",
    "A_c^i of the client's classes",
    by_class=True,
    reveals="which classes the client has, exactly; with counts, the mean feature of each: to "
    "whoever has the extractor, the sample itself if a class has one",
)
GRAM = pf.Key(
    "[K, K] float64",
    "G, the second moments of all features: Σ f(x)·f(x)ᵀ",
    reveals="how the features of all samples vary together; with fewer samples than features, the "
    "space that they span, and a single sample up to its sign",
)
DISCRIMINANTS = pf.Key("[n, K] float64", "W of the classes that anybody has sent", by_class=True)
OFFSETS = pf.Key("[n] float64", "b, the constant of each class's score", by_class=True)
KEPT = pf.Key("[] int", "that the server has what the client sent")
LINEAR_HEAD = {"discriminants": DISCRIMINANTS, "offsets": OFFSETS, "kept": KEPT}
"""Downloads of a method with the scores W·f(x) + b."""

HEAD = ("discriminants", "offsets", "inverse_variances", "precisions", "classes")
"""Keys of a head, as far as a method has them."""

UPLOAD_RULES = dict.fromkeys(("classes", "gram"), "optional")
"""A client that was told ``kept`` sends nothing."""


class StatisticsConfig(weights.ScopeConfig):
    """The clients whose sums add up."""

    scope: Literal["all", "architecture"] = pf.Field(
        "architecture",
        description="one head for each architecture, or one for all clients, which needs one and "
        "the same extractor in all of them",
    )


# --- before the run -------------------------------------------------------------------------------


@pf.hookimpl
def one_shot() -> dict[str, Any]:
    """Return the defaults of a method that takes one round, with equal extractors."""
    return {"rounds": 1, "same_init": True}


@pf.hookimpl
def no_training() -> list[pf.Phase]:
    """Train nothing on clients; they are evaluated with this round's head."""
    return [pf.Phase("none", when="after_server", terms=("none",))]


# --- on a client ----------------------------------------------------------------------------------


def sums(client: pf.Client[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return A [C, K] and G [K, K] in float64, and N [C] int, of all training samples."""
    features, labels = client.train_features()
    X = F.in_float64(features)
    Y = one_hot(labels, client.num_classes).to(X)
    return Y.T @ X, X.T @ X, client.class_counts.to(X.device)


def wide(payload: pf.Payload, device: torch.device) -> pf.Payload:
    """Return a payload on a device, its numbers in float64, or in float32 where there is none."""
    dtype = torch.float64 if F.has_float64(device) else torch.float32
    found = {n: t.to(dtype) if t.is_floating_point() else t for n, t in payload.items()}
    return pf.Payload({name: tensor.to(device) for name, tensor in found.items()})


def linear_scores(
    client: pf.Client[Any],
    x: Tensor,
    offsets: str | None = None,
    further: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Score samples by the received head, B×C; by the own one, before there is one.

    A class that nobody has sent can't be predicted.

    Args:
        client: The client.
        x: Samples B×….
        offsets: The key of the constants that are added to the scores of each class.
        further: Returns further terms of the scores, B×C, for features [B, K] in float64.
    """
    features, received = client.features(x), client.received
    if "discriminants" not in received:
        return client.head(features)
    W, known = received.table("discriminants", client.num_classes, client.feature_dim)
    X = F.in_float64(features)
    scores = X @ F.in_float64(W).T
    if offsets:
        scores += F.in_float64(received.table(offsets, client.num_classes)[0])
    if further:
        scores += further(X)
    return scores.to(features.device, torch.float32).masked_fill(~known, -torch.inf)


# --- on the server --------------------------------------------------------------------------------


def sent_sums(upload: pf.Payload, num_classes: int) -> dict[str, Tensor]:
    """Return A [C, K] and N [C] of an upload in float64, and ``known`` [C]: its classes."""
    A, known = upload.table("feature_sums", num_classes)
    A, N = F.in_float64(A), F.in_float64(upload.table("counts", num_classes)[0])
    return {"A": A, "N": N, "known": known.to(A.device)}


@pf.hookimpl
def head_of(server: pf.Server[Any], client_id: int) -> pf.Payload:
    """Send the head of the client's scope, and whether its sums have been counted."""
    (end,) = weights.sharing(server, [client_id])
    state = server.global_state
    payload = pf.Payload({name: state[name + end] for name in HEAD if name + end in state})
    if client_id in server.state.get("counted", ()):
        payload["kept"] = torch.tensor(1)
    return payload


def heads(
    server: pf.Server[Any],
    uploads: pf.Uploads,
    read: Callable[[pf.Payload], Mapping[str, Tensor]],
    solve: Callable[..., Mapping[str, Tensor]],
    merge: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> pf.Payload:
    """Return the heads of all scopes whose sums change in this round.

    Args:
        server: Keeps the sums of all rounds, and who has been counted.
        uploads: The sums of clients; a client counts with its first ones.
        read: Returns the sums of an upload, {name: tensor}, ``known`` [C] bool among them: the
            client's classes.
        solve: Returns the rows of a head by class from the sums of all clients, given by name.
        merge: Merges the tensors of a name of two clients, except ``known``.
    """
    counted: dict[int, bool] = server.state.setdefault("counted", {})
    totals: dict[str, dict[str, Tensor]] = server.state.setdefault("totals", {})
    new = [client for client, upload in uploads.items() if "classes" in upload]
    result = pf.Payload()
    for end, clients in weights.sharing(server, [c for c in new if c not in counted]).items():
        total = totals.setdefault(end, {})
        for client in clients:
            for name, tensor in read(uploads[client]).items():
                add = torch.logical_or if name == "known" else merge
                total[name] = add(total[name], tensor) if name in total else tensor
        counted.update(dict.fromkeys(clients, True))
        if not total["known"].any():
            continue
        given = {name: tensor for name, tensor in total.items() if name != "known"}
        rows = pf.class_rows(total["known"], **solve(**given))
        result.update({name + end: t for name, t in wide(rows, server.device).items()})
    return result


def inverse(matrix: Tensor) -> Tensor:
    """Return the inverse of a positive semidefinite matrix [K, K].

    In directions in which no feature varies (``RTOL``) it is 0, as the pseudoinverse.
    """
    found: Tensor = torch.linalg.pinv(matrix, rtol=RTOL, hermitian=True)
    return found


def train_head(
    server: pf.Server[Any],
    loss: Callable[[Tensor], Tensor],
    weights: list[Tensor],
    count: int,
    epochs: int,
    batch_size: int,
    *,
    lr: float,
    weight_decay: float,
) -> None:
    """Train the weights of a head on synthetic features by AdamW, in place.

    Args:
        server: Counts the epochs, and shuffles.
        loss: Returns the loss of the features in some rows.
        weights: The trained weights.
        count: Number of synthetic features.
        epochs: Passes over them.
        batch_size: Features in a mini-batch.
        lr: Learning rate.
        weight_decay: Weight decay.
    """
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=weight_decay)
    generator = server.generator("shuffle")
    for _ in server.epochs(epochs):
        order = torch.randperm(count, generator=generator).to(weights[0].device)
        for rows in torch.split(order, batch_size):
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss(rows), weights)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
            optimizer.step()
