"""Tests of the names that the data give the clients: hospitals in records, tables and pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import protofl as pf
from protofl.data.split import Split, client_names
from protofl.datasets import Dataset
from protofl_cli.app import app

NAMES = ["Charité", "St Mary", "UCL_1 $x$"]


def arrays():
    draws = np.random.default_rng(0)
    return {
        "x_train": draws.normal(size=(120, 6)).astype("float32"),
        "y_train": np.arange(120) % 4,
        "age": draws.integers(20, 90, 120),
        "hospital": np.array(NAMES)[draws.integers(0, 3, 120)],
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals") / "run"
    pf.run(
        "local", models="mlp", dataset=arrays(), partition="column:hospital", rounds=2, out=folder,
        batch_size=10, metrics="macro-f1", progress=False, device="cpu", backend="local",
    )  # fmt: skip
    return pf.load_run(folder)


def test_the_split_has_the_names(run):
    assert run.client_names == run.split().client_names == tuple(NAMES)
    assert run.split().name_of(1) == "St Mary"
    record = json.loads((run.folder / "partition.json").read_text("utf-8"))
    assert record["client_names"] == NAMES and record["clients"] == 3


def test_columns_and_frames_have_the_names(run):
    columns = run.columns
    assert columns["client_accuracies.St Mary"][-1] == run.accuracies[0][1]
    assert "client_accuracies.1" not in columns
    assert "metrics.macro-f1.clients.Charité" in columns
    pytest.importorskip("pandas")
    assert {*run.frame().columns} == {*columns}


@pytest.mark.slow
def test_reports_and_pictures_have_the_names(run):
    page = pf.report(run.folder)
    assert all(name in page for name in NAMES)
    assert all(f'<th scope="row">{name}</th>' in page for name in NAMES)
    (axes,) = (a for a in pf.plots.split(run).axes)
    assert [text.get_text() for text in axes.get_xticklabels()] == NAMES


def test_a_split_is_shown_with_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    np.savez("data.npz", **arrays())
    words = ["--dataset", "npz:data.npz", "--set", "dataset.kind=table"]
    shown = CliRunner().invoke(app, [
        "partition", "show", *words, "--partition", "column:hospital", "--out", "x.png",
    ])  # fmt: skip
    assert shown.exit_code == 0, shown.output
    rows = [line for line in shown.output.splitlines() if line.startswith(tuple(NAMES))]
    assert len(rows) == 3


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    """Return the output and the folder of a run that is no better than guessing."""
    folder, draws = tmp_path_factory.mktemp("poor"), np.random.default_rng(1)
    labels = draws.choice(3, 120, p=[0.8, 0.1, 0.1])
    np.savez(folder / "data.npz", **(arrays() | {"y_train": labels}))
    done = CliRunner().invoke(app, [
        "run", "local", "--models", "mlp", "--dataset", f"npz:{folder / 'data.npz'}",
        "--set", "dataset.kind=table", "--partition", "column:hospital", "--rounds", "1",
        "--trials", "2", "--lr", "1e-9", "--backend", "local", "--out", str(folder / "run"),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split()), folder / "run"


def test_a_run_names_its_worst_client_and_says_that_guessing_is_better(poor):
    output, folder = poor
    run = pf.load_run(folder)
    worst, *_, best = lines = run.result.clients
    each = [run.accuracies[trial][worst["number"]] for trial in (0, 1)]
    assert worst["score"] == pytest.approx(np.mean(each)) and worst["std"] == np.std(each)
    assert worst["client"] == NAMES[worst["number"]] and best["score"] >= worst["score"]
    guesses = [run.majority(trial, [worst["number"]]) for trial in (0, 1)]
    assert worst["guess"] == pytest.approx(np.mean(guesses)) and 0.5 < worst["guess"] < 1
    assert {line["architecture"] for line in lines} == {"mlp1", "mlp2", "mlp3"}
    shown = CliRunner().invoke(app, ["runs", "show", str(folder)]).output
    for text in (output, " ".join(shown.split())):
        row = f"{worst['client']} {worst['samples']:.0f} {worst['architecture']}"
        assert f"{row} {worst['score']:.1%} ± {worst['std']:.1%} {worst['guess']:.1%}" in text
    assert "imbalanced classes, " in output and ", balanced " in output
    assert "is not better than the majority guess, " in output
    (told,) = json.loads(CliRunner().invoke(app, ["runs", "show", str(folder), "--json"]).output)
    assert told["clients"] == lines


def test_pages_pictures_and_exported_clients_say_it_too(poor, tmp_path):
    _, folder = poor
    page, (worst, *_) = pf.report(folder), pf.load_run(folder).clients
    assert 'class="lead-fact below"' in page and "not better than the majority guess" in page
    assert f"; {worst['client']} over trials" in page and "Balanced accuracy" in page
    (axes,) = pf.plots.clients(folder).axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names[0] == worst["client"] and {*names} == {*NAMES}
    words = [str(folder), str(tmp_path / "a.pt2"), "--client", worst["client"]]
    exported = CliRunner().invoke(app, ["export", *words])
    np.save(tmp_path / "new.npy", np.zeros((1, 6), np.float32))
    words = [str(tmp_path / "a.pt2"), str(tmp_path / "new.npy"), "--trust-pickle"]
    for done in (exported, CliRunner().invoke(app, ["score", *words])):
        assert done.exit_code == 0, done.output
        assert f"{worst['client']}: accuracy " in " ".join(done.output.split())


def test_a_client_is_named_on_the_command_line(run):
    split = run.split()
    assert [split.client_of(name) for name in (*NAMES, "1")] == [0, 1, 2, 1]
    words = ["evaluate", str(run.folder), "--cross", "--json"]
    named = CliRunner().invoke(app, [*words, "--client", "St Mary"])
    numbered = CliRunner().invoke(app, [*words, "--client", "1"])
    assert named.exit_code == 0 and named.output == numbered.output
    wrong = CliRunner().invoke(app, [*words, "--client", "Charite"])
    assert wrong.exit_code == 2 and "Charité" in wrong.output


def test_other_owners_are_not_asked_for_the_classes_of_their_samples(poor, monkeypatch):
    plan = pf.load_run(poor[1]).plan
    assert plan.settings.metrics == ["balanced-accuracy"]
    options = {name: vars(plan.settings)[name] for name in ("method", "models", "dataset",
               "partition", "options")}  # fmt: skip
    options["backend"] = "local"
    assert pf.backends.Plan.make(options).settings.metrics == ["balanced-accuracy"]
    backend = pf.backends.Plan.make(options).choices["backend"].plugin
    monkeypatch.setattr(backend, "has_secrets", True, raising=False)
    made = pf.backends.Plan.make(options)
    assert not made.settings.metrics and not any("imbalanced" in note for note in made.notes)


def split_of(owners):
    parts = [torch.tensor([n for n, own in enumerate(owners) if own == c]) for c in (0, 1)]
    pieces = [piece for part in parts for piece in (part[:-1], part[-1:])]
    offsets = torch.tensor([0, *map(len, pieces)]).cumsum(0)
    return Split(torch.cat(pieces), offsets)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({}, []),
        ({"site": ["a", "a", "b", "b"]}, ["a", "b"]),
        ({"site": [7, 7, 3, 3]}, ["site 7", "site 3"]),
        ({"site": [7, 7, 3, 3], "town": ["x", "x", "y", "y"]}, ["x", "y"]),
        ({"site": ["a", "b", "c", "c"]}, []),  # a client of two sites
        ({"domain": ["a", "a", "a", "a"]}, []),  # two clients of one domain
    ],
)
def test_a_column_names_clients_one_to_one(columns, names):
    data = Dataset(torch.zeros(4, 2), torch.zeros(4).long(), 4, ["0"], columns=columns)
    assert client_names(split_of([0, 0, 1, 1]), data.columns) == names
