"""Every installed plugin under the contract of its kind, as `protofl check` runs it.

Left out here are what the tests of the kind look at in a quicker way, and what has to be
downloaded.
"""

from __future__ import annotations

import pytest
from protofl.discovery.registry import Registry
from protofl.testing import CONTRACTS

# Each of these takes most of a minute; what they share with their kin is checked there.
LARGE = {"htfe3", "htfe4", "htfe5", "htfe8", "htfe9", "htm10", "htfe8-htc4", "res34-htc4"}
LARGE |= {"resnet18", "resnet34", "fedpkd-het"}
ELSEWHERE = {
    "dataset": {"npz", "folder", "pfllib"},  # need files; their tests make them
    "generator": {"stable-diffusion"},  # needs a pipeline; its tests make one
    "backend": {"process", "ray"},  # start processes; see tests/plugins/backends
    "model-group": LARGE,
    "selection": {"list"},  # needs a file; its tests make one
    "world": {"trace"},
    "tracker": {"tensorboard", "mlflow", "wandb"},  # see tests/plugins/trackers
    "engine": {"vmapped", "captured"},  # see tests/plugins/engines
}
TWICE = (
    # Each method under each engine in float64: tests/plugins/engines/test_engine_equality.py.
    "test_every_engine_equals_eager",
    "test_every_method",
    # test_methods.py looks at both, and more closely.
    "test_nothing_undeclared_leaves_a_client",
    "test_state_survives_a_file",
)


def contract_of(plugin):
    name = f"Test_{plugin.kind}_{plugin.name}".replace("-", "_")
    own = dict.fromkeys(TWICE) if plugin.kind in ("method", "engine") else {}
    if plugin.kind == "study" and plugin.name != "fedsa":  # hundreds of cells each
        own = {"pytestmark": pytest.mark.slow}
    return name, type(name, (CONTRACTS[plugin.kind],), {"plugin": plugin.name, **own})


globals().update(
    contract_of(plugin)
    for plugin in Registry().plugins()
    if plugin.kind in CONTRACTS
    and plugin.distribution == "protofl"
    and plugin.name not in ELSEWHERE.get(plugin.kind, ())
)


@pytest.fixture(autouse=True)
def _no_downloads(monkeypatch):
    """A data set that would be downloaded is refused at once, as on a machine without internet."""
    import urllib.request

    def refuse(*_, **__):
        raise OSError("no internet in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
