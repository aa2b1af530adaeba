"""Run folders in the recorded format, with metrics that the tests choose."""

from __future__ import annotations

import json

import pytest
from runtime_toys import install, train
from written_records import CONFIG, LINE

CLASSES = ["nought", "one", "two"]


def row(trial, number, accuracies, *, seconds=2.0, extra=None):
    """Return a line of a record. Each client has ten test samples."""
    values = list(accuracies)
    mean = sum(values) / len(values)
    return LINE | {
        "trial": trial,
        "round": number,
        "test_accuracy": mean,
        "client_test_accuracy": mean,
        "test_accuracy_std": (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5,
        "train_loss": 1 / (number + 1),
        "loss_terms": {"ce": 0.5 / (number + 1), "align": 0.25},
        "upload_bytes": 1_000_000,
        "download_bytes": 2_000_000 if number else 0,
        "client_accuracies": {str(client): value for client, value in enumerate(values)},
        "measures": {"flops": {"counted": 1e9}},
        "metrics": {
            "macro-f1": {"all": mean / 2},
            "confusion": {"all": [[8, 2, 0], [0, 5, 5], [0, 0, 0]]},
        },
        "seconds": {"train": seconds, "evaluate": 0.5, "payload": 0.001, "total": seconds},
        "extra": {},
        **(extra or {}),
    }


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a run folder from accuracies by trial, round and client."""

    def write(name, trials, *, method="fedproto", seed=0, split="a", **config):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        seconds = config.pop("seconds", 2.0)
        rows = [
            row(t, number, round, seconds=seconds)
            for t, rounds in enumerate(trials)
            for number, round in enumerate(rounds)
        ]
        options = config.pop("options", {})
        held = CONFIG | {
            "method": method, "models": "cnn4", "dataset": "digits", "subset": 1.0,
            "partition": "dirichlet", "clients": len(trials[0][0]), "participation": 1.0,
            "rounds": max(map(len, trials)), "trials": len(trials), "seed": seed, "lr": 0.01,
            "eval_clients": "all", "device": "cpu", "metrics": [], "backend": "local",
            "options": {"partition": {"beta": 0.1}, method: {"lambda": 1.0}} | options,
            "data": {"digest": "d" * 64}, "versions": {"torch": "2", "cpu": "AVX2"},
            "plugins": [],
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(held | config))
        lines = [json.dumps(each) for each in rows]
        (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
        counts = [[10, 0, 3]] * held["clients"]
        splits = [
            {
                "trial": t, "classes": CLASSES, "train_counts": counts, "test_counts": counts,
                "public_samples": 0, "global_test_samples": 0, "hash": f"{split}{seed + t}",
            }
            for t in range(len(trials))
        ]  # fmt: skip
        (folder / "partition.json").write_text(json.dumps({**splits[0], "trials": splits[1:]}))
        return folder

    return write


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Train two methods for two trials of two rounds; return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        folder = tmp_path_factory.mktemp("real")
        for method in ("fedproto", "local"):
            train(method, folder / method, rounds=2, trials=2, metrics="confusion", progress=False)
    return folder
