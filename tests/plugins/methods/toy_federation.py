"""An in-process federation on toy data that records its payloads for tests."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

import protofl as pf
from protofl.hooks.plugin.members import Choice
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy as toyfed
from protofl_plugins.models.cnn import CNN4


def _noise(classes, side, channels, each):
    """Return a data set of random images that are independent of their labels."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(classes).repeat(each)
    shape = (len(y), channels, side, side)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return toyfed.dataset(pf.datasets.Dataset(x, y, len(y), [str(c) for c in range(classes)]))


def _flat(sample, K):
    return nn.Flatten()


def _normed(sample, K):
    return nn.Sequential(nn.Conv2d(sample.shape[0], 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())


def _dense(sample, K):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample.shape), 24), nn.ReLU())


def _deep(K, C):
    return nn.Sequential(nn.Linear(K, 5), nn.ReLU(), nn.Linear(5, C))


def _group(*members, K, auxiliary=None):
    class Group(toyfed.group(*members, K=K, side=8)):
        """Toy models; the server has the 4-layer CNN."""

        auxiliary_architecture = auxiliary

        @pf.hookimpl
        def server_architectures(self, config):
            return [CNN4.with_head()]

    return Group


FLAT = toyfed.architecture("flat", _flat)
NORMED = toyfed.architecture("normed", _normed)
DENSE = toyfed.architecture("dense", _dense)
DEEP = toyfed.architecture("deep", _dense, _deep, "5")

EXTRA = {
    ("dataset", "toy"): _noise(100, 32, 3, 8),
    ("dataset", "few"): _noise(6, 8, 1, 20),
    ("dataset", "large"): _noise(2, 64, 3, 8),
    ("model-group", "flat"): _group(FLAT, K=512, auxiliary="cnn4"),
    ("model-group", "small"): _group(DENSE, NORMED, K=12, auxiliary="normed"),
    ("model-group", "heads"): _group(DENSE, DEEP, K=12),
}
"""`flat` is a K × C head; the auxiliary of `small` is its second model, which has BatchNorm."""


class Toy(toyfed.Toy):
    """A federation of a method on toy data.

    Args:
        method: The method's name, or its class.
        set: The method's options.
        parts: Options of other plugins, {"partition": {…}}.
        data_dir: Cache folder of the toy data.
        backwards: Run the clients in descending order.
        dry: Run the dry run first.
        **options: The run's options.
    """

    def __init__(
        self, method, data_dir, set=None, parts=None, *, backwards=False, dry=False, **options
    ):
        given = {"models": "small", "dataset": "few", "clients": 4, "rounds": 3} | options
        chosen = {method: set or {}} | (parts or {})
        given |= {"method": method, "options": chosen, "data_dir": data_dir}
        plan = pf.backends.Plan.make(given, EXTRA)
        if dry:
            dry_run(plan)
        super().__init__(plan, backwards=backwards)

    @property
    def up(self):
        """Return {(round, client): the client's last upload in the round}."""
        return {(j.round, j.client): pf.Payload.from_bytes(r.blob) for j, r in self.pool.trained}

    @property
    def down(self):
        """Return {(round, client): the client's last download in the round}."""
        return {(j.round, j.client): pf.Payload.from_bytes(j.blob) for j, _ in self.pool.trained}

    @property
    def global_state(self):
        return self.server.global_state

    @property
    def classes(self):
        """Return the set of classes in every client's training samples."""
        return [{*self.client(i).train.y.tolist()} for i in range(self.plan.info.num_clients)]


ONE_CLASS = {"partition": "pathological", "parts": {"partition": {"classes_per_client": 1}}}
"""Options that give each client one class."""


def client(config, **values):
    """Return a client view that has only the given values."""
    return SimpleNamespace(config=config, task=pf.datasets.Task(), **values)


def batch_of(count, num_classes, feature_dim, seed=0):
    """Return a batch and an output in float64 with gradients."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 4, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, num_classes, (count,), generator=generator)
    z = torch.randn(count, feature_dim, generator=generator, dtype=torch.float64)
    p = torch.randn(count, num_classes, generator=generator, dtype=torch.float64)
    output = pf.Output(z.requires_grad_(), p.requires_grad_())
    return pf.Batch(x, y, torch.arange(count)), output


def run_defaults(method, config):
    """Return the defaults of the run's options that a method sets."""
    return Choice("method", method.__name__, method, config).run_defaults()
