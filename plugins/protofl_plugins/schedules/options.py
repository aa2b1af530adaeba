"""Options of asynchronous schedules, and the weight of stale uploads."""

from __future__ import annotations

import protofl as pf


class AsynchronousConfig(pf.Config):
    """Options: --set timing.OPTION=VALUE."""

    concurrency: int = pf.Field(
        None, ge=1, le=10_000_000, description="clients in training; None: as many as a round asks"
    )
    max_staleness: int = pf.Field(
        None,
        ge=0,
        description="uploads of an older version than so many steps ago are dropped; None: none",
    )
    a: float = pf.Field(
        0.5,
        ge=0,
        le=1000,
        description="a of the weight s(τ) = (1 + τ)^−a of an upload that is τ steps old; 0: all "
        "uploads count alike",
    )
    mixing: float = pf.Field(
        1.0,
        gt=0,
        le=1,
        description="α: weight of an upload that is not stale, against what the server has; 1: it "
        "replaces that, as in rounds",
    )
    eval_uploads: int = pf.Field(
        None,
        ge=1,
        description="uploads between evaluations; None: as many as --eval-every rounds have",
    )
    eval_seconds: float = pf.Field(
        None,
        gt=0,
        description="seconds between evaluations, instead of eval_uploads; virtual ones, or real "
        "ones in a deployed run; None: off",
    )


def staleness_weight(config: AsynchronousConfig, staleness: int) -> float:
    """Return s(τ), the weight of an upload that is τ steps of the server old.

    Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019, section 5.2; with a = 1/2 the
    polynomial is that of FedBuff (Nguyen et al., AISTATS 2022).
    """
    return float((1 + staleness) ** -config.a)
