"""Mutual distillation with the auxiliary model, and options of the published code."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.auxiliary import AuxiliaryConfig, AuxiliaryModel


class MutualConfig(AuxiliaryConfig, pf.VariantConfig):
    """Options of a method whose client and auxiliary model learn from each other."""

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
        None, ge=0, description="the run's --clip, where that is not given; 0 for any norm"
    )


class Mutual(AuxiliaryModel):
    """A method with `MutualConfig`."""

    @pf.hookimpl
    def run_defaults(self, config: MutualConfig) -> dict[str, Any]:
        """Set clipping, and drop the last, smaller batch with the variant."""
        dropped = {"drop_last": True} if config.variant == "official" else {}
        return dropped | ({"clip": config.clip} if config.clip else {})


def divergence(config: MutualConfig, student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher ‖ student) of two models' scores [B, C], as the options have it."""
    return F.kl_divergence(student, teacher, mean=config.kl_mean, detach=config.detach)
