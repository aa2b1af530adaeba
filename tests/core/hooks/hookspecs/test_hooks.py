"""Test that the hooks are those that plugins are written against."""

from __future__ import annotations

from protofl.hooks.discovery.kinds import spec_hooks

# A change here is one of the public interface: docs/reference/compatibility.md.
HOOKS = {
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
        "loss_factors": "client terms",
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
    },
    "backend": {"open_pool": "plan config workers idle"},
}


def test_the_hooks_are_those_of_plugins():
    for kind, hooks in HOOKS.items():
        assert spec_hooks(kind) == {name: words.split() for name, words in hooks.items()}
