"""Rounds of toy federations under any engine, and what they leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import protofl as pf
import torch
import toyfed
from protofl.data.batches import Pixels
from protofl.federation import Federation
from protofl.parts import choose_part
from protofl.registry import Registry
from torch import nn

REGISTRY = Registry()
METHODS = [plugin.name for plugin in REGISTRY.plugins("method")]
QUICK = {"fedtgp": {"S": 5}, "fedet": {"aggregate": "weighted"}, "fedgen": {"b": 1.0, "epochs": 5}}
QUICK["fedktl"] = {"mu": 1.0}
EAGER = choose_part(REGISTRY, "engine", "eager")
RAGGED = [[6, 5, 4, 0], [0, 7, 0, 6], [9, 0, 3, 2], [4, 4, 4, 4], [1, 0, 2, 0], [5, 6, 0, 6]]
"""Six clients: 15, 13, 14, 16, 3 and 17 samples in batches of 5."""


def _residual(channels, side, K):
    """A convolution, BatchNorm, a projection and a residual: what ResNets are made of."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        _Residual(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, K),
    )


class _Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(x + self.norm(self.convolution(x)))


def _dropout(channels, side, K):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, K), nn.Dropout(0.5))


RESIDUAL = toyfed.architecture("residual", _residual)
DROPOUT = toyfed.architecture("dropout", _dropout)


def use_double(monkeypatch):
    """All models, images and draws in float64 from here on."""
    plain = Pixels.__call__
    monkeypatch.setattr(Pixels, "__call__", lambda self, *given: plain(self, *given).double())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)


def make_plan(method, folder, members, **options):
    """A plan of six clients with unlike numbers of samples."""
    own = options.pop("set", {})
    if getattr(REGISTRY.load("method", method), "needs_public", False):
        x = np.random.default_rng(0).standard_normal((12, toyfed.SIDE, toyfed.SIDE))
        np.savez(folder / "public.npz", x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
        options["public"] = f"npz:{folder / 'public.npz'}"
    options["options"] = {method: QUICK.get(method, {}) | own} | options.pop("parts", {})
    images = toyfed.make_images(RAGGED, [[1, 1, 1, 1]] * 6)
    images = replace(images, x=images.x.to(torch.float32))
    return toyfed.make_plan(
        method, folder, images, toyfed.group(*members), **options, backend="local"
    )


class Run:
    """Some rounds of a plan in this process, as the local backend carries them out.

    The first ``start`` of them are trained by ``eager``, so that what the server has learned by
    then is the same to the last bit.
    """

    def __init__(self, plan, rounds=2, start=0):
        self.plan, self.notes = plan, []
        pool = plan.parts["backend"].caller("open_pool", plan=plan, config=pf.Config(), workers=1)
        self.host = pool._host
        self.federation = Federation(plan, pool, self._progress)
        self.federation.start_trial(0)
        engine, plan.parts["engine"] = plan.parts["engine"], EAGER
        self.lines = [self.federation.round(number)[0] for number in range(start)]
        plan.parts["engine"] = engine
        self.lines += [self.federation.round(number)[0] for number in range(start, rounds)]

    def _progress(self, event, values):
        if event == "note":
            self.notes.append(values["text"])

    def tensors(self):
        """Weights, buffers and trained modules of all clients, by client and name."""
        return {
            f"{client}/{name}": tensor.detach().clone()
            for client in range(self.plan.info.num_clients)
            for name, tensor in self._whole(client).state_dict().items()
        }

    def _whole(self, client):
        record = self.host._client(client)
        modules = {n.replace("/", "-"): s.module for n, s in record.slots() if not s.temporary}
        return nn.ModuleDict({"model": record.model, **modules})


def worst(a, b):
    """The largest difference of two sets of tensors, relative to each tensor's largest entry.

    Entries below 1e-3 are measured against that: the mean of a linear layer's output of
    normalised features is 0 but for rounding.
    """
    assert a.keys() == b.keys()
    differences = {
        name: float((a[name] - b[name]).abs().max() / a[name].abs().max().clamp(min=1e-3))
        for name in a
        if a[name].numel() and not torch.equal(a[name], b[name])
    }
    return max(differences.values(), default=0.0)


def assert_equal_runs(found, wanted, tolerance):
    """Weights and loss terms agree to a tolerance."""
    assert worst(wanted.tensors(), found.tensors()) <= tolerance
    for line, other in zip(wanted.lines, found.lines, strict=True):
        assert line["loss_terms"].keys() == other["loss_terms"].keys()
        for label, value in line["loss_terms"].items():
            assert abs(value - other["loss_terms"][label]) <= tolerance * max(abs(value), 1e-3)
