"""Plans of six different clients for any method and engine."""

from __future__ import annotations

import numpy as np

from protofl.hooks.discovery.registry import Registry
from protofl.testing import toy as toyfed
from protofl.testing.donors import methods_to_run
from protofl.testing.equality import ragged_images

REGISTRY = Registry()
METHODS = methods_to_run(REGISTRY)

ENGINES = {
    "vmapped": {"engine": "vmapped"},
    "cuda-graphs": {"engine": "cuda-graphs"},
}


def make_plan(method, folder, members, **options):
    """Return a plan of six clients with different numbers of samples."""
    own = options.pop("set", {})
    plugin = REGISTRY.load("method", method)
    if getattr(plugin, "needs_public", False):
        x = np.random.default_rng(0).standard_normal((12, toyfed.SIDE, toyfed.SIDE))
        np.savez(folder / "public.npz", x_train=x.astype(np.float32), y_train=np.arange(12) % 4)
        options["public"] = f"npz:{folder / 'public.npz'}"
    quick = getattr(plugin, "check_options", {})
    options["options"] = {method: quick | own} | options.pop("parts", {})
    models = toyfed.group(*members)
    return toyfed.make_plan(method, folder, ragged_images(), models, **options, backend="local")
