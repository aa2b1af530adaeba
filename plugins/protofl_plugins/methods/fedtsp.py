"""FedTSP: a text encoder on the server gives each class an embedding as its prototype.

Wu et al., "Enhancing Visual Representation with Textual Semantics: Textual Semantics-Powered
Prototypes for Heterogeneous Federated Learning", CVPR 2026 (arXiv 2503.13543).

    T^c       mean of the embeddings of class c's texts, whose first m token embeddings are p^c
    p^c       m trainable token embeddings of class c, from N(0, 0.02²)
    s         the encoder's logit scale, ln 100 if it has none
    P_i^c     client i's prototype of class c: mean feature of its samples
    L_i       E ℓ(h_i(f_i(x)), y) + λ·E ℓ(e^s·cos(f_i(x), T^·), y)
    Q^c       plain mean of the P_i^c over the clients of the round that have class c
    L_S       mean over c of ℓ(e^s·cos(Q^c, T^·), c), by ``steps`` steps of SGD on p and s

The server sends T and s. The cross-entropy of L_i and L_S is over all C classes. An encoder whose
tokens cannot be replaced has a fixed T: then nothing is trained unless ``trains=scale``.
Inference: the client's own head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared.class_descriptions import (
    check_descriptions,
    class_texts,
    read_descriptions,
)
from protofl_plugins.shared.prototypes import MEANS, of_all_classes, sent_without_counts
from protofl_plugins.text_encoders.encoder import LoadedOnce, TextEncoder

DEVIATION = 0.02
"""Standard deviation of the prompts at the start."""


class FedTSP:
    """Embeddings of classes by a text encoder are the prototypes (Wu et al., CVPR 2026)."""

    class Config(pf.VariantConfig):
        """Options, with the paper's symbols."""

        official = {"drop_last": True}

        encoder: str = pf.Field(
            "tiny-text",
            consent="code",
            description="the text encoder: tiny-text, transformers, MODULE:CLASS or FILE.py:CLASS",
        )
        path: Path | None = pf.Field(None, description="the encoder's folder or file")
        lambda_: float = pf.Field(
            7.0, alias="lambda", ge=0, description="λ, weight of align; 0 regresses to local"
        )
        trains: Literal["prompts", "scale", "nothing"] | None = pf.Field(
            None,
            description="what the server trains: prompts and s, s alone, or nothing. None: prompts "
            "if the encoder has tokens, otherwise nothing",
        )
        m: int = pf.Field(5, ge=1, description="m, trainable token embeddings of a class")
        steps: int = pf.Field(10, ge=0, description="steps of the server in a round")
        server_lr: float = pf.Field(0.01, gt=0, description="learning rate of the server's SGD")
        descriptions: Path | dict[str, list[str]] | None = pf.Field(
            None,
            description="a file with one or more descriptions of each class: lines CLASS: TEXT",
        )

    asynchronous = True
    terms = {"ce": "cross-entropy", "align": "λ·E ℓ(e^s·cos(f(x), T^·), y)"}
    uploads = MEANS
    downloads = {
        "prototypes": "T of all classes",
        "classes": "all classes",
        "logit_scale": pf.Key("[]", "s"),
    }
    ablations = {"without prompts": "--set trains=nothing"}

    @pf.hookimpl
    def resolve(self, run: pf.RunInfo, config: Config) -> dict[str, Any]:
        """Make places absolute; replace the file of descriptions by its content."""
        places: dict[str, Any] = {}
        if config.path is not None:
            places["path"] = pf.expand_user(config.path).absolute()
        file, colon, name = config.encoder.rpartition(":")
        if file.endswith(".py"):
            places["encoder"] = f"{pf.expand_user(file).absolute()}{colon}{name}"
        descriptions, source = config.descriptions, "descriptions"
        if isinstance(descriptions, Path):
            descriptions, source = read_descriptions(descriptions), str(descriptions)
        if descriptions is None:
            return places
        check_descriptions(descriptions, run.class_names, source)
        texts = {name: [*descriptions[name]] for name in run.class_names}
        return places | {"descriptions": texts}

    @pf.hookimpl
    def setup_server(self, server: pf.Server[Config]) -> pf.Payload:
        """Draw p; T and s of the first round."""
        encoder, config, C = _checked(server), server.config, server.num_classes
        trained = Trained(encoder.logit_scale)
        if _trains(server) == "prompts":
            shape = (C, config.m, encoder.token_dim)
            drawn = torch.randn(shape, generator=server.generator("prompts"))
            trained.prompts = nn.Parameter(DEVIATION * drawn)
        server.modules["trained"] = trained.to(server.device)
        with torch.no_grad(), server.part("text encoder"):
            server.state["T"] = embeddings(server)
        return _payload(server)

    @pf.hookimpl
    def download_payload(self, server: pf.Server[Config], client_id: int) -> pf.Payload:
        """T and s."""
        return server.global_state.select("prototypes", "logit_scale")

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """e^s·T^c/‖T^c‖, C×K, and the classes that have one."""
        T, known = client.received.table("prototypes", client.num_classes, client.feature_dim)
        return {"targets": client.received["logit_scale"].exp() * normalize(T), "known": known}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """L_i."""
        ce = cross_entropy(output.logits, batch.y)
        targets, known = constants["targets"], constants["known"]
        scores = normalize(output.features.to(targets.dtype)) @ targets.T
        scores = scores.masked_fill(~known, -torch.inf)
        # A sample whose class has no T counts as 0.
        y = batch.y.where(known[batch.y], -100)
        align = cross_entropy(scores, y, reduction="sum") / len(y)
        return {"ce": ce, "align": client.config.lambda_ * align}

    upload_payload = staticmethod(sent_without_counts)  # P_i^c, without counts

    @pf.hookimpl
    def server_train(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Q, then SGD on L_S."""
        P, present = pf.stack_rows(uploads, "prototypes", server.num_classes, server.feature_dim)
        Q, known = F.aggregate_prototypes(P, present, "uniform")
        config, trained = server.config, server.modules["trained"]
        if _trains(server) == "nothing" or not known.any():
            return _payload(server)
        classes = known.nonzero().squeeze(1)
        optimizer = torch.optim.SGD(trained.parameters(), lr=config.server_lr)
        with server.part("text encoder"):
            for _ in server.epochs(config.steps):
                cosines = normalize(Q[known]) @ normalize(embeddings(server)).T
                optimizer.zero_grad()
                loss = cross_entropy(trained(cosines), classes)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                server.state["T"] = embeddings(server)
        return _payload(server)


class Trained(nn.Module):
    """The server's trainable numbers: s, and prompts p, C×m×token_dim, if there are any."""

    prompts: nn.Parameter | None

    def __init__(self, logit_scale: float) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.tensor(logit_scale))
        self.register_parameter("prompts", None)

    def forward(self, cosines: Tensor) -> Tensor:
        """Return e^s·cos."""
        return self.s.exp() * cosines


