"""ALIE: malicious clients send a common error that is too small to be detected.

Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning" (NeurIPS 2019),
Algorithm 3. For every number that is sent

    v′ = μ − z·σ,  μ and σ the mean and the deviation of it over the clients that are known

    z_max = max z with Φ(z) < (n − m − s)/(n − m),  s = ⌊n/2 + 1⌋ − m

with n clients in the round, m of them malicious: with s honest ones beyond μ − z·σ the forged
values look like the majority's. With few clients z_max is small, and 0 for ten of which two are
malicious: they then send their mean, which does no harm. The paper's own experiments choose z too.

μ and σ are those of the malicious clients' honest values, as in the paper, whose attacker knows
no other client; ``knows=all`` takes those of all clients, more than in the paper. Class rows
are compared class by class, each over the clients that have the class; other tensors over the
clients that send one of the same shape. What a single known client sends has no deviation.

Forging needs several uploads at once. In a run they come together only on the server, so it is done
there, on arrival: it simulates clients that talk to each other before they send.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

import protofl as pf
from protofl_plugins.payload_transforms.attack import AttackConfig, touched


class ALIE:
    """Attack: malicious clients agree on μ − z·σ, a little off the mean (Baruch et al., 2019)."""

    attack = True

    class Config(AttackConfig):
        """Options, with the paper's symbols."""

        z: float | None = pf.Field(
            None, ge=0, description="z; 0 sends the mean, large is easily told. None: z_max"
        )
        knows: Literal["malicious", "all"] = pf.Field(
            "malicious", description="whose honest values give μ and σ"
        )

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Uploads:
        """Replace what every malicious client sent by μ − z·σ."""
        config, forgers = server.config, [c for c in uploads if c in server.malicious]
        z = alie_z(len(uploads), len(forgers)) if config.z is None else config.z
        known = uploads if config.knows == "all" else {c: uploads[c] for c in forgers}
        forged = {}
        for client in forgers:
            payload = uploads[client]
            changes = {
                name: _forged(payload, name, [*known.values()], server.num_classes, z)
                for name in touched(payload, config)
            }
            forged[client] = pf.Payload(payload | changes)
        return {**uploads, **forged}


def _forged(payload: pf.Payload, name: str, known: list[pf.Payload], C: int, z: float) -> Tensor:
    """Return μ − z·σ of a payload's tensor, over the clients that have one like it."""
    tensor = payload[name]
    alike = [
        other for other in known if name in other and other[name].shape[1:] == tensor.shape[1:]
    ]
    if payload.has_class_rows(name):
        rows, present = pf.stack_rows(dict(enumerate(alike)), name, C)
        return (
            alie_rows(rows.flatten(2), present, z)[payload.classes_of(name)]
            .view_as(tensor)
            .to(tensor)
        )
    values = torch.stack([o[name].flatten() for o in alike if o[name].shape == tensor.shape])
    present = torch.ones(len(values), 1, dtype=torch.bool, device=tensor.device)
    return alie_rows(values.unsqueeze(1), present, z).view_as(tensor).to(tensor)


def alie_z(clients: int, malicious: int) -> float:
    """Return z_max: Φ(z) = (n − m − s)/(n − m) with s = ⌊n/2 + 1⌋ − m.

    The malicious need s honest clients on their side of z to look like the majority. z is 0 if more
    than half of the honest would do, and s is at least 1 if the malicious are a majority already.

    Args:
        clients: n, clients of the round.
        malicious: m of them.
    """
    honest = clients - malicious
    if honest == 0:
        return 0.0
    share = (honest - max(1, clients // 2 + 1 - malicious)) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


def alie_rows(rows: Tensor, present: Tensor, z: float) -> Tensor:
    """Return μ − z·σ of every class, coordinate by coordinate.

    Args:
        rows: [M, C, K] of the clients that are known; absent rows are not looked at.
        present: [M, C] bool.
        z: How far from the mean.

    Returns:
        [C, K], with σ the deviation of all known values (divided by their number); 0 for classes
        that no client has.
    """
    mask = present.unsqueeze(2)
    values = rows.masked_fill(~mask, 0.0)
    count = mask.sum(0).clamp(min=1)
    mean = values.sum(0) / count
    variance = ((values - mean).square() * mask).sum(0) / count
    return mean - z * variance.sqrt()
