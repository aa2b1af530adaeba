"""Every installed plugin under the contract of its kind, as `protofl check` runs it.

Left out here are what the tests of the kind look at in a quicker way, and what has to be
downloaded.
"""

from __future__ import annotations

import pytest
from slowness import KINDS

from protofl.hooks.discovery.registry import Registry
from protofl.testing.contract import checks_of, run_checks
from protofl_cli.check_target import CONTRACTS

# Each of these takes most of a minute; what they share with their kin is checked there.
LARGE = {"htfe3", "htfe4", "htfe5", "htfe8", "htfe9", "htm10", "htfe8-htc4", "res34-htc4"}
LARGE |= {"resnet18", "resnet34", "fedpkd-het"}
ELSEWHERE = {
    "dataset": {
        "npz",
        "folder",
        "domains",
        "pfllib",
        "har",
        "pamap2",
    },  # need files; their tests make them
    "generator": {"stable-diffusion"},  # needs a pipeline; its tests make one
    "text-encoder": {"class-embeddings", "transformers"},  # need files; their tests make them
    "backend": {"process", "ray"},  # start processes; see tests/plugins/backends
    "model-group": LARGE | {"timm"},  # an extra; see tests/plugins/models/test_pretrained.py
    "selection": {"list"},  # needs a file; its tests make one
    "world": {"trace"},
    "tracker": {"tensorboard", "mlflow", "wandb"},  # see tests/plugins/trackers
    "engine": {"vmapped", "captured"},  # see tests/plugins/engines
}
TWICE = {
    "method": {
        # Each method under each engine in float64: tests/plugins/engines/test_engine_equality.py.
        "test_every_engine_equals_eager",
        # test_methods.py looks at both, and more closely.
        "test_nothing_undeclared_leaves_a_client",
        "test_state_survives_a_file",
    },
    "engine": {"test_it_equals_eager", "test_every_method"},  # `eager` is what others equal
}
WHOLE = {
    "method": {*KINDS, "multi-krum"},
    "metric": {"auc", "confusion"},
    "model-group": {"cnn4", "cnn1d", "htcnn8", "mlp", "text", "htfe-sen-2"},
    "partitioner": {"dirichlet", "pathological"},
    "study": {"fedsa"},
    "wrapper": {"alie", "quantise", "stale"},
}
"""Plugins of each kind that all checks look at by default; of a kind not named here, all of them.
Their kin differ in what `BRIEFLY` looks at, and the slow tests hold them against all checks."""
BRIEFLY = {
    *("test_name_and_hooks", "test_words", "test_options", "test_declarations"),
    *("test_a_donor_is_run_by_others_alone", "test_its_hooks_are_wrappers"),
    *("test_architectures", "test_every_client_gets_enough", "test_counts_add_up"),
}


def parts(plugin):
    """A plugin's checks that run by default, and those that are left for the slow tests."""
    checks = {*checks_of(CONTRACTS[plugin.kind])} - TWICE.get(plugin.kind, set())
    brief = checks & BRIEFLY if plugin.name not in WHOLE.get(plugin.kind, [plugin.name]) else checks
    for part, marks in ((brief, []), (checks - brief, [pytest.mark.slow])):
        if part:
            yield pytest.param(plugin, part, id=plugin.label, marks=marks)


PLUGINS = [
    plugin
    for plugin in Registry().plugins()
    if plugin.kind in CONTRACTS
    and plugin.distribution == "protofl"
    and plugin.name not in ELSEWHERE.get(plugin.kind, ())
]


@pytest.mark.parametrize(
    ("plugin", "checks"), [part for plugin in PLUGINS for part in parts(plugin)]
)
def test_a_plugin_keeps_its_contract(plugin, checks):
    contract = CONTRACTS[plugin.kind]
    others = dict.fromkeys({*checks_of(contract)} - checks)
    found = run_checks(type("Chosen", (contract,), {"plugin": plugin.name, **others}))
    assert len(found) == len(checks)
    failed = [f for f in found if f.outcome in ("failed", "not reached")]
    assert not failed, "\n".join(f"{f.words}: {f.why}\n{f.trace}" for f in failed)


@pytest.fixture(autouse=True)
def _no_downloads(monkeypatch):
    """A data set that would be downloaded is refused at once, as on a machine without internet."""
    import urllib.request

    def refuse(*_, **__):
        raise OSError("no internet in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
