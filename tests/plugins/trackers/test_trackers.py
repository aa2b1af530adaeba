"""Tests of the built-in trackers: their own libraries read what they wrote."""

from __future__ import annotations

import builtins
import json
import sys
import time

import pytest

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.plugin.members import choose
from protofl.testing import TrackerContract, run_checks
from protofl.testing.trackers import SUMMARY, line

REGISTRY = Registry()
CONFIG = {"method": "fedproto", "options": {"fedproto": {"lambda": 0.5}}, "rounds": 3, "drop": []}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


def tracked(tmp_path, rows=(), trials=1, group="sweep"):
    folder = tmp_path / "runs/one"
    folder.mkdir(parents=True, exist_ok=True)
    return pf.TrackedRun("key0", "one", group, folder, CONFIG, trials, 3, list(rows))


def tell(choice, run, rows, status="finished", error=""):
    opened = choice.call("open_run", run=run)
    for number, row in enumerate(rows, len(run.rows)):
        choice.call("log_round", opened=opened, run=run, row=row, number=number)
    summary = SUMMARY if status == "finished" else {}
    choice.call("end_run", opened=opened, run=run, status=status, summary=summary, error=error)


def tracker(name, **options):
    pytest.importorskip(name)  # the development install has none of them; CI installs them later
    choice = choose(REGISTRY, "tracker", name, options)
    choice.call("check")
    return choice


LINES = [line(0, number) for number in range(3)]

# --- TensorBoard ----------------------------------------------------------------------------------


def events_of(folder):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = event_accumulator.EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(folder, name):
    return [(e.step, round(e.value, 4)) for e in events_of(folder).Scalars(name)]


def test_tensorboard_scalars_by_step(tmp_path):
    tell(tracker("tensorboard"), tracked(tmp_path), LINES)
    folder = tmp_path / "runs/one/tensorboard"
    assert scalars(folder, "test_accuracy") == [(1, 0.25), (3, 0.75)]
    assert scalars(folder, "loss_terms/ce") == [(n, 0.5) for n in (1, 2, 3)]
    found = events_of(folder)
    assert "metrics/macro-f1/all" in found.Tags()["scalars"]
    text = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text) == CONFIG
    assert b"finished" in found.Tensors("status/text_summary")[0].tensor_proto.string_val[0]


def test_tensorboard_of_a_run_that_goes_on_holds_each_round_once(tmp_path):
    choice = tracker("tensorboard")
    tell(choice, tracked(tmp_path), LINES[:2], "interrupted")
    tell(choice, tracked(tmp_path, LINES[:1]), LINES[1:])
    assert scalars(tmp_path / "runs/one/tensorboard", "train_loss") == [
        (1, 1.0),
        (2, 0.5),
        (3, 0.3333),
    ]


def test_tensorboard_trials_and_a_folder_for_all_runs(tmp_path):
    choice = tracker("tensorboard", folder=str(tmp_path / "board"))
    tell(choice, tracked(tmp_path, trials=2), [line(0, 0), line(1, 0)])
    for trial in ("trial-0", "trial-1"):
        assert scalars(tmp_path / "board/sweep/one" / trial, "train_loss") == [(1, 1.0)]


# --- MLflow ---------------------------------------------------------------------------------------


@pytest.fixture
def mlflow_of(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking")
    uri = f"file:{tmp_path}/store"

    def runs():
        client = tracking.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("mine").experiment_id
        return client, client.search_runs([experiment])

    return tracker("mlflow", uri=uri, experiment="mine"), runs


def history(client, run, name):
    return sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))


def test_mlflow_metrics_parameters_and_tags(tmp_path, mlflow_of):
    choice, runs = mlflow_of
    tell(choice, tracked(tmp_path), LINES)
    client, (run,) = runs()
    assert history(client, run, "test_accuracy") == [(1, 0.25), (3, 0.75)]
    assert run.data.metrics["summary/best_test_accuracy"] == 0.75
    assert run.data.params["options.fedproto.lambda"] == "0.5"
    assert (run.info.status, run.info.run_name) == ("FINISHED", "one")
    assert (run.data.tags["group"], run.data.tags["protofl.key"]) == ("sweep", "key0")


def test_mlflow_goes_on_in_the_same_run_with_what_it_lacks(tmp_path, mlflow_of):
    choice, runs = mlflow_of
    tell(choice, tracked(tmp_path), LINES[:1], "failed", "no memory")
    client, (run,) = runs()
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "no memory")
    tell(choice, tracked(tmp_path, LINES[:2]), LINES[2:])  # it never got the second
    client, (run,) = runs()
    assert history(client, run, "upload_bytes") == [(1, 1000), (2, 1000), (3, 1000)]
    assert run.info.status == "FINISHED"


