"""What a method does with BatchNorm, as a toy run shows it: the line on the method's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from protofl import Config, Payload
from protofl.hooks.views.client_state import ClientState
from protofl.testing import toy
from toy_runs import plan_of, toy_runs

KINDS = {
    "γ, β": ("weight", "bias"),
    "running statistics": ("running_mean", "running_var"),
    "counts of batches (integers)": ("num_batches_tracked",),
}
"""Tensors of a BatchNorm layer by their name on the page."""

LOCAL = "stay on the client"
MEAN = "are averaged over clients"
LARGEST = "are the largest of the clients'"
SERVER = "are computed by the server, not the clients' mean"
MIXED = "are a mixture of the server's and the client's own"

Policy = dict[str, str]
"""{name of `KINDS`: what a client's layers have at the start of a round}."""


def batch_norm_line(method: type | str) -> str:
    """Return what becomes of BatchNorm in a method with its default options, and others."""
    with toy_runs(method) as runs:
        declared = getattr(runs.cls, "Config", Config)
    text = _sentence(policies(method))
    if "buffers" in declared.model_fields:
        text += f" With `--set buffers=local`: {_sentence(policies(method, buffers='local'))}"
    return text


def policies(method: type | str, **options: str) -> dict[str, Policy]:
    """Compare BatchNorm layers before and after a download, in a toy run of two clients.

    Args:
        method: Name of an installed method, or a class.
        **options: Options of the method.

    Returns:
        {trained module of a client: the policy}; empty if no trained module has BatchNorm.
    """
    groups = [toy.group(toy.NORM), toy.group(*toy.EXITS)]
    with toy_runs(method) as runs:
        plan = plan_of(runs, 4, (3, 6), toy.SIDE, groups, set=options)
        whole, stopped = toy.Toy(plan), toy.Toy(plan)
        whole.rounds(3)
        stopped.rounds(2)
        before, after = [], []
        for number in range(2):
            state, blob = stopped.client(number), whole.pool.downloads(2)[number]
            before.append(_layers(state))
            state.steps, state.round = 2, 2
            stopped.prepare(number, Payload.from_bytes(blob) if blob else {}, double=False)
            after.append(_layers(state))
    return {
        module: {
            kind: _policy([each[module][kind] for each in before], [each[module][kind] for each in after])
            for kind in KINDS
        }
        for module in before[0]
    }


def _layers(state: ClientState) -> dict[str, dict[str, Tensor]]:
    """Return {module: {kind: values}} of the BatchNorm layers that a client trains."""
    modules = {"model": state.model}
    modules |= {name.rpartition("/")[2]: slot.module for name, slot in state.slots() if slot.train}
    layers = {
        name: [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
        for name, module in modules.items()
    }
    return {
        name: {
            kind: torch.cat([getattr(layer, key).detach().flatten() for layer in found for key in keys])
            for kind, keys in KINDS.items()
        }
        for name, found in layers.items()
        if found
    }


def _policy(before: Sequence[Tensor], after: Sequence[Tensor]) -> str:
    """Return where the values of two clients come from, of which each had others before."""
    if all(map(torch.equal, before, after)):
        return LOCAL
    (one, two), new = before, after[0]
    if not torch.equal(*after):
        return MIXED
    if not new.is_floating_point():
        return LARGEST if torch.equal(new, torch.maximum(one, two)) else SERVER
    difference = one - two
    share = float((new - two) @ difference / (difference @ difference))
    is_mean = 0 < share < 1 and torch.allclose(torch.lerp(two, one, share), new, atol=1e-6)
    return MEAN if is_mean else SERVER


def _sentence(found: Mapping[str, Policy]) -> str:
    if not found:
        return "No trained module has BatchNorm: the net is frozen and keeps its statistics."
    parts = []
    for module, policy in found.items():
        kinds: dict[str, list[str]] = {}
        for kind, word in policy.items():
            kinds.setdefault(word, []).append(kind)
        if len(kinds) == 1:
            kinds = {word: ["all tensors"] for word in kinds}
        parts.append("; ".join(f"{' and '.join(names)} {word}" for word, names in kinds.items()))
    return " ".join(f"In `{m}`, {text}." for m, text in zip(found, parts, strict=True))