def text_encoder(server: pf.Server[FedTSP.Config]) -> LoadedOnce:
    """Return the encoder, which is loaded once in a trial and never saved."""
    if "encoder" not in server.scratch:
        config, K = server.config, server.feature_dim
        server.scratch["encoder"] = LoadedOnce(
            config.encoder, config.path, server.class_names, K, server.device, dry=server.dry
        )
    loaded: LoadedOnce = server.scratch["encoder"]
    return loaded


def embeddings(server: pf.Server[FedTSP.Config]) -> Tensor:
    """Return T, C×K, with its gradient for the prompts."""
    loaded, config, trained = text_encoder(server), server.config, server.modules["trained"]
    prompts = trained.prompts
    if prompts is None and "T" in server.state:
        fixed: Tensor = server.state["T"]
        return fixed
    assert not isinstance(config.descriptions, Path)
    texts, owners = class_texts(server.class_names, config.descriptions)
    text_embeddings = (
        loaded.embed(texts) if prompts is None else loaded.embed_prompts(texts, prompts[owners])  # type: ignore[index]
    )
    return F.class_means(
        text_embeddings, torch.tensor(owners, device=text_embeddings.device), server.num_classes
    )[0]


def _trains(server: pf.Server[FedTSP.Config]) -> str:
    """Return what the server trains."""
    return server.config.trains or (
        "prompts" if text_encoder(server).encoder.token_dim else "nothing"
    )


def _checked(server: pf.Server[FedTSP.Config]) -> TextEncoder:
    """Return the encoder; tell its note.

    Raises:
        UsageError: The width is not K, or the encoder can't do what the options ask.
    """
    encoder, config = text_encoder(server).encoder, server.config
    name = f"text encoder {config.encoder}"
    if encoder.dim != server.feature_dim:
        raise pf.UsageError(
            f"{name}: embeddings have {encoder.dim} numbers, but features have K = "
            f"{server.feature_dim}",
            do=f"give --feature-dim {encoder.dim}, or another encoder",
        )
    if config.trains == "prompts" and not encoder.token_dim:
        raise pf.UsageError(
            f"{name}: trains=prompts needs an encoder whose tokens can be replaced",
            do="set trains=scale or trains=nothing, or give another encoder",
        )
    if encoder.note:
        server.note(encoder.note)
    return encoder


def _payload(server: pf.Server[FedTSP.Config]) -> pf.Payload:
    """Return T of all classes, and s."""
    payload, s = of_all_classes(server.state["T"]), server.modules["trained"].s
    payload["logit_scale"] = s.detach().clone()  # type: ignore[operator]
    return payload