def test_mlflow_trials_are_apart(tmp_path, mlflow_of):
    choice, runs = mlflow_of
    tell(choice, tracked(tmp_path, trials=2), [line(0, 0), line(1, 0), line(1, 1)])
    client, (run,) = runs()
    assert history(client, run, "trial-0/train_loss") == [(1, 1.0)]
    assert history(client, run, "trial-1/train_loss") == [(1, 1.0), (2, 0.5)]


def test_mlflow_takes_no_password():
    with pytest.raises(pf.UsageError, match=r"mlflow\.uri holds a password") as told:
        tracker("mlflow", uri="https://me:secret@host/")
    assert "secret" not in str(told.value) and "MLFLOW_TRACKING_PASSWORD" in told.value.do


# --- Weights & Biases -----------------------------------------------------------------------------


BLOCK, HEAD = 32768, 7


def records_in(path):
    """Yield the records of a W&B file: LevelDB's log format after a header of seven bytes."""
    data, place, whole = path.read_bytes(), HEAD, b""
    while place + HEAD <= len(data):
        if BLOCK - place % BLOCK < HEAD:  # the rest of a block is zeros
            place += BLOCK - place % BLOCK
            continue
        length, part = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if part in (1, 4):  # whole, or the last part of several
            yield whole
            whole = b""


def offline_runs(folder, count=1):
    """Return (run, lines, summary, exit code) of each W&B file, once all are complete.

    W&B's own process writes them and finishes after the end of the run.
    """
    pytest.importorskip("wandb")
    until = time.monotonic() + 30
    while True:
        found = read_offline(folder)
        ended = [each for each in found if each[3] is not None]
        if len(ended) == count or time.monotonic() > until:
            return found
        time.sleep(0.05)


def read_offline(folder):
    from wandb.proto import wandb_internal_pb2 as records

    found = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        run, rows, summary, code = None, [], {}, None
        for data in records_in(path):
            record = records.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
            elif kind == "history":
                items = record.history.item
                rows.append(
                    {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items}
                )
            elif kind == "summary":
                for item in record.summary.update:
                    key = item.key or "/".join(item.nested_key)
                    summary[key] = json.loads(item.value_json)
            elif kind == "exit":
                code = record.exit.exit_code
        found[path.name, path.parent.name] = (run, rows, summary, code)
    return [*found.values()]


def test_wandb_offline(tmp_path):
    tell(tracker("wandb", mode="offline", project="mine"), tracked(tmp_path), LINES)
    ((run, rows, summary, code),) = offline_runs(tmp_path / "runs/one")
    assert (run.run_id, run.display_name, run.run_group, run.project) == (
        "key0",
        "one",
        "sweep",
        "mine",
    )
    config = {u.key: json.loads(u.value_json) for u in run.config.update}
    assert config["options.fedproto.lambda"] == 0.5
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[0]["loss_terms/ce"] == 0.5 and "test_accuracy" not in rows[1]
    assert (summary["summary/best_test_accuracy"], summary["status"], code) == (0.75, "finished", 0)


def test_wandb_offline_the_last_part_of_a_run_holds_all(tmp_path):
    choice = tracker("wandb", mode="offline")
    tell(choice, tracked(tmp_path), LINES[:1], "failed", "no memory")
    (_, _, summary, code), *_ = offline_runs(tmp_path / "runs/one")
    assert (summary["error"], code) == ("no memory", 1)
    tell(choice, tracked(tmp_path, LINES[:1]), LINES[1:])
    parts = offline_runs(tmp_path / "runs/one", 2)
    assert {run.run_id for run, *_ in parts} == {"key0"}
    assert [1, 2, 3] in [[row["round"] for row in rows] for _, rows, *_ in parts]


def test_wandb_without_a_key_says_what_to_do(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(pf.UsageError, match="there is no key") as told:
        tracker("wandb")
    assert "wandb.mode=offline" in told.value.do


# --- all trackers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_missing(name, monkeypatch):
    monkeypatch.setattr("protofl_plugins.trackers.libraries.find_spec", lambda module: None)
    with pytest.raises(pf.UsageError, match=f"--track {name} needs the library {name}") as told:
        choose(REGISTRY, "tracker", name, {}).call("check")
    assert f"pip install 'protofl[{name}]'" in told.value.do


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_no_library_is_imported_before_it_is_needed(name, monkeypatch):
    module = sys.modules[REGISTRY.load("tracker", name).__module__]
    plain = builtins.__import__

    def without(wanted, *rest):
        assert wanted.partition(".")[0] not in ("tensorboard", "mlflow", "wandb"), wanted
        return plain(wanted, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    __import__("importlib").reload(module)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_the_contract(name):
    pytest.importorskip(name)
    found = run_checks(type("Chosen", (TrackerContract,), {"plugin": name}))
    assert [finding for finding in found if finding.outcome == "failed"] == []
    assert sum(finding.outcome == "passed" for finding in found) >= 9
