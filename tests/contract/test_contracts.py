"""Run the contract of its kind on every installed plugin, as `protofl check` does.

Left out are checks that the tests of the kind do faster, and plugins that need a download.
"""

from __future__ import annotations

import pytest

from protofl.hooks.discovery.registry import Registry
from protofl.testing import checks_of, run_checks
from protofl_cli.options.check_target import CONTRACTS

# Each of these groups takes most of a minute; smaller groups test the code that they share.
LARGE = {"htfe3", "htfe4", "htfe5", "htfe8", "htfe9", "htm10", "htfe8-htc4", "res34-htc4"}
LARGE |= {"resnet18", "resnet34", "fedpkd-het"}
ELSEWHERE = {
    "dataset": {
        "npz",
        "csv",
        "parquet",
        "folder",
        "domains",
        "pfllib",
        "hf",
    },  # need files; their tests make them
    "partitioner": {"shadow"},  # needs a file; see its tests
    "generator": {"stable-diffusion"},  # needs a pipeline; its tests make one
    "backend": {"process", "ray"},  # start processes; see tests/plugins/backends
    "model-group": LARGE | {"hf-text", "hf-causal"},  # extras; see tests/plugins/models
    "client-sampler": {"list"},  # needs a file; its tests make one
    "device-model": {"trace"},
    "tracker": {"tensorboard", "mlflow", "wandb"},  # see tests/plugins/trackers
    "engine": {"vmapped", "cuda-graphs"},  # see tests/plugins/engines
}
TWICE = {
    "method": {
        # tests/plugins/engines/test_engine_equality.py runs each method and engine in float64.
        "test_every_engine_equals_eager",
        # test_methods.py checks both in more detail.
        "test_nothing_undeclared_leaves_a_client",
        "test_state_survives_a_file",
    },
    "engine": {"test_it_equals_eager"},  # `eager` is the reference
}
WHOLE = {
    "method": {"fedproto"},
    "metric": {"auc"},
    "model-group": {"mlp"},
    "partitioner": {"pathological"},
    "reproduction": {"fedsa"},
    "payload-transform": {"quantise"},
}
"""Plugins of each kind that get all checks by default; all plugins of a kind not listed here.
The others differ only in what `BRIEFLY` checks; slow tests run all other checks on them."""
BRIEFLY = {
    *("test_name_and_hooks", "test_words", "test_options", "test_declarations"),
    *("test_a_donor_is_run_by_others_alone", "test_its_hooks_are_wrappers"),
    *("test_architectures", "test_every_client_gets_enough", "test_counts_add_up"),
}


def parts(plugin):
    """Yield a plugin's checks that run by default, and those left for the slow tests."""
    checks = {*checks_of(CONTRACTS[plugin.kind])} - TWICE.get(plugin.kind, set())
    brief = checks & BRIEFLY if plugin.name not in WHOLE.get(plugin.kind, [plugin.name]) else checks
    for part, marks in ((brief, []), (checks - brief, [pytest.mark.slow])):
        if part:
            yield pytest.param(plugin, part, id=plugin.label, marks=marks)


PLUGINS = [
    plugin
    for plugin in Registry().plugins()
    if plugin.kind in CONTRACTS
    and plugin.distribution.startswith("protofl")
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
    """Make downloads of data sets fail at once, as on a machine without internet."""
    import urllib.request

    def refuse(*_, **__):
        raise OSError("no internet in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
