"""Tests of the hooks in this version, and of plugins that require a version."""

from __future__ import annotations

import pytest

import protofl as pf
from protofl.hooks.discovery import kinds
from protofl.hooks.discovery.kinds import Plugin, check_version, spec_hooks
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs import parse_version, serves

# A change here needs a new HOOKSPEC_VERSION: MINOR for additions, MAJOR for all else.
HOOKS = {
    "1.0": {
        "method": {
            "run_defaults": "config",
            "requires": "run config",
            "resolve": "run config",
            "phases": "config run",
            "setup_server": "server",
            "setup_client": "client",
            "download_payload": "server client_id",
            "receive": "client",
            "before_training": "client",
            "local_loss": "client batch output constants",
            "after_batch": "client batch output",
            "after_training": "client",
            "upload_payload": "client",
            "check_upload": "server client_id upload",
            "receive_uploads": "server uploads",
            "server_aggregate": "server uploads",
            "server_train": "server uploads",
            "inference": "client x",
            "score_client": "client scores labels",
            "global_models": "server",
            "end_round": "server",
            "end_trial": "server",
        },
        "model-group": {"architectures": "config", "server_architectures": "config"},
        "partitioner": {
            "partition": "labels num_classes class_names num_clients min_samples num_train columns "
            "generator config notes",
            "count_clients": "labels columns config",
        },
        "dataset": {"cache_key": "config data_dir", "decode": "config data_dir"},
        "generator": {
            "outline": "config data_dir",
            "open_generator": "config device data_dir",
            "train_generator": "config images report out",
        },
        "payload-transform": {
            "upload_payload": "client",
            "download_payload": "server client_id",
            "train_labels": "client labels",
            "train": "client job",
            "receive_uploads": "server uploads",
            "encode_upload": "client payload",
            "decode_upload": "server client_id payload form",
            "encode_download": "server client_id payload",
            "decode_download": "client payload form",
            "end_round": "server",
            "end_trial": "server",
            "requires": "run config",
        },
        "metric": {"count": "scores labels config", "value": "counts config"},
        "client-sampler": {"select": "round count clients sizes losses generator config"},
        "device-model": {
            "device": "client num_clients seed generator config",
            "presence": "num_clients seconds seed config",
        },
        "schedule": {
            "check_run": "plan config",
            "try_out": "coordinator note config",
            "open_schedule": "coordinator config",
        },
        "tracker": {
            "check": "config",
            "open_run": "run config",
            "log_round": "opened run row number config",
            "end_run": "opened run status summary error config",
        },
        "engine": {
            "train": "job config",
            "train_group": "jobs config",
            "choose_groups": "architectures config",
            "variants": "clients",
        },
        "backend": {"open_pool": "plan config workers idle"},
    },
}


def test_the_hooks_are_those_of_the_version():
    assert pf.HOOKSPEC_VERSION in HOOKS, "write the hooks of the new version down"
    for kind, hooks in HOOKS[pf.HOOKSPEC_VERSION].items():
        assert spec_hooks(kind) == {name: words.split() for name, words in hooks.items()}


@pytest.mark.parametrize("version", ["1.0", "1.1", "12.34"])
def test_versions_are_two_numbers(version):
    assert ".".join(map(str, parse_version(version))) == version
    for wrong in (f"{version}.0", f"v{version}", f"{version}a", "", 1.0, (1, 0)):
        assert parse_version(wrong) is None


@pytest.mark.parametrize(
    ("required", "have", "does"),
    [
        ((1, 2), (1, 2), True),
        ((1, 2), (1, 3), True),
        ((1, 3), (1, 2), False),
        ((1, 0), (2, 0), False),
        ((2, 0), (1, 9), False),
    ],
)
def test_what_serves(required, have, does):
    assert serves(required, have) is does


def refused(required):
    plugin = Plugin("method", "fancy", "0.3", "protofl-fancy", "fancy:Fancy")
    with pytest.raises(pf.UsageError) as caught:
        check_version(plugin, type("Fancy", (), {"requires_hookspec": required}))
    return caught.value


def test_a_plugin_that_needs_newer_hooks(monkeypatch):
    monkeypatch.setattr(kinds, "HOOKSPEC_VERSION", "1.1")
    assert str(refused("1.2")).splitlines() == [
        "method/fancy of protofl-fancy 0.3 needs version 1.2 of the hooks",
        f"protofl {pf.__version__} has version 1.1",
        "update protofl (pip install -U protofl), or install an older protofl-fancy",
    ]
    assert "update protofl-fancy" in refused("0.9").do
    assert "MAJOR.MINOR" in refused(1.2).near
    for fits in ("1.0", "1.1", None):
        plugin = Plugin("method", "fancy", "0.3", "protofl-fancy", "fancy:Fancy")
        check_version(plugin, type("Fancy", (), {"requires_hookspec": fits}))


def test_newer_hooks_are_not_taken_for_misspelt_ones():
    class Newer:
        """Uses a hook of a later version."""

        requires_hookspec = "99.0"

        @pf.hookimpl
        def before_everything(self, server):
            return None

    with pytest.raises(pf.UsageError, match=r"needs version 99\.0"):
        Registry(extra={("method", "newer"): Newer}).load("method", "newer")
