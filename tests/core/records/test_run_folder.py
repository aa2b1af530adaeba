"""Tests of the run folder: files and formats, trials, and the record of a failed run."""

from __future__ import annotations

import json
import math
from datetime import datetime

import pytest
import torch
from runtime_toys import DATA, install, train, without_times

import protofl as pf
from protofl.backends import Plan
from protofl.system.machine import machine_facts
from protofl.system.options.parsing import options_in

LINE = {
    "trial",
    "round",
    "test_accuracy",
    "client_test_accuracy",
    "test_accuracy_std",
    "train_loss",
    "loss_terms",
    "upload_floats",
    "upload_bytes",
    "download_floats",
    "download_bytes",
    "seconds",
    "time",
    "extra",
}
STAGES = {"setup", "train", "prototypes", "payload", "server", "evaluate", "checkpoint", "total"}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


def read(path):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_files_of_a_run(tmp_path):
    out = tmp_path / "run"
    result = train("fedsa", out, rounds=3, participation=0.5, eval_every=2)
    assert {p.name for p in out.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "partition.json",
        "preparation.json",
        "checkpoint",
    }
    assert lines(out) == result.record
    assert read(out / "summary.json") == result.summary
    assert result.folder == out
    assert [(r["trial"], r["round"]) for r in result.record] == [(0, 0), (0, 1), (0, 2)]
    for row in result.record:
        assert set(row) >= LINE
        assert set(row["seconds"]) == STAGES
        assert all(isinstance(v, float) and v >= 0 for v in row["seconds"].values())
        assert row["seconds"]["checkpoint"] > 0
        assert all(float(f"{v:.6g}") == v for v in row["seconds"].values())
        assert datetime.fromisoformat(row["time"]).tzinfo is not None
        assert row["extra"]["prototype_margin"] > 0
        assert set(row["loss_terms"]) == {"ce", "align", "mcl", "calibration"}
    assert [row["test_accuracy"] is None for row in result.record] == [True, False, False]
    assert [row["client_test_accuracy"] is None for row in result.record] == [True, False, False]
    assert set(result.client_accuracies[0]) == {0, 1, 2, 3}


def test_the_checkpoint_holds_no_more_than_two_manifests_name(tmp_path):
    out = tmp_path / "run"
    train("fedsa", out, rounds=3, participation=0.5, keep="current")
    named = {"manifest.json", "before.json"}
    for file, number in (("manifest.json", 2), ("before.json", 1)):
        manifest = read(out / "checkpoint" / file)
        assert (manifest["trial"], manifest["round"]) == (0, number)
        clients = read(out / "checkpoint" / manifest["clients"])
        assert len(clients) >= 2
        named |= {name for name, *_ in clients.values()}
        named |= {manifest["server"], manifest["config"], manifest["clients"]}
    assert {p.name for p in (out / "checkpoint").iterdir()} == named
    assert all(name.endswith((".safetensors", ".json", ".jsonl")) for name in named)


def test_config_json_records_what_the_run_was(tmp_path):
    out = tmp_path / "run"
    train("fedsa", out, rounds=1, set={"alpha": 0.5}, transforms=["gaussian-noise"], drop=["mcl"])
    config = read(out / "config.json")
    assert not {"out", "resume", "quiet", "debug", "backend", "workers"} & set(config)
    assert config["options"]["fedsa"]["alpha"] == 0.5
    assert config["options"]["fedsa"]["lambda_2"] == 1.0
    assert config["data_dir"] == str(DATA)
    assert (config["method"], config["rounds"], config["clients"]) == ("fedsa", 1, 4)
    plugins = {(p["kind"], p["name"]): (p["distribution"], p["version"]) for p in config["plugins"]}
    assert plugins["method", "fedsa"] == ("protofl", pf.__version__)
    assert plugins["dataset", "tiny"] == ("toys", "1.0")
    assert {kind for kind, _ in plugins} == {
        "method",
        "payload-transform",
        "dataset",
        "model-group",
        "partitioner",
        "schedule",
        "client-sampler",
        "engine",
    }
    assert len(config["data"]["digest"]) == 64
    assert config["versions"]["torch"] == torch.__version__
    assert config["machine"] == machine_facts()
    assert config["layout"]["dense8"] == {"channels_last": False, "eval_batch": 7}


