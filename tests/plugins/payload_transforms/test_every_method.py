"""Tests that transforms, which know no method, encode every method's payloads, up and down."""

from __future__ import annotations

import numpy as np
import pytest
from slowness import quick
from width_toys import nets_of

from protofl.hooks.discovery.registry import Registry
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy

METHODS = [
    plugin.name
    for plugin in Registry().plugins("method")
    if plugin.distribution == "protofl"
    and not getattr(Registry().load("method", plugin.name), "donates", False)
]
OPTIONS = {
    "top-k": {"direction": "both", "share": 0.5, "error_feedback": True},
    "quantise": {"stochastic": True},
}


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    path = tmp_path_factory.mktemp("public") / "public.npz"
    x = np.random.default_rng(0).standard_normal((12, toy.SIDE, toy.SIDE))
    np.savez(path, x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
    return path


@pytest.mark.parametrize("method", quick(METHODS, "fedavg", "fedproto"))
def test_it_runs_with_encoded_payloads(method, public):
    models = toy.group(*nets_of(method, [toy.CNN, toy.NORM], [toy.NORM]))
    own = {method: getattr(Registry().load("method", method), "check_options", {})}
    sizes = {}
    for transforms in ([], ["top-k", "quantise"]):
        plan = toy.make_plan(
            method,
            public.parent,
            models=models,
            public=f"npz:{public}",
            transforms=transforms,
            options=own | (OPTIONS if transforms else {}),
        )
        if transforms:
            dry_run(plan)
        made = toy.Toy(plan)
        made.rounds(2)
        sizes[bool(transforms)] = sum(
            toy.count_floats(blob) for blob in made.pool.uploads(1).values()
        )
    assert sizes[True] < sizes[False] or sizes[False] == 0
