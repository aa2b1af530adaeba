"""Toys for tests of the runtime: a tiny data set, a small model group, and runs with them.

Methods are small classes in the tests, passed to ``Plan.make(extra=…)``.
"""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import protofl as pf
from protofl.backends import Plan
from protofl.federation.round.federation import Federation
from protofl.runs.request.program_classes import name_classes
from protofl.runs.request.request import read_request
from protofl.testing import toy as toyfed

DATA = Path(tempfile.mkdtemp(prefix="protofl-tests-"))
atexit.register(shutil.rmtree, DATA, ignore_errors=True)


def quarters():
    """Return 96 images of 8×8 pixels in four classes, each with one bright quarter."""
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(96) % 4
    x = torch.randint(0, 120, (96, 1, 8, 8), generator=generator, dtype=torch.uint8)
    for label in range(4):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[y == label, :, row : row + 4, column : column + 4] += 100
    return pf.datasets.Dataset(x, y, 96, ["a", "b", "c", "d"])


def _dense(width):
    def extractor(sample, K):
        flat = [nn.Flatten(), nn.Linear(math.prod(sample.shape), width), nn.ReLU()]
        return nn.Sequential(*flat, nn.Linear(width, K))

    return toyfed.architecture(f"dense{width}", extractor)


Tiny = toyfed.dataset(quarters())
Toy = toyfed.group(_dense(8), _dense(5), K=6, side=8)
Toy1 = toyfed.group(_dense(8), K=6, side=8)


class PassingExtractor(nn.Module):
    """A frozen extractor, or nothing for features that it has computed before."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x if x.dim() == 2 else self.inner(x)


def kept_group(*, trained_layer=False):
    """Return a group whose features are computed once, perhaps with a trained layer after them."""

    def extractor(sample, K):
        inner = _dense(8).build(sample, 4, K).extractor.requires_grad_(False)
        made = PassingExtractor(inner)
        return nn.Sequential(made, nn.Linear(K, K)) if trained_layer else made

    architecture = toyfed.architecture("kept", extractor)

    def first(model):
        return model.extractor[0] if trained_layer else model.extractor

    return toyfed.group(replace(architecture, precomputed=first), K=6, side=8)


Kept = kept_group()
PARTS = {
    ("dataset", "tiny"): Tiny, ("model-group", "toy"): Toy, ("model-group", "toy1"): Toy1,
    ("model-group", "kept"): Kept,
}  # fmt: skip

GIVEN = {
    "models": "toy",
    "dataset": "tiny",
    "partition": "iid",
    "clients": 4,
    "rounds": 2,
    "batch_size": 6,
    "lr": 0.1,
    "data_dir": DATA,
    "device": "cpu",
    "backend": "local",
    "dry_run": False,
}
"""The options of a toy run; tests of the dry run turn it on."""


def make_plan(method, methods=None, transforms=None, **options):
    """Return the plan of a toy run: ``method`` is a name or a class, ``methods`` has others.

    In ``transforms``, None means that the transform of this name is installed.
    """
    extra = dict(PARTS)
    if isinstance(method, type):
        extra["method", "main"] = method
        method = "main"
    extra |= {("method", name): found for name, found in (methods or {}).items()}
    extra |= {
        ("payload-transform", name): found for name, found in (transforms or {}).items() if found
    }
    given = GIVEN | {"transforms": list(transforms or {})} | options | {"method": method}
    return Plan.make(given, extra)


def open_federation(plan, trial=0):
    """Return a federation in this process, ready for its first round."""
    backend = plan.choices["backend"]
    pool = backend.call("open_pool", plan=plan, workers=1)
    federation = Federation(plan, pool)
    federation.start_trial(trial)
    return federation


def lines_of(plan, rounds=None):
    """Return the rows of some rounds, without run folder and dry run."""
    federation = open_federation(plan)
    return [federation.round(n)[0] for n in range(rounds or plan.settings.rounds)]


def install(monkeypatch):
    """Install the toys as a distribution on ``sys.path``, so that `protofl.run` finds them."""
    info = DATA / "site" / "toys-1.0.dist-info"
    if not info.exists():
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
        groups = {"dataset": "datasets", "model-group": "model_groups"}
        lines = [
            f"[protofl.{groups[kind]}]\n{name} = {__name__}:{name.title()}" for kind, name in PARTS
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(info.parent)


def train(method, out, **options):
    """Train a toy run in a folder; the toys must be installed."""
    options = (GIVEN if not options.get("resume") else {"backend": "local"}) | options
    return pf.run(method, out=out, **options)


def without_times(rows):
    """Return rows of metrics.jsonl without the fields that differ between identical runs."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in rows]


def request_of_program(typed, **places):
    """Return the request for options with classes in place of names, as `protofl.run` makes it."""
    named = name_classes(typed)
    request = read_request(named.typed, extra=named.extra, **places)
    return replace(request, notes=(*named.notes, *request.notes))
