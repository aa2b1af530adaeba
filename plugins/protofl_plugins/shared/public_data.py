"""Public data: options, scores of public samples, and training of a model on the server.

Every client and the server hold the same public samples in the same order: row n of
``public_logits`` or ``public_probabilities`` belongs to public sample n, or to the one that
``public_index`` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.engines.server_steps import minimise

CHUNK = 128
"""Public samples that are scored together; rounding depends on it, so it is fixed."""

# --- options --------------------------------------------------------------------------------------


PAPER_RUN: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "batch_size": 32}
"""Training options of all methods in FedPKD's comparison (its section V.A)."""


class EpochsConfig(pf.Config):
    """Options of a method that trains for several epochs on public data.

    ``paper_epochs`` lists what ``epochs=paper`` stands for beside `PAPER_RUN`: options of the
    subclass, and ``local_epochs``, which is the run's. ``by_epochs`` lists further options:
    {option: its value with ``epochs=one``, and with ``epochs=paper``}.
    """

    paper_epochs: ClassVar[dict[str, int]] = {}
    by_epochs: ClassVar[dict[str, tuple[Any, Any]]] = {}
    epochs: Literal["one", "paper"] = pf.Field(
        "one",
        description="epochs of every phase: one each, or those of FedPKD's comparison, private "
        "ones included, with its Adam, learning rate and batches; each can be set alone",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_epochs(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic passes raw input
        if not isinstance(data, dict):
            return data
        paper = data.get("epochs", "one") == "paper"
        epochs = {k: (1, v) for k, v in cls.paper_epochs.items() if k in cls.model_fields}
        pairs = (epochs | cls.by_epochs).items()
        return data | {k: v[paper] for k, v in pairs if data.get(k) is None}


class PublicPhaseConfig(EpochsConfig):
    """Options of a method whose clients train on public data."""

    public_epochs: int = pf.Field(
        None, ge=1, description="a client's epochs on public data. None: as epochs says"
    )


class ServerTrainingConfig(EpochsConfig):
    """Options of a method whose server trains on public data."""

    server_epochs: int = pf.Field(
        None, ge=0, description="the server's epochs; 0 trains nothing. None: as epochs says"
    )


# --- before the run -------------------------------------------------------------------------------


@pf.hookimpl
def paper_defaults(config: EpochsConfig) -> dict[str, Any]:
    """Return the paper's private epochs, optimiser and batches with ``epochs=paper``."""
    if config.epochs != "paper":
        return {}
    return {**PAPER_RUN, "local_epochs": config.paper_epochs["local_epochs"]}


@pf.hookimpl
def without_public(run: pf.RunInfo) -> list[str]:
    """Return the reason why there is nothing to distil on: the run has no public samples."""
    if run.public:
        return []
    return ["it needs public samples; give --public N or --public npz:PATH"]


def without_server_model(run: pf.RunInfo, name: str | None) -> list[str]:
    """Return the reason why the server can't build its model; None is the group's for servers."""
    known = {a.name for a in (*run.server_architectures, *run.architectures)}
    architecture = name or run.server_architecture
    if architecture in known:
        return []
    works = ", ".join(sorted(known))
    return [
        f"{run.group} has no architecture {architecture!r} (server_model); "
        f"one of these works: {works}"
    ]


def public_phase(
    name: str,
    config: PublicPhaseConfig,
    *,
    terms: tuple[str, ...],
    needs: str = "public_logits",
    when: str = "after_server",
) -> pf.Phase:
    """Return a phase on those public samples of which the server sent scores."""
    return pf.Phase(
        name, "public", config.public_epochs, when, needs=needs, rows="public_index", terms=terms
    )


# --- scores on public samples ---------------------------------------------------------------------


@torch.no_grad()
def public_logits(client: pf.Client) -> Tensor:
    """Return the client's scores of all public samples, [N, C], in one evaluation pass."""
    model, public = client.module("model"), client.public
    assert public is not None
    was = model.training
    model.eval()
    logits = [client.head(client.features(x)) for x in public.chunks(CHUNK)]
    model.train(was)
    return torch.cat(logits)


def received_scores(client: pf.Client, name: str) -> pf.LossData:
    """Return ``{"scores": …}``, [N, C], once the server has sent any; empty before.

    Args:
        client: The client.
        name: The key of the download. Row n of ``given["scores"]`` belongs to public sample n of
            the phase, see `public_phase`.
    """
    return {"scores": client.received[name]} if name in client.received.keys() else {}


def stacked(uploads: pf.Uploads, name: str) -> Tensor:
    """Return the scores of all uploads, [M, N, C]."""
    return torch.stack([upload[name] for upload in uploads.values()])


@torch.no_grad()
def evaluated(
    model: pf.models.SplitModel,
    samples: Any,  # noqa: ANN401 - the server's public or test samples
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return features [N, K] and scores [N, C] of samples by a server's model, in eval mode."""
    if rows is not None:
        samples = samples.at(rows)
    model.eval()
    features = torch.cat([model.features(x) for x in samples.chunks(CHUNK)])
    return features, torch.cat([model.head(z) for z in torch.split(features, CHUNK)])


# --- models on the server -------------------------------------------------------------------------


@pf.hookimpl
def server_models(server: pf.Server) -> dict[str, nn.Module]:
    """Evaluate the models that the method keeps on the server."""
    return dict(server.modules)


def server_model(server: pf.Server) -> pf.models.SplitModel:
    """Return the model that the method keeps on the server, ``server.modules["model"]``."""
    model = server.modules["model"]
    assert isinstance(model, pf.models.SplitModel)
    return model


@torch.enable_grad()
def train_on_public(
    server: pf.Server,
    model: pf.models.SplitModel,
    loss: Callable[..., Tensor],
    *,
    of: Sequence[Tensor] = (),
    given: Sequence[Any] = (),
    epochs: int,
    lr: float,
    momentum: float | None = None,
    rows: Tensor | None = None,
    purpose: str = "shuffle",
    cosine: bool = False,
) -> None:
    """Train a model of the server on public samples.

    Args:
        server: The server.
        model: The model; left in eval mode.
        loss: The loss of a batch: ``loss(features, logits, *targets, *given)``, with the batch's
            rows of the tables ``of``.
        of: Tables with a row for each of the public samples to train on.
        given: What the loss of every batch is given.
        epochs: Passes over the samples.
        lr: Learning rate.
        momentum: Of SGD; None for Adam.
        rows: The public samples to train on, [n]; None for all.
        purpose: Names the stream from which the order is drawn, and this training.
        cosine: Let the learning rate fall along a cosine to 0 after the last epoch.
    """
    public, parameters = server.public, list(model.parameters())
    assert public is not None
    if rows is None:
        rows = torch.arange(len(public), device=server.device)
    generator = server.generator(purpose)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=lr)
        if momentum is None
        else torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    )

    def batch_loss(rows: Tensor, *rest: Any) -> Tensor:  # noqa: ANN401
        features = model.features(public.inputs(rows))
        return loss(features, model.head(features), *rest)

    model.train(len(rows) >= server.least_batch)
    batches, rates = list[Tensor](), list[float]()
    for epoch in server.epochs(epochs):
        order = list(server.batches(len(rows), generator))
        progress = [(epoch + number / len(order)) / epochs for number in range(len(order))]
        batches += order
        rates += [lr * (1 + math.cos(math.pi * share)) / 2 for share in progress]
    minimise(
        server,
        batch_loss,
        optimizer,
        batches,
        of=(rows, *of),
        given=given,
        changes=[*model.buffers()],
        reads=public.memory,
        rates=rates if cosine else None,
        name=purpose,
    )
    model.eval()
