"""The auxiliary model of FML, FedKD and FedMRL: options, and the steps of a round.

Every client trains, beside its own model, a small model of one architecture for all, and only
that one travels. FedTGP, appendix A, "Model heterogeneity": "the smallest model in any given model
group", the 4-layer CNN where all clients have one architecture. In the published code that is the
group's first architecture at every size of images, so groups declare theirs: counted in parameters,
another one is the smallest at 64 px, where the 4-layer CNN has more of them than MobileNetV2.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import protofl as pf
from protofl import functional as F
from protofl_plugins.shared.weights import SharedWeights


class AuxiliaryConfig(pf.Config):
    """Options of the auxiliary model."""

    auxiliary: str = pf.Field(
        None,
        description="architecture of the auxiliary model, one of the group's, or GROUP/NAME of "
        "another's. None: the one that the group declares (protofl show GROUP), for most its first",
    )
    auxiliary_dim: int | None = pf.Field(
        None, ge=1, description="width of the auxiliary model's features. None: K"
    )


class MutualConfig(AuxiliaryConfig, pf.VariantConfig):
    """Options of a method whose client and auxiliary model learn from each other."""

    official = {"drop_last": True, "same_init": True}
    deviations = {
        "kl_mean": pf.Deviation(
            "the KL terms", "batch", "elements", "the code divides the divergence by C as well"
        ),
        "detach": pf.Deviation(
            "both losses",
            True,
            False,
            "the code's two backward passes add up: each model also gets the other's gradients",
        ),
        "clip": pf.Deviation(
            "local training", 0.0, 10.0, "the code clips the gradients of each model at norm 10"
        ),
    }
    kl_mean: Literal["batch", "elements"] = pf.Field(
        None, description="KL as the mean over the batch, or over batch and classes"
    )
    detach: bool = pf.Field(
        None, description="let no gradient reach what a term takes from the other model"
    )
    clip: float = pf.Field(
        None, ge=0, description="the run's --clip if that is not given; 0 for any norm"
    )


# --- before the run -------------------------------------------------------------------------------


@pf.hookimpl
def mutual_defaults(config: MutualConfig) -> dict[str, Any]:
    """Return the run's clipping."""
    return {"clip": config.clip} if config.clip else {}


@pf.hookimpl
def unknown_architecture(run: pf.RunInfo, config: AuxiliaryConfig) -> list[str]:
    """Return the reason why the auxiliary model can't be built: the group lacks it."""
    names = [a.name for a in (*run.architectures, *run.server_architectures)]
    auxiliary = config.auxiliary or run.auxiliary_architecture
    if auxiliary in names:
        return []
    if "/" not in auxiliary:
        return [
            f"auxiliary={auxiliary} is not an architecture of {run.group}; "
            f"one of these works: {', '.join(names)}, or GROUP/NAME"
        ]
    try:
        run.named(auxiliary)
    except pf.UsageError as error:
        return [f"auxiliary={auxiliary}: {', '.join(filter(None, (error.what, error.near)))}"]
    return []


@pf.hookimpl
def chosen_architecture(run: pf.RunInfo, config: AuxiliaryConfig) -> dict[str, Any]:
    """Return the option ``auxiliary`` if it is not set: the group's auxiliary architecture."""
    return {} if config.auxiliary else {"auxiliary": run.auxiliary_architecture}


# --- a round --------------------------------------------------------------------------------------


def built(side: pf.Server[Any] | pf.Client[Any]) -> pf.models.SplitModel:
    """Return the auxiliary model with its initial weights, the same on both sides."""
    return side.build(side.config.auxiliary, feature_dim=side.config.auxiliary_dim)


def auxiliary_of(client: pf.Learner[Any]) -> pf.models.SplitModel:
    """Return the client's auxiliary model."""
    return cast(pf.models.SplitModel, client.module("auxiliary"))


@pf.hookimpl
def shared_auxiliary(server: pf.Server[Any]) -> dict[str, nn.Module]:
    """Return the auxiliary model with the server's weights, as the only global model."""
    model = built(server)
    pf.models.load_weights(model, server.global_state, "auxiliary")
    return {"auxiliary": model}


AUXILIARY = SharedWeights("auxiliary")


def divergence(client: pf.Learner[Any], student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) of two models' scores [B, C], as the options have it.

    Papers have it for classes. Of a multi-label task it is the sum over labels of the divergence of
    the two probabilities of a label; of a regression the squared difference, which is KL of two
    normal distributions of variance 1/2.
    """
    config: MutualConfig = client.config
    if client.task.has_classes:
        return F.kl_divergence(student, teacher, mean=config.kl_mean, detach=config.detach)
    teacher = teacher.detach() if config.detach else teacher
    if client.task.name == "multilabel":
        p = teacher.sigmoid()
        on = p * (logsigmoid(teacher) - logsigmoid(student))
        rows = on + (1 - p) * (logsigmoid(-teacher) - logsigmoid(-student))
    else:
        rows = (student - teacher).square()
    return rows.mean() if config.kl_mean == "elements" else rows.sum(1).mean()
