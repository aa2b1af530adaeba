"""Options of asynchronous schedules, and the weight of stale uploads."""

from __future__ import annotations

from typing import Literal

import protofl as pf

USUAL = {"polynomial": (0.5, 0), "hinge": (10.0, 4)}
"""a and b of the papers: FedBuff's 1/√(1 + τ), and FedAsync's hinge in its experiments."""


class AsynchronousConfig(pf.Config):
    """Options: --set timing.OPTION=VALUE."""

    concurrency: int = pf.Field(
        0, ge=0, le=10_000_000, description="clients in flight; 0: as many as a round asks"
    )
    max_staleness: int = pf.Field(
        None,
        ge=0,
        description="uploads of an older version than so many steps ago are dropped; None: none",
    )
    weight: Literal["constant", "polynomial", "hinge"] = pf.Field(
        "polynomial",
        description="s(τ) of an upload that is τ steps old: 1; (1 + τ)^−a; or 1 up to b, then "
        "1 / (a·(τ − b) + 1) (Xie et al. 2019, section 5.2)",
    )
    a: float = pf.Field(
        None, ge=0, le=1000, description="a of s(τ); 0: constant. None: 0.5, hinge: 10"
    )
    b: int = pf.Field(4, ge=0, description="b of the hinge")
    mixing: float = pf.Field(
        1.0,
        gt=0,
        le=1,
        description="α: weight of an upload that is not stale, against what the server has; 1: it "
        "replaces that, as in rounds",
    )
    eval_uploads: int = pf.Field(
        0,
        ge=0,
        description="uploads between evaluations; 0: as many as --eval-every rounds have",
    )
    eval_seconds: float = pf.Field(
        0.0,
        ge=0,
        description="seconds between evaluations, instead of eval_uploads; virtual ones, or real "
        "ones in a deployed run; 0: off",
    )


def staleness_weight(config: AsynchronousConfig, staleness: int) -> float:
    """Return s(τ), the weight of an upload that is τ steps of the server old.

    Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019, section 5.2; with a = 1/2 the
    polynomial is that of FedBuff (Nguyen et al., AISTATS 2022).
    """
    if config.weight == "constant":
        return 1.0
    a = USUAL[config.weight][0] if config.a is None else config.a
    if config.weight == "polynomial":
        return float((1 + staleness) ** -a)
    return 1.0 if staleness <= config.b else 1 / (a * (staleness - config.b) + 1)
