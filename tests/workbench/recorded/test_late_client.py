"""Tests of ``protofl join``: a client that comes later equals an unseen client of a run."""

from __future__ import annotations

import csv
import json
import shlex
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import protofl as pf
from protofl.federation.clients.host import evaluated
from protofl.federation.jobs.jobs import Evaluate, StartTrial
from protofl.federation.plan.client_arrivals import unseen_clients
from protofl.system.clocks import Clock
from protofl_cli.app import app
from protofl_workbench.recorded.scorer import Scorer, downloads_of, export

EPOCHS = 3
OF_STATISTICS = {"fedcgs": {}, "afl": {}, "gh-ofl": {}, "fedpft": {"server_lr": 0.1, "epochs": 10}}
SEED = next(seed for seed in range(99) if unseen_clients(seed, 4, 1) == {3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of three hospitals, of a fourth one, and of all."""
    folder = tmp_path_factory.mktemp("late")
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    hospital = np.array(["berlin", "kiel", "ulm", "wismar"])[np.arange(len(y)) * 4 // len(y)]
    parts = {"three": hospital != "wismar", "late": hospital == "wismar", "four": hospital != ""}
    for name, rows in parts.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow([*(f"f{n}" for n in range(x.shape[1])), "hospital", "outcome"])
            lines.writerows([*x[n], hospital[n], f"c{y[n]}"] for n in np.flatnonzero(rows))
    return folder


def run_on(folder, name, method, statistics, **options):
    options |= {"models": "mlp", "rounds": 2, "lr": 0.05, "feature_dim": 16, "seed": SEED}
    options |= {"metrics": ["balanced-accuracy"], "dry_run": False}
    options["set"] = {"dataset.client": "hospital", "dataset.statistics": statistics}
    options["set"] |= OF_STATISTICS.get(method, {})
    if method in ("fedavg", *OF_STATISTICS):
        options["set"]["models.only"] = "mlp2"
    out = folder / f"{name}-{method}-{statistics}"
    return pf.load_run(
        pf.run(method, dataset=f"csv:{folder / name}.csv", out=out, **options).folder
    )


def export_unseen(run, client, path):
    """Export a run's unseen client after fine-tuning."""
    _, commit, [(_, blob)] = downloads_of(run.plan, run, [client], "last", 0)
    host = pf.backends.Host(run.plan)
    host.handle(StartTrial(0))
    job = Evaluate(client, commit.round, epochs=EPOCHS, blob=blob)
    with evaluated(host, job, Clock()) as (state, sent):
        state.received = sent
        export(Scorer(run.plan, state, run.preparation.of_client(client, 0)), run.plan, path)


@pytest.mark.parametrize("method", ["fedproto", "fedavg"])
def test_it_equals_an_unseen_client_to_the_bit(folder, method):
    run = run_on(folder, "three", method, "client")
    other = run_on(folder, "four", method, "client", unseen=1, fine_tune=EPOCHS)
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    late = run.join(folder / "late.csv", fine_tune=EPOCHS, path=folder / "late.safetensors")
    row = other.rows_of(0)[-1]
    assert late["accuracy"] == row.client_unseen_accuracies["3"]
    assert late["fine_tuned_accuracy"] == row.client_fine_tuned_accuracies["3"]
    assert (late["client"], late["name"]) == (3, "wismar")
    assert late["architecture"] == other.plan.info.architecture_of(3).name
    export_unseen(other, 3, folder / "unseen.safetensors")
    contents = [(folder / f"{name}.safetensors").read_bytes() for name in ("late", "unseen")]
    assert contents[0] == contents[1]
    files = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    assert files == before


@pytest.mark.parametrize("method", OF_STATISTICS)
def test_a_late_hospital_needs_no_training(folder, method):
    """It predicts with the server's head, and fine-tuning finds nothing to train."""
    run = run_on(folder, "three", method, "global")
    late = run.join(folder / "late.csv", fine_tune=1)
    assert late["fine_tuned_accuracy"] == late["accuracy"] > late["majority"] + 0.2


def test_statistics_of_all_clients_stay_those_of_the_run(folder):
    run = run_on(folder, "three", "fedproto", "global")
    run.join(folder / "late.csv", path=folder / "global.safetensors")
    with safe_open(folder / "global.safetensors", "pt") as file:
        scaling = json.loads(file.metadata()["preparation"])["scaling"]
    assert scaling["shift"] == pytest.approx(run.preparation.clients[0][0].shift, abs=0)


def test_the_commands(folder, monkeypatch):
    monkeypatch.chdir(folder)
    run_on(folder, "three", "local", "client")
    shutil.copy("late.csv", "late one.csv")
    asked = CliRunner().invoke(app, ["evaluate", "three-local-client", "late one.csv"])
    assert asked.exit_code == 2
    words = shlex.split(asked.stderr.partition("after the run: protofl ")[2])  # the advice runs
    found = CliRunner().invoke(app, [*words, "--model", "mlp3", "--fine-tune", "1", "--json"])
    late = json.loads(found.stdout)
    assert (late["name"], late["architecture"], late["file"]) == ("wismar", "mlp3", None)
    assert (late["train_samples"], late["test_samples"]) == (33, 11)
    shown = (
        CliRunner().invoke(app, [*words, "--fine-tune", "1", "--export", "l.safetensors"]).stdout
    )
    assert "wismar" in shown and "after fine-tuning" in shown and "majority guess" in shown
    assert shown.split()[-2:] == ["file", "l.safetensors"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["three.csv"], "each row is of a client of"),
        (["two.csv"], "got 2 rostock, wismar"),
        (["late.csv", "--model", "mlp9"], "unknown architecture 'mlp9'"),
        (["late.csv", "--export", "late.tar"], "unknown ending '.tar'"),
    ],
)
def test_mistakes_are_said(folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    text = (folder / "late.csv").read_text(encoding="utf-8")
    (folder / "two.csv").write_text(text.replace("wismar", "rostock", 5), encoding="utf-8")
    if not (folder / "three-local-client").exists():
        run_on(folder, "three", "local", "client")
    found = CliRunner().invoke(app, ["join", "three-local-client", *words])
    assert found.exit_code == 2 and message in " ".join(found.stderr.split())
