"""ALIE: malicious clients send a common error that is too small to be detected.

Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning" (NeurIPS 2019),
Algorithm 3. For every number that is sent

    v′ = μ − z·σ,  μ and σ the mean and the deviation of it over the clients that are known

    z_max = max z with Φ(z) < (n − m − s)/(n − m),  s = ⌊n/2 + 1⌋ − m

with n clients in the round, m of them malicious: with s honest ones beyond μ − z·σ the forged
values look like the majority's. With few clients z_max is small, and 0 for ten of which two are
malicious: they then send their mean, which harms nobody. The paper's own experiments choose z too.

μ and σ are those of the malicious clients' honest values, as in the paper, whose attacker knows
nobody else; ``knows=all`` takes those of all clients, an attacker stronger than the paper's. Class
rows are compared class by class, each over the clients that have the class; other tensors over the
clients that send one of the same shape. What a single known client sends has no deviation.

Forging needs several uploads at once. In a run they come together only on the server, so it is done
there, on arrival: it simulates clients that talk to each other before they send.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import protofl as pf
from protofl import functional as F
from protofl_plugins.attack import AttackConfig, touched


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
        """μ − z·σ from every malicious client."""
        config, forgers = server.config, [c for c in uploads if c in server.malicious]
        z = F.alie_z(len(uploads), len(forgers)) if config.z is None else config.z
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
    """μ − z·σ of a payload's tensor, over the clients that have one like it."""
    own = payload[name]
    alike = [other for other in known if name in other and other[name].shape[1:] == own.shape[1:]]
    if payload.has_class_rows(name):
        rows, present = pf.stack_rows(dict(enumerate(alike)), name, C)
        return (
            F.alie_rows(rows.flatten(2), present, z)[payload.classes_of(name)].view_as(own).to(own)
        )
    values = torch.stack([o[name].flatten() for o in alike if o[name].shape == own.shape])
    present = torch.ones(len(values), 1, dtype=torch.bool, device=own.device)
    return F.alie_rows(values.unsqueeze(1), present, z).view_as(own).to(own)
