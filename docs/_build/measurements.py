"""Measurements of a method for its page, as an object and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from protofl.errors import ProtoflError
from protofl.system.machine import machine_facts
from protofl.system.version import __version__
from batch_norm import batch_norm_line
from payload_sizes import (
    KeySize,
    PayloadSize,
    declared_sizes,
    measure_payloads,
)
from step_cost import Spent, StepCost, measure_cost
from toy_runs import toy_runs


@dataclass(frozen=True)
class Measurements:
    """Payload sizes and costs of a method.

    Attributes:
        keys: The declared keys.
        batch_norm: What becomes of BatchNorm, a line.
        payloads: The measured payloads; empty if they could not be measured.
        cost: The cost; None if it could not be measured.
        not_measured: {``payloads``, ``cost`` or ``batch_norm``: the error}.
        versions: Versions of protofl and torch, and the processor.
    """

    keys: tuple[KeySize, ...]
    batch_norm: str
    payloads: tuple[PayloadSize, ...]
    cost: StepCost | None
    not_measured: Mapping[str, str]
    versions: Mapping[str, str]

    def to_values(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Measurements:
        """Return the measurements of `to_values`."""
        cost = values["cost"]
        return cls(
            tuple(KeySize(**key | {"measured": tuple(key["measured"])}) for key in values["keys"]),
            values["batch_norm"],
            tuple(PayloadSize(**payload) for payload in values["payloads"]),
            cost
            and StepCost(
                Spent(**cost["method"]),
                Spent(**cost["baseline"]),
                tuple(cost["ratios"]),
                cost["server_seconds"],
                cost["models"],
            ),
            values["not_measured"],
            values["versions"],
        )


def measure(method: type | str) -> Measurements:
    """Run a method with its default options on toy problems; this takes some seconds.

    A method that refuses a toy problem, or fails, has no measurement of it.

    Args:
        method: Name of an installed method, or a class.
    """
    failed: dict[str, str] = {}
    payloads: tuple[PayloadSize, ...] = ()
    cost, batch_norm = None, ""
    with toy_runs(method) as runs:
        keys = declared_sizes(runs.cls)
        try:
            keys, payloads = measure_payloads(runs)
        except ProtoflError as error:
            failed["payloads"] = " ".join(str(error).split())
        try:
            cost = measure_cost(runs)
        except ProtoflError as error:
            failed["cost"] = " ".join(str(error).split())
    try:
        batch_norm = batch_norm_line(method)
    except ProtoflError as error:
        failed["batch_norm"] = " ".join(str(error).split())
    versions = {
        "protofl": __version__,
        "torch": torch.__version__.partition("+")[0],
        "processor": machine_facts()["processor"],
    }
    return Measurements(keys, batch_norm, payloads, cost, failed, versions)