def test_paths_are_recorded_absolute(tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez("d.npz", x_train=x, y_train=np.arange(60) % 3)
    train("local", "out", dataset="npz:d.npz", rounds=1, data_dir="cache")
    config = read(tmp_path / "out/config.json")
    assert config["dataset"] == f"npz:{tmp_path / 'd.npz'}"
    assert config["data_dir"] == str(tmp_path / "cache")


def test_partition_json(tmp_path):
    out = tmp_path / "run"
    train("local", out, rounds=1)
    record = read(out / "partition.json")
    plan = Plan.make({"method": "local", "models": "toy", **_options(out)})
    split, labels = plan.split(0), plan.data.y
    assert record["hash"] == split.hash
    for side, rows in (("train", split.train), ("test", split.test)):
        for client in range(4):
            expected = torch.bincount(labels[rows(client)], minlength=4).tolist()
            assert record[f"{side}_counts"][client] == expected


def _options(out):
    return options_in(read(out / "config.json"))


def test_the_summary(tmp_path):
    out = tmp_path / "run"
    result = train("local", out, rounds=4, seed=3)
    rows = result.record
    best = max(row["test_accuracy"] for row in rows)
    assert result.summary["best_test_accuracy"] == best
    assert result.summary["best_round"] == [row["test_accuracy"] for row in rows].index(best)
    assert result.summary["final_test_accuracy"] == rows[-1]["test_accuracy"]
    assert (result.summary["rounds"], result.summary["clients"]) == (4, 4)
    record = read(out / "partition.json")
    hits = [
        test[train.index(max(train))]
        for train, test in zip(record["train_counts"], record["test_counts"], strict=True)
    ]
    total = sum(sum(test) for test in record["test_counts"])
    assert result.summary["majority_accuracy"] == pytest.approx(sum(hits) / total)


@pytest.mark.slow
def test_the_same_run_from_its_config(tmp_path):
    options = {
        "transforms": ["gaussian-noise"],
        "use": {"inference": "local"},
        "add": ["fedproto.align"],
        "drop": ["mcl"],
        "set": {"alpha": 0.9, "fedproto.lambda": 2, "gaussian-noise.p": 0.5},
        "participation": 0.5,
        "momentum": 0.5,
        "seed": 7,
        "trials": 2,
    }
    first = train("fedsa", tmp_path / "first", **options)
    config = tmp_path / "first/config.json"
    again = pf.run(config=config, out=tmp_path / "again", backend="local")
    assert without_times(again.record) == without_times(first.record)
    assert again.summary == first.summary
    assert read(tmp_path / "again/config.json") == read(config)
    other = pf.run(config=config, out=tmp_path / "other", backend="local", seed=8)
    assert without_times(other.record) != without_times(first.record)


@pytest.mark.slow
def test_trials(tmp_path):
    both = train("fedproto", tmp_path / "both", seed=5, trials=2)
    for trial in (0, 1):
        alone = train("fedproto", tmp_path / str(trial), seed=5 + trial)
        expected = [{**row, "trial": trial} for row in without_times(alone.record)]
        assert [row for row in without_times(both.record) if row["trial"] == trial] == expected
        for key in ("best_test_accuracy", "best_round", "final_test_accuracy", "majority_accuracy"):
            assert both.summary["trials"][trial][key] == alone.summary[key]
    for key in ("best_test_accuracy", "final_test_accuracy", "majority_accuracy"):
        one, two = (trial[key] for trial in both.summary["trials"])
        assert both.summary["mean"][key] == pytest.approx((one + two) / 2)
        assert both.summary["std"][key] == pytest.approx(abs(one - two) / 2)
    assert set(both.client_accuracies) == {0, 1}


@pytest.mark.parametrize("hold", [False, True])
def test_holding_the_split(tmp_path, hold):
    result = train("local", tmp_path / "run", trials=2, hold_split=hold)
    record = read(tmp_path / "run/partition.json")
    first, *others = [record["hash"], *(other["hash"] for other in record["trials"])]
    assert all(other != first for other in others)
    assert len(others) == (0 if hold else 1)
    one, two = (
        [{**row, "trial": 0} for row in without_times(result.record) if row["trial"] == trial]
        for trial in (0, 1)
    )
    assert one != two
    majority = [trial["majority_accuracy"] for trial in result.summary["trials"]]
    assert not hold or majority[0] == majority[1]


class Diverging:
    """Client 2 sends NaN in round 1."""

    @pf.hookimpl
    def upload_payload(self, client):
        bad = client.id == 2 and client.round == 1
        client.state["round"] = client.round
        return pf.Payload(x=torch.tensor(math.nan if bad else 1.0))

    @pf.hookimpl
    def server_aggregate(self, server, uploads):
        return {"x": torch.stack([u["x"] for u in uploads.values()]).sum()}

    @pf.hookimpl
    def end_round(self, server):
        return {"sum": server.global_state["x"]}


def test_nan_in_an_upload_stops_the_run(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(pf.RunFailure) as caught:
        train(Diverging, out, rounds=3, dry_run=False)
    assert "client 2 sent 'x' with NaN" in caught.value.what
    assert "round 2" in caught.value.what
    assert "--on-bad-upload skip" in caught.value.do
    assert caught.value.exit_code == 1
    assert [row["round"] for row in lines(out)] == [0]
    assert read(out / "checkpoint/manifest.json")["round"] == 0


def test_nan_in_an_upload_may_be_skipped(tmp_path):
    result = train(Diverging, tmp_path / "run", rounds=3, dry_run=False, on_bad_upload="skip")
    assert [row.get("skipped_uploads") for row in result.record] == [None, [2], None]
    assert [row["extra"]["sum"] for row in result.record] == [4, 3, 4]


def test_a_loss_that_is_not_finite_is_written_as_json(tmp_path):
    class Infinite:
        terms = {"ce": "x"}

        @pf.hookimpl
        def local_loss(self, client, batch, output):
            return {"ce": output.logits.sum() * math.inf}

    out = tmp_path / "run"
    train(Infinite, out, rounds=1, dry_run=False)
    (text,) = (out / "metrics.jsonl").read_text().splitlines()
    row = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert row["train_loss"] is None
    assert row["loss_terms"] == {"ce": None}


def test_a_folder_in_use(tmp_path):
    (tmp_path / "file").write_text("x")
    for used in (tmp_path, tmp_path / "file"):
        with pytest.raises(pf.UsageError, match="in use") as caught:
            train("local", used)
        assert "--resume" in caught.value.do
    assert (tmp_path / "file").read_text() == "x"


def test_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [train("local", None, rounds=1, dry_run=False).folder for _ in range(2)]
    assert folders[0] != folders[1]
    for folder in folders:
        assert folder.parent.name == "runs"
        assert folder.name.startswith("local-toy-tiny-s0-2")
        assert (tmp_path / "runs" / folder.name / "summary.json").exists()
